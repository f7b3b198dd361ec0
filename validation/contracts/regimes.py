"""Input generators shared by the contracts' regimes. All draw on the CPU from the case's seed alone.

Neutral data hides faults, so nothing here is neutral by default: scales differ from 1, slots are sparse and
permuted, what must not be read is poisoned.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case


def generator(case: Case) -> Generator:
    """A generator seeded by the whole case line: two cases never share their data."""
    digest = hashlib.sha256(case.line().encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def normal(g: Generator, *shape: int) -> Tensor:
    """Standard normal FP32."""
    return torch.randn(shape, generator=g, device=g.device)


def uniform(g: Generator, *shape: int) -> Tensor:
    """Uniform in [0, 1), FP32."""
    return torch.rand(shape, generator=g, device=g.device)


def outliers(g: Generator, width: int) -> Tensor:
    """Three column numbers that carry outliers."""
    return torch.randperm(width, generator=g)[:3]


def activations(g: Generator, regime: str, rows: int, k: int, scale: float) -> Tensor:
    """Normal activations of deviation ``scale`` and what three regimes make of them. FP32 [rows, k]

    ``outliers``: three columns 2,000 times larger. ``cancelling``: the second half of K repeats the first
    (the weights make it cancel). ``one_hot``: 1 at a column of its own for each row, 0 elsewhere.
    """
    x = normal(g, rows, k) * scale
    if regime == "outliers":
        x[:, outliers(g, k)] *= 2000
    if regime == "cancelling":
        x[:, k // 2 : k // 2 * 2] = x[:, : k // 2]
    if regime == "one_hot":
        x = torch.zeros(rows, k)
        x[torch.arange(rows), torch.randperm(k, generator=g)[:rows]] = 1.0
    return x


@lru_cache(maxsize=6)
def shared_weight(name: str, group: int, *shape: int, scale: float = 1.0) -> Tensor:
    """A BF16 weight, normal with deviation ``scale``, equal for all cases that name the same group.

    Drawing tens of millions of numbers takes longer than judging them: a contract passes ``case.seed //
    100``, so that a hundred neighbouring seeds share it. Must not be modified.
    """
    g = generator(Case.of(name, "weight", group, **{f"axis{i}": n for i, n in enumerate(shape)}))
    return (normal(g, *shape) * scale).bfloat16()


def sparse_slots(g: Generator, count: int) -> Tensor:
    """``count`` distinct slot numbers from 1 to 2 * count + 2, in random order: never 0, never a range.
    int32."""
    return (torch.randperm(2 * count + 2, generator=g)[:count] + 1).to(torch.int32)


def log_uniform_half_lives(g: Generator, *shape: int) -> Tensor:
    """Half-lives log-uniform over 1 to 1e5 tokens."""
    return torch.exp(uniform(g, *shape) * torch.log(torch.tensor(1e5)))
