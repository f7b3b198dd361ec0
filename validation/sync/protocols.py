"""The protocols that a run proves: which exchanges each has, and for which batches.

What this catches: names that are unknown. What it cannot hold: exchanges of the framework, which are trusted.
"""

from __future__ import annotations

from dataclasses import dataclass

from validation.errors import UserError
from validation.sync.setting import TP8, TP16

# One batch for each sequence of kernels (table 3.0): small batch, rows out, un-grouped, grouped, two-shot.
MODES = {TP8: (1, 4, 8, 16, 64), TP16: (1, 2, 8, 16, 32, 64)}
# Counters and parities need a step in between.
THERE_AND_BACK = ((8, 64, 8), (64, 8, 64), (64, 1, 64), (1, 64, 1))
# The subject has 92 expert layers: even, and 2 mod 3. The smallest pattern of that kind with every letter.
LAYERS = "DKA"
RANKS = (2, 3, 4)


@dataclass(frozen=True)
class Protocol:
    """``exchanges``: judged word for word. ``plans``: whose dispatch has them. ``layers``: the default."""

    name: str
    summary: str
    exchanges: tuple[str, ...]
    plans: tuple[int, ...] = (TP8, TP16)
    dcp: bool = False
    layers: str = LAYERS


SMALL = ("x_moe", "scores", "hg", "g", "w", "s", "ids")
ORDERED = ("prefix", "core_rows", "second", "plan", "side_rows", "shared_rows", "hidden_out", "counts")
PROTOCOLS = (
    Protocol("oproj_one_shot", "o-projection, every rank multicasts its row", ("oproj",)),
    Protocol(
        "oproj_two_shot", "o-projection, column owners sum and multicast", ("oproj_recv", "oproj_gather")
    ),
    Protocol("front", "router logits and latent shard, one parity", ("front",)),
    Protocol("tail", "latent partials and shared rows, three parities", ("latent", "rs")),
    Protocol("tail_reduced", "rows reduced once per cluster, three parities", ("reduced", "latent")),
    Protocol(
        "tail_two_shot",
        "latent partials by owners, three parities",
        ("latent_recv", "latent_gather"),
        (TP16,),
    ),
    Protocol("tail_out", "output columns to the next AttnRes, one parity", ("out",)),
    Protocol(
        "dcp",
        "query, partial rows and LSE under context parallelism",
        ("dcp_q", "dcp_partial", "dcp_lse"),
        dcp=True,
        layers="DAA",  # both parities of the MLA ordinal in one step
    ),
    Protocol("small_batch_tp8", "mailboxes of one row at TP8", (*SMALL, "h2_tp8"), (TP8,)),
    Protocol("small_batch_tp16", "mailboxes of one or two rows at TP16", (*SMALL, "h2"), (TP16,)),
    Protocol(
        "experts",
        "workspaces of the routed experts",
        ("partials", "images", "grouped_images", "stage", "steal"),
    ),
    Protocol("launch_order", "data that only launch order protects", ORDERED),
)


def changes(plan: int) -> tuple[tuple[int, ...], ...]:
    """Batches of the steps to prove: every ordered pair of modes, and changes there and back."""
    modes = MODES[plan]
    return (*((a, b) for a in modes for b in modes if a != b), *THERE_AND_BACK)


def protocol_named(name: str) -> Protocol:
    """Raises UserError for a name that is none."""
    for protocol in PROTOCOLS:
        if protocol.name == name:
            return protocol
    raise UserError(f"no exchange '{name}'; there are {', '.join(p.name for p in PROTOCOLS)}")
