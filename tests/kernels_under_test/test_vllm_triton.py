"""vLLM's Triton kernels: judged like any provider, and what each adapter says of them shown on the kernels.

Needs the sources of vLLM 0.33.0 (see ``vllm_release.tree``); skipped without them.
"""

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.vllm_release import modules
from kernels_under_test.vllm_release.tree import find
from validation.errors import Unavailable

try:
    find()
except Unavailable as error:
    pytest.skip(str(error), allow_module_level=True)

from kernels_under_test.vllm_triton.experts import sorted_pairs
from kernels_under_test.vllm_triton.route import largest
from validation.contracts.contract import Case
from validation.judge import judge_case
from validation.providers import implementation

BF16 = torch.bfloat16
CASES = [
    "attn_res:rows=3,width=320,blocks=4,write=-1,merge=0,finish=1,aux=0:typical:25",
    "attn_res:rows=3,width=448,blocks=5,write=-1,merge=0,finish=0,aux=0:peaked:41",
    "projection:rows=4,columns=100,k=1000:typical:50",
    "kda_decode:heads=2,dim=60,requests=3:null_slots:6",
    "kda_verify:heads=2,dim=64,requests=3,tokens=3:null_slots:26",
    "mla_attention:requests=2,tokens=2,heads=2,page=32,length=90:unequal:4",
    "mla_dcp:requests=2,tokens=2,ranks=4,heads=2,page=32,length=90,interleave=4:short:5",
    "mx_quantize:rows=4,width=96,rule=1:tiny:5",
    "mla_value:requests=5,tokens=3,heads=2,latent=80,dim=48:padding:4",
    "oproj:ranks=3,rows=2,k=24,width=328,blocks=4,merge=0,moe=0:typical:31",
    "dense_mlp:ranks=3,rows=5,width=72,hidden=136:typical:21",
    "shared_expert:ranks=3,rows=2,hidden=300,width=20:typical:100",
    "logits:rows=4,wanted=3,ranks=3,shard=24,width=320,scale=1,norm=2,org=67:typical:51",
    "experts:rows=5,experts=6,slots=4,width=96,live=64,padded=96,keep=1:padded:6",
]


@pytest.mark.parametrize("line", CASES)
def test_vllm_does_what_its_profile_says(line):
    case = Case.parse(line)
    found = implementation(case.op, "vllm_triton")
    assert found.supports(case) is None
    result = judge_case(case, found, device(), share=1e-9)
    assert result.verdict == "pass", result.findings


REFUSED = {
    "attn_res:rows=3,width=320,blocks=4,write=3,merge=0,finish=0,aux=0:typical:22": "excess",
    "mla_dcp:requests=2,tokens=1,ranks=4,heads=1,page=32,length=90,interleave=1:nan_request:8": "nonfinite",
    "mx_quantize:rows=3,width=224,rule=1:huge:7": "bits",
    "mla_attention:requests=2,tokens=1,heads=1,page=32,length=90:typical:4": "mean_square",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_not_served_would_be_found(line):
    """The reason that an adapter gives is no excuse for a kernel that would pass."""
    case = Case.parse(line)
    found = implementation(case.op, "vllm_triton")
    assert found.supports(case)
    result = judge_case(case, found, device(), share=1e-9)
    assert REFUSED[line] in {finding.statistic for finding in result.findings}


def test_a_block_that_is_a_source_counts_twice():
    """vLLM stores the block first: reading it again is reading the prefix."""
    attn_res = modules.module(modules.ATTN_RES).attn_res
    prefix = torch.full((1, 16), 3.0, dtype=BF16, device=device())
    blocks = torch.zeros(1, 8, 16, dtype=BF16, device=device())
    one = torch.ones(16, dtype=BF16, device=device())
    mixed = attn_res(prefix, None, blocks, one, 0 * one, None, 1, 0, 1e-5, 1e-5)
    assert torch.equal(mixed, prefix)  # equal scores: (3 + 3) / 2, where the old block gives (0 + 3) / 2


def test_the_convolution_takes_a_negative_slot_for_a_live_one():
    convolution = modules.module(modules.CONVOLUTION).causal_conv1d_update
    pool = torch.zeros(3, 4, 3, dtype=BF16, device=device())
    x = torch.ones(1, 4, dtype=BF16, device=device())
    slot = torch.tensor([-1], dtype=torch.int32, device=device())
    convolution(x, pool[1:], torch.ones(4, 4, device=device()), conv_state_indices=slot)
    assert torch.equal(pool[0, :, 2], x[0])  # written before the two slots it was given
    assert not pool[1:].any()


def test_the_gated_norm_reads_the_gate_of_a_zero_row():
    norm = modules.module(modules.GATED_NORM).rms_norm_gated
    gate = torch.tensor([[[0.0], [float("nan")]]], device=device()).to(BF16)
    out = norm(torch.zeros_like(gate), gate, torch.ones(1, device=device()), None, activation="sigmoid")
    assert out[0, 0].item() == 0
    assert out[0, 1].isnan()


def test_the_merge_leaves_out_a_shard_that_is_nan():
    dcp = modules.module(modules.DCP)
    received = torch.zeros(2, 1, 1, 18, dtype=BF16, device=device())
    received[0, ..., :16], received[1, ..., :16] = 5.0, float("nan")
    halves = torch.tensor([1.0, float("nan")], device=device()).view(BF16).view(2, 2)
    received[:, 0, 0, 16:] = halves
    merged = dcp._dcp_a2a_unpack_combine(received, 16, 2, False, False)
    assert merged.unique().tolist() == [5.0]


def test_the_experts_chosen_are_the_largest_and_of_equal_ones_the_first():
    keys = torch.zeros(3, 40, device=device())
    keys[0, [7, 39, 3]] = torch.tensor([1.0, 2.0, -1.0], device=device())
    keys[1] = -torch.inf
    keys[2] = -keys.new_tensor(range(40)) - 5
    chosen = largest(keys, 4).sort(-1).values
    assert chosen.tolist() == [[0, 1, 7, 39], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_pairs_are_sorted_into_whole_blocks_of_one_expert():
    rows, blocks = sorted_pairs(torch.tensor([7, 2, 7, 7, 9]), 2)
    assert rows.tolist() == [1, 5, 0, 2, 3, 5, 4, 5]
    assert blocks.tolist() == [0, 1, 1, 2]
