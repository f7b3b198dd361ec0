"""Sizes of Kimi K3: what section 1 lists comes out, and what no step can be built from is refused."""

from __future__ import annotations

import dataclasses
import re

import pytest

from validation.errors import UserError
from validation.subjects.kimi_k3.config import Config, real, scaled
from validation.subjects.kimi_k3.shapes import weight_specs


def test_real_sizes_are_those_of_the_specification() -> None:
    c = real(8)
    assert (len(c.mla_layers), c.mla_layers[-2:], c.blocks) == (24, (91, 92), 8)
    assert (c.kda_width, c.kda_columns, c.live_moe) == (1536, 6288, 384)
    assert (real(16).kda_columns, real(16).live_moe, real(16).stored_moe) == (3216, 192, 256)
    assert not real(16).floor_rule
    assert c.floor_rule
    specs = weight_specs(c)
    assert specs["layers.3.in_proj"].shape == (8, 3648, 7168)
    assert specs["layers.1.w13"].shape == (8, 896, 768, 1792)
    assert specs["layers.1.router"].shape == (8, 112, 7168)


def test_scaled_down_keeps_every_path() -> None:
    c = scaled()
    kinds = {(c.is_mla(n), c.writes_block(n), n < c.dense_layers) for n in range(c.layers)}
    assert {(False, True, True), (False, False, False), (True, False, False), (True, True, False)} <= kinds
    assert c.is_mla(c.layers - 1)
    assert c.is_mla(c.layers - 2)
    assert [c.blocks_before(n) for n in (0, 1, 3, 4, 13)] == [0, 1, 1, 2, 5]
    assert scaled(ranks=4).live_moe < scaled(ranks=4).stored_moe


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"heads": 5}, "heads=5 is not divisible by ranks=2"),
        ({"stored_moe": 32}, "stored_moe=32 is below 64"),
        ({"kv_rank": 256}, "kv_rank=256"),
        ({"nope": 64}, "nope=64"),
        ({"attn_res_block": 1}, "14 AttnRes blocks; at most 8"),
        ({"dcp": 3}, "dcp=3 is neither 1 nor ranks=2"),
        ({"drafts": 8}, "drafts=8"),
        ({"mla_layers": (14,)}, "layer [14]"),
        ({"latent": 72, "ranks": 2}, "latent=72 is not a multiple of 32"),
    ],
)
def test_sizes_that_have_no_step_are_refused(change: dict[str, int], named: str) -> None:
    with pytest.raises(UserError, match=re.escape(named)):
        dataclasses.replace(scaled(), **change)


def test_digest_tells_configurations_apart() -> None:
    assert scaled().digest() == scaled().digest()
    assert len({c.digest() for c in (scaled(), scaled(drafts=1), scaled(ranks=4), Config())}) == 4
