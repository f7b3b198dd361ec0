"""Compile the exchange kernels for Hopper as the stress engine launches them; one JSON object a line.

    LOCKSTEP_DEVICE=cuda python tests/kernels_under_test/compile_exchanges.py

What this catches: a kernel that compiles in the interpreter's reading alone, spills, or polls by loads that a
compiler may hoist. What it cannot catch: results, and what the memory system does.
"""

from __future__ import annotations

import json
import re
from typing import Any

import triton
from compile_kernels import resource_usage
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels_under_test.exchanges import collectives, fused, fused_dcp, step
from kernels_under_test.exchanges.acts import acts_kernel
from kernels_under_test.exchanges.runner import WARPS

FUSED = {
    "oproj_kernel": {"RANKS": 2, "TILE": 8, "DEPTH": 512, "ON_GPU": True},
    "tail_kernel": {"RANKS": 2, "TILE": 8, "SLICE": 8, "DEPTH": 512, "ON_GPU": True},
    "out_kernel": {"BLOCK": 1024, "ON_GPU": True},
}
FEW = collectives.THREADS.value // 32  # warps of all but the acts
MERGE = {"RANKS": 2, "WORDS": 256, "ON_GPU": True}
# The two kinds of publication, and of re-arm.
STEP = {"BLOCK": step.BLOCK, "ON_GPU": True}
STEPS = (
    {"PAIRS": True, "OWN_PARTS": True, "AT_ONCE": False},
    {"PAIRS": False, "OWN_PARTS": False, "AT_ONCE": True},
)
SCALARS = (
    *("cleared_words", "x_target", "x_row", "out_source", "out_row"),
    *("act", "use", "clears", "advance", "parities"),
    "rank",
    "seed",
    "steps",
    "spins",
    "logs",
    "start",
    "gather",
    "slot_words",
    "words",
    "rows",
    "depth",
    "tokens",
    "heads",
)
MAILBOXES = ("latent", "cleared_latent", "rs", "cleared_rs", "row_box", "sum_box")  # first words of them
ALIGNED = ("start", "gather", "slot_words", "words")
UNALIGNED = ("starts", "counts", "batches")


def compiled(kernel: Any, constants: dict[str, Any], warps: int) -> dict[str, Any]:
    """Registers, stack, and the instructions that matter of one kernel."""
    types, attributes = {}, {}
    for position, parameter in enumerate(kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            types[name] = "constexpr"
        elif name in SCALARS + MAILBOXES or (name, kernel) == ("out", fused.tail_kernel):
            types[name] = "i32"
        elif name == "eps":
            types[name] = "fp32"
        else:
            types[name] = "*i64" if name == "peers" else "*i32"
        pointer = types[name].startswith("*") and name not in UNALIGNED
        if pointer or name in ALIGNED:
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, types, constexprs=constants, attrs=attributes)
    binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    usage, code = resource_usage(binary.asm["cubin"]), binary.asm["ptx"]
    return {
        "kernel": kernel.fn.__name__,
        "ranks": constants.get("RANKS", 2),
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "volatile": sorted(set(re.findall(r"ld\.volatile\.global\S*\.b32", code))),
        "unordered": unordered(binary.asm["ttgir"]),
        "copied": copied(binary.asm["ttgir"], 32 * warps),
        "fences": code.count("fence.acq_rel.sys"),
    }


def unordered(code: str) -> list[str]:
    """Volatile loads with a store before them in their block, and no barrier between.

    Each access has a layout of its own, so that another thread may load a word than stored it. A reduction
    is a barrier, since its operands cross warps.
    """
    found, stored = [], ""
    barrier = re.compile(r"\.\w*barrier|tt\.reduce")
    for line in code.splitlines():
        text = line.split(" loc(")[0].strip()
        if text.endswith("{") or text.startswith("}") or barrier.search(text):
            stored = ""
        elif "tt.store" in line:
            stored = line.strip()
        elif "tt.load" in line and "isVolatile = true" in line and stored:
            found.append(f"{stored} | {line.strip()}"[:300])
    return found


def copied(code: str, threads: int) -> list[str]:
    """Stores behind volatile loads of fewer words than there are threads, unless these loads have a barrier
    ahead of them in their block, and one behind them.

    Threads then hold copies of a word, each by a load of its own: what one has seen may be stored over before
    another has looked, and what one counts as arrived another may not have.
    """
    found, looked, settled, ahead = [], "", False, False
    for line in code.splitlines():
        text = line.split(" loc(")[0].strip()
        words = re.search(r"tensor<(\d+)x!tt\.ptr", text)
        if re.search(r"\.\w*barrier", text):
            ahead, looked = True, "" if settled else looked
        elif text.endswith("{") or text.startswith("}"):
            ahead = False
        elif "tt.load" in text and "isVolatile = true" in text and words and int(words[1]) < threads:
            looked, settled = text, ahead
        elif "tt.store" in text and looked:
            found.append(f"{looked} | {text}"[:300])
            looked = ""
    return found


if __name__ == "__main__":
    for ranks in (2, 8):
        shape = {"ROWS": 64, "COLUMNS": 32, "LANES": 112, "CHUNK_COLUMNS": 32 // ranks}
        shape |= {"THREADS": 32 * WARPS, "RANKS": ranks, "ON_GPU": True}
        print(json.dumps(compiled(acts_kernel, shape, WARPS)), flush=True)
        for kernel in (*collectives.KERNELS.values(), collectives.two_shot_kernel):
            print(
                json.dumps(compiled(kernel, {"RANKS": ranks, "BLOCK": 512, "ON_GPU": True}, FEW)), flush=True
            )
        for kind in STEPS:
            shape = STEP | kind | {"RANKS": ranks, "SLOTS": ranks}
            print(json.dumps(compiled(step.step_kernel, shape, 4)), flush=True)
    for name, constants in FUSED.items():
        print(json.dumps(compiled(getattr(fused, name), constants, FEW)), flush=True)
    print(json.dumps(compiled(fused_dcp.dcp_kernel, MERGE, FEW)), flush=True)
