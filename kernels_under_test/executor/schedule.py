"""In which order and on which streams a step's operations are issued.

The shared experts of a layer run on a side stream beside router, routing and routed experts, from the point
where their input is there to the tail that adds them; the next layer's input projection is fetched into L2
on another. Both are joined within the step. ``Streams`` issues a schedule: on CUDA streams, or one after the
other in one of the two extreme orders that streams allow (side work as ``early`` or as ``late`` as
possible). A result that depends on which of them it was is a missing wait.

What this cannot show: orders between those extremes, and launches that overlap in a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from validation.subjects.kimi_k3.operation import Operation, Program

SHARED, FETCH = "shared", "fetch"
Call = Callable[[], None]


@dataclass(frozen=True)
class Entry:
    """``operation`` (None: fetch the input projection of ``layer``) on ``stream``; before it the main stream
    waits for the side streams in ``joins``."""

    operation: Operation | None
    layer: int
    stream: str = "main"
    joins: tuple[str, ...] = ()


def schedule(program: Program) -> list[Entry]:
    """Shared experts ahead of their layer's router, the next layer's weights behind its o-projection; all
    joined where they are needed, or at the end."""
    shared = {o.layer: o for o in program if o.op == "shared_expert"}
    last = max((o.layer for o in program if o.op == "projection"), default=-1)
    found: list[Entry] = []
    for operation in program:
        layer = operation.layer
        if operation.op == "shared_expert":
            continue
        if operation.op == "moe_front" and layer in shared:
            found.append(Entry(shared[layer], layer, SHARED))
        joins = (SHARED,) if operation.op == "moe_tail" and layer in shared else ()
        found.append(Entry(operation, layer, joins=joins))
        if operation.op == "oproj" and layer < last:
            found.append(Entry(None, layer + 1, FETCH))
    return found


def in_order(program: Program) -> list[Entry]:
    """Everything on one stream, in the program's order."""
    return [Entry(operation, operation.layer) for operation in program]


def beginning(entries: Sequence[Entry], count: int) -> list[Entry]:
    """The entries up to the ``count``-th operation."""
    found: list[Entry] = []
    for entry in entries:
        count -= entry.operation is not None
        if count < 0:
            break
        found.append(entry)
    return found


def without_join(entries: Sequence[Entry], stream: str) -> list[Entry]:
    """The same schedule in which nothing waits for ``stream`` before the end of the step: a fault."""
    return [replace(e, joins=tuple(name for name in e.joins if name != stream)) for e in entries]


class Streams:
    """One after the other; side work at once (``early``), or not before it is joined."""

    def __init__(self, early: bool = False) -> None:
        self.early = early
        self.waiting: dict[str, list[Call]] = {}

    def fork(self, stream: str, call: Call) -> None:
        """Run ``call`` on a side stream, after all that the main stream has been given."""
        if self.early:
            call()
        else:
            self.waiting.setdefault(stream, []).append(call)

    def join(self, stream: str) -> None:
        """What the main stream is given from here on runs after all of ``stream``."""
        for call in self.waiting.pop(stream, []):
            call()


class CudaStreams(Streams):
    """Side streams of the device, forked from and joined to the current one: capturable. ``slow``: cycles
    that every side stream sleeps before its work."""

    def __init__(self, slow: int = 0) -> None:
        import torch

        super().__init__()
        self.slow = slow
        self.torch = torch
        self.sides: dict[str, torch.cuda.Stream] = {}
        self.forked: set[str] = set()

    def fork(self, stream: str, call: Call) -> None:
        cuda = self.torch.cuda
        if (
            stream not in self.sides
        ):  # PyTorch hands out 32 in turn: made in vain, they come round to this one
            self.sides[stream] = cuda.Stream()
        side = self.sides[stream]
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            if self.slow:
                cuda._sleep(self.slow)
            call()
        self.forked.add(stream)

    def join(self, stream: str) -> None:
        if stream in self.forked:
            self.torch.cuda.current_stream().wait_stream(self.sides[stream])
            self.forked.discard(stream)


def issue(entries: Sequence[Entry], calls: Sequence[Call], streams: Streams) -> None:
    """Give every entry's call to its stream; all side streams are joined at the end."""
    for entry, call in zip(entries, calls, strict=True):
        for name in entry.joins:
            streams.join(name)
        if entry.stream == "main":
            call()
        else:
            streams.fork(entry.stream, call)
    for name in (SHARED, FETCH):
        streams.join(name)
