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
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from validation.execution.child import Child, die_with_parent, private_streams, say
from validation.timing.subject import Setting

LIMIT = 180.0  # seconds for one arm: compiling, drawing gigabytes, timing

Task = tuple[str, str]  # name of the pair, side
Found = tuple[str, str, dict[str, Any] | None, str]  # and the arm's figures, or what went wrong


def timed(
    subject: str, setting: Setting, bandwidth: float, tasks: Sequence[Task], limit: float = LIMIT
) -> Iterator[Found]:
    """Figures of every task, in order; ``subject`` is the module whose ``pairs(setting)`` has the arms."""
    left = list(tasks)
    while left:
        child = Child("validation.timing.worker")
        try:
            child.send(
                {"subject": subject, "setting": asdict(setting), "bandwidth": bandwidth, "tasks": left}
            )
            while left and (answer := child.next(limit)):
                yield (*left.pop(0), answer.get("arm"), answer.get("error", ""))
            if left and (status := child.process.wait()) != SPOILED:
                yield (*left.pop(0), None, f"its process ended with status {status}")
        except TimeoutError:
            yield (*left.pop(0), None, "no answer within the time limit")
        finally:
            child.kill()


SPOILED = 17  # exit status of a worker whose device is of no more use


def main() -> int:
    """Time the tasks of the request and say each result in one line."""
    from validation.timing import measure

    requests, replies = private_streams()
    die_with_parent()
    ask = json.loads(requests.readline())
    module: Any = importlib.import_module(ask["subject"])
    pairs = {pair.name: pair for pair in module.pairs(Setting(**ask["setting"]))}
    for name, side in ask["tasks"]:
        answer: dict[str, Any] = {}
        try:
            answer["arm"] = asdict(measure.time_arm(getattr(pairs[name], side), ask["bandwidth"]))
        except Exception as error:  # one arm's failure must not cost the others' figures
            text = " ".join(str(error).split())[:200]
            answer["error"] = f"{type(error).__name__}: {text}"
        say(replies, answer)
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
    sys.exit(importlib.import_module("validation.timing.worker").main())
