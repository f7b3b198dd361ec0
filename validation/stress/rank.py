"""The process of one rank: orders in, answers out, one JSON line each.

Started with ``python -m validation.stress.rank SETUP``. It ends with its parent, and when its orders end.

What this catches: an exception of its own (answered as ``failed``). What it cannot catch: a kernel that
brings it down; the parent sees that.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import IO, Any

from validation.errors import UserError
from validation.execution.child import die_with_parent, private_streams, say
from validation.report.plain import from_plain
from validation.stress.job import Answer, Order, Setup
from validation.trace import describe

MEETING = 60.0  # seconds for all ranks to meet on GPUs


def main(request: str) -> None:
    """Serve orders until the pipe closes."""
    orders, replies = private_streams()
    die_with_parent()
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the parent ends this process
    setup = from_plain(Setup, json.loads(request))
    lock = threading.Lock()

    def answer(message: Answer) -> None:
        with lock, contextlib.suppress(BrokenPipeError):
            say(replies, message)

    try:
        engine = _engine(setup)
        answer(Answer("ready", setup.rank))
        _serve(engine, setup.rank, orders, answer)
    except UserError as error:
        answer(Answer("failed", setup.rank, message=str(error), refused=True))
    except Exception as error:
        traceback.print_exc()
        answer(Answer("failed", setup.rank, message=describe(error)))
    finally:
        replies.flush()
        os._exit(0)  # a device that hangs must not keep the process


def _engine(setup: Setup) -> Any:
    import torch

    torch.set_num_threads(1)
    if setup.device == "cuda" and setup.ranks > 1:
        import torch.distributed as dist

        if setup.rank >= torch.cuda.device_count():
            found = torch.cuda.device_count()
            raise UserError(f"--ranks {setup.ranks}: there are {found} GPUs here; a rank needs its own")
        torch.cuda.set_device(setup.rank)
        dist.init_process_group(
            "nccl", init_method=f"file://{setup.store}", rank=setup.rank, world_size=setup.ranks,
            timeout=datetime.timedelta(seconds=MEETING), device_id=torch.device("cuda", setup.rank),
        )  # fmt: skip
    return importlib.import_module(setup.engine).Engine(setup)


def _serve(engine: Any, rank: int, orders: IO[str], answer: Any) -> None:
    last = [0.0]

    def beat(steps: int) -> None:
        if time.monotonic() - last[0] > 0.2:
            last[0] = time.monotonic()
            answer(Answer("beat", rank, steps))

    for line in orders:
        order = from_plain(Order, json.loads(line))
        if order.what == "end":
            return
        answer(engine.obey(order, beat))


if __name__ == "__main__":
    # Not this module's own main: classes of __main__ are not those that others import.
    importlib.import_module("validation.stress.rank").main(sys.argv[1])
