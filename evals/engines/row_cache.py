"""A key and value cache whose rows are independent: each row writes at its own place, and is refilled alone.

transformers' static cache writes all rows at one position, so that prompts of different lengths need padding
and a finished row has to wait for the others. Here a decode step writes row i at ``slots[i]``.

What this catches: nothing. What it cannot do: sliding windows, or more than one new token a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

from transformers.cache_utils import Cache, CacheLayerMixin


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, [rows, heads, length, head_dim]."""

    keys: Any  # the base class allows for none yet
    values: Any
    is_sliding = False
    is_compileable = True

    def __init__(self, keys: Tensor, values: Tensor, rows: Tensor, slots: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.rows, self.slots = keys, values, rows, slots
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the memory is there from the start."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write one token a row, return everything."""
        self.keys[self.rows, :, self.slots] = key_states[:, :, 0]
        self.values[self.rows, :, self.slots] = value_states[:, :, 0]
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> int:
        return 0  # positions are given with every step

    def get_max_cache_shape(self) -> int:
        return int(self.keys.shape[2])

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])


class RowCache(Cache):
    """All layers, with ``slots`` [rows]: where each row writes its next token."""

    def __init__(self, config: Any, rows: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (rows, config.num_key_value_heads, length, head)
        index = torch.arange(rows, device=device)
        self.slots = torch.zeros(rows, dtype=torch.long, device=device)
        like: dict[str, Any] = {"dtype": dtype, "device": device}
        layers: list[Any] = [
            RowLayer(torch.zeros(shape, **like), torch.zeros(shape, **like), index, self.slots)
            for _ in range(config.num_hidden_layers)
        ]
        super().__init__(layers=layers)

    def fill(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        layers: Sequence[tuple[Tensor, Tensor]],
        which: Tensor,
    ) -> None:
        """Put keys and values of prompts of one length, [prompts, heads, length, head_dim] for every layer,
        into ``rows`` from the slots ``starts``; row i takes prompt ``which[i]``."""
        device = self.slots.device
        size = layers[0][0].shape[2]
        at = torch.tensor(rows, device=device)[:, None]
        slots = torch.tensor(starts, device=device)[:, None] + torch.arange(size, device=device)
        own: list[Any] = self.layers
        for mine, (keys, values) in zip(own, layers, strict=True):
            mine.keys[at, :, slots] = keys[which].transpose(1, 2)
            mine.values[at, :, slots] = values[which].transpose(1, 2)


def visible(first: Tensor, slots: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [rows, 1, 1, length]: 0 from each row's first slot to the one it writes now."""
    key = torch.arange(length, device=slots.device)[None]
    seen = (key >= first[:, None]) & (key <= slots[:, None])
    mask = torch.zeros(seen.shape, dtype=dtype, device=slots.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None, None]
