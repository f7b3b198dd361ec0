"""What the launchers of this package share: which device's settings to use, and the strides they rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def interpreted(tensor: Tensor) -> bool:
    """Whether kernels on this tensor run in the interpreter, where few large programs are fastest."""
    return tensor.device.type == "cpu"


def need_dense_last_axis(**tensors: Tensor) -> None:
    """Raise UserError unless neighbours along every tensor's last axis are neighbours in memory."""
    for name, tensor in tensors.items():
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise UserError(f"{name} must be dense along its last axis; its strides are {tensor.stride()}")
