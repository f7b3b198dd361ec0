"""vLLM's rejection sampler: judged like any provider, and what it does at the edges of its comparison.

Needs the sources of vLLM 0.33.0 (see ``vllm_release.tree``); skipped without them.
"""

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.vllm_release.tree import find
from validation.errors import Unavailable

try:
    find()
except Unavailable as error:
    pytest.skip(str(error), allow_module_level=True)

from kernels_under_test.vllm_triton.reject_sample import reject_sample
from validation.contracts.contract import Case
from validation.contracts.vocabulary.reject import together
from validation.contracts.vocabulary.reject_arguments import RejectSampleArguments
from validation.judge import judge_case
from validation.providers import implementation

CASES = [
    "reject_sample:requests=9,drafts=3,vocabulary=37,proposal=1:edges:5",
    "reject_sample:requests=9,drafts=3,vocabulary=37,proposal=0:near:5",
    "reject_sample:requests=7,drafts=2,vocabulary=8200,proposal=1:ties:5",
]


@pytest.mark.parametrize("line", CASES)
def test_vllm_does_what_its_profile_says(line):
    case = Case.parse(line)
    result = judge_case(case, implementation(case.op, "vllm_triton"), device(), share=1e-9)
    assert result.verdict == "pass", result.findings


def one_draft(p: float, q: float, u: float) -> list[int]:
    """Tokens and count of one request that drafted token 1 of three; token 2 would be recovered."""
    a = RejectSampleArguments(
        drafts=torch.tensor([1], dtype=torch.int32),
        ends=torch.tensor([1], dtype=torch.int32),
        target=torch.tensor([[0.0, p, 1.0 - p]]),
        proposal=torch.tensor([[1.0 - q, q, 0.0]]),
        uniform=torch.tensor([u]),
        noise=torch.ones(1, 3),
        bonus=torch.tensor([0], dtype=torch.int32),
        temperature=torch.ones(1),
        tokens=torch.zeros(1, 2, dtype=torch.int32),
        accepted=torch.zeros(1, dtype=torch.int32),
    )
    for name, value in vars(a).items():
        if isinstance(value, torch.Tensor):
            setattr(a, name, value.to(device()))
    reject_sample(a)
    found: list[int] = together(a)[0].tolist()
    return found


KEPT, REJECTED = [1, 0, 1], [2, -1, 0]


def test_a_draft_that_p_excludes_is_kept_at_u_0():
    """0 / q >= 0. Its uniform numbers are FP64, so that it meets one in 2**53."""
    assert one_draft(p=0.0, q=0.5, u=0.0) == KEPT
    assert one_draft(p=0.0, q=0.5, u=2.0**-24) == REJECTED


def test_a_draft_of_q_0_is_rejected_whatever_p():
    assert one_draft(p=0.25, q=0.0, u=0.0) == REJECTED


def test_u_equal_to_the_quotient_keeps_the_draft():
    assert one_draft(p=0.25, q=0.5, u=0.5) == KEPT
    assert one_draft(p=0.25, q=0.5, u=0.50000006) == REJECTED
