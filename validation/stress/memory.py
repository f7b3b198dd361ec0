"""Memory that ranks share: mailboxes, records of what went wrong, and a control block for the watchdog.

One file in memory without a name, made by the parent and inherited by every rank, so that nothing is left
behind however a run ends. It holds the control block (what the parent tells the ranks, and how far each is)
and, on a CPU, the mailboxes and records of all ranks; on GPUs mailboxes are symmetric memory, which peers
address over NVLink, and multicast stays off.

What this catches: devices that cannot share memory (``UserError``). What it cannot do: tell how GPUs are
linked.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from validation.errors import UserError
from validation.stress.layout import CANARY, GARBAGE, Layout, signed

if TYPE_CHECKING:
    from torch import Tensor

RECORD, CONTROL = 16, 16  # int32 words of a lane's record, int64 words of a rank's control block
STOP, BEAT, STEP, CHUNK = range(4)  # of a control block
# Multicast can put a host's GPUs out of service where it is virtualised; nothing here uses it.
NO_MULTICAST = {
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
}


@dataclass
class Shared:
    """A view of the shared file. ``control``: int64 [ranks, 16]; ``records``: int32 [ranks, lanes, 16];
    ``mailboxes``: int32 [ranks, words], empty on GPUs."""

    control: Tensor
    records: Tensor
    mailboxes: Tensor
    mapped: mmap.mmap


def size(ranks: int, lanes: int, words: int) -> int:
    """Bytes of the shared file; ``words`` of each rank's mailboxes, 0 on GPUs."""
    return ranks * (CONTROL * 8 + lanes * RECORD * 4 + words * 4)


def create(ranks: int, lanes: int, words: int) -> int:
    """A file descriptor of a new shared file, filled with zeros."""
    try:
        file = os.memfd_create("lockstep-stress", 0)
        os.ftruncate(file, size(ranks, lanes, words))
    except (AttributeError, OSError) as error:
        raise UserError(f"no shared memory for {ranks} ranks: {error}; fewer lanes need less") from None
    return file


def attach(file: int, ranks: int, lanes: int, words: int) -> Shared:
    """Map the shared file of that descriptor."""
    mapped = mmap.mmap(file, size(ranks, lanes, words))
    control = torch.frombuffer(mapped, dtype=torch.int64, count=ranks * CONTROL)
    at = ranks * CONTROL * 8
    records = torch.frombuffer(mapped, dtype=torch.int32, count=ranks * lanes * RECORD, offset=at)
    at += ranks * lanes * RECORD * 4
    held = (
        torch.frombuffer(mapped, dtype=torch.int32, count=ranks * words, offset=at)
        if words
        else torch.empty(0, dtype=torch.int32)
    )
    return Shared(
        control.view(ranks, CONTROL), records.view(ranks, lanes, RECORD), held.view(ranks, words), mapped
    )


@dataclass
class Mailboxes:
    """This rank's words, and the addresses of all ranks' words as this one sees them (int64 [ranks])."""

    own: Tensor
    peers: Tensor
    handle: Any = None


def on_cpu(shared: Shared, rank: int) -> Mailboxes:
    """Mailboxes in the shared file."""
    addresses = [row.data_ptr() for row in shared.mailboxes]
    return Mailboxes(shared.mailboxes[rank], torch.tensor(addresses, dtype=torch.int64))


def on_gpu(layout: Layout, rank: int) -> Mailboxes:
    """Symmetric memory of an initialised process group. Raises UserError where there is none."""
    import torch.distributed as dist

    try:
        import torch.distributed._symmetric_memory as symmetric

        device = torch.device("cuda", rank)
        own = symmetric.empty(layout.words, dtype=torch.int32, device=device)
        handle = symmetric.rendezvous(own, dist.group.WORLD.group_name)  # type: ignore[union-attr]
        peers = torch.tensor(
            [int(address) for address in handle.buffer_ptrs], dtype=torch.int64, device=device
        )
    except (ImportError, AttributeError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"no symmetric memory between these GPUs: {first}; they must be of one host and reach each other "
            "(nvidia-smi topo -p2p r)"
        ) from None
    return Mailboxes(own, peers, handle)


def fill(own: Tensor, layout: Layout, armed: bool = True) -> None:
    """Canaries between regions, and in every mailbox its sentinel; or zeros, where it is not ``armed``."""
    for start, words in layout.canaries:
        own[start : start + words] = CANARY
    for region in layout.regions:
        own[region.start : region.start + region.words] = signed(region.sentinel if armed else GARBAGE)
