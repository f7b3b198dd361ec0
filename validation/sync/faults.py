"""The planted faults of the layer: the negative controls of every run.

Kinds and reports are those of the catalogue of public reports (F34 to F42, F46 to F49). Every setting is safe
without its fault; a test shows it. What this cannot hold: faults of the device (proxy fences, scopes).
"""

from __future__ import annotations

from validation.sync.exchange import Act
from validation.sync.fault import Edit, Fault
from validation.sync.kernels import poll, publish, read, rearm
from validation.sync.setting import TP16, Setting


def _set(layers: str, batches: tuple[int, ...], *targets: str, **more: object) -> Setting:
    return Setting(2, layers, batches, targets=targets, **more)  # type: ignore[arg-type]


def _bare(layers: str, batches: tuple[int, ...], *targets: str, **more: object) -> Setting:
    """The same without the framework's all-reduce: fewer events in the trace."""
    return _set(layers, batches, *targets, barrier=False, **more)


def _exchange(name: str, **fields: object) -> tuple[Edit, ...]:
    return tuple(Edit("exchange", name, field, value) for field, value in fields.items())


def _kernel(name: str, **fields: object) -> tuple[Edit, ...]:
    return tuple(Edit("kernel", name, field, value) for field, value in fields.items())


def _drop(kernel: str, verb: str, exchange: str) -> tuple[Edit, ...]:
    return (Edit("drop", kernel, value=Act(verb, exchange)),)  # type: ignore[arg-type]


def _read(kernel: str, exchange: str) -> tuple[Edit, ...]:
    return (Edit("swap", kernel, value=(Act("poll", exchange), Act("read", exchange))),)


EIGHT, ONE = (8, 8), (1, 1)
# Payload and flag in separate publications, and no order between them: partial rows are read once their log
# sums are there.
P, LSE = "dcp_partial", "dcp_lse"
FLAGGED = (
    (rearm("dcp_q"),),
    (publish(P), publish(LSE), poll(LSE), read(P), rearm(P), rearm(LSE), publish("core_rows")),
)

PDL = (
    Fault(
        "producer_without_wait",
        "F34",
        _set("D", (8,), "core_rows"),
        _kernel("OprojProducer", wait="never"),
        "B096",
    ),
    Fault(
        "front_without_wait",
        "F34",
        _set("KK", (8,), "second"),
        _kernel("FrontGemm", wait="never"),
    ),
    Fault(
        "projection_triggers_early",
        "F34",
        _set("D", (8,), "prefix", plan=TP16),
        (*_kernel("SplitK", trigger="entry"), *_kernel("Core", trigger="entry")),
    ),
    Fault(
        "experts_without_wait",
        "F34",
        _set("KK", (8,), "plan"),
        (*_kernel("RouteSitu", trigger="entry"), *_kernel("Experts", wait="never")),
    ),
)

RING = (
    Fault("clears_next_stage", "F35", _bare("RRR", (8,), "ring"), _exchange("ring", clears="next"), "B123"),
    Fault("two_stages", "F35", _bare("RRR", (8,), "ring"), _exchange("ring", parities=2)),
    Fault("one_stage", "F35", _bare("RR", (8,), "ring"), _exchange("ring", parities=1)),
    Fault("clears_own_stage", "F35", _bare("RR", (8,), "ring"), _exchange("ring", clears="current")),
    Fault(
        "clears_size_of_this_call",
        "F35",
        _bare("R", (64, 8, 8, 64), "ring"),
        _exchange("ring", first_rows=0),
        "B088",
    ),
    Fault("stage_restarts_each_step", "F35", _bare("R", EIGHT, "ring"), _exchange("ring", parity="moe")),
    Fault("tail_never_rearms", "F35", _bare("R", (8,) * 4, "ring"), _drop("RingCall", "rearm", "ring")),
    Fault(
        "tail_two_parities_odd_count", "F35", _set("KKK", EIGHT, "latent"), _exchange("latent", parities=2)
    ),
    Fault("moe_count_1_mod_3", "F35", _set("K", EIGHT, "latent", "rs"), safe="KK"),
)

SENTINEL = (
    *(
        Fault(f"{name}_not_canonical", "F36", setting, _exchange(name, canonical=False))
        for name, setting in (
            ("oproj", _set("L", (8,), "oproj")),
            ("oproj_recv", _set("L", (64,), "oproj_recv")),
            ("oproj_gather", _set("L", (64,), "oproj_gather")),
            ("front", _set("KK", (8,), "front")),
            ("ring", _bare("R", (8,), "ring")),
            ("dcp_partial", _set("AA", (8,), "dcp_partial", dcp=True)),
            ("dcp_lse", _set("AA", (8,), "dcp_lse", dcp=True)),
            ("partials", _bare("E", (8,), "partials")),
            ("x_moe", _bare("S", (1,), "x_moe")),
        )
    ),
    Fault("oproj_judged_by_one_word", "F36", _set("L", (8,), "oproj"), _exchange("oproj", judged="first")),
    Fault(
        "ring_judged_by_one_word", "F36", _bare("R", (8,), "ring"), _exchange("ring", judged="first"), "B097"
    ),
    Fault(
        "scores_judged_by_one_word", "F36", _bare("S", (1,), "scores"), _exchange("scores", judged="first")
    ),
)

