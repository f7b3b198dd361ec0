"""The process that a tool watches: cases of one provider one after another, or one planted fault.

    python -m validation.sanitize.subject JOB.json

Its answers go to a file, a line each, because the tool and the kernels print where they like. What this
catches: a case that raises, and one after which the device is of no more use (the process ends, and another
goes on). What it cannot catch: wrong results; the judge does, on the same cases.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation.report.plain import dump_line, from_plain

SPOILED = 17  # exit status of a process whose device is of no more use
PLANTED = "kernels_under_test.planted"  # by name only, so that arrows point one way


@dataclass
class Job:
    """What one process does; ``planted``: the kernel to launch in place of cases."""

    answers: str
    provider: str = ""
    plugins: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    planted: str = ""
    device: str = "cuda"
    parent: int = 0  # the process without which this one has no reason to run


@dataclass
class Answer:
    """A case that was run: the Triton kernels that it launched, or what it raised."""

    case: str
    kernels: list[str] = field(default_factory=list)
    error: str = ""


def main(path: str) -> int:
    """Do a job."""
    job = from_plain(Job, json.loads(Path(path).read_text("utf-8")))
    threading.Thread(target=_end_with, args=[job.parent], daemon=True).start()
    with Path(job.answers).open("a", encoding="utf-8", buffering=1) as answers:
        if job.planted:
            module: Any = importlib.import_module(PLANTED)
            module.plant(job.planted)
            answers.write(dump_line(Answer(job.planted, [job.planted])) + "\n")
            return 0
        _load(job)
        for line in job.cases:
            answer = _run(line, job)
            answers.write(dump_line(answer) + "\n")
            if answer.error and _spoiled(job.device):
                return SPOILED
    return 0


def _end_with(parent: int) -> None:
    """End when the process that asked is gone; the tool, which stands between, does not."""
    while Path(f"/proc/{parent}").exists():
        time.sleep(1)
    os._exit(SPOILED)


def _load(job: Job) -> None:
    import torch

    from validation.providers import load_plugin, load_provider

    torch.set_num_threads(2)  # only to draw the inputs, in several processes at a time
    for plugin in job.plugins:
        load_plugin(Path(plugin), probe=False)
    load_provider(job.provider, probe=False)


def _run(line: str, job: Job) -> Answer:
    """One case, from allocation to the end of its kernels."""
    from validation.contracts.contract import Case
    from validation.dispatch.launches import recorded
    from validation.providers import implementation
    from validation.sanitize.bare import arguments
    from validation.trace import describe, place

    answer = Answer(line)
    try:
        case = Case.parse(line)
        function = implementation(case.op, job.provider).function
        given = arguments(case, job.device)
        _finish(job.device)
        with recorded() as answer.kernels:
            function(given)
        _finish(job.device)
    except Exception as error:  # one case must not cost the others
        answer.error = f"raised {describe(error)} (in {place(error)})"
    return answer


def _finish(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _spoiled(device: str) -> bool:
    try:
        _finish(device)
    except Exception:
        return True
    return False


def read_answers(path: Path) -> list[Answer]:
    """The answers that were written whole."""
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    return [from_plain(Answer, json.loads(line)) for line in lines if line.endswith("\n")]


if __name__ == "__main__":
    # Not this module's own main: classes of __main__ are not those that others import.
    sys.exit(importlib.import_module("validation.sanitize.subject").main(sys.argv[1]))
