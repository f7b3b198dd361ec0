"""Which weights the step reads: name, shape and dtype of each, every shard with ``rank`` as its first axis.

Catches: nothing by itself; ``checkpoint`` compares files with it. Cannot represent: the layouts that a
backend re-orders weights into (a permutation that must not appear in the mathematics).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from validation.subjects.kimi_k3.config import Config

Kind = Literal["weight", "gain", "score", "conv", "speed", "dt_bias", "bias", "nibbles", "scales", "table"]
DTYPES: dict[str, str] = {
    "conv": "float32",
    "speed": "float32",
    "dt_bias": "float32",
    "bias": "float32",
    "nibbles": "uint8",
    "scales": "uint8",
}


@dataclass(frozen=True)
class Spec:
    """Shape, what kind of numbers (for the random draw), and how many leading rows of axis 1 are the same on
    every rank: (first, last) of the replicated rows."""

    shape: tuple[int, ...]
    kind: Kind = "weight"
    replicated: tuple[int, int] = (0, 0)
    gain: float = 1.0

    @property
    def dtype(self) -> str:
        return DTYPES.get(self.kind, "bfloat16")


def weight_specs(c: Config) -> dict[str, Spec]:
    """All weights by name, in the order of the step."""
    found = {"embedding": Spec((c.ranks, c.padded_vocabulary // c.ranks, c.hidden), "table")}
    for layer in range(c.layers):
        parts = _boundary(c, "before") | (_mla(c) if c.is_mla(layer) else _kda(c)) | _boundary(c, "after")
        parts |= _dense(c) if layer < c.dense_layers else _moe(c)
        found |= {f"layers.{layer}.{name}": spec for name, spec in parts.items()}
    found |= _boundary(c, "final")
    return found | {"head": Spec((c.ranks, c.padded_vocabulary // c.ranks, c.hidden), gain=1.5)}


def _boundary(c: Config, name: str) -> dict[str, Spec]:
    return {
        f"{name}.score_gamma": Spec((c.hidden,), "gain"),
        f"{name}.score_proj": Spec((c.hidden,), "score"),
        f"{name}.gamma": Spec((c.hidden,), "gain"),
    }


def _kda(c: Config) -> dict[str, Spec]:
    t, h, d = c.ranks, c.local_heads, c.kda_width
    return {
        "in_proj": Spec((t, c.kda_columns, c.hidden), replicated=(4 * d, 4 * d + c.gate_rank)),
        "conv": Spec((t, 4, 3, d), "conv"),
        "f_b": Spec((t, d, c.gate_rank), gain=0.1),
        "a_log": Spec((t, h), "speed"),
        "dt_bias": Spec((t, d), "dt_bias"),
        "norm": Spec((c.kda_dim,), "gain"),
        "o_proj": Spec((t, c.hidden, d), gain=0.4),
    }


def _mla(c: Config) -> dict[str, Spec]:
    t, h = c.ranks, c.local_heads
    return {
        "in_proj": Spec((t, c.gate_start + h * c.v_dim, c.hidden), replicated=(0, c.gate_start)),
        "q_norm": Spec((c.q_rank,), "gain"),
        "kv_norm": Spec((c.kv_rank,), "gain"),
        "w_q": Spec((t, h * (c.nope + c.rope), c.q_rank)),
        "w_uk": Spec((t, h, c.nope, c.kv_rank), gain=(c.kv_rank / c.nope) ** 0.5),
        "w_uv": Spec((t, h, c.kv_rank, c.v_dim), gain=(c.v_dim / c.kv_rank) ** 0.5 * 2),
        "o_proj": Spec((t, c.hidden, h * c.v_dim), gain=0.4),
    }


def _dense(c: Config) -> dict[str, Spec]:
    f = c.dense_hidden // c.ranks
    return {
        "gate_up": Spec((c.ranks, 2 * f, c.hidden), gain=1.6),
        "down": Spec((c.ranks, c.hidden, f), gain=0.2),
    }


def _moe(c: Config) -> dict[str, Spec]:
    t, e, f, s = c.ranks, c.experts, c.stored_moe, c.shared_hidden // c.ranks
    return {
        "router": Spec((t, e // t, c.hidden), gain=1.5),
        "latent_down": Spec((t, c.latent // t, c.hidden)),
        "route_bias": Spec((e,), "bias"),
        "w13": Spec((t, e, 2 * f, c.latent // 2), "nibbles"),
        "w13_scale": Spec((t, e, 2 * f, c.latent // 32), "scales"),
        "w2": Spec((t, e, c.latent, f // 2), "nibbles"),
        "w2_scale": Spec((t, e, c.latent, f // 32), "scales"),
        "shared_gate_up": Spec((t, 2 * s, c.hidden), gain=1.6),
        "shared_down": Spec((t, c.hidden, s), gain=0.2),
        "latent_gamma": Spec((c.latent,), "gain"),
        "up": Spec((t, c.hidden // t, c.latent), gain=0.06),
    }
