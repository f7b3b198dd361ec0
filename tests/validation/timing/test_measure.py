"""Figures of a timing: ratio, errors that cost one arm only, and the command's refusals."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from validation.commands import measured as records
from validation.commands import timing
from validation.errors import UserError
from validation.timing import measure, replay, worker
from validation.timing.measure import Arm, Row, measured
from validation.timing.subject import Setting


def figures(microseconds: float) -> Arm:
    return Arm("library", microseconds / 1e6, 0.0, 0.0, 10, 0.5, ["kernel"])


SUBJECT = r"""
import os, sys, time
from validation.timing import measure
from validation.timing.subject import Pair, Timed

def time_arm(what, bandwidth):
    print("noise of a kernel")
    if what.name == "raises" and what.arm == "stock":
        raise RuntimeError("no such\nkernel")
    if what.name == "dies" and what.arm == "specialized":
        os._exit(5)
    if what.name == "hangs" and what.arm == "stock":
        time.sleep(600)
    return measure.Arm("library", 2e-6 if what.arm == "specialized" else 5e-6, 0.0, 0.0, 10, 0.5, ["kernel"])

measure.time_arm = time_arm

def pairs(setting):
    return [
        Pair(name, *(Timed(name, arm, 10, "library", lambda: lambda: None) for arm in measure.SIDES))
        for name in ("raises", "dies", "hangs", "fine")
    ]
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    (tmp_path / "toy_subject.py").write_text(SUBJECT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    monkeypatch.setattr(measure, "timed", partial(worker.timed, limit=20.0))
    names = ["raises", "dies", "hangs", "fine"]
    return {row.name: row for row in measured("toy_subject", names, Setting(8, 1, 64), 1e12)}


@pytest.mark.stress
def test_what_one_arm_does_leaves_all_others_their_figures(rows: dict[str, Row]) -> None:
    assert {name: row.error for name, row in rows.items()} == {
        "raises": "stock: RuntimeError: no such kernel",
        "dies": "specialized: its process ended with status 5",
        "hangs": "stock: no answer within the time limit",
        "fine": "",
    }
    assert rows["raises"].specialized == figures(2)
    assert rows["dies"].stock == figures(5)
    assert rows["hangs"].specialized == figures(2)
    assert rows["fine"].ratio == pytest.approx(2.5)
    assert math.isnan(rows["dies"].ratio)


def test_the_ratio_is_stock_over_specialised() -> None:
    assert Row("op", 8, 1, 64, figures(2), figures(5)).ratio == pytest.approx(2.5)


def test_the_table_says_what_stock_is_and_how_many_kernels_ran() -> None:
    table = timing._table(Setting(8, 1, 64), [Row("op", 8, 1, 64, figures(2), figures(5))])
    cells = [list(column.cells) for column in table.columns]
    assert [column[0] for column in cells] == [
        "op", "2.0", "0.0", "50%", "1", "5.0", "0.0", "1", "2.50x", "library",
    ]  # fmt: skip


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
def test_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut_short(subject: str, names: list[str], setting: Setting, bandwidth: float) -> Iterator[Row]:
        for name in names[:2]:
            yield Row(name, setting.ranks, setting.rows, setting.context, figures(1), figures(2))
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measured", cut_short)
    monkeypatch.setattr(replay, "memory_bandwidth", lambda: 4e12)
    monkeypatch.setattr(timing, "_need_gpu", lambda: None)
    monkeypatch.setattr(records, "record", lambda command, names, device, entries: entries)
    one = SimpleNamespace(names=lambda setting: ["a", "b", "c"])
    monkeypatch.setitem(sys.modules, timing.SUBJECT, one)
    file = tmp_path / "times.json"
    parser = argparse.ArgumentParser()
    timing.arguments(parser)
    options = parser.parse_args(["--time", "--rows", "1"])
    options.device, options.op, options.json = None, [], file
    with pytest.raises(KeyboardInterrupt):
        timing.main(options, "lockstep kernels --time")
    assert len(json.loads(file.read_text())["rows"]) == 2
    assert "2.00x" in capsys.readouterr().out


def test_without_a_gpu_the_command_says_so() -> None:
    with pytest.raises(UserError, match="needs a GPU"):
        timing._need_gpu()
