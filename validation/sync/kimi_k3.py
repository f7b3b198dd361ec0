"""The mailboxes and kernels of Kimi K3's specialised decode step (kimi_k3_ops.md, sections 3.0 and 4.1 to
4.7).

What this catches: nothing; it is the subject. What it cannot say: what the sources do where the specification
is silent; choices made there are commented.
"""

from __future__ import annotations

from typing import Any

from validation.sync.exchange import Act, Exchange, Kernel, Subject

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
        Exchange("dcp_q", "multicast", FP8, "mla", 2, rearmed_by="DcpValue", when="next kernel"),
        Exchange("dcp_partial", "peer", BF16, "mla", 2, rearmed_by="head owner", **AT_ONCE),
        Exchange("dcp_lse", "peer", FP8, "mla", 2, rearmed_by="head owner", **AT_ONCE),
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


def publish(name: str) -> Act:
    return Act("publish", name)


def poll(name: str) -> Act:
    return Act("poll", name)


def read(name: str) -> Act:
    return Act("read", name)


def rearm(name: str) -> Act:
    return Act("rearm", name)


def _attention() -> tuple[Kernel, ...]:
    pull = (poll("oproj"), rearm("oproj"))
    halves = (poll("oproj_recv"), rearm("oproj_recv"), publish("oproj_gather"), poll("oproj_gather"))
    q, p, lse = "dcp_q", "dcp_partial", "dcp_lse"
    shards = (publish(p), publish(lse), poll(p), poll(lse), rearm(p), rearm(lse))
    update = (read("prefix"),)
    return (
        Kernel("Embed", ((publish("embedding"), poll("embedding"), publish("prefix")),)),
        Kernel("AttnRes", ((publish("prefix"),),), "first", "entry", early=(update,)),
        Kernel(
            "AttnResRing", ((poll("out"), rearm("out"), publish("prefix")),), "last", "entry", early=(update,)
        ),
        Kernel("Projection", (), "first", "end"),
        Kernel("SplitK", (), "first", "waited"),
        Kernel("Core", ((publish("core_rows"),),), "first", "waited"),
        Kernel("MlaQuery", ((publish(q), poll(q)),), "first", "waited"),
        Kernel("Attention", ((read(q),),), "first", "end"),
        Kernel("DcpValue", ((rearm(q),), (*shards, publish("core_rows"))), "first", "end"),
        Kernel("OprojProducer", ((read("core_rows"), publish("oproj")),), "first", "waited"),
        Kernel(
            "OprojConsumer",
            ((*pull, publish("prefix"), publish("second"), publish("x_moe")),),
            "last",
            "entry",
            early=(update,),
        ),
        Kernel(
            "OprojFused",
            (
                (read("core_rows"), publish("oproj")),
                (*pull, publish("prefix"), publish("second"), publish("x_moe")),
            ),
            "first",
            "entry",
            early=(update,),
        ),
        Kernel("OprojPush", ((read("core_rows"), publish("oproj_recv")),), "first", "waited"),
        Kernel(
            "OprojTwoShot",
            ((*halves, rearm("oproj_gather"), publish("prefix"), publish("second")),),
            "last",
            "entry",
            early=(update,),
        ),
        Kernel("Dense", ((read("second"), publish("framework"), poll("framework")),)),
        Kernel("LocalMlp", ((read("second"),),)),
        Kernel(
            "FinalAttnRes",
            ((poll("out"), rearm("out"), publish("hidden_out")),),
            "last",
            "entry",
            early=(update,),
        ),
        Kernel("FinalDense", ((publish("hidden_out"),),), "first", "entry", early=(update,)),
        Kernel("Sampler", ((read("hidden_out"), publish("counts")),)),
        Kernel("HostRead", ((read("counts"),),), stream="host"),
    )


