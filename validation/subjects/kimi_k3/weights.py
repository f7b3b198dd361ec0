"""Random weights with realistic statistics, seeded tensor by tensor.

Nothing is neutral: norm gains differ from 1, state half-lives are log-uniform over 1 to 1e5 tokens (issue of
long memory), router biases differ, padding that must not be read (vocabulary, expert columns) is NaN.
Catches nothing by itself. Cannot represent: what training leaves in the residual stream (rare columns
thousands of times larger); a checkpoint can.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case
from validation.contracts.regimes import generator, log_uniform_half_lives, normal
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.shapes import Spec, weight_specs
from validation.subjects.kimi_k3.state import raw

Weights = dict[str, Tensor]
_NAN_SCALE = 255
_NIBBLE_RMS = 2.93  # of the sixteen values of E2M1


def random_weights(config: Config, seed: int = 0, device: str = "cpu") -> Weights:
    """All weights, drawn on the device; equal seeds, configurations and devices give equal weights."""
    found: Weights = {}
    for name, spec in weight_specs(config).items():
        case = Case.of(name, "weight", seed, **{f"axis{i}": n for i, n in enumerate(spec.shape)})
        g = torch.Generator(device).manual_seed(generator(case).initial_seed())
        found[name] = _draw(g, spec, config)
        if name.endswith("dt_bias"):
            found[name] = _long_memory(g, found[name.replace("dt_bias", "a_log")], spec.shape, config)
    for layer in range(config.dense_layers, config.layers):
        _spoil_padding(found, f"layers.{layer}.", config)
    for name in ("embedding", "head"):
        found[name].flatten(0, 1)[config.vocabulary :] = float("nan")
    return found


def moved(weights: Weights, device: str) -> Weights:
    """The same weights on a device."""
    return {name: tensor.to(device) for name, tensor in weights.items()}


def digest(weights: Weights) -> str:
    """Eight hex digits over a sum of every tensor: ensembles of other weights are told by it."""
    found = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        whole = raw(tensor).long().sum()
        found.update(f"{name}:{int(whole)}".encode())
    return found.hexdigest()[:8]


def _draw(g: Generator, spec: Spec, config: Config) -> Tensor:
    shape = spec.shape
    if spec.kind == "nibbles":
        return torch.randint(0, 256, shape, generator=g, dtype=torch.uint8, device=g.device)
    if spec.kind == "scales":
        middle = 127 - round(math.log2((32 * shape[-1]) ** 0.5 * _NIBBLE_RMS / 2))
        return torch.randint(middle - 2, middle + 2, shape, generator=g, dtype=torch.uint8, device=g.device)
    drawn = normal(g, *shape)
    if spec.kind == "gain":
        return (1 + 0.3 * drawn).bfloat16()
    if spec.kind in ("conv", "bias", "speed"):
        return drawn * {"conv": 0.4, "bias": 0.1, "speed": 0.5}[spec.kind]
    if spec.kind == "dt_bias":
        return drawn
    deviation = spec.gain * {"table": 1.0, "score": 1.0 * shape[-1] ** -0.5}.get(spec.kind, shape[-1] ** -0.5)
    first, last = spec.replicated
    if last > first:
        drawn[:, first:last] = drawn[:1, first:last]
    return (drawn * deviation).bfloat16()


def _long_memory(g: Generator, a_log: Tensor, shape: tuple[int, ...], config: Config) -> Tensor:
    """dt_bias such that, with a gate of 0, half-lives are log-uniform over 1 to 1e5 tokens."""
    opened = math.log(2) / -config.lower_bound / log_uniform_half_lives(g, *shape)
    return torch.log(opened / (1 - opened)) / a_log.exp().repeat_interleave(config.kda_dim, 1)


def _spoil_padding(weights: Weights, prefix: str, config: Config) -> None:
    """Padded expert columns have NaN scales: whoever uses them shows."""
    live, stored = config.live_moe, config.stored_moe
    weights[prefix + "w13_scale"].unflatten(2, (2, stored))[:, :, :, live:] = _NAN_SCALE
    weights[prefix + "w2_scale"][..., live // 32 :] = _NAN_SCALE
