"""The body of one request to an OpenAI-compatible server.

What this catches: sampling parameters that a server would fill in by itself; those of vLLM are sent in full,
so that the model's own generation defaults cannot differ between arms. What it cannot catch: a server that
ignores them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evals.engines.api import Request
from validation.errors import UserError

# What a request's seed, tokens and transport are made from; ``Sampling.extra`` must not touch it.
OURS = (
    "model",
    "prompt",
    "messages",
    "seed",
    "n",
    "stream",
    "stream_options",
    "vllm_xargs",
    "return_token_ids",
)
NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Dialect:
    """How to talk to the server. ``vllm``: token ids, log-probabilities and forcing as vLLM offers them;
    without it only what every OpenAI-compatible server knows. ``special_tokens``: whether the server adds BOS
    and the like to a text prompt (F59: a template that brings its own would double it)."""

    vllm: bool = True
    stream: bool = True
    logprobs: bool = True
    special_tokens: bool = True


def path_of(request: Request) -> str:
    """Where the request goes."""
    return "/v1/chat/completions" if request.messages else "/v1/completions"


def body_of(request: Request, model: str, dialect: Dialect) -> dict[str, Any]:
    """The JSON body. UserError for what cannot be asked of this server."""
    sampling = request.sampling
    if clash := sorted(set(OURS) & set(sampling.extra)):
        raise UserError(
            f"extra sampling parameters must not contain {', '.join(clash)}; remove it from the arm"
        )
    body: dict[str, Any] = {
        "model": model,
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stream": dialect.stream,
    }
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if dialect.stream:
        body["stream_options"] = {"include_usage": True}
    body |= _prompt(request, dialect) | _logprobs(request, dialect)
    if dialect.vllm:
        body |= NEUTRAL | {"return_token_ids": True}
    body |= dict(sampling.extra)
    return body | _forced(request, dialect)


def _prompt(request: Request, dialect: Dialect) -> dict[str, Any]:
    given = [bool(request.prompt), bool(request.messages), bool(request.prompt_ids)]
    if sum(given) != 1:
        raise UserError(f"request {request.key} needs exactly one of prompt, messages and prompt_ids")
    if request.messages:
        return {"messages": [dict(message) for message in request.messages]}
    if request.prompt_ids:
        return {"prompt": list(request.prompt_ids)}
    return {"prompt": request.prompt} | (
        {"add_special_tokens": dialect.special_tokens} if dialect.vllm else {}
    )


def _logprobs(request: Request, dialect: Dialect) -> dict[str, Any]:
    if not (dialect.logprobs or request.top or request.forced):
        return {}
    wanted: dict[str, Any] = {"logprobs": request.top}
    if request.messages:
        wanted = {"logprobs": True, "top_logprobs": request.top}
    return wanted | ({"return_tokens_as_token_ids": True} if dialect.vllm else {})


def _forced(request: Request, dialect: Dialect) -> dict[str, Any]:
    """Exactly the forced tokens come back: the end-of-text token and stop strings do not stop them."""
    if not request.forced:
        return {}
    if not dialect.vllm:
        raise UserError(
            "forced tokens need a vLLM server with lockstep's plug-in; set the arm's dialect to vllm"
        )
    return {
        "vllm_xargs": {"forced_tokens": list(request.forced)},
        "max_tokens": len(request.forced),
        "min_tokens": 0,
        "ignore_eos": True,
        "stop": [],
    }
