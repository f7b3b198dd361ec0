"""How far two honest backends are apart after a window: measured on pairs of honest variants.

One member of a pair rounds as the candidate declares, the other as the reference does (``honest``); both
start a window from one state and are forced the same tokens. Every request of every pair gives one sum of
squares for each distance. They depend on the model, the two profiles and the window alone, so they are kept
beside the golden data, by a key of all these; where there are none, moved pairs stand for them (``jitter``).

Catches: nothing by itself. Cannot represent: what no honest variant shows at all; such a distance has no
limit and is reported as unjudged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from validation.step.distances import Distances
from validation.step.drafted import drafted, most_stored
from validation.step.executor import Executor
from validation.step.free_running import predictive_limit
from validation.step.honest import honest
from validation.step.walk import Walk
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.weights import Weights, digest

PAIRS, SEEN = 32, 3  # pairs of variants (one request each), windows on which they are run
KEPT = Path(__file__).parents[2] / "golden" / "step"
SCHEMA = "lockstep.step_limits/1"
Squares = dict[str, Tensor]


@dataclass(frozen=True)
class Pairs:
    """Whose distances: the model, the profiles of candidate and reference, and the steps of a window.
    ``drawn``: seed of random weights; None: they are told by their bytes."""

    config: Config
    weights: Weights
    profiles: tuple[str, str]
    window: int
    drawn: int | None = None
    seed: int = 0

    def key(self) -> str:
        which = digest(self.weights) if self.drawn is None else f"seed{self.drawn}"
        return "-".join((self.config.digest(), which, *self.profiles, str(self.window)))


def squares(
    pairs: Pairs,
    say: Callable[[str], None] = lambda words: None,
    folder: Path | None = None,
    measure: Callable[[Pairs, Callable[[str], None]], Squares] | None = None,
) -> Squares:
    """Sums of squares by name [sample]: those of the golden data, those that an earlier run left in
    ``folder``, else measured (on honest variants, if not by ``measure``) and left there."""
    for place in (KEPT, folder):
        path = place / f"pairs-{pairs.key()}.json" if place else None
        if path and path.exists():
            document = json.loads(path.read_text(encoding="utf-8"))
            return {name: torch.tensor(v, dtype=torch.float64) for name, v in document["squares"].items()}
    say("no measured pairs of this model, profiles and window: measuring them")
    found = (measure or measured)(pairs, say)
    if folder:
        keep(pairs, found, folder)
    return found


def measured(pairs: Pairs, say: Callable[[str], None] = lambda words: None) -> Squares:
    """Run the pairs; on the CPU, where few small tensors are fastest."""
    variants = [honest(profile, pairs.seed + 1 + number) for number, profile in enumerate(pairs.profiles)]
    return ran(pairs, variants, PAIRS, SEEN, say)


def ran(
    pairs: Pairs,
    executors: Sequence[Executor],
    count: int,
    windows: int,
    say: Callable[[str], None],
    device: str = "cpu",
) -> Squares:
    """Sums of squares of ``count`` requests in each of so many windows of two executors, which begin every
    window with one state."""
    walks = [_walk(pairs, executor, count, windows, device) for executor in executors]
    gathered: dict[str, list[Tensor]] = {}
    for window in range(windows):
        walks[1].state.copy_(walks[0].state)
        first, seed = window * pairs.window, pairs.seed + 31 * window
        steps = drafted(pairs.config, count, first, pairs.window, seed)
        sums = Distances()
        for number, step in enumerate(steps):
            for walk in walks:
                walk.step(step.ids, step.accepted)
            sums.add(walks[0], walks[1], steps[number + 1].ids if number + 1 < len(steps) else None)
            say(f"pairs for the limits: step {first + number + 1} of {windows * pairs.window}")
        for name, value in sums.read().items():
            gathered.setdefault(name, []).append(value)
    return {name: torch.cat(values) for name, values in gathered.items()}


def _walk(pairs: Pairs, executor: Executor, count: int, windows: int, device: str) -> Walk:
    context = most_stored(pairs.config, pairs.window * windows)
    walk = Walk(
        pairs.config, pairs.weights, executor, None, most=count, context=context,
        rows=count * pairs.config.tokens, checks=False, device=device,
    )  # fmt: skip
    for _ in range(count):
        walk.admit()
    return walk


def keep(pairs: Pairs, found: Squares, kept: Path) -> Path:
    """Write what was measured."""
    path = kept / f"pairs-{pairs.key()}.json"
    kept.mkdir(parents=True, exist_ok=True)
    document = {
        "schema": SCHEMA,
        "configuration": pairs.config.digest(),
        "profiles": pairs.profiles,
        "window": pairs.window,
        "squares": {name: [float(f"{x:.6g}") for x in value.tolist()] for name, value in found.items()},
    }
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return path


def limits(found: Squares, share: float) -> dict[str, float]:
    """Predictive limit of each distance of one request's window; ``share``: of the budget, for one of
    them."""
    result = {}
    for name, values in found.items():
        positive = values[values > 0]
        quantum = positive.min() if len(positive) else torch.tensor(1e-30)
        result[name] = predictive_limit(values + quantum, share)
    return result
