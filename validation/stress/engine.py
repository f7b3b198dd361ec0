"""One rank's side of a run: fill its mailboxes, launch, disturb, and say what happened.

What this catches: through the kernels, wrong words and waits that run out; by itself, canaries and mailboxes
that are not as the protocol leaves them. What it cannot catch: its own death; ``watchdog`` sees that.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from validation.stress import memory
from validation.stress.audit import audit
from validation.stress.faults import VICTIM, Planted, fault_named
from validation.stress.job import Answer, Job, Order, Setup
from validation.stress.layout import COLUMNS, ROWS, Layout, layout
from validation.stress.neighbours import Neighbours
from validation.stress.schedule import Schedule, scheduled
from validation.stress.script import reaches
from validation.stress.skew import QUIET
from validation.sync.kimi_k3 import subject

if TYPE_CHECKING:
    from torch import Tensor

LOOKS_A_SECOND = 800_000  # of a compiled wait, measured on an H200 within a factor of two
IDLE_EVERY = 8  # launches, on average, between two idle gaps


@dataclass
class Buffers:
    """This rank's own tensors of one job."""

    table: Tensor
    starts: Tensor
    counts: Tensor
    batches: Tensor
    clock: Tensor
    skew: Tensor
    state: Tensor
    log: Tensor


