"""``.ci/gpu`` with an interpreter that stands for Lockstep on a GPU: order, records, limits, cuts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/gpu"
# Does what PLAN says for the command's record: exit status, seconds, whether SIGTERM is heard.
STUB = """#!{python}
import json, os, signal, sys, time
from pathlib import Path
words = sys.argv[1:]
if words[0] == "-c":
    print(os.environ["GPUS"])
    sys.exit()
record = Path(words[words.index("--json") + 1])
with open(os.environ["SEEN"], "a") as seen:
    print(*words[2:], file=seen)
plan = json.loads(os.environ["PLAN"]).get(record.stem, {{}})
def ended(*_):
    record.write_text("half")
    sys.exit(130)
signal.signal(signal.SIGTERM, ended)
if plan.get("journal"):
    folder = Path(words[words.index("--report-dir") + 1]) / "20260101-000000-0"
    folder.mkdir(parents=True)
    (folder / "cases.jsonl").write_text("x")
until = time.monotonic() + 60
while len(Path(os.environ["SEEN"]).read_text().splitlines()) < plan.get("beside", 0):
    if time.monotonic() > until:
        sys.exit(9)
    time.sleep(0.05)
time.sleep(plan.get("seconds", 0))
if not plan.get("status", 0) > 2:
    record.write_text("{{}}")
print("the last line of", record.stem)
sys.exit(plan.get("status", 0))
"""


class Machine:
    """A GPU machine that is none, and the folder of its records."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, folder / "records"
        self.stub = folder / "python"
        self.stub.write_text(STUB.format(python=sys.executable))
        self.stub.chmod(0o755)
        self.seen = folder / "seen"

    def start(self, *words: str, gpus: int = 1, plan: dict[str, dict[str, int]] | None = None):
        told = {"GPUS": str(gpus), "PLAN": json.dumps(plan or {}), "SEEN": str(self.seen)}
        env = os.environ | told | {"PYTHON": str(self.stub)}
        return subprocess.Popen(
            [SCRIPT, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(
        self, *stages: str, options: tuple[str, ...] = (), gpus: int = 1, plan=None
    ) -> tuple[int, dict[str, list[str]]]:
        """Exit status, and the words of each line of the table."""
        self.seen.write_text("")
        running = self.start(*options, str(self.records), *stages, gpus=gpus, plan=plan)
        out, _ = running.communicate(timeout=60)
        lines = out.rpartition("\nstage ")[2].splitlines()[1:]
        return running.returncode, {line.split()[0]: line.split()[1:] for line in lines}

    @property
    def commands(self) -> list[str]:
        return self.seen.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_stages_run_in_order_and_leave_record_and_log(machine: Machine) -> None:
    status, table = machine.run(gpus=2)
    assert status == 0
    names = list(table)
    assert names[:4] == ["time", "full", "calibrate", "sanitize"]
    assert len(names) == 12
    assert [row[0] for row in table.values()] == ["done"] * 12
    assert [row[-1] for row in table.values()] == ["pass"] * 12
    for name in names:
        assert (machine.records / f"{name}.json").exists()
        assert "the last line" in (machine.records / f"{name}.log").read_text()
    assert machine.commands[0].startswith("kernels --time --json")
    assert "--report-dir" not in machine.commands[2], "calibrate has none"
    assert list((machine.records / "calibration").glob("*.json"))


def test_a_stage_with_its_record_is_not_run_again(machine: Machine) -> None:
    machine.run("smoke", "long", plan={"long": {"status": 1}})
    status, table = machine.run("smoke", "long", "memory")
    assert status == 1, "what failed before still fails"
    assert [c for c in machine.commands if "--only long" in c] == []
    assert table["long"][-1] == "fail"
    assert table["memory"][-1] == "pass"
    (machine.records / "long.json").unlink()
    assert machine.run("smoke", "long")[0] == 0


@pytest.mark.parametrize(("code", "state"), [(3, "see"), (139, "see"), (124, "cut"), (130, "cut")])
def test_an_error_or_a_cut_leaves_no_record_and_stops_nothing(
    machine: Machine, code: int, state: str
) -> None:
    status, table = machine.run("smoke", "long", plan={"smoke": {"status": code}})
    assert status == (2 if state == "cut" else 3)
    assert table["smoke"][0] == state
    assert table["long"][-1] == "pass"
    assert not (machine.records / "smoke.json").exists()
    assert machine.run("smoke", "long")[0] == 0
    assert len(machine.commands) == 1


def test_two_gpus_are_asked_for_where_they_are_needed(machine: Machine) -> None:
    status, table = machine.run("stress", "smoke")
    assert status == 2
    assert table["stress"] == ["needs", "2", "GPUs"]
    assert table["smoke"][-1] == "pass"


def test_a_run_of_kernels_that_was_cut_is_resumed(machine: Machine) -> None:
    machine.run("full", plan={"full": {"journal": True, "status": 130}})
    assert machine.run("full")[0] == 0
    (command,) = machine.commands
    assert command.startswith(f"kernels --resume {machine.records}/full/20260101-000000-0 --json")


def test_no_stage_begins_that_cannot_be_done_in_the_time_left(machine: Machine) -> None:
    status, table = machine.run("time", "full", "wide", options=("--seconds", "150"))
    assert status == 2
    assert table["time"] == table["wide"] == ["not", "begun"]
    assert table["full"][0] == "done", "it can be taken up again"
    assert machine.run("full", "long", options=("--seconds", "20"))[1]["long"] == ["not", "begun"]


def test_what_runs_when_the_time_is_over_is_ended_and_not_complete(machine: Machine) -> None:
    status, table = machine.run(
        "long", "longest", options=("--seconds", "31"), plan={"long": {"seconds": 600}}
    )
    assert status == 2
    assert table["long"][0] == "cut"
    assert table["longest"] == ["not", "begun"]
    assert not (machine.records / "long.json").exists()


def test_stages_side_by_side(machine: Machine) -> None:
    """Each waits for the others to have begun."""
    plan = {name: {"beside": 4} for name in ("smoke", "long", "wide", "memory")}
    plan["wide"]["status"] = 1
    status, table = machine.run(*plan, options=("--together",), plan=plan)
    assert status == 1
    assert [row[-1] for row in table.values()] == ["pass", "pass", "fail", "pass"]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_stage_and_begins_no_other(machine: Machine, sent: signal.Signals) -> None:
    plan = {"smoke": {"seconds": 600}}
    running = machine.start(str(machine.records), "smoke", "long", plan=plan)
    until = time.monotonic() + 60
    while not machine.seen.exists() or not machine.seen.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(sent)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 2
    assert "smoke      cut" in out
    assert "long       not begun" in out
    assert (machine.records / "smoke.part").read_text() == "half", "what was done is written"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seconds", "x"), "--seconds needs"),
        (("--no",), "unknown option --no"),
        (("R", "no"), "no stage 'no'"),
    ],
)
def test_bad_input_is_one_line(machine: Machine, words: tuple[str, ...], said: str) -> None:
    running = machine.start(*words)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 3
    assert said in out.splitlines()[0]


