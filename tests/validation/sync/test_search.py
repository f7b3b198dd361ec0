"""The checker against itself without reduction, on drawn programs and on the subject's smallest ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validation.sync.build import build
from validation.sync.events import Event, Kind, Program, Word
from validation.sync.kimi_k3 import subject
from validation.sync.search import explore, walk
from validation.sync.setting import Setting
from validation.sync.state import Invariant

ACTION = st.tuples(st.sampled_from(["store", "poll", "read", "rearm"]), st.integers(0, 2), st.integers(0, 1))


def program(*ranks: list[tuple[str, int, int]]) -> Program:
    """Ranks as lists of (action, word, ordered after the action before it)."""
    made = Program(len(ranks), words=[Word(0, "box", 0, i, 0, 0) for i in range(3)], initial=[0, 0, 0])
    made.names += [f"tag {i}" for i in range(1, 3)]
    for rank, actions in enumerate(ranks):
        made.plans.append([])
        last: tuple[int, ...] = ()
        for action, word, ordered in actions:
            index = len(made.events)
            kind = {"store": Kind.STORE, "rearm": Kind.REARM}.get(action, Kind.POLL)
            guard = (word,) if action == "poll" else ()
            tag = 0 if action == "rearm" else 1
            after = last if ordered else ()
            made.events.append(Event(index, kind, rank, action, "box", (word,), (tag,), guard, after))
            last = (index,)
    return made.close()


@given(st.lists(ACTION, max_size=4), st.lists(ACTION, max_size=4), st.lists(ACTION, max_size=2))
def test_reduction_loses_no_violation_and_invents_none(
    one: list[tuple[str, int, int]], two: list[tuple[str, int, int]], three: list[tuple[str, int, int]]
) -> None:
    made = program(one, two, three)
    assert explore(made).complete == explore(made, reduce=False).complete


def test_a_store_may_overtake_another_and_both_orders_are_seen() -> None:
    # The flag (word 1) is polled, the data (word 0) trusted: the data may come later.
    writer = [("store", 0, 0), ("store", 1, 0)]
    found = explore(program(writer, [("poll", 1, 0), ("read", 0, 1)]))
    assert found.violation
    assert found.violation.invariant is Invariant.ORDER
    ordered = [("store", 0, 0), ("store", 1, 1)]
    assert explore(program(ordered, [("poll", 1, 0), ("read", 0, 1)])).complete


def test_a_poll_that_nobody_serves_hangs() -> None:
    found = explore(program([("poll", 0, 0)], [("store", 1, 0)]))
    assert found.violation
    assert found.violation.invariant is Invariant.HANG


def test_a_limit_ends_without_proof() -> None:
    made = program([("store", 0, 0), ("store", 1, 0)], [("poll", 0, 0)])
    found = explore(made, limit=2)
    assert not found.complete
    assert not found.violation


@pytest.mark.parametrize(("layers", "target"), [("R", "ring"), ("S", "x_moe"), ("E", "partials")])
def test_the_smallest_protocols_are_safe_without_reduction_too(layers: str, target: str) -> None:
    made = build(subject(), Setting(2, layers, (8,), targets=(target,), barrier=False))
    full, reduced = explore(made, reduce=False), explore(made)
    assert full.complete
    assert reduced.complete
    assert full.states > 50 * reduced.states  # what is left out was explored here


def test_random_walks_find_a_missing_re_arm_and_prove_nothing() -> None:
    unsafe = build(subject(), Setting(4, "K", (8, 8), targets=("latent",)))
    assert walk(unsafe, seed=0, tries=3).violation
    safe = build(subject(), Setting(4, "KK", (8, 8), targets=("latent",)))
    found = walk(safe, seed=0, tries=2)
    assert not found.violation
    assert not found.complete
    assert found.states == 2 * len(safe.events)  # every walk came to its end
