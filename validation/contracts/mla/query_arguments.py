"""The arguments of ``mla_query``: shapes, dtypes, access.

B rows (tokens) of the step, H heads of this rank. Real sizes: q rank 1,536, nope 128, rope 64, latent 512, so
a cache row is 576 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.contracts.contract import read, update, write

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class MlaQueryArguments:
    """Query side of multi-head latent attention, and the insert of the new keys.

    ``projected`` columns: q_a (q rank), kv latent, k_pe (rope); what follows (the output gate) must not be
    read. ``w_q`` rows of a head: nope, then rope. ``w_uk[head, nope, latent]`` absorbs the key up-projection.
    ``slot[row]``: cache row page * page size + place of the new key, -1: none. ``query`` and ``cache`` hold
    E4M3 bytes: ``query[row, head]`` latent, then rope part, divided by ``q_scale``; ``cache[page, place]``
    the normalised latent, then k_pe, divided by ``k_scale``. Kernels multiply by ``q_inverse`` and
    ``k_inverse``. ``wide_pages`` asks the arena to lay pages 2**30 bytes apart; ``free_slot`` belongs to
    nobody.
    """

    projected: Tensor = read("row column", "bf16")
    q_norm: Tensor = read("rank", "bf16")
    kv_norm: Tensor = read("latent", "bf16")
    w_q: Tensor = read("column rank", "bf16")
    w_uk: Tensor = read("head nope latent", "bf16")
    slot: Tensor = read("row", "i64")
    cache: Tensor = update("page place byte", "u8")
    query: Tensor = write("row head byte", "u8")
    heads: int = 12
    q_scale: float = 1.0
    k_scale: float = 1.0
    eps: float = 1e-5
    free_slot: int = 0
    wide_pages: bool = False

    @property
    def rank(self) -> int:
        return int(self.q_norm.shape[0])

    @property
    def latent(self) -> int:
        return int(self.kv_norm.shape[0])

    @property
    def nope(self) -> int:
        return int(self.w_uk.shape[1])

    @property
    def rope(self) -> int:
        return int(self.query.shape[2]) - self.latent

    @property
    def q_inverse(self) -> float:
        """1 / q_scale as FP32 holds it."""
        return _single_inverse(self.q_scale)

    @property
    def k_inverse(self) -> float:
        """1 / k_scale as FP32 holds it."""
        return _single_inverse(self.k_scale)

    def part(self, name: str) -> Tensor:
        """``q_a``, ``kv`` or ``k_pe`` of every row: a view of ``projected``."""
        starts = {"q_a": 0, "kv": self.rank, "k_pe": self.rank + self.latent}
        sizes = {"q_a": self.rank, "kv": self.latent, "k_pe": self.rope}
        return self.projected[:, starts[name] : starts[name] + sizes[name]]


def _single_inverse(scale: float) -> float:
    """1 / scale in FP32 (a quotient of two numbers of FP32 may be rounded to FP64 first)."""
    return _single(1 / _single(scale))


def _single(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])
