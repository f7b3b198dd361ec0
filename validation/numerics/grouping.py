"""Slices of a tensor: sums over everything but some axes, and masks of slices as masks of elements."""

from __future__ import annotations

import torch
from torch import Tensor


class Grouping:
    """Slices along the axes of ``group``; "column/64" means tiles of 64 of the last axis.

    ``matrix(tensor)`` is [slices, members] (zero padded for a ragged last tile).
    """

    def __init__(self, shape: torch.Size, axes: tuple[str, ...], group: tuple[str, ...]) -> None:
        self.shape, self.axes = shape, axes
        self.kept = {name.split("/")[0] for name in group}
        tiles = [name for name in group if "/" in name]
        if tiles and (len(tiles) > 1 or tiles[0].split("/")[0] != axes[-1]):
            raise ValueError(f"only the last axis can be tiled, not {tiles}")
        self.tile = int(tiles[0].split("/")[1]) if tiles else None
        self.label = " x ".join(group) if group else "whole tensor"
        self._front = [i for i, axis in enumerate(axes) if axis in self.kept]
        self._back = [i for i, axis in enumerate(axes) if axis not in self.kept]

    def matrix(self, tensor: Tensor) -> Tensor:
        back = list(self._back)
        if self.tile:
            padding = -tensor.shape[-1] % self.tile
            tensor = torch.nn.functional.pad(tensor, (0, padding)).unflatten(-1, (-1, self.tile))
            back.append(tensor.ndim - 1)
        slices = 1
        for dim in self._front:
            slices *= tensor.shape[dim]
        return tensor.permute(*self._front, *back).reshape(slices, -1) if slices else tensor.new_zeros(0, 0)

    def spread(self, mask: Tensor) -> Tensor:
        """A mask [slices] as a mask over elements."""
        sizes = [size if axis in self.kept else 1 for axis, size in zip(self.axes, self.shape, strict=True)]
        if self.tile:
            sizes[-1] = -(-self.shape[-1] // self.tile)
        mask = mask.reshape(sizes)
        if self.tile:
            mask = mask.repeat_interleave(self.tile, -1).narrow(-1, 0, self.shape[-1])
        return mask.expand(self.shape)
