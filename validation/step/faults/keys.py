"""The paged cache: page edges, lengths, keys of nobody (F23, F24, F44, F52).

Catches and cannot catch: see the package.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from validation.step.faults.planted import Planted, changed, frozen, instead
from validation.subjects.kimi_k3.operation import Operation


def _edge(operation: Operation, a: Any) -> Any:
    """The last place of a page is taken for the one before it."""
    page = a.cache.shape[1]
    last = (a.slot % page == page - 1) & (a.slot >= 0)
    return replace(a, slot=torch.where(last, a.slot - 1, a.slot))


def _first_of_page_lost(operation: Operation, a: Any) -> Any:
    page = a.cache.shape[1]
    return replace(a, lengths=torch.where(a.lengths % page == 1, a.lengths - 1, a.lengths))


_LIVE = changed("slot", lambda t: t.clamp(min=0))
_SHORT = changed("lengths", lambda t: (t - 1).clamp(min=1))
FAULTS = (
    Planted("F23", "null_key_live", "mla_query", "verify", instead("mla_query", _LIVE)),
    Planted("F24", "key_at_page_edge", "mla_query", "pages", instead("mla_query", _edge)),
    Planted(
        "F24",
        "first_key_of_page_lost",
        "mla_attention",
        "pages",
        instead("mla_attention", _first_of_page_lost),
    ),
    Planted("F44", "lengths_baked_in", "mla_attention", "plain", frozen("mla_attention", "lengths")),
    Planted("F52", "short_length", "mla_attention", "plain", instead("mla_attention", _SHORT)),
)
