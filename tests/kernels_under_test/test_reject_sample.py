"""The kernels of the acceptance rule against plain loops, where every bit is known: products of FP32 and
divisions by powers of two."""

import dataclasses
import inspect

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable import reject_sample as kernels_of_the_rule
from kernels_under_test.triton_portable.reject_sample import TABLE, reject_sample
from tests.kernels_under_test.memory import spread
from tests.validation.contracts.vocabulary.plain_rejection import plain
from validation.contracts.contract import Case
from validation.contracts.vocabulary.reject import together
from validation.contracts.vocabulary.reject_arguments import RejectSampleArguments
from validation.contracts.vocabulary.reject_inputs import build
from validation.dispatch.launches import recorded
from validation.errors import UserError
from validation.execution.plan import Settings, make_plan


def arguments(regime: str, vocabulary: int, requests: int = 9, proposal: int = 1) -> RejectSampleArguments:
    """A case whose exponential numbers are powers of two, its matrices in memory with gaps."""
    shape = {"requests": requests, "drafts": 3, "vocabulary": vocabulary, "proposal": proposal}
    a = build(Case.of("reject_sample", regime, 5, **shape))
    a.noise = torch.exp2(torch.log2(a.noise).round())
    for name in ("target", "proposal", "noise"):
        if getattr(a, name) is not None:
            setattr(a, name, spread(getattr(a, name)))
    a.tokens = torch.full((requests, 11), 77, dtype=torch.int32, device=device())[:, 3:7]
    for name in ("drafts", "ends", "uniform", "bonus", "temperature", "accepted"):
        setattr(a, name, getattr(a, name).to(device()))
    return a


@pytest.mark.parametrize("proposal", [0, 1])
@pytest.mark.parametrize("vocabulary", [5, 64, 65, 1000])
@pytest.mark.parametrize("regime", ["typical", "ties", "placeholders", "poison", "edges"])
def test_every_token_is_that_of_the_plain_rule(regime, vocabulary, proposal):
    a = arguments(regime, vocabulary, proposal=proposal)
    reject_sample(a)
    assert together(a).tolist() == plain(a, strict=True)


@pytest.mark.parametrize("vocabulary", [4096, 4097, 9000])  # the switch of kernels, two and three blocks
@pytest.mark.parametrize("regime", ["typical", "ties", "tail"])
def test_blocks_of_a_large_vocabulary_are_combined(regime, vocabulary):
    a = arguments(regime, vocabulary, requests=4)
    reject_sample(a)
    assert together(a).tolist() == plain(a, strict=True)


@pytest.mark.parametrize("vocabulary", [37, 4097])
def test_the_gaps_between_rows_of_tokens_stay_and_equal_calls_agree(vocabulary):
    a = arguments("typical", vocabulary)
    reject_sample(a)
    first = together(a)
    whole = a.tokens.as_strided((9, 11), (11, 1), 0)
    assert bool((whole[:, :3] == 77).all())
    assert bool((whole[:, 7:] == 77).all())
    reject_sample(a)
    assert torch.equal(together(a), first)


@pytest.mark.parametrize("requests", [1, 33, 70])
def test_batches_that_fill_no_program(requests):
    a = arguments("typical", 37, requests=requests)
    reject_sample(a)
    assert together(a).tolist() == plain(a, strict=True)


def test_the_table_of_the_dispatch_is_what_is_launched():
    for vocabulary in (64, 65, 4097):
        with recorded() as names:
            reject_sample(arguments("typical", vocabulary, requests=2))
        assert tuple(names) == next(r.kernels for r in TABLE if vocabulary <= r.rows)


def test_probabilities_stored_by_columns_are_refused_before_anything_is_launched():
    a = arguments("typical", 37)
    a.target = a.target.T.contiguous().T
    with recorded() as names, pytest.raises(UserError, match="target must be dense"):
        reject_sample(a)
    assert names == []


def test_a_vocabulary_beyond_the_largest_is_refused_with_its_size():
    a = arguments("typical", 37)
    wide = torch.zeros(1, device=device()).expand(len(a.target), (1 << 20) + 1)
    with recorded() as names, pytest.raises(UserError, match="1048577 tokens"):
        reject_sample(dataclasses.replace(a, target=wide))
    assert names == []


def test_the_uncorrected_interpreter_is_no_control_of_kernels_without_bf16():
    """Where it changes nothing it cannot be flagged, and no verdict may wait for it."""
    controlled = {
        op: [task.role for task in make_plan(Settings(ops=(op,), providers=("triton",), device="cpu")).tasks]
        for op in ("reject_sample", "projection")
    }
    assert "control" in controlled["projection"]
    assert "control" not in controlled["reject_sample"]
    source = inspect.getsource(kernels_of_the_rule)
    assert "tl.bfloat16" not in source
    assert "tl.dot" not in source
