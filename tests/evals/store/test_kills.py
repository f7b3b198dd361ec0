"""Every sample exactly once, wherever the writer dies: at each file operation, and by SIGKILL at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from store_samples import open_store, plain, request, row

from evals.store import disk, lock
from evals.store.read import load, load_rows

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
COUNT = 12


class Dead(BaseException):
    """Stands for SIGKILL: nothing of the writer runs any more."""


@contextmanager
def dies_at(monkeypatch: pytest.MonkeyPatch, operation: int) -> Iterator[list[str]]:
    """Die before file operation number ``operation``; an append dies in the middle of its data."""
    seen: list[str] = []

    def wrapped(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            seen.append(name)
            if len(seen) > operation:
                if name == "append" and len(seen) == operation + 1:
                    os.write(args[0], args[1][: len(args[1]) // 2])
                raise Dead
            return work(*args)

        return run

    with monkeypatch.context() as patch:
        for name in ("append", "sync", "publish", "remove", "sync_folder"):
            patch.setattr(disk, name, wrapped(name, getattr(disk, name)))
        yield seen


def fill(folder: Path, promised: list[str]) -> None:
    store = open_store(folder, seal_rows=5, sync_seconds=0.0)
    for wanted in store.remaining("reference", [request(i) for i in range(COUNT)]):
        store.add(row(int(wanted.key.split("/")[1])))
        promised.append(wanted.key)
    store.close()


def test_a_writer_that_dies_at_any_file_operation_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dies_at(monkeypatch, 10**9) as seen:
        fill(tmp_path / "whole", [])
    assert {"append", "sync", "publish", "remove"} <= set(seen)
    for operation in range(len(seen)):
        folder, promised = tmp_path / str(operation), []
        with dies_at(monkeypatch, operation), pytest.raises(Dead):
            fill(folder, promised)
        lock.release(folder)  # as the operating system does
        if (folder / "store.json").exists():
            assert {*promised} <= {*load(folder)["key"].to_pylist()}, "promised rows must be there at once"
        fill(folder, promised)
        rows = sorted(load_rows(folder, attempts=True), key=lambda r: r.seed)
        assert [plain(r) for r in rows] == [plain(row(i)) for i in range(COUNT)]
        assert not [*folder.glob("*.tmp"), *folder.glob("journal-*")]


def test_two_deaths_in_a_row_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one while the store recovers from the first."""
    for second in range(6):
        folder, promised = tmp_path / str(second), []
        for operation in (13, second):
            with dies_at(monkeypatch, operation), pytest.raises(Dead):
                fill(folder, promised)
            lock.release(folder)
        fill(folder, promised)
        keys = load(folder, attempts=True)["key"].to_pylist()
        assert sorted(keys) == sorted(request(i).key for i in range(COUNT))


def test_sigkill_at_random_moments(tmp_path: Path) -> None:
    """A real process, killed again and again: what was promised is there, in the end each sample once."""
    draw, folder, count, kills = random.Random(20), tmp_path / "store", 200, 0
    promised: set[str] = set()
    for n in range(9):
        words, killed = _killed_after(folder, count, draw.uniform(0.0, 0.03) if n < 8 else None)
        kills += killed
        promised |= {*words} - {"open", "done"}
        if folder.exists() and (folder / "store.json").exists():
            assert promised <= {*load(folder)["key"].to_pylist()}
        if not killed:
            break
    assert kills >= 3, "the writer was too fast for the kills: raise the count"
    assert "done" in words
    rows = sorted(load_rows(folder, attempts=True), key=lambda r: r.seed)
    assert [r.key for r in rows] == [request(i).key for i in range(count)]
    assert [plain(r) for r in rows] == [plain(row(i)) for i in range(count)]


def _killed_after(folder: Path, count: int, seconds: float | None) -> tuple[list[str], bool]:
    """Run the writer, kill it that long after its store is open (None: never). Its words, was it killed."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "writer.py"), str(folder), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        if seconds is not None:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
        words = (first + process.stdout.read()).split()
    return words, process.returncode == -signal.SIGKILL
