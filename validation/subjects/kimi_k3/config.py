"""Sizes of Kimi K3, real and scaled down (section 1 and 7.1 of the subject's specification).

Catches: sizes that no step can be built from (``check``). Cannot catch: a deployment that the specialised
path refuses; that is ``validation.dispatch``.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace

from validation.contracts.mla.attention_arguments import LATENT, QK_HEAD, WIDTH
from validation.errors import UserError

MX_BLOCK = 32
MOST_BLOCKS = 8


@dataclass(frozen=True)
class Config:
    """Sizes of the whole model; ``ranks`` shards of it play tensor parallelism.

    ``drafts`` tokens may be speculated on, so a verify step has ``tokens`` = drafts + 1 a request. ``aux``:
    layers whose entering prefix a drafter reads (``layers`` itself: the final prefix). ``stored_moe`` are the
    columns of one rank's experts with padding. ``dcp`` is 1 or ``ranks``: whether the KV cache is sharded.
    """

    hidden: int = 7168
    layers: int = 93
    mla_layers: tuple[int, ...] = (*range(3, 92, 4), 92)
    heads: int = 96
    kda_dim: int = 128
    gate_rank: int = 128
    q_rank: int = 1536
    kv_rank: int = LATENT
    nope: int = 128
    rope: int = 64
    v_dim: int = 128
    attn_res_block: int = 12
    dense_layers: int = 1
    dense_hidden: int = 33792
    experts: int = 896
    top_k: int = 16
    routed_scale: float = 1.0
    latent: int = 3584
    moe_hidden: int = 3072
    stored_moe: int = 384
    shared_hidden: int = 6144
    vocabulary: int = 163840
    padded_vocabulary: int = 163840
    page: int = 64
    q_scale: float = 1.0
    k_scale: float = 1.0
    ranks: int = 8
    dcp: int = 1
    drafts: int = 0
    aux: tuple[int, ...] = ()
    eps: float = 1e-5
    lower_bound: float = -5.0
    conv_taps: int = 3

    def __post_init__(self) -> None:
        self.check()

    @property
    def tokens(self) -> int:
        """Tokens a request in a verify step."""
        return self.drafts + 1

    @property
    def local_heads(self) -> int:
        return self.heads // self.ranks

    @property
    def kda_width(self) -> int:
        """Channels of q, k or v on one rank."""
        return self.local_heads * self.kda_dim

    @property
    def kda_columns(self) -> int:
        """Rows of one rank's packed KDA projection: q, k, v, gate, f_a, beta, padding to a multiple of 16."""
        used = 4 * self.kda_width + self.gate_rank + self.local_heads
        return -(-used // 16) * 16

    @property
    def gate_start(self) -> int:
        """First column of the output gate in the packed MLA projection."""
        return self.q_rank + self.kv_rank + self.rope

    @property
    def live_moe(self) -> int:
        """Columns of one rank's experts that exist."""
        return self.moe_hidden // self.ranks

    @property
    def blocks(self) -> int:
        return -(-self.layers // self.attn_res_block)

    def is_mla(self, layer: int) -> bool:
        return layer in self.mla_layers

    def writes_block(self, layer: int) -> bool:
        return layer % self.attn_res_block == 0

    def blocks_before(self, layer: int) -> int:
        """Blocks that the pre-attention mix of a layer reads."""
        return -(-layer // self.attn_res_block)

    @property
    def floor_rule(self) -> bool:
        """Whether the specialised path stores the experts' hidden by the floor rule: unpadded shards only."""
        return self.live_moe == self.stored_moe

    def digest(self) -> str:
        """Eight hex digits over all sizes: captures of another configuration are told by it."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def check(self) -> None:
        """Raise UserError naming the first size that no step can be built from."""
        for what, total in (
            ("heads", self.heads),
            ("experts", self.experts),
            ("latent", self.latent),
            ("hidden", self.hidden),
            ("dense_hidden", self.dense_hidden),
            ("moe_hidden", self.moe_hidden),
            ("shared_hidden", self.shared_hidden),
            ("padded_vocabulary", self.padded_vocabulary),
        ):
            _need(total % self.ranks == 0, f"{what}={total} is not divisible by ranks={self.ranks}")
        for what, size in (
            ("latent", self.latent),
            ("live_moe", self.live_moe),
            ("stored_moe", self.stored_moe),
        ):
            _need(size % MX_BLOCK == 0, f"{what}={size} is not a multiple of {MX_BLOCK}, the MX block")
        _need(self.live_moe <= self.stored_moe, f"stored_moe={self.stored_moe} is below {self.live_moe}")
        _need(self.kv_rank == LATENT, f"kv_rank={self.kv_rank}: the attention contract has {LATENT}")
        _need(self.kv_rank + self.rope == WIDTH, f"rope={self.rope}: a cache row has {WIDTH} bytes")
        _need(self.nope + self.rope == QK_HEAD, f"nope={self.nope}: the softmax scale is {QK_HEAD}**-0.5")
        _need(self.blocks <= MOST_BLOCKS, f"{self.blocks} AttnRes blocks; at most {MOST_BLOCKS}")
        _need(self.top_k <= self.experts, f"top_k={self.top_k} of experts={self.experts}")
        _need(self.dcp in (1, self.ranks), f"dcp={self.dcp} is neither 1 nor ranks={self.ranks}")
        _need(0 <= self.drafts <= 7, f"drafts={self.drafts}; a verify step has 2 to 8 tokens a request")
        _need(0 < self.vocabulary <= self.padded_vocabulary, f"vocabulary={self.vocabulary}")
        outside = [layer for layer in self.mla_layers if not 0 <= layer < self.layers]
        outside += [layer for layer in self.aux if not 0 <= layer <= self.layers]
        _need(not outside, f"layer {outside[:1]} is not among {self.layers}")


def _need(met: bool, message: str) -> None:
    if not met:
        raise UserError(f"this Kimi K3 configuration has no step: {message}")


def real(ranks: int = 8, drafts: int = 0) -> Config:
    """The published sizes at TP8 or TP16 (which pads a rank's 192 expert columns to 256)."""
    return Config(ranks=ranks, drafts=drafts, stored_moe=256 if ranks == 16 else 3072 // ranks)


def real_widths(layers: int, ranks: int = 8, drafts: int = 0) -> Config:
    """The published widths with few layers, of all kinds: KDA with the dense MLP first, MLA every fourth and
    last, and AttnRes blocks of two layers."""
    mla = sorted({*range(3, layers, 4), layers - 1})
    whole = real(ranks, drafts)
    return replace(whole, layers=layers, mla_layers=tuple(mla), attn_res_block=2, aux=(0, layers))


def scaled(ranks: int = 2, drafts: int = 0, layers: int = 14, block: int = 3, dcp: bool = False) -> Config:
    """Section 7.1: every path of the step on a laptop. What the kernels fix stays: the latent attention's 512
    + 64 bytes a key, its 192 of softmax scale, MX blocks of 32, four convolution taps.

    MLA at 3, 7, 11 and the last two layers, five (block 3) or two (block 12) AttnRes blocks, expert shards
    that are padded above two ranks, a padded vocabulary, KV scales that are not 1. Sizes that the ranks
    cannot share are the next larger ones.
    """

    def shared(size: int, blocks: int = 1) -> int:
        """The next multiple of the ranks, and of blocks."""
        step = math.lcm(ranks, blocks)
        return -(-size // step) * step

    mla = tuple(layer for layer in (3, 7, 11) if layer < layers - 2)
    local = 32 if ranks > 2 else 64
    return Config(
        hidden=shared(128, 16),
        layers=layers,
        mla_layers=(*mla, layers - 2, layers - 1),
        heads=shared(4),
        kda_dim=32,
        gate_rank=16,
        q_rank=48,
        v_dim=32,
        attn_res_block=block,
        dense_hidden=64 * ranks,
        experts=shared(16),
        top_k=4,
        routed_scale=1.5,
        latent=shared(64, MX_BLOCK),
        moe_hidden=local * ranks,
        stored_moe=64,
        shared_hidden=48 * ranks,
        vocabulary=251,
        padded_vocabulary=shared(256),
        page=16,
        q_scale=0.5,
        k_scale=2.0,
        ranks=ranks,
        dcp=ranks if dcp else 1,
        drafts=drafts,
        aux=(0, 2, layers // 2, layers),
    )
