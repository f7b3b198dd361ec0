"""The arguments of the routed experts of one rank: shapes, dtypes, access.

Axis words: rows (tokens) of the step, slots (16 experts a row), L latent columns, F hidden columns of this
rank (``live`` of ``padded``). Weights are in the checkpoint's order, not in any backend's shuffle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from validation.contracts.contract import read, write

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class ExpertsArguments:
    """Latent rows in MXFP8, experts in MXFP4: gate and up, SiTU, requantised hidden, down, weighted sum.

    ``x``: E4M3 bytes with E8M0 bytes a block of 32. ``w13`` [expert, 2 F, L / 2]: rows 0 to F - 1 gate, F on
    up; two E2M1 nibbles a byte, low nibble the even column; ``w13_scale`` [expert, 2 F, L / 32]. ``w2``
    [expert, L, F / 2], ``w2_scale`` [expert, L, F / 32]. Of the F = ``padded`` hidden columns only ``live``
    exist: the others' weight rows, columns and scales must not be used. ``ids[row, slot]`` are distinct
    within a row. ``rows`` receives every expert's output row before the sum (absent: None). ``hidden_rule``
    is the scale rule of the specialised path's hidden. ``wide``: experts lie more than 2**31 bytes apart.
    """

    x: Tensor = read("row column", "u8")
    x_scale: Tensor = read("row block", "u8")
    ids: Tensor = read("row slot", "i32")
    weights: Tensor = read("row slot", "bf16")
    w13: Tensor = read("expert hidden byte", "u8")
    w13_scale: Tensor = read("expert hidden block", "u8")
    w2: Tensor = read("expert column byte", "u8")
    w2_scale: Tensor = read("expert column block", "u8")
    out: Tensor = write("row column", "bf16")
    rows: Tensor | None = write("row slot column", "bf16")
    live: int = 384
    hidden_rule: Literal["floor", "no_saturation"] = "floor"
    wide: bool = False

    @property
    def padded(self) -> int:
        """Hidden columns of this rank as they are stored, padding included."""
        return int(self.w13.shape[1]) // 2
