"""One worker process seen from the parent: start, talk, ask where it hangs, kill with its children.

What this catches: the end of the process, its signal, and its last words. What it cannot catch: children
that left the worker's process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from validation.execution.child import READ, Child, rooted
from validation.execution.worker import Setup
from validation.trace import dumped_place, last_words

# Signals by which a process brings itself down; any other was sent from outside.
OWN = frozenset(
    getattr(signal, f"SIG{name}") for name in ("SEGV", "ABRT", "BUS", "FPE", "ILL", "TRAP", "SYS")
)
PROMPTNESS = 0.5  # seconds a hanging worker gets to say where it is


def environment(device: str) -> dict[str, str]:
    """The environment of a worker: everything that must be fixed before anything imports triton."""
    env = rooted(os.environ) | device_variables(device)
    if device == "cuda":
        env.pop("TRITON_INTERPRET", None)
    else:
        env |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return env


def device_variables(device: str) -> dict[str, str]:
    """Without a GPU, Triton kernels run in Triton's interpreter."""
    chosen = {"LOCKSTEP_DEVICE": device}
    return chosen if device == "cuda" else chosen | {"TRITON_INTERPRET": "1"}


class Worker(Child):
    """A started worker. ``served`` counts the cases it has answered; ``calling``: the provider's function
    runs. ``killed_from_outside``: it ended by a signal that no fault of its own raises (sent by a user, or by
    the system for lack of memory)."""

    def __init__(self, setup: Setup, log: Path) -> None:
        self.provider = setup.provider
        self.served = 0
        self.calling = False
        self.killed_from_outside = False
        self.log = log
        with log.open("ab") as stderr:
            self.log_start = log.stat().st_size
            super().__init__("validation.execution.worker", environment(setup.device), stderr)
        self.send(setup)

    def stderr(self) -> str:
        """What the worker wrote to stdout and stderr since ``mark`` (the end of it, if it is long)."""
        with self.log.open("rb") as log:
            log.seek(max(self.log_start, self.log.stat().st_size - READ))
            return log.read().decode(errors="replace")

    def mark(self) -> None:
        """Forget what was written so far: a new case begins."""
        self.log_start = self.log.stat().st_size

    def cause_of_death(self) -> str:
        """How a worker that closed its output ended, where, and its last words."""
        try:
            status = self.process.wait(PROMPTNESS)
            ending, self.killed_from_outside = _ending(status), status < 0 and -status not in OWN
        except subprocess.TimeoutExpired:
            ending = "it closed its pipe"
        self.kill()
        text = self.stderr()
        inside, words = dumped_place(text), last_words(text)
        message = f"the process died: {ending}"
        message += f" in {inside}" if inside else ""
        return message + (f"; its last line: {words}" if words else "")

    def cause_of_hang(self, seconds: float) -> str:
        """Where a worker that does not answer is, after which it is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)
        inside, until = "", time.monotonic() + PROMPTNESS
        while not inside and time.monotonic() < until:
            time.sleep(0.02)
            inside = dumped_place(self.stderr())
        words = last_words(self.stderr())
        self.kill()
        message = f"no result after {seconds:g} s, killed" + (f" in {inside}" if inside else "")
        return message + (f"; its last line: {words}" if words else "")


def _ending(status: int) -> str:
    if status >= 0:
        return f"it exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    known = {
        "SIGSEGV": "segmentation fault",
        "SIGABRT": "abort",
        "SIGKILL": "killed, often for lack of memory",
    }
    return f"{name} ({known[name]})" if name in known else name
