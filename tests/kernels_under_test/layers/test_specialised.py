"""The specialised layers as chains: every step runs on what the one before it left, and fills what is read
next.

At the real widths and with few experts, in the interpreter; times are for a GPU.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernels_under_test.layers import shapes, specialised, weights

FEW = 32  # experts


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "DEVICE", "cpu")
    for module in (weights, specialised):
        monkeypatch.setattr(module, "EXPERTS", FEW)
    torch.manual_seed(1)


def test_a_kda_layer_runs_from_the_stream_to_the_next_boundary() -> None:
    stream = weights.Stream.draw(1)
    before = stream.prefix.clone()
    steps = specialised.kda_attention(shapes.RANK_SHAPES[16], 1, stream, 7)
    assert [step.name for step in steps] == ["attn_res", "projection", "kda_decode", "oproj"]
    for step in steps:
        step.call()
        assert step.moved() > 0
    assert not torch.equal(stream.prefix, before), "two sub-layers were added to the prefix"
    assert bool(stream.prefix.isfinite().all())


def test_a_moe_layer_routes_by_its_own_logits_and_ends_in_its_columns() -> None:
    narrow = dataclasses.replace(shapes.RANK_SHAPES[8], shared=64, expert=64, expert_stored=64)
    steps = {step.name: step for step in specialised.moe(narrow, 1)}
    assert list(steps) == ["shared_expert", "moe_front", "route", "experts", "moe_tail"]
    assert steps["shared_expert"].stream == steps["moe_tail"].join == "shared"
    for step in steps.values():
        step.call()


def test_an_mla_layer_attends_over_its_pages() -> None:
    stream = weights.Stream.draw(2)
    steps = specialised.mla_attention(shapes.RANK_SHAPES[16], 2, 100, stream, 7)
    for step in steps:
        step.call()
    assert {step.name for step in steps} >= {"mla_query", "mla_attention", "mla_value"}
    assert bool(stream.prefix.isfinite().all())


def test_a_rank_of_the_stock_path_holds_all_of_what_ranks_share() -> None:
    whole, shared = (weights.Moe(shapes.RANK_SHAPES[8], share) for share in (1, 8))
    assert shared.down.shape[0] * 8 == whole.down.shape[0]
    assert shared.up.shape[0] * 8 == whole.up.shape[0]
