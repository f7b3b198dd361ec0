"""The process of one rank, or of all ranks together: a scaled-down model, walked step by step.

Apart, a rank runs its own shards and exchanges through its mailboxes, in CUDA graphs on a GPU; a process for
all ranks (a crew of one) runs the same calls without mailboxes. Both log digests of what every step leaves.

What this catches: by itself, waits that run out (its records). What it cannot catch: its own death, and
whether what it leaves is right; ``run`` compares.
"""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from validation.stress import memory
from validation.stress.decode.boxes import KERNELS, Boxes
from validation.stress.decode.left import Left, combined, held, hexadecimal
from validation.stress.engine import LOOKS_A_SECOND
from validation.stress.faults import VICTIM
from validation.stress.job import Answer, Decode, Order, Setup
from validation.stress.layout import layout
from validation.stress.script import reaches
from validation.stress.skew import QUIET
from validation.sync.kimi_k3 import subject

if TYPE_CHECKING:
    from torch import Tensor

    from validation.step.executor import Executor
    from validation.step.walk import Walk
    from validation.subjects.kimi_k3.config import Config

STATE_FLIPPED = "state_flipped"  # a planted fault: one bit of one rank's state, between two steps
FLIPPED_AFTER = 1  # steps
QUEUE_RUNS_DRY = 1 / 64  # of a rank's steps