RELEASE = (
    Fault(
        "partial_trusted_by_its_lse",
        "F37",
        _set("AA", (8,), "dcp_partial", "dcp_lse", dcp=True),
        _kernel("DcpValue", chains=FLAGGED),
    ),
    Fault(
        "gather_not_polled",
        "F37",
        _set("L", (64,), "oproj_gather"),
        _read("OprojTwoShot", "oproj_gather"),
        "B097",
    ),
    Fault(
        "query_not_polled",
        "F37",
        _set("AA", (8,), "dcp_q", dcp=True),
        _drop("MlaQuery", "poll", "dcp_q"),
    ),
)

REUSE = (
    Fault("oproj_single_buffer", "F38", _set("LL", (8,), "oproj"), _exchange("oproj", parities=1), "B130"),
    Fault(
        "latent_rows_rearmed_at_once",
        "F38",
        _set("KK", ONE, "h2", plan=TP16),
        _exchange("h2", clears="current"),
    ),
    Fault(
        "sources_share_a_slot",
        "F38",
        _set("L", (8,), "oproj"),
        _exchange("oproj", slots="shared"),
    ),
    Fault("x_moe_single_buffer", "F38", _bare("S", (1,), "x_moe"), _exchange("x_moe", parities=1)),
)

WORKSPACE = (
    Fault(
        "oproj_never_rearmed",
        "F39",
        _set("L", (8, 8), "oproj"),
        _drop("OprojConsumer", "rearm", "oproj"),
    ),
    Fault(
        "sets_share_memory",
        "F39",
        _set("AA", (8,), "dcp_q", "oproj", dcp=True),
        _exchange("oproj", alias="dcp_q"),
    ),
    Fault("images_odd_count", "F39", _bare("E", (8, 64, 8), "images"), (), "", "EE"),
    Fault(
        "steal_counters_not_rearmed",
        "F39",
        _bare("EE", (8, 8), "steal"),
        _drop("ExpertRows", "rearm", "steal"),
    ),
    Fault("small_batch_odd_count", "F39", _bare("S", ONE, "x_moe", "scores", "hg"), (), "", "SS"),
    Fault("step_abandoned", "F39", _bare("RR", EIGHT, "ring", stops=1)),
)

RANKS = (
    Fault("rank_with_fewer_rows", "F40", _bare("R", (8,), "ring", other_batches=(1, (4,))), (), "B090"),
    Fault("rank_takes_two_shot", "F40", _set("L", (8,), "oproj", other_batches=(1, (64,)))),
    Fault("rank_commits_another_token", "F49", _bare("R", EIGHT, "ring", other_token=(1, 1)), (), "B160"),
)

COPIES = (
    Fault("counts_read_before_copy", "F41", _bare("R", (8,), "counts", missing=("copy_landed",)), (), "B098"),
    Fault("counts_staged_once", "F41", _bare("R", EIGHT, "counts"), _exchange("counts", parities=1)),
    Fault("host_not_awaited", "F41", _bare("E", (8, 8, 8), "counts", missing=("host_done",))),
    Fault("side_stream_not_forked", "F42", _set("KK", (8,), "second", missing=("side_begin",))),
    Fault(
        "side_stream_not_joined",
        "F42",
        _set("KK", (4,), "shared_rows", missing=("shared_done",)),
        (),
    ),
)

GRAPHS = (
    Fault(
        "replay_overwrites_output",
        "F46",
        _bare("R", EIGHT, "hidden_out"),
        _kernel("Sampler", stream="host"),
    ),
    Fault(
        "scratch_recycled_while_read",
        "F46",
        _set("KK", (8,), "side_rows", "second"),
        _exchange("side_rows", alias="second"),
        "B151",
    ),
    Fault("mailbox_not_filled", "F47", _set("L", (8,), "oproj"), _exchange("oproj", filled=False)),
    Fault("warm_up_leaves_ring", "F47", _bare("R", EIGHT, "ring"), _exchange("ring", filled=False)),
    Fault(
        "every_rank_stores_the_head",
        "F48",
        _set("AA", (8,), "dcp_partial", dcp=True),
        _exchange("dcp_partial", slots="shared"),
    ),
)

FAULTS = (*PDL, *RING, *SENTINEL, *RELEASE, *REUSE, *WORKSPACE, *RANKS, *COPIES, *GRAPHS)
