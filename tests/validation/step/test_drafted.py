"""Steps of requests with a drafter: every acceptance, plain steps only where the state is in its place, and
distances that look where the accepted tokens are."""

from __future__ import annotations

import itertools

import pytest
import torch
from step_case import small

from validation.step.distances import Distances
from validation.step.drafted import KINDS, drafted, most_stored
from validation.step.executor import provider, vanilla
from validation.step.free_running import Step
from validation.step.paces import pace_of
from validation.step.walk import Walk, forced
from validation.subjects.kimi_k3.weights import random_weights


def test_without_drafts_every_step_is_plain() -> None:
    steps = drafted(small(), 3, 5, 7, seed=4)
    assert [step.ids for step in steps] == forced(small(), 3, 7, seed=4)
    assert {tuple(step.accepted) for step in steps} == {(1, 1, 1)}


def _accepted(steps: list[Step], request: int) -> list[int]:
    return [step.accepted[request] if len(step.ids[0]) > 1 else 0 for step in steps]


def test_every_acceptance_follows_every_other_and_plain_steps_follow_one() -> None:
    """0 stands for a plain step."""
    for request in range(2):
        counts = _accepted(drafted(small(3), 2, 0, 500), request)
        pairs = set(itertools.pairwise(counts))
        assert {(a, b) for a in range(1, 5) for b in range(1, 5)} <= pairs
        assert {(1, 0), (0, 0), (0, 1), (0, 4)} <= pairs
        assert not {(a, 0) for a in range(2, 5)} & pairs


def test_no_request_stores_more_than_there_is_room_for() -> None:
    for steps in (3, 25, 160):
        stored = [sum(s.accepted[0] for s in drafted(small(3), 1, 0, steps, seed)) for seed in range(20)]
        assert max(stored) <= most_stored(small(3), steps)
    assert most_stored(small(), 160) == 160


def test_sampled_steps_are_of_both_kinds() -> None:
    """Those that are judged, and on a GPU those that are run twice."""
    from validation.step.items import Item

    for device, replays in (("cpu", False), ("cuda", True)):
        pace = pace_of(Item("long", "long", drafts=3, steps=10_000), device, replays)
        assert {KINDS[step % len(KINDS)] for step in pace.judged_steps()} == {"v", "p"}
        firsts = range(0, pace.steps, pace.window)
        twice = {KINDS[(first + n) % len(KINDS)] for first in firsts for n in range(pace.twice)}
        assert twice == ({"v", "p"} if replays else set())


def test_a_drafted_walk_equals_a_replay_of_its_accepted_tokens() -> None:
    """Plain steps behind verify steps among them."""
    config = small(3)
    walk, replay = (Walk(config, random_weights(config), vanilla("stock"), None) for _ in range(2))
    walk.admit(), replay.admit()
    differ = []
    for step in drafted(config, 1, 0, 10):
        rows = walk.step(step.ids, step.accepted)[: step.accepted[0]]
        for row, token in zip(rows, step.ids[0], strict=False):
            differ.append(not torch.equal(row, replay.step([[token]])[0]))
    # The reference keeps its state in float64 within a verify step: a flip of BF16 here and there.
    assert sum(differ) <= 2 < len(differ)
    assert walk.requests[0].tokens == replay.requests[0].tokens
    assert walk.found == []


@pytest.mark.parametrize(
    ("kind", "index", "seen"),
    [
        ("recurrent", (0, 1), True),  # the state behind the second token, which is the last accepted one
        ("recurrent", (0, 0), False),
        ("recurrent", (0, 2), False),
        ("conv", (0, 1), True),  # columns 1 to 3 are the history of two accepted tokens
        ("conv", (0, 3), True),
        ("conv", (0, 0), False),
        ("conv", (0, 4), False),
    ],
)
def test_distances_look_where_the_next_step_starts(kind: str, index: tuple[int, int], seen: bool) -> None:
    config = small(3)
    walks = [Walk(config, random_weights(config), provider("torch"), None, checks=False) for _ in range(2)]
    for walk in walks:
        walk.admit(), walk.admit()
        walk.step(drafted(config, 2, 2, 1)[0].ids, [2, 4])
    rank, place = index
    slots = walks[0].requests[0].slots
    state = getattr(walks[0].state, kind)[1]
    if kind == "recurrent":
        state[rank, slots[place]] *= 1.5
    else:
        state[rank, slots[0], :, place] += 1
    sums = Distances()
    sums.add(walks[0], walks[1], [[3], [5]])
    read = sums.read()
    assert (float(read[f"{kind} of layer 1"][0]) > 0) is seen
    assert sum(float(value.sum()) for name, value in read.items() if name != f"{kind} of layer 1") == 0


def test_logits_of_all_rows_count_and_the_token_behind_the_accepted_ones() -> None:
    config = small(3)
    walks = [Walk(config, random_weights(config), provider("torch"), None, checks=False) for _ in range(2)]
    for walk in walks:
        walk.admit(), walk.admit()
        walk.step(drafted(config, 2, 2, 1)[0].ids, [2, 4])
    walks[0].scratch.logits[0, 1, 3] += 1  # request 0, its second row, the token that is forced next
    walks[0].scratch.logits[0, 4 + 1, 5] += 1  # request 1, a row that is not its last accepted one
    sums = Distances()
    sums.add(walks[0], walks[1], [[3], [5]])
    read = sums.read()
    assert bool((read["KL divergence"] > 0).all())
    assert (read["forced token"] > 0).tolist() == [True, False]
