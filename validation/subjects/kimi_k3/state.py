"""What outlives a step: convolution history, recurrent state and paged FP8 keys, and what lives in one step.

Catches: nothing by itself; ``digest`` and ``differences`` let a state be compared bit for bit. Cannot
represent: mailboxes and counters of a real deployment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from validation.subjects.kimi_k3.config import MOST_BLOCKS, Config

ROWS = 64
NAN_BYTE = 0x7F


@dataclass
class State:
    """By layer: ``conv`` BF16 [rank, slot, channel, column] (stored token-major), ``recurrent`` FP32 [rank,
    slot, head, v, k], ``kv`` E4M3 bytes [rank, page, place, 576]. Slot 0 and page 0 belong to nobody."""

    config: Config
    conv: dict[int, Tensor]
    recurrent: dict[int, Tensor]
    kv: dict[int, Tensor]

    def buffers(self) -> Iterator[tuple[str, int, Tensor]]:
        """(kind, layer, tensor) of every buffer, in the order of the layers."""
        for layer in range(self.config.layers):
            if layer in self.kv:
                yield "kv", layer, self.kv[layer]
            else:
                yield "conv", layer, self.conv[layer]
                yield "recurrent", layer, self.recurrent[layer]

    def clone(self) -> State:
        """A copy with the same strides."""
        copies = [
            {layer: t.clone() for layer, t in part.items()} for part in (self.conv, self.recurrent, self.kv)
        ]
        return State(self.config, *copies)

    def copy_(self, other: State) -> None:
        """Take over every byte of ``other``, in place: addresses stay, as a captured graph needs."""
        for (_, _, mine), (_, _, theirs) in zip(self.buffers(), other.buffers(), strict=True):
            mine.copy_(theirs)

    def reset(self, slots: list[int]) -> None:
        """What a first prompt chunk does to recycled slots: history and state are 0."""
        for part in (self.conv, self.recurrent):
            for tensor in part.values():
                tensor[:, slots] = 0

    def digest(self) -> str:
        """Sixteen hex digits over every byte of every buffer."""
        found = hashlib.sha256()
        for _, _, tensor in self.buffers():
            found.update(raw(tensor).cpu().numpy().tobytes())
        return found.hexdigest()[:16]


def raw(tensor: Tensor) -> Tensor:
    """The bytes of a tensor [.., byte], so that NaN payloads and signs of zero count. uint8, on its device"""
    return tensor.detach().contiguous().view(torch.uint8)


def differences(one: State, other: State) -> list[tuple[str, int, Tensor]]:
    """(kind, layer, mask over [rank, slot or page]) of the buffers whose bytes differ."""
    found = []
    for (kind, layer, a), (_, _, b) in zip(one.buffers(), other.buffers(), strict=True):
        differs = (raw(a) != raw(b)).flatten(2).any(-1)
        if bool(differs.any()):
            found.append((kind, layer, differs))
    return found


def empty_state(config: Config, slots: int, pages: int, device: str = "cpu") -> State:
    """All slots and pages free: full of NaN, so that whatever reads what it does not own shows."""
    nan = float("nan")
    c, t = config, config.ranks
    conv, recurrent, kv = {}, {}, {}
    columns = c.conv_taps + c.drafts
    for layer in range(c.layers):
        if c.is_mla(layer):
            shape = (t, pages, c.page, c.kv_rank + c.rope)
            kv[layer] = torch.full(shape, NAN_BYTE, dtype=torch.uint8, device=device)
            continue
        history = torch.full((t, slots, columns, 3 * c.kda_width), nan, dtype=torch.bfloat16, device=device)
        conv[layer] = history.transpose(2, 3)
        recurrent[layer] = torch.full((t, slots, c.local_heads, c.kda_dim, c.kda_dim), nan, device=device)
    return State(config, conv, recurrent, kv)


class Scratch:
    """Buffers of one step, owned by the model and shared by all batch sizes: ``ROWS`` rows each, of which a
    step uses the first. ``poison`` makes them what an allocator may leave: NaN, and bytes of NaN."""

    def __init__(self, config: Config, rows: int = ROWS, device: str = "cpu") -> None:
        with torch.device(device):
            self._allocate(config, rows)

    def _allocate(self, config: Config, rows: int) -> None:
        c, t = config, config.ranks
        heads = c.heads
        self.embedded = _bf16(t, rows, c.hidden)
        self.prefix, self.hidden, self.second, self.delta, self.last, self.unused = (
            _bf16(rows, c.hidden) for _ in range(6)
        )
        self.blocks = _bf16(rows, MOST_BLOCKS, c.hidden)
        self.aux = _bf16(max(len(c.aux), 1), rows, c.hidden)
        self.kda_projected = _bf16(t, rows, c.kda_columns)
        self.mla_projected = _bf16(t, rows, c.gate_start + c.local_heads * c.v_dim)
        self.kda_core = _bf16(t, rows, c.kda_width)
        self.mla_core = _bf16(t, rows, c.local_heads * c.v_dim)
        self.query = torch.zeros(rows, heads, c.kv_rank + c.rope, dtype=torch.uint8)
        self.attended = _bf16(rows, heads, c.kv_rank)
        self.mailbox = _bf16(t, rows, c.hidden)
        self.x_moe = _bf16(rows, c.hidden)
        self.router_logits = torch.zeros(rows, c.experts)
        self.latent = _bf16(rows, c.latent)
        self.codes = torch.zeros(rows, c.latent, dtype=torch.uint8)
        self.scales = torch.zeros(rows, c.latent // 32, dtype=torch.uint8)
        self.ids = torch.zeros(rows, c.top_k, dtype=torch.int32)
        self.route_weights = _bf16(rows, c.top_k)
        self.routed = _bf16(t, rows, c.latent)
        self.shared_partial = _bf16(t, rows, c.hidden)
        self.shared = _bf16(rows, c.hidden)
        self.logits = _bf16(t, rows, c.padded_vocabulary)
        # What a call must be given and must not read.
        self.no_gain = torch.full((c.hidden,), float("nan"), dtype=torch.bfloat16)
        self.no_pairs = torch.full((1, c.latent), float("nan"), dtype=torch.bfloat16)
        self.no_weights = torch.full((1, c.top_k), float("nan"), dtype=torch.bfloat16)

    def tensors(self) -> dict[str, Tensor]:
        return {n: t for n, t in vars(self).items() if not n.startswith("no_")}

    def poison(self) -> None:
        """Before a step: nothing in here may be read before it is written."""
        for tensor in self.tensors().values():
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
            else:
                tensor.fill_(NAN_BYTE if tensor.dtype == torch.uint8 else -1)
        self.mailbox.fill_(1.0)


def _bf16(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)
