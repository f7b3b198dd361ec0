"""The specialised executor: prepared batches replayed with new slots and lengths equal eager steps bit for
bit, and what it does not serve runs on the same state by the vanilla forward."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from kernels_under_test.executor.specialised import SpecialisedExecutor, Whole
from validation.step.executor import Executor, provider
from validation.step.walk import forced
from validation.subjects.kimi_k3.batch import batch_of
from validation.subjects.kimi_k3.operation import Binding
from validation.subjects.kimi_k3.program import program
from validation.subjects.kimi_k3.state import Scratch
from validation.subjects.kimi_k3.steps import graph_for, plain, prepared, verified

sys.path.append(str(Path(__file__).parents[2] / "validation" / "walks"))
from step_case import Case, small


def _executor(case: Case, kernels: Executor) -> SpecialisedExecutor:
    (ids,) = forced(case.config, 1, 1)
    return SpecialisedExecutor(case.binding(batch_of(case.config, case.requests[:1], ids)), kernels)


def _replayed(drafts: int, plan: list[tuple[int, int]]) -> tuple[Case, SpecialisedExecutor, list[bool]]:
    """Steps of (requests, tokens) padded to their graph, beside eager ones; whether all bits agree."""
    kernels = provider("torch")
    one, other = (Case(small(drafts), requests=5) for _ in range(2))
    executor = _executor(one, kernels)
    eager, equal = Scratch(one.config), []
    everyone = list(zip(one.requests, other.requests, strict=True))
    for number, (count, q) in enumerate(plan):
        pairs = [everyone[(number + i) % 5] for i in range(count)]  # other requests, in another order
        (ids,) = forced(one.config, count, 1, q, seed=number)
        size = graph_for(count, q, prepared((), q), prefilling=False)
        padded = (size or count * q) // q
        a = batch_of(one.config, [mine for mine, _ in pairs], ids, padded)
        b = batch_of(other.config, [theirs for _, theirs in pairs], ids, padded)
        kind = plain("", padded) if q == 1 else verified("", count, q, padded)
        executor.step(a, kind)
        kernels.step(program(one.config, q), Binding(other.config, other.weights, other.state, eager, b))
        rows = count * q
        equal.append(torch.equal(one.scratch.logits[:, :rows], eager.logits[:, :rows]))
        for mine, theirs in pairs:
            mine.advance(ids[0], 1 + number % q)
            theirs.advance(ids[0], 1 + number % q)
        equal.append(one.state.digest() == other.state.digest())
    return one, executor, equal


def test_replays_equal_eager_steps() -> None:
    _, executor, equal = _replayed(0, [(2, 1), (3, 1), (2, 1), (5, 1), (1, 1), (3, 1), (2, 1)])
    assert all(equal)
    assert executor.log == ["specialised"] * 7
    assert {key[:2] for key in executor.prepared} == {(1, 1), (2, 1), (3, 1), (5, 1)}


def test_replays_of_verify_steps_equal_eager_steps() -> None:
    _, executor, equal = _replayed(1, [(2, 1), (1, 2), (2, 2), (3, 2), (1, 2), (2, 2), (5, 2)])
    assert all(equal)
    assert (16, 2) in {key[:2] for key in executor.prepared}  # five requests of two tokens, padded to eight


def test_what_is_not_served_falls_back_on_the_same_state() -> None:
    case = Case(small(), requests=2)
    executor = _executor(case, provider("torch"))
    for number, kind in enumerate((plain("", 2), plain("", 2, capturing=False), plain("", 2))):
        (ids,) = forced(case.config, 2, 1, seed=number)
        batch = batch_of(case.config, case.requests, ids)
        executor.step(batch, kind)
        for request, row in zip(case.requests, ids, strict=True):
            request.advance(row, 1)
    assert executor.log == ["specialised", "fallback", "specialised"]
    assert case.state.recurrent[1][:, case.requests[0].slots].isfinite().all()


def test_one_is_built_for_every_state_and_every_scratch() -> None:
    case, kernels = Case(small(), requests=1), provider("torch")
    whole = Whole(kernels.name, kernels.profile, kernels.run)
    batch = batch_of(case.config, case.requests, case.ids())
    one, same = case.binding(batch), case.binding(batch)
    other_scratch = replace(one, scratch=Scratch(case.config))
    other_state = replace(one, state=case.state.clone())
    built = [whole._for(binding) for binding in (one, other_scratch, other_state)]
    assert whole._for(same) is built[0]
    assert len({id(executor) for executor in built}) == 3
