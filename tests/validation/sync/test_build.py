"""What program order is and is not in a program."""

from validation.sync.build import build
from validation.sync.events import Event, Kind, Program
from validation.sync.kimi_k3 import subject
from validation.sync.reduction import Reduction
from validation.sync.setting import Setting


def stores(made: Program, exchange: str, source: int) -> list[Event]:
    return [e for e in made.events if e.kind is Kind.STORE and (e.exchange, e.rank) == (exchange, source)]


def test_stores_to_different_words_are_unordered_and_to_one_word_ordered() -> None:
    made = build(subject(), Setting(2, "RRRR", (8,), targets=("ring",)))
    order = Reduction(made).ancestors
    first, *others = stores(made, "ring", 0)
    same = [e for e in others if e.words == first.words]
    assert len(others) == 15  # 4 calls, 2 ranks, 2 words of a fragment
    assert len(same) == 1  # three stages: the fourth call is back at the first
    assert order[same[0].index] >> first.index & 1
    assert not any(order[e.index] >> first.index & 1 for e in others[:3])


def test_completion_waits_for_local_stores_and_not_for_remote_ones() -> None:
    made = build(subject(), Setting(2, "RR", (8,), targets=("ring",)))
    order = Reduction(made).ancestors
    second = next(e for e in made.events if e.label == "step 0, layer 1, RingCall has waited" and e.rank == 0)
    rearm = next(e for e in made.events if e.kind is Kind.REARM and e.rank == 0)
    assert order[second.index] >> rearm.index & 1
    assert not any(order[second.index] >> e.index & 1 for e in stores(made, "ring", 0)[:4])


def test_rows_of_different_batches_are_different_words() -> None:
    made = build(subject(), Setting(2, "R", (8, 64), targets=("ring",)))
    per_step = [sum(f"step {n}" in e.label for e in stores(made, "ring", 0)) for n in (0, 1)]
    assert per_step == [4, 8]
