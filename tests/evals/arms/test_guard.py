"""Unfair comparisons are refused, each kind by itself; fair ones pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evals.arms.asked import Asked, asked_of
from evals.arms.config import Arm, Comparison
from evals.arms.guard import Comparability, guard
from evals.engines.api import Request, Response, Sampling
from evals.store.row import Label, Row, row_of

FACTS: dict[str, Any] = {
    "engine": "vllm",
    "device_kind": "cuda",
    "device_name": "NVIDIA GB300",
    "device_count": 8,
    "tensor_parallel_size": 8,
    "version_vllm": "0.33.0",
    "version_torch": "2.14.0",
    "model": "kimi-k3",
    "weights_hash": "aa",
    "tokenizer_hash": "bb",
    "chat_template_hash": "cc",
    "dtype": "bfloat16",
    "kv_cache_dtype": "fp8",
    "max_num_seqs": 64,
    "enable_prefix_caching": False,
    "speculative_method": "none",
    "speculative_acceptance": "standard",
    "sampling_defaults": {"top_k": -1},
    "decode_backend": "auto",
}
ARM = Arm("reference", "kimi-k3", "vllm")
FAIR = Comparison("t", "additional_config.decode_backend", ARM, replace(ARM, name="candidate"), {})

USUAL = Sampling()


def rows(
    arm: str, *, questions: int = 3, repeats: int = 2, sampling: Sampling = USUAL, base: int = 0,
    prompt: str = "p", length: int = 7, text: str = "h",
) -> list[Row]:  # fmt: skip
    out = []
    for q in range(questions):
        for k in range(repeats):
            key, seed = f"aime25/{q}/{k}", base + 10 * q + k
            label = Label("run", arm, "aime25", str(q), f"{text}{q}", k)
            answer = Response(key, seed, prompt_hash=prompt and f"{prompt}{q}", prompt_tokens=length)
            out.append(row_of(label, Request(key, seed, sampling), answer, time=0.0))
    return out


def judged(
    candidate: dict[str, Any] | None = None, asked: list[Row] | None = None, comparison: Comparison = FAIR,
    drop: str = "", later: dict[str, Any] | None = None,
) -> Comparability:  # fmt: skip
    """The reference against a candidate with these facts changed, this one dropped, and these rows."""
    other = FACTS | {"decode_backend": "latency_specialized"} | (candidate or {})
    other.pop(drop, None)
    both = asked_of(rows("reference")), asked_of(rows("candidate") if asked is None else asked)
    return guard(comparison, FACTS, other, both, (FACTS, other | (later or {})))


def test_arms_that_differ_in_the_factor_only_are_comparable() -> None:
    found = judged()
    assert found.verdict == "comparable", found.differences
    assert [each.field for each in found.declared] == ["decode_backend"]


UNFAIR_FACTS = {
    "16_gpus_against_8": ({"device_count": 16}, "device_count: 8 against 16; .*speed-up of 1.8 compares 16"),
    "tensor_parallelism": ({"tensor_parallel_size": 16}, "tensor_parallel_size: 8 against 16"),
    "pipeline_parallelism": ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: unknown against 2"),
    "device_kind": ({"device_kind": "cpu"}, "device_kind: cuda against cpu"),
    "device_name": ({"device_name": "NVIDIA H200"}, "device_name: NVIDIA GB300 against NVIDIA H200"),
    "version_of_the_engine": ({"version_vllm": "0.32.0"}, "version_vllm: 0.33.0 against 0.32.0"),
    "version_of_torch": ({"version_torch": "2.13.0"}, "version_torch"),
    "model": ({"model": "kimi-k2"}, "model: kimi-k3 against kimi-k2"),
    "weights": ({"weights_hash": "ab"}, "weights_hash: aa against ab; other weights are another model"),
    "tokenizer": ({"tokenizer_hash": "b0"}, "tokenizer_hash"),
    "chat_template": ({"chat_template_hash": "c0"}, r"chat_template_hash: .* \[F59\]"),
    "dtype": ({"dtype": "float16"}, "dtype: bfloat16 against float16"),
    "kv_cache_dtype": ({"kv_cache_dtype": "auto"}, "kv_cache_dtype: fp8 against auto"),
    "batch_limit": ({"max_num_seqs": 8}, "max_num_seqs: 64 against 8"),
    "prefix_caching": ({"enable_prefix_caching": True}, "enable_prefix_caching: false against true"),
    "speculation_in_one_arm": ({"speculative_method": "dspark"}, "speculative_method: none against dspark"),
    "synthetic_acceptance": ({"speculative_acceptance": "synthetic"}, "ignores the model"),
    "sampling_defaults": ({"sampling_defaults": {"top_k": 20}}, "sampling_defaults"),
    "a_fact_nobody_knows": ({"moe_backend": "marlin"}, "moe_backend: .*name it in implies"),
    "factor_not_in_effect": ({"decode_backend": "auto"}, r"the factor is not in effect.*\[F54\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFAIR_FACTS)
def test_unfair_facts_are_refused(name: str) -> None:
    change, message = UNFAIR_FACTS[name]
    found = judged(change)
    assert found.verdict == "confounded"
    (difference,) = found.differences
    assert _matches(message, str(difference))


UNFAIR_ROWS = {
    "other_prompts": ({"prompt": "x"}, r"prompts of aime25/0 and 2 more: p0 against x0; .*other tokens"),
    "doubled_bos": ({"prompt": "x", "length": 8}, "candidate has one token more .*a doubled BOS"),
    "unknown_prompts": ({"prompt": ""}, "prompts: known against unknown"),
    "temperature": ({"sampling": Sampling(0.6)}, "sampling of .*: temperature 1.0 against temperature 0.6"),
    "top_p": ({"sampling": Sampling(top_p=1.0)}, "top_p 0.95 against top_p 1.0"),
    "max_tokens": ({"sampling": Sampling(max_tokens=512)}, "max_tokens 1024 against max_tokens 512"),
    "stop": ({"sampling": Sampling(stop=("Question:",))}, r"stop \[\] against stop \['Question:'\]"),
    "seeds": ({"base": 5}, "seeds of aime25/0/0 and 5 more: 0 against 5"),
    "questions": ({"questions": 2}, "questions: 1 questions of its own, first aime25/2 against 0 questions"),
    "question_texts": ({"text": "x"}, "questions aime25/0 and 2 more: h0 against x0; another question under"),
    "k": ({"repeats": 3}, 'repeats: {"aime25": 2} against {"aime25": 3}'),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFAIR_ROWS)
def test_other_work_is_refused(name: str) -> None:
    change, message = UNFAIR_ROWS[name]
    found = judged(asked=rows("candidate", **change))
    assert found.verdict == "confounded"
    (difference,) = found.differences
    assert _matches(message, str(difference))


def test_a_missing_sample_is_refused() -> None:
    found = judged(asked=rows("candidate")[:-2] + rows("candidate")[-1:])
    assert [each.field for each in found.differences] == ["repeats"]


def test_a_prompt_that_changes_between_repeats_is_refused() -> None:
    changed = [*rows("candidate")[:-1], rows("candidate", prompt="y")[-1]]
    found = judged(asked=changed)
    assert "candidate got different tokens in repeats of one question" in str(found.differences[0])


def test_facts_that_change_during_the_run_are_refused() -> None:
    found = judged(later={"weights_hash": "ff"})
    assert _matches(
        "weights_hash: aa against ff; candidate changed during the run", str(found.differences[0])
    )


@pytest.mark.parametrize("name", ["device_kind", "device_count", "model"])
def test_facts_that_must_be_known(name: str) -> None:
    without = {k: v for k, v in FACTS.items() if k != name}
    found = guard(FAIR, without, without | {"decode_backend": "latency_specialized"})
    assert [each.field for each in found.differences] == [name]
    assert judged(drop=name).verdict == "confounded", "unknown in one arm"


@pytest.mark.parametrize("nothing", [None, "", "unknown"])
def test_unknown_in_one_arm_is_a_difference_and_in_both_a_caveat(nothing: Any) -> None:
    assert [each.field for each in judged({"kv_cache_dtype": nothing}).differences] == ["kv_cache_dtype"]
    blank = FACTS | {"kv_cache_dtype": nothing}
    found = guard(FAIR, blank, blank | {"decode_backend": "latency_specialized"})
    assert found.verdict == "comparable"
    assert "kv_cache_dtype is unknown in both arms" in found.caveats


def test_what_follows_from_the_factor_is_declared_and_shown() -> None:
    comparison = replace(FAIR, implies=("cudagraph_mode", "compilation_config*"))
    found = judged({"cudagraph_mode": "FULL", "compilation_config.mode": 3}, comparison=comparison)
    assert found.verdict == "comparable"
    assert {each.field for each in found.declared} == {
        "decode_backend",
        "cudagraph_mode",
        "compilation_config.mode",
    }
    assert judged({"cudagraph_mode": "FULL"}).verdict == "confounded"


def test_a_factor_that_no_fact_shows_is_a_caveat() -> None:
    facts = {k: v for k, v in FACTS.items() if k != "decode_backend"}
    found = guard(FAIR, facts, facts)
    assert found.verdict == "comparable"
    assert any("neither arm reports additional_config.decode_backend" in each for each in found.caveats)


def test_an_arm_compared_with_itself_may_differ_in_nothing() -> None:
    comparison = replace(FAIR, factor="none")
    assert judged({"decode_backend": "auto"}, comparison=comparison).verdict == "comparable"
    assert judged(comparison=comparison).verdict == "confounded"


def test_equal_values_in_other_types_are_equal() -> None:
    assert judged({"device_count": 8.0, "sampling_defaults": {"top_k": -1}}).verdict == "comparable"


def test_requests_without_an_answer_say_nothing_about_the_prompt() -> None:
    asked = rows("candidate")
    asked[0] = replace(asked[0], prompt_hash="", failure="timeout")
    assert judged(asked=asked).verdict == "comparable"
    assert Asked().questions == set()


def _matches(pattern: str, text: str) -> bool:
    import re

    if re.search(pattern, text):
        return True
    raise AssertionError(text)
