"""Ranks as processes: each computes its own shard, exchanges partial inputs, and must end with the same bits.

Every process runs its own rank's projections, attention and experts on its own state; before an operation
over all ranks it gathers what the others computed (gloo), and then computes the replicated rest by itself.
After every step the digests of all that must be replicated are compared: prefix, blocks, auxiliary rows, MoE
output, last hidden rows, logits, and the keys of every request.

    lockstep step --ranks 4 --steps 1000          processes of this machine
    torchrun --nproc-per-node 4 -m validation step --ranks 4 --steps 1000

Catches: a rank whose rounding, order of sums or choice differs. Cannot catch: mailboxes and waits (gloo waits
for everybody; ``validation.stress.decode`` has them); a fault that all ranks share.
"""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from validation.errors import UserError
from validation.execution.child import die_with_parent
from validation.step.divergence import Divergence, of_check
from validation.step.executor import Executor, provider
from validation.step.walk import Hooks, Walk, forced
from validation.subjects.kimi_k3.config import scaled
from validation.subjects.kimi_k3.operation import Binding, Operation, Program
from validation.subjects.kimi_k3.state import raw
from validation.subjects.kimi_k3.weights import random_weights

# What every rank computes for itself and an operation over all ranks reads.
GATHERED = {"oproj": "y", "moe_tail": "latent"}
RENEWED = 100  # steps between new requests
REQUESTS = 2
SAID_EVERY = 15.0  # seconds


def sharded(one: Executor, rank: int) -> Executor:
    """``one`` as rank ``rank`` runs it: its own shard, and the replicated rest."""

    def run(operation: Operation, a: Any) -> None:
        if operation.rank not in (-1, rank):
            return
        if operation.op in GATHERED:
            _gather(getattr(a, GATHERED[operation.op]), rank)
        one.run(operation, a)

    return Executor(f"{one.name}, rank {rank}", one.profile, run)


def _gather(shards: Tensor, rank: int) -> None:
    """Fill in the shards [rank, ..] of the other processes."""
    mine = raw(shards[rank])
    every = [torch.empty_like(mine) for _ in range(shards.shape[0])]
    dist.all_gather(every, mine)
    for other, data in enumerate(every):
        if other != rank:
            shards[other] = data.view(shards.dtype).reshape(shards[other].shape)


def digests(b: Binding, rank: int) -> dict[str, str]:
    """A digest of each replicated tensor as this rank holds it."""
    s, rows, c = b.scratch, b.batch.rows, b.config
    tensors = {
        "prefix": s.prefix[:rows],
        "blocks": s.blocks[:rows, : c.blocks],
        "aux": s.aux[:, :rows],
        "MoE output": s.delta[:rows],
        "hidden": s.last[:rows],
        "logits": s.logits[rank, :rows, : c.vocabulary],
    }
    for layer, cache in b.state.kv.items():
        keys = cache[rank][b.batch.block_table[rank].long()].flatten(1, 2)
        for number, length in enumerate(b.batch.totals.tolist()):
            tensors[f"keys of layer {layer}, request {number}"] = keys[number, :length]
    return {
        name: hashlib.sha256(raw(t).cpu().numpy().tobytes()).hexdigest()[:16] for name, t in tensors.items()
    }


@dataclass(frozen=True)
class Job:
    """What every process runs. ``fault``: (rank, step) at which one bit of a rank's residual stream flips."""

    ranks: int
    steps: int
    provider: str
    seed: int = 0
    fault: tuple[int, int] | None = None


