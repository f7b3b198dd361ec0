"""Partial sums stay FP32 where the providers ask for it; the judge sees where PyTorch rounds them."""

import pytest
import torch

import kernels_under_test.torch_stock.kda as stock
from kernels_under_test.gemm import fp32_partial_sums
from validation.contracts.contract import Case
from validation.judge import judge_case
from validation.providers import implementation

CASE = Case.parse("kda_verify:heads=2,dim=100,requests=3,tokens=3:null_slots:8")


def test_the_setting_is_put_back():
    setting = torch.backends.cuda.matmul
    before = setting.allow_bf16_reduced_precision_reduction
    with fp32_partial_sums():
        assert setting.allow_bf16_reduced_precision_reduction is False
    assert setting.allow_bf16_reduced_precision_reduction == before


@pytest.mark.device
def test_bf16_partial_sums_of_the_library_are_flagged(monkeypatch):
    """On an H200 cuBLAS chose a split-K kernel with BF16 partial sums for this product."""
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip("which kernel cuBLAS chooses is known for the H200 alone")
    provider = implementation("kda_verify", "torch")
    assert judge_case(CASE, provider, "cuda", share=1e-7).verdict == "pass"
    monkeypatch.setattr(stock, "fp32_partial_sums", lambda: torch.no_grad())
    assert judge_case(CASE, provider, "cuda", share=1e-7).verdict == "fail"
