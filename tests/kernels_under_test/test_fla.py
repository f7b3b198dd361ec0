"""The FLA adapter: judged like any provider, and its fences hold the memory that an unmasked load reads."""

import pytest
import torch
import triton
import triton.language as tl

from kernels_under_test.interpreter import device

pytest.importorskip("fla")

from kernels_under_test.fla_core.kda import fenced
from validation.contracts.contract import Case
from validation.judge import judge_case
from validation.providers import implementation

CASES = [
    "kda_decode:heads=2,dim=64,requests=3:null_slots:6",
    "kda_decode:heads=2,dim=60,requests=2:unit_state:7",
    "kda_verify:heads=2,dim=100,requests=3,tokens=3:null_slots:8",
]


@pytest.mark.parametrize("line", CASES)
def test_fla_does_what_its_profile_says(line):
    case = Case.parse(line)
    result = judge_case(case, implementation(case.op, "fla"), device(), share=1e-9)
    assert result.verdict == "pass", result.findings


def test_a_fence_is_nan_on_both_sides_of_a_dense_copy():
    value = torch.randn(3, 1, 2, 60, device=device()).to(torch.bfloat16)
    inner = fenced(value.transpose(0, 2))
    assert inner.is_contiguous()
    assert torch.equal(inner, value.transpose(0, 2))
    whole = inner.as_strided((inner.storage_offset() + inner.numel() + 60,), (1,), 0)
    assert whole[: inner.storage_offset()].isnan().all()
    assert whole[-60:].isnan().all()


@triton.jit
def unmasked_kernel(g, y, K: tl.constexpr, BLOCK: tl.constexpr):
    """The load of g as in fla-core 0.5.2: BLOCK lanes of the last head, of which K exist."""
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    decay = tl.exp(tl.load(g + row * K + lane).to(tl.float32))
    tl.store(y + row, tl.sum(decay * tl.where(lane < K, 1.0, 0.0), axis=0))


@pytest.mark.parametrize("dim", [60, 100, 112])
def test_an_unmasked_load_of_g_reads_the_fence(dim):
    """The last head becomes NaN and the others do not: what the judge sees of fla-core 0.5.2."""
    g = fenced(-torch.rand(2, 1, 2, dim, device=device()).to(torch.bfloat16))
    y = torch.empty(4, device=device())
    unmasked_kernel[(4,)](g, y, K=dim, BLOCK=triton.next_power_of_2(dim))
    assert y.isnan().tolist() == [False, False, False, True]
