"""Planted faults change what a model computes, by what they say, and leave no trace."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evals.engines.in_process import InProcessEngine, Options
from evals.sensitivity.planted import GROUP, Planted, catalogue


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> InProcessEngine:
    return InProcessEngine(tiny_model, Options(dtype="bfloat16", rows=2, lengths=(64,)))


def logits(engine: InProcessEngine) -> torch.Tensor:
    with torch.inference_mode():
        return engine.model(torch.tensor([[5, 6, 7, 8]])).logits.clone()


@pytest.mark.parametrize("fault", catalogue(2), ids=lambda fault: fault.name)
def test_every_fault_changes_the_model_and_is_undone(engine: InProcessEngine, fault: Planted) -> None:
    before, weights = logits(engine), [x.clone() for x in engine.model.state_dict().values()]
    with fault.plant(engine.model):
        assert not torch.equal(logits(engine), before)
    with pytest.raises(RuntimeError), fault.plant(engine.model):
        raise RuntimeError("in the middle")
    assert torch.equal(logits(engine), before)
    assert all(torch.equal(x, y) for x, y in zip(weights, engine.model.state_dict().values(), strict=True))


def test_weight_noise_is_at_most_half_a_step_of_each_group(engine: InProcessEngine) -> None:
    weight = engine.model.model.layers[0].mlp.up_proj.weight
    before = weight.detach().float().clone()
    with catalogue(2)[0].plant(engine.model):
        change = (weight.detach().float() - before).reshape(-1, GROUP)
    groups = before.reshape(-1, GROUP)
    step = ((groups.amax(1) - groups.amin(1)) / 15)[:, None]
    assert (change.abs() <= step / 2 + groups.abs() / 256 + step / 256).all()  # and the rounding of BF16
    assert (change.square().mean() / (step.square().mean() / 12)).item() == pytest.approx(1, abs=0.1)


def test_a_scaled_value_cache_touches_values_of_its_layer_alone(engine: InProcessEngine) -> None:
    attention = [layer.self_attn for layer in engine.model.model.layers]
    x = torch.ones(1, 1, 64, dtype=torch.bfloat16)
    with torch.inference_mode(), catalogue(2)[2].plant(engine.model):
        faulty = [projection(x) for each in attention for projection in (each.k_proj, each.v_proj)]
    with torch.inference_mode():
        honest = [projection(x) for each in attention for projection in (each.k_proj, each.v_proj)]
    assert [torch.equal(a, b) for a, b in zip(faulty, honest, strict=True)] == [True, True, True, False]
    assert torch.equal(faulty[3], honest[3] * 1.01)


def test_what_is_promised() -> None:
    faults = catalogue(3)
    assert [(each.within, each.layer) for each in faults] == [(100, None), (3000, 0), (0, 1), (0, 2)]
