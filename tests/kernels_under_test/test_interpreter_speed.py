"""What makes the interpreter fast changes nothing: its semantics against Triton's own, operand by operand."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kernels_under_test import interpreter, interpreter_speed

pytestmark = pytest.mark.skipif(interpreter.device() != "cpu", reason="there is no interpreter on a GPU")

if interpreter.device() == "cpu":
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter as tritons

    FAST = tritons.interpreter_semantic
    PLAIN = TritonSemantic(tritons.interpreter_builder)
TYPES = (
    tl.int1, tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64,
    tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.float8e4nv, tl.float8e5,
)  # fmt: skip
SHAPES = ((), (1,), (4,), (8,), (1, 4), (2, 1), (2, 4), (2, 1, 4))
NANS = float("nan"), -float("nan")
NUMBERS = (0, 0.0, -0.0, 1, 1.0, True, False, -1, 3, 2.5, 2**40, float("inf"), -1e-40, *NANS)
# Of addition, of subtraction, of products, of shifts, of ``fdiv``, of division.
FLAGS: tuple[tuple[tuple[bool, ...], dict[str, bool]], ...] = (
    ((True, True), {}),
    ((True, False), {}),
    ((), {}),
    ((False, False, False), {}),
    ((False, False, False, True), {}),
    ((False, False, True, True), {}),
)


def tensor(what: Any) -> Any:
    """A tensor of a type and shape; a number as it is."""
    if not isinstance(what, tuple):
        return what
    dtype, shape = what
    data = np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape or (1,))
    data = data.astype(tritons._get_np_dtype(dtype))
    return tl.core.tensor(
        tritons.TensorHandle(data, dtype), tl.block_type(dtype, list(shape)) if shape else dtype
    )


def seen(call: Any, *args: Any, **more: Any) -> Any:
    """All that can be seen of the tensors that a call gives, or of what it raises."""
    try:
        found = call(*args, **more)
    except Exception as error:
        return type(error), str(error)
    found = found if isinstance(found, tuple) else (found,)
    return [
        (str(x.type), tuple(x.shape), str(x.handle.dtype), data.dtype, data.shape, data.tobytes())
        for x, data in ((x, x.handle.data) for x in found)
    ]


@pytest.fixture(autouse=True)
def launched() -> Iterator[None]:
    """As in a launch: the operators of tensors are the interpreter's."""
    scope = tritons._patch_lang(kernel.fn)
    yield
    scope.restore()


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("flags", FLAGS)
def test_operands_become_what_triton_makes_of_them(flags: Any) -> None:
    """Every number beside every type on either side, and every pair of types."""
    how, more = flags
    tensors = [(dtype, shape) for dtype in TYPES for shape in ((), (4,))]
    pairs = [*itertools.product(NUMBERS, tensors), *itertools.product(tensors, NUMBERS)]
    pairs += itertools.product(((dtype, (4,)) for dtype in TYPES), ((dtype, (1,)) for dtype in TYPES))
    pairs += itertools.product(((tl.float32, shape) for shape in SHAPES), repeat=2)
    for lhs, rhs in pairs:
        expected = seen(PLAIN.binary_op_type_checking_impl, tensor(lhs), tensor(rhs), *how, **more)
        for _ in range(2):  # the second time, what was kept
            got = seen(FAST.binary_op_type_checking_impl, tensor(lhs), tensor(rhs), *how, **more)
            assert got == expected, (lhs, rhs)


@pytest.mark.parametrize(("one", "other"), [*itertools.product(SHAPES, SHAPES)])
def test_broadcasts_become_what_triton_makes_of_them(one: Any, other: Any) -> None:
    a, b = (tl.float32, one), (tl.int32, other)
    assert seen(FAST.broadcast_impl_value, tensor(a), tensor(b)) == seen(
        PLAIN.broadcast_impl_value, tensor(a), tensor(b)
    )
    for shape in (list(other), other):
        assert seen(FAST.broadcast_impl_shape, tensor(a), shape) == seen(
            PLAIN.broadcast_impl_shape, tensor(a), shape
        )


@pytest.mark.parametrize(("source", "to"), [*itertools.product(TYPES, TYPES)])
def test_casts_become_what_triton_makes_of_them(source: Any, to: Any) -> None:
    for shape, rounding in itertools.product(((), (2, 4)), (None, "rtne", "rtz")):
        got, expected = (seen(each.cast, tensor((source, shape)), to, rounding) for each in (FAST, PLAIN))
        assert got == expected


