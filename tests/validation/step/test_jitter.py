"""Moved pairs: what is moved and how far, and that limits taken from them hold what honest pairs do."""

from __future__ import annotations

import pytest
import torch
from step_case import Case, small

from validation.step import jitter, limits
from validation.step.executor import Executor, provider
from validation.subjects.kimi_k3.batch import batch_of
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.weights import random_weights


def _steps(executor: Executor) -> dict[str, torch.Tensor]:
    """BF16 outputs of every operation of a step, each from the same arguments."""
    case, found = Case(small()), {}
    right = provider("inductor")

    def run(operation: Operation, a: object) -> None:
        right.run(operation, a)
        before = a.out.clone() if a.out.dtype == torch.bfloat16 else None  # type: ignore[attr-defined]
        executor.run(operation, a)
        if before is not None:
            found[operation.name] = torch.stack([before, a.out])  # type: ignore[attr-defined]
            a.out.copy_(before)  # type: ignore[attr-defined]

    batch = batch_of(case.config, case.requests, case.ids())
    Executor("both", "stock", run).step([o for o in _program(case) if o.op in OPS], case.binding(batch))
    return found


OPS = ("embedding", "projection")


def _program(case: Case) -> list[Operation]:
    from validation.subjects.kimi_k3.program import program

    case.scratch.hidden.copy_(torch.randn(case.scratch.hidden.shape, generator=case.draw))
    return program(case.config)


def test_half_of_the_elements_go_to_a_neighbour_and_copies_stay() -> None:
    found = _steps(jitter.moved(provider("inductor"), 3))
    for name, (before, after) in found.items():
        bits = after.view(torch.int16).int() - before.view(torch.int16).int()
        if "embedding" in name:
            assert not bits.any()
        else:
            assert set(bits.flatten().tolist()) == {-1, 0, 1}
            assert 0.4 < float((bits != 0).double().mean()) < 0.6


def test_zeros_and_what_is_not_finite_stay() -> None:
    given = torch.tensor([0.0, -0.0, float("inf"), float("nan")] * 50, dtype=torch.bfloat16)
    moved = jitter._neighbours(given, torch.Generator().manual_seed(0))
    assert torch.equal(moved.view(torch.int16), given.view(torch.int16))


def test_limits_from_moved_pairs_hold_the_honest_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the shares of one model taken off, on the model itself; and moved pairs part more than honest
    ones."""
    monkeypatch.setattr(limits, "PAIRS", 8)
    monkeypatch.setattr(jitter, "PAIRS", 8)
    monkeypatch.setattr(jitter, "SEEN", {"cpu": 1})
    monkeypatch.setattr(jitter, "DRAFTS", (0,))
    config = small()
    pairs = limits.Pairs(config, random_weights(config), ("stock", "stock"), 25, drawn=0)
    honest = limits.squares(pairs)
    shares = jitter.honest_shares(("stock", "stock"), 25)
    assert set(shares) == {"KL divergence", "forced token", "conv", "recurrent", "kv"}
    assert all(0 < share < 1 for share in shares.values())
    monkeypatch.setattr(limits, "KEPT", limits.KEPT / "none")
    monkeypatch.setattr(jitter, "honest_shares", lambda *given: shares)
    found = jitter.squares(pairs, "cpu")
    taken = limits.limits(found, 1e-8)
    for name, squares in honest.items():
        assert float(squares.max()) < taken[name] < float("inf"), name
    for name in ("KL divergence", "recurrent of layer 2", "kv of layer 4"):
        assert 0.5 < float(found[name].mean() / honest[name].mean()) < 20, name
