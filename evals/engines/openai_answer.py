"""From a server's answer to a ``Response``: the same for whole and streamed answers, completions and chat.

What this catches: answers that are not what the interface promises (not JSON, tokens without
log-probabilities, token counts that disagree, an unknown reason to finish). What it cannot catch: a server
that tells a wrong story consistently. vLLM writes -9999 for a log-probability of minus infinity; it is -inf
here.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from evals.engines.api import Request, Response
from evals.engines.hashing import hash_ids
from evals.engines.retry import Answer

CONTEXT = re.compile(
    r"context[ _]length|max_model_len|maximum model length|longer than the maximum", re.IGNORECASE
)
MINUS_INFINITY = -9999.0
TOKEN = "token_id:"
SHOWN = 300


class Malformed(Exception):
    """The answer is not what the interface promises."""


class Refusal(Exception):
    """The server says no inside a stream that began well. ``code`` is the status it names."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Parts:
    """An answer being put together from one or many chunks."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] | None = None
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    fingerprint: str = ""
    first: float | None = None


def response_of(request: Request, answer: Answer) -> tuple[Response, Parts]:
    """The response, with ``failure`` set where there is none to be graded, and the parts it was made from."""
    response = Response(request.key, request.seed, attempts=answer.attempts)
    response.total = answer.ended - answer.sent
    parts = Parts()
    try:
        if answer.status != 200:
            raise Refusal(error_text(answer.body), answer.status)
        for clock, chunk in _chunks(answer):
            _add(parts, chunk, clock)
        _fill(response, parts, request)
    except Refusal as refusal:
        response.failure = "server"
        if 400 <= refusal.code < 500:
            response.failure = "context" if CONTEXT.search(str(refusal)) else "refused"
        response.message = f"{refusal.code}: {refusal}"
    except Malformed as error:
        response.failure, response.message = "malformed", str(error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        response.failure, response.message = "malformed", f"{type(error).__name__}: {error}"[:SHOWN]
    if parts.first is not None:
        response.first_token = parts.first - answer.sent
    return response, parts


def error_text(body: bytes) -> str:
    """The message of an error, on one line."""
    text = body.decode("utf-8", "replace")
    try:
        document = json.loads(text)
        inner = document.get("error", document)
        text = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:SHOWN]


def _chunks(answer: Answer) -> list[tuple[float | None, dict[str, Any]]]:
    if answer.events:
        return [(clock, json.loads(data)) for clock, data in answer.events]
    if not answer.body:
        raise Malformed("an empty answer")
    return [(None, json.loads(answer.body))]


def _add(parts: Parts, chunk: dict[str, Any], clock: float | None) -> None:
    if error := chunk.get("error"):
        code = error.get("code") if isinstance(error, dict) else None
        raise Refusal(error_text(json.dumps(chunk).encode()), code if isinstance(code, int) else 500)
    parts.model = chunk.get("model") or parts.model
    parts.fingerprint = chunk.get("system_fingerprint") or parts.fingerprint
    parts.usage = chunk.get("usage") or parts.usage
    if chunk.get("prompt_token_ids") is not None:  # chat tells them beside the choices
        parts.prompt_ids = chunk["prompt_token_ids"]
    for choice in chunk["choices"]:
        said = choice.get("message") or choice.get("delta") or {}
        text = choice.get("text") or said.get("content") or ""
        thought = said.get("reasoning") or said.get("reasoning_content") or ""
        parts.text.append(text)
        parts.reasoning.append(thought)
        if choice.get("prompt_token_ids") is not None:
            parts.prompt_ids = choice["prompt_token_ids"]
        parts.token_ids += choice.get("token_ids") or []
        _add_logprobs(parts, choice.get("logprobs") or {})
        parts.finish = choice.get("finish_reason") or parts.finish
        if clock is not None and parts.first is None and (text or thought or choice.get("token_ids")):
            parts.first = clock


def _add_logprobs(parts: Parts, given: dict[str, Any]) -> None:
    if given.get("content") is not None:  # chat
        for entry in given["content"]:
            tops = {top["token"]: top["logprob"] for top in entry.get("top_logprobs") or []}
            _add_token(parts, entry["logprob"], tops)
    elif given.get("token_logprobs") is not None:  # completions
        all_tops = given.get("top_logprobs") or [None] * len(given["token_logprobs"])
        for logprob, tops in zip(given["token_logprobs"], all_tops, strict=True):
            _add_token(parts, logprob, tops or {})


def _add_token(parts: Parts, logprob: float | None, tops: dict[str, float]) -> None:
    parts.logprobs.append(_number(logprob))
    ids = [
        (int(token.removeprefix(TOKEN)), _number(p)) for token, p in tops.items() if token.startswith(TOKEN)
    ]
    # NaN last; among equals the smaller id, so that the order does not depend on the server's.
    parts.tops.append(sorted(ids, key=lambda pair: (math.isnan(pair[1]), -pair[1], pair[0])))


def _number(logprob: float | None) -> float:
    if logprob is None:
        return math.nan
    return -math.inf if logprob <= MINUS_INFINITY else float(logprob)


def _fill(response: Response, parts: Parts, request: Request) -> None:
    thought = "".join(parts.reasoning)
    # A server with a reasoning parser takes the marks away; graders look for them.
    response.text = (f"<think>{thought}</think>" if thought else "") + "".join(parts.text)
    response.token_ids = [int(token) for token in parts.token_ids]
    response.prompt_tokens = int(parts.usage.get("prompt_tokens") or len(parts.prompt_ids or ()))
    response.prompt_hash = hash_ids(parts.prompt_ids) if parts.prompt_ids else ""
    if parts.finish not in ("stop", "length"):
        if parts.finish in ("abort", "error"):
            raise Refusal(f"the reply ended with '{parts.finish}'", 500)
        raise Malformed(f"finish reason '{parts.finish or 'none'}'")
    response.finish = parts.finish  # type: ignore[assignment]
    counts = {"token ids": len(parts.token_ids), "log-probabilities": len(parts.logprobs)}
    counts["usage"] = int(parts.usage.get("completion_tokens") or 0)
    told = {name: count for name, count in counts.items() if count}
    if len(set(told.values())) > 1:
        raise Malformed("token counts disagree: " + ", ".join(f"{k} {v}" for k, v in told.items()))
    tokens = max(counts.values())
    response.logprobs = parts.logprobs or [math.nan] * tokens
    if request.top and parts.tops:
        best = [tops[: request.top] for tops in parts.tops]
        response.top_ids = [[token for token, _ in tops] for tops in best]
        response.top_logprobs = [[p for _, p in tops] for tops in best]
