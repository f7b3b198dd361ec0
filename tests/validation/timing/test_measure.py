"""Figures of a timing: ratio, errors that cost one arm only, and the command's refusals."""

from __future__ import annotations

import math

import pytest

from validation.commands import timing
from validation.errors import UserError
from validation.timing import measure
from validation.timing.measure import Arm, Row, measured
from validation.timing.subject import Pair, Setting, Timed


def timed(arm: str, moved: int = 10) -> Timed:
    return Timed("op", arm, moved, "library", lambda: lambda: None)


def figures(microseconds: float) -> Arm:
    return Arm("library", microseconds / 1e6, 0.0, 0.0, 10, 0.5, ["kernel"])


def test_one_arm_that_raises_leaves_the_other_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def arm(what: Timed, bandwidth: float) -> Arm:
        if what.arm == "stock":
            raise RuntimeError("no such\nkernel")
        return figures(2)

    monkeypatch.setattr(measure, "_arm", arm)
    pair = Pair("op", timed("specialized"), timed("stock"))
    (row,) = measured([pair], Setting(8, 1, 64), 1e12)
    assert row.specialized is not None
    assert row.stock is None
    assert row.error == "stock: RuntimeError: no such kernel"
    assert math.isnan(row.ratio)


def test_the_ratio_is_stock_over_specialised() -> None:
    assert Row("op", 8, 1, 64, figures(2), figures(5)).ratio == pytest.approx(2.5)


def test_the_table_says_what_stock_is_and_how_many_kernels_ran() -> None:
    table = timing._table(Setting(8, 1, 64), [Row("op", 8, 1, 64, figures(2), figures(5))])
    cells = [list(column.cells) for column in table.columns]
    assert [column[0] for column in cells] == [
        "op", "2.0", "0.0", "50%", "1", "5.0", "0.0", "1", "2.50x", "library",
    ]  # fmt: skip


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
def test_without_a_gpu_the_command_says_so() -> None:
    with pytest.raises(UserError, match="needs a GPU"):
        timing._need_gpu()
