"""The process in which arms are timed, one after another: an illegal access ends only its own arm's figures.

    for name, side, arm_or_error in timed(subject, setting, bandwidth, tasks): ...

Started by ``timed`` with ``python -m validation.timing.worker``, once, and again after each arm that spoiled
the device. What this catches: an arm that raises, one that spoils the CUDA context, one that ends its
process, one that hangs. What it cannot catch: an arm that leaves the device slower for others.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from validation.timing.subject import Setting

LIMIT = 180.0  # seconds for one arm: compiling, drawing gigabytes, timing
MARK = "lockstep-time: "  # kernels and libraries print too

Task = tuple[str, str]  # name of the pair, side
Found = tuple[str, str, dict[str, Any] | None, str]  # and the arm's figures, or what went wrong


def timed(
    subject: str, setting: Setting, bandwidth: float, tasks: Sequence[Task], limit: float = LIMIT
) -> Iterator[Found]:
    """Figures of every task, in order; ``subject`` is the module whose ``pairs(setting)`` has the arms."""
    left = list(tasks)
    while left:
        ask = {"subject": subject, "setting": asdict(setting), "bandwidth": bandwidth, "tasks": left}
        words = [sys.executable, "-m", "validation.timing.worker", json.dumps(ask)]
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"}
        ) as run:
            for answer in _answers(run, limit):
                yield _found(left.pop(0), answer)
            ended = _ended(run)
        if left and ended:
            yield (*left.pop(0), None, ended)


def _answers(run: subprocess.Popen[bytes], limit: float) -> Iterator[dict[str, Any]]:
    """What the worker says, until it ends or is silent for longer than ``limit``."""
    assert run.stdout is not None
    with selectors.DefaultSelector() as ready:
        ready.register(run.stdout, selectors.EVENT_READ)
        rest = b""
        while ready.select(limit):
            got = os.read(run.stdout.fileno(), 1 << 16)
            *lines, rest = (rest + got).split(b"\n")
            for line in lines:
                if line.startswith(MARK.encode()):
                    yield json.loads(line[len(MARK) :])
            if not got:
                return
        run.kill()


def _found(task: Task, answer: dict[str, Any]) -> Found:
    return (*task, answer.get("arm"), answer.get("error", ""))


def _ended(run: subprocess.Popen[bytes]) -> str:
    """Why a worker that did not answer for its next task ended; empty if it gave up on purpose."""
    status = run.wait()
    if status == SPOILED:
        return ""
    return "no answer within the time limit" if status == -9 else f"its process ended with status {status}"


SPOILED = 17  # exit status of a worker whose device is of no more use


def main(request: str) -> int:
    """Time the tasks of a request and say each result in one line."""
    from validation.timing import measure

    ask = json.loads(request)
    module: Any = importlib.import_module(ask["subject"])
    pairs = {pair.name: pair for pair in module.pairs(Setting(**ask["setting"]))}
    for name, side in ask["tasks"]:
        answer: dict[str, Any] = {}
        try:
            answer["arm"] = asdict(measure.time_arm(getattr(pairs[name], side), ask["bandwidth"]))
        except Exception as error:  # one arm's failure must not cost the others' figures
            text = " ".join(str(error).split())[:200]
            answer["error"] = f"{type(error).__name__}: {text}"
        print(MARK + json.dumps(answer), flush=True)
        if "error" in answer and _spoiled():
            return SPOILED
    return 0


def _spoiled() -> bool:
    import torch

    if torch.cuda.is_available():
        with contextlib.suppress(Exception):
            torch.cuda.synchronize()
            return False
        return True
    return False


if __name__ == "__main__":
    # Not this module's own main: its constants are those that others import.
    sys.exit(importlib.import_module("validation.timing.worker").main(sys.argv[1]))
