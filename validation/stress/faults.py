"""Protocols broken on purpose, one or more for each stress mode: a mode that cannot fail proves nothing.

Faults that are edits of the protocol's data are those of ``validation.sync.faults``, by the same names: the
edit that the checker refutes is the edit that runs. The others change what one rank does, or its memory.

What this catches: nothing; it is what must be caught. What it cannot hold: faults that only some devices
show (relaxed scopes, proxies), and those of one rank alone, whose mailboxes are not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from validation.errors import UserError
from validation.stress.layout import Layout
from validation.stress.script import ALL_JUDGED, PULLED, SHARED_SLOT, UNFENCED, Step
from validation.sync.fault import Edit
from validation.sync.faults import FAULTS as PROVED

VICTIM = 1  # the rank that errs
WATCHDOG = ("watchdog",)


@dataclass(frozen=True)
class Planted:
    """One fault. ``kind``: of the catalogue of public reports. ``modes``: stress modes whose control it is.

    ``layers``, ``batches`` and ``dcp``: the steps that show it, which are safe without it. ``change``: what a
    rank's acts become, from step ``since`` on, or in that step alone if ``once``. ``memory``: what is done to
    the memory of a rank instead: see ``validation.stress.engine``.
    """

    name: str
    kind: str
    modes: tuple[str, ...]
    layers: str = "LL"
    batches: tuple[int, ...] = (8,)
    edits: tuple[Edit, ...] = ()
    change: Callable[[list[Step], int, Layout], list[Step]] | None = None
    since: int = 0
    once: bool = False
    memory: str = ""
    rows: int = 0
    steps: int = 120
    launched: bool = False
    dcp: bool = False


def _proved(name: str, modes: tuple[str, ...], layers: str = "LL", **more: object) -> Planted:
    """A fault of the checker, run."""
    fault = next(fault for fault in PROVED if fault.name == name)
    return Planted(name, fault.kind, modes, layers, edits=fault.edits, **more)  # type: ignore[arg-type]


def _of_victim(change: Callable[[list[Step]], list[Step]]) -> Callable[[list[Step], int, Layout], list[Step]]:
    return lambda steps, rank, layout: change(steps) if rank == VICTIM else steps


def _skip_layer(steps: list[Step]) -> list[Step]:
    """One layer less: its launches are not made."""
    return [step for step in steps if step.layer != 1]


def _silent(steps: list[Step]) -> list[Step]:
    """One publication is missing: the last of the step that is not relayed."""
    drop = max(i for i, step in enumerate(steps) if step.verb == "publish" and step.relays < 0)
    return [step for i, step in enumerate(steps) if i != drop]


def _wrong_peer(steps: list[Step]) -> list[Step]:
    """What an owner should get goes to the rank after it."""
    return [replace(step, turn=1) if step.verb == "publish" else step for step in steps]


def _other_token(steps: list[Step]) -> list[Step]:
    return [replace(step, key=step.key + 1_000_003) if step.verb == "publish" else step for step in steps]


def _stale_epoch(steps: list[Step]) -> list[Step]:
    """Publications into the parity of the use before."""
    return [
        replace(step, use=(step.use - 1) % step.parities) if step.verb == "publish" else step
        for step in steps
    ]


def _pulled(steps: list[Step], rank: int, layout: Layout) -> list[Step]:
    """Readers take the words from the publisher's input instead of from their mailbox."""
    return [replace(step, flags=step.flags | PULLED) if step.verb == "poll" else step for step in steps]


def _flag_first(steps: list[Step], rank: int, layout: Layout) -> list[Step]:
    """The first word of a fragment is taken for a flag of the rest: flag and payload are separate words of
    one publication, and ``fragments`` has the flag arrive first."""
    return [replace(step, flags=step.flags & ~ALL_JUDGED) if step.verb == "poll" else step for step in steps]


def _relaxed(steps: list[Step], rank: int, layout: Layout) -> list[Step]:
    """No publication is fenced: on a GPU, a flag has no release order after its payload. Processors that keep
    stores in order would hide that, so ``order`` has every second rank store the flag first."""
    return [replace(step, flags=step.flags | UNFENCED) if step.verb == "publish" else step for step in steps]


