"""Thousands of forced steps of a candidate, window by window, against a stock path and against itself.

A window begins with the candidate's state in both paths; within it each keeps its own. How far two honest
backends of these profiles are then apart is measured on pairs of variants (``limits``), and every request's
distances must stay below the predictive limit at its share of the budget. Where the model drafts, verify
steps and plain ones follow each other (``drafted``). Requests are renewed every few windows, so slots and
pages change tenants, and their number changes, so that prepared batches change and are padded; one request
may last for the whole run. The checks of ``watch`` look at every step; at sampled steps
every operation is judged (``local``), or the step is run twice and compared bit for bit (``replay``). A
window in which anything is wrong is run again to find the place (``locate``), and ends the run.

Catches: what a fused, compiled or captured step does wrong rarely, or only after long. Cannot catch: an
error in a step that is not sampled, if it is below what honest backends differ by in a window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from validation.step import progress
from validation.step.distances import Distances
from validation.step.divergence import Divergence, of_check
from validation.step.drafted import drafted, most_stored
from validation.step.executor import Executor
from validation.step.locate import Place, Window, located
from validation.step.walk import Hooks, Walk
from validation.step.watch import Watch
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.weights import Weights

SAID = 3  # divergences of a window
CHECKPOINTS = 10  # windows beside the reference from one checkpoint to the next


@dataclass(frozen=True)
class Pace:
    """``steps`` in all, in windows of ``window``; new requests after ``renewed`` windows, as many as the
    next of ``counts``, padded to the smallest of ``sizes`` (none: as they are). Every ``compared``-th window
    goes beside the reference. ``judged`` steps of the run are judged in full, spread evenly in the logarithm
    of the step; in every window ``twice`` steps are run twice, and all at checkpoints. ``lasting``: the
    first request outlives the others."""

    steps: int
    window: int = 25
    renewed: int = 10
    counts: tuple[int, ...] = (2,)
    sizes: tuple[int, ...] = ()
    compared: int = 1
    judged: int = 0
    twice: int = 0
    lasting: bool = False
    watched: int = 1

    @property
    def windows(self) -> int:
        return -(-self.steps // self.window)

    def judged_steps(self) -> frozenset[int]:
        """Step 0 and the last among them."""
        most = max(self.judged - 1, 1)
        return frozenset(round(self.steps ** (i / most)) - 1 for i in range(self.judged))

    def looked_at(self, step: int) -> bool:
        """Whether the window that begins with a step is a checkpoint: all its steps are run twice, and the
        state behind it is hashed."""
        return self.twice > 0 and step % (self.window * self.compared * CHECKPOINTS) == 0

    def padded(self, requests: int) -> int:
        """Requests of the prepared batch that holds so many."""
        return min((size for size in self.sizes if size >= requests), default=requests)


@dataclass
class LongRun:
    """The result: ``largest`` distance over its limit by name, over all windows; a limit that is infinite
    judges nothing (see ``unjudged``). ``apart``: the largest distances themselves. ``digests``: of the
    state, by the step after which it was taken. ``resumed``: steps that an earlier run made. ``place``: of
    the first divergence, where it could be found."""

    found: list[Divergence] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)
    apart: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    steps: int = 0
    verified: int = 0
    windows: int = 0
    compared: int = 0
    judged: int = 0
    twice: int = 0
    resumed: int = 0
    place: Place | None = None

    @property
    def unjudged(self) -> list[str]:
        return [name for name, limit in self.limits.items() if limit == float("inf")]


@dataclass(frozen=True)
class Paths:
    """The two executors, and what each distance of a request's window may be (none: it is only reported).
    ``share``: of the false-alarm budget, for each operation of a judged step."""

    candidate: Executor
    reference: Executor
    limits: dict[str, float]
    share: float


def long_run(
    config: Config,
    weights: Weights,
    paths: Paths,
    pace: Pace,
    *,
    seed: int = 0,
    device: str = "cpu",
    hooks: Hooks | None = None,
    advance: Callable[[int], None] = lambda steps: None,
    say: Callable[[str], None] = lambda words: None,
    kept: Path | None = None,
) -> LongRun:
    """Walk the steps of ``pace``. ``say`` is told at once what is wrong, ahead of the search for its place.
    ``kept``: a file in which progress is kept, and from which it goes on."""
    run = _Run(config, weights, paths, pace, seed, device, hooks or Hooks(), say)
    first = run.resume(kept) if kept else 0
    for number in range(first, pace.windows):
        run.window(number)
        advance(run.result.steps)
        if run.result.found:
            break
        if kept and progress.due(kept):
            progress.save(kept, run.one, run.result, number + 1)
    if kept:  # also of a run that failed: what ran before may be mended when it is run again
        kept.unlink(missing_ok=True)
    return run.result


class _Run:
    """The two walks and what they have found."""

    def __init__(
        self, config: Config, weights: Weights, paths: Paths, pace: Pace, seed: int, device: str,
        hooks: Hooks, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.say = say
        self.config, self.paths, self.pace, self.seed = config, paths, pace, seed
        most = max(pace.counts)
        rows = max([*pace.sizes, most]) * config.tokens
        lasting = most_stored(config, pace.steps + pace.window) if pace.lasting else 0

        def walk(executor: Executor, h: Hooks) -> Walk:
            return Walk(
                config, weights, executor, None, h, most=most,
                context=most_stored(config, pace.window * pace.renewed), seed=seed, rows=rows,
                checks=False, device=device, lasting=lasting,
            )  # fmt: skip

        self.one, self.other = walk(paths.candidate, hooks), walk(paths.reference, Hooks())
        self.result = LongRun(limits=dict(paths.limits))

    def resume(self, kept: Path) -> int:
        """The first window that is still to be done."""
        first = progress.load(kept, self.one, self.result)
        self.result.resumed = self.result.steps
        return first

    def window(self, number: int) -> None:
        """One window of both paths, and what was wrong in it."""
        pace, one, result = self.pace, self.one, self.result
        if number % pace.renewed == 0 or not one.requests:
            self._renew(number // pace.renewed)
        count = min(pace.window, pace.steps - number * pace.window)
        steps = drafted(self.config, len(one.requests), one.number, count, self.seed * 100_003 + number)
        began = Window(
            one.state.clone(), [(r.length, r.accepted) for r in one.requests], one.number, steps,
            pace.padded(len(one.requests)),
        )  # fmt: skip
        self._watch()
        beside = number % pace.compared == 0
        sums = self._steps(began, beside)
        result.steps, result.windows = result.steps + count, number + 1
        assert one.watch is not None
        found = [*one.found, *one.watch.end(one)]
        one.found = []
        if beside:
            result.compared += 1
            found += compare(result, sums.read(), result.steps - 1)
        if found:
            self._blame(began, found)
        if pace.looked_at(began.number) or result.steps == pace.steps:
            result.digests[result.steps] = one.state.digest()

    def _renew(self, turn: int) -> None:
        """New requests on the slots that the last ones leave, in both paths."""
        one = self.one
        for request in one.requests[int(self.pace.lasting and turn > 0) :]:
            one.release(request)
        for _ in range(self.pace.counts[turn % len(self.pace.counts)] - len(one.requests)):
            one.admit(lasting=self.pace.lasting and not one.requests)

    def _watch(self) -> None:
        if self.one.watch is None:
            self.one.watch = Watch(self.one, self.pace.watched)
        else:
            self.one.watch.begin(self.one)

    def _steps(self, began: Window, beside: bool) -> Distances:
        """All steps of a window."""
        one, other, sums = self.one, self.other, Distances()
        if beside:
            other.state.copy_(one.state)
            other.requests = [replace(r, tokens=[]) for r in one.requests]
        judged, looked_at = self.pace.judged_steps(), self.pace.looked_at(began.number)
        for offset, step in enumerate(began.steps):
            one.share = self.paths.share if one.number in judged else None
            one.twice = one.executor.replays and (looked_at or (beside and offset < self.pace.twice))
            self.result.judged += one.share is not None
            self.result.twice += one.twice and one.share is None
            self.result.verified += len(step.ids[0]) > 1
            one.step(step.ids, step.accepted, began.padded)
            if beside:
                other.step(step.ids, step.accepted, began.padded)
                last = offset + 1 == len(began.steps)
                sums.add(one, other, None if last else began.steps[offset + 1].ids)
        return sums

    def _blame(self, began: Window, found: list[Divergence]) -> None:
        """The place first, where it can be found, then what showed it."""
        one = self.one
        one.share, one.twice, watch = None, False, one.watch
        one.watch = None
        for divergence in found[:SAID]:
            self.say(f"{divergence.words()}: {divergence.message}")
        self.say(f"{len(found)} found; looking for the place in steps {began.number} to {one.number - 1}")
        place = located(one, began, self.paths.share)
        one.watch = watch
        self.result.place = place
        earlier = [d for d in found if place is None or d.step < place.divergence.step]
        later = [d for d in found if d not in earlier]
        self.result.found = [*earlier, *([place.divergence] if place else []), *later]


def compare(result: LongRun, distances: dict[str, Tensor], step: int) -> list[Divergence]:
    """Findings for the distances of a window's requests that are beyond their limits. [request]"""
    found = []
    for name, values in distances.items():
        limit = result.limits.get(name, float("inf"))
        value = float(values.max())
        ratio = value / limit
        result.apart[name] = max(result.apart.get(name, 0.0), value)
        result.largest[name] = max(result.largest.get(name, 0.0), ratio)
        if not ratio <= 1:
            request = int(values.argmax())
            kind, _, layer = name.partition(" of layer ")
            message = f"{name} is {ratio:.3g} times what honest backends differ by in a window"
            number = int(layer) if layer else -1
            where = f"request {request}"
            found.append(of_check(step, "long_run", kind, message, count=1, layer=number, where=where))
    return found
