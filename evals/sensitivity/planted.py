"""Faults that are planted in a transformers model, each undone afterwards.

What this catches: nothing; these are what must be caught. What it cannot show: faults of a serving engine;
these are faults of what a decode step computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

GROUP = 32  # weights that share a scale in common 4-bit formats


@dataclass(frozen=True)
class Planted:
    """A fault, and the number of tokens within which it should be found (0: nothing is promised). ``layer``:
    the one that it is in, None if it is in all."""

    name: str
    plant: Callable[[Any], contextlib.AbstractContextManager[None]]
    within: int = 0
    layer: int | None = None


@contextlib.contextmanager
def weight_noise(model: Any, seed: int = 0) -> Iterator[None]:
    """Uniform noise of the size of 4-bit rounding (half a step of 15 over each group of 32 weights) in every
    linear layer of every decoder layer."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    linears = [
        module.weight
        for layer in model.model.layers
        for module in layer.modules()
        if isinstance(module, torch.nn.Linear)
    ]
    kept = [weight.detach().clone() for weight in linears]
    for weight in linears:
        groups = weight.detach().float().cpu().reshape(-1, GROUP)
        step = (groups.amax(1) - groups.amin(1)) / 15
        noise = (torch.rand(groups.shape, generator=generator) - 0.5) * step[:, None]
        weight.data.copy_((groups + noise).reshape(weight.shape))
    try:
        yield
    finally:
        for weight, before in zip(linears, kept, strict=True):
            weight.data.copy_(before)


@contextlib.contextmanager
def scaled(model: Any, layer: int, name: str, factor: float) -> Iterator[None]:
    """Everything that one projection of one layer writes is scaled: ``v_proj`` scales the value cache."""
    projection = getattr(model.model.layers[layer].self_attn, name)
    handle = projection.register_forward_hook(lambda module, inputs, output: output * factor)
    try:
        yield
    finally:
        handle.remove()


def catalogue(layers: int) -> list[Planted]:
    """4-bit noise, and a 1 % scale error of the value cache of each layer."""

    def promised(layer: int) -> int:
        return 3000 if layer == 0 else 0  # later layers: as far as the model's own rounding noise allows

    values = [
        Planted(
            f"value cache x 1.01, layer {i}",
            partial(scaled, layer=i, name="v_proj", factor=1.01),
            promised(i),
            i,
        )
        for i in range(layers)
    ]
    return [Planted("weight noise of 4-bit size", weight_noise, 100), *values]
