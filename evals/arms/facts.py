"""The facts that an engine reports about itself, and why a difference in each matters.

What this catches: nothing by itself; ``guard`` compares. What it cannot catch: an engine that reports wrong
facts.

Names are those of ``Engine.facts()``. Facts not listed here are compared all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "context_parallel_size",
    "decode_context_parallel_size",
    "enable_expert_parallel",
)


@dataclass(frozen=True)
class Fact:
    """``name`` may be a pattern.

    ``must``: unknown in both arms is refused. ``never``: no factor may imply it.
    """

    name: str
    why: str
    report: str = ""
    must: bool = False
    never: bool = False


SPEEDUP = "a published speed-up of 1.8 compares 16 GPUs with 8"
FACTS = (
    Fact(
        "device_kind", "another device computes in another order and at another speed", must=True, never=True
    ),
    Fact("device_name", "another device computes in another order and at another speed", never=True),
    Fact("device_count", f"more devices are faster whatever the backend: {SPEEDUP}", must=True, never=True),
    Fact(
        "*parallel*",
        f"another split sums in another order and uses other kernels; {SPEEDUP}",
        "F56",
        never=True,
    ),
    Fact("model", "another model", must=True, never=True),
    Fact("model_revision", "another model", never=True),
    Fact("weights_hash", "other weights are another model", never=True),
    Fact("architecture", "another implementation of the model", never=True),
    Fact("tokenizer_hash", "other tokens of the same text", "F59", never=True),
    Fact("chat_template_hash", "another prompt from the same messages", "F59", never=True),
    Fact("version_*", "another version may be the cause of any difference", "F60"),
    Fact("dtype", "other rounding in every operation"),
    Fact("quantization", "other weights in effect"),
    Fact("kv_cache_dtype", "keys and values are rounded otherwise", "F53"),
    Fact("*cache_dtype*", "states are rounded otherwise", "F53"),
    Fact("block_size", "pages are grouped otherwise"),
    Fact("max_model_len", "prompts or replies are cut elsewhere", "F58"),
    Fact(
        "speculative_acceptance",
        "synthetic acceptance ignores the model: neither replies nor speed are the backend's",
        never=True,
    ),
    Fact("speculative_*", "speculation changes batch, kernels and speed"),
    Fact("*prefix_caching", "a prefix computed by another request is reused", "F51"),
    Fact("max_num_seqs", "other batch sizes use other kernels and sums", "F56"),
    Fact("max_num_batched_tokens", "prefill is cut into other chunks", "F56"),
    Fact("concurrency", "other batch sizes use other kernels and sums", "F56"),
    Fact("threads", "sums are split otherwise, and the speed is another", "F56"),
    Fact("sampling_defaults", "parameters that a request leaves out come from here", "F59", never=True),
    Fact("logprobs_mode", "log-probabilities mean something else"),
)
OTHER = Fact("*", "it is not the factor; if it follows from the factor, name it in implies")
NEVER_ASKED = ("prompts", "questions", "repeats", "sampling", "seeds")
MUST = tuple(fact.name for fact in FACTS if fact.must)


def fact(name: str) -> Fact:
    """The first entry that the name matches."""
    return next((each for each in FACTS if fnmatchcase(name, each.name)), OTHER)


def never_implied(pattern: str) -> bool:
    """Whether an ``implies`` entry would allow a difference with which nothing is comparable."""
    names = (*NEVER_ASKED, *(each.name.replace("*", "") for each in FACTS if each.never))
    return pattern in NEVER_ASKED or fact(pattern).never or any(fnmatchcase(name, pattern) for name in names)


def unknown(value: Any) -> bool:
    """The engine could not tell."""
    return value is None or value == "" or value == "unknown"
