"""The process in which cases run: one provider, one case at a time, JSON lines over pipes.

What this catches: an exception of the provider's function (a finding), an exception of Lockstep itself (an
error of the case), noise on stdout, an illegal access that spoils the CUDA context (the worker says that
it must be replaced). A crash or a hang ends this process; the parent (``validation.execution.pool``) sees
that. What it cannot catch: a provider that writes to file descriptors it did not open.

Started with ``python -m validation.execution.worker``. Requests: first ``Setup``, then one ``Request`` a
line. Replies: ``Ready``, then one ``Reply`` a line, and a ``Phase`` before and after each call of the
provider.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import faulthandler
import importlib
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation.errors import UserError
from validation.execution.child import die_with_parent, private_streams, say
from validation.report.plain import dump_line, from_plain
from validation.report.schema import CaseResult, Finding
from validation.trace import describe, place


@dataclass
class Setup:
    """First line: what this worker is for. ``judge`` is MODULE:FUNCTION."""

    judge: str
    provider: str
    device: str
    plugins: list[str] = field(default_factory=list)


@dataclass
class Ready:
    """Answer to the setup; ``failed`` says in one line why the worker cannot work."""

    failed: str = ""


@dataclass
class Request:
    """One case to judge, as ``Case.line()``, with its share of the false-alarm budget."""

    case: str
    share: float
    mode: str = "profile"
    controls: bool = False


@dataclass
class Phase:
    """Between replies: whether the provider's function runs now."""

    calling: bool


@dataclass
class Reply:
    """The result, and whether this process must not be used again."""

    result: CaseResult
    spoiled: bool = False


class ProviderRaised(BaseException):
    """The provider's function raised ``cause``. A BaseException, so that no judge mistakes it for its own."""

    def __init__(self, cause: BaseException, spoiled: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.spoiled = spoiled


def main() -> None:
    """Serve requests until the pipe closes."""
    requests, replies = private_streams()
    die_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # a hang is asked where it is
    setup = from_plain(Setup, json.loads(requests.readline()))
    try:
        judge, implementation = _prepare(setup)
    except BaseException as error:
        _log_traceback()
        say(replies, Ready(failed=describe(error)))
        return
    say(replies, Ready())
    for line in requests:
        ask = from_plain(Request, json.loads(line))
        reply = answer(judge, implementation, setup, ask, lambda calling: say(replies, Phase(calling)))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # a full disk
                stream.flush()
        say(replies, _sound(reply))


def _sound(reply: Reply) -> Reply:
    """The reply, or an error where the judge left something in it that the results schema does not hold."""
    try:
        from_plain(Reply, json.loads(dump_line(reply)))
    except (TypeError, ValueError) as error:
        result = reply.result
        note = f"Lockstep itself failed: the judge's result does not fit the schema: {describe(error)}"
        return Reply(CaseResult(result.op, result.provider, result.case, "error", note=note), reply.spoiled)
    return reply


def _prepare(setup: Setup) -> tuple[Callable[..., CaseResult], Callable[[str], Any]]:
    module, function = setup.judge.split(":")
    judge = getattr(importlib.import_module(module), function)
    from validation.providers import implementation, load_plugin, load_provider

    for path in setup.plugins:
        load_plugin(Path(path), probe=False)
    load_provider(setup.provider, probe=False)
    if torch := sys.modules.get("torch"):
        # On the CPU two workers share the machine with its users; on a GPU the CPU only draws the inputs.
        torch.set_num_threads(1 if setup.device == "cpu" else 4)
    return judge, lambda op: implementation(op, setup.provider)


def answer(
    judge: Callable[..., CaseResult],
    find: Callable[[str], Any],
    setup: Setup,
    ask: Request,
    announce: Callable[[bool], None] = lambda calling: None,
) -> Reply:
    """Judge one case; whatever is raised becomes part of the result. ``announce`` is told when the provider's
    function begins and ends."""
    from validation.contracts.contract import Case

    case = Case.parse(ask.case)
    result = CaseResult(case.op, setup.provider, ask.case, "error")
    began = time.monotonic()
    spoiled = False
    try:
        guarded = _guarded(find(case.op), setup.device, announce)
        result = judge(case, guarded, setup.device, share=ask.share, mode=ask.mode, controls=ask.controls)
    except ProviderRaised as raised:
        _log_traceback()
        spoiled = raised.spoiled
        _blame(result, raised)
    except UserError as error:
        result.note = str(error)
    except Exception as error:
        _log_traceback()
        spoiled = _cuda_spoiled(setup.device)
        result.note = f"Lockstep itself failed: {describe(error)} ({place(error)})"
    result.seconds = result.seconds or time.monotonic() - began
    if setup.device == "cuda" and not spoiled:
        _give_memory_back()
    return Reply(result, spoiled)


# Bytes of a GPU that a worker may keep from other workers between cases.
KEPT = 1 << 30


def _give_memory_back() -> None:
    """What PyTorch keeps of a large case would be missing in other workers."""
    import torch

    with contextlib.suppress(Exception):
        if torch.cuda.memory_reserved() > KEPT:
            torch.cuda.empty_cache()


def _blame(result: CaseResult, raised: ProviderRaised) -> None:
    """An exception of the provider's function is a finding, unless the machine merely lacked room."""
    where = place(raised.cause)
    late = where.startswith(_finish_cuda.__name__)
    message = (
        f"raised {describe(raised.cause)} ({'when its work on the GPU ended' if late else f'in {where}'})"
    )
    if lacking := _lacking(raised.cause):
        result.note = f"out of {lacking}: the provider {message}"
        return
    result.verdict = "fail"
    result.findings = [failure(result, "crash" if raised.spoiled else "exception", message)]


def _lacking(cause: BaseException) -> str:
    """What the machine had too little of, if that is why."""
    if type(cause).__name__ in ("OutOfMemoryError", "MemoryError"):
        return "memory"
    full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    return "disk space" if full else ""


def _log_traceback() -> None:
    """For whoever repairs it; a log that has no room left is no reason to fail a case."""
    with contextlib.suppress(OSError):
        traceback.print_exc()


def failure(result: CaseResult, statistic: str, message: str) -> Finding:
    """The finding of a case that has no outputs to judge: an exception, a crash or a hang."""
    at = (result.op, result.provider, result.case)
    return Finding("kernels", *at, statistic, "", 1.0, 0.0, "everywhere", message, "")


def _guarded(implementation: Any, device: str, announce: Callable[[bool], None]) -> Any:
    """The implementation with its exceptions marked as its own."""

    def function(arguments: Any) -> Any:
        announce(True)
        try:
            returned = implementation.function(arguments)
            if device == "cuda":
                _finish_cuda()
            return returned
        except BaseException as error:
            raise ProviderRaised(error, _cuda_spoiled(device)) from error
        finally:
            announce(False)

    return dataclasses.replace(implementation, function=function)


def _finish_cuda() -> None:
    """Wait for the kernel, so that an illegal access surfaces in the call that made it."""
    import torch

    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def _cuda_spoiled(device: str) -> bool:
    if device != "cuda":
        return False
    try:
        _finish_cuda()
    except Exception:
        return True
    return False


if __name__ == "__main__":
    # Not this module's own main: classes of __main__ are not those that others import.
    importlib.import_module("validation.execution.worker").main()
