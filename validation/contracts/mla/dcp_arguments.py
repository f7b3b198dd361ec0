"""The arguments of latent attention with its cache sharded over the ranks (operation 3.10 of the subject)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.contracts.contract import read, write
from validation.contracts.mla.attention_arguments import QK_HEAD

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class MlaDcpArguments:
    """Every rank attends with all heads over its shard; shards are merged by their log-sum-exp.

    Position p of a request lives on rank (p // interleave) mod ranks, as that rank's next local key.
    ``lengths[rank, request]`` are the local counts, ``totals[request]`` the full ones with the new tokens;
    row t sees the *global* positions below total - tokens + 1 + t. ``out`` holds the rows of every head's
    owner, heads in rank order. A padding request has total 0: its rows are 0.
    """

    query: Tensor = read("row head width", "u8")
    cache: Tensor = read("rank page slot width", "u8")
    block_table: Tensor = read("rank request page", "i32")
    lengths: Tensor = read("rank request", "i32")
    totals: Tensor = read("request", "i32")
    out: Tensor = write("row head latent", "bf16")
    tokens: int = 1
    interleave: int = 1
    q_scale: float = 1.0
    k_scale: float = 1.0
    free_slot: int = 0
    wide_ranks: bool = False

    @property
    def ranks(self) -> int:
        return int(self.cache.shape[0])

    @property
    def softmax_scale(self) -> float:
        """What byte values' products are multiplied with."""
        return float(QK_HEAD**-0.5 * self.q_scale * self.k_scale)

    @property
    def capacity(self) -> int:
        """The most local keys that a request can have on one rank."""
        return int(self.block_table.shape[2] * self.cache.shape[2])


def owned(positions: Tensor, rank: int, ranks: int, interleave: int) -> Tensor:
    """How many of the first ``positions`` positions a rank owns. int64, the shape of ``positions``"""
    turn = interleave * ranks
    rest = positions % turn - rank * interleave
    return positions // turn * interleave + rest.clamp(0, interleave)
