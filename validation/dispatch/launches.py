"""Proof of what ran: the names of the Triton kernels that a call launched, interpreted or compiled.

    with recorded() as names:
        function(arguments)

What this catches: a kernel other than the dispatch table says, one too many, none at all (a fallback to
torch). What it cannot catch: kernels that are not Triton's; on CUDA ``device_kernels`` sees those too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Names of the Triton kernels launched within, in order. Empty if triton was never imported."""
    names: list[str] = []
    undo: list[Callable[[], None]] = []
    if "triton" in sys.modules:
        for owner, method, name_of in _launchers():
            undo.append(_wrap(owner, method, name_of, names))
    try:
        yield names
    finally:
        for restore in undo:
            restore()


def _launchers() -> list[tuple[Any, str, Callable[[Any], str]]]:
    """Class and method through which every launch goes, and how its kernel is called."""
    from triton.runtime.jit import JITFunction

    found: list[tuple[Any, str, Callable[[Any], str]]] = [(JITFunction, "run", lambda f: f.fn.__name__)]
    if interpreter := sys.modules.get("triton.runtime.interpreter"):
        found.append((interpreter.GridExecutor, "__call__", lambda executor: executor.fn.__name__))
    return found


def _wrap(owner: Any, method: str, name_of: Callable[[Any], str], names: list[str]) -> Callable[[], None]:
    original = getattr(owner, method)

    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        if not options.get("warmup"):
            names.append(name_of(self))
        return original(self, *arguments, **options)

    setattr(owner, method, run)
    return lambda: setattr(owner, method, original)


def device_kernels(function: Callable[[], Any]) -> list[str]:
    """Run ``function`` under PyTorch's profiler; names of all kernels that the CUDA device ran, in order."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        function()
        torch.cuda.synchronize()
    events = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [e.name for e in sorted(events, key=lambda e: e.time_range.start)]


def disagreement(expected: tuple[str, ...], launched: list[str]) -> str:
    """What differs between the dispatch table and the record, in words; empty if nothing does."""
    if list(expected) == launched:
        return ""
    said = ", ".join(expected) or "no kernel"
    ran = ", ".join(launched) or "none (a fallback)"
    return f"the dispatch table says {said}; launched: {ran}"
