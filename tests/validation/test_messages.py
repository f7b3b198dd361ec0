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
    ((*CPU, "--case-timeout", "0"), "argument --case-timeout: '0' is no number of seconds above 0"),
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
    (("replay", "right/toy_add:rows=4,rows=4:plain:1"), "does not have the sizes of toy_add"),
    (("replay", "right/toy_add:rows=0:plain:1"), "rows of toy_add must be from 1 to 40"),
    (("replay", "right/toy_add:rows=-1:plain:1"), "rows of toy_add must be from 1 to 40"),
    (("replay", "right/toy_add:rows=1000000000:plain:1"), "rows of toy_add must be from 1 to 40"),
    (("replay", "right/toy_add::plain:1"), "does not have the sizes of toy_add, which are rows=N"),
    (("replay",), "the following arguments are required: CASE"),
    ((*CPU, "--list", "--op", "zz"), "unknown operation 'zz'; known: toy_add, toy_scale"),
    ((*CPU, "--list", "--provider", "zz"), "unknown provider 'zz'; known: right, absent"),
    ((*CPU, "--dispatch", "--op", "zz"), "unknown operation 'zz'; known: toy_add, toy_scale"),
    ((*CPU, "--dispatch"), "no selected provider declares a dispatch table"),
    (("kernels", "--time", "--rows", "0"), "--rows 0: a decode step of the subject has 1 to 64 rows"),
    (("kernels", "--time", "--rows", "1", "65"), "--rows 65: a decode step of the subject has 1 to 64 rows"),
    (("kernels", "--time", "--ranks", "3"), "argument --ranks: invalid choice: 3 (choose from 8, 16)"),
    (("kernels", "--time", "--context", "0"), "--context 0: a request has at least 1 token"),
    ((*CPU, "--time"), "--time needs a GPU; leave out --device cpu"),
    (
        ("kernels", "--time", "--tier", "full"),
        "--time does not go with --tier; it takes --op, --device, --json, --ranks, --rows, --context",
    ),
    (("kernels", "--list", "--time"), "--list does not go with --time; it takes --op, --provider, --plugin"),
    (("kernels", "--list", "--json", "r.json"), "--list does not go with --json"),
    (("kernels", "--dispatch", "--seed", "0"), "--dispatch does not go with --seed"),
    (("kernels", "--rows", "4"), "--rows counts only with --time"),
    (("kernels", "--resume", "x", "--report-dir", "y"), "the earlier run; leave out --report-dir"),
    (("calibrate", "--provider", "toy_wrong"), "'toy_wrong' is a negative control: it is wrong on purpose"),
    (("calibrate", "--cases", "10", "--op", "zz"), "unknown operation 'zz'; known: toy_add, toy_scale"),
    (("calibrate", "--cases", "0"), "--cases must be at least 1, not 0"),
    (("qualify", "--op", "zz"), "unknown operation 'zz'; known: toy_add, toy_scale"),
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
    (source(f'"toy_add", provider="{"m" * 300}"'), "is no provider name: at most 64 letters, digits and _"),
    (source('"toy_add", provider="-m"'), "'-m' is no provider name"),
    (source('"toy_add", provider=7'), "7 is no provider name"),
    (source('7, provider="m"'), "m implements the int 7; expected the name of an operation"),
    (source('"toy_add", provider="m", profile=("stock",)'), "declares the unknown profile '('stock',)'"),
    (
        source('"toy_add", provider="m", requires="triton"'),
        'm\'s toy_add: requires= must be a tuple of names of packages, such as ("triton",), '
        "not the str 'triton'",
    ),
    (
        source('"toy_add", provider="m", devices="cpu"'),
        'm\'s toy_add: devices= must be a tuple of devices, such as ("cpu", "cuda"), not the str \'cpu\'',
    ),
    (source('"toy_add", provider="m", devices=()'), "m's toy_add: devices= is empty; known: cpu, cuda"),
    (
        source('"toy_add", provider="m", kernels=("a", "b")'),
        "m's toy_add: kernels= must be a function of the case that returns the names of the kernels, "
        "not the tuple ('a', 'b')",
    ),
    (
        source('"toy_add", provider="m", table="x"'),
        "m's toy_add: table= must be a tuple of Route (from validation.dispatch.table), not the str 'x'",
    ),
    (source('"toy_add", provider="m", supports=True'), "m's toy_add: supports= must be a function of the"),
    (source('"toy_add", provider="m", deterministic="no"'), "deterministic= must be True or False, not the"),
    (HEAD + 'implements("toy_add", provider="m")(7)', "m's toy_add must be a function, not the int 7"),
    ("import sys; sys.exit(0)", "plug-in mine.py does not import: line 1: SystemExit: 0"),
    ("import os; os._exit(0)", "plug-in mine.py does not import: line 1: SystemExit: os._exit(0) was called"),
    ("import os; os.abort()", "plug-in mine.py ends the interpreter while it is imported: SIGABRT"),
    ("import ctypes; ctypes.string_at(0)", "mine.py ends the interpreter while it is imported: SIGSEGV"),
    (
        "import ctypes; ctypes.CDLL(None)._exit(4)",
        "mine.py ends the interpreter while it is imported: it exits with status 4",
    ),
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
    (
        '[[known]]\nprovider = "p"\nop = "o"\nissue = "https://x/1"\nexpires = 2099-01-01',
        "entry 1 of the ledger l.toml: unknown op 'o'; known: toy_add, toy_scale",
    ),
    (
        '[[known]]\nprovider = "p"\nop = "toy_add"\nissue = "https://x/1"\nexpires = 2099-01-01\n'
        'statistic = "max_excess"',
        "entry 1 of the ledger l.toml: unknown statistic 'max_excess'; known: nonfinite, excess, flips",
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
    done = shell(tmp_path, line)
    assert done.stdout.strip() == "0", "the verdict is known, whoever reads it"
    assert (tmp_path / "r.json").exists()


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash; nothing in it may end in a traceback."""
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment(), capture_output=True, text=True, timeout=60
    )
    for words in ("Traceback", "Exception ignored", "mistake in Lockstep"):
        assert words not in done.stderr + done.stdout
    return done


RUN = " ".join(command("kernels", "--device", "cpu"))
STREAMS = [
    (f"{RUN} >&-; echo $? >&2", "0"),
    (f"{RUN} >&- <&-; echo $? >&2", "0"),
    (f"{RUN} >&- 2>&-; echo $? >status; cat status >&2", "0"),
    (f"{RUN} --seed 5 | head -1 >/dev/null; echo ${{PIPESTATUS[0]}} >&2", "0"),
    (f"{RUN} --plugin bad.py 2>&1 | true; echo ${{PIPESTATUS[0]}} >&2", "1"),
    (f"{RUN} --plugin bad.py >/dev/null 2>/dev/full; echo $? >&2", "1"),
]


@pytest.mark.parametrize(("line", "status"), STREAMS, ids=["out", "in", "all", "head", "both", "full"])
def test_streams_that_are_closed_cost_no_result(tmp_path: Path, line: str, status: str) -> None:
    plugin(tmp_path, "a.out[:] = a.rows\nreturn", "bad.py")
    done = shell(tmp_path, line)
    assert done.stderr.splitlines()[-1] == status
    (report,) = (tmp_path / "reports").iterdir()
    assert (report / "report.txt").read_text().splitlines()[-1][:4] == ("PASS" if status == "0" else "FAIL")
    assert (report / "results.json").exists()
    assert all(line.startswith("{") for line in (report / "cases.jsonl").read_text().splitlines())


def test_the_other_commands_survive_their_reader(tmp_path: Path) -> None:
    for words in ("kernels --list --device cpu", "--help", "kernels --help"):
        line = f"{' '.join(command(*words.split()))} | true; echo ${{PIPESTATUS[0]}} >&2"
        assert shell(tmp_path, line).stderr in ("141\n", "0\n")
        assert shell(tmp_path, f"{' '.join(command(*words.split()))} >&-; echo $? >&2").stderr == "0\n"


NO_ROOM = "no space left on device"


def test_a_full_disk_behind_stdout_is_one_line_and_the_report_is_kept(tmp_path: Path) -> None:
    done = shell(tmp_path, f"{RUN} >/dev/full; echo $? >&2")
    said, status = done.stderr.splitlines()
    assert status == "3"
    (report,) = (tmp_path / "reports").iterdir()
    assert said.startswith(
        f"lockstep: cannot write the report to stdout: {NO_ROOM}; put that right and go on"
    )
    assert (report / "report.txt").exists()
    done = shell(
        tmp_path, f"{' '.join(command('kernels', '--list', '--device', 'cpu'))} >/dev/full; echo $? >&2"
    )
    assert done.stderr == f"lockstep: {NO_ROOM}; make room and run again\n3\n"


@pytest.mark.parametrize("option", ["--json", "--junit"])
def test_a_report_that_does_not_fit_is_one_line_and_the_rest_is_kept(tmp_path: Path, option: str) -> None:
    done = shell(tmp_path, f"{RUN} {option} /dev/full; echo $? >&2")
    said, status = done.stderr.splitlines()
    assert (status, done.stdout.splitlines()[-1][:13]) == ("3", "PASS: 6 cases")
    assert said.startswith(
        f"lockstep: cannot write /dev/full: {NO_ROOM}; put that right and go on with: lockstep"
    )
    assert len(list((tmp_path / "reports").glob("*/results.json"))) == 1


def test_a_disk_without_any_room_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = shell(tmp_path, f"(ulimit -f 0; {RUN}; echo $? >&2)")
    said, status = done.stderr.splitlines()
    assert status == "3"
    assert said.startswith("lockstep: cannot write reports/")
    assert said.endswith("/cases.jsonl: file too large")

    def full(*_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")  # importing torch asks

    in_process(monkeypatch, tmp_path)
    monkeypatch.setattr("validation.run.choose_device", full)
    monkeypatch.setattr("validation.streams.silence", lambda stream: None)
    assert cli.main(CPU) == 3
    said = "lockstep: no usable temporary directory found in ['/tmp']; make room and run again\n"
    assert capsys.readouterr().err == said


def test_a_disk_that_fills_up_keeps_what_was_computed(tmp_path: Path) -> None:
    """The journal may grow to 2 KiB: the header and two or three cases."""
    done = shell(tmp_path, f"ulimit -f 2; {RUN} --tier full; echo $? >&2")
    said, status = done.stderr.splitlines()
    (report,) = (tmp_path / "reports").iterdir()
    assert status == "3"
    assert said.startswith(f"lockstep: cannot write reports/{report.name}/cases.jsonl: file too large; ")
    assert said.endswith(f"go on with: lockstep kernels --resume reports/{report.name}")
    *lines, end = (report / "cases.jsonl").read_text().split("\n")
    assert (end, len(lines) >= 2) == ("", True), "no line is cut"
    assert done.stdout.splitlines()[-1].startswith("ERROR: "), "what was done is shown"
    again = lockstep(tmp_path, "kernels", "--resume", f"reports/{report.name}")
    assert again.returncode == 0
    assert f"note: resumed: {len(lines) - 1} cases are from the earlier run" in again.stdout
