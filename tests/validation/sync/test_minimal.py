"""A minimal trace violates, and violates no longer when any of its events is left out."""

import pytest

from validation.sync.build import build
from validation.sync.diagram import LONGEST, sequence
from validation.sync.events import Kind
from validation.sync.fault import planted
from validation.sync.kimi_k3 import subject
from validation.sync.minimal import minimal, replay
from validation.sync.search import explore
from validation.sync.setting import Setting, pattern
from validation.sync.verify import fault_named


@pytest.mark.parametrize(
    "name", ["clears_next_stage", "two_stages", "oproj_single_buffer", "query_not_polled"]
)
def test_no_event_can_be_left_out(name: str) -> None:
    fault = fault_named(name)
    made = build(planted(subject(), fault.edits), fault.setting)
    found = explore(made)
    assert found.violation
    trace = minimal(made, found.trace, found.violation)
    assert replay(made, trace)[0] == found.violation
    for index in trace[:-1]:
        if made.events[index].kind is not Kind.POINT:
            again, _ = replay(made, [i for i in trace if i != index])
            assert again is None or again.event != found.violation.event


def test_the_diagram_names_ranks_arrows_and_the_invariant() -> None:
    fault = fault_named("clears_next_stage")
    made = build(planted(subject(), fault.edits), fault.setting)
    found = explore(made)
    assert found.violation
    lines = sequence(made, minimal(made, found.trace, found.violation), found.violation).splitlines()
    assert lines[0].split() == ["rank", "0", "rank", "1"]
    assert any(line.startswith("*------->o") for line in lines)
    assert any(line.startswith("o<-------*") for line in lines)
    assert lines[-1].startswith("freshness: ")
    assert "re-arms ring (parity 1)" in lines[-2]


def test_of_a_long_run_the_last_events_are_drawn_and_the_others_counted() -> None:
    made = build(subject(), Setting(2, pattern(3), (1, 1), targets=("x_moe",)))
    found = explore(made)
    assert found.violation
    lines = sequence(made, minimal(made, found.trace, found.violation), found.violation).splitlines()
    assert len(lines) == LONGEST + 3
    assert "earlier events, all needed" in lines[1]