class Engine:
    """Carries out the orders of a walk. Kept as a class for model, state and mailboxes."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.apart = setup.ranks > 1
        on_gpu = setup.device == "cuda"
        self.layout = layout(reaches(subject()), setup.ranks, setup.lanes)
        self.shared = memory.attach(setup.file, setup.ranks, setup.lanes, 0 if on_gpu else self.layout.words)
        self.control = self.shared.control[setup.rank]
        self.kernels: Any = importlib.import_module(setup.kernels)
        self.kernels.prepare(10.0, self.stopped, QUIET.row(), [])
        self.device = torch.device("cuda", setup.rank) if on_gpu else torch.device("cpu")
        if self.apart:
            own = memory.on_gpu(self.layout, setup.rank) if on_gpu else None
            self.boxes = own or memory.on_cpu(self.shared, setup.rank)
        mine = self.shared.records[setup.rank]
        self.records = torch.zeros_like(mine, device=self.device) if on_gpu else mine
        self.clock = torch.zeros(2, dtype=torch.int32, device=self.device)
        self.transport: Boxes | None = None

    def stopped(self) -> bool:
        """Has the parent told this process to give up?"""
        return bool(self.control[memory.STOP])

    def obey(self, order: Order, beat: Callable[[int], None]) -> Answer:
        """Carry an order out."""
        if order.what == "decode":
            assert order.decode is not None
            self.prepare(order.decode)
            return Answer("ready", self.setup.rank)
        if order.what == "walk":
            return self.walk(order.steps, beat)
        return self.digests(order.steps)

    def prepare(self, job: Decode) -> None:
        """Build the model, compile what it runs, and make the mailboxes new; nobody publishes before all
        ranks have done so."""
        self.job = job
        self.records.zero_()
        self.control[memory.STOP] = self.control[memory.STEP] = 0
        self.kernels.prepare(job.patience, self.stopped, job.skew.row(), [])
        self.host = random.Random(f"host {job.skew.seed} {self.setup.rank}")
        self.kept: list[Tensor] = []
        self.one = self._walk()
        if self.device.type == "cuda":
            self.transport = self._wired(alone=True)
            self._compile()
        self.transport = self._wired()
        if self.apart:
            memory.fill(self.boxes.own, self.layout)
        self.records.zero_()
        self.clock.zero_()
        self.finish()

    def finish(self) -> None:
        """Wait for this process's device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _walk(self) -> Walk:
        from validation import providers
        from validation.step.walk import Hooks, Walk
        from validation.subjects.kimi_k3.config import scaled
        from validation.subjects.kimi_k3.weights import moved, random_weights

        job, device = self.job, self.device.type
        providers.load([job.provider], job.plugins, device)
        config = scaled(job.ranks, layers=job.layers, block=job.block)
        self.config = config
        self.ranks = [self.setup.rank] if self.apart else list(range(job.ranks))
        self.left = Left(config, self.ranks, self.clock, job.chunk)
        return Walk(
            config, moved(random_weights(config, job.seed), device), self._executor(config), None, Hooks(),
            most=max(job.counts), context=job.renewed, seed=job.seed, rows=max(job.sizes), checks=False,
            device=device, lasting=job.steps + 1,
        )  # fmt: skip

    def _executor(self, config: Config) -> Executor:
        """What runs a step: prepared batches (in graphs, on a GPU) where the provider has them."""
        from validation.step import shards
        from validation.step.executor import fastest, provider

        base = fastest(self.job.provider, self.device.type)
        if not base.replays:
            base = provider(self.job.provider)
        if not self.apart:
            return self._counted(shards.together(base, config.ranks))
        return self._counted(shards.apart(base, self.setup.rank, config.ranks, self._exchange))

    def _counted(self, one: Executor) -> Executor:
        """With the log of what is left, and steps counted where a graph can count them."""
        watched = self.left.watched(one)

        def run(operation: Any, a: Any) -> None:
            watched.run(operation, a)
            if operation.op == "logits":
                self.clock[:1].add_(1)

        return replace(watched, run=run)

    def _exchange(self, exchange: Any) -> None:
        assert self.transport is not None
        self.transport(exchange)

    def _wired(self, alone: bool = False) -> Boxes | None:
        """The way through the mailboxes. ``alone``: through this rank's own, without waits: to compile."""
        if not self.apart:
            return None
        setup, peers = self.setup, self.boxes.peers
        if alone:
            peers = peers[setup.rank].expand(setup.ranks).contiguous()
        skew = torch.tensor(self.job.skew.row(), dtype=torch.int32, device=self.device)
        wires = importlib.import_module(KERNELS).Wires(
            peers, self.records, self.clock, skew, self.layout.slot, setup.rank, setup.ranks,
            0 if alone else int(self.job.patience * LOOKS_A_SECOND),
        )  # fmt: skip
        return Boxes(self.config, self.layout, wires, self.job.fault)

    def _compile(self) -> None:
        """Run every size of batch once, eagerly, all requests padding: kernels are compiled, and nothing of
        the state is written."""
        from validation.step.executor import eagerly
        from validation.subjects.kimi_k3.batch import batch_of

        one = self.one
        for size in self.job.sizes:
            request = one.pool.admit(one.state)
            batch = batch_of(self.config, [request], [[0]], size, one.pool.capacity).neutral()
            eagerly(one.executor, one.program(1), one.binding(batch))
            one.pool.release(request, one.state)
        self.finish()
        one.scratch.poison()

    def walk(self, steps: int, beat: Callable[[int], None]) -> Answer:
        """``steps`` steps more, at most a chunk, or those until something went wrong."""
        one, first = self.one, self.one.number
        began = time.monotonic()
        while one.number < first + steps and not self.stopped() and not self._hung():
            self._jitter()
            self._step()
            self.control[memory.STEP] = one.number
            beat(one.number)
        self.finish()
        seconds = time.monotonic() - began
        taken = self.left.take(first, one.number - first)
        self.kept.append(taken)
        alike, every = self.left.alike(), range(len(self.ranks))
        left = [_lines(taken[:, i], alike) for i in every]
        exchanges = int(self.records[0, 9]) if self.apart else 0
        return Answer(
            "done", self.setup.rank, one.number, exchanges, seconds, records=self._noted(), left=left,
            digests=[held(one.state, rank) for rank in self.ranks],
        )  # fmt: skip

    def _step(self) -> None:
        from validation.step.walk import forced

        job, one = self.job, self.one
        turn = one.number // job.renewed
        if one.number % job.renewed == 0:
            for request in one.requests[1:]:
                one.release(request)
            for _ in range(job.counts[turn % len(job.counts)] - len(one.requests)):
                one.admit(lasting=not one.requests)
        (ids,) = forced(self.config, len(one.requests), 1, seed=job.seed * 1_000_003 + one.number)
        padded = min(size for size in job.sizes if size >= len(one.requests))
        self.clock[1:].fill_(one.number)
        one.step(ids, padded=padded)
        if one.number == FLIPPED_AFTER:
            self._harm()

    def _jitter(self) -> None:
        """Now and then this rank's queue runs dry."""
        jitter = self.job.skew.jitter if self.apart else 0.0
        if jitter and self.host.random() < QUEUE_RUNS_DRY:
            self.finish()
            time.sleep(jitter / 4 * self.host.random())

    def _harm(self) -> None:
        """The planted fault of memory."""
        if self.job.fault == STATE_FLIPPED and self.apart and self.setup.rank == VICTIM:
            state = next(iter(self.one.state.recurrent.values()))
            state[self.setup.rank, self.one.requests[0].slots[0]].view(torch.int32)[0, 0, 0] ^= 1

    def _hung(self) -> bool:
        """Has a wait run out? On a GPU this is known only when the walk ends."""
        return self.device.type == "cpu" and bool((self.records[:, 1] == 2).any())

    def _noted(self) -> list[list[int]]:
        """[lane, record...] where a wait ran out."""
        return [[lane, *record] for lane, record in enumerate(self.records.tolist()) if record[1]]

    def digests(self, step: int) -> Answer:
        """Of every tensor that a step left, by name, for each rank."""
        taken = torch.cat(self.kept)[step]
        found = [
            {name: hexadecimal(value) for name, value in zip(self.left.names, row, strict=True)}
            for row in taken.tolist()
        ]
        return Answer("digests", self.setup.rank, step, digests=found)


def _lines(taken: Tensor, alike: Tensor) -> str:
    """32 hex digits a step: what all ranks must have alike, and everything. [step, tensor]"""
    pairs = zip(combined(taken[:, alike]), combined(taken), strict=True)
    return "".join(one + every for one, every in pairs)
