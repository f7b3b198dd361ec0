"""Exchanges of real tensors by one rank: right bit for bit, and on GPUs how long they take beside NCCL.

Every rank draws the tensors of all ranks, so that each knows the right sum: FP32 in rank order, rounded once,
-0 made +0. NCCL adds in another order; it is timed, and not judged.

Times are those of a CUDA graph of many calls, divided by the calls; the median of several replays.

What this catches: wrong sums, wrong places, missing re-arms, words that equal the sentinel. What it cannot
catch: rare faults; the stress run is for those.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from validation.stress.audit import held
from validation.stress.job import Answer

if TYPE_CHECKING:
    from torch import Tensor

    from validation.stress.engine import Engine

COLLECTIVES = "kernels_under_test.exchanges.collectives"
# Each exchange of real tensors, and the mailbox that it borrows.
BORROWED = {"one_shot": "oproj", "two_shot": "oproj_recv", "reduce_scatter": "rs", "all_gather": "out"}
MAILBOXES = {name: (box,) for name, box in BORROWED.items()} | {"two_shot": ("oproj_recv", "oproj_gather")}
ROWS, WIDTH = {"cpu": (1, 8), "cuda": (1, 8, 33, 64)}, {"cpu": 256, "cuda": 7168}
MISSING = "a wait ran out; what follows was not run"
TIMED_ROWS, CALLS, REPLAYS = (1, 8, 64), 100, 9


def compare(engine: Engine, timed: bool) -> Answer:
    """Check all exchanges, and time them where asked for; mailboxes must be new."""
    answer = Answer("compared", engine.setup.rank)
    engine.late.zero_()
    device = engine.device.type
    for name in BORROWED:
        for rows in ROWS[device]:
            for turn in range(2):
                wrong = _checked(engine, name, rows, WIDTH[device], turn)
                answer.exchanges += 1
                words = f"{name} of {rows} x {WIDTH[device]}"
                if wrong:
                    answer.findings.append(f"{words}: {wrong} words are wrong")
                answer.findings += [f"{words}: {line}" for line in not_rearmed(engine, MAILBOXES[name], turn)]
                if engine.late.any():
                    answer.findings.insert(0, f"hang: {words}: {MISSING}")
                    return answer
    if timed and device == "cuda":
        for rows in TIMED_ROWS:
            answer.timed |= _times(engine, rows)
    return answer


def not_rearmed(engine: Engine, names: tuple[str, ...], parity: int) -> list[str]:
    """Mailboxes of this rank that hold words in a parity that its reader has left: the next publication there
    would be taken to have arrived. No peer writes into it before this rank's next call."""
    found = [(name, held(engine.boxes.own, engine.layout, name, parity)) for name in names]
    return [f"{count} words of {name}, parity {parity}, are not re-armed" for name, count in found if count]


def tensors(engine: Engine, rows: int, width: int, seed: int) -> Tensor:
    """BF16 [ranks, rows, width] of all ranks, with -0, infinities and the sentinel among them. In a few
    columns two ranks cancel: which of the others' addends are lost tells in which order they were added."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(engine.setup.ranks, rows, width, generator=draw).bfloat16()
    for i, (one, other) in enumerate(combinations(range(engine.setup.ranks), 2)):
        x[one, :, 3 + 4 * i :: 128], x[other, :, 3 + 4 * i :: 128] = 2.0**40, -(2.0**40)
    x.view(-1)[::97] = -0.0
    x.view(-1)[5::1013] = float("inf")
    x.view(-1, 2)[::41] = torch.tensor([0.0, -0.0], dtype=x.dtype)
    return x


def right(name: str, x: Tensor, rank: int) -> Tensor:
    """What a rank must get, BF16."""
    plain = torch.where(x == 0, torch.zeros_like(x), x)
    if name == "all_gather":
        return plain
    total = plain[0].float()
    for other in plain[1:]:
        total = total + other.float()
    found = total.bfloat16()
    found = torch.where(found == 0, torch.zeros_like(found), found)
    return found.view(x.shape[0], -1)[rank] if name == "reduce_scatter" else found


def _checked(engine: Engine, name: str, rows: int, width: int, turn: int) -> int:
    """Wrong words of one exchange."""
    x = tensors(engine, rows, width, 1000 * rows + turn)
    expected = right(name, x, engine.setup.rank).contiguous().view(torch.int32).flatten()
    mine = x[engine.setup.rank].contiguous().view(torch.int32).flatten().to(engine.device)
    out = torch.zeros(expected.numel(), dtype=torch.int32, device=engine.device)
    _call(engine, name, mine, out, turn)
    engine.finish()
    return int((out.cpu() != expected).sum())


def _call(engine: Engine, name: str, x: Tensor, out: Tensor, turn: int) -> None:
    """One exchange in the parity of that turn."""
    layout, module = engine.layout, importlib.import_module(COLLECTIVES)
    parity = (turn % 2) * layout.ranks * layout.slot
    region = BORROWED[name]
    module.exchange(
        name, x, out, engine.boxes.peers, engine.late, engine.setup.rank, engine.setup.ranks,
        layout.base(region) + parity, layout.base("oproj_gather") + parity, layout.slot,
    )  # fmt: skip


def _times(engine: Engine, rows: int) -> dict[str, float]:
    """Microseconds of a call, by exchange and by whom."""
    import torch.distributed as dist

    width, ranks = WIDTH["cuda"], engine.setup.ranks
    x = tensors(engine, rows, width, rows)[engine.setup.rank].to(engine.device)
    words = x.view(torch.int32).flatten()
    whole, share = (
        torch.empty_like(words),
        torch.empty(words.numel() // ranks, dtype=torch.int32, device=x.device),
    )
    copy, part = x.clone(), torch.empty(x.numel() // ranks, dtype=x.dtype, device=x.device)
    ours: dict[str, tuple[Tensor, Tensor]] = {
        "one_shot": (words, whole),
        "two_shot": (words, whole),
        "reduce_scatter": (words, share),
        "all_gather": (share, whole),
    }
    theirs: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(copy),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, copy.view(-1)),
        "all_gather": lambda: dist.all_gather_into_tensor(copy.view(-1), part),
    }
    share.copy_(words[: share.numel()])
    found = {}
    for name, (source, target) in ours.items():
        found[f"lamport {name} {rows}"] = _timed(engine, partial(_call, engine, name, source, target))
    for name, call in theirs.items():
        found[f"nccl {name} {rows}"] = _timed(engine, partial(_ignoring, call))
    return found


def _ignoring(call: Callable[[], Any], turn: int) -> None:
    """A call of NCCL's, which has no turns."""
    call()


def _timed(engine: Engine, call: Callable[[int], Any]) -> float:
    """Median microseconds a call, of graphs of CALLS of them."""
    import torch.distributed as dist

    stream = torch.cuda.Stream(engine.device)
    with torch.cuda.stream(stream):
        for i in range(2):
            call(i)
    torch.cuda.synchronize(engine.device)
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for i in range(CALLS):
            call(i)
    found = []
    for _ in range(REPLAYS):
        dist.barrier()
        torch.cuda.synchronize(engine.device)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize(engine.device)
        found.append(begin.elapsed_time(end) * 1000 / CALLS)
    return median(found)
