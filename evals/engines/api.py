"""What an engine takes and gives: requests with their own seeds, responses with everything that was seen.

What this catches: nothing by itself; it separates a reply from a failure to reply, so that no later step can
mistake one for the other. What it cannot catch: a server that reports sampling parameters which it does not
use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

# Why there is no reply, or none to be graded. "stop" and "length" are the two ways in which a reply ends.
Finish = Literal["stop", "length"]
Failure = Literal[
    "timeout",  # no answer within the time allowed
    "transport",  # connection refused, reset or cut, after all retries
    "server",  # the server answered 5xx, or ended
    "refused",  # the server answered 4xx: the request itself is not served
    "context",  # prompt and reply do not fit into the model's context
    "malformed",  # an answer that is not what the interface promises
]


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. ``temperature`` 0 is greedy; ``top_p`` in (0, 1]; ``max_tokens`` of the reply."""

    temperature: float = 1.0
    top_p: float = 0.95
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)  # passed on as it is, recorded by the guard


@dataclass(frozen=True)
class Request:
    """One reply to be made.

    ``key`` is unique in a run (TASK/QUESTION/REPEAT). The prompt is ``prompt`` (text, the chat template
    already applied or none wanted), ``messages`` (the engine applies the model's template), or
    ``prompt_ids``; exactly one is given. ``forced``: the token ids that the engine must append one by one
    through its decode path, whatever it would draw itself; ``top`` is the number of most likely tokens to
    report at every position. ``replicate`` asks for another honest computation of the same thing (other
    company in the batch, other place in the cache), so that rounding noise can be told from a difference; it
    must not change what is computed.
    """

    key: str
    seed: int
    sampling: Sampling = Sampling()
    prompt: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    top: int = 0
    replicate: int = 0


@dataclass
class Response:
    """What came back for one request.

    ``logprobs``: natural logarithm of the model's own probability (temperature 1, nothing cut off) of each
    token of the reply; NaN where the engine gave none. ``top_ids`` and ``top_logprobs``: [tokens][top], most
    likely first. Times in seconds on the client's clock: ``first_token`` and ``total`` from when the request
    was sent; None where not measured. ``failure`` is empty if there is a reply; ``message`` says more about
    it. ``prompt_hash``: see ``evals.engines.hashing``. ``accepted``: draft tokens accepted per verify step,
    if told.
    """

    key: str
    seed: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)
    finish: Finish | Literal[""] = ""
    failure: Failure | Literal[""] = ""
    message: str = ""
    prompt_tokens: int = 0
    prompt_hash: str = ""
    first_token: float | None = None
    total: float | None = None
    accepted: list[int] = field(default_factory=list)
    attempts: int = 1

    @property
    def ok(self) -> bool:
        """There is a reply, whole or cut at its length limit."""
        return not self.failure


Done = Callable[[Request, Response], None]


class Engine(Protocol):
    """One arm that is up and ready.

    ``facts()``: what the comparability guard compares (device kind and count, parallelism, versions, cache
    formats, model identity, effective sampling defaults, ...) as a flat dictionary of plain values; call it
    again at the end of a run to see that nothing has changed. ``run`` works through the requests in any order
    and calls ``done`` once for each as soon as it has its response, from the calling thread; it returns when
    all are done. An engine that goes away raises ``EngineLost`` after having reported what it has.
    """

    def facts(self) -> dict[str, Any]: ...

    def run(self, requests: Sequence[Request], done: Done) -> None: ...

    def tokenize(self, request: Request) -> list[int]:
        """Token ids of the prompt as the engine will see them."""
        ...

    def detokenize(self, token_ids: Sequence[int]) -> str: ...

    def close(self) -> None: ...


class EngineLost(Exception):
    """The engine ended or does not answer any more; the message is one line, with the last of its log."""
