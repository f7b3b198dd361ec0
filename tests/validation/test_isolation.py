"""A provider that crashes, hangs, raises or prints ends only its own case. Real signals, real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy import lockstep, plugin

from tests.processes import eventually, running


def results(folder: Path, path: Path, *words: str, case: int = 2) -> tuple[int, dict[int, Any], str]:
    """Exit status, results by seed, and the terminal report of a run of one plug-in."""
    done = lockstep(folder, "kernels", "--device", "cpu", "--plugin", path.name, "--json", "r.json", *words)
    assert "Traceback" not in done.stderr + done.stdout
    document = json.loads((folder / "r.json").read_text())
    return done.returncode, {int(r["case"][-1]): r for r in document["cases"]}, done.stdout


CRASHES = [
    ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ("ctypes.string_at(0)", "SIGSEGV (segmentation fault) in function, mine.py line 6"),
    ("os.abort()", "SIGABRT (abort) in function, mine.py line 6"),
    ("os._exit(5)", "exited with status 5"),
]


@pytest.mark.parametrize(("body", "words"), CRASHES, ids=["kill", "segfault", "abort", "exit"])
def test_a_crash_is_a_finding_and_the_run_goes_on(tmp_path: Path, body: str, words: str) -> None:
    text = f'sys.stderr.write("almost\\n"); sys.stderr.flush(); {body}'
    status, cases, shown = results(tmp_path, plugin(tmp_path, f"if a.seed == 2: {text}"))
    assert status == 1
    assert [cases[seed]["verdict"] for seed in (1, 2, 3)] == ["pass", "fail", "pass"]
    (finding,) = cases[2]["findings"]
    assert finding["statistic"] == "crash"
    assert words in finding["message"]
    assert "its last line: almost" in finding["message"]
    assert finding["replay"] == "lockstep replay mine/toy_add:rows=4:plain:2 --plugin mine.py"
    assert finding["replay"] in shown


def test_a_hang_is_killed_with_its_children_and_says_where(tmp_path: Path) -> None:
    body = """
    if a.seed == 2:
        child = subprocess.Popen(["sleep", "600"])
        open("child", "w").write(str(child.pid))
        while True:
            time.sleep(0.01)
    """
    path = plugin(tmp_path, body)
    status, cases, _ = results(tmp_path, path, "--case-timeout", "1")
    assert status == 1
    assert [cases[seed]["verdict"] for seed in (1, 2, 3)] == ["pass", "fail", "pass"]
    (finding,) = cases[2]["findings"]
    assert finding["statistic"] == "hang"
    assert finding["message"].startswith("no result after 1 s, killed in function, mine.py line 1")
    child = int((tmp_path / "child").read_text())
    assert eventually(lambda: not running(child))


def test_a_hang_in_native_code_is_killed(tmp_path: Path) -> None:
    body = "if a.seed == 2: ctypes.PyDLL(None).sleep(600)"  # holds the interpreter's lock
    status, cases, _ = results(tmp_path, plugin(tmp_path, body), "--case-timeout", "1")
    assert (status, cases[2]["findings"][0]["statistic"], cases[3]["verdict"]) == (1, "hang", "pass")


def test_after_three_hangs_the_rest_of_the_pair_is_left_out(tmp_path: Path) -> None:
    path = plugin(tmp_path, "time.sleep(600)")
    status, cases, _ = results(tmp_path, path, "--case-timeout", "0.3", "--tier", "full")
    assert status == 1
    assert [cases[seed]["verdict"] for seed in range(1, 6)].count("fail") >= 3
    left_out = [r["note"] for r in cases.values() if r["verdict"] == "undecided"]
    assert set(left_out) <= {"not run: 3 cases of toy_add ended in a hang before"}


def test_noise_on_stdout_and_reads_of_stdin_do_not_disturb_the_protocol(tmp_path: Path) -> None:
    body = """
    print("{" * 1000)
    os.write(1, b"\\xff\\xfe noise\\n" * 100)
    subprocess.run(["echo", "child noise"])
    sys.stdin.read()
    """
    status, cases, shown = results(tmp_path, plugin(tmp_path, body))
    assert (status, len(cases)) == (0, 3)
    assert "noise" not in shown


RAISES = [
    (
        'raise ValueError("no such\\nhead")',
        "exception",
        "raised ValueError: no such head (in function, mine.py line 6)",
    ),
    ("sys.exit(3)", "exception", "raised SystemExit: 3"),
    ("json.loads('{')", "exception", "raised NameError: name 'json' is not defined"),
]


@pytest.mark.parametrize(("body", "statistic", "words"), RAISES, ids=["error", "exit", "name"])
def test_an_exception_is_a_finding(tmp_path: Path, body: str, statistic: str, words: str) -> None:
    status, cases, _ = results(tmp_path, plugin(tmp_path, f"if a.seed == 2: {body}"))
    (finding,) = cases[2]["findings"]
    assert (status, finding["statistic"]) == (1, statistic)
    assert words in finding["message"]
    assert cases[3]["verdict"] == "pass"


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    _, cases, _ = results(tmp_path, plugin(tmp_path, "raise ValueError('x' * 10_000)"))
    assert len(cases[1]["findings"][0]["message"]) < 400


def test_what_lacked_memory_beside_others_is_tried_again_alone(tmp_path: Path) -> None:
    body = """
    if a.seed == 2:
        if not os.path.exists("tried"):
            open("tried", "w").write(str(os.getpid()))
            raise MemoryError("no room")
        while any(alive(pid) for pid in pids()):
            raise MemoryError("still not alone")
    open(f"pid-{os.getpid()}", "w")
    """
    helpers = """
    import glob
    pids = lambda: [int(name[4:]) for name in glob.glob("pid-*") if int(name[4:]) != os.getpid()]
    state = lambda pid: open(f"/proc/{pid}/stat").read().split()[2]
    alive = lambda pid: os.path.exists(f"/proc/{pid}") and state(pid) != "Z"
    """
    status, cases, _ = results(tmp_path, plugin(tmp_path, helpers + body))
    assert (tmp_path / "tried").exists()
    assert (status, [cases[seed]["verdict"] for seed in (1, 2, 3)]) == (0, ["pass"] * 3)


def test_lack_of_memory_is_an_error_and_no_finding(tmp_path: Path) -> None:
    status, cases, _ = results(tmp_path, plugin(tmp_path, "if a.seed == 2: raise MemoryError('no room')"))
    assert (status, cases[2]["verdict"], cases[2]["findings"]) == (3, "error", [])
    assert cases[2]["note"].startswith("out of memory: the provider raised MemoryError: no room")


def test_lack_of_disk_space_is_an_error_and_no_finding(tmp_path: Path) -> None:
    body = "if a.seed == 2: raise OSError(28, 'No space left on device')"
    status, cases, _ = results(tmp_path, plugin(tmp_path, body))
    assert (status, cases[2]["verdict"], cases[2]["findings"]) == (3, "error", [])
    assert cases[2]["note"].startswith("out of disk space: the provider raised OSError: [Errno 28]")


def test_a_crash_that_needs_earlier_cases_is_told_apart(tmp_path: Path) -> None:
    body = """
    if a.seed == 3 and getattr(sys, "served", 0):
        ctypes.string_at(0)
    sys.served = 1
    """
    status, cases, _ = results(tmp_path, plugin(tmp_path, body))
    assert status == 1
    (finding,) = cases[3]["findings"]
    assert finding["statistic"] == "crash"
    assert "only after other cases in the same process" in finding["message"]
    assert cases[3]["scores"], "its own outputs were judged in a fresh worker"


def test_a_worker_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    """The plug-in loads in the parent and not in the worker: neither right nor wrong."""
    path = plugin(tmp_path, "pass")
    path.write_text("import os\nassert not os.path.exists('reports')\n" + path.read_text())
    status, cases, shown = results(tmp_path, path)
    assert status == 3
    assert {r["verdict"] for r in cases.values()} == {"error"}
    assert "its worker does not start: plug-in mine.py does not import: line 2: AssertionError" in shown


def test_a_worker_that_dies_while_starting_is_an_error(tmp_path: Path) -> None:
    path = plugin(tmp_path, "pass")
    path.write_text("import os\nif os.path.exists('reports'): os.abort()\n" + path.read_text())
    status, cases, _ = results(tmp_path, path)
    assert status == 3
    assert "its worker does not start: the process died: SIGABRT (abort)" in cases[1]["note"]


@pytest.mark.parametrize("sent", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_a_case_whose_worker_was_killed_once_is_run_again(tmp_path: Path, sent: str, verdict: str) -> None:
    body = f"""
    if a.seed == 2 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.{sent})
    if a.seed == 2 and "{verdict}" == "fail":
        a.out[:] = a.rows
        return
    """
    status, cases, _ = results(tmp_path, plugin(tmp_path, body))
    assert status == (0 if verdict == "pass" else 1)
    assert [cases[seed]["verdict"] for seed in (1, 2, 3)] == ["pass", verdict, "pass"]
    assert [f["statistic"] for f in cases[2]["findings"]] == ([] if verdict == "pass" else ["bits"])
    assert cases[2]["note"].startswith(f"run again after the process died: {sent}")


def test_a_worker_killed_twice_outside_of_the_kernel_is_an_error(tmp_path: Path) -> None:
    """Rows of 17: the judge of the toy suite is killed, as where its own work takes all memory."""
    done = lockstep(tmp_path, "replay", "right/toy_add:rows=17:plain:1", "--json", "r.json")
    (case,) = json.loads((tmp_path / "r.json").read_text())["cases"]
    assert (done.returncode, case["verdict"], case["findings"]) == (3, "error", [])
    assert case["note"].startswith(
        "the process died: SIGKILL (killed, often for lack of memory), twice, while"
    )
    assert len((tmp_path / "kills").read_text()) == 2


def test_two_pairs_share_two_workers(tmp_path: Path) -> None:
    """Each waits until the other has begun, which never comes where they run one after another."""
    body = """
    open({mine!r}, "w")
    until = time.monotonic() + 30
    while not os.path.exists({other!r}):
        assert time.monotonic() < until, "alone"
        time.sleep(0.01)
    """
    plugin(tmp_path, body.format(mine="a", other="b"), "a.py", provider="a")
    plugin(tmp_path, body.format(mine="b", other="a"), "b.py", provider="b")
    done = lockstep(tmp_path, "kernels", "--device", "cpu", "--plugin", "a.py", "--plugin", "b.py")
    assert done.returncode == 0, done.stdout
