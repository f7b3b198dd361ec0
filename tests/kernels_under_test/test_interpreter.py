"""The corrected interpreter against torch, bit for bit, over every BF16 pattern and awkward FP32 values.

Each kernel applies one operation; torch does the same on the CPU. NaN compares by its mask: neither
promises a payload.
"""

import subprocess
import sys

import pytest
import torch
import triton
import triton.language as tl

from kernels_under_test import interpreter
from validation.errors import UserError

pytestmark = pytest.mark.skipif(interpreter.device() != "cpu", reason="there is no interpreter on a GPU")

PATTERNS = 65_536
BLOCK = 65_536


def every_bf16() -> torch.Tensor:
    return torch.arange(PATTERNS, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)


def awkward_fp32(count: int = BLOCK, seed: int = 1) -> torch.Tensor:
    """Random FP32 bit patterns (every exponent, NaN, infinities), half of them ties between two BF16."""
    draw = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (count,), generator=draw, dtype=torch.int64)
    bits[::2] = (bits[::2] & ~0xFFFF) | 0x8000
    special = torch.tensor([0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7F7F8000, 0x7F7F7FFF, 1, 0x8000, 0x8001])
    bits[: len(special)] = special
    return bits.to(torch.int32).view(torch.float32)


def assert_same(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bits, where NaN equals NaN."""
    assert got.dtype == expected.dtype
    assert torch.equal(got.isnan(), expected.isnan())
    as_int = {2: torch.int16, 4: torch.int32}[got.element_size()]
    same = (got.view(as_int) == expected.view(as_int)) | got.isnan()
    assert same.all(), (
        f"{int((~same).sum())} of {got.numel()} differ, first at {int((~same).nonzero()[0, 0])}"
    )


@triton.jit
def cast_kernel(x, y, n, BLOCK: tl.constexpr, HOW: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    if HOW == 0:
        tl.store(y + i, value.to(y.dtype.element_ty), mask=i < n)
    elif HOW == 1:
        tl.store(y + i, value, mask=i < n)
    elif HOW == 2:
        tl.store(y + i, value.to(y.dtype.element_ty, fp_downcast_rounding="rtne"), mask=i < n)
    else:
        tl.store(y + i, value.to(y.dtype.element_ty, fp_downcast_rounding="rtz"), mask=i < n)


def cast(x: torch.Tensor, dtype: torch.dtype, how: int = 0) -> torch.Tensor:
    y = torch.empty(x.numel(), dtype=dtype)
    cast_kernel[(1,)](x, y, x.numel(), BLOCK=triton.next_power_of_2(x.numel()), HOW=how)
    return y


@pytest.mark.parametrize("how", [0, 1, 2], ids=["to", "store", "rtne"])
def test_fp32_to_bf16_rounds_to_nearest_even(how):
    x = awkward_fp32()
    assert_same(cast(x, torch.bfloat16, how), x.to(torch.bfloat16))


def test_fp32_to_bf16_can_truncate():
    x = awkward_fp32()
    truncated = (x.view(torch.int32) & -65_536).view(torch.float32).to(torch.bfloat16)
    truncated[x.isnan()] = torch.nan
    assert_same(cast(x, torch.bfloat16, 3), truncated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_every_bf16_is_widened_as_by_torch(dtype):
    x = every_bf16()
    assert_same(cast(x, dtype).float(), x.to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
def test_other_types_to_bf16(dtype):
    x = awkward_fp32()
    if dtype == torch.int32:
        x = x.view(torch.int32) >> torch.arange(BLOCK, dtype=torch.int32) % 32
    x = x.to(dtype)
    assert_same(cast(x, torch.bfloat16), x.to(torch.bfloat16))


def test_bf16_to_int_truncates_the_value():
    x = torch.linspace(-1000, 1000, 4096).to(torch.bfloat16)
    assert torch.equal(cast(x, torch.int32), x.to(torch.int32))


def test_fp32_to_e4m3_rounds_and_saturates():
    x = torch.cat([awkward_fp32(8192), torch.randn(8192) * 200, torch.randn(8192) * 2**-7])
    for tie in (torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(),):
        x = torch.cat([x, (tie[1:] + tie[:-1]) / 2, tie, torch.tensor([1000.0, 448, 464, 465, torch.nan])])
    got, expected = cast(x, torch.float8_e4m3fn), x.to(torch.float8_e4m3fn)
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


def test_every_e4m3_is_widened_as_by_torch():
    x = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert_same(cast(x, torch.float32), x.float())
    assert_same(cast(x, torch.bfloat16), x.to(torch.bfloat16))


@triton.jit
def binary_kernel(x, y, z, BLOCK: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    if OP == "add":
        r = a + b
    elif OP == "sub":
        r = a - b
    elif OP == "mul":
        r = a * b
    elif OP == "div":
        r = a / b
    elif OP == "lt":
        r = a < b
    elif OP == "ge":
        r = a >= b
    elif OP == "eq":
        r = a == b
    elif OP == "ne":
        r = a != b
    elif OP == "and":
        r = (a < b) & (b > 1.0)
    elif OP == "scaled":
        r = a * 3.0 + 1.5
    elif OP == "where":
        r = tl.where(a > b, a, b)
    elif OP == "maximum":
        r = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "mixed":
        r = a * b.to(tl.float32)
    tl.store(z + i, r)


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "lt": lambda a, b: (a < b).to(torch.bfloat16),
    "ge": lambda a, b: (a >= b).to(torch.bfloat16),
    "eq": lambda a, b: (a == b).to(torch.bfloat16),
    "ne": lambda a, b: (a != b).to(torch.bfloat16),
    "and": lambda a, b: ((a < b) & (b > 1)).to(torch.bfloat16),
    "scaled": lambda a, b: a * 3 + 1.5,
    "where": lambda a, b: torch.where(a > b, a, b),
    "maximum": torch.maximum,
    "mixed": lambda a, b: (a * b.float()).to(torch.bfloat16),
}


@pytest.mark.parametrize("op", BINARY)
def test_bf16_arithmetic_is_that_of_torch(op):
    a = every_bf16()
    b = a[torch.randperm(PATTERNS, generator=torch.Generator().manual_seed(3))]
    got = torch.empty_like(a)
    binary_kernel[(1,)](a, b, got, BLOCK=BLOCK, OP=op)
    assert_same(got, BINARY[op](a, b))


@triton.jit
def reduce_kernel(x, total, top, running, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows, cols = tl.arange(0, ROWS), tl.arange(0, COLS)
    at = rows[:, None] * COLS + cols[None, :]
    value = tl.load(x + at)
    tl.store(total + rows, tl.sum(value, axis=1))
    tl.store(top + rows, tl.max(value, axis=1))
    tl.store(running + at, tl.cumsum(value, axis=1))


def test_bf16_reductions_accumulate_in_fp32_and_round_once():
    x = torch.randint(-128, 128, (32, 64), generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    total, top = torch.empty(32, dtype=torch.bfloat16), torch.empty(32, dtype=torch.bfloat16)
    running = torch.empty_like(x)
    reduce_kernel[(1,)](x, total, top, running, ROWS=32, COLS=64)
    assert_same(total, x.double().sum(1).to(torch.bfloat16))  # integers: any order is exact
    assert_same(top, x.amax(1))
    assert_same(running, x.double().cumsum(1).to(torch.bfloat16))


@triton.jit
def dot_kernel(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + m[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(left, right))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_dot_multiplies_values_not_bits(dtype):
    draw = torch.Generator().manual_seed(0)
    a = torch.randint(-8, 9, (16, 64), generator=draw).float().to(dtype)
    b = torch.randint(-8, 9, (64, 32), generator=draw).float().to(dtype)
    c = torch.empty(16, 32)
    dot_kernel[(1,)](a, b, c, M=16, N=32, K=64)
    assert_same(c, (a.double() @ b.double()).float())


@triton.jit
def loop_kernel(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for step in range(0, n):
        total += tl.load(x + step * BLOCK + i)
    tl.store(y + i, total)


def test_a_run_time_value_can_bound_a_loop():
    x, y = torch.arange(12.0).reshape(3, 4), torch.empty(4)
    loop_kernel[(1,)](x, y, 3, BLOCK=4)
    assert torch.equal(y, x.sum(0))


def test_the_language_is_put_back_after_a_launch():
    def parts() -> list[object]:
        return [tl.load, tl.core.load, tl.core.reduce, tl.tensor.__add__, tl.math.exp, tl.core.dtype.to_ir]

    before = parts()
    reduce_kernel[(1,)](*(torch.zeros(8, dtype=torch.bfloat16) for _ in range(4)), ROWS=2, COLS=4)
    assert parts() == before


def test_install_twice_changes_nothing():
    from triton.runtime.interpreter import InterpreterBuilder

    before = InterpreterBuilder.cast_impl
    interpreter.install()
    assert InterpreterBuilder.cast_impl is before


def test_unexpected_internals_are_refused(monkeypatch):
    monkeypatch.setitem(interpreter._EXPECTED, "InterpreterBuilder.create_dot", ("self", "a", "b"))
    from triton.runtime import interpreter as triton_interpreter

    with pytest.raises(UserError, match=r"triton 3.*create_dot.*install triton=="):
        interpreter._check(triton_interpreter)


def test_the_uncorrected_interpreter_needs_a_fresh_process():
    with pytest.raises(UserError, match="fresh process"):
        interpreter.leave_uncorrected()


def test_unknown_device_is_refused(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_DEVICE", "tpu")
    with pytest.raises(UserError, match="cpu or cuda"):
        interpreter.device()


def test_triton_imported_too_early_is_reported():
    program = "import triton\nfrom kernels_under_test.interpreter import prepare\nprepare()"
    environment = {"LOCKSTEP_DEVICE": "cpu", "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "triton was imported before the interpreter was chosen" in ran.stderr


@triton.jit
def exp2_kernel(x, y, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(y + lane, tl.exp2(tl.load(x + lane)))


def test_powers_of_two_are_exact():
    """numpy's exp2(127) in FP32 is one unit above 2**127: an MXFP8 kernel then rounds a tie the wrong way."""
    x = torch.arange(-128, 128, dtype=torch.float32, device=interpreter.device())
    y = torch.empty_like(x)
    exp2_kernel[(1,)](x, y, BLOCK=256)
    normal = x >= -126  # a GPU may flush what lies below
    assert torch.equal(y[normal].double(), torch.exp2(x[normal].double()))


def test_types_that_are_remembered_are_those_that_were_asked_for() -> None:
    one, again = tl.block_type(tl.int32, [4, 8]), tl.block_type(tl.int32, [tl.constexpr(4), 8])
    assert one == again
    assert one.shape == again.shape
    assert (again.numel, again.scalar, str(again)) == (32, tl.int32, str(one))
    others = [tl.block_type(tl.int32, [8, 4]), tl.block_type(tl.uint32, [4, 8]), tl.block_type(tl.int32, [4])]
    others.append(tl.block_type(tl.pointer_type(tl.int32), [4, 8]))
    assert len({str(kind) for kind in (one, *others)}) == 5
    assert [kind.numel for kind in others] == [32, 32, 4, 32]
    made = [tl.tensor(handle, kind) for handle, kind in ((1, one), (2, others[0]), (3, one), (4, tl.int32))]
    assert [x.handle for x in made] == [1, 2, 3, 4]
    assert [[size.value for size in x.shape] for x in made] == [[4, 8], [8, 4], [4, 8], []]
    assert [x.numel.value for x in made] == [32, 32, 32, 1]