def _row_too_many(steps: list[Step], rank: int, layout: Layout) -> list[Step]:
    """A re-arm of one row behind the last slot of an exchange."""
    rearm = next(step for step in steps if step.verb == "rearm")
    region = layout.region(rearm.exchange)
    end = region.start + region.words
    return [*steps, replace(rearm, base=end, clears=0, parities=1, advance=0, rows=1, flags=SHARED_SLOT)]


FAULTS = (
    _proved("clears_next_stage", ("delays",), "RRR"),
    _proved("two_stages", ("delays",), "RRR"),
    _proved("oproj_single_buffer", ("delays",), "LL"),
    _proved("sources_share_a_slot", ("neighbours",), "LL"),
    _proved("gather_not_polled", ("jitter",), "LL", batches=(64,)),
    _proved("oproj_never_rearmed", ("delays",), "LL"),
    _proved("oproj_not_canonical", ("payloads",), "LL"),
    _proved("ring_not_canonical", ("payloads",), "RRR"),
    _proved("clears_size_of_this_call", ("batches",), "R", batches=(64, 8, 8)),
    _proved("stage_restarts_each_step", ("batches",), "R"),
    _proved("tail_two_parities_odd_count", ("delays",), "KKK"),
    _proved("tail_never_rearms", ("batches",), "R"),
    _proved("oproj_judged_by_one_word", ("fragments",), "LL"),
    _proved("ring_judged_by_one_word", ("fragments",), "RRR"),
    _proved("mailbox_not_filled", ("cold",), "LL", memory="not_filled", steps=24),
    _proved("partial_trusted_by_its_lse", ("order",), "AA", dcp=True, change=_relaxed),
    _proved("query_not_polled", ("delays",), "AA", dcp=True),
    _proved("dcp_partial_not_canonical", ("payloads",), "AA", dcp=True),
    _proved("dcp_lse_not_canonical", ("payloads",), "AA", dcp=True),
    _proved("every_rank_stores_the_head", ("neighbours",), "AA", dcp=True),
    _proved("sets_share_memory", ("delays",), "AA", dcp=True),
    Planted("rank_with_fewer_rows", "F40", ("batches",), "RR", (8,), rows=4, since=3),
    Planted("rank_takes_two_shot", "F40", ("batches",), "LL", (8,), rows=64, since=3),
    Planted(
        "rank_commits_another_token", "F49", ("payloads",), "RR", change=_of_victim(_other_token), since=3
    ),
    Planted("flag_before_data", "F37", ("fragments",), "LL", (16,), change=_flag_first),
    Planted("input_read_by_peers", "F38", ("overwritten",), "LL", (8,), change=_pulled),
    Planted("stale_epoch", "F39", ("delays",), "RRR", change=_of_victim(_stale_epoch), since=2),
    Planted("wrong_peer", "F39", ("payloads",), "LL", (64,), change=_of_victim(_wrong_peer), since=3),
    Planted("layer_skipped_on_one_rank", "F40", WATCHDOG, "LLLL", change=_of_victim(_skip_layer), since=3),
    Planted("publication_missing", "F40", WATCHDOG, "DKA", change=_of_victim(_silent), since=3, once=True),
    Planted("refilled_after_idle", "F47", ("idle",), "LL", memory="refilled"),
    Planted("step_baked_at_capture", "F44", ("replay",), "LL", memory="clock_frozen", launched=True),
    Planted("state_of_one_rank_flipped", "F49", ("hashes",), "LL", memory="state_flipped", steps=24),
    Planted("row_too_many", "F46", ("canaries",), "LL", change=_row_too_many, since=1, once=True, steps=24),
)


def fault_named(name: str) -> Planted:
    """Raises UserError for a name that is none."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise UserError(f"no planted fault '{name}'; see lockstep stress --list")


def controls(modes: list[str], every: bool) -> list[Planted]:
    """Faults for these modes: the first of each mode, or all."""
    found: list[Planted] = []
    for mode in modes:
        of_mode = [fault for fault in FAULTS if mode in fault.modes]
        found += of_mode if every else of_mode[:1]
    return list(dict.fromkeys(found))