def _moe() -> tuple[Kernel, ...]:
    late = tuple((rearm(name),) for name in ("latent", "rs"))
    own = (publish("latent"), publish("rs"))
    down = (poll("latent"), poll("rs"), publish("out"))
    once = (poll("latent"), publish("reduced"), poll("reduced"), poll("rs"), publish("out"))
    r, g = "latent_recv", "latent_gather"
    two = (poll(r), publish(g), poll(g), poll("rs"), publish("out"))
    gws = tuple(poll(name) for name in ("g", "w", "s"))
    late_gws = tuple((rearm(name),) for name in ("g", "w", "s"))
    inner = tuple((publish(name), poll(name), rearm(name)) for name in ("partials", "stage"))

    def images(name: str) -> tuple[tuple[Act, ...], ...]:
        return (
            (publish(name), poll(name)),
            (rearm(name),),
            (publish("steal"), poll("steal")),
            (rearm("steal"),),
        )

    begin = (poll("x_moe"), publish("scores"), poll("scores"))
    other = tuple((rearm(name),) for name in ("x_moe", "scores", "hg"))
    return (
        Kernel("FrontGemm", ((read("second"), publish("front")),), "first", "waited"),
        Kernel("RouteSitu", ((poll("front"), rearm("front"), publish("plan")),), "last", "end"),
        Kernel("RouteLean", ((poll("front"), rearm("front"), publish("plan")),), "never", "end"),
        Kernel("Experts", ((read("plan"), publish("latent")), *inner, *images("images")), "first", "waited"),
        Kernel("ExpertRows", ((read("plan"),), *inner, *images("images")), "first", "waited"),
        Kernel(
            "ExpertsGrouped",
            ((read("plan"), publish("latent")), *inner, *images("grouped_images")),
            "first",
            "waited",
        ),
        Kernel(
            "ExpertsTwoShot",
            ((read("plan"), publish(r)), *inner, *images("grouped_images")),
            "first",
            "waited",
        ),
        Kernel("SharedRows", ((read("second"), publish("side_rows")),), stream="side"),
        Kernel("SharedDown", ((read("side_rows"), publish("rs")),), stream="side"),
        Kernel("SharedKeep", ((read("side_rows"), publish("shared_rows")),), stream="side"),
        Kernel("WaveTail", (down, *late), "last", "issued"),
        Kernel("WaveTailReduced", (once, *late, (rearm("reduced"),)), "last", "entry"),
        Kernel("WaveTailTwoShot", (two, (rearm(r),), (rearm(g),), (rearm("rs"),)), "last", "entry"),
        Kernel("MoeTail", ((read("shared_rows"), *own, *down), *late), "first", "issued"),
        Kernel("MoeTailPoll", ((*gws, *own, *down), *late, *late_gws), "first", "issued"),
        Kernel(
            "MoeFrontTP8",
            (
                (*begin, publish("ids"), publish("w"), publish("hg")),
                (poll("x_moe"), publish("h2_tp8"), poll("h2_tp8"), rearm("h2_tp8")),
                *other,
            ),
            "last",
            "entry",
        ),
        Kernel("RingCall", ((publish("ring"), poll("ring")), (rearm("ring"),))),
        Kernel("SmallStores", ((publish("x_moe"),),)),
        Kernel("SmallFront", ((*begin, publish("hg"), poll("hg")), *other), "last", "entry"),
        Kernel("ClusterExpertsTP8", ((read("ids"), rearm("ids"), publish("g")),), "first", "entry"),
        Kernel("MoeSharedTP8", ((poll("x_moe"), poll("hg"), publish("s")),), "last", "entry"),
        Kernel(
            "MoeFrontTP16",
            (
                (*begin, publish("ids"), publish("w")),
                (poll("x_moe"), publish("h2")),
                (poll("x_moe"), publish("hg"), poll("hg"), publish("s")),
                *other,
                (rearm("h2"),),
            ),
            "last",
            "entry",
        ),
        Kernel(
            "ClusterExpertsTP16", ((poll("ids"), poll("h2"), rearm("ids"), publish("g")),), "last", "entry"
        ),
    )


def subject() -> Subject:
    """The protocols as specified."""
    kernels = (*_attention(), *_moe())
    return Subject({e.name: e for e in _exchanges()}, {k.name: k for k in kernels})
