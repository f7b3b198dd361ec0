"""What the launchers of this package share: which device's settings to use, the strides they rely on, scratch
memory that outlives a call, and programmatic launches.

Programmatic dependent launch (CUDA programming guide, section of that name): a kernel may start while the one
before it runs. The rule here: a kernel waits for its predecessor before it reads what that one may have
written or writes what it may read, and lets its own successor start only after that wait. What a kernel
reads before its wait was thus complete before its predecessor's predecessor ended: weights, caches of earlier
steps, never the predecessor's output.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import triton

from validation.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

Setting = TypeVar("Setting")
# Programs that a split-K product should have at least: somewhat more than an H200 has multiprocessors.
PROGRAMS = 160


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def smallest_range(settings: Mapping[int, Setting], rows: int) -> Setting:
    """Of ``settings``, from the most rows of a range, ascending, to its setting: that of the smallest range
    which holds ``rows``, or of the largest one where none does."""
    return next((setting for most, setting in settings.items() if rows <= most), settings[max(settings)])


def k_ranges(channels: int, k: int, columns: int, step: int) -> tuple[int, int]:
    """(number of K ranges, width of each) with which one rank's product fills the device: by shape alone."""
    tiles = triton.cdiv(channels, columns)
    splits = max(1, min(triton.cdiv(PROGRAMS, tiles), k // (2 * step), 16))
    width = triton.cdiv(triton.cdiv(k, splits), step) * step
    return triton.cdiv(k, width), width


def interpreted(tensor: Tensor) -> bool:
    """Whether kernels on this tensor run in the interpreter, where few large programs are fastest."""
    return tensor.device.type == "cpu"


def on_gpu(tensor: Tensor) -> bool:
    """Whether kernels on this tensor run on a GPU."""
    return tensor.device.type == "cuda"


def need_dense_last_axis(**tensors: Tensor) -> None:
    """Raise UserError unless neighbours along every tensor's last axis are neighbours in memory."""
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise UserError(f"{name} must be dense along its last axis; its strides are {tensor.stride()}")


@cache
def workspace(name: str, words: int, device: torch.device) -> Tensor:
    """``words`` int32 zeros that stay: counters that kernels leave as they found them. For one stream."""
    return torch.zeros(words, dtype=torch.int32, device=device)


def programmatic(tensor: Tensor) -> dict[str, Any]:
    """Launch options for kernels with a ``PDL`` switch: on where the device can (Hopper and later).

    LOCKSTEP_PDL=0 turns it off, to tell a fault of ordering from one of arithmetic.
    """
    on = on_gpu(tensor) and _can_launch_early() and os.environ.get("LOCKSTEP_PDL") != "0"
    return {"PDL": True, "launch_pdl": True} if on else {"PDL": False}


@cache
def _can_launch_early() -> bool:
    return torch.cuda.get_device_capability()[0] >= 9
