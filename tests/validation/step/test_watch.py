"""The cheap checks of long runs: quiet on a right walk, and each seen to fail at its step."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from step_case import small

from validation.step.executor import Executor, provider
from validation.step.walk import Hooks, Walk, forced
from validation.step.watch import Watch, bits
from validation.subjects.kimi_k3.batch import Batch
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


def _nobodys_key(b: Binding) -> None:
    b.state.kv[4][0, 0, 2, 5] = 1


def _nobodys_state(b: Binding) -> None:
    b.state.recurrent[0][1, 0, 0, 0, 0] = 0.0


def _newest_history(b: Binding) -> None:
    b.state.conv[1][1, b.batch.slots[1, 0], 3, 2] = float("inf")


def _logit(b: Binding) -> None:
    b.scratch.logits[:, 1, 7] = float("nan")


def _zero_of_one_rank(b: Binding) -> None:
    b.scratch.logits[:, 0, 7] = 0.0
    b.scratch.logits[1, 0, 7] = -0.0


def _embedded(b: Binding) -> None:
    bits(b.scratch.embedded)[1, 1, 3] ^= 1


def _latent(b: Binding) -> None:
    bits(b.scratch.mla_projected)[1, 1, b.config.gate_start - 1] ^= 1


def _decay_gate(b: Binding) -> None:
    bits(b.scratch.kda_projected)[1, 1, 4 * b.config.kda_width + b.config.gate_rank - 1] ^= 1


def _key_of_one_rank(b: Binding) -> None:
    size = b.state.kv[3].shape[2]
    page, place = divmod(int(b.batch.kv_slot[1, 1]), size)
    b.state.kv[3][1, page, place, 9] ^= 1


def test_a_right_walk_is_quiet() -> None:
    for every in (1, 4):
        _, found = _walked(lambda b: None, every)
        assert found == []


@pytest.mark.parametrize(
    ("change", "check", "what", "layer"),
    [
        (_nan, "finite", "recurrent", 1),
        (_newest_history, "finite", "conv", 1),
        (_logit, "finite", "logits", -1),
        (_null, "nobody", "conv", 2),
        (_nobodys_state, "nobody", "recurrent", 0),
        (_nobodys_key, "nobody", "kv", 4),
        (_free, "untouched", "recurrent", 2),
        (_old_key, "untouched", "kv", 3),
        (_one_rank, "ranks", "logits", -1),
        (_zero_of_one_rank, "ranks", "logits", -1),
        (_embedded, "ranks", "embedded", -1),
        (_latent, "ranks", "latent query and key", -1),
        (_decay_gate, "ranks", "decay gate", -1),
        (_key_of_one_rank, "ranks", "keys", 3),
    ],
)
def test_what_is_spoiled_is_named_with_its_step(
    change: Callable[[Binding], None], check: str, what: str, layer: int
) -> None:
    walk, found = _walked(change)
    first = next(d for d in found if d.op == check)
    assert (first.output, first.layer) == (what, layer)
    assert first.step == (2 if check != "untouched" else 5)
    walk.watch.begin(walk)
    if check == "nobody":
        return  # it stays wrong
    CHANGE[:] = [lambda b: None]
    for ids in forced(small(), 2, 2, seed=1):
        walk.step(ids, padded=3)
    again = [d for d in walk.watch.end(walk) if d.step < 6]
    assert again == [], "a window names what an earlier one has named"


def _drafted_slot(b: Binding) -> None:
    """A plain step writes where a verify step would."""
    b.state.recurrent[1][0, SLOTS[0]] = 0.5


def _drafted_history(b: Binding) -> None:
    """History has one slot a request."""
    b.state.conv[1][0, SLOTS[0]] = 0.5


def _rejected(b: Binding) -> None:
    b.state.recurrent[1][0, SLOTS[1], 0, 0, 0] = float("nan")


SLOTS: list[int] = []


@pytest.mark.parametrize(
    ("change", "verify", "seen"),
    [
        (lambda b: None, True, []),
        (_drafted_slot, False, ["untouched"]),
        (_drafted_slot, True, []),  # its own: judging the operation tells whether it is right
        (_drafted_history, True, ["untouched"]),
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


@pytest.mark.parametrize("kind", ["conv", "recurrent"])
def test_a_change_between_steps_is_seen_at_the_step_that_finds_it(kind: str) -> None:
    def between(walk: Walk) -> None:
        if walk.number == 4:
            getattr(walk.state, kind)[0][0, walk.requests[1].slots[0], 0, 1] += 1

    for every, seen in ((1, [4]), (2, []), (4, [])):
        walk = Walk(small(), _weights(), provider("inductor"), None, Hooks(between=between), checks=False)
        walk.admit(), walk.admit()
        walk.watch = Watch(walk, every)
        for ids in forced(small(), 2, 6):
            walk.step(ids)
        found = [d.step for d in walk.watch.end(walk) if d.op == "continuity"]
        assert found == seen, "checks of every second step see half of what happens between steps"


def test_a_window_begins_with_what_it_finds() -> None:
    """Between two windows the state may become another; between a begin and the first step it may not."""
    for spoiled, seen in ((False, []), (True, [2])):  # the step before it was not looked at
        walk = Walk(small(), _weights(), provider("inductor"), None, checks=False)
        walk.admit(), walk.admit()
        walk.watch = Watch(walk, 2)
        steps = forced(small(), 2, 5)
        for ids in steps[:2]:
            walk.step(ids)
        slot = walk.requests[0].slots[0]
        walk.state.recurrent[1][0, slot] += 1
        walk.watch.begin(walk)
        if spoiled:
            walk.state.recurrent[1][0, slot] += 1
        for ids in steps[2:]:
            walk.step(ids)
        assert [d.step for d in walk.watch.end(walk) if d.op == "continuity"] == seen


def test_a_step_that_is_told_a_wrong_length_is_seen() -> None:
    def stage(batch: Batch) -> Batch:
        told.append(batch.clone())
        if len(told) == 2:
            told[-1].lengths += 1
        return told[-1]

    told: list[Batch] = []
    walk = Walk(small(), _weights(), provider("inductor"), None, Hooks(stage=stage), checks=False)
    walk.admit(), walk.admit()
    walk.watch = Watch(walk)
    for ids in forced(small(), 2, 3):
        walk.step(ids)
    assert [(d.op, d.output, d.step) for d in walk.watch.end(walk)][:1] == [("staging", "lengths", 1)]
