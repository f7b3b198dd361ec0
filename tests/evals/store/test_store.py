"""The store as its users see it: what is kept, what is asked again, one line for all that is wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_samples import CONFIGURATION, open_store, plain, request, response, row

from evals.engines.api import Request, Response, Sampling
from evals.store import disk, journal, parts
from evals.store.read import iterate, load, load_rows
from evals.store.row import Label, rectangle, row_of
from evals.store.store import Store
from validation.errors import UserError


def filled(folder: Path, count: int = 10, **options: Any) -> Path:
    with open_store(folder, **options) as store:
        for i in range(count):
            assert store.add(row(i))
    return folder


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    rows = load_rows(filled(tmp_path / "s", seal_rows=4))
    assert [plain(r) for r in rows] == [plain(row(i)) for i in range(10)]
    assert len(list((tmp_path / "s").glob("part-*"))) == 3


def test_missing_and_infinite_log_probabilities_survive(tmp_path: Path) -> None:
    back = Response(
        "k", 1, token_ids=[1, 2, 3], logprobs=[float("nan"), -float("inf"), -0.5],
        top_ids=[[4, 5], [6], []], top_logprobs=[[-0.1, -2.0], [-0.3], []],
    )  # fmt: skip
    made = row_of(Label("r", "a", "t", "q"), Request("k", 1), back, time=0.0)
    with open_store(tmp_path / "s") as store:
        store.add(made)
    (read,) = load_rows(tmp_path / "s")
    assert plain(read) == plain(made)
    assert read.top_ids.tolist() == [[4, 5], [6, -1], [-1, -1]]
    assert np.isnan(read.top_logprobs[1:, 1]).all()
    assert np.isnan(read.logprobs[0])


def test_rectangle_of_unequal_halves() -> None:
    ids, logprobs = rectangle([[1, 2]], [])
    assert ids.tolist() == [[1, 2]]
    assert np.isnan(logprobs).all()
    assert logprobs.shape == (1, 2)
    assert rectangle([[], []], [[], []])[0].shape == (0, 0)


def test_half_a_surrogate_pair_can_be_stored(tmp_path: Path) -> None:
    made = row_of(Label("r", "a", "t", "q"), Request("k", 1), Response("k", 1, text="cut \ud83d"))
    with open_store(tmp_path / "s") as store:
        store.add(made)
    assert load_rows(tmp_path / "s")[0].text == "cut ?"


def test_the_response_of_another_request_is_refused() -> None:
    with pytest.raises(ValueError, match="toy/2/0 was given as that of the request toy/1/0"):
        row_of(Label("r", "a", "t", "q"), request(1), response(2))


def test_equal_sampling_is_equal_text() -> None:
    label, answer = Label("r", "a", "t", "q"), Response("k", 1)
    one = Request("k", 1, Sampling(1, 0.95, 8, extra={"b": 1, "a": 2}))
    two = Request("k", 1, Sampling(1.0, 0.95, 8, extra={"a": 2, "b": 1}))
    assert row_of(label, one, answer).sampling == row_of(label, two, answer).sampling


def test_the_first_of_two_replies_stands(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert store.add(row(1))
        assert not store.add(row(1))
        assert store.add(row(1, arm="candidate"))
        assert store.add(row(1, replicate=1))
    with open_store(tmp_path / "s") as store:
        assert not store.add(row(1))
    assert load(tmp_path / "s").num_rows == 3


@pytest.mark.parametrize("failure", ["timeout", "transport", "server", "malformed"])
def test_failures_that_may_pass_are_asked_again_and_remembered(tmp_path: Path, failure: str) -> None:
    with open_store(tmp_path / "s") as store:
        store.add(row(1, failure=failure))
        store.add(row(2))
        asked = [request(1), request(2)]
        assert [r.key for r in store.remaining("reference", asked)] == [request(1).key]
    assert {r.failure for r in load_rows(tmp_path / "s")} == {failure, ""}
    with open_store(tmp_path / "s") as store:
        store.add(row(1, failure=failure))
        store.add(row(1))
        assert store.remaining("reference", asked) == []
    assert [r.failure for r in load_rows(tmp_path / "s")] == ["", ""]
    assert sorted(r.failure for r in load_rows(tmp_path / "s", attempts=True)) == ["", "", failure, failure]


@pytest.mark.parametrize("failure", ["refused", "context"])
def test_failures_that_would_come_back_are_finished(tmp_path: Path, failure: str) -> None:
    with open_store(tmp_path / "s") as store:
        store.add(row(1, failure=failure))
    with open_store(tmp_path / "s") as store:
        assert store.finished("reference") == {request(1).key}
        assert store.finished("candidate") == set()
        assert store.finished("reference", replicate=1) == set()


def test_arm_and_task_are_filters(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", seal_rows=3) as store:
        for i in range(4):
            for arm in ("reference", "candidate"):
                store.add(row(i, arm, task="toy" if i < 3 else "other"))
    assert load(tmp_path / "s", arm="candidate").num_rows == 4
    assert load(tmp_path / "s", task="other", columns=["arm"])["arm"].to_pylist() == [
        "reference",
        "candidate",
    ]
    assert [r.key for r in iterate(tmp_path / "s", "reference", "other")] == ["other/3/0"]


def test_an_open_store_can_be_read(tmp_path: Path) -> None:
    with open_store(tmp_path / "s", seal_rows=3) as store:
        for i in range(5):
            store.add(row(i))
        assert [plain(r) for r in load_rows(tmp_path / "s")] == [plain(row(i)) for i in range(5)]


def test_only_one_process_writes(tmp_path: Path) -> None:
    with open_store(tmp_path / "s"), pytest.raises(UserError, match=f"in use by this process .{os.getpid()}"):
        open_store(tmp_path / "s")
    open_store(tmp_path / "s").close()


def test_the_lock_of_another_process_names_it_and_ends_with_it(tmp_path: Path) -> None:
    """Also when it is killed, and although its child lives on."""
    code = (
        "import sys, os, time; from pathlib import Path; from evals.store import lock; p = Path(sys.argv[1]);"
        "lock.acquire(p); child = os.fork();"
        "time.sleep(60) if child == 0 else (print(child, flush=True), time.sleep(60))"
    )
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            with pytest.raises(
                UserError, match=f"in use by process {process.pid} on .*; wait for it or stop it"
            ):
                open_store(tmp_path)
            process.kill()
            process.wait()
            open_store(tmp_path).close()
        finally:
            os.kill(child, 9)


def test_a_store_of_another_configuration_is_refused_by_the_setting_that_differs(tmp_path: Path) -> None:
    settings = {"arms.reference.model": "m", "tasks.aime25.temperature": 1.0}
    Store(tmp_path / "s", "a" * 16, settings=settings).close()
    with pytest.raises(
        UserError, match=r"tasks.aime25.temperature: 1.0 there, 0.6 here.*name another folder"
    ):
        Store(tmp_path / "s", "b" * 16, settings=settings | {"tasks.aime25.temperature": 0.6})
    Store(tmp_path / "s", "a" * 16).close()


def test_wrong_headers_are_one_line(tmp_path: Path) -> None:
    folder = filled(tmp_path / "s")
    path = folder / "store.json"
    good = path.read_text()
    path.write_text(good[:40])
    with pytest.raises(UserError, match=r"store.json is damaged"):
        open_store(folder)
    path.write_text(good.replace("lockstep.samples/1", "lockstep.samples/9"))
    with pytest.raises(UserError, match=r"schema lockstep.samples/9, this version reads lockstep.samples/1"):
        load(folder)
    path.unlink()
    with pytest.raises(UserError, match=r"has samples but no store.json"):
        open_store(folder)
    with pytest.raises(UserError, match="is no sample store"):
        load(tmp_path)
    path.write_text(good)
    open_store(folder).close()  # and no lock was left by those who failed


@pytest.mark.parametrize("harm", ["cut", "empty", "flip"])
def test_a_damaged_part_is_set_aside_and_only_its_requests_are_asked_again(tmp_path: Path, harm: str) -> None:
    folder = filled(tmp_path / "s", seal_rows=4)
    part = sorted(folder.glob("part-*"))[1]
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 4
    part.write_bytes({"cut": bytes(data[:-7]), "empty": b"", "flip": bytes(data)}[harm])
    warned: list[str] = []
    assert len(load_rows(folder, warn=warned.append)) == 6
    with open_store(folder, warned) as store:
        left = store.remaining("reference", [request(i) for i in range(10)])
        assert [r.key for r in left] == [request(i).key for i in (4, 5, 6, 7)]
        for i in (4, 5, 6, 7):
            store.add(row(i))
    assert len(warned) == 2
    assert f"{part.name}.damaged; its requests are asked again" in warned[1]
    assert (folder / f"{part.name}.damaged").exists()
    assert sorted(r.seed for r in load_rows(folder)) == [1000 + i for i in range(10)]


def test_a_journal_with_any_byte_changed_or_any_tail_missing_costs_at_most_those_lines(
    tmp_path: Path,
) -> None:
    """Never a crash, never a wrong row: 60 random harms, each to a journal of five rows."""
    draw = random.Random(4)
    good = [journal.line(row(i)) for i in range(5)]
    whole = b"".join(good)
    for n in range(60):
        data = bytearray(whole)
        if n % 2:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        else:
            del data[draw.randrange(len(data)) :]
        path = tmp_path / "journal-000001.jsonl"
        path.write_bytes(data)
        rows = [plain(r) for r in journal.read(path).rows]
        assert all(r in [plain(row(i)) for i in range(5)] for r in rows)
        # A flipped bit harms one line, or two if it makes or removes a line end.
        assert len(rows) >= (
            3 if n % 2 else len([g for g in range(5) if len(data) >= sum(map(len, good[: g + 1]))])
        )


def test_damaged_lines_of_a_journal_are_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    filled(folder, 0)
    lines = [journal.line(row(i)) for i in range(3)]
    broken = lines[1].replace(b"toy/1/0", b"toy/9/0")
    (folder / "journal-000001.jsonl").write_bytes(lines[0] + broken + lines[2] + lines[0][:50])
    warned: list[str] = []
    with open_store(folder, warned) as store:
        assert store.finished("reference") == {request(0).key, request(2).key}
    assert ["1 damaged lines" in w for w in warned] == [True]
    assert (folder / "journal-000001.jsonl.damaged").read_bytes() == broken


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, room = os.write, [2500]

    def write(file: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(file, bytes(data)[: room[0]])
        room[0] -= written
        return written

    store = open_store(tmp_path / "s")
    monkeypatch.setattr(disk.os, "write", write)
    kept = []
    with pytest.raises(UserError, match=r"No space left on device; what was stored is kept.*--resume"):
        kept.extend(request(i).key for i in range(10) if store.add(row(i)))
    room[0] = 10**9
    store.add(row(9))  # behind the line that was taken back
    store.close()
    assert load(tmp_path / "s")["key"].to_pylist() == [*kept, request(9).key]
    assert 0 < len(kept) < 9


def test_a_part_that_cannot_be_written_leaves_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = open_store(tmp_path / "s")
    store.add(row(1))
    with monkeypatch.context() as patch:
        patch.setattr(disk, "publish", full)
        with pytest.raises(UserError, match="No space left"):
            store.close()
    assert not list((tmp_path / "s").glob("*.tmp"))
    with open_store(tmp_path / "s") as store:
        assert store.finished("reference") == {request(1).key}


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create the store"):
        open_store(tmp_path / "file")


def test_a_long_forced_reply_is_read_without_the_others(tmp_path: Path) -> None:
    """1e4 tokens with 20 candidates, streamed: groups of rows, and exact values."""
    n, draw = 10_000, np.random.default_rng(0)
    ids, logprobs = draw.integers(0, 160_000, (n, 20)), -draw.exponential(size=(n, 20))
    answer = Response(
        "toy/0/0", 1000, token_ids=ids[:, 0].tolist(), logprobs=logprobs[:, 0].tolist(),
        top_ids=ids.tolist(), top_logprobs=logprobs.tolist(), finish="length",
    )  # fmt: skip
    forced = Request("toy/0/0", 1000, forced=tuple(ids[:, 0].tolist()), top=20)
    with open_store(tmp_path / "s", seal_bytes=1 << 20) as store:
        store.add(row_of(Label("r", "reference", "forced", "0"), forced, answer))
        assert not list((tmp_path / "s").glob("journal-*")), "a large row is sealed at once"
    (back,) = iterate(tmp_path / "s")
    assert back.kind == "forced"
    assert np.array_equal(back.top_ids, ids)
    assert np.array_equal(back.top_logprobs, logprobs)


def test_names_of_parts_carry_their_checksum(tmp_path: Path) -> None:
    folder = filled(tmp_path / "s")
    (part,) = parts.listed(folder)
    assert parts.whole(part)
    assert json.loads((folder / "store.json").read_text())["configuration"] == CONFIGURATION
    renamed = part.with_name(part.name.replace(part.stem[-16:], "0" * 16))
    part.rename(renamed)
    assert not parts.whole(renamed)


def test_a_sample_that_two_parts_hold_is_read_once_and_the_first_one(tmp_path: Path) -> None:
    """As after files of two folders were put together: the first reply stands, whatever came later."""
    folder = filled(tmp_path / "s", 2)
    later = replace(row(1), text="later")
    parts.write(folder, 7, [later, row(0, failure="timeout"), row(2, failure="timeout"), row(2)])
    found = load_rows(folder)
    assert [(r.key, r.text == "later", r.failure) for r in found] == [
        (request(i).key, False, "") for i in range(3)
    ]
    assert load(folder, attempts=True).num_rows == 6
