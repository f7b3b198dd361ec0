"""Whole runs of the toy suite as a user sees them: status, files, ledger, controls, replay."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from toy import command, environment, lockstep, plugin

from validation.report import document

CPU = ("kernels", "--device", "cpu")
WRONG_IN_2 = "if a.seed == 2:\n    a.out[:] = a.rows\n    return"


def run(folder: Path, *words: str, **more: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, results document and terminal report."""
    done = lockstep(folder, *CPU, *words, "--json", "r.json", **more)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads((folder / "r.json").read_text()), done.stdout


def test_a_right_provider_passes_and_every_report_is_written(tmp_path: Path) -> None:
    status, results, shown = run(tmp_path, "--junit", "j.xml")
    assert (status, results["verdict"], len(results["cases"])) == (0, "pass", 6)
    assert results["skipped"] == {"absent": "is not part of this installation (toy_absent)"}
    assert "skipped absent: is not part of this installation" in shown
    assert "negative controls: 6 of 6 planted faults noticed" in shown
    assert "negative control toy_wrong: flagged on 2 of 2 operations" in shown
    assert shown.splitlines()[-1].startswith("PASS: 6 cases, in ")
    (folder,) = (tmp_path / "reports").iterdir()
    assert folder.name.endswith("-" + results["environment"]["configuration_hash"])
    assert {p.name for p in folder.iterdir() if p.is_file()} == {
        "results.json",
        "junit.xml",
        "report.txt",
        "cases.jsonl",
    }
    assert (folder / "junit.xml").read_text() == (tmp_path / "j.xml").read_text()
    assert document.load(folder / "results.json").verdict == "pass"


def test_the_environment_names_versions_device_commit_and_configuration(tmp_path: Path) -> None:
    _, results, _ = run(tmp_path, "--op", "toy_add", "--seed", "7")
    environment_ = results["environment"]
    assert environment_["device"] == "cpu"
    assert environment_["configuration"]["seed"] == 7
    assert environment_["configuration"]["ops"] == ["toy_add"]
    assert {"date", "python", "platform", "torch", "triton", "numpy", "fla-core"} <= set(environment_)
    assert str(tmp_path) not in json.dumps(results)


def test_seeds_are_shifted(tmp_path: Path) -> None:
    _, results, _ = run(tmp_path, "--op", "toy_add", "--seed", "10")
    assert [r["case"] for r in results["cases"]] == [f"toy_add:rows=4:plain:{s}" for s in (11, 12, 13)]


def test_a_wrong_provider_fails_with_its_worst_finding_and_the_replay_line(tmp_path: Path) -> None:
    plugin(tmp_path, WRONG_IN_2)
    status, results, shown = run(tmp_path, "--plugin", "mine.py")
    assert (status, results["verdict"]) == (1, "fail")
    lines = shown.splitlines()
    at = lines.index("toy_add by mine: fail")
    assert lines[at + 1] == "  out: row 0 only: bits, 8 times its limit (differs)"
    assert lines[at + 2] == "  lockstep replay mine/toy_add:rows=4:plain:2 --plugin mine.py"
    assert lines[-1].startswith("FAIL: 3 cases, 1 failed, in ")


def test_only_the_providers_of_the_plugin_run_by_default(tmp_path: Path) -> None:
    plugin(tmp_path, "pass")
    _, results, _ = run(tmp_path, "--plugin", "mine.py")
    assert {r["provider"] for r in results["cases"]} == {"mine"}
    _, results, _ = run(tmp_path, "--plugin", "mine.py", "--provider", "mine", "--provider", "right")
    assert {r["provider"] for r in results["cases"]} == {"mine", "right"}


def test_the_printed_replay_line_reproduces_and_maps(tmp_path: Path) -> None:
    plugin(tmp_path, WRONG_IN_2)
    _, results, _ = run(tmp_path, "--plugin", "mine.py", "--mode", "accuracy")
    (finding,) = [f for r in results["cases"] for f in r["findings"]]
    words = finding["replay"].split()[1:]
    assert words[-2:] == ["--mode", "accuracy"]
    done = lockstep(tmp_path, *words)
    assert done.returncode == 1, done.stderr
    for row in range(4):
        assert f"row {row}: found {row}, expected {row + 1}" in done.stdout
    assert "value 4, limit 0.5" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAIL"


def test_a_replay_meets_the_limits_of_the_whole_run(tmp_path: Path) -> None:
    """The toy judge reports its share: the same in a run of six cases and in a replay of one."""
    _, results, _ = run(tmp_path)
    whole = {s["value"] for r in results["cases"] for s in r["scores"] if s["statistic"] == "share"}
    lockstep(tmp_path, "replay", "right/toy_add:rows=4:plain:1", "--json", "one.json")
    alone = json.loads((tmp_path / "one.json").read_text())["cases"][0]["scores"][1]["value"]
    assert whole == {alone} == {1e-3 / 10_000}


def test_a_control_can_be_replayed(tmp_path: Path) -> None:
    done = lockstep(tmp_path, "replay", "toy_wrong/toy_add:rows=4:plain:1")
    assert done.returncode == 1


