"""Arguments of the o-projection with its all-reduce and post-attention AttnRes.

Axis words: T ranks, B rows (tokens of the step), k columns of one rank's shard of the attention output,
D hidden size. Every rank ends with the same prefix and output, so these have no rank axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from validation.contracts.arguments import AttnResArguments
from validation.contracts.contract import read, update, write

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class OprojArguments:
    """Partial products of all ranks, their sum, and the mix and norm after attention.

    ``merge``: ``add`` (prefix := bf16(prefix + sum)) or ``replace`` (prefix := sum, on block-write layers:
    the old prefix must not be read). Blocks from ``blocks_read`` on are stale and must not be read.
    ``mailbox[rank, slot]`` may be used for the partial of that row (the first B slots; what lies beyond is
    another step's); it arrives with another layer's finite rows, and -0 must never be put into it.
    ``two_shot``: column owners sum in rank order; else the sum is one-shot. ``x_moe`` receives a copy of
    ``out`` with +0 for -0 when ``write_x_moe``. ``wide_rows`` asks the arena to lay the rows of ``blocks``
    so far apart that 32-bit offsets wrap.
    """

    y: Tensor = read("rank row k", "bf16")
    weight: Tensor = read("rank column k", "bf16")
    prefix: Tensor = update("row column", "bf16")
    blocks: Tensor = read("row block column", "bf16")
    score_gamma: Tensor = read("column", "bf16")
    score_proj: Tensor = read("column", "bf16")
    gamma: Tensor = read("column", "bf16")
    mailbox: Tensor = update("rank slot column", "bf16")
    x_moe: Tensor = update("row column", "bf16")
    out: Tensor = write("row column", "bf16")
    blocks_read: int = 0
    merge: Literal["add", "replace"] = "add"
    two_shot: bool = False
    write_x_moe: bool = False
    eps_score: float = 1e-5
    eps: float = 1e-5
    wide_rows: bool = False

    @property
    def rows(self) -> int:
        return int(self.out.shape[0])

    def boundary(self, delta: Tensor) -> AttnResArguments:
        """The AttnRes boundary that follows the sum ``delta`` [B, D] BF16; it writes no block, no auxiliary
        row."""
        return AttnResArguments(
            prefix=self.prefix,
            delta=delta,
            blocks=self.blocks,
            score_gamma=self.score_gamma,
            score_proj=self.score_proj,
            gamma=self.gamma,
            aux=self.out,
            out=self.out,
            blocks_read=self.blocks_read,
            merge=self.merge,
            eps_score=self.eps_score,
            eps=self.eps,
        )
