"""Exchanges fused with their neighbours in the step, on numbers for which every sum is exact.

Partials, weights and shared rows are small integers, the latent row is chosen so that its norm is a power of
two, and log sums of sharded attention so that its weights are (``shards``): whatever the order of sums, the
result is one pattern of bits. Several calls follow each other, so
that parities come round and re-arms count.

What this catches: wrong places, parities, owners, roundings of exact values, missing re-arms. What it cannot
catch: rounding noise; ``lockstep kernels`` judges the arithmetic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from validation.stress.compare import MISSING, not_rearmed
from validation.stress.job import Answer
from validation.stress.shards import shards

if TYPE_CHECKING:
    from torch import Tensor

    from validation.stress.engine import Engine

FUSED = "kernels_under_test.exchanges.fused"
FUSED_DCP = "kernels_under_test.exchanges.fused_dcp"
# Columns: of the o-projection's input and of the latent row, and of the result. A multiple of 2, 3, 4 and 8.
DEPTH, WIDTH = {"cpu": 64, "cuda": 1024}, {"cpu": 192, "cuda": 2304}
CALLS, ROWS = 4, 2
EPS = 12.0  # beside a mean square of 4
# Heads of a rank, and columns of a row, under context parallelism.
HEADS, LATENT = {"cpu": 2, "cuda": 12}, {"cpu": 64, "cuda": 512}


def fused(engine: Engine) -> Answer:
    """Run and check all calls; mailboxes must be new."""
    answer = Answer("fused", engine.setup.rank)
    engine.late.zero_()
    for name, check in (("o-projection", _oproj), ("tail", _tail), ("context parallel", _dcp)):
        for call in range(CALLS):
            found, expected = check(engine, call)
            wrong = int((found.cpu() != expected).sum())
            answer.exchanges += 1
            if wrong:
                answer.findings.append(
                    f"fused {name}, call {call}: {wrong} of {expected.numel()} words are wrong"
                )
            for boxes, parity in _left(name, call):
                lines = not_rearmed(engine, boxes, parity)
                answer.findings += [f"fused {name}, call {call}: {line}" for line in lines]
            if engine.late.any():
                answer.findings.insert(0, f"hang: fused {name}, call {call}: {MISSING}")
                return answer
    return answer


def _left(name: str, call: int) -> list[tuple[tuple[str, ...], int]]:
    """Mailboxes and the parity in which a call leaves the sentinel alone: its own, or that before it."""
    if name == "o-projection":
        return [(("oproj",), call % 2)]
    if name == "context parallel":
        return [(("dcp_partial", "dcp_lse"), call % 2)]
    return [(("latent", "rs"), (call - 1) % 3), (("out",), 0)]


def _boxes(engine: Engine) -> Any:
    module = importlib.import_module(FUSED)
    setup = engine.setup
    return module.Boxes(engine.boxes.peers, engine.late, setup.rank, setup.ranks, engine.layout.slot)


def _parity(engine: Engine, name: str, parity: int) -> int:
    """First word of a parity of an exchange."""
    return engine.layout.base(name) + parity * engine.layout.ranks * engine.layout.slot


def _integers(draw: torch.Generator, *shape: int, most: int = 2) -> Tensor:
    return torch.randint(-most, most + 1, shape, generator=draw).double()


def words(x: Tensor) -> Tensor:
    """Exact values as pairs of BF16, int32; -0 is +0."""
    return (x + 0.0).bfloat16().contiguous().view(torch.int32)


def _oproj(engine: Engine, call: int) -> tuple[Tensor, Tensor]:
    """(found, expected) of one call: every rank's partial is rounded before the sum."""
    draw, ranks, device = torch.Generator().manual_seed(call), engine.setup.ranks, engine.device
    depth, width = DEPTH[device.type], WIDTH[device.type]
    y, weight = _integers(draw, ranks, ROWS, depth), _integers(draw, ranks, width, depth)
    partials = (y @ weight.transpose(1, 2)).bfloat16().double()
    out = torch.zeros(ROWS, width // 2, dtype=torch.int32, device=device)
    mine = engine.setup.rank
    importlib.import_module(FUSED).oproj(
        _boxes(engine), words(y[mine]).to(device), words(weight[mine]).to(device), out,
        _parity(engine, "oproj", call % 2),
    )  # fmt: skip
    engine.finish()
    return out, words(partials.sum(0))


def _tail(engine: Engine, call: int) -> tuple[Tensor, Tensor]:
    """(found, expected) of one call. The latent row is +-2 everywhere: with ``EPS`` its norm is 4."""
    draw, ranks, device = torch.Generator().manual_seed(100 + call), engine.setup.ranks, engine.device
    depth, width = DEPTH[device.type], WIDTH[device.type]
    z = torch.randint(0, 2, (ROWS, depth), generator=draw).double() * 4 - 2
    partials = _integers(draw, ranks, ROWS, depth)
    partials[-1] = z / 256  # half of the sum's last digit: it has to be rounded, and becomes z
    partials[0] = z - partials[1:-1].sum(0)
    gamma = _integers(draw, depth) + 3
    # Large enough that both addends of the result have to be rounded.
    weight = _integers(draw, ranks, width // ranks, depth, most=16)
    shared = _integers(draw, ranks, ranks, ROWS, width // ranks, most=200)  # [source, owner, row, column]
    up = (z / 4 * gamma @ weight.transpose(1, 2)).bfloat16().double()
    whole = (up + shared.sum(0).bfloat16().double()).transpose(0, 1).reshape(ROWS, width)
    out = torch.zeros(ROWS, width // 2, dtype=torch.int32, device=device)
    mine, now, before = engine.setup.rank, call % 3, (call - 1) % 3
    importlib.import_module(FUSED).tail(
        _boxes(engine), words(partials[mine]).to(device), words(shared[mine]).to(device),
        words(gamma).to(device), words(weight[mine]).to(device), out, EPS,
        (_parity(engine, "latent", now), _parity(engine, "latent", before)),
        (_parity(engine, "rs", now), _parity(engine, "rs", before)), _parity(engine, "out", 0),
    )  # fmt: skip
    engine.finish()
    return out, words(whole)


def _dcp(engine: Engine, call: int) -> tuple[Tensor, Tensor]:
    """(found, expected) of one call: this rank's heads, merged from all ranks' shards."""
    mine, ranks, device = engine.setup.rank, engine.setup.ranks, engine.device
    heads, parity = HEADS[device.type], call % 2
    x = shards(torch.Generator().manual_seed(200 + call), ranks, heads, LATENT[device.type])
    expected = x.merged[:, mine * heads : (mine + 1) * heads].contiguous()
    out = torch.zeros_like(expected, device=device)
    importlib.import_module(FUSED_DCP).merge(
        _boxes(engine), x.words[mine].to(device), x.log_sums[mine].to(device), x.lengths[mine].to(device),
        x.totals.to(device), out, _parity(engine, "dcp_partial", parity), _parity(engine, "dcp_lse", parity),
    )  # fmt: skip
    engine.finish()
    return out, expected