class Engine:
    """Runs jobs one after another on memory that stays. Kept as a class for that memory's sake."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.layout: Layout = layout(reaches(subject()), setup.ranks, setup.lanes)
        on_gpu = setup.device == "cuda"
        words = 0 if on_gpu else self.layout.words
        self.shared = memory.attach(setup.file, setup.ranks, setup.lanes, words)
        self.control = self.shared.control[setup.rank]
        self.kernels: Any = importlib.import_module(setup.kernels)
        self.kernels.prepare(10.0, self.stopped, QUIET.row(), [])
        self.device = torch.device("cuda", setup.rank) if on_gpu else torch.device("cpu")
        self.boxes = (
            memory.on_gpu(self.layout, setup.rank) if on_gpu else memory.on_cpu(self.shared, setup.rank)
        )
        mine = self.shared.records[setup.rank]
        self.records = torch.zeros_like(mine, device=self.device) if on_gpu else mine
        self.job = Job("none", "LL")
        self.neighbours = Neighbours(self.device)
        self.graphs: dict[int, Any] = {}
        self.late = torch.zeros(1, dtype=torch.int32, device=self.device)

    def stopped(self) -> bool:
        """Has the parent told this rank to give up?"""
        return bool(self.control[memory.STOP])

    def obey(self, order: Order, beat: Callable[[int], None]) -> Answer:
        """Carry an order out."""
        if order.what == "job":
            assert order.job is not None
            self.fill(order.job)
            return Answer("ready", self.setup.rank)
        if order.what == "go":
            return self.run(beat)
        if order.what == "audit":
            return self.audit(order.steps)
        if order.what == "compare":
            from validation.stress.compare import compare

            return compare(self, timed=bool(order.steps))
        from validation.stress.fused import fused

        return fused(self)

    def fill(self, job: Job) -> None:
        """Make the mailboxes new and the job's tables; nobody publishes before all ranks have done so."""
        self.job = job
        self.fault = fault_named(job.fault) if job.fault else None
        armed = not (self.fault and self.fault.memory == "not_filled")
        memory.fill(self.boxes.own, self.layout, armed)
        self.records.zero_()
        self.control[memory.STOP] = 0
        self.control[memory.STEP] = 0
        self.schedule = scheduled(job, self.setup.rank, self.layout, self.fault)
        table = [step.row() for steps in self.schedule.variants for step in steps]
        self.buffers = self._buffers(self.schedule, table)
        self.graphs = {}
        self.kernels.prepare(job.patience, self.stopped, job.skew.row(), table)
        if self.device.type == "cuda":
            self._warm()
        if job.launched:
            self._capture()
        self.finish()

    def _buffers(self, s: Schedule, table: list[list[int]]) -> Buffers:
        def words(values: Any) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=self.device)

        lanes, job = self.setup.lanes, self.job
        return Buffers(
            words(table), words(s.starts), words(s.counts), words(s.batches), words([0, 0]),
            words(job.skew.row()),
            torch.zeros(lanes * ROWS * COLUMNS, dtype=torch.int32, device=self.device),
            torch.zeros(job.chunk, lanes, dtype=torch.int32, device=self.device),
        )  # fmt: skip

    def finish(self) -> None:
        """Wait for this rank's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def run(self, beat: Callable[[int], None]) -> Answer:
        """All steps of the job, or those until something went wrong; ``beat`` is told the steps done."""
        job, hashes = self.job, []
        host = random.Random(f"host {job.skew.seed} {self.setup.rank}")
        if job.skew.cold:
            time.sleep(0.05 * host.random())
        began, done = time.monotonic(), 0
        while done < job.steps and not self.stopped() and not self._hung():
            steps = min(job.chunk, job.steps - done)
            self._disturb(host, done)
            with self.neighbours.while_(job.skew.neighbours):
                self._launch(done, steps)
                self.finish()
            hashes += self._hashes(steps)
            done += steps
            self._harm(done)
            self.control[memory.STEP] = done
            if job.fault and bool(self.records[:, 1].any()):
                self.shared.control[:, memory.STOP] = 1  # what was planted is found: nobody need go on
            beat(done)
        seconds = time.monotonic() - began
        polls = int(self.records[:, 9].min())
        return Answer("done", self.setup.rank, done, polls, seconds, "".join(hashes), self._noted())

    def audit(self, steps: int) -> Answer:
        """What canaries and mailboxes hold after everybody has finished."""
        found = audit(self.boxes.own, self.layout, self.schedule, steps)
        return Answer("audited", self.setup.rank, findings=found)

    def _launch(self, first: int, steps: int) -> None:
        b = self.buffers
        b.clock.copy_(torch.tensor([first, first], dtype=torch.int32))
        if not self.job.launched:
            self._acts(b.starts[first:], b.counts[first:], b.batches[first:], steps, True)
            return
        for step in range(first, first + steps):
            self._jitter_within(step)
            self._step(step)

    def _acts(self, starts: Tensor, counts: Tensor, batches: Tensor, steps: int, logs: bool) -> None:
        b, setup = self.buffers, self.setup
        self.kernels.run_acts(
            peers=self.boxes.peers, table=b.table, starts=starts, counts=counts, batches=batches,
            clock=b.clock, skew=b.skew, state=b.state, log=b.log, records=self.records,
            rank=setup.rank, seed=self.job.seed, steps=steps, spins=int(self.job.patience * LOOKS_A_SECOND),
            logs=logs, ranks=setup.ranks, rows=ROWS, columns=COLUMNS,
        )  # fmt: skip

    def _step(self, step: int) -> None:
        """One step as one launch a kernel: a replay of its variant's graph, where there are graphs."""
        variant = self.schedule.variant_of[step]
        if variant in self.graphs:
            self.graphs[variant].replay()
        else:
            self._kernels_of(variant)

    def _kernels_of(self, variant: int) -> None:
        starts, counts, rows = self.launches[variant]
        for k in range(len(starts)):
            self._acts(starts[k:], counts[k:], rows, 1, k == len(starts) - 1)
        if not (self.fault and self.fault.memory == "clock_frozen" and self.setup.rank == VICTIM):
            self.buffers.clock[0] += 1

    def _capture(self) -> None:
        """Where each variant's kernels begin in the table; on a GPU, a graph of them."""

        def words(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int32, device=self.device)

        self.launches = [
            (words(starts), words(counts), words([batch]))
            for starts, counts, batch in self.schedule.launches()
        ]
        if self.device.type != "cuda":
            return
        for variant in range(len(self.launches)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._kernels_of(variant)
            self.graphs[variant] = graph

    def _warm(self) -> None:
        """Compile and load the kernel with a launch of no steps, which touches no mailbox."""
        b = self.buffers
        self._acts(b.starts, b.counts, b.batches, 0, False)
        self.finish()

    def _disturb(self, host: random.Random, done: int) -> None:
        """Idle gaps, in which everybody rests; jitter, which each rank has of its own."""
        skew = self.job.skew
        shared = random.Random(f"idle {skew.seed} {done}")
        idle = bool(skew.idle) and done > 0 and (shared.random() < 1 / IDLE_EVERY or done == self.job.chunk)
        if idle:
            time.sleep(skew.idle * shared.random())
        if skew.jitter:
            time.sleep(skew.jitter * host.random())
        if idle and self.fault and self.fault.memory == "refilled" and self.setup.rank == VICTIM:
            time.sleep(0.2)
            memory.fill(self.boxes.own, self.layout)
            self.finish()

    def _jitter_within(self, step: int) -> None:
        """Now and then the device's queue runs dry on one rank."""
        skew = self.job.skew
        if skew.jitter and random.Random(f"{skew.seed} {self.setup.rank} {step}").random() < 1 / 64:
            self.finish()
            time.sleep(skew.jitter / 4)

    def _harm(self, done: int) -> None:
        """Faults of memory between launches."""
        fault: Planted | None = self.fault
        if fault and fault.memory == "state_flipped" and self.setup.rank == VICTIM and done == self.job.chunk:
            self.buffers.state[5] ^= 1

    def _hung(self) -> bool:
        return bool((self.records[:, 1] == 2).any())

    def _noted(self) -> list[list[int]]:
        """[lane, record...] of the lanes in which something went wrong."""
        found = self.records.tolist()
        return [[lane, *record] for lane, record in enumerate(found) if record[1]]

    def _hashes(self, steps: int) -> list[str]:
        """One word of all lanes for each step."""
        weights = torch.arange(self.setup.lanes, device=self.device) * 2 + 1
        combined = (self.buffers.log[:steps].long() * weights).sum(1) & 0xFFFFFFFF
        return [f"{value:08x}" for value in combined.tolist()]
