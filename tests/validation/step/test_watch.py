"""The cheap checks of long runs: quiet on a right walk, and each seen to fail at its step."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from step_case import small

from validation.step.executor import Executor, provider
from validation.step.walk import Hooks, Walk, forced
from validation.step.watch import Watch
from validation.subjects.kimi_k3.operation import Binding, Program
from validation.subjects.kimi_k3.weights import random_weights


@functools.cache
def _weights():  # type: ignore[no-untyped-def]
    return random_weights(small())


class _Spoiling(Executor):
    """Right steps, after one of which something is spoiled."""

    def step(self, program: Program, binding: Binding) -> None:
        super().step(program, binding)
        SPOILED.append(len(SPOILED))
        if len(SPOILED) == 3:
            CHANGE[0](binding)


SPOILED: list[int] = []
CHANGE: list[Callable[[Binding], None]] = []


def _walked(change: Callable[[Binding], None], every: int = 1):  # type: ignore[no-untyped-def]
    SPOILED.clear()
    CHANGE[:] = [change]
    right = provider("inductor")
    walk = Walk(small(), _weights(), _Spoiling(right.name, right.profile, right.run), None, checks=False)
    walk.admit(), walk.admit()
    walk.watch = Watch(walk, every)
    for ids in forced(small(), 2, 6):
        walk.step(ids, padded=3)
    return walk, walk.watch.end(walk)


def _free_slot(b: Binding) -> int:
    held = set(b.batch.slots.flatten().tolist())
    return next(slot for slot in range(1, b.state.recurrent[0].shape[1]) if slot not in held)


def _nan(b: Binding) -> None:
    b.state.recurrent[1][0, b.batch.slots[0, 0], 0, 0, 0] = float("nan")


def _null(b: Binding) -> None:
    b.state.conv[2][1, 0, 0, 0] = 1.0


def _free(b: Binding) -> None:
    b.state.recurrent[2][0, _free_slot(b), 0] = 0.5


def _old_key(b: Binding) -> None:
    """The first key of a page that another request owns."""
    b.state.kv[3][:, b.batch.block_table[0, 0, 1], 3, 5] ^= 1


def _one_rank(b: Binding) -> None:
    b.scratch.logits[1, 0, 7] += 1


def test_a_right_walk_is_quiet() -> None:
    for every in (1, 4):
        _, found = _walked(lambda b: None, every)
        assert found == []


@pytest.mark.parametrize(
    ("change", "check", "layer"),
    [
        (_nan, "finite", 1),
        (_null, "nobody", 2),
        (_free, "untouched", 2),
        (_old_key, "untouched", 3),
        (_one_rank, "ranks", -1),
    ],
)
def test_what_is_spoiled_is_named_with_its_step(
    change: Callable[[Binding], None], check: str, layer: int
) -> None:
    _, found = _walked(change)
    first = next(d for d in found if d.op == check)
    assert first.layer == layer
    assert first.step == (2 if check != "untouched" else 5)


def _drafted_slot(b: Binding) -> None:
    """A plain step writes where a verify step would."""
    b.state.recurrent[1][0, SLOTS[0]] = 0.5


def _rejected(b: Binding) -> None:
    b.state.recurrent[1][0, SLOTS[1], 0, 0, 0] = float("nan")


SLOTS: list[int] = []


@pytest.mark.parametrize(
    ("change", "verify", "seen"),
    [
        (lambda b: None, True, []),
        (_drafted_slot, False, ["untouched"]),
        (_drafted_slot, True, []),  # its own: judging the operation tells whether it is right
        (_rejected, True, ["finite"]),
    ],
)
def test_verify_steps_own_the_slots_of_their_drafts(
    change: Callable[[Binding], None], verify: bool, seen: list[str]
) -> None:
    SPOILED.clear()
    CHANGE[:] = [change]
    right, config = provider("inductor"), small(1)
    spoiling = _Spoiling(right.name, right.profile, right.run)
    walk = Walk(config, random_weights(config), spoiling, None, checks=False)
    walk.admit(), walk.admit()
    SLOTS[:] = walk.requests[1].slots[::-1]  # the second token's first
    walk.watch = Watch(walk)
    for ids in forced(config, 2, 3, 2 if verify else 1):
        walk.step(ids, [1, 1], padded=3)
    assert [d.op for d in walk.watch.end(walk)][:1] == seen


def test_a_change_between_steps_is_seen_at_the_step_that_finds_it() -> None:
    def between(walk: Walk) -> None:
        if walk.number == 4:
            walk.state.conv[0][0, walk.requests[1].slots[0], 0, 1] += 1

    for every, seen in ((1, [4]), (2, []), (4, [])):
        walk = Walk(small(), _weights(), provider("inductor"), None, Hooks(between=between), checks=False)
        walk.admit(), walk.admit()
        walk.watch = Watch(walk, every)
        for ids in forced(small(), 2, 6):
            walk.step(ids)
        found = [d.step for d in walk.watch.end(walk) if d.op == "continuity"]
        assert found == seen, "checks of every second step see half of what happens between steps"
