"""The arguments of the operations that have contracts here: shapes, dtypes, access.

Axis words are those of the reports. B rows (tokens) of the step, R requests, q tokens a request,
H heads of this rank, K = V head dimension, D hidden size, d = H * K.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from validation.contracts.contract import read, update, write

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class AttnResArguments:
    """Attention-residual mix and RMSNorm of one boundary (pre- or post-attention, final, auxiliary).

    ``merge`` says what happens to the running prefix before the mix: ``add`` (prefix := bf16(prefix +
    delta)), ``replace`` (prefix := delta: after attention on a block-write layer, and on entry of layer 0)
    or ``keep`` (no delta). ``write_block`` >= 0 stores the new prefix as that block; it is not among the
    ``blocks_read`` sources of the same call. Blocks from ``blocks_read`` on are stale and must not be read.
    ``finish``: ``norm`` (one rounding at the end), ``final`` (mixture rounded to BF16, then the norm) or
    ``mix`` (the mixture alone). ``aux`` receives the new prefix when ``write_aux``.
    """

    prefix: Tensor = update("row column", "bf16")
    delta: Tensor = read("row column", "bf16")
    blocks: Tensor = update("row block column", "bf16")
    score_gamma: Tensor = read("column", "bf16")
    score_proj: Tensor = read("column", "bf16")
    gamma: Tensor = read("column", "bf16")
    aux: Tensor = update("row column", "bf16")
    out: Tensor = write("row column", "bf16")
    blocks_read: int = 0
    write_block: int = -1
    merge: Literal["add", "replace", "keep"] = "add"
    finish: Literal["norm", "final", "mix"] = "norm"
    write_aux: bool = False
    eps_score: float = 1e-5
    eps: float = 1e-5


@dataclass
class ProjectionArguments:
    """y = bf16(x W^T) with FP32 accumulation: the packed input projection of a KDA or an MLA layer."""

    x: Tensor = read("row k", "bf16")
    weight: Tensor = read("column k", "bf16")
    out: Tensor = write("row column", "bf16")


@dataclass
class KdaArguments:
    """Kimi Delta Attention core for the heads of one rank, q tokens a request.

    ``projected`` rows are b * q + t; columns: q, k, v (d each), output gate (d), f_a (rank of the
    low-rank decay gate), beta (H), padding that must not be read. ``conv_weight[j, part, channel]``: tap j
    (0 oldest), part q, k, v. ``conv_state[slot, channel, column]``: q, k, v channels, column 0 oldest; stored
    token-major. ``state[slot, head, v, k]`` FP32. ``free_slot`` belongs to nobody; ``wide_slots`` asks the
    arena to lay slots more than 2**31 elements apart. ``slots[request, t]``: where the state after token t
    goes; <= 0 is the null slot. ``accepted[request]``: tokens accepted by the step before (1 for q = 1).
    """

    projected: Tensor = read("row column", "bf16")
    conv_weight: Tensor = read("tap part channel", "fp32")
    f_b: Tensor = read("channel rank", "bf16")
    a_log: Tensor = read("head", "fp32")
    dt_bias: Tensor = read("channel", "fp32")
    norm_weight: Tensor = read("v", "bf16")
    slots: Tensor = read("request token", "i32")
    accepted: Tensor = read("request", "i32")
    conv_state: Tensor = update("slot channel column", "bf16")
    state: Tensor = update("slot head v k", "fp32")
    out: Tensor = write("row channel", "bf16")
    heads: int = 12
    head_dim: int = 128
    tokens: int = 1
    lower_bound: float = -5.0
    eps_l2: float = 1e-6
    eps: float = 1e-5
    free_slot: int = 0
    wide_slots: bool = False

    @property
    def width(self) -> int:
        """Channels of one of q, k, v: heads * head_dim."""
        return self.heads * self.head_dim

    @property
    def rank(self) -> int:
        """Inner width of the low-rank decay gate."""
        return int(self.f_b.shape[1])

    def columns(self) -> dict[str, slice]:
        """Column ranges of ``projected``."""
        d, r, h = self.width, self.rank, self.heads
        starts = {"q": 0, "k": d, "v": 2 * d, "gate": 3 * d, "f_a": 4 * d, "beta": 4 * d + r}
        sizes = {"q": d, "k": d, "v": d, "gate": d, "f_a": r, "beta": h}
        return {name: slice(start, start + sizes[name]) for name, start in starts.items()}
