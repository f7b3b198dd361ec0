"""The small-batch chain gives the bits of its stages' own kernels, and refuses what it does not serve."""

from __future__ import annotations

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.triton_portable.experts import dispatch, experts
from kernels_under_test.triton_portable.moe_front import OPERATIONS as FRONT
from kernels_under_test.triton_portable.moe_tail import tail
from kernels_under_test.triton_portable.mx_quantize import mx_quantize
from kernels_under_test.triton_portable.route import route
from kernels_under_test.triton_portable.shared_expert import shard
from kernels_under_test.triton_portable.small_batch import (
    OPERATIONS,
    front_and_gate,
    kernels,
    small_batch,
)
from tests.kernels_under_test.memory import same_bits
from validation.contracts.arena import Arena
from validation.contracts.contract import Case
from validation.contracts.moe import small_batch as stages
from validation.contracts.moe.quantize import MxQuantizeArguments
from validation.contracts.moe.small_batch import SmallBatchArguments
from validation.errors import UserError
from validation.judge import on_device


def case(rows: int = 1, **shape: int) -> Case:
    base = {"rows": rows, "ranks": 2, "hidden": 96, "latent": 64, "experts": 9, "slots": 3}
    base |= {"live": 32, "padded": 32, "width": 12}
    return Case.of("small_batch", "typical", 5, **(base | shape))


def arguments(rows: int = 1, **shape: int) -> SmallBatchArguments:
    """As an engine lays them out: between NaN, with pitches."""
    a = on_device(stages.build(case(rows, **shape)), device())
    found: SmallBatchArguments = Arena(stages.CONTRACT, a, device()).arguments
    return found


@pytest.mark.parametrize("rows", [1, 2])
def test_the_chain_is_its_stages_bit_for_bit(rows: int) -> None:
    a, b = arguments(rows), arguments(rows)
    small_batch(a)
    FRONT["moe_front"]["function"](stages.front_arguments(b))
    # Both sum 96 terms, in orders of their own.
    size = (b.h.double().abs() @ b.router.double().abs().flatten(0, 1).T).float()
    assert bool(((a.logits - b.logits).abs() <= 96 * 2.0**-23 * size).all())
    b.logits.copy_(a.logits)
    b.latent.copy_(a.latent)
    route(stages.route_arguments(b, b.logits))
    assert torch.equal(a.ids, b.ids)
    assert same_bits(a.weights, b.weights)
    codes = torch.zeros(b.latent.shape, dtype=torch.uint8, device=b.h.device)
    scales = codes.new_zeros(rows, 2)
    mx_quantize(MxQuantizeArguments(b.latent, codes, scales))
    for rank in range(2):
        experts(stages.experts_arguments(b, rank, (codes, scales), b.ids, b.weights))
    assert same_bits(a.routed, b.routed)
    shard(b.h, b.gate_up, b.shared_down, b.shared, 4.0, 25.0)
    assert same_bits(a.shared, b.shared)
    tail(b.routed, b.shared, b.gamma, b.up, b.out, b.eps)
    assert same_bits(a.out, b.out)


def test_one_rank_alone_computes_its_latent_and_hidden() -> None:
    a = arguments(2)
    small_batch(a)
    logits, latent = torch.full_like(a.logits, -1.0), torch.full_like(a.latent, -1.0)
    whole = a.router.flatten(0, 1)[None].contiguous()
    hidden = front_and_gate(a.h, whole, a.down[:1], a.gate_up[:1], logits, latent)
    assert same_bits(logits, a.logits)
    assert same_bits(latent[:, :32], a.latent[:, :32])
    assert bool((latent[:, 32:] == -1).all())
    assert hidden.shape == (1, 2, 12)


def test_equal_calls_give_equal_bits() -> None:
    a = arguments(2)
    small_batch(a)
    first = a.out.clone(), a.routed.clone(), a.ids.clone()
    small_batch(a)
    assert same_bits(a.out, first[0])
    assert same_bits(a.routed, first[1])
    assert torch.equal(a.ids, first[2])


def test_two_launches_then_the_experts_of_every_rank_then_the_tail() -> None:
    front, one = ("front_shared_kernel", "route_shared_kernel"), dispatch(1).kernels
    assert kernels(case()) == (*front, *one, *one, "tail_fused_kernel")


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"rows": 3}, "3 rows; the small-batch chain serves at most 2"),
        ({"experts": 1}, "2 experts for 3 slots; 3 to 4096 are served"),
        ({"slots": 17}, "17 slots; 1 to 16 are served"),
        ({"latent": 48}, "must be whole blocks of 32; they are 48 and 32"),
    ],
)
def test_shapes_that_are_not_served_are_refused_with_the_reason(shape: dict[str, int], why: str) -> None:
    assert why in OPERATIONS["small_batch"]["supports"](case(**shape))


def test_three_rows_are_refused_before_anything_is_launched() -> None:
    a = arguments(3)
    with pytest.raises(UserError, match="3 rows; the small-batch chain serves at most 2"):
        small_batch(a)
    assert bool(a.logits.isnan().all()), "nothing was written"
