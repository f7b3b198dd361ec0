"""A provider as one rank runs it: its own shards, and what it exchanges with the others.

An operation of one rank is run by that rank. Of those over all ranks, the MoE front, the shared experts and
the MoE tail are cut: their contract is called with one rank's weights and columns. What is left (embedding,
o-projection, dense MLP, routing, logits) every rank computes by itself from the same values. Exchanges, by
the subject's names, stand around the operations that need them:

    oproj     the ranks' attention outputs, before the o-projection
    front     router logits and latent, behind the front
    latent    routed partials, before the tail: every rank adds all of them
    rs        shared partials, before the tail: each rank gets its own columns of all of them
    out       the tail's columns, behind it

The subject sums o-projections after the product and exchanges its sums; here the factors are exchanged, which
is as many exchanges in the same order.

Catches: nothing by itself. ``together`` runs all ranks in one process, where an exchange has nothing to do:
it is what ranks apart are compared with, call by call the same. Cannot represent: a sharded cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from validation.step.executor import Executor
from validation.subjects.kimi_k3.operation import Operation


@dataclass(frozen=True)
class Exchange:
    """One exchange of a layer. ``sent``: what this rank sends, [row, column] to all, or [rank, row, column]
    where each gets its own; ``received``: where what all send goes, [rank, row, column]. ``part``: of several
    tensors of one exchange."""

    name: str
    layer: int
    sent: Tensor
    received: Tensor
    part: int = 0


Transport = Callable[[Exchange], None]


def apart(one: Executor, rank: int, ranks: int, transport: Transport) -> Executor:
    """``one`` as rank ``rank`` of ``ranks`` runs it; ``transport`` carries an exchange out."""
    return _sharded(one, f"{one.name}, rank {rank}", [rank], ranks, transport)


def together(one: Executor, ranks: int) -> Executor:
    """``one`` with the work of all ranks, shard by shard, in one process."""

    def in_place(exchange: Exchange) -> None:
        """Everything is there; a writer makes -0 +0."""
        exchange.sent.add_(0.0)

    return _sharded(one, f"{one.name}, {ranks} ranks together", list(range(ranks)), ranks, in_place)


def _sharded(one: Executor, name: str, mine: Sequence[int], ranks: int, transport: Transport) -> Executor:
    def run(operation: Operation, a: Any) -> None:
        if operation.rank >= 0 and operation.rank not in mine:
            return
        exchanged = [found for rank in mine for found in before(operation, a, rank, ranks)]
        for exchange in exchanged:
            transport(exchange)
        parts = [a] if operation.op not in CUT else [CUT[operation.op](a, rank, ranks) for rank in mine]
        for part in parts:
            one.run(operation, part)
        for rank in mine:
            for exchange in behind(operation, a, rank, ranks):
                transport(exchange)

    return replace(one, name=name, run=run)


def before(operation: Operation, a: Any, rank: int, ranks: int) -> Iterator[Exchange]:
    """What one rank exchanges before an operation."""
    if operation.op == "oproj":
        yield Exchange("oproj", operation.layer, a.y[rank], a.y)
    elif operation.op == "moe_tail":
        yield Exchange("latent", operation.layer, a.latent[rank], a.latent)
        yield Exchange(
            "rs", operation.layer, columns(a.shared[rank], ranks), a.shared[..., own(a.shared, rank, ranks)]
        )


def behind(operation: Operation, a: Any, rank: int, ranks: int) -> Iterator[Exchange]:
    """What one rank exchanges after an operation."""
    tensors = {"moe_front": ("latent", "logits"), "moe_tail": ("out",)}.get(operation.op, ())
    name = "out" if operation.op == "moe_tail" else "front"
    for part, tensor in enumerate(getattr(a, tensor) for tensor in tensors):
        every = columns(tensor, ranks)
        yield Exchange(name, operation.layer, every[rank], every, part)


def columns(x: Tensor, ranks: int) -> Tensor:
    """x [row, column] as the ranks' columns [rank, row, column], in place."""
    return x.unflatten(-1, (ranks, -1)).movedim(-2, 0)


def own(x: Tensor, rank: int, ranks: int) -> slice:
    """The columns of one rank."""
    each = x.shape[-1] // ranks
    return slice(rank * each, (rank + 1) * each)


def _front(a: Any, rank: int, ranks: int) -> Any:
    return replace(
        a, router=a.router[rank : rank + 1], down=a.down[rank : rank + 1],
        logits=a.logits[:, own(a.logits, rank, ranks)], latent=a.latent[:, own(a.latent, rank, ranks)],
    )  # fmt: skip


def _shared(a: Any, rank: int, ranks: int) -> Any:
    """``out`` is then one rank's partial, and nobody reads it."""
    only = slice(rank, rank + 1)
    return replace(a, gate_up=a.gate_up[only], down=a.down[only], partial=a.partial[only])


def _tail(a: Any, rank: int, ranks: int) -> Any:
    mine = own(a.out, rank, ranks)
    return replace(a, up=a.up[rank : rank + 1], shared=a.shared[..., mine], out=a.out[:, mine])


# Operations over all ranks of which a rank does its share: the arguments of that share.
CUT: dict[str, Callable[[Any, int, int], Any]] = {
    "moe_front": _front,
    "shared_expert": _shared,
    "moe_tail": _tail,
}
