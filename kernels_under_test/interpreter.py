"""Runs Triton kernels without a GPU: chooses Triton's interpreter and corrects its BF16 and E4M3.

Triton 3.6 interprets kernels in numpy, where a BF16 tensor is an array of uint16. Left alone it truncates
FP32 to BF16 instead of rounding, adds and compares BF16 as integers, and multiplies the bits in ``tl.dot``;
NaN and large values cannot be stored in E4M3. ``install`` replaces these with what a GPU does:

* FP32 (and FP64, through FP32) to BF16 rounds to nearest, ties to even, also in the implicit cast of a store;
* BF16 arithmetic, comparison, reduction, scan and dot are computed in FP32 and rounded once at the end;
* FP32 to E4M3 rounds to nearest even and saturates at 448, and E4M3 NaN is NaN;
* FP32 sums are added as a tree along any axis, as a device's reductions are;
* a run-time value can bound ``range`` under numpy >= 2.4;
* overflow and NaN are silent, as on a device.

What this cannot do: FP32 accumulation order, fused multiply-add and approximate functions stay numpy's;
``dot_scaled``, inline assembly and E5M2 stay as Triton left them. Only the interpreter of the Triton
versions named in ``KNOWN`` has been checked; another one is refused if its parts have other shapes.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from typing import Any

from validation.errors import Unavailable, UserError

KNOWN = ("3.6.0", "3.7.1")
DEVICE_VARIABLE = "LOCKSTEP_DEVICE"

_choice = {"corrected": True}

# What is replaced, and the parameters each part must have for the replacement to mean the same.
_EXPECTED = {
    "InterpreterBuilder.cast_impl": ("self", "src", "dst_type"),
    "InterpreterBuilder.create_fp_to_fp": ("self", "src", "dst_type", "rounding_mode"),
    "InterpreterBuilder.binary_op": ("self", "lhs", "rhs", "op"),
    "InterpreterBuilder.ternary_op": ("self", "lhs", "rhs", "other", "op"),
    "InterpreterBuilder.unary_op": ("self", "arg", "op"),
    "InterpreterBuilder.create_fma": ("self", "x", "y", "z"),
    "InterpreterBuilder.create_dot": ("self", "a", "b", "d", "input_precision", "max_num_imprecise_acc"),
    "ReduceScanOpInterface.apply": ("self", "input"),
    "ReduceOps.sum": ("self", "input"),
    "ReduceScanOpInterface.to_tensor": ("self", "ret", "dtype"),
    "GridExecutor.__call__": ("self", "args_dev", "kwargs"),
    "GridExecutor._restore_args_dev": ("self", "args_dev", "args_hst", "kwargs", "kwargs_hst"),
    "_patch_lang_tensor": ("tensor", "scope"),
    "_patch_lang": ("fn",),
    "_patch_builtin": ("pkg", "builder", "scope"),
    "_LangPatchScope.restore": ("self",),
    "_get_np_dtype": ("tt_dtype",),
    "_validate_np_data_size": ("np_array", "tl_dtype"),
    "TensorHandle": ("data", "dtype", "attr"),
    "interpreter_semantic.broadcast_impl_shape": ("input", "shape"),
    "interpreter_semantic.broadcast_impl_value": ("lhs", "rhs"),
    "interpreter_semantic.cast": ("input", "dst_ty", "fp_downcast_rounding"),
    "interpreter_semantic.scalar_constant": ("value", "dtype"),
    "interpreter_semantic.binary_op_type_checking_impl": (
        "lhs",
        "rhs",
        "allow_lhs_ptr",
        "allow_rhs_ptr",
        "arithmetic_check",
        "div_or_mod",
    ),
}


def device() -> str:
    """``cpu`` or ``cuda``: what LOCKSTEP_DEVICE says, else cuda where there is one."""
    chosen = os.environ.get(DEVICE_VARIABLE)
    if chosen is None:
        import torch

        chosen = "cuda" if torch.cuda.is_available() else "cpu"
    if chosen not in ("cpu", "cuda"):
        raise UserError(f"{DEVICE_VARIABLE} is '{chosen}'; it must be cpu or cuda")
    return chosen


def leave_uncorrected() -> None:
    """Run kernels in the interpreter as Triton ships it: a negative control, in a process of its own."""
    if "triton" in sys.modules:
        raise UserError("the uncorrected interpreter needs a fresh process; triton is already imported here")
    _choice["corrected"] = False


def is_corrected() -> bool:
    """Whether kernels imported by this process get the corrected interpreter (always true on cuda)."""
    return _choice["corrected"]


def prepare() -> str:
    """Make ``import triton`` give kernels that run on ``device()``, which is returned.

    Must come before the first import of triton: its library of kernels is bound when it is imported.
    """
    chosen = device()
    if importlib.util.find_spec("triton") is None:
        raise Unavailable("triton is not installed; pip install 'lockstep-validation[kernels]'")
    if chosen == "cuda":
        return chosen
    already = sys.modules.get("triton")
    if already is not None and not already.knobs.runtime.interpret:
        raise UserError("triton was imported before the interpreter was chosen; set TRITON_INTERPRET=1")
    os.environ["TRITON_INTERPRET"] = "1"
    if is_corrected():
        install()
    return chosen


def install() -> None:
    """Correct the interpreter of this process. A second call changes nothing."""
    from triton.runtime import interpreter

    if getattr(interpreter, "lockstep_corrected", False):
        return
    _check(interpreter)
    from kernels_under_test import interpreter_patch, interpreter_speed

    interpreter_speed.apply(interpreter)
    interpreter_patch.apply(interpreter)
    interpreter.lockstep_corrected = True


def _check(interpreter: Any) -> None:
    """Raise UserError if a part that will be replaced is missing or takes other parameters."""
    import triton

    for path, expected in _EXPECTED.items():
        part: Any = interpreter
        for name in path.split("."):
            part = getattr(part, name, None)
        found = tuple(inspect.signature(part).parameters) if callable(part) else None
        if found != expected:
            raise UserError(
                f"triton {triton.__version__}: {path} of its interpreter takes {found}, not {expected}; "
                f"install triton=={KNOWN[-1]}, or run on a GPU"
            )
