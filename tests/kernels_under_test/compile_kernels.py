"""Compile what the Triton kernels' launchers launch, for a GPU that is not here; print registers and stack
of each.

    LOCKSTEP_DEVICE=cuda python tests/kernels_under_test/compile_kernels.py [--everything] [OP ...]

The launchers run on tensors without data at the subject's real shapes, and every launch is compiled
instead: with the very types, constants, alignment and options that the device would get. One JSON object a
line: operation, kernel, target, registers, stack (bytes a thread; spills live there), shared memory,
tensor-core instruction, and the layouts of what assembly gives to tensor cores.

What this catches: a kernel that does not compile, spills, or needs more shared memory than there is; a
launcher that reads data on the host (it could not be captured in a graph). What it cannot catch: anything
about results. Without ``--everything``: Hopper, one row and 64.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from kernels_under_test import triton_portable
from kernels_under_test.triton_portable import launch
from validation.contracts import contract_named
from validation.contracts.contract import Case, tensor_specs

EVERYTHING = "--everything" in sys.argv
TARGETS = (90, 100) if EVERYTHING else (90,)
ROWS = (1, 8, 64) if EVERYTHING else (1, 64)
# What besides the number of rows decides which kernels are launched.
VARIANTS = ("ranks", "finish", "narrow", "tokens", "vocabulary")
# Its table of ranges is made on the host, once, before any graph.
PLANNED_ON_THE_HOST = ("prefetch",)
INSTRUCTIONS = ("tcgen05.mma", "wgmma.mma", "mma.sync")
BINARIES = Path(triton.__file__).parent / "backends/nvidia/bin"
OPTIONS = ("num_warps", "num_stages", "maxnreg")
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}


def real_cases(op: str) -> list[Case]:
    """One case of the full tier for each number of rows in ROWS that is there, the largest shape of each."""
    found: dict[tuple[int, ...], Case] = {}
    for case in reversed(contract_named(op).cases("full")):
        shape = dict(case.shape)
        rows = shape.get("rows", shape.get("requests", 1) * shape.get("tokens", 1))
        if rows in ROWS and case.regime not in ("wide_offsets", "wide_rows"):
            key = (rows, *(shape.get(name, 0) for name in VARIANTS))
            found.setdefault(key, case)
    return list(found.values())


def without_data(arguments: Any, strides: dict[str, tuple[int, ...]]) -> Any:
    """The same arguments as tensors on the meta device, laid out as in a real cache."""
    placed = {}
    for name in tensor_specs(arguments):
        tensor = getattr(arguments, name)
        if tensor is not None:
            stride = strides.get(name, tensor.contiguous().stride())
            placed[name] = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="meta")
    return dataclasses.replace(arguments, **placed)


def launches(op: str, case: Case) -> Iterator[tuple[Any, dict[str, Any]]]:
    """(kernel, arguments and options by name) of everything that the operation launches for a case."""
    contract = contract_named(op)
    clean = contract.build(case)
    arguments = without_data(clean, dict(contract.strides(clean)))
    seen: list[tuple[Any, dict[str, Any]]] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        seen.append((self, dict(zip(self.arg_names, args, strict=False)) | named))

    original, JITFunction.run = JITFunction.run, run
    try:
        triton_portable.operations()[op]["function"](arguments)
    finally:
        JITFunction.run = original
    yield from seen


def specialised(kernel: Any, given: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any], dict[Any, Any]]:
    """Types, constants and alignments of a launch, as Triton derives them from its arguments."""
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: dict[Any, Any] = {}
    for position, parameter in enumerate(kernel.params):
        name, value = parameter.name, given[parameter.name]
        if parameter.is_constexpr or value is None:
            types[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            types[name] = POINTERS[value.dtype]
            aligned[(position,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            types[name] = "fp32"
        elif value == 1 and not parameter.do_not_specialize:
            types[name], constants[name] = "constexpr", 1
        else:
            types[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and not parameter.do_not_specialize:
                aligned[(position,)] = [["tt.divisibility", 16]]
    return types, constants, aligned


def compiled(op: str, kernel: Any, given: dict[str, Any], capability: int) -> dict[str, Any]:
    """Compile one launch; what the listing in the module's docstring says about it."""
    types, constants, aligned = specialised(kernel, given)
    source = ASTSource(kernel, types, constexprs=constants, attrs=aligned)
    options = {name: given[name] for name in OPTIONS if name in given}
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    usage = resource_usage(binary.asm["cubin"])
    used = [name for name in INSTRUCTIONS if name in binary.asm["ptx"]]
    return {
        "op": op,
        "kernel": kernel.fn.__name__,
        "target": re.search(r"\.target (\w+)", binary.asm["ptx"])[1],  # type: ignore[index]
        "registers": usage["REG"],
        "stack": usage["STACK"],
        "shared": binary.metadata.shared,
        "instruction": used[0] if used else "",
        "assembled": assembled(binary.asm["ttgir"]),
        **options,
        "constants": {name: value for name, value in constants.items() if name.isupper()},
    }


def assembled(code: str) -> list[str]:
    """Layouts of the operands of assembly that has a tensor-core instruction, which relies on them."""
    layouts = dict(re.findall(r"^(#\w+) = #ttg\.blocked<\{(.*)\}>", code, re.MULTILINE))
    lines = [line for line in code.splitlines() if "elementwise_inline_asm" in line and "mma.sync" in line]
    return sorted({layouts[name] for line in lines for name in re.findall(r"(#blocked\w*)>", line)})


def resource_usage(cubin: bytes) -> dict[str, int]:
    """What ``cuobjdump -res-usage`` says: REG, STACK, SHARED, ..."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(BINARIES / "cuobjdump"), "-res-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", text.splitlines()[-1])}


def everything(ops: list[str]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every launch of the operations, each set of types and constants once."""
    known = set()
    for op in ops:
        if op in PLANNED_ON_THE_HOST:
            continue
        for case in real_cases(op):
            for kernel, given in launches(op, case):
                types, constants, aligned = specialised(kernel, given)
                key = (kernel.fn.__name__, str(types), str(constants), str(aligned), given.get("num_warps"))
                if key not in known:
                    known.add(key)
                    yield op, kernel, given


def main(ops: list[str], report: Callable[[str], None] = lambda line: print(line, flush=True)) -> None:
    # Tensors without data stand for those of a GPU that can launch early.
    launch._can_launch_early = lambda: True  # type: ignore[assignment]
    launch.on_gpu = lambda tensor: True
    for op, kernel, given in everything(ops or list(triton_portable.operations())):
        for capability in TARGETS:
            report(json.dumps(compiled(op, kernel, given, capability)))


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if not name.startswith("--")])
