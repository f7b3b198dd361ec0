"""Arms files and runs of ``lockstep evals`` small enough for tests: the tiny model, few questions, short
replies."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from evals.store.read import load_rows
from evals.store.row import Row
from validation import cli
from validation.report.document import load
from validation.report.schema import Document

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ARMS = """
factor = "{factor}"
{top}
[common]
model = "{model}"
engine = "transformers"
concurrency = 4
[common.engine_args]
dtype = "float32"
rows = 4
threads = 1
lengths = [{lengths}]
[arms.reference]
{reference}
[arms.candidate]
{candidate}
[tasks.aime25]
repeats = 2
max_tokens = {tokens}
margin = 5.0
margin_reason = "a small set of the tests"
[forced]
tokens = {forced}
length = 10
replicates = 2
top = 5
margin = {margin}
margin_reason = "a small number of the tests"
"""
SERVER = """
factor = "{factor}"
[common]
model = "toy"
engine = "vllm"
concurrency = 2
request_timeout = 20.0
[common.server]
command = ["{{python}}", "{script}", "--port", "{{port}}", "--device=cpu",
  "--tensor-parallel-size=1", {words}]
start_timeout = 20.0
stop_timeout = 3.0
[common.environment]
{common}
[arms.reference]
{reference}
[arms.candidate]
{candidate}
[tasks.aime25]
repeats = 2
max_tokens = 12
margin = 5.0
margin_reason = "a small set of the tests"
[forced]
tokens = 40
length = 10
replicates = 2
top = 5
margin = 0.005
margin_reason = "a small number of the tests"
"""
# The fake server with a context in which prompts find room. MARK: a file; while it is missing the server
# dies after CRASH requests, and makes it. Options may come from TOY, which only one arm has.
WRAPPER = """
import os, sys
sys.path.insert(0, {engines!r})
import fake_server
fake_server.LIMIT = 4096
sys.argv.remove("--port")
sys.argv += os.environ.get("TOY", "").split()
mark = os.environ.get("MARK", "")
if mark and not os.path.exists(mark):
    sys.argv.append("crash_after=" + os.environ["CRASH"])
    open(mark, "w").close()
fake_server.main()
"""


def arms_file(
    folder: Path,
    model: Path,
    factor: str = "none",
    reference: str = "",
    candidate: str = "",
    tokens: int = 12,
    forced: int = 60,
    lengths: str = "1024",
    top: str = "",
    margin: float = 0.005,
) -> Path:
    """Two in-process arms."""
    path = folder / "small.toml"
    path.write_text(
        ARMS.format(
            model=model, factor=factor, reference=reference, candidate=candidate, tokens=tokens,
            forced=forced, lengths=lengths, top=top, margin=margin,
        )
    )  # fmt: skip
    return path


def server_arms(
    folder: Path,
    words: str = "",
    factor: str = "none",
    common: str = "",
    reference: str = "",
    candidate: str = "",
) -> Path:
    """Two arms with the fake server."""
    script = folder / "server.py"
    script.write_text(WRAPPER.format(engines=str(HERE / "engines")))
    path = folder / "servers.toml"
    path.write_text(
        SERVER.format(
            script=script, words=words, factor=factor, common=common, reference=reference, candidate=candidate
        )
    )
    return path


def lockstep(*words: object) -> int:
    """``lockstep evals ...`` in this process."""
    return cli.main(["evals", *map(str, words)])


def fresh(arms: Path, reports: Path, *more: object) -> tuple[int, Path]:
    """A new run: its exit status and its folder."""
    status = lockstep("--arms", arms, "--limit", 2, "--report-dir", reports, *more)
    (folder,) = reports.iterdir()
    return status, folder


def command_line(*words: object) -> list[str]:
    """The same for a process of its own."""
    return [sys.executable, "-m", "validation.cli", "evals", *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def document(folder: Path) -> Document:
    return load(folder / "results.json")


def rows(folder: Path) -> list[Row]:
    """All rows of a run's store, attempts and doubles included."""
    return load_rows(folder / "samples", attempts=True)


def keys(found: list[Row], arm: str) -> Mapping[tuple[int, str], Row]:
    """(replicate, key) -> row of one arm; each must be there once."""
    own = [row for row in found if row.arm == arm]
    by_key = {(row.replicate, row.key): row for row in own}
    assert len(by_key) == len(own), "a sample was stored twice"
    return by_key
