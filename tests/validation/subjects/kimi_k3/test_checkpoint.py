"""Weights from a file: the same bytes come back, and what does not fit is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from step_case import small

from validation.errors import UserError
from validation.subjects.kimi_k3.checkpoint import check_weights, load_weights, save_weights
from validation.subjects.kimi_k3.weights import random_weights


def test_weights_survive_the_file(tmp_path: Path) -> None:
    weights = random_weights(small())
    save_weights(weights, tmp_path / "w.safetensors", small())
    read = load_weights(tmp_path / "w.safetensors", small())
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[n].view(torch.uint8), weights[n].view(torch.uint8)) for n in weights)


def test_missing_and_misshapen_tensors_are_named() -> None:
    weights = random_weights(small())
    del weights["layers.1.conv"]
    weights["layers.2.f_b"] = weights["layers.2.f_b"][:, :-1]
    weights["head"] = weights["head"].float()
    with pytest.raises(UserError) as caught:
        check_weights(weights, small(), "w")
    message = str(caught.value)
    assert "layers.1.conv is missing" in message
    assert "layers.2.f_b is bfloat16 [2, 63, 16], expected bfloat16 [2, 64, 16]" in message
    assert "head is float32" in message


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("no")
    with pytest.raises(UserError, match="is no safetensors file"):
        load_weights(tmp_path / "w", small())
    with pytest.raises(UserError, match="cannot read the weights"):
        load_weights(tmp_path / "absent", small())


def test_half_lives_are_log_uniform() -> None:
    """With a gate of 0, decay per token is exp(lower_bound * sigmoid(exp(A_log) dt_bias))."""
    c, weights = small(), random_weights(small())
    speed = weights["layers.1.a_log"].exp().repeat_interleave(c.kda_dim, 1)
    decay = torch.exp(c.lower_bound * torch.sigmoid(speed * weights["layers.1.dt_bias"]))
    decades = torch.log10(torch.log(torch.tensor(0.5)) / torch.log(decay.double()))
    assert decades.min() < 0.5
    assert decades.max() > 4.5
    assert (decades.histc(5, 0, 5) > 0).all()
