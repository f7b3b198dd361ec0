"""The arguments of latent attention over a paged FP8 cache (operation 3.8 of the subject).

Axis words: ``row`` = request * tokens + t; a page has ``slot`` positions; ``width`` 576 = 512 latent + 64
that take part in the scores only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.contracts.contract import read, write

if TYPE_CHECKING:
    from torch import Tensor

LATENT = 512
WIDTH = 576
QK_HEAD = 192  # 128 + 64: what the softmax scale is taken from, before absorption


@dataclass
class MlaAttentionArguments:
    """Attention of ``tokens`` query rows a request over that request's pages.

    ``query`` and ``cache`` hold E4M3 bytes; a number is its byte's value times ``q_scale`` or ``k_scale``.
    ``lengths[request]`` counts the keys with the new tokens: row t sees the first length - tokens + 1 + t;
    0 marks a padding request, whose rows must be written but mean nothing. ``block_table[request, i]`` is the
    page of positions i * page size and on; entries that no position needs hold ``free_slot``, a page of
    nobody. ``wide_pages`` asks the arena to lay pages so far apart that byte offsets pass 2**31.
    """

    query: Tensor = read("row head width", "u8")
    cache: Tensor = read("page slot width", "u8")
    block_table: Tensor = read("request page", "i32")
    lengths: Tensor = read("request", "i32")
    out: Tensor = write("row head latent", "bf16")
    tokens: int = 1
    q_scale: float = 1.0
    k_scale: float = 1.0
    free_slot: int = 0
    wide_pages: bool = False

    @property
    def softmax_scale(self) -> float:
        """What byte values' products are multiplied with."""
        return float(QK_HEAD**-0.5 * self.q_scale * self.k_scale)

    @property
    def capacity(self) -> int:
        """The most keys that a request can have: what a split count may depend on."""
        return int(self.block_table.shape[1] * self.cache.shape[1])
