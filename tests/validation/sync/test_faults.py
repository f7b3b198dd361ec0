"""Every planted fault is found with a short trace, and its setting is safe without it."""

import pytest

from validation.sync.exchange import Act
from validation.sync.fault import Edit, Fault, planted
from validation.sync.faults import FAULTS
from validation.sync.kimi_k3 import subject
from validation.sync.state import Invariant
from validation.sync.verify import examine, find

KINDS = {"F34", "F35", "F36", "F37", "F38", "F39", "F40", "F41", "F46", "F47", "F49"}
LONGEST = 20  # events of a trace


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_it_is_found_with_a_short_trace_and_only_because_of_it(fault: Fault) -> None:
    found = find(subject(), fault)
    assert found.answer == "unsafe"
    assert 1 <= found.events <= LONGEST
    assert examine(subject(), fault.twin).answer == "safe"


def test_all_kinds_that_a_simulation_can_show_are_planted() -> None:
    assert len(FAULTS) >= 25
    assert {fault.kind for fault in FAULTS} >= KINDS
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("oproj_not_canonical", Invariant.SENTINEL),
        ("oproj_judged_by_one_word", Invariant.GRANULARITY),
        ("clears_next_stage", Invariant.FRESHNESS),
        ("oproj_single_buffer", Invariant.PARITY),
        ("steal_counters_not_rearmed", Invariant.COUNTER),
        ("rank_takes_two_shot", Invariant.PLAN),
        ("counts_read_before_copy", Invariant.ORDER),
    ],
)
def test_the_violated_invariant_is_named(name: str, invariant: Invariant) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    assert find(subject(), fault).invariant == invariant


def test_edits_that_name_nothing_are_refused() -> None:
    with pytest.raises(KeyError):
        planted(subject(), (Edit("exchange", "nothing", "parities", 1),))
    with pytest.raises(ValueError, match="RingCall has no"):
        planted(subject(), (Edit("drop", "RingCall", value=Act("poll", "front")),))
