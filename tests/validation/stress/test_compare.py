"""Exchanges of real tensors leave their mailboxes re-armed; one that does not is named, whatever it gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from validation.stress import compare, fused
from validation.stress.layout import layout
from validation.stress.memory import fill, signed
from validation.stress.script import reaches
from validation.sync.kimi_k3 import subject

PLACED = layout(reaches(subject()), 2, 1)


def _engine() -> Any:
    """A rank whose mailboxes are new."""
    own = torch.empty(PLACED.words, dtype=torch.int32)
    fill(own, PLACED)
    setup = SimpleNamespace(rank=0, ranks=2)
    late = torch.zeros(1, dtype=torch.int32)
    boxes = SimpleNamespace(own=own)
    return SimpleNamespace(setup=setup, layout=PLACED, boxes=boxes, device=torch.device("cpu"), late=late)


def _holding(name: str, parity: int, words: int) -> Any:
    engine = _engine()
    start = PLACED.base(name) + parity * PLACED.ranks * PLACED.slot
    engine.boxes.own[start : start + words] = 7
    return engine


def _right(engine: Any, call: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1), torch.zeros(1)


@pytest.fixture(autouse=True)
def _right_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_checked", lambda *words: 0)
    monkeypatch.setattr(fused, "_oproj", _right)
    monkeypatch.setattr(fused, "_tail", _right)
    monkeypatch.setattr(fused, "_dcp", _right)


def test_every_rank_sends_words_that_equal_the_sentinel() -> None:
    for rows in compare.ROWS["cpu"]:
        words = compare.tensors(_engine(), rows, 256, rows).view(torch.int32)
        assert bool((words == signed(PLACED.region("oproj").sentinel)).flatten(1).any(1).all())


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_sums_tell_the_order_of_ranks(ranks: int) -> None:
    engine = _engine()
    engine.setup.ranks = ranks
    x = compare.tensors(engine, 1, 256, 0)
    in_order = compare.right("one_shot", x, 0)
    assert torch.equal(in_order, compare.right("one_shot", x[[1, 0, *range(2, ranks)]], 0)), "a + b is b + a"
    for i in range(1, ranks - 1):  # any two neighbours swapped
        order = [*range(i), i + 1, i, *range(i + 2, ranks)]
        assert not torch.equal(in_order, compare.right("one_shot", x[order], 0))


def test_new_mailboxes_are_in_order() -> None:
    assert compare.compare(_engine(), timed=False).findings == []
    assert fused.fused(_engine()).findings == []


@pytest.mark.parametrize(
    ("box", "exchange"),
    [
        ("oproj", "one_shot"),
        ("oproj_recv", "two_shot"),
        ("oproj_gather", "two_shot"),
        ("rs", "reduce_scatter"),
        ("out", "all_gather"),
    ],
)
@pytest.mark.parametrize("parity", [0, 1])
def test_a_mailbox_that_is_not_re_armed_is_named(box: str, exchange: str, parity: int) -> None:
    found = compare.compare(_holding(box, parity, 3), timed=False).findings
    words = f"3 words of {box}, parity {parity}, are not re-armed"
    assert found == [f"{exchange} of {rows} x 256: {words}" for rows in compare.ROWS["cpu"]]


@pytest.mark.parametrize(
    ("box", "parity", "calls"),
    [
        ("oproj", 0, "o-projection 0 2"),
        ("oproj", 1, "o-projection 1 3"),
        ("latent", 2, "tail 0 3"),
        ("rs", 0, "tail 1"),
        ("out", 0, "tail 0 1 2 3"),
    ],
)
def test_a_fused_exchange_re_arms_its_own_parity_or_that_before(box: str, parity: int, calls: str) -> None:
    name, *numbers = calls.split()
    words = f"1 words of {box}, parity {parity}, are not re-armed"
    found = fused.fused(_holding(box, parity, 1)).findings
    assert found == [f"fused {name}, call {number}: {words}" for number in numbers]


def test_a_wait_that_runs_out_is_a_finding_and_nothing_is_run_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def hangs(engine: Any, *words: Any) -> Any:
        calls.append(1)
        engine.late += 1
        return (torch.ones(1), torch.zeros(1)) if len(words) == 1 else 1

    for module, name in ((compare, "_checked"), (fused, "_oproj")):
        monkeypatch.setattr(module, name, hangs)
    assert compare.compare(_engine(), timed=False).findings[0].startswith("hang: one_shot of 1 x 256: a wait")
    assert fused.fused(_engine()).findings[0].startswith("hang: fused o-projection, call 0: a wait ran out")
    assert len(calls) == 2