@pytest.mark.parametrize(("value", "dtype"), [*itertools.product(NUMBERS, TYPES)])
@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_constants_are_what_triton_makes_of_them(value: Any, dtype: Any) -> None:
    expected = seen(PLAIN.scalar_constant, value, dtype)
    assert seen(FAST.scalar_constant, value, dtype) == expected
    assert seen(FAST.scalar_constant, value, dtype) == expected


def test_usual_questions_get_tritons_answers() -> None:
    unwrap, one, block = tl.core._unwrap_if_constexpr, tl.constexpr(1), tensor((tl.int32, (4,)))
    for value, bare in ((one, 1), ([one, 2], [1, 2]), ((one, 2), (1, 2)), (None, None), (2.5, 2.5)):
        assert unwrap(value) == bare
    assert unwrap(block) is block
    assert unwrap((one, block))[1] is block
    again = tl.core.dtype("int32")
    assert tl.int32 == again
    assert tl.int32 != tl.uint32
    assert tl.int32 != 32
    with pytest.raises(ValueError, match="exceeds dtype primitive_bitwidth"):
        tritons.TensorHandle(np.zeros(1, dtype=np.int64), tl.int32)
    with pytest.raises(ValueError, match="exceeds dtype primitive_bitwidth"):
        tritons.TensorHandle(np.zeros(1, dtype=np.int64), tl.int32)
    tritons.TensorHandle(np.zeros(1, dtype=np.uint64), tl.pointer_type(tl.int32))


def test_sizes_that_are_no_integers_are_refused_every_time() -> None:
    for _ in range(2):
        assert tl.block_type(tl.float32, [4]).shape[0] == 4
        with pytest.raises(TypeError):
            tl.block_type(tl.float32, [4.0])


def test_a_kept_constant_cannot_be_changed() -> None:
    handle = FAST.scalar_constant(7, tl.uint32).handle
    with pytest.raises(ValueError, match="read-only"):
        handle.data[...] = 8
    handle.data = handle.data.astype(np.int32)  # as a shift does
    assert FAST.scalar_constant(7, tl.uint32).handle.data.dtype == np.uint32


def test_pointers_of_plain_integers_only_are_moved() -> None:
    pointer = tl.core.tensor(
        tritons.TensorHandle(np.array([64], dtype=np.uint64), tl.pointer_type(tl.float32)),
        tl.pointer_type(tl.float32),
    )
    for other in ((tl.int32, (4,)), (tl.int64, ()), (tl.float32, (4,)), (tl.int1, (2, 4)), 3):
        for how, more in FLAGS:
            got, expected = (
                seen(each.binary_op_type_checking_impl, pointer, tensor(other), *how, **more)
                for each in (FAST, PLAIN)
            )
            assert got == expected


@triton.jit
def kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    b = a[:, None] * a[None, :] + 2
    b = tl.where(i[:, None] < 3, b >> 1, b * i[None, :])
    tl.store(y + i[:, None] * N + i[None, :], b, mask=(i < 5)[:, None])


def test_a_block_that_holds_a_number_once_is_stored_whole() -> None:
    x, y = torch.arange(8, dtype=torch.int32), torch.full((8, 8), -1, dtype=torch.int32)
    kernel[(1,)](x, y, 8)
    b = x[:, None] * x[None, :] + 2
    expected = torch.where(x[:, None] < 3, b >> 1, b * x[None, :])
    expected[5:] = -1
    assert torch.equal(y, expected)
    assert interpreter_speed.sizes(tl.int32) == ()


def test_a_nested_function_may_name_a_module_of_the_language_that_its_kernel_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nested_of_core.py").write_text(
        "import triton\nimport triton.language as tl\nfrom triton.language import core\n"
        "@triton.jit\ndef larger(a, b):\n    return core.maximum(a, b) + tl.zeros_like(a)\n"
    )
    (tmp_path / "kernel_of_tl.py").write_text(
        "import triton\nimport triton.language as tl\nfrom nested_of_core import larger\n"
        "@triton.jit\ndef kernel(x, y, N: tl.constexpr):\n    i = tl.arange(0, N)\n"
        "    tl.store(y + i, larger(tl.load(x + i), i))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    outer = importlib.import_module("kernel_of_tl").kernel
    x, y = torch.tensor([3, -1, 7, 2], dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    for _ in range(2):
        outer[(1,)](x, y, 4)
        assert y.tolist() == [3, 1, 7, 3]
