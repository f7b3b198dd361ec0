"""The long walk as an item of a run: what is measured against what, its controls, and what is said of it.

Catches: see ``long_run``. Its negative controls are other designs of the executor (numbers baked in at
capture, padding that lives, a missing wait), which must be noticed by running steps twice; honest ones must
not be. Cannot catch: see ``long_run``.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from validation import streams
from validation.report.schema import CaseResult, Score
from validation.step import controls, jitter, limits
from validation.step.budget import FREE_SHARE, LOCAL_SHARE
from validation.step.capture import captured
from validation.step.divergence import Divergence
from validation.step.drafted import KINDS, drafted
from validation.step.executor import Executor, fastest, provider
from validation.step.items import Item
from validation.step.long_run import LongRun, Pace, Paths, compare, long_run
from validation.step.paces import pace_of
from validation.step.walk import Walk
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.weights import Weights

if TYPE_CHECKING:
    from validation.step.session import Session

SAID_EVERY = 15.0  # seconds
CONTROLLED = KINDS.index("vvp")  # first of the steps that controls are run on
SHOWN_DIGESTS = 12
# In an interpreter a control takes a minute.
SHOWN_INTERPRETED = ("stale_accepted", "shared_not_joined", "other_order")


def long_walk(session: Session, item: Item, candidate: Executor, result: CaseResult) -> None:
    """Walk, judge, plant controls; the result says what was done."""
    config = item.config()
    weights = session.weights_of(config)
    pace = pace_of(item, session.device, candidate.replays)
    if session.judged is not None:
        pace = replace(pace, judged=session.judged)
    say = Said(session, f"{item.name} by {candidate.name}")
    began = time.monotonic()
    known = _limits(session, item, candidate, weights, pace, say.now)
    seconds = time.monotonic() - began
    paths = Paths(candidate, _reference(result.provider, session.device), known, LOCAL_SHARE)
    tally = controls.Count()
    found = _variants(tally, config, weights, candidate, session, say.now)
    run = long_run(
        config, weights, paths, pace, seed=session.seed, device=session.device,
        advance=say.of(pace.steps), say=say.at_once, kept=kept_file(session, item, candidate),
    )  # fmt: skip
    _report(session, result, run, tally, [*found, *run.found])
    result.note += f"; limits of {len(known)} distances taken in {seconds:.0f} s"
    _capture(session, item, config, candidate, run, result)


def _reference(name: str, device: str) -> Executor:
    """The stock path: the functions that a compiler takes whole, in graphs on a GPU; for these themselves the
    plain provider."""
    if name == "inductor":
        return provider("torch")
    return fastest("inductor", device) if device != "cpu" else provider("inductor")


def _limits(
    session: Session,
    item: Item,
    candidate: Executor,
    weights: Weights,
    pace: Pace,
    say: Callable[[str], None],
) -> dict[str, float]:
    """Of one request's window: of honest pairs where they are kept, else of moved ones (``jitter``)."""
    own = session.weights is not None and session.weights[0] == item.config()
    real = item.widths == "real"
    held = weights if real else {name: tensor.cpu() for name, tensor in weights.items()}
    pairs = limits.Pairs(
        item.config(), held, (candidate.profile, "stock"), pace.window, None if own else session.seed
    )
    folder = session.folder.parent / "long" if session.folder else None
    found = jitter.squares(pairs, session.device if real else "cpu", say, folder)
    requests = sum(pace.counts) / len(pace.counts) * pace.windows / pace.compared
    return limits.limits(found, FREE_SHARE / (len(found) * max(requests, 1)))


