"""Random weights, caches and activations of one rank's layers, drawn on the device. Values are of real size,
so
that nothing is faster than on real data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kernels_under_test.layers.shapes import (
    BLOCKS,
    EXPERTS,
    GATE_RANK,
    HEAD_DIM,
    HIDDEN,
    KV_RANK,
    LATENT,
    NOPE,
    PAGE,
    Q_RANK,
    QUERY,
    ROPE,
    TOP_K,
    V_DIM,
    Shapes,
)

DEVICE = "cuda"  # tests of the chain of steps run it on the CPU


def bf16(*shape: int, scale: float | None = None) -> Tensor:
    """Normal BF16 on the device; by default scaled by the root of the last axis, as weights are."""
    deviation = shape[-1] ** -0.5 if scale is None else scale
    return torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(std=deviation)


def fp32(*shape: int, scale: float = 1.0) -> Tensor:
    """Normal FP32 on the device."""
    return torch.empty(shape, dtype=torch.float32, device=DEVICE).normal_(std=scale)


def gain(width: int) -> Tensor:
    """Weight of a norm, around 1."""
    return (1 + 0.3 * fp32(width)).bfloat16()


def size(*tensors: Tensor) -> int:
    """Bytes of tensors, each once."""
    return sum(t.numel() * t.element_size() for t in tensors)


@dataclass
class Stream:
    """The residual stream: prefix, blocks, and what the boundaries of a layer need."""

    prefix: Tensor
    delta: Tensor
    blocks: Tensor
    score_gamma: Tensor
    score_proj: Tensor
    gamma: Tensor

    @classmethod
    def draw(cls, rows: int) -> Stream:
        return cls(
            bf16(rows, HIDDEN, scale=1.3), bf16(rows, HIDDEN, scale=0.6),
            bf16(rows, BLOCKS, HIDDEN, scale=1.0), gain(HIDDEN), bf16(HIDDEN, scale=2.0 / HIDDEN**0.5),
            gain(HIDDEN),
        )  # fmt: skip


class Kda:
    """Weights and state of a KDA layer, each drawn when first used."""

    def __init__(self, shapes: Shapes, rows: int) -> None:
        self.shapes, self.rows, self.pool = shapes, rows, rows + 3

    @cached_property
    def in_proj(self) -> Tensor:
        return bf16(self.shapes.kda_rows, HIDDEN)

    @cached_property
    def conv_weight(self) -> Tensor:
        return fp32(4, 3, self.shapes.width, scale=0.1)

    @cached_property
    def f_b(self) -> Tensor:
        return bf16(self.shapes.width, GATE_RANK)

    @cached_property
    def a_log(self) -> Tensor:
        return fp32(self.shapes.heads)

    @cached_property
    def dt_bias(self) -> Tensor:
        return fp32(self.shapes.width, scale=0.1)

    @cached_property
    def norm(self) -> Tensor:
        return gain(HEAD_DIM)

    @cached_property
    def o_proj(self) -> Tensor:
        return bf16(HIDDEN, self.shapes.width)

    @cached_property
    def conv_state(self) -> Tensor:
        """[slot, channel, column], stored token-major."""
        return bf16(self.pool, 3, 3 * self.shapes.width, scale=1.0).transpose(1, 2)

    @cached_property
    def state(self) -> Tensor:
        return fp32(self.pool, self.shapes.heads, HEAD_DIM, HEAD_DIM)

    @cached_property
    def slots(self) -> Tensor:
        """[request, 1], never the null slot."""
        order = torch.randperm(self.pool - 1, device=DEVICE)[: self.rows] + 1
        return order.to(torch.int32)[:, None]


class Mla:
    """Weights and paged FP8 cache of an MLA layer, each drawn when first used; every request has ``context``
    tokens."""

    def __init__(self, shapes: Shapes, rows: int, context: int) -> None:
        self.shapes, self.rows, self.context, self.pages = shapes, rows, context, -(-context // PAGE)

    @cached_property
    def in_proj(self) -> Tensor:
        return bf16(self.shapes.mla_rows, HIDDEN)

    @cached_property
    def q_norm(self) -> Tensor:
        return gain(Q_RANK)

    @cached_property
    def kv_norm(self) -> Tensor:
        return gain(KV_RANK)

    @cached_property
    def q_b(self) -> Tensor:
        return bf16(self.shapes.heads * (NOPE + ROPE), Q_RANK)

    @cached_property
    def w_uk(self) -> Tensor:
        return bf16(self.shapes.heads, NOPE, KV_RANK, scale=NOPE**-0.5)

    @cached_property
    def w_uv(self) -> Tensor:
        return bf16(self.shapes.heads, KV_RANK, V_DIM, scale=KV_RANK**-0.5)

    @cached_property
    def o_proj(self) -> Tensor:
        return bf16(HIDDEN, self.shapes.heads * V_DIM)

    @cached_property
    def cache(self) -> Tensor:
        """[page, place, byte]"""
        cache = bf16(self.rows * self.pages + 1, PAGE, QUERY, scale=1.0)
        return cache.to(torch.float8_e4m3fn).view(torch.uint8)

    @cached_property
    def table(self) -> Tensor:
        order = torch.randperm(self.rows * self.pages, device=DEVICE).to(torch.int32) + 1
        return order.view(self.rows, self.pages)

    @cached_property
    def lengths(self) -> Tensor:
        return torch.full((self.rows,), self.context, dtype=torch.int32, device=DEVICE)

    @cached_property
    def slots(self) -> Tensor:
        """Cache row of each request's newest token."""
        last = self.context - 1
        return self.table.long()[:, last // PAGE] * PAGE + last % PAGE


class Moe:
    """Weights of a MoE layer, each drawn when first used. ``share``: how many ranks a rank's rows of router,
    latent down- and up-projection are one of (1: the rank holds all, as in the stock path)."""

    def __init__(self, shapes: Shapes, share: int) -> None:
        self.shapes, self.share = shapes, share

    @cached_property
    def router(self) -> Tensor:
        return bf16(EXPERTS // self.share, HIDDEN)

    @cached_property
    def down(self) -> Tensor:
        return bf16(LATENT // self.share, HIDDEN)

    @cached_property
    def up(self) -> Tensor:
        return bf16(HIDDEN // self.share, LATENT)

    @cached_property
    def bias(self) -> Tensor:
        return fp32(EXPERTS, scale=0.05)

    @cached_property
    def w13(self) -> Tensor:
        return _codes(EXPERTS, 2 * self.shapes.expert_stored, LATENT // 2)

    @cached_property
    def w13_scale(self) -> Tensor:
        return _scales(EXPERTS, 2 * self.shapes.expert_stored, LATENT // 32)

    @cached_property
    def w2(self) -> Tensor:
        return _codes(EXPERTS, LATENT, self.shapes.expert_stored // 2)

    @cached_property
    def w2_scale(self) -> Tensor:
        return _scales(EXPERTS, LATENT, self.shapes.expert_stored // 32)

    @cached_property
    def gate_up(self) -> Tensor:
        return bf16(2 * self.shapes.shared, HIDDEN)

    @cached_property
    def shared_down(self) -> Tensor:
        return bf16(HIDDEN, self.shapes.shared)

    @cached_property
    def latent_gamma(self) -> Tensor:
        return gain(LATENT)

    def routed_bytes(self, rows: int) -> int:
        """Live weights and scales of the experts that ``rows`` tokens are expected to touch."""
        f = self.shapes.expert
        each = 2 * f * (LATENT // 2 + LATENT // 32) + LATENT * (f // 2 + f // 32)
        return int(expected_experts(rows, TOP_K) * each)


def _codes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)


def _scales(*shape: int) -> Tensor:
    return torch.randint(116, 121, shape, dtype=torch.uint8, device=DEVICE)


def expected_experts(rows: int, top_k: int) -> float:
    """Mean number of distinct experts that ``rows`` tokens with ``top_k`` uniform choices each touch."""
    return EXPERTS * (1 - (1 - top_k / EXPERTS) ** rows)