def test_no_gpu_is_an_error(machine: Machine) -> None:
    running = machine.start(str(machine.records), gpus=0)
    assert "there is no GPU here" in running.communicate(timeout=60)[0]
    assert running.returncode == 3


def listed(machine: Machine) -> list[list[str]]:
    """The words of every stage's command."""
    out, _ = machine.start("--list").communicate(timeout=60)
    return [line.split()[3:] for line in out.splitlines()[1:]]


def test_the_list_gives_commands_that_lockstep_has(machine: Machine) -> None:
    from validation.cli import parser

    commands = listed(machine)
    assert len(commands) == 12
    for words in commands:
        assert parser().parse_args(words).name == words[0]


def test_every_stage_lacks_nothing_but_a_gpu_here(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from validation import cli
    from validation.step.items import Choice, chosen

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    for words in listed(machine):
        assert "--device cuda" in " ".join(words) or "--time" in words or words == ["sanitize"], words
        options = cli.parser().parse_args(words)
        if options.name == "step" and not options.ranks:
            choice = Choice("quick", options.only, options.steps, "cuda", options.widths, options.layers)
            assert chosen("triton", choice), words
        words += [] if "calibrate" in words or "--time" in words else ["--report-dir", "reports"]
        assert cli.main([*words, "--json", "record.json"]) == 3, words
        said = capsys.readouterr().err
        assert "GPU" in said or "CUDA" in said, f"{words}: {said}"
