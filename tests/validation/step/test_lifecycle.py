"""State over the life of requests: acceptance, tenants, snapshots, turns of two backends, numbering."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from step_case import small

from validation.errors import UserError
from validation.step.executor import Executor, alternating, provider, vanilla
from validation.step.metamorphic import renumbered
from validation.step.rollout import Rollout
from validation.step.scenarios import MOST, SCENARIOS, every_pair, first_divergence
from validation.step.walk import Walk, forced
from validation.subjects.kimi_k3.weights import random_weights


def _walk(executor: Executor, drafts: int = 0, numbering: int = 0, **more: object) -> Walk:
    config = small(drafts)
    rollout = Rollout(executor.profile, 1e-8)
    return Walk(config, random_weights(config), executor, 1e-8, rollout=rollout, seed=numbering, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("q", [2, 3, 8])
def test_every_acceptance_follows_every_other(q: int) -> None:
    ring = every_pair(q)
    assert len(ring) == q * q
    assert len(set(zip(ring, ring[1:] + ring[:1], strict=True))) == q * q


def test_chains_of_verify_steps_equal_a_replay_of_the_accepted_tokens() -> None:
    """Every acceptance after every other, in the reference: the logits of accepted rows are those of plain
    steps over the accepted tokens alone."""
    config = small(drafts=2)
    chain = Walk(config, random_weights(config), vanilla("stock"), None)
    replay = Walk(config, random_weights(config), vanilla("stock"), None)
    chain.admit(), replay.admit()
    ring = every_pair(3)
    differ = []
    for ids, count in zip(forced(config, 1, len(ring), 3), ring, strict=True):
        rows = chain.step(ids, [count])[:count]
        for t in range(count):
            differ.append(not torch.equal(rows[t], replay.step([[ids[0][t]]])[0]))
    assert len(differ) == 18
    # The reference keeps its state in float64 within a verify step: a flip of BF16 here and there.
    assert sum(differ) <= 2
    assert chain.requests[0].tokens == replay.requests[0].tokens


@pytest.mark.parametrize(("scenario", "drafts"), [("acceptance", 1), ("snapshots", 0)])
def test_stock_passes(scenario: str, drafts: int) -> None:
    assert first_divergence(_walk(provider("torch"), drafts, most=MOST.get(scenario, 2)), scenario) is None


def test_rejected_tokens_do_not_matter() -> None:
    """Two chains that differ in rejected drafts alone give the same logits for the tokens that stay."""
    config = small(drafts=2)
    runs = []
    for junk in (5, 9):
        walk = _walk(provider("torch"), 2, checks=False)
        walk.share = None
        walk.admit()
        rows = []
        for number, ids in enumerate(forced(config, 1, 5, 3)):
            count = 1 + number % 3
            ids[0][count:] = [junk + t for t in range(3 - count)]
            rows.append(walk.step(ids, [count])[:count])
        runs.append(torch.cat(rows))
    assert torch.equal(*runs)


def test_two_backends_take_turns() -> None:
    walk = _walk(alternating(provider("torch"), vanilla("stock")), 1)
    SCENARIOS["verify"](walk)
    assert walk.found == []
    with pytest.raises(UserError, match="no turns"):
        alternating(provider("torch"), vanilla("specialized"))


def test_a_turn_taker_with_another_window_is_blamed() -> None:
    right = vanilla("stock")

    def run(operation, a):  # type: ignore[no-untyped-def]
        if operation.op == "kda_verify":
            a = replace(a, accepted=torch.ones_like(a.accepted))
        right.run(operation, a)

    walk = _walk(alternating(provider("torch"), replace(right, run=run)), 1)
    first = first_divergence(walk, "verify")
    assert first is not None
    assert first.op == "kda_verify"
    assert first.step % 2 == 1  # the other backend's turn


def test_numbers_of_slots_and_pages_do_not_matter() -> None:
    def make(executor: Executor):  # type: ignore[no-untyped-def]
        def walk(numbering: int) -> Walk:
            made = _walk(executor, 1, numbering, checks=False)
            made.share = None
            made.seed = 0
            return made

        return walk

    assert renumbered(make(provider("torch")), SCENARIOS["verify"]) == []

    def leaks(operation, a):  # type: ignore[no-untyped-def]
        provider("torch").run(operation, a)
        if operation.op == "projection":
            a.out[:, 0] += 0.01 * int(a.x.shape[0] > 0) * walk_slot[0]

    walk_slot = [0.0]

    def leaking(numbering: int) -> Walk:
        walk_slot[0] = float(numbering)
        return make(Executor("leaks", "stock", leaks))(numbering)

    found = renumbered(leaking, SCENARIOS["plain"])
    assert found[0].words() == "step 0, renumbered: logits bits"
