"""The kernels of Kimi K3's specialised decode step, as chains of actions on its mailboxes (kimi_k3_ops.md,
sections 4.1 to 4.7).

What this catches: nothing; it is the subject. What it cannot say: what the sources do where the specification
is silent; choices made there are commented.
"""

from __future__ import annotations

from validation.sync.exchange import Act, Kernel

# What the next layer's update reads, before its kernel waits.
UPDATE = (Act("read", "prefix"),)


def publish(name: str) -> Act:
    return Act("publish", name)


def poll(name: str) -> Act:
    return Act("poll", name)


def read(name: str) -> Act:
    return Act("read", name)


def rearm(name: str) -> Act:
    return Act("rearm", name)


def _residual() -> tuple[Kernel, ...]:
    """Embedding and attention residuals."""
    return (
        Kernel("Embed", ((publish("embedding"), poll("embedding"), publish("prefix")),)),
        Kernel("AttnRes", ((publish("prefix"),),), "first", "entry", early=(UPDATE,)),
        Kernel(
            "AttnResRing", ((poll("out"), rearm("out"), publish("prefix")),), "last", "entry", early=(UPDATE,)
        ),
    )


def _core() -> tuple[Kernel, ...]:
    """Projections and attention of both kinds."""
    q, p, lse = "dcp_q", "dcp_partial", "dcp_lse"
    shards = (publish(p), publish(lse), poll(p), poll(lse), rearm(p), rearm(lse))
    return (
        Kernel("Projection", (), "first", "end"),
        Kernel("SplitK", (), "first", "waited"),
        Kernel("Core", ((publish("core_rows"),),), "first", "waited"),
        Kernel("MlaQuery", ((publish(q), poll(q)),), "first", "waited"),
        Kernel("Attention", ((read(q),),), "first", "end"),
        Kernel("DcpValue", ((rearm(q),), (*shards, publish("core_rows"))), "first", "end"),
    )


def _oproj() -> tuple[Kernel, ...]:
    """The o-projection's sum over the ranks."""
    pull = (poll("oproj"), rearm("oproj"))
    halves = (poll("oproj_recv"), rearm("oproj_recv"), publish("oproj_gather"), poll("oproj_gather"))
    return (
        Kernel("OprojProducer", ((read("core_rows"), publish("oproj")),), "first", "waited"),
        Kernel(
            "OprojConsumer",
            ((*pull, publish("prefix"), publish("second"), publish("x_moe")),),
            "last",
            "entry",
            early=(UPDATE,),
        ),
        Kernel(
            "OprojFused",
            (
                (read("core_rows"), publish("oproj")),
                (*pull, publish("prefix"), publish("second"), publish("x_moe")),
            ),
            "first",
            "entry",
            early=(UPDATE,),
        ),
        Kernel("OprojPush", ((read("core_rows"), publish("oproj_recv")),), "first", "waited"),
        Kernel(
            "OprojTwoShot",
            ((*halves, rearm("oproj_gather"), publish("prefix"), publish("second")),),
            "last",
            "entry",
            early=(UPDATE,),
        ),
    )


def _ends() -> tuple[Kernel, ...]:
    """Dense MLPs, and what follows the last layer."""
    return (
        Kernel("Dense", ((read("second"), publish("framework"), poll("framework")),)),
        Kernel("LocalMlp", ((read("second"),),)),
        Kernel(
            "FinalAttnRes",
            ((poll("out"), rearm("out"), publish("hidden_out")),),
            "last",
            "entry",
            early=(UPDATE,),
        ),
        Kernel("FinalDense", ((publish("hidden_out"),),), "first", "entry", early=(UPDATE,)),
        Kernel("Sampler", ((read("hidden_out"), publish("counts")),)),
        Kernel("HostRead", ((read("counts"),),), stream="host"),
    )


def _front() -> tuple[Kernel, ...]:
    """From the mixture to the routing plan."""
    return (
        Kernel("FrontGemm", ((read("second"), publish("front")),), "first", "waited"),
        Kernel("RouteSitu", ((poll("front"), rearm("front"), publish("plan")),), "last", "end"),
        Kernel("RouteLean", ((poll("front"), rearm("front"), publish("plan")),), "never", "end"),
    )


def _experts() -> tuple[Kernel, ...]:
    """Routed experts, and the shared one on the side stream."""
    inner = tuple((publish(name), poll(name), rearm(name)) for name in ("partials", "stage"))

    def images(name: str) -> tuple[tuple[Act, ...], ...]:
        return (
            (publish(name), poll(name)),
            (rearm(name),),
            (publish("steal"), poll("steal")),
            (rearm("steal"),),
        )

    r = "latent_recv"
    return (
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
    )


def _tail() -> tuple[Kernel, ...]:
    """The latent sum over the ranks and the way back to the residual stream."""
    late = tuple((rearm(name),) for name in ("latent", "rs"))
    own = (publish("latent"), publish("rs"))
    down = (poll("latent"), poll("rs"), publish("out"))
    once = (poll("latent"), publish("reduced"), poll("reduced"), poll("rs"), publish("out"))
    r, g = "latent_recv", "latent_gather"
    two = (poll(r), publish(g), poll(g), poll("rs"), publish("out"))
    gws = tuple(poll(name) for name in ("g", "w", "s"))
    late_gws = tuple((rearm(name),) for name in ("g", "w", "s"))
    return (
        Kernel("WaveTail", (down, *late), "last", "issued"),
        Kernel("WaveTailReduced", (once, *late, (rearm("reduced"),)), "last", "entry"),
        Kernel("WaveTailTwoShot", (two, (rearm(r),), (rearm(g),), (rearm("rs"),)), "last", "entry"),
        Kernel("MoeTail", ((read("shared_rows"), *own, *down), *late), "first", "issued"),
        Kernel("MoeTailPoll", ((*gws, *own, *down), *late, *late_gws), "first", "issued"),
    )


def _small_batch() -> tuple[Kernel, ...]:
    """The chain of one and two rows, and a ring by itself."""
    begin = (poll("x_moe"), publish("scores"), poll("scores"))
    other = tuple((rearm(name),) for name in ("x_moe", "scores", "hg"))
    return (
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


def kernels() -> tuple[Kernel, ...]:
    """All of them, in the order of the step."""
    attention = (*_residual(), *_core(), *_oproj(), *_ends())
    return (*attention, *_front(), *_experts(), *_tail(), *_small_batch())
