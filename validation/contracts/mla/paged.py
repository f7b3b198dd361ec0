"""Paged FP8 caches as an engine leaves them: pages permuted, some shared, everything that no request owns
spoiled.

What is not owned (page 0, free pages, positions behind a request's last key) holds the largest finite
numbers, or NaN where the regime says so. Pages that two requests share are full ones; a partial last page
is private.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor

from validation.contracts.contract import Case
from validation.contracts.mla.attention_arguments import WIDTH
from validation.contracts.regimes import generator, normal

HUGE = 0x7E  # 448
NAN = 0x7F
SPARE = 2
# Above so many pages, requests draw their full pages from a common pool of this size.
MOST_PAGES = 768
BLOCK = 128
# (q_scale, k_scale): nowhere 1. The latter is a power of two: where one key takes all, the result is that key
# times k_scale, whose few significant bits would round with errors that are the same in many elements.
SCALES = ((0.25, 0.5), (4.0, 0.5), (0.3, 2.0), (0.25, 4.0))


def encoded(x: Tensor) -> Tensor:
    """E4M3 bytes of ``x``, saturating. NaN is 0x7F."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)


@lru_cache(maxsize=24)
def _block(group: int, number: int, page: int, scale: float) -> Tensor:
    """Bytes of BLOCK pages of normal keys of unequal columns, for a group of cases. Must not be modified."""
    g = generator(Case.of("mla_keys", "pool", group, block=number, page=page))
    columns = torch.linspace(0.5, 1.5, WIDTH)[torch.randperm(WIDTH, generator=g)] / scale
    return torch.cat([encoded(normal(g, 64, page, WIDTH) * columns) for _ in range(0, BLOCK, 64)])


class Supply:
    """Pages of keys, every page handed out once. Drawing them takes longer than judging them, so a hundred
    neighbouring seeds share them (``group``)."""

    def __init__(self, group: int, page: int, scale: float) -> None:
        self.group, self.page, self.scale = group, page, scale
        self.used = 0

    def take(self, count: int) -> Tensor:
        """The next ``count`` pages [count, page, 576]."""
        first, last = self.used // BLOCK, (self.used + count - 1) // BLOCK
        blocks = [_block(self.group, n, self.page, self.scale) for n in range(first, last + 1)]
        start = self.used - first * BLOCK
        self.used += count
        return torch.cat(blocks)[start : start + count].clone()


@dataclass
class Pages:
    """``cache`` [page, slot, 576] bytes, ``table`` [request, page], and a page that nobody owns."""

    cache: Tensor
    table: Tensor
    free: int


def paged(
    g: Generator,
    lengths: list[int],
    supply: Supply,
    *,
    shared: bool = False,
    wide: bool = False,
    most: int = MOST_PAGES,
) -> Pages:
    """Keys of requests with these lengths. ``wide``: few pages, the highest first. Page 0 is nobody's.

    Above ``most`` full pages, requests share theirs.
    """
    page = supply.page
    full, partial = [n // page for n in lengths], [int(n % page > 0) for n in lengths]
    shared = shared or sum(full) > most
    common = max(full, default=0) * 5 // 4 if shared else sum(full)
    spare = 1 if wide else SPARE
    count = common + sum(partial)
    ids = torch.randperm(count + spare, generator=g) + 1
    if wide:
        ids = torch.arange(count + spare, 0, -1)
    table = torch.full((len(lengths), max(map(sum, zip(full, partial, strict=True))) + 1), int(ids[-1]))
    used = 0
    for request, n in enumerate(full):
        table[request, :n] = ids[torch.randperm(common, generator=g)[:n]] if shared else ids[used : used + n]
        used += n
    for request, n in enumerate(partial):
        if n:
            table[request, full[request]] = ids[common + sum(partial[:request])]
    return Pages(supply.take(count + spare + 1), table.to(torch.int32), int(ids[-1]))


def spoil(pages: Pages, lengths: list[int], code: int) -> None:
    """Write ``code`` wherever no request has a key."""
    page = pages.cache.shape[1]
    owned = torch.zeros(pages.cache.shape[:2], dtype=torch.bool)
    for request, n in enumerate(lengths):
        row = pages.table[request].long()
        owned[row[: n // page]] = True
        owned[row[n // page], : n % page] = True
    pages.cache[~owned] = code


def lower(pages: Pages, request: int, position: Tensor, query: Tensor, k_scale: float) -> None:
    """Make the logits of a request's keys at some positions lower by hundreds, in ``query`` and in the keys:
    exponentials relative to 0 underflow, and those of others relative to these overflow. A column that no
    value has does it."""
    column, page = WIDTH - 30, pages.cache.shape[1]
    query[..., column] = -100
    where = (pages.table[request].long()[position // page], position % page, column)
    pages.cache[where] = encoded(torch.tensor(90 / k_scale))


def scaled_rows(pages: Pages, request: int, positions: Tensor, factor: float) -> None:
    """Multiply the keys at some positions of a request (of pages that it does not share)."""
    page = pages.cache.shape[1]
    where = (pages.table[request].long()[positions // page], positions % page)
    values = pages.cache[where].view(torch.float8_e4m3fn).float()
    pages.cache[where] = encoded(values * factor)
