"""Compile the Triton kernels for Hopper and Blackwell without a GPU; print registers and stack of each.

    LOCKSTEP_DEVICE=cuda python tests/kernels_under_test/compile_kernels.py

One JSON object a line: kernel, target, registers, stack (bytes a thread; spills live there), shared memory,
and the tensor-core instruction used. Signatures say what the launcher would: pointers and strides are
multiples of 16, as for the subject's shapes.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels_under_test.triton_portable.attn_res import attn_res_kernel
from kernels_under_test.triton_portable.kda_kernel import kda_kernel
from kernels_under_test.triton_portable.projection import (
    TACTICS,
    add_splits_kernel,
    skinny_kernel,
    split_k_kernel,
)

TARGETS = (90, 100)
FP32 = {"conv_weight", "a_log", "dt_bias", "state", "partial"}
INT32 = {"slots", "accepted"}
SCALARS = {"eps", "eps_score", "eps_l2", "lower_bound", "q_scale"}
COUNTS = {"heads", "batch", "blocks_read", "write_block", "splits", "n"}  # any integer
INSTRUCTIONS = ("tcgen05.mma", "wgmma.mma", "mma.sync")
BINARIES = Path(triton.__file__).parent / "backends/nvidia/bin"


def signature(kernel: Any, constants: dict[str, Any]) -> dict[str, str]:
    """Triton type of every parameter."""

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in SCALARS:
            return "fp32"
        if name in COUNTS or name.startswith(("stride_", "column", "k", "k_split")):
            return "i32"
        return "*fp32" if name in FP32 else "*i32" if name in INT32 else "*bf16"

    return {name: kind(name) for name in kernel.arg_names}


def compiled(
    kernel: Any, capability: int, warps: int, stages: int, constants: dict[str, Any]
) -> dict[str, Any]:
    """Compile one kernel; what the listing in the module's docstring says about it."""
    types = signature(kernel, constants)
    aligned = {
        (position,): [["tt.divisibility", 16]]
        for position, (name, kind) in enumerate(types.items())
        if kind not in ("constexpr", "fp32") and name not in COUNTS
    }
    source = ASTSource(kernel, types, constexprs=constants, attrs=aligned)
    options = {"num_warps": warps, "num_stages": stages}
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    usage = resource_usage(binary.asm["cubin"])
    used = [name for name in INSTRUCTIONS if name in binary.asm["ptx"]]
    return {
        "kernel": kernel.__name__,
        "target": re.search(r"\.target (\w+)", binary.asm["ptx"])[1],
        "warps": warps,
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "shared": binary.metadata.shared,
        "instruction": used[0] if used else "",
        "constants": {name: value for name, value in constants.items() if name.isupper()},
    }


def resource_usage(cubin: bytes) -> dict[str, int]:
    """What ``cuobjdump -res-usage`` says: REG, STACK, SHARED, ..."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(BINARIES / "cuobjdump"), "-res-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", text.splitlines()[-1])}


def kda(tokens: int) -> dict[str, Any]:
    """Constants of the KDA kernel at the subject's head of 128."""
    head = {"HEAD_DIM": 128, "BLOCK": 128, "RANK": 128, "RANK_STEP": 32, "STRIDE_V": 128, "STRIDE_K": 1}
    ones = {"stride_conv_channel": 1, "stride_slots_token": 1, "stride_accepted": 1}
    return {"TOKENS": tokens, "VERIFY": tokens > 1, **head, **ones}


def attn_res(finish: int) -> dict[str, Any]:
    """Constants of the AttnRes kernel at the subject's width, writing everything it can write."""
    return {
        "MERGE_AS": 0, "FINISH_AS": finish, "WRITE_BLOCK": True, "WRITE_AUX": True, "BLOCK": 8192, "SLOTS": 8,
    }  # fmt: skip


def main() -> None:
    for capability in TARGETS:
        jobs = [(attn_res_kernel, 16, 3, attn_res(finish)) for finish in (0, 1)]
        jobs += [(kda_kernel, 8, 3, kda(tokens)) for tokens in (1, 4)]
        for tactic in TACTICS.values():
            kernel = skinny_kernel if tactic.kernel == "skinny" else split_k_kernel
            tile = {"ROWS": tactic.rows, "COLUMNS": tactic.columns, "STEP": tactic.step}
            jobs.append((kernel, tactic.warps, tactic.stages, tile))
        jobs.append((add_splits_kernel, 4, 3, {"BLOCK": 1024}))
        for kernel, warps, stages, constants in jobs:
            print(json.dumps(compiled(kernel, capability, warps, stages, constants)), flush=True)


if __name__ == "__main__":
    main()
