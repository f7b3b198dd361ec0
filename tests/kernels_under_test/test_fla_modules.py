"""The KDA core that is FLA's from convolution to gated norm: judged like any provider."""

import pytest
import torch

from kernels_under_test.interpreter import device

pytest.importorskip("fla")

from kernels_under_test.fla_modules import kda
from validation.contracts.contract import Case
from validation.judge import judge_case
from validation.providers import implementation

CASES = [
    "kda_decode:heads=2,dim=64,requests=3:null_slots:6",
    "kda_decode:heads=2,dim=60,requests=2:unit_state:7",
    "kda_verify:heads=2,dim=64,requests=3,tokens=3:null_slots:8",
]


@pytest.mark.parametrize("line", CASES)
def test_fla_does_what_its_profile_says(line):
    case = Case.parse(line)
    result = judge_case(case, implementation(case.op, "fla_modules"), device(), share=1e-9)
    assert result.verdict == "pass", result.findings


def test_the_oldest_column_of_the_cache_is_never_read():
    """It is NaN where the adapter makes the cache; the other three and the input are weighted in order."""
    cache = torch.tensor([[[float("nan"), 1.0, 2.0, 4.0]]], device=device()).bfloat16()
    weight = torch.tensor([[1.0, 10.0, 100.0, 1000.0]], device=device())
    x = torch.tensor([[8.0]], device=device()).bfloat16()
    y, after = kda.convolution.causal_conv1d_update(x, cache, weight=weight)
    assert y.float().item() == torch.tensor(8421.0).bfloat16().item()
    assert after[0, 0].tolist() == [1.0, 2.0, 4.0, 8.0]


def test_one_configuration_is_left_the_largest_tile():
    tuner = kda.convolution.causal_conv1d_update_kernel
    while not hasattr(tuner, "configs"):
        tuner = tuner.fn
    assert [c.kwargs for c in tuner.configs] == [{"BD": 256}]
