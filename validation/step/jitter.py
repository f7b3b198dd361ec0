"""Limits where honest variants are too dear to draw: pairs of steps whose outputs are moved.

A provider's own operations run, and every element of a BF16 output that is not a copy goes to its lower or
upper neighbour, each with a chance of a quarter (random rounding: Parker 1997, Vignes' CESTAC). Two such
steps part by another amount than honest backends do: by how much is measured on two small models, whose
honest pairs are kept or measured (``limits``), for each kind of distance, and taken off.

Catches: nothing by itself. Cannot represent: a relation between moved and honest pairs that changes with the
widths; where they are larger, the spread of all samples (``limits``) must cover it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from validation.contracts import contract_named
from validation.contracts.contract import tensor_specs
from validation.step import limits
from validation.step.executor import Executor, provider
from validation.step.limits import Pairs, Squares
from validation.subjects.kimi_k3.config import scaled
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.weights import random_weights

PAIRS = 8  # as in ``limits``; memory allows few requests
SEEN = {"cpu": 4, "cuda": 12}  # few windows show few of the flips that are rare and large
DRAFTS = (0, 3)  # of the small models whose honest pairs are kept
MOVING = "inductor"  # the provider whose operations run: no size in it depends on data


def moved(right: Executor, seed: int, device: str = "cpu") -> Executor:
    """An executor whose every call moves its outputs anew."""
    g = torch.Generator(device).manual_seed(seed)

    def run(operation: Operation, a: Any) -> None:
        right.run(operation, a)
        specs = tensor_specs(a)
        for output in contract_named(operation.op).outputs:
            spec = specs.get(output.name)
            if spec and spec.access == "write" and not output.exact:
                tensor = getattr(a, output.name)
                if tensor is not None and tensor.dtype == torch.bfloat16:
                    tensor.copy_(_neighbours(tensor, g))

    return replace(right, name="moved", run=run)


def _neighbours(tensor: Tensor, g: Generator) -> Tensor:
    """BF16 numbers one step further from 0 or nearer to it; zeros and what is not finite stay."""
    drawn = torch.randint(0, 4, tensor.shape, generator=g, device=tensor.device)
    step = (drawn == 0).short() - (drawn == 1).short()
    stays = (tensor == 0) | ~tensor.isfinite()
    return (tensor.view(torch.int16) + step.masked_fill(stays, 0)).view(torch.bfloat16)


def squares(
    pairs: Pairs, device: str, say: Callable[[str], None] = lambda words: None, folder: Path | None = None
) -> Squares:
    """Sums of squares by name [sample] of ``pairs``, whose weights lie on ``device``."""

    def measure(asked: Pairs, say: Callable[[str], None]) -> Squares:
        shares = honest_shares(asked.profiles, asked.window, say)
        found = _moved_pairs(asked, device, PAIRS, SEEN[device], say)
        return {name: values * shares[_kind(name)] for name, values in found.items()}

    return limits.squares(pairs, say, folder, measure)


def honest_shares(
    profiles: tuple[str, str], window: int, say: Callable[[str], None] = lambda words: None
) -> dict[str, float]:
    """By kind of distance: mean square of honest pairs over that of moved ones, the largest of all layers of
    the small models, without drafts and with."""
    found: dict[str, float] = {}
    for drafts in DRAFTS:
        config = scaled(drafts=drafts, layers=5, block=2)
        pairs = Pairs(config, random_weights(config), profiles, window, drawn=0)
        honest = limits.squares(pairs, say)
        theirs = _moved_pairs(pairs, "cpu", limits.PAIRS, 1, say)
        for name, values in honest.items():
            share = float(values.mean() / theirs[name].mean())
            found[_kind(name)] = max(found.get(_kind(name), 0.0), share)
    return found


def _kind(name: str) -> str:
    return name.partition(" of layer ")[0]


def _moved_pairs(pairs: Pairs, device: str, count: int, windows: int, say: Callable[[str], None]) -> Squares:
    executors = [moved(provider(MOVING), pairs.seed + 1 + number, device) for number in range(2)]
    return limits.ran(pairs, executors, count, windows, say, device)
