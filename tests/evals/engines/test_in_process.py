"""The in-process engine: right against a plain forward pass, the same whoever shares the batch, forced
exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evals.engines.api import Request, Response, Sampling
from evals.engines.in_process import InProcessEngine, Options
from validation.errors import UserError

PROMPTS = ("one", "a longer prompt than the first", "x", "the last one")


def options(**changes: object) -> Options:
    return replace(Options(dtype="float32", rows=3, lengths=(64, 128)), **changes)


def ask(engine: InProcessEngine, requests: list[Request]) -> dict[str, Response]:
    got: dict[str, Response] = {}

    def done(request: Request, response: Response) -> None:
        assert request.key not in got
        got[request.key] = response

    engine.run(requests, done)
    assert set(got) == {request.key for request in requests}
    return got


def requests(**changes: object) -> list[Request]:
    sampling = Sampling(temperature=1.0, top_p=0.95, max_tokens=12)
    made = [
        Request(f"t/{i}/0", seed=i, sampling=sampling, prompt=text, top=4) for i, text in enumerate(PROMPTS)
    ]
    return [replace(request, **changes) for request in made]


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> InProcessEngine:
    return InProcessEngine(tiny_model, options())


def plain_logprobs(engine: InProcessEngine, request: Request, reply: list[int]) -> list[float]:
    """Log-probabilities of a reply from one forward pass over everything."""
    prompt = engine.tokenize(request)
    with torch.inference_mode():
        logits = engine.model(torch.tensor([prompt + reply])).logits[0].double()
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return [float(row[token]) for row, token in zip(rows, reply, strict=True)]


def test_log_probabilities_are_those_of_a_plain_forward_pass(engine: InProcessEngine) -> None:
    for request in requests():
        response = ask(engine, [request])[request.key]
        wanted = plain_logprobs(engine, request, response.token_ids)
        assert response.logprobs == pytest.approx(wanted, abs=2e-5)


def test_a_wrong_cache_slot_would_be_seen(engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from evals.engines import row_cache

    visible = row_cache.visible
    monkeypatch.setattr(row_cache, "visible", lambda first, slots, *rest: visible(first, slots - 1, *rest))
    request = requests()[1]
    response = ask(engine, [request])[request.key]
    wanted = plain_logprobs(engine, request, response.token_ids)
    assert response.logprobs != pytest.approx(wanted, abs=2e-3)


def test_the_same_reply_whoever_shares_the_batch(engine: InProcessEngine) -> None:
    together = ask(engine, requests())
    for request in reversed(requests()):
        assert ask(engine, [request])[request.key].token_ids == together[request.key].token_ids


def test_seeds_decide_the_reply(engine: InProcessEngine) -> None:
    first, again, other = (ask(engine, requests(seed=seed)) for seed in (5, 5, 6))
    assert [r.token_ids for r in first.values()] == [r.token_ids for r in again.values()]
    assert [r.token_ids for r in first.values()] != [r.token_ids for r in other.values()]


def test_forced_tokens_are_walked_with_the_log_probabilities_of_the_free_run(engine: InProcessEngine) -> None:
    free = ask(engine, requests())
    forced = [replace(r, forced=tuple(free[r.key].token_ids), seed=99) for r in requests()]
    walked = ask(engine, forced)
    for key, response in free.items():
        assert walked[key].token_ids == response.token_ids
        assert walked[key].logprobs == response.logprobs
        assert walked[key].top_ids == response.top_ids


def test_tokens_that_would_never_be_drawn_can_be_forced(engine: InProcessEngine) -> None:
    request = replace(requests()[0], forced=(0, 17, 0, 0, 200))
    response = ask(engine, [request])[request.key]
    assert response.token_ids == [0, 17, 0, 0, 200]
    assert response.logprobs == pytest.approx(plain_logprobs(engine, request, response.token_ids), abs=2e-5)


def test_a_replicate_computes_the_same_with_other_roundings(engine: InProcessEngine) -> None:
    forced = [replace(r, forced=tuple(range(20, 40))) for r in requests()]
    first = ask(engine, forced)
    other = ask(engine, [replace(r, replicate=5) for r in forced])
    for key in first:
        assert first[key].logprobs == pytest.approx(other[key].logprobs, abs=2e-5)
    assert any(first[key].logprobs != other[key].logprobs for key in first)


def test_most_likely_tokens_come_first_and_hold_the_greedy_one(engine: InProcessEngine) -> None:
    greedy = replace(requests()[0], sampling=Sampling(temperature=0.0, max_tokens=6))
    response = ask(engine, [greedy])[greedy.key]
    assert [row[0] for row in response.top_ids] == response.token_ids
    assert [row[0] for row in response.top_logprobs] == pytest.approx(response.logprobs)
    assert all(row == sorted(row, reverse=True) for row in response.top_logprobs)


def test_the_length_limit_and_stop_strings_end_a_reply(engine: InProcessEngine) -> None:
    cut = requests(sampling=Sampling(max_tokens=1))
    assert {r.finish for r in ask(engine, cut).values()} <= {"length", "stop"}
    long = replace(requests()[1], sampling=Sampling(max_tokens=40))
    text = ask(engine, [long])[long.key].text
    stop = text[3:5]
    response = ask(engine, [replace(long, sampling=Sampling(max_tokens=40, stop=(stop,)))])[long.key]
    assert response.finish == "stop"
    assert response.text == text.split(stop)[0]


def test_a_request_that_does_not_fit_is_a_failure_of_its_own(engine: InProcessEngine) -> None:
    wide = replace(requests()[0], sampling=Sampling(max_tokens=1000))
    got = ask(engine, [wide, requests()[1]])
    assert (got[wide.key].failure, got["t/1/0"].failure) == ("context", "")
    assert "128" in got[wide.key].message


def test_the_compiled_backend_agrees_and_a_scaled_value_cache_does_not(tiny_model: Path) -> None:
    eager, compiled = (
        InProcessEngine(tiny_model, options(backend=b, lengths=(96,))) for b in ("eager", "inductor")
    )
    forced = [replace(r, forced=tuple(range(30, 50))) for r in requests()]
    wanted, found = ask(eager, forced), ask(compiled, forced)
    for key in wanted:
        assert found[key].logprobs == pytest.approx(wanted[key].logprobs, abs=2e-4)
    values = eager.model.model.layers[0].self_attn.v_proj
    values.register_forward_hook(lambda module, inputs, output: output * 1.05)
    spoiled = ask(eager, forced)
    assert any(spoiled[key].logprobs != pytest.approx(wanted[key].logprobs, abs=2e-4) for key in wanted)


def test_facts_tell_the_backends_apart_and_nothing_else(tiny_model: Path, engine: InProcessEngine) -> None:
    other = InProcessEngine(tiny_model, options(backend="inductor")).facts()
    assert {name for name, value in engine.facts().items() if other[name] != value} == {"backend"}


@pytest.mark.parametrize(
    ("folder", "change", "says"),
    [("missing", {}, "holds no model"), ("", {"backend": "magic"}, "eager, inductor")],
)
def test_bad_input_is_one_line(tiny_model: Path, folder: str, change: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        InProcessEngine(tiny_model / folder, options(**change))
    assert "\n" not in str(error.value)