def _variants(
    tally: controls.Count,
    config: Config,
    weights: Weights,
    candidate: Executor,
    session: Session,
    say: Callable[[str], None],
) -> list[Divergence]:
    """Other designs of the executor over two verify steps and a plain one, padded: faults are tallied, false
    alarms returned."""
    found = []
    on_cpu = session.device == "cpu"
    for name, (executor, right) in candidate.variants().items():
        if on_cpu and name not in SHOWN_INTERPRETED:
            continue
        say(f"control {name}")
        walk = Walk(
            config, weights, executor, None, most=3, context=2 * config.page, rows=4 * config.tokens,
            checks=False, device=session.device, twice=True, seed=session.seed,
        )  # fmt: skip
        for _ in range(3):
            walk.admit()
        for step in drafted(config, 3, CONTROLLED, 3, seed=session.seed + 7):
            walk.requests = [*walk.requests[1:], walk.requests[0]]
            walk.step(step.ids, step.accepted, padded=4)
        if right:
            found += walk.found
        else:
            tally.add(name, bool(walk.found))
    return found


def _report(
    session: Session, result: CaseResult, run: LongRun, tally: controls.Count, found: list[Divergence]
) -> None:
    result.scores = [Score(name, "largest of all windows", v, 1.0) for name, v in run.largest.items()]
    for name, limit in run.limits.items():
        if limit < float("inf"):
            beyond = {name: torch.tensor([2 * limit])}
            found_it = bool(compare(LongRun(limits=run.limits), beyond, 0))
            tally.add(f"{name} at twice its limit", found_it)
    result.note = "; ".join(_said(run))
    session.counted(result, tally)
    session.report(result, found)


def _said(run: LongRun) -> list[str]:
    """What was done, in words."""
    said = [
        f"{run.steps} steps ({run.verified} of them verify) in {run.windows} windows, {run.compared} of them "
        f"beside the stock path; "
        f"{run.judged} steps judged, {run.twice} run twice"
    ]
    if run.resumed:
        said.append(f"the first {run.resumed} steps are from an earlier run that was cut")
    if run.digests:
        shown = sorted(run.digests)[-SHOWN_DIGESTS:]
        states = ", ".join(f"{step:,}: {run.digests[step]}" for step in shown)
        said.append(f"{len(run.digests)} states hashed, at steps {states}")
    said += [
        f"largest {name} of a window {run.apart[name]:.3g}"
        for name in ("KL divergence",)
        if name in run.apart
    ]
    if unjudged := run.unjudged or ([] if run.limits else ["any distance from the stock path"]):
        said.append(f"no spread is known of {', '.join(unjudged)}")
    return said


def _capture(
    session: Session, item: Item, config: Config, candidate: Executor, run: LongRun, result: CaseResult
) -> None:
    if run.place and run.place.judged and session.folder:
        path = session.folder / f"{result.provider}-{item.name}.safetensors"
        words = captured(path, config, run.place.judged, run.place.divergence.step, candidate)
        result.note += f"; {words}"


def kept_file(session: Session, item: Item, candidate: Executor) -> Path | None:
    """The file of a walk's progress; none without a folder of reports."""
    if session.folder is None or item.widths == "real":
        return None
    words = (
        item.config().digest(),
        candidate.name,
        item.line(session.seed),
        session.device,
        str(session.judged),
    )
    key = hashlib.sha256("/".join(words).encode()).hexdigest()[:12]
    return session.folder.parent / "long" / f"{key}.safetensors"


class Said:
    """Progress to the bar at once, and as a line every quarter of a minute."""

    def __init__(self, session: Session, what: str) -> None:
        self.session, self.what = session, what
        self.last = self.began = time.monotonic()

    def now(self, words: str) -> None:
        self.session.advance(f"{self.what}: {words}")
        if time.monotonic() - self.last > SAID_EVERY:
            self.at_once(words)

    def at_once(self, words: str) -> None:
        """A line, whenever the last one was."""
        self.last = time.monotonic()
        streams.say(f"lockstep: {self.what}: {words}")

    def of(self, steps: int) -> Callable[[int], None]:
        """A function of the steps done that says how many are left and for how long."""
        first: list[tuple[int, float]] = []

        def advance(done: int) -> None:
            first.append((done, time.monotonic())) if not first else None
            number, began = first[0]
            each = (time.monotonic() - began) / max(done - number, 1)
            self.now(
                f"step {done:,} of {steps:,}, {1000 * each:.1f} ms a step, {(steps - done) * each:.0f} s left"
            )

        return advance
