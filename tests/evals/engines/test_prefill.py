"""Where prompts begin, and that prompts prefilled together are what each is alone."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evals.engines import prefill as module
from evals.engines.api import Request, Response, Sampling
from evals.engines.in_process import InProcessEngine, Options
from evals.engines.prefill import PREFILLED, SHIFTS, Prefill, Waiting

FORCED = tuple(range(20, 28))


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> InProcessEngine:
    return InProcessEngine(tiny_model, Options(dtype="float32", rows=5, lengths=(96,)))


def requests(texts: list[str], repeats: int = 1) -> list[Request]:
    made = [(text, repeat) for text in texts for repeat in range(repeats)]
    return [
        Request(f"t/{t}/{r}", 1, Sampling(), prompt=t, forced=FORCED, top=3, replicate=7) for t, r in made
    ]


def walked(engine: InProcessEngine, asked: list[Request], together: int) -> dict[str, Response]:
    got: dict[str, Response] = {}
    before, engine.together = engine.together, together
    try:
        engine.run(asked, lambda request, response: got.update({request.key: response}))
    finally:
        engine.together = before
    return got


TEXTS = ["abcd", "efgh", "ijkl", "longer", "mnop", "qrst", "uvwx", "yz"]


def test_prompts_prefilled_together_give_what_each_gives_alone(engine: InProcessEngine) -> None:
    alone, together = (walked(engine, requests(TEXTS), n) for n in (1, 4))
    assert set(together) == {request.key for request in requests(TEXTS)}
    for key, response in alone.items():
        assert together[key].logprobs == pytest.approx(response.logprobs, abs=2e-5)
        assert together[key].top_ids == response.top_ids


def test_a_prompt_in_the_wrong_row_would_be_seen(
    engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = walked(engine, requests(TEXTS), 1)
    computed = Prefill.computed

    def turned(self: Prefill, wanted: list[module.Place]) -> module.Prefilled:
        found = computed(self, wanted)
        return replace(found, keys_and_values=[(k.roll(1, 0), v) for k, v in found.keys_and_values])

    monkeypatch.setattr(Prefill, "computed", turned)
    wrong = walked(engine, requests(TEXTS), 4)
    assert any(wrong[key].logprobs != pytest.approx(alone[key].logprobs, abs=2e-3) for key in alone)


@pytest.mark.parametrize("together", [1, 4])
def test_repeats_of_a_question_share_a_prefill(
    engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    seen: Counter[module.Place] = Counter()
    computed = Prefill.computed

    def counted(self: Prefill, wanted: list[module.Place]) -> module.Prefilled:
        seen.update(wanted)
        return computed(self, wanted)

    monkeypatch.setattr(Prefill, "computed", counted)
    asked = requests(TEXTS[:3], repeats=7)
    got = walked(engine, asked, together)
    assert sorted(seen.values()) == [1, 1, 1]
    for text in TEXTS[:3]:
        assert got[f"t/{text}/6"].logprobs == pytest.approx(got[f"t/{text}/0"].logprobs, abs=2e-5)


def test_no_more_prompts_are_kept_than_allowed_and_none_without_a_repeat(engine: InProcessEngine) -> None:
    texts = [f"prompt {i:02}" for i in range(2 * PREFILLED)]
    waiting = deque(
        Waiting(each, tuple(engine.tokenize(each))) for each in requests([*texts, *texts, "alone"])
    )
    prefill = Prefill(engine.model, waiting, 4)
    kept = []
    with torch.inference_mode():
        while waiting:
            batch = prefill.batch(5)
            prefill.fill(engine.cache(96), list(range(len(batch))), batch)
            kept.append(len(prefill.known))
    assert max(kept) == PREFILLED
    assert kept[-1] == 0
    assert all(len(each.logits) == 1 for each in prefill.known.values())


def test_replicates_of_a_prompt_begin_at_different_places_that_no_other_prompt_shares() -> None:
    asked = [Request("t/q/0", 1, replicate=r) for r in range(SHIFTS)]
    orders = [tuple(Waiting(each, (i, 5)).shift for each in asked) for i in range(200)]
    assert all(sorted(order) == list(range(SHIFTS)) for order in orders)
    assert len(set(orders)) == 200
    first = Counter(order[0] for order in orders)
    assert len(first) > SHIFTS // 2
    assert max(first.values()) < 30  # 200 prompts over 32 places


def test_the_cache_length_of_a_request_does_not_depend_on_its_replicate() -> None:
    asked = Request("t/q/0", 1, forced=(1, 2, 3))
    made = [Waiting(replace(asked, replicate=r), (4, 5)) for r in range(SHIFTS)]
    assert {each.slots for each in made} == {SHIFTS - 1 + 5}
    assert {each.shift for each in made} == set(range(SHIFTS))
