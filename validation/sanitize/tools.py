"""The four tools, how they are called, what each sees, and what it cannot see.

Source: NVIDIA's manual of Compute Sanitizer, and the options of version 2025.3 (CUDA 13.0).
"""

from __future__ import annotations

from dataclasses import dataclass

# Exit status of compute-sanitizer where the program ended well and the tool reported something.
REPORTED = 86
# Reports that are printed before the tool falls silent; a faulty instruction reports once a thread.
PRINTED = 2000
# Seconds until the tool gives up waiting for the first CUDA call, which comes after all imports: longer than
# any process may take.
CONNECT = 3600
PADDING = 4096  # bytes behind every allocation in which an access is a fault, as the arena's red zone


@dataclass(frozen=True)
class Tool:
    """One tool of compute-sanitizer. ``alone``: options instead of ``options`` where one case is run to name
    threads and addresses. ``planted``: the kernel of ``kernels_under_test.planted`` that it must report."""

    name: str
    options: tuple[str, ...]
    alone: tuple[str, ...]
    planted: str
    sees: str
    cannot: str


TOOLS = (
    Tool(
        "memcheck",
        ("--padding", str(PADDING), "--report-api-errors", "no"),
        ("--padding", str(PADDING), "--report-api-errors", "no"),
        "planted_out_of_bounds_kernel",
        "accesses outside every allocation, or misaligned",
        "an access that lands in another allocation (padding keeps them 4 KiB apart), or in a gap between "
        "the rows of its own; lanes that are masked off, which access nothing: a mask that lets too few "
        "elements through is no fault here; prefetches. PyTorch's cache of blocks would hide overruns inside "
        "a block: it is off here, and every tensor is an allocation of its own size",
    ),
    Tool(
        "racecheck",
        ("--racecheck-report", "analysis"),
        ("--racecheck-report", "hazard"),
        "planted_race_kernel",
        "accesses of two threads of a block to one word of shared memory, with no barrier between",
        "races in global memory: between blocks, between kernels, between ranks; reads of shared memory by "
        "tensor cores, which are no loads of a thread",
    ),
    Tool(
        "initcheck",
        (),
        (),
        "planted_uninitialised_kernel",
        "reads of global memory that no kernel and no copy has written, gaps between rows included",
        "shared memory; registers; stale values: what an earlier call wrote counts as written",
    ),
    Tool(
        "synccheck",
        (),
        (),
        "planted_divergence_kernel",
        "barriers that some threads of a warp or block do not reach, and wrong uses of wgmma",
        "a barrier that is missing; waits between blocks, kernels or ranks",
    ),
)


def command(binary: str, tool: Tool, log: str, port: int, alone: bool = False) -> list[str]:
    """compute-sanitizer with everything but the program. A faulty kernel is ended, and the program goes on
    with the next case; ``port``: tools that run side by side must not listen on the same one."""
    return [
        *(binary, "--tool", tool.name, *(tool.alone if alone else tool.options)),
        *("--log-file", log, "--print-limit", str(PRINTED), "--error-exitcode", str(REPORTED)),
        *("--destroy-on-device-error", "kernel", "--target-processes", "application-only"),
        *("--show-backtrace", "device", "--demangle", "simple"),
        *("--launch-timeout", str(CONNECT), "--port", str(port)),
    ]
