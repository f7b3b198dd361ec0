"""A walk: one executor, its requests, and step after step with every check, teacher-forced.

``Hooks`` are the places where an engine may go wrong between steps; faults are planted there. Catches: see
``local`` and ``between``. Cannot catch: errors within the noise of every operation that add up
(``free_running``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from validation.step import between, replay
from validation.step.divergence import Divergence, of_operation
from validation.step.executor import Executor
from validation.step.local import Judged, judged_step
from validation.step.rollout import Rollout
from validation.step.watch import Watch
from validation.subjects.kimi_k3.batch import Batch, batch_of
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Binding, Program
from validation.subjects.kimi_k3.program import program
from validation.subjects.kimi_k3.prompt import prompt_batch, prompt_program
from validation.subjects.kimi_k3.requests import Pool, Request
from validation.subjects.kimi_k3.state import Scratch, State, empty_state
from validation.subjects.kimi_k3.weights import Weights


class Diverged(Exception):
    """A walk that stops at the first divergence has found one."""


@dataclass
class Hooks:
    """``between(walk)`` runs between two steps, ``stage(batch)`` may change what the step is told,
    ``admitted(walk, request)`` follows an admission, ``resumed(walk, request)`` a restored state."""

    between: Callable[[Walk], None] = lambda walk: None
    stage: Callable[[Batch], Batch] = lambda batch: batch
    admitted: Callable[[Walk, Request], None] = lambda walk, request: None
    resumed: Callable[[Walk, Request], None] = lambda walk, request: None


@dataclass
class Walk:
    """State and requests of one executor. ``share``: of the false-alarm budget, for each operation of each
    step; None: run without judging operations (the checks between them stay). ``checks``: between steps.
    ``stop``: raise ``Diverged`` at the first divergence. ``rollout``: the reference's own recurrent state,
    judged at every step whose operations are judged. ``device`` holds state and scratch (the weights must
    lie there, too); ``lasting``: tokens of one request that outlives the others. ``watch``: the cheap checks
    of long runs; ``twice``: every step is run whole and operation by operation (``replay``)."""

    config: Config
    weights: Weights
    executor: Executor
    share: float | None
    hooks: Hooks = field(default_factory=Hooks)
    most: int = 2
    context: int = 96
    seed: int = 0
    rows: int = 64
    seen: Callable[[int, Judged], None] = lambda step, judged: None
    checks: bool = True
    stop: bool = False
    rollout: Rollout | None = None
    device: str = "cpu"
    lasting: int = 0
    watch: Watch | None = None
    twice: bool = False

    def __post_init__(self) -> None:
        self.pool = Pool(self.config, self.most, self.context, self.seed, lasting=self.lasting)
        self.state = empty_state(self.config, self.pool.slot_count, self.pool.page_count, self.device)
        self.scratch = Scratch(self.config, self.rows, self.device)
        self.requests: list[Request] = []
        self.number = 0
        self.found: list[Divergence] = []
        self.programs: dict[int, Program] = {}
        self.shadow: State | None = None
        self.blamed: Judged | None = None
        self.last: Binding | None = None

    def admit(self, lasting: bool = False) -> Request:
        """A new request; its slots are checked to be reset."""
        self._unchanged()
        request = self.pool.admit(self.state, lasting)
        self.hooks.admitted(self, request)
        self._add(between.admission(self.number, self.state, request))
        if self.rollout:
            self.rollout.reset(request.slots)
        self.requests.append(request)
        self._remember()
        return request

    def release(self, request: Request, poison: bool = True) -> None:
        """The request ends; its slots and pages go back, poisoned as by a hostile allocator."""
        self._unchanged()
        self.requests = [r for r in self.requests if r is not request]
        self.pool.release(request, self.state if poison else None)
        self._remember()

    def preempt(self, request: Request) -> tuple[Request, State]:
        """Take a request out of the batch and save its state; its slots and pages go back, poisoned."""
        saved = self.state.clone()
        self.release(request)
        return request, saved

    def resume(self, preempted: tuple[Request, State]) -> Request:
        """Give a preempted request new slots and pages with its saved state."""
        self._unchanged()
        return self._restored(*preempted)

    def fork(self, request: Request) -> Request:
        """A new request that starts from all that ``request`` has stored: a prefix snapshot."""
        self._unchanged()
        return self._restored(request, self.state.clone())

    def _restored(self, old: Request, saved: State) -> Request:
        new = self.pool.admit(self.state)
        for mine, theirs in ((self.state.conv, saved.conv), (self.state.recurrent, saved.recurrent)):
            for layer in mine:
                mine[layer][:, new.slots] = theirs[layer][:, old.slots]
        for layer, pages in self.state.kv.items():
            for rank in range(self.config.ranks):
                pages[rank, new.pages[rank]] = saved.kv[layer][rank, old.pages[rank]]
        new.length, new.accepted, new.tokens = old.length, old.accepted, list(old.tokens)
        self.hooks.resumed(self, new)
        self._add(between.restored(self.number, saved, old, self.state, new))
        self.requests.append(new)
        if self.rollout:
            self.rollout.move(old.slots, new.slots)
        self._remember()
        return new

    def step(
        self, ids: list[list[int]], accepted: list[int] | None = None, padded: int | None = None
    ) -> Tensor:
        """One step of all requests; logits [row, token] of the live rows. Requests advance by ``accepted``
        (default: all tokens)."""
        right = batch_of(self.config, self.requests, ids, padded, self.pool.capacity)
        counts = accepted or [len(row) for row in ids]

        def advance() -> None:
            for request, row, count in zip(self.requests, ids, counts, strict=True):
                request.advance(row, count)

        return self._carried_out(
            right, self.program(right.tokens), len(self.requests) * right.tokens, advance
        )

    def prefill(self, request: Request, ids: list[int]) -> Tensor:
        """A request's prompt, or the next chunk of it, in one pass; logits [row, token] of its tokens."""
        right = prompt_batch(self.config, request, ids, self.pool.capacity)

        def advance() -> None:
            request.advance(ids, len(ids))
            request.accepted = 1  # the state is in the first slot

        return self._carried_out(right, prompt_program(self.config, len(ids)), len(ids), advance)

    def _carried_out(self, right: Batch, steps: Program, live: int, advance: Callable[[], None]) -> Tensor:
        """A step of ``live`` rows with all checks around it. ``right``: what it should be told."""
        self.hooks.between(self)
        self._unchanged()
        if self.watch:
            self.watch.before(self)
        batch = self.hooks.stage(right.clone())
        if self.checks:
            self._add(between.staging(self.number, batch, right))
        if self.watch:
            self.watch.staged(self.number, batch, right)
        self.last = binding = self.binding(batch)
        self._run(binding, steps)
        advance()
        if self.checks:
            self._add(between.ranks(self.number, binding))
            self._add(between.finite(self.number, self.state, self.requests))
        self._remember()
        if self.watch:
            self.watch.after(self, binding, live)
        self.number += 1
        return self.scratch.logits[0, :live, : self.config.vocabulary].clone()

    def binding(self, batch: Batch) -> Binding:
        return Binding(self.config, self.weights, self.state, self.scratch, batch.to(self.device))

    def program(self, tokens: int) -> Program:
        if tokens not in self.programs:
            self.programs[tokens] = program(self.config, tokens)
        return self.programs[tokens]

    def _run(self, binding: Binding, steps: Program) -> None:
        self.scratch.poison()
        if self.share is None:
            if self.twice:
                self._add(replay.twice(self.number, steps, binding, self.executor))
            else:
                self.executor.step(steps, binding)
            if self.rollout:
                self.rollout.forget()
            return
        for judged in judged_step(steps, binding, self.executor, self.share, self._seen, self.stop):
            self.blamed = self.blamed or judged
            self._add([of_operation(self.number, judged)])

    def _seen(self, judged: Judged) -> None:
        self.seen(self.number, judged)
        if self.rollout and not judged.failed:
            rolled = self.rollout.judged(judged.operation, judged.clean, judged.outcome)
            if rolled and rolled.failed:
                self._add([replace(of_operation(self.number, rolled), op="rollout")])

    def _unchanged(self) -> None:
        if self.checks and self.shadow is not None:
            self._add(between.continuity(self.number, self.shadow, self.state))

    def _remember(self) -> None:
        if self.checks:
            self.shadow = self.state.clone()

    def _add(self, found: list[Divergence]) -> None:
        self.found += found
        if found and self.stop:
            raise Diverged

    def first(self) -> Divergence | None:
        """The first divergence, in the order in which the step came to it."""
        return self.found[0] if self.found else None


def forced(
    config: Config, requests: int, steps: int, tokens: int = 1, seed: int = 0
) -> list[list[list[int]]]:
    """Random tokens to force: ids[step][request][token], all of a step different from each other (equal rows
    would have equal rounding errors)."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(steps):
        drawn = torch.randperm(config.vocabulary, generator=g)[: requests * tokens]
        found.append(drawn.reshape(requests, tokens).tolist())
    return found
