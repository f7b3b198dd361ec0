"""Every mistake a user can make: one line that names the remedy, exit status 3, no traceback, no half run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from toy import command, environment, in_process, lockstep, plugin

from validation import cli

OneLine = Callable[[tuple[str, ...]], str]

CPU = ("kernels", "--device", "cpu")
BAD_WORDS = [
    ((*CPU, "--op", "nope"), "unknown operation 'nope'; known: toy_add, toy_scale"),
    ((*CPU, "--provider", "nope"), "unknown provider 'nope'; known: right, absent"),
    ((*CPU, "--provider", "absent"), "provider 'absent' is not part of this installation (toy_absent)"),
    ((*CPU, "--provider", "toy_wrong"), "'toy_wrong' is a negative control: it runs by itself"),
    ((*CPU, "--tier", "huge"), "argument --tier: invalid choice: 'huge' (choose from 'quick', 'full')"),
    (("kernels", "--device", "tpu"), "argument --device: invalid choice: 'tpu'"),
    ((*CPU, "--seed", "x"), "argument --seed: invalid int value: 'x'"),
    ((*CPU, "--case-timeout", "0"), "argument --case-timeout: invalid seconds value: '0'"),
    ((*CPU, "--frobnicate"), "unrecognized arguments: --frobnicate"),
    (("nope",), "invalid choice: 'nope' (choose from"),
    ((*CPU, "--json", "no/where/r.json"), "cannot write --json no/where/r.json: no such file or directory"),
    ((*CPU, "--junit", "."), "cannot write --junit .: is a directory"),
    ((*CPU, "--report-dir", "file/reports"), "cannot write --report-dir file/reports: not a directory"),
    ((*CPU, "--report-dir", "file"), "cannot write --report-dir file: not a"),
    (
        ("kernels", "--resume", "nowhere"),
        "cannot resume nowhere: nowhere/cases.jsonl: no such file or directory",
    ),
    (
        ("kernels", "--resume", "nowhere", "--op", "toy_add"),
        "--resume takes the selection of the earlier run",
    ),
    ((*CPU, "--ledger", "nowhere.toml"), "cannot read the ledger nowhere.toml: no such file or directory"),
    (("replay", "toy_add:rows=4:plain:1"), "is not a case to replay; it reads PROVIDER/OP:name=value"),
    (("replay", "right/toy_add"), "'toy_add' is not a case; a case reads OP:name=value"),
    (("replay", "right/toy_add:rows=x:plain:1"), "is not a case; a case reads"),
    (("replay", "right/toy_add:rows=4:plain:1@tpu"), "is not a case to replay"),
    (("replay", "right/nope:rows=4:plain:1"), "unknown operation 'nope'"),
    (("replay", "right/toy_add:rows=4:odd:1"), "toy_add has no regime 'odd'; known: plain"),
    (("replay", "nope/toy_add:rows=4:plain:1"), "unknown provider 'nope'"),
    (("replay", "right/toy_add:columns=4:plain:1"), "does not have the sizes of toy_add, which are rows=N"),
    (("replay",), "the following arguments are required: CASE"),
]


@pytest.fixture
def one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> OneLine:
    """Runs a command that must end with status 3, one line on stderr, and no report; returns the line."""
    in_process(monkeypatch, tmp_path)
    (tmp_path / "file").touch()

    def run(words: tuple[str, ...]) -> str:
        status = cli.main(words)
        out, err = capsys.readouterr()
        assert (status, out, err.count("\n")) == (3, "", 1), out + err
        assert not (tmp_path / "reports").exists()
        return err.removeprefix("lockstep: ")

    return run


@pytest.mark.parametrize(("words", "said"), BAD_WORDS, ids=[" ".join(w) for w, _ in BAD_WORDS])
def test_bad_command_line(one_line: OneLine, words: tuple[str, ...], said: str) -> None:
    assert said in one_line(words)


HEAD = "from validation.providers import implements\n"


def source(decorator: str, signature: str = "f(a)") -> str:
    return f"{HEAD}@implements({decorator})\ndef {signature}: ...\n"


BAD_PLUGINS = [
    ("1 / 0", "plug-in mine.py does not import: line 1: ZeroDivisionError: division by zero"),
    ("\ndef f(:", "plug-in mine.py does not import: line 2: SyntaxError"),
    ("import nopackage", "plug-in mine.py needs the module 'nopackage', which is not installed (line 1)"),
    ("raise SystemExit", "plug-in mine.py does not import: line 1: SystemExit"),
    ("x = 1", "plug-in mine.py registers nothing; decorate a function with @implements("),
    (
        source('"nope", provider="m"'),
        "mine.py does not import: line 2: unknown operation 'nope'; known: toy_add",
    ),
    (
        source('"toy_add", provider="m", profile="odd"'),
        "m's toy_add declares the unknown profile 'odd'; known: stock",
    ),
    (source('"toy_add", provider="m", devices=("tpu",)'), "names the unknown device 'tpu'; known: cpu, cuda"),
    (source('"toy_add", provider="m", tolerance=1'), "TypeError: implements() got an unexpected keyword"),
    (source('"toy_add", provider="m/n"'), "'m/n' is no provider name"),
    (source('"toy_add", provider="m"', "f(a, b)"), "m's toy_add must take one argument, a ToyArguments"),
    (source('"toy_add", provider="m"', "f()"), "found f()"),
    (source('"toy_add", provider="right"'), "uses the built-in provider name 'right'; choose another"),
    (
        source('"toy_add", provider="m"') + source('"toy_add", provider="m"'),
        "provider 'm' implements 'toy_add' twice: in mine.py line 2 and in mine.py line 5",
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD_PLUGINS, ids=[said[-40:] for _, said in BAD_PLUGINS])
def test_bad_plugin(one_line: OneLine, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    assert said in one_line((*CPU, "--plugin", "mine.py"))


def test_missing_plugin_and_no_python_file(one_line: OneLine, tmp_path: Path) -> None:
    assert "plug-in mine.py does not exist" in one_line((*CPU, "--plugin", "mine.py"))
    (tmp_path / "mine.txt").write_text("x = 1")
    assert "its name must end in .py" in one_line((*CPU, "--plugin", "mine.txt"))


def test_two_plugins_with_the_same_provider_and_operation(one_line: OneLine, tmp_path: Path) -> None:
    words = [f"--plugin={plugin(tmp_path, 'pass', name).name}" for name in ("a.py", "b.py")]
    said = one_line((*CPU, *words))
    assert "provider 'mine' implements 'toy_add' twice: in a.py line 4 and in b.py line 4" in said


def test_nothing_to_run_says_why(one_line: OneLine, tmp_path: Path) -> None:
    plugin(tmp_path, "pass")
    said = one_line((*CPU, "--plugin", "mine.py", "--op", "toy_scale"))
    assert said == "nothing to run: no selected provider implements toy_scale; mine implements toy_add\n"
    only_gpu = source('"toy_add", provider="gpu", devices=("cuda",)')
    (tmp_path / "gpu.py").write_text(only_gpu)
    said = one_line((*CPU, "--plugin", "gpu.py"))
    assert said == "nothing to run: runs on cuda only, not on cpu\n"
    said = one_line((*CPU, "--plugin", "gpu.py", "--provider", "gpu"))
    assert said == "provider 'gpu' runs on cuda only, not on cpu\n"


def test_a_refusal_that_raises_is_named(one_line: OneLine, tmp_path: Path) -> None:
    text = source('"toy_add", provider="m", supports=lambda case: case.nope')
    (tmp_path / "mine.py").write_text(text)
    said = one_line((*CPU, "--plugin", "mine.py"))
    assert said.startswith("m's supports() for toy_add raised AttributeError")


BAD_LEDGERS = [
    ("[[known]", "the ledger l.toml is no TOML"),
    ("[other]\nx = 1", "may hold [[known]] tables only; found 'other'"),
    (
        '[[known]]\nprovider = "p"\nop = "o"\nexpires = 2099-01-01',
        "entry 1 of the ledger l.toml has no 'issue'",
    ),
    (
        '[[known]]\nprovider = "p"\nop = "o"\nissue = "https://x/1"',
        "has no 'expires'; mandatory: provider, op",
    ),
    (
        '[[known]]\nprovider = "p"\nop = "o"\nissue = "x"\nexpires = 2099-01-01',
        "'issue' must be a link, not 'x'",
    ),
    (
        '[[known]]\nprovider = "p"\nop = "o"\nissue = "https://x/1"\nexpires = "soon"',
        "'expires' must be a date like 2027-03-31, not 'soon'",
    ),
    (
        '[[known]]\nprovider = "p"\nop = "o"\nissue = "https://x/1"\nexpires = 2099-01-01\nseed = 1',
        "has an unknown key 'seed'; known: provider, op, issue, expires, case, statistic",
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD_LEDGERS, ids=[said[-30:] for _, said in BAD_LEDGERS])
def test_bad_ledger(one_line: OneLine, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "l.toml").write_text(text)
    assert said in one_line((*CPU, "--ledger", "l.toml"))


def test_the_same_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = lockstep(tmp_path, *CPU, "--op", "nope")
    expected = "lockstep: unknown operation 'nope'; known: toy_add, toy_scale\n"
    assert (done.returncode, done.stdout, done.stderr) == (3, "", expected)


def test_no_command_prints_help_and_is_an_error(tmp_path: Path) -> None:
    done = lockstep(tmp_path)
    assert done.returncode == 3
    assert "usage: lockstep" in done.stderr


def test_help_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    for words in (("--help",), ("kernels", "--help"), ("replay", "--help")):
        done = subprocess.run(command(*words), env=env, capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error_of_ours(tmp_path: Path) -> None:
    line = (
        " ".join(command("kernels", "--device", "cpu", "--json", "r.json")) + " | true; echo ${PIPESTATUS[0]}"
    )
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() in ("0", "141")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert (tmp_path / "r.json").exists()
