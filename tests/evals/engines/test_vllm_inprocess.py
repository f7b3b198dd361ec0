"""Trace replay against a stub of vLLM 0.33's LLM, which replays as its sampler does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evals.engines.api import EngineLost, Request, Response, Sampling
from evals.engines.hashing import hash_ids
from evals.engines.vllm_inprocess import TraceReplayEngine, open_engine
from validation.errors import UserError


class Tokenizer:
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(c) for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(
        self, chat: Any, add_generation_prompt: bool, tokenize: bool, **extra: Any
    ) -> str:
        assert add_generation_prompt
        assert not tokenize
        return "".join(m["content"] for m in chat) + extra.get("end", "")


class EngineDeadError(Exception):
    pass


class LLM:
    """Draws token 50 + place with log-probability -1 - place; a trace replaces the token, as vLLM's
    sampler does."""

    def __init__(self, replays: bool = True, dies: bool = False, **config: Any) -> None:
        model = SimpleNamespace(
            enable_trace_replay=True, max_model_len=32, model="/m", get_vocab_size=lambda: 100, dtype="bf16"
        )
        model.__dict__.update(config.pop("model", {}))
        sections = {"speculative_config": None, "additional_config": {}, "model_config": model} | config
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(**sections))
        self.replays, self.dies, self.batches = replays, dies, list[int]()

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def generate(self, prompts: Any, sampling_params: Any, *, use_tqdm: bool = True) -> list[Any]:
        if self.dies:
            raise EngineDeadError("EngineCore\nencountered an issue")
        self.batches.append(len(prompts))
        self.parameters = sampling_params
        return [self.reply(p, s) for p, s in zip(prompts, sampling_params, strict=True)]

    def reply(self, prompt: Any, given: Any) -> Any:
        trace = getattr(given, "trace_decode_token_ids", None) if self.replays else None
        tokens = trace or [50 + place for place in range(given.max_tokens)]
        entries = [
            {t: SimpleNamespace(logprob=-1.0 - i), 2: SimpleNamespace(logprob=-0.5)}
            for i, t in enumerate(tokens)
        ]
        output = SimpleNamespace(token_ids=tuple(tokens), text="t", logprobs=entries, finish_reason="length")
        return SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[output])


def answers(llm: Any, *requests: Request, batch: int = 64) -> dict[str, Response]:
    found: dict[str, Response] = {}
    TraceReplayEngine(llm, SimpleNamespace, batch).run(requests, lambda q, r: found.update({q.key: r}))
    return found


def test_a_trace_comes_back_with_the_models_own_log_probabilities() -> None:
    llm = LLM()
    found = answers(
        llm,
        Request("q", 7, prompt_ids=(4, 5), forced=(9, 8, 9), top=1),
        Request("f", 8, prompt="x"[:1], sampling=Sampling(max_tokens=2)),
    )
    assert found["q"].token_ids == [9, 8, 9]
    assert found["q"].logprobs == [-1.0, -2.0, -3.0]
    assert found["q"].top_ids == [[2], [2], [2]]
    assert found["q"].prompt_hash == hash_ids((4, 5))
    assert found["f"].token_ids == [50, 51]
    forced, free = llm.parameters
    assert (forced.trace_decode_token_ids, forced.max_tokens, forced.seed, forced.n) == ([9, 8, 9], 3, 7, 1)
    assert not hasattr(free, "trace_decode_token_ids")


def test_requests_go_in_batches_and_too_long_ones_are_context_failures() -> None:
    """vLLM itself would cut the trace."""
    llm = LLM()
    requests = [Request(f"{i}", i, prompt_ids=(1,), forced=(3,)) for i in range(5)]
    found = answers(llm, *requests, Request("long", 1, prompt_ids=(1,) * 30, forced=(3, 3, 3)), batch=2)
    assert llm.batches == [2, 2, 1]
    assert found["long"].failure == "context"
    assert all(found[f"{i}"].ok for i in range(5))


@pytest.mark.parametrize(
    ("llm", "extra", "forced", "message"),
    [
        (LLM(model={"enable_trace_replay": False}), {}, (3,), "without enable_trace_replay"),
        (
            LLM(speculative_config=SimpleNamespace(method="dspark")),
            {},
            (3,),
            "speculative decoding; use a server",
        ),
        (LLM(), {"structured_outputs": {"regex": "a"}}, (3,), "structured_outputs"),
        (LLM(), {"prompt_logprobs": 1}, (3,), "prompt_logprobs"),
        (LLM(), {"n": 2}, (3,), "n = 1"),
        (LLM(), {}, (3, 100), "outside the vocabulary of 100"),
        (LLM(replays=False), {}, (3,), "did not replay"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(
    llm: Any, extra: Any, forced: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        answers(llm, Request("q", 1, Sampling(extra=extra), prompt_ids=(1,), forced=forced))
    assert "\n" not in str(caught.value)


def test_an_engine_that_dies_is_lost() -> None:
    with pytest.raises(EngineLost, match="EngineCore encountered an issue"):
        answers(LLM(dies=True), Request("q", 1, prompt_ids=(1,), forced=(3,)))


def test_prompts_and_facts() -> None:
    engine = TraceReplayEngine(LLM(), SimpleNamespace)
    chat = Request(
        "q",
        1,
        Sampling(extra={"chat_template_kwargs": {"end": "!"}}),
        messages=({"role": "user", "content": "A"},),
    )
    assert engine.tokenize(chat) == [65, 33]
    assert engine.tokenize(Request("q", 1, prompt="A")) == [1, 65]
    facts = engine.facts()
    assert (facts["max_model_len"], facts["speculative_method"], facts["kv_cache_dtype"]) == (
        32,
        "none",
        "none",
    )


def test_opening_refuses_speculation_before_anything_is_loaded() -> None:
    with pytest.raises(UserError, match="speculative"):
        open_engine("/m", {"speculative_config": {"method": "dspark"}})
