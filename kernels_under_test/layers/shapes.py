"""Per-rank shapes of Kimi K3 (the subject's section 1.4), by number of ranks."""

from __future__ import annotations

from dataclasses import dataclass

HIDDEN, LATENT, EXPERTS, TOP_K = 7168, 3584, 896, 16
BLOCKS = 8
HEAD_DIM, GATE_RANK = 128, 128
Q_RANK, KV_RANK, ROPE, NOPE, V_DIM = 1536, 512, 64, 128, 128
QUERY = KV_RANK + ROPE  # bytes of one FP8 query or key
PAGE = 64
EPS = 1e-5


@dataclass(frozen=True)
class Shapes:
    """Sizes of one rank of ``ranks``."""

    ranks: int
    heads: int
    kda_rows: int
    mla_rows: int
    dense: int
    expert: int
    expert_stored: int
    shared: int

    @property
    def width(self) -> int:
        """Channels of the heads of this rank: heads * 128."""
        return self.heads * HEAD_DIM

    @property
    def floor_rule(self) -> bool:
        """Whether hidden MXFP8 scales follow the floor rule (TP8) or the no-saturation rule (TP16)."""
        return self.ranks == 8


RANK_SHAPES = {
    8: Shapes(
        8, heads=12, kda_rows=6288, mla_rows=3648, dense=4224, expert=384, expert_stored=384, shared=768
    ),
    16: Shapes(
        16, heads=6, kda_rows=3216, mla_rows=2880, dense=2112, expert=192, expert_stored=256, shared=384
    ),
}
