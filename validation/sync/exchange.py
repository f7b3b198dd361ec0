"""A mailbox protocol as data: one exchange, one kernel, one action in a kernel.

What this catches: nothing by itself; it is what ``build`` turns into events. What it cannot say: sizes in
bytes, what a payload means, and orders that depend on data (the subject's protocols have none).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pattern = Literal["multicast", "peer", "local"]
Parity = Literal["one", "layer", "moe", "running", "mla", "call", "common", "step", "unique"]
Clears = Literal["current", "previous", "other", "next"]
Verb = Literal["publish", "poll", "read", "rearm"]
Holds = Literal["pairs", "bytes", "log sums"]


@dataclass(frozen=True)
class Exchange:
    """One mailbox (kimi_k3_ops.md, table 4.1).

    ``pattern``: one store reaches all ranks (multicast), each rank another part (peer), or stays (local).
    ``parity``: what counts the parities: the layer index, the MoE or MLA ordinal, the MoE ordinal run on over
    steps (``running``), the kernel's calls (``call``, or ``common`` with those of other grids), the step;
    ``one`` has none, ``unique`` never uses a word twice (a collective of the framework). ``clears``: the
    parity that a re-arm clears, relative to the one in use; in the first MoE layer of a step ``previous`` is
    the last layer's. ``rows``: rows that a re-arm clears, 0 for those of the batch; ``first_rows`` the same
    in the first MoE layer. ``plain``: no sentinel; readers rely on order alone. ``judged``: words of a
    fragment that a poll looks at. ``canonical``: writers replace a payload that equals the sentinel.
    ``holds``: what words are, and so what a writer makes of one that must not be published: pairs of BF16 (-0
    becomes +0), FP8 bytes (0xFF becomes 0x7F, the other NaN), or FP32 log sums (NaN, infinities and what a
    shard without keys leaves become -3e38).
    ``counter``: the words count launches or claims. ``slots``: one per source, or one that all share.
    ``filled``: armed before the first step. ``alias``: whose memory it uses, if not its own. ``rearmed_by``
    and ``when`` are for readers.
    """

    name: str
    pattern: Pattern
    sentinel: str
    parity: Parity = "one"
    parities: int = 1
    clears: Clears = "current"
    rows: int = 0
    first_rows: int = 0
    rearmed_by: str = ""
    when: str = ""
    canonical: bool = True
    judged: Literal["all", "first"] = "all"
    plain: bool = False
    counter: bool = False
    slots: Literal["source", "shared"] = "source"
    filled: bool = True
    alias: str = ""
    holds: Holds = "pairs"


@dataclass(frozen=True)
class Act:
    """One action of a kernel on one exchange. A ``read`` does not wait for the word to be published."""

    verb: Verb
    exchange: str


@dataclass(frozen=True)
class Kernel:
    """One launch. Actions of one chain are in program order; chains are unordered among each other.

    ``wait``: where the kernel waits for its predecessor's completion (PDL rule 3): before its actions
    (first), after them (last), not at all (never). ``trigger``: when its successor may start: at entry, once
    it has waited, once its last action is issued, or at its end. ``stream``: main; side, with event edges
    from and to it; host, which starts after the last main kernel and is awaited two steps later. ``early``:
    chains that run at entry.
    """

    name: str
    chains: tuple[tuple[Act, ...], ...] = ()
    wait: Literal["first", "last", "never"] = "first"
    trigger: Literal["entry", "waited", "issued", "end"] = "end"
    stream: Literal["main", "side", "host"] = "main"
    early: tuple[tuple[Act, ...], ...] = ()


@dataclass(frozen=True)
class Subject:
    """All exchanges and kernels of a decode path."""

    exchanges: dict[str, Exchange]
    kernels: dict[str, Kernel]
