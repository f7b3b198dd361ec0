"""A run that is stopped keeps what is done, and goes on where it stopped."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from toy import command, environment, lockstep, plugin

from tests.processes import PATIENCE, eventually, running
from validation.contracts.contract import Case
from validation.errors import UserError
from validation.execution.journal import FILE, Header, Journal, reopen
from validation.execution.plan import Settings, Task
from validation.report.schema import CaseResult

SLOW = """
open("began", "a").write(f"{a.seed}\\n")
if a.seed == 3 and not os.path.exists("quick"):
    time.sleep(600)
"""


def interrupted(folder: Path, sent: signal.Signals = signal.SIGINT) -> tuple[subprocess.Popen[str], str, str]:
    """Start a run, wait until its third case runs, and send it a signal."""
    words = command("kernels", "--device", "cpu", "--plugin", plugin(folder, SLOW).name, "--json", "r.json")
    run = subprocess.Popen(
        words, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    began = folder / "began"
    assert eventually(lambda: began.exists() and "3" in began.read_text())
    time.sleep(0.3)  # into the case
    run.send_signal(sent)
    out, err = run.communicate(timeout=PATIENCE)
    return run, out, err


def report(folder: Path) -> Path:
    (found,) = (folder / "reports").iterdir()
    return found


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_ctrl_c_leaves_what_is_done_usable(tmp_path: Path, sent: signal.Signals) -> None:
    run, out, err = interrupted(tmp_path, sent)
    assert run.returncode == 130
    assert "Traceback" not in out + err
    assert f"go on with: lockstep kernels --resume reports/{report(tmp_path).name}" in err
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["verdict"] == "undecided"
    assert document["notes"][0] == "stopped after 2 of 3 cases"
    assert [r["verdict"] for r in document["cases"]] == ["pass", "pass"]
    names = {path.name for path in report(tmp_path).iterdir()}
    assert names >= {"results.json", "junit.xml", "report.txt", "cases.jsonl"}


TWICE = """
import os, signal
from validation.cli import _terminable
with _terminable():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGTERM)  # as timeout does, while the report is written
        print("written")
"""


def test_a_second_sigterm_does_not_cost_the_report() -> None:
    ran = subprocess.run([sys.executable, "-c", TWICE], env=environment(), capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "written\n")


def test_no_worker_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    body = 'open(f"pid{a.seed}", "w").write(str(os.getpid())); time.sleep(600)'
    words = command("kernels", "--device", "cpu", "--plugin", plugin(tmp_path, body).name)
    run = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)

    def said() -> list[int]:
        return [int(text) for path in tmp_path.glob("pid*") if (text := path.read_text())]

    assert eventually(said)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert eventually(lambda: not any(running(pid) for pid in said()))


def test_a_resumed_run_does_only_what_is_left(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (tmp_path / "quick").touch()
    (tmp_path / "began").unlink()
    done = lockstep(tmp_path, "kernels", "--resume", str(report(tmp_path)), "--json", "r.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "began").read_text() == "3\n"
    document = json.loads((tmp_path / "r.json").read_text())
    assert [r["case"][-1] for r in document["cases"]] == ["1", "2", "3"]
    assert document["notes"] == ["resumed: 2 cases are from the earlier run"], "nothing else has changed"
    again = lockstep(tmp_path, "kernels", "--resume", str(report(tmp_path)))
    assert (again.returncode, (tmp_path / "began").read_text()) == (0, "3\n")


def finished(folder: Path) -> Path:
    """The journal of a complete run of three cases."""
    lockstep(folder, "kernels", "--device", "cpu", "--op", "toy_add")
    return report(folder) / "cases.jsonl"


def test_a_last_line_cut_short_is_run_again(tmp_path: Path) -> None:
    journal = finished(tmp_path)
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-25])
    done = lockstep(tmp_path, "kernels", "--resume", str(journal.parent))
    assert done.returncode == 0, done.stderr
    assert sorted(
        json.loads(line)["result"]["case"] for line in journal.read_text().splitlines()[1:]
    ) == sorted(json.loads(line)["result"]["case"] for line in whole.decode().splitlines()[1:])


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with room for ten more bytes, then for everything."""
    journal = Journal(tmp_path, Header(Settings()))
    whole, write, room = (tmp_path / FILE).read_bytes(), os.write, [10]

    def full(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(descriptor, data[: room[0]])
        room[0] -= done
        return done

    task = Task("mine", Case.of("toy_add", "plain", 1, rows=4))
    result = CaseResult("toy_add", "mine", task.case.line(), "pass")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match=r"cannot write .*cases\.jsonl: no space left on device"):
        journal.add(task, result)
    assert (tmp_path / FILE).read_bytes() == whole
    monkeypatch.undo()
    journal.add(task, result)
    journal.close()
    journal.close()
    assert list(reopen(tmp_path).finished) == [task.key]


def damage_header(lines: list[str]) -> list[str]:
    return ['{"schema": "other/1"}', *lines[1:]]


def damage_middle(lines: list[str]) -> list[str]:
    return [lines[0], lines[1][:30], *lines[2:]]


def damage_types(lines: list[str]) -> list[str]:
    return "\n".join(lines).replace('"findings":[]', '"findings":"none"', 1).split("\n")


DAMAGES = [
    (damage_header, "damaged in line 1", "start a new run"),
    (damage_middle, "damaged in line 2", "remove that line, its case then runs again"),
    (damage_types, "the result.result.findings is 'none', not a list", "remove that line"),
    (lambda lines: [], "does not begin as a run does", "start a new run"),
]


@pytest.mark.parametrize(("damage", "words", "remedy"), DAMAGES, ids=["header", "middle", "types", "empty"])
def test_other_damage_is_refused_with_a_remedy(
    tmp_path: Path, damage: object, words: str, remedy: str
) -> None:
    journal = finished(tmp_path)
    lines = damage(journal.read_text().splitlines())  # type: ignore[operator]
    journal.write_text("".join(line + "\n" for line in lines))
    done = lockstep(tmp_path, "kernels", "--resume", str(journal.parent))
    assert done.returncode == 3
    assert done.stderr.startswith("lockstep: cannot resume")
    assert words in done.stderr
    assert remedy in done.stderr
    assert done.stderr.count("\n") == 1


def test_errors_are_tried_again_and_another_commit_is_said(tmp_path: Path) -> None:
    journal = finished(tmp_path)
    header, *lines = journal.read_text().splitlines()
    changed = json.loads(header)
    changed["environment"]["torch"] = "1.0"
    journal.write_text("\n".join([json.dumps(changed), *lines[1:]]) + "\n")
    done = lockstep(tmp_path, "kernels", "--resume", str(journal.parent))
    assert done.returncode == 0
    assert "note: the earlier run had another torch" in done.stdout