def test_a_missed_negative_control_leaves_the_run_undecided(tmp_path: Path) -> None:
    status, results, shown = run(tmp_path, TOY_MISSED="1")
    assert (status, results["verdict"]) == (2, "undecided")
    assert "negative control toy_missed: flagged on 0 of 2 operations; missed on toy_add, toy_scale" in shown


JUDGED = [
    (
        13,
        3,
        "error",
        "Lockstep itself failed: ZeroDivisionError: the judge is broken (judge_case, toy_judge.py line",
    ),
    (14, 2, "undecided", "needs more rows"),
    (15, 3, "error", "this case cannot be built"),
    (16, 3, "error", "the judge's result does not fit the schema"),
]


@pytest.mark.parametrize(
    ("rows", "status", "verdict", "note"), JUDGED, ids=["bug", "undecided", "bad", "schema"]
)
def test_what_is_no_result_counts_as_neither_right_nor_wrong(
    tmp_path: Path, rows: int, status: int, verdict: str, note: str
) -> None:
    done = lockstep(tmp_path, "replay", f"right/toy_add:rows={rows}:plain:1", "--json", "r.json")
    results = json.loads((tmp_path / "r.json").read_text())
    assert (done.returncode, results["verdict"]) == (status, verdict)
    assert note in results["cases"][0]["note"]
    assert results["cases"][0]["findings"] == []
    assert "Traceback" not in done.stdout + done.stderr
    if rows == 13:
        (log,) = (tmp_path / "reports").glob("*/workers/*.log")
        assert "Traceback" in log.read_text(), "the whole traceback is kept for whoever repairs the judge"


def ledger(folder: Path, **entry: str) -> None:
    entry = {
        "provider": "mine",
        "op": "toy_add",
        "issue": "https://example.org/7",
        "expires": "2999-01-01",
    } | entry
    lines = [f'{key} = "{value}"' for key, value in entry.items()]
    (folder / "known_failures.toml").write_text("\n".join(["[[known]]", *lines]))


def test_a_known_failure_does_not_fail_the_run(tmp_path: Path) -> None:
    plugin(tmp_path, WRONG_IN_2)
    ledger(tmp_path, case="*:2", statistic="bits")
    status, results, shown = run(tmp_path, "--plugin", "mine.py", "--junit", "j.xml")
    assert (status, results["verdict"], results["ledger"][0]["state"]) == (0, "pass", "known")
    assert "excuses 1 findings until 2999-01-01: https://example.org/7" in shown
    assert shown.splitlines()[-1].startswith("PASS: 3 cases, 1 known failure, in ")
    assert 'skipped message="known failure: https://example.org/7"' in (tmp_path / "j.xml").read_text()


LOUD = [
    ({"case": "*:1"}, "fixed: 1 cases ran and none failed; remove the entry"),
    ({"statistic": "crash"}, "fixed: 3 cases ran and none failed"),
    ({"case": "*:2", "expires": "2020-01-01"}, "expired on 2020-01-01: fix it, or renew the entry"),
]


@pytest.mark.parametrize(("entry", "words"), LOUD, ids=["fixed", "other-statistic", "expired"])
def test_an_unexpected_pass_and_an_expired_entry_fail_the_run(
    tmp_path: Path, entry: dict[str, str], words: str
) -> None:
    plugin(tmp_path, "pass" if "expires" not in entry else WRONG_IN_2)
    ledger(tmp_path, **entry)
    status, _, shown = run(tmp_path, "--plugin", "mine.py")
    assert status == 1
    assert words in shown


def test_an_entry_that_matches_nothing_is_a_note(tmp_path: Path) -> None:
    plugin(tmp_path, "pass")
    ledger(tmp_path, op="toy_scale")
    status, _, shown = run(tmp_path, "--plugin", "mine.py")
    assert (status, "nothing that ran matches it" in shown) == (0, True)
    ledger(tmp_path, provider="mien")
    status, _, shown = run(tmp_path, "--plugin", "mine.py")
    assert status == 0, "it may belong to a plug-in that is not loaded now"
    assert "no provider 'mien' is known here; known: right, absent, mine, toy_wrong, toy_missed\n" in shown


def declared(folder: Path, more: str, **kind: str) -> None:
    """A right plug-in whose declaration says more."""
    path = plugin(folder, "pass", **kind)
    provider = kind.get("provider", "mine")
    path.write_text(path.read_text().replace(f'provider="{provider}"', f'provider="{provider}", {more}'))


def skipped_in(junit: Path) -> dict[str, str]:
    """Name and reason of every skipped testcase."""
    cases = Xml.parse(junit).getroot().iter("testcase")
    return {c.get("name", ""): s.get("message", "") for c in cases if (s := c.find("skipped")) is not None}


