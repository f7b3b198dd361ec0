"""The replacements that ``interpreter.install`` puts into Triton's interpreter, in numpy.

Each replaced function handles what involves BF16 or E4M3 and hands everything else to the original.
Numbers: BF16 is the upper half of an FP32 (round to nearest even, PTX ``cvt.rn.bf16.f32``); E4M3 is the
OCP 8-bit format without infinities (``cvt.rn.satfinite.e4m3x2.f32``).

What this cannot catch: it is not a model of a GPU's tensor cores, only of its number formats.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NAN_BF16 = 0x7FFF  # what cvt.rn.bf16.f32 makes of every NaN
NAN_E4M3 = 0x7F


def to_bf16(x: Array) -> Array:
    """BF16 bits (uint16) of ``x`` (any float or integer array), nearest even; NaN becomes 0x7FFF."""
    with np.errstate(all="ignore"):
        x = np.ascontiguousarray(x, dtype=np.float32).reshape(np.shape(x))
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint16(NAN_BF16), rounded.astype(np.uint16))


def truncated_bf16(x: Array) -> Array:
    """BF16 bits of ``x`` rounded towards zero, for ``fp_downcast_rounding="rtz"``."""
    x = np.ascontiguousarray(x, dtype=np.float32).reshape(np.shape(x))
    bits = (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(NAN_BF16), bits)


def from_bf16(bits: Array) -> Array:
    """FP32 values of BF16 bits, exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _e4m3_values() -> Array:
    """FP32 value of each of the 256 E4M3 codes."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    scaled = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    scaled[[0x7F, 0xFF]] = np.nan
    return np.where(code >> 7, -scaled, scaled).astype(np.float32)


E4M3 = _e4m3_values()
_MIDPOINTS = (E4M3[:126].astype(np.float64) + E4M3[1:127]) / 2


def to_e4m3(x: Array) -> Array:
    """E4M3 codes (uint8) of ``x``: nearest even, beyond +-448 saturated, NaN kept."""
    magnitude = np.abs(x.astype(np.float64))
    below = np.searchsorted(_MIDPOINTS, magnitude, side="left")
    above = np.searchsorted(_MIDPOINTS, magnitude, side="right")
    code = np.where(below % 2 == 0, below, above)  # they differ at a tie only, by one
    code = np.where(np.isnan(x), NAN_E4M3, code) | np.where(np.signbit(x), 0x80, 0)
    return code.astype(np.uint8)


def apply(interpreter: Any) -> None:
    """Replace the parts of ``triton.runtime.interpreter`` listed in the ``interpreter`` module."""
    formats = _Formats(interpreter)
    _casts(interpreter, formats)
    _elementwise(interpreter, formats)
    _reductions(interpreter, formats)
    _running(interpreter)


class _Formats:
    """Handles (numpy array and Triton type) in and out of FP32."""

    def __init__(self, interpreter: Any) -> None:
        import triton.language as tl

        self.handle = interpreter.TensorHandle
        self.np_dtype = interpreter._get_np_dtype
        self.bf16, self.e4m3, self.fp32, self.int1 = tl.bfloat16, tl.float8e4nv, tl.float32, tl.int1

    def is_bf16(self, handle: Any) -> bool:
        # Triton leaves the operands' type on the result of a comparison, whose data are booleans.
        return handle.dtype.scalar.name == self.bf16.name and handle.data.dtype == np.uint16

    def values(self, handle: Any) -> Array:
        """The numbers of a handle: FP32 for BF16 and E4M3, else the data itself."""
        if self.is_bf16(handle):
            return from_bf16(handle.data)
        if handle.dtype.scalar == self.e4m3:
            return E4M3[handle.data]
        return handle.data

    def encoded(self, values: Array, dtype: Any) -> Any:
        """A handle of ``dtype`` (BF16, E4M3 or a numpy type) holding the rounded values."""
        if dtype.scalar == self.bf16:
            return self.handle(to_bf16(values), dtype.scalar)
        if dtype.scalar == self.e4m3:
            return self.handle(to_e4m3(values), dtype.scalar)
        return self.handle(values.astype(self.np_dtype(dtype)), dtype.scalar)


def _casts(interpreter: Any, formats: _Formats) -> None:
    builder = interpreter.InterpreterBuilder
    original = builder.create_fp_to_fp
    towards_zero = interpreter._ir.ROUNDING_MODE.RTZ
    ours = (formats.bf16, formats.e4m3)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        return formats.encoded(formats.values(src), dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        narrow, wide = dst_type.scalar, src.dtype.scalar
        if rounding_mode == towards_zero and narrow == formats.bf16:
            return formats.handle(truncated_bf16(formats.values(src)), narrow)
        if rounding_mode == towards_zero or not (narrow in ours or wide in ours):
            return original(self, src, dst_type, rounding_mode)
        other = wide if narrow in ours else narrow
        if other.is_fp8() and other != formats.e4m3:
            return original(self, src, dst_type, rounding_mode)
        return formats.encoded(formats.values(src), dst_type)

    def get_bf16(self: Any, value: float) -> Any:
        return formats.encoded(np.array([value], dtype=np.float32), formats.bf16)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp
    builder.get_bf16 = get_bf16


def _elementwise(interpreter: Any, formats: _Formats) -> None:
    builder = interpreter.InterpreterBuilder
    binary, ternary, unary, fma = (
        builder.binary_op,
        builder.ternary_op,
        builder.unary_op,
        builder.create_fma,
    )
    bitwise = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)

    def result(values: Array) -> Any:
        if values.dtype == np.bool_:
            return formats.handle(values, formats.int1)
        return formats.encoded(values, formats.bf16)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if not formats.is_bf16(lhs) or op in bitwise:
            return binary(self, lhs, rhs, op)
        return result(op(formats.values(lhs), formats.values(rhs)))

    def ternary_op(self: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if not formats.is_bf16(other) or op is np.where:
            return ternary(self, lhs, rhs, other, op)
        return result(op(formats.values(lhs), formats.values(rhs), formats.values(other)))

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        if op is np.exp2 and arg.data.dtype == np.float32:
            # numpy's exp2(127) in FP32 is one unit above 2**127; a GPU's is exact at integers.
            return formats.handle(np.exp2(arg.data.astype(np.float64)).astype(np.float32), arg.dtype)
        if not formats.is_bf16(arg):
            return unary(self, arg, op)
        return result(op(formats.values(arg)))

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if not formats.is_bf16(z):
            return fma(self, x, y, z)
        wide = [formats.values(operand).astype(np.float64) for operand in (x, y, z)]
        return result(wide[0] * wide[1] + wide[2])

    builder.binary_op, builder.ternary_op = binary_op, ternary_op
    builder.unary_op, builder.create_fma = unary_op, create_fma


def _reductions(interpreter: Any, formats: _Formats) -> None:
    builder, scope = interpreter.InterpreterBuilder, interpreter.ReduceScanOpInterface
    dot, apply_ = builder.create_dot, scope.apply

    def create_dot(
        self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any
    ) -> Any:
        narrow = (formats.bf16, formats.e4m3)
        if not {a.dtype.scalar, b.dtype.scalar, d.dtype.scalar} & set(narrow):
            return dot(self, a, b, d, input_precision, max_num_imprecise_acc)
        wide = np.float32 if d.dtype.scalar in narrow else d.data.dtype
        product = np.matmul(formats.values(a), formats.values(b), dtype=wide)
        return formats.encoded(product + formats.values(d), d.dtype)

    def apply(self: Any, input: Any) -> Any:  # (the interpreter's own parameter name)
        operands = input if isinstance(input, tuple) else (input,)
        narrow = [formats.is_bf16(x.handle) for x in operands]
        if not any(narrow):
            return apply_(self, input)
        wide = (
            self.to_tensor(formats.values(x.handle), formats.fp32) if was else x
            for x, was in zip(operands, narrow, strict=True)
        )
        found = apply_(self, tuple(wide))
        rounded = tuple(
            self.to_tensor(to_bf16(y.handle.data), formats.bf16) if was else y
            for y, was in zip(found, narrow, strict=True)
        )
        return rounded if isinstance(input, tuple) else rounded[0]

    builder.create_dot, scope.apply = create_dot, apply
    _sum_as_a_tree(interpreter)


def _sum_as_a_tree(interpreter: Any) -> None:
    """numpy adds pairwise along the last axis only, elsewhere in a chain; a GPU adds in a tree along any."""
    reduction = interpreter.ReduceOps
    original = reduction.sum

    def sum_(self: Any, input: Any) -> Any:
        data = input.handle.data
        if self.axis is None or data.dtype.kind != "f" or self.axis % data.ndim == data.ndim - 1:
            return original(self, input)
        total = np.ascontiguousarray(np.moveaxis(data, self.axis, -1)).sum(-1)
        if self.keep_dims:
            total = np.expand_dims(total, self.axis)
        return self.to_tensor(total, input.dtype)

    reduction.sum = sum_


def _running(interpreter: Any) -> None:
    import torch

    cpu = torch.device("cpu")
    grid, patch = interpreter.GridExecutor, interpreter._patch_lang_tensor
    call, copy_back = grid.__call__, grid._restore_args_dev

    def silent(self: Any, *args_dev: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return call(self, *args_dev, **kwargs)

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        # int() of an array of shape (1,) is an error from numpy 2.4 on.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def restore(self: Any, args_dev: Any, args_hst: Any, kwargs: Any, kwargs_hst: Any) -> None:
        # The kernel worked on CPU memory in place. Copying it onto itself, as Triton does, would touch every
        # page of a cache that is laid out over gigabytes of address space.
        everything = (*args_dev, *kwargs.values())
        if any(isinstance(x, tuple) or getattr(x, "device", cpu) != cpu for x in everything):
            copy_back(self, args_dev, args_hst, kwargs, kwargs_hst)

    grid.__call__, grid._restore_args_dev = silent, restore
    interpreter._patch_lang_tensor = patch_lang_tensor