def walk_as(rank: int, job: Job, say: Callable[[str], None] = lambda line: None) -> list[Divergence]:
    """Walk as one rank of an initialised process group; what parts, as rank 0 sees it."""
    torch.set_num_threads(1)
    config = scaled(job.ranks, layers=5, block=2)
    executor = sharded(_faulty(provider(job.provider), rank, job), rank)
    watched = _Watched(rank)
    one = Walk(
        config, random_weights(config, job.seed), executor, None, Hooks(), context=RENEWED, checks=False
    )
    one.executor = _after(executor, watched)
    began = said = time.monotonic()
    for step, ids in enumerate(forced(config, REQUESTS, job.steps, seed=job.seed)):
        if step % RENEWED == 0:
            for request in list(one.requests):
                one.release(request)
            for _ in range(REQUESTS):
                one.admit()
        one.step(ids)
        if watched.found:
            break
        if time.monotonic() - said > SAID_EVERY:
            said = time.monotonic()
            each = (said - began) / (step + 1)
            left = each * (job.steps - step - 1)
            say(f"step {step + 1} of {job.steps}, {1000 * each:.0f} ms a step, {left:.0f} s left")
    return watched.found


class _Watched:
    """Compares the digests of all processes after a step."""

    def __init__(self, rank: int) -> None:
        self.rank, self.step = rank, 0
        self.found: list[Divergence] = []

    def __call__(self, binding: Binding) -> None:
        mine = digests(binding, self.rank)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine)
        for other, theirs in enumerate(every):
            for name, digest in theirs.items():
                if digest != every[0][name]:
                    message = f"rank {other} parts from rank 0"
                    self.found.append(
                        of_check(self.step, "ranks", name, message, count=1, where=f"rank {other}")
                    )
        self.step += 1


def _after(executor: Executor, watched: _Watched) -> Executor:
    class After(Executor):
        def step(self, program: Program, binding: Binding) -> None:
            super().step(program, binding)
            watched(binding)

    return After(executor.name, executor.profile, executor.run)


def _faulty(one: Executor, rank: int, job: Job) -> Executor:
    """Flip one bit in the MoE output of layer 2 of one rank at one step."""
    if job.fault is None or job.fault[0] != rank:
        return one
    calls = [0]

    def run(operation: Operation, a: Any) -> None:
        one.run(operation, a)
        if (operation.op, operation.layer) == ("moe_tail", 2):
            if job.fault and calls[0] == job.fault[1]:
                a.out.view(torch.int16)[0, 0] ^= 1 << 6  # its lowest bit may be rounded away in the sum
            calls[0] += 1

    return Executor(one.name, one.profile, run)


def run_ranks(job: Job, say: Callable[[str], None] = lambda line: None) -> list[Divergence]:
    """Walk with one process a rank: those of ``torchrun`` if there are, else spawned here."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        if int(os.environ["WORLD_SIZE"]) != job.ranks:
            raise UserError(f"torchrun started {os.environ['WORLD_SIZE']} processes for --ranks {job.ranks}")
        dist.init_process_group("gloo")
        try:
            return walk_as(dist.get_rank(), job, say if dist.get_rank() == 0 else lambda line: None)
        finally:
            dist.destroy_process_group()
    with tempfile.TemporaryDirectory() as folder:
        _spawned(job, folder)
        import json

        return [Divergence(**entry) for entry in json.loads((Path(folder) / "found.json").read_text())]


def _spawned(job: Job, folder: str) -> None:
    """All ranks, until the last has ended; none outlives this call. Raises UserError if one dies."""
    import torch.multiprocessing as processes
    from torch.multiprocessing.spawn import ProcessException

    ranks = processes.spawn(_process, (job, folder), nprocs=job.ranks, join=False)
    try:
        while not ranks.join():
            pass
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]
        raise UserError(
            f"rank {error.error_index} ended before its walk: {last}; look for memory and other processes"
        ) from None
    finally:
        for process in ranks.processes:
            process.kill()
            process.join()


def _process(rank: int, job: Job, folder: str) -> None:
    """One spawned rank; rank 0 writes what it saw."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the parent ends this process
    import json
    from dataclasses import asdict

    from validation import streams

    store = f"file://{folder}/store"
    dist.init_process_group("gloo", store, rank=rank, world_size=job.ranks, timeout=timedelta(minutes=10))
    try:
        found = walk_as(
            rank, job, (lambda line: streams.say(f"lockstep: {line}")) if rank == 0 else lambda line: None
        )
    finally:
        dist.destroy_process_group()
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps([asdict(d) for d in found]))
