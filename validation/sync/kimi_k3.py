"""The mailboxes of Kimi K3's specialised decode step (kimi_k3_ops.md, sections 3.0 and 4.1 to 4.7).

What this catches: nothing; it is the subject. What it cannot say: what the sources do where the specification
is silent; choices made there are commented.
"""

from __future__ import annotations

from typing import Any

from validation.sync.exchange import Exchange, Subject
from validation.sync.kernels import kernels

BF16, FP32, FP8, HALF = "0x80000000", "0x80000000", "0xFFFFFFFF", "0xFFFF in a half"
DEFERRED: dict[str, Any] = {
    "rearmed_by": "next MoE layer's tail",
    "when": "deferred",
    "parity": "moe",
    "parities": 3,
}
OTHER: dict[str, Any] = {
    "rearmed_by": "front",
    "when": "next MoE layer",
    "parity": "layer",
    "parities": 2,
    "clears": "other",
}
AT_ONCE: dict[str, Any] = {"when": "right after polling"}


def _exchanges() -> tuple[Exchange, ...]:
    tail: dict[str, Any] = {**DEFERRED, "clears": "previous", "first_rows": 64}
    small: dict[str, Any] = {**DEFERRED, "clears": "previous", "rows": 8, "first_rows": 8}
    order: dict[str, Any] = {"sentinel": "none", "plain": True}
    return (
        Exchange("oproj", "multicast", BF16, "layer", 2, rearmed_by="reader", **AT_ONCE),
        Exchange("oproj_recv", "peer", BF16, "layer", 2, rearmed_by="column owner", **AT_ONCE),
        Exchange("oproj_gather", "multicast", BF16, "layer", 2, rearmed_by="consumer", **AT_ONCE),
        Exchange("front", "multicast", BF16, rearmed_by="RouteSitu", **AT_ONCE),
        Exchange("latent", "multicast", BF16, **tail),
        Exchange("rs", "peer", BF16, **tail),
        Exchange("reduced", "local", BF16, **tail),
        Exchange("latent_recv", "peer", BF16, **tail),
        Exchange("latent_gather", "multicast", BF16, **tail),
        Exchange("out", "multicast", BF16, rearmed_by="next AttnRes", **AT_ONCE),
        Exchange(
            "dcp_q", "multicast", FP8, "mla", 2, rearmed_by="DcpValue", when="next kernel", holds="bytes"
        ),
        Exchange("dcp_partial", "peer", BF16, "mla", 2, rearmed_by="head owner", **AT_ONCE),
        Exchange("dcp_lse", "peer", FP8, "mla", 2, rearmed_by="head owner", **AT_ONCE, holds="log sums"),
        Exchange("x_moe", "local", BF16, rows=4, first_rows=4, **OTHER),
        Exchange("scores", "local", BF16, **OTHER),
        Exchange("hg", "local", "bit 0 = 0", **OTHER),
        Exchange("h2", "multicast", BF16, **OTHER),
        Exchange("h2_tp8", "multicast", BF16, "layer", 2, rearmed_by="front CTA 0", **AT_ONCE),
        Exchange("g", "local", HALF, **small),
        Exchange("w", "local", HALF, **small),
        Exchange("s", "local", HALF, **small),
        Exchange("ids", "local", "negative", rearmed_by="cluster leader", when="end of kernel"),
        Exchange("partials", "local", FP8, rearmed_by="tile owner", **AT_ONCE),
        Exchange("images", "local", "0xFF in a byte", "common", 2, "other", 8, 8, "next call", "next call"),
        Exchange("grouped_images", "local", "0xFF in a byte", "call", 2, "other", 64, 64, "next call"),
        Exchange("stage", "local", FP8, rearmed_by="finalize", **AT_ONCE),
        Exchange("steal", "local", "-1", "common", 2, "other", 64, 64, "next call", counter=True),
        # What only order protects: program data handed from kernel to kernel (section 4.6), and the host's
        # copies.
        Exchange("prefix", "local", **order),
        Exchange("core_rows", "local", **order),
        Exchange("second", "local", **order),
        Exchange("plan", "local", **order),
        Exchange("side_rows", "local", **order),
        Exchange("shared_rows", "local", **order),
        Exchange("hidden_out", "local", **order),
        Exchange("counts", "local", parity="step", parities=2, **order),
        # A three-stage Lamport all-reduce by itself, as libraries have it (report B123).
        Exchange("ring", "multicast", BF16, "running", 3, "previous", 0, 64, "next call", "deferred"),
        # Collectives of the framework: they synchronise, and are not judged.
        Exchange("embedding", "multicast", "none", "unique"),
        Exchange("framework", "multicast", "none", "unique"),
    )


def subject() -> Subject:
    """The protocols as specified."""
    return Subject({e.name: e for e in _exchanges()}, {k.name: k for k in kernels()})
