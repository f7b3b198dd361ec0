"""The small-batch chain is its stages' references wired together, each judged on what was published."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from validation.contracts.contract import Case
from validation.contracts.moe import small_batch
from validation.contracts.moe.small_batch import CONTRACT, SmallBatchArguments
from validation.faults import small_batch_step
from validation.faults.orders import LIBRARY
from validation.numerics.arithmetic import Noise
from validation.numerics.choices import Choice

SHAPE = {"rows": 2, "ranks": 2, "hidden": 64, "latent": 64, "experts": 8, "slots": 4}
SHAPE |= {"live": 32, "padded": 32, "width": 16}


def drawn(regime: str, **shape: int) -> SmallBatchArguments:
    return small_batch.build(Case.of("small_batch", regime, 3, **(SHAPE | shape)))


def run(a: SmallBatchArguments) -> SmallBatchArguments:
    """A copy, filled by the plain FP32 chain."""
    filled = copy.deepcopy(a)
    small_batch_step.run(filled, LIBRARY, profile="specialized")
    return filled


def test_the_plain_chain_ends_where_plain_float64_does() -> None:
    """One pass in float64 without any rounding but the routing's choice: what BF16 and FP8 add is bounded by
    the sizes of the terms."""
    a = drawn("typical")
    filled = run(a)
    h = a.h.double()
    z = torch.stack([filled.routed[rank].double() for rank in range(2)]).sum(0)
    normed = z * torch.rsqrt((z * z).mean(-1, keepdim=True) + a.eps) * a.gamma.double()
    up = normed @ a.up.double().flatten(0, 1).T
    gates = torch.einsum("bk,rck->rbc", h, a.gate_up.double())
    gate, top = gates[..., :16], gates[..., 16:]
    hidden = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(top / 25)
    sent = torch.einsum("rbc,rnc->bn", hidden, a.shared_down.double())
    # Roundings to BF16: z, its square, n, up; gate, up, hidden, partial on each rank; S and out.
    size = normed.abs() @ a.up.double().abs().flatten(0, 1).T
    size = size + torch.einsum("rbc,rnc->bn", hidden.abs(), a.shared_down.double().abs()) + sent.abs()
    assert bool(((filled.out.double() - up - sent).abs() <= 10 * 2.0**-8 * size).all())


def test_logits_and_latent_are_the_whole_weights_products() -> None:
    a = drawn("typical")
    found = small_batch.reference(Noise(small_batch.SPECIALIZED), a)
    logits = a.h.double() @ a.router.double().flatten(0, 1).T
    latent = a.h.double() @ a.down.double().flatten(0, 1).T
    # float64 sums of 64 terms.
    assert bool(((found["logits"].mean - logits).abs() <= 64 * 2.0**-53 * logits.abs().sum()).all())
    assert bool(((found["latent"].mean - latent).abs() <= 64 * 2.0**-53 * latent.abs().sum()).all())
    assert isinstance(found["ids"], Choice)


def test_every_stage_is_judged_on_what_was_published_before_it() -> None:
    a = drawn("typical")
    honest = run(a)
    ar = Noise(small_batch.SPECIALIZED)
    before = small_batch.reference(ar, CONTRACT.adopt(a, honest))
    for name, moved in (
        ("logits", {"weights"}),
        ("latent", {"routed"}),
        ("ids", {"weights", "routed"}),
        ("weights", {"routed"}),
        ("routed", {"out"}),
        ("shared", {"out"}),
    ):
        other = copy.deepcopy(honest)
        tensor = getattr(other, name)
        tensor.copy_(tensor.flip(-1) if name == "ids" else tensor * 1.5)
        after = small_batch.reference(ar, CONTRACT.adopt(a, other))
        values = {n for n in before if not isinstance(before[n], Choice)}
        assert moved == {n for n in values if not torch.equal(before[n].mean, after[n].mean)}, name


def test_without_a_backend_the_stages_follow_the_profile() -> None:
    a = drawn("typical")
    ar = Noise(small_batch.SPECIALIZED)
    quiet, honest = small_batch.reference(ar, a), small_batch.reference(ar, CONTRACT.adopt(a, run(a)))
    assert torch.equal(quiet["ids"].mean, honest["ids"].mean)
    for name in ("routed", "shared", "out"):
        apart = (quiet[name].mean - honest[name].mean).abs()
        # A flip of one BF16 or FP8 step on the way.
        assert float(apart.max()) <= 2.0**-3 * float(honest[name].mean.abs().max())


def test_equal_scores_choose_the_first_experts_and_zero_rows_give_the_shared_zero() -> None:
    a = drawn("equal")
    filled = run(a)
    assert filled.ids[0].tolist() == [0, 1, 2, 3]
    assert bool((filled.out[0] == 0).all())
    assert int(torch.signbit(filled.out[0]).sum()) == 0


def test_similar_rows_share_some_experts_and_not_all() -> None:
    ids = run(drawn("same_experts", experts=16, slots=8)).ids
    shared = len(set(ids[0].tolist()) & set(ids[1].tolist()))
    assert 3 <= shared < 8


def test_a_nan_stays_in_the_second_row() -> None:
    filled = run(drawn("nan_row"))
    assert bool(filled.out[0].isfinite().all())
    assert bool(filled.out[1].isnan().all())


def test_padding_of_the_hidden_holds_nan_and_is_not_read() -> None:
    a = drawn("typical", padded=64)
    assert a.hidden_rule == "no_saturation"
    assert drawn("typical").hidden_rule == "floor"
    assert bool((a.w13_scale.unflatten(2, (2, 64))[:, :, :, 32:] == 255).all())
    assert bool(run(a).out.isfinite().all())


def test_ids_that_are_none_are_a_finding_and_no_crash() -> None:
    a = drawn("typical")
    wrong = run(a)
    wrong.ids[0, 0] = 1 << 20
    found = small_batch.reference(Noise(small_batch.SPECIALIZED), CONTRACT.adopt(a, wrong))
    assert found["ids"].wrong(wrong.ids, 1e-6).tolist() == [True, False]


@pytest.mark.parametrize("ranks", [8, 16])
def test_the_full_tier_has_the_real_shapes(ranks: int) -> None:
    rows = {c["rows"] for c in small_batch.cases("full") if c["hidden"] == 7168 and c["ranks"] == ranks}
    assert rows == ({1} if ranks == 8 else {1, 2})


def test_the_merged_profile_has_every_stages_sites() -> None:
    sites = set(small_batch.SPECIALIZED.sites)
    assert {
        "moe_front.latent",
        "route.weights",
        "experts.row",
        "shared_expert.hidden",
        "moe_tail.up",
    } <= sites
    assert dataclasses.replace(small_batch.STOCK, name="x").algebra["route.order"] == "any"