def test_unsupported_cases_are_skipped_with_their_reason_in_every_report(tmp_path: Path) -> None:
    declared(tmp_path, 'supports=lambda c: "odd seed" if c.seed % 2 else None')
    status, results, shown = run(tmp_path, "--plugin", "mine.py", "--junit", "j.xml")
    assert (status, [r["case"][-1] for r in results["cases"]]) == (0, ["2"])
    assert results["skipped"] == {"mine/toy_add": "2 of 3 cases: odd seed"}
    assert skipped_in(tmp_path / "j.xml") == results["skipped"]
    assert "skipped mine/toy_add: 2 of 3 cases: odd seed" in shown


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ('supports=lambda c: "too old here"', "too old here"),
        ('devices=("cuda",)', "runs on cuda only, not on cpu"),
        ('requires=["nopackage"]', "needs the package nopackage, which is not installed"),
    ],
    ids=["supports", "device", "package"],
)
def test_an_operation_of_which_everything_is_refused_is_no_pass(
    tmp_path: Path, more: str, reason: str
) -> None:
    declared(tmp_path, more)
    plugin(tmp_path, "pass", "other.py", op="toy_scale")
    (tmp_path / "other.py").write_text((tmp_path / "other.py").read_text().replace("row + 1", "2 * row"))
    words = ("--plugin", "mine.py", "--plugin", "other.py", "--junit", "j.xml")
    status, results, shown = run(tmp_path, *words)
    assert {(r["op"], r["verdict"]) for r in results["cases"]} == {("toy_scale", "pass")}
    assert (status, results["verdict"]) == (2, "undecided")
    assert results["skipped"]["mine/toy_add"] == reason
    assert skipped_in(tmp_path / "j.xml")["mine/toy_add"] == reason
    assert f"skipped mine/toy_add: {reason}" in shown
    assert f"note: nothing ran of toy_add: mine/toy_add {reason}" in shown
    assert f"nothing ran of toy_add: mine/toy_add {reason}" in (tmp_path / "j.xml").read_text()


def test_an_operation_that_a_skipped_plugin_alone_has_is_no_pass(tmp_path: Path) -> None:
    declared(tmp_path, 'devices=("cuda",)', name="gpu.py", op="toy_scale", provider="gpu")
    plugin(tmp_path, "pass")
    status, results, _ = run(tmp_path, "--plugin", "gpu.py", "--plugin", "mine.py")
    assert (status, results["verdict"]) == (2, "undecided")
    why = "nothing ran of toy_scale: gpu runs on cuda only, not on cpu"
    assert results["notes"] == [why]
    (report,) = (tmp_path / "reports").iterdir()
    done = lockstep(tmp_path, "kernels", "--resume", str(report), "--json", "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert (done.returncode, again["skipped"]) == (2, results["skipped"])
    assert why in again["notes"]
    status, results, _ = run(tmp_path, "--plugin", "gpu.py", "--plugin", "mine.py", "--op", "toy_add")
    assert (status, results["verdict"]) == (0, "pass"), "of what was asked for, everything ran"


def test_what_supports_may_answer(tmp_path: Path) -> None:
    declared(tmp_path, "supports=lambda c: True")
    done = lockstep(tmp_path, *CPU, "--plugin", "mine.py")
    expected = (
        "lockstep: mine's supports() for toy_add must return None or a reason in words, not the bool True"
    )
    assert (done.returncode, done.stderr) == (3, expected + "\n")


def test_list_names_operations_providers_and_tiers(tmp_path: Path) -> None:
    plugin(tmp_path, "pass")
    done = lockstep(tmp_path, *CPU, "--list", "--plugin", "mine.py")
    assert done.returncode == 0
    for words in ("toy_scale", "3 quick, 5 full cases", "mine", "absent", "not here: provider 'absent'"):
        assert words in done.stdout
    assert not (tmp_path / "reports").exists()


def test_without_a_terminal_progress_is_a_plain_line_now_and_then(tmp_path: Path) -> None:
    plugin(tmp_path, "time.sleep(0.4)")
    code = "import toy_main, validation.cli as c; from validation.execution import progress as p; "
    code += "p.INTERVAL = 0.3; exit(c.main())"
    words = [*command()[:1], "-c", code, *CPU, "--plugin", "mine.py", "--tier", "full"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "of 5 cases, about " in done.stderr
    assert "\x1b" not in done.stderr + done.stdout


def test_the_junit_of_a_failing_run(tmp_path: Path) -> None:
    plugin(tmp_path, 'if a.seed == 2: raise ValueError("bell \\x07")')
    run(tmp_path, "--plugin", "mine.py", "--junit", "j.xml")
    root = Xml.parse(tmp_path / "j.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "1", "0")
    (failure,) = root.iter("failure")
    assert (failure.text or "").startswith("lockstep replay mine/toy_add:rows=4:plain:2")
    assert "bell" in (failure.get("message") or "")


def test_today_is_not_expired() -> None:
    from validation.execution import ledger as known

    entry = known.Entry("p", "o", "https://x/1", datetime.date(2026, 5, 1))
    (record,) = known.apply([entry], [], datetime.date(2026, 5, 1))
    assert record["state"] == "unmatched"
