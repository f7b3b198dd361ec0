"""The executor itself: built once over a model's state and scratch, batches prepared, replayed with new slots
and lengths.

A prepared batch owns staged metadata at fixed addresses. On a GPU it is a CUDA graph over them, captured
after a warm-up in which every request is padding (so that nothing of the live state is written); elsewhere
it is the bound arguments of every operation. ``replay`` restages in place and runs it. What ``plan`` does
not serve falls back to the vanilla forward on the same state.

What it cannot show: waits between ranks (one process plays all of them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernels_under_test.executor.plan import plan
from kernels_under_test.executor.schedule import CudaStreams, Entry, Streams, beginning, issue, schedule
from kernels_under_test.gemm import fp32_partial_sums
from validation.step.executor import Executor, vanilla
from validation.subjects.kimi_k3.batch import Batch
from validation.subjects.kimi_k3.operation import Binding, Program
from validation.subjects.kimi_k3.program import program as plain_program
from validation.subjects.kimi_k3.steps import StepKind, plain, verified

WARM_UPS = 2  # the first compiles and chooses, the second runs as a capture will
Fetch = Callable[[Binding, int], Callable[[], None]]


@dataclass(frozen=True)
class Design:
    """How steps are run: the schedule, what serves a step (q, or none), how metadata is restaged, and what
    makes the fetch of a layer's weights (None: nothing is fetched). ``early``: where streams are played one
    after the other, side work runs at once. ``slow``: cycles by which a GPU's side streams are late."""

    arrange: Callable[[Program], list[Entry]] = schedule
    serves: Callable[[StepKind], int | None] = plan
    restage: Callable[[Batch, Batch], None] = Batch.copy_
    fetch: Fetch | None = None
    early: bool = False
    slow: int = 0


@dataclass
class Prepared:
    """One prepared batch: metadata at fixed addresses, what runs it, and the bound operations, whose tensors
    a graph knows by address alone: it does not keep them."""

    batch: Batch
    replay: Callable[[], None]
    calls: list[Callable[[], None]]


class SpecialisedExecutor:
    """Whole steps over a provider's kernels. ``log`` says of every step whether it was served."""

    def __init__(self, like: Binding, kernels: Executor, design: Design | None = None) -> None:
        self.like, self.kernels, self.design = like, kernels, design or Design()
        self.prepared: dict[tuple[int, int, int], Prepared] = {}
        self.log: list[str] = []
        self.on_gpu = like.batch.ids.is_cuda
        self.streams = CudaStreams(self.design.slow) if self.on_gpu else Streams(self.design.early)
        self.pool: Any = None  # memory of all graphs: they run one after the other

    def step(self, batch: Batch, kind: StepKind, count: int | None = None) -> None:
        """One step: replayed where ``plan`` serves it, else by the vanilla forward; logits and auxiliary rows
        are left in the scratch. ``count``: only so many operations of those that are issued first."""
        steps = plain_program(self.like.config, batch.tokens)
        q = self.design.serves(kind)
        if q is None or q != batch.tokens or kind.rows != batch.rows:
            self.log.append("fallback")
            vanilla(self.kernels.profile).step(steps, self._bound(batch))
            return
        self.log.append("specialised")
        key = batch.rows, q, count or len(steps)
        if key not in self.prepared:
            self.prepared[key] = self._prepare(batch, beginning(self.design.arrange(steps), key[2]))
        chosen = self.prepared[key]
        self.design.restage(chosen.batch, batch)
        chosen.replay()

    def _bound(self, batch: Batch) -> Binding:
        b = self.like
        return Binding(b.config, b.weights, b.state, b.scratch, batch)

    def _prepare(self, batch: Batch, entries: list[Entry]) -> Prepared:
        own = batch.neutral()  # what is not restaged is padding, on every device
        binding = self._bound(own)
        calls = [self._call(entry, binding) for entry in entries]

        def run() -> None:
            issue(entries, calls, self.streams)

        if not self.on_gpu:
            return Prepared(own, run, calls)
        replay = self._captured(run)
        self.like.scratch.poison()  # of what the warm-ups left
        return Prepared(own, replay, calls)

    def _call(self, entry: Entry, binding: Binding) -> Callable[[], None]:
        operation = entry.operation
        if operation is None:
            return self.design.fetch(binding, entry.layer) if self.design.fetch else _nothing
        arguments = operation.arguments(binding)
        return lambda: self.kernels.run(operation, arguments)

    def _captured(self, run: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph of ``run``, after warm-ups on another stream than the default one."""
        with fp32_partial_sums():
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM_UPS):
                    run()
            torch.cuda.current_stream().wait_stream(aside)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads (of a process group) may look at their events meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                run()
        self.pool = self.pool or graph.pool()
        return graph.replay


def _nothing() -> None:
    """What is fetched where no fetch is designed."""


@dataclass(frozen=True)
class Whole(Executor):
    """An executor whose steps are replays of prepared batches. Single operations run as the provider's
    do. One is built for every state that it is given."""

    replays: bool = True
    design: Design = field(default_factory=Design)
    built: dict[tuple[int, int], SpecialisedExecutor] = field(default_factory=dict, compare=False, init=False)

    def step(self, program: Program, binding: Binding) -> None:
        if len(program) != len(plain_program(binding.config, binding.batch.tokens)):  # a prompt
            vanilla(self.profile).step(program, binding)
            return
        self._for(binding).step(binding.batch, _kind(binding.batch))

    def _for(self, binding: Binding) -> SpecialisedExecutor:
        key = id(binding.state), id(binding.scratch)
        if key not in self.built:
            kernels = Executor(self.name, self.profile, self.run)
            self.built[key] = SpecialisedExecutor(binding, kernels, self.design)
        return self.built[key]

    def order(self, program: Program) -> Program:
        return [entry.operation for entry in self.design.arrange(program) if entry.operation is not None]

    def upto(self, program: Program, binding: Binding, count: int) -> None:
        self._for(binding).step(binding.batch, _kind(binding.batch), count)

    def variants(self) -> dict[str, tuple[Executor, bool]]:
        from kernels_under_test.executor.variants import variants

        return {
            name: (replace(self, design=design), right)
            for name, (design, right) in variants(self.design).items()
        }


def _kind(batch: Batch) -> StepKind:
    """A decode or verify step of so many rows, as it is while a graph is captured."""
    q, requests = batch.tokens, batch.rows // batch.tokens
    return plain("", requests) if q == 1 else verified("", requests, q)
