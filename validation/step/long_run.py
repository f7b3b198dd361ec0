"""Thousands of forced steps of two executors, window by window from the same state.

Every window starts with the state of the candidate in both; within it each keeps its own. What two honest
backends differ by in a window is measured on pairs of honest variants (``honest``) over windows of the same
length, and every window's distances must stay below the predictive limit at its share of the budget.
Requests are renewed every few windows, so slots and pages change tenants. Continuity, staging, ranks and
finiteness are checked at every step of the candidate.

Catches: what a fused or compiled step does wrong rarely, or only after long. Cannot catch: an error below
what honest backends differ by in a window (``local`` is for those); which operation it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from validation.step.divergence import Divergence, of_check
from validation.step.executor import Executor
from validation.step.free_running import Reading, predictive_limit, read
from validation.step.honest import honest
from validation.step.walk import Hooks, Walk, forced
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.weights import Weights

WINDOW, RENEWED = 25, 10  # steps of a window, windows between new requests
REQUESTS, PAIRS, SEEN = 2, 16, 3  # pairs of variants, windows on which they are run


@dataclass
class LongRun:
    """The result: ``largest`` distance over its limit by name, over all windows; a limit that is infinite
    judges nothing (see ``unjudged``)."""

    found: list[Divergence] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    windows: int = 0

    @property
    def unjudged(self) -> list[str]:
        return [name for name, limit in self.limits.items() if limit == float("inf")]


def long_run(
    config: Config,
    weights: Weights,
    candidate: Executor,
    reference: Executor,
    steps: int,
    share: float,
    *,
    seed: int = 0,
    hooks: Hooks | None = None,
    advance: Callable[[int], None] = lambda steps: None,
) -> LongRun:
    """Walk ``steps`` steps. ``share``: of the false-alarm budget, for the whole run."""
    context = WINDOW * RENEWED
    walks = [
        Walk(config, weights, executor, None, h, context=context, seed=seed, checks=h is not None)  # type: ignore[arg-type]
        for executor, h in ((candidate, hooks or Hooks()), (reference, None))
    ]
    for walk in walks:
        walk.hooks = walk.hooks or Hooks()
    one, other = walks
    result = LongRun()
    windows = -(-steps // WINDOW)
    limits: dict[str, float] = {}
    for window in range(windows):
        if window % RENEWED == 0:
            _renew(walks)
        other.state.copy_(one.state)
        other._remember()
        tokens = forced(config, REQUESTS, min(WINDOW, steps - window * WINDOW), seed=seed * 100_003 + window)
        if not limits:
            one.share = None
            limits = _limits(one, tokens, share / windows, seed)
            result.limits = limits
        distances = _window(one, other, tokens)
        result.steps, result.windows = result.steps + len(tokens), window + 1
        compare(result, distances, limits, result.steps - 1)
        result.found += one.found
        one.found = []
        advance(result.steps)
    return result


def _renew(walks: list[Walk]) -> None:
    """Both executors get new requests on the slots that the last ones leave."""
    for walk in walks:
        for request in list(walk.requests):
            walk.release(request)
        for _ in range(REQUESTS):
            walk.admit()


def _window(one: Walk, other: Walk, tokens: list[list[list[int]]]) -> dict[str, float]:
    pairs = [(read(one, one.step(ids)), read(other, other.step(ids))) for ids in tokens]
    found = _distances(pairs, tokens, 1)
    return {name: float(value[0]) for name, value in found.items()}


def _distances(
    pairs: list[tuple[Reading, Reading]], tokens: list[list[list[int]]], copies: int
) -> dict[str, Tensor]:
    """By name, of every copy of the requests: sums over the window of squared distances. [copy]"""
    found: dict[str, Tensor] = {}

    def add(name: str, value: Tensor) -> None:
        total = value.unflatten(0, (copies, -1)).flatten(1).sum(1).double()
        found[name] = found.get(name, torch.zeros(copies, dtype=torch.float64)) + total

    for number, (mine, theirs) in enumerate(pairs):
        p, q = mine.logits[:, -1].log_softmax(-1), theirs.logits[:, -1].log_softmax(-1)
        add("KL divergence", (q.exp() * (q - p)).sum(-1).clamp(min=0))
        if number + 1 < len(tokens):
            following = torch.tensor([row[0] for row in tokens[number + 1]] * copies)[:, None]
            add("forced token", (p.gather(1, following) - q.gather(1, following)).square()[:, 0])
        for (kind, layer), state in mine.state.items():
            right = theirs.state[kind, layer]
            scale = right.norm(dim=-1).clamp(min=1e-30)
            add(f"{kind} of layer {layer}", ((state - right).norm(dim=-1) / scale).square())
    return found


def _limits(walk: Walk, tokens: list[list[list[int]]], share: float, seed: int) -> dict[str, float]:
    """Predictive limits of a window's distances, from pairs of honest variants on several windows."""
    count = 2 * PAIRS * REQUESTS
    gathered: dict[str, list[Tensor]] = {}
    variants = Walk(
        walk.config,
        walk.weights,
        honest(walk.executor.profile, seed + 1),
        None,
        most=count,
        context=WINDOW * (SEEN + 1),
        rows=count,
        checks=False,
    )
    for _ in range(count):
        variants.admit()
    half = PAIRS * REQUESTS
    for window in range(SEEN):
        _same_state(variants, half)
        drawn = tokens if window == 0 else forced(walk.config, REQUESTS, len(tokens), seed=seed + 31 * window)
        pairs = []
        for ids in drawn:
            reading = read(variants, variants.step(ids * (2 * PAIRS)))
            pairs.append(tuple(_part(reading, slice(i * half, (i + 1) * half)) for i in (0, 1)))
        for name, value in _distances(pairs, drawn, PAIRS).items():  # type: ignore[arg-type]
            gathered.setdefault(name, []).append(value)
    each = share / len(gathered)
    found = {}
    for name, values in gathered.items():
        squares = torch.cat(values)
        positive = squares[squares > 0]
        quantum = positive.min() if len(positive) else torch.tensor(1e-30)
        found[name] = predictive_limit(squares + quantum, each)
    return found


def _part(reading: Reading, rows: slice) -> Reading:
    return Reading(reading.logits[rows], {pair: state[rows] for pair, state in reading.state.items()})


def _same_state(variants: Walk, half: int) -> None:
    """The second half of the requests takes over what the first has stored."""
    for old, new in zip(variants.requests[:half], variants.requests[half:], strict=True):
        for part in (variants.state.conv, variants.state.recurrent):
            for tensor in part.values():
                tensor[:, new.slots] = tensor[:, old.slots]
        for cache in variants.state.kv.values():
            for rank in range(variants.config.ranks):
                cache[rank, new.pages[rank]] = cache[rank, old.pages[rank]]


def compare(result: LongRun, distances: dict[str, float], limits: dict[str, float], step: int) -> None:
    """Findings for the distances of a window that are beyond their limits."""
    for name, value in distances.items():
        ratio = value / limits[name]
        result.largest[name] = max(result.largest.get(name, 0.0), ratio)
        if not ratio <= 1:
            message = f"{name} is {ratio:.3g} times what honest backends differ by in {WINDOW} steps"
            kind, _, layer = name.partition(" of layer ")
            result.found.append(
                of_check(step, "long_run", kind, message, count=1, layer=int(layer) if layer else -1)
            )
