"""``lockstep step`` from its command line: verdicts, files, and what a user may get wrong."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from step_case import small

from validation.cli import main
from validation.commands import step
from validation.errors import UserError
from validation.report.schema import CaseResult
from validation.step.crew import Setup
from validation.subjects.kimi_k3.checkpoint import save_weights
from validation.subjects.kimi_k3.weights import random_weights

FAULTY = """
import torch
from validation.providers import implementation, implements, load_provider
from validation.step.executor import STEP_OPERATIONS

load_provider("torch")
for op in STEP_OPERATIONS:
    right = implementation(op, "torch").function

    def run(a, op=op, right=right):
        right(a)
        if op == "kda_decode":
            a.state[a.slots[:, 0].long()] *= 0.999

    implements(op, provider="faulty", profile="stock")(run)
"""


def _step(tmp_path: Path, *more: str) -> int:
    return main(["step", "--report-dir", str(tmp_path / "reports"), *more])


def test_a_right_provider_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        _step(tmp_path, "--provider", "torch", "--only", "tenants", "--json", str(tmp_path / "r.json")) == 0
    )
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["verdict"] == "pass"
    (case,) = document["cases"]
    assert case["controls_planted"] == case["controls_caught"] > 40
    assert "PASS: 1 case" in capsys.readouterr().out


def test_a_faulty_provider_fails_with_its_place_and_a_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    plugin = ("--plugin", str(tmp_path / "faulty.py"))
    assert (
        _step(tmp_path, *plugin, "--only", "tenants", "--junit", str(tmp_path / "r.xml"), "--layers", "4")
        == 1
    )
    said = capsys.readouterr()
    first = "step 0, layer 0, kda_decode, rank 0, everywhere"
    assert f"{first}: state" in said.err
    shown, replay = said.out.partition("tenants by faulty: fail\n")[2].splitlines()[:2]
    assert first in shown
    assert replay.startswith("  lockstep step --provider faulty --only tenants --seed 0 --plugin ")
    assert replay.endswith(" --layers 4")
    assert "kda_decode" in (tmp_path / "r.xml").read_text()
    (capture,) = (tmp_path / "reports").glob("*/faulty-tenants.safetensors")
    replay = ("--replay", str(capture))
    assert _step(tmp_path, *replay, *plugin, "--provider", "faulty") == 1
    assert _step(tmp_path, *replay, "--provider", "torch") == 0
    out = capsys.readouterr().out
    assert "as captured: fail: step 0, layer 0, kda_decode, rank 0: state" in out
    assert "run again by torch: pass" in out
    assert _step(tmp_path, *replay, "--only", "tenants", "--layers", "4") == 0
    assert _step(tmp_path, *replay, "--only", "preempt") == 3
    assert "is a capture of configuration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "nothing"), "unknown walk 'nothing'; known: acceptance"),
        (("--provider", "nobody"), "unknown provider 'nobody'"),
        (("--provider", "fla"), "does not implement 'embedding'"),
        (("--steps", "2"), "--steps 2: at least 4"),
        (("--layers", "2"), "--layers 2: from 3 to 16"),
        (("--workers", "0"), "--workers 0: at least 1"),
        (("--judged", "-1"), "--judged -1: at least 0"),
        (("--widths", "real"), "--widths real needs 40 GB of weights on a GPU; add --device cuda"),
        (("--device", "cuda"), "no CUDA device here"),
        (("--seed", "-1"), "--seed -1"),
        (("--weights", "absent.safetensors"), "cannot read the weights"),
        (("--replay", "absent.safetensors"), "cannot read the capture"),
        (("--tier", "huge"), "invalid choice"),
        (("--faults", "--ranks", "2"), "--faults and --ranks: each stops after its own work"),
        (("--ranks", "2", "--plugin", "x.py"), "--plugin: ranks through gloo know built-in providers alone"),
        (("--ranks", "2", "--json", "r.json"), "--ranks through gloo writes no such document"),
        (("--ranks", "2", "--seconds", "5"), "leave out --json, --junit, --report-dir and --seconds"),
        (("--seconds", "5"), "--seconds is of --ranks alone"),
        (("--exchange", "gloo"), "--exchange is of --ranks alone"),
        (("--only", "tenants", "--judged", "3"), "--judged is of the long walk alone"),
        (("--faults", "--junit", "r.xml"), "--faults writes no such document"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert _step(tmp_path, *words) == 3
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_weights_that_do_not_fit_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(random_weights(small()), path, small())
    assert _step(tmp_path, "--weights", str(path)) == 3
    assert "layers.4.conv is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGTERM), 130, "interrupted"),
        (lambda: _refuse(), 3, "this walk is refused"),
    ],
)
def test_what_other_walks_gave_is_kept(
    ending: Callable[[], None],
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def walk(setup: Setup, work: list[object], results: dict[int, CaseResult]) -> None:
        results[0] = CaseResult("plain", "torch", "plain", "pass")
        ending()

    monkeypatch.setattr(step, "_walk", walk)
    words = (
        "--provider",
        "torch",
        "--only",
        "plain",
        "--only",
        "tenants",
        "--json",
        str(tmp_path / "r.json"),
    )
    assert _step(tmp_path, *words) == status
    assert said in capsys.readouterr().err
    (report,) = (tmp_path / "reports").glob("*/results.json")
    for path in (report, tmp_path / "r.json"):
        document = json.loads(path.read_text())
        assert [case["op"] for case in document["cases"]] == ["plain"]
        assert document["verdict"] == "undecided"
        assert "stopped after 1 of 2 walks" in document["notes"]


def _refuse() -> None:
    raise UserError("this walk is refused")


def test_threads_are_one(tmp_path: Path) -> None:
    assert torch.get_num_threads() == 1


DYING = (
    FAULTY.replace("a.state[a.slots[:, 0].long()] *= 0.999", "os._exit(7)")
    .replace("import torch", "import os\n\nimport torch", 1)
    .replace('provider="faulty"', 'provider="dying"')
)


@pytest.mark.stress
def test_a_walk_that_ends_its_process_costs_no_other_walk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    words = ("--plugin", str(tmp_path / "dying.py"), "--provider", "dying", "--provider", "torch")
    assert _step(tmp_path, *words, "--only", "tenants", "--json", str(tmp_path / "r.json")) == 3
    cases = {case["provider"]: case for case in json.loads((tmp_path / "r.json").read_text())["cases"]}
    assert cases["dying"]["verdict"] == "error"
    assert cases["dying"]["note"] == "its process ended with status 7"
    assert cases["torch"]["verdict"] == "pass"


def test_a_full_disk_costs_the_file_and_not_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _step(tmp_path, "--provider", "torch", "--only", "memory", "--json", "/dev/full") == 3
    said = capsys.readouterr()
    assert "PASS: 1 case" in said.out
    assert said.err.splitlines()[-1] == (
        "lockstep: cannot write /dev/full: no space left on device; make room, or choose another place"
    )
