"""One row of the sample store: one response, with what was asked and what came back.

What this catches: responses that do not belong to their request, tokens and log-probabilities of different
number (kept as they are; ``evals.signals`` counts them). What it cannot catch: a wrong label given by the
caller.
"""

from __future__ import annotations

import json
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from evals.engines.api import Request, Response, Sampling

# Asked again, these would fail again: they count as finished.
LASTING = ("refused", "context")

Identity = tuple[str, int, str]


@dataclass(frozen=True)
class Label:
    """Where a response belongs.

    ``question`` is the task's own id of it; ``replicate`` counts forced repetitions.
    """

    run: str
    arm: str
    task: str
    question: str
    question_hash: str = ""
    repeat: int = 0
    replicate: int = 0


@dataclass(frozen=True, eq=False)
class Row:
    """One response. T tokens, k most likely tokens at each.

    ``token_ids`` int32 [T]; ``logprobs`` float64 [T], natural logarithm, NaN where there is none; ``top_ids``
    int32 and ``top_logprobs`` float64 [T, k], filled up with -1 and NaN where an engine gave fewer;
    ``accepted`` int32 [verify steps]. ``sampling``: the parameters sent, as JSON with sorted keys.
    ``first_token`` and ``total`` in seconds since the request was sent, None if unknown; ``time``: when the
    response came, seconds since 1970.
    """

    run: str
    arm: str
    task: str
    question: str
    key: str
    seed: int
    question_hash: str = ""
    repeat: int = 0
    replicate: int = 0
    kind: str = "free"  # or "forced"
    sampling: str = "{}"
    prompt_hash: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    token_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float64))
    top_ids: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    top_logprobs: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float64))
    accepted: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    finish: str = ""
    failure: str = ""
    message: str = ""
    text: str = ""
    first_token: float | None = None
    total: float | None = None
    attempts: int = 1
    time: float = 0.0

    @property
    def ok(self) -> bool:
        """There is a reply, whole or cut at its length limit."""
        return not self.failure

    @property
    def final(self) -> bool:
        """Not to be asked again: a reply, or a failure that would come back."""
        return is_final(self.failure)

    @property
    def identity(self) -> Identity:
        """A store keeps one final row of each."""
        return self.arm, self.replicate, self.key


def is_final(failure: str) -> bool:
    """Whether a row with this failure (empty: none) is finished."""
    return not failure or failure in LASTING


def row_of(label: Label, request: Request, response: Response, time: float | None = None) -> Row:
    """The row of one response. Raises ValueError if it is not the response to this request."""
    if response.key != request.key:
        raise ValueError(f"the response {response.key} was given as that of the request {request.key}")
    top_ids, top_logprobs = rectangle(response.top_ids, response.top_logprobs)
    return Row(
        **{name.name: getattr(label, name.name) for name in fields(Label)},
        key=request.key,
        seed=request.seed,
        kind="forced" if request.forced else "free",
        sampling=sampling_text(request.sampling),
        prompt_hash=response.prompt_hash,
        prompt_tokens=response.prompt_tokens,
        completion_tokens=len(response.token_ids),
        token_ids=np.asarray(response.token_ids, np.int32),
        logprobs=np.asarray(response.logprobs, np.float64),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        accepted=np.asarray(response.accepted, np.int32),
        finish=response.finish,
        failure=response.failure,
        message=_storable(response.message),
        text=_storable(response.text),
        first_token=response.first_token,
        total=response.total,
        attempts=response.attempts,
        time=clock.time() if time is None else time,
    )


def sampling_text(sampling: Sampling) -> str:
    """Sampling parameters as JSON with sorted keys, so that equal parameters are equal text."""
    plain: dict[str, Any] = {
        "temperature": float(sampling.temperature),
        "top_p": float(sampling.top_p),
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "extra": dict(sampling.extra),
    }
    return json.dumps(plain, sort_keys=True, default=str)


def rectangle(
    ids: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the most likely tokens as arrays [T, k], filled up with -1 and NaN. k is the longest row."""
    width = max((len(row) for row in (*ids, *logprobs)), default=0)
    count = max(len(ids), len(logprobs)) if width else 0
    out_ids = np.full((count, width), -1, np.int32)
    out_logprobs = np.full((count, width), np.nan)
    if len(ids) == len(logprobs) and all(len(row) == width for row in (*ids, *logprobs)):
        out_ids[:], out_logprobs[:] = np.reshape(ids, (count, width)), np.reshape(logprobs, (count, width))
        return out_ids, out_logprobs
    for i, row in enumerate(ids):
        out_ids[i, : len(row)] = row
    for i, values in enumerate(logprobs):
        out_logprobs[i, : len(values)] = values
    return out_ids, out_logprobs


def _storable(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair, as a cut reply may end in, becomes a question mark."""
    return text.encode("utf-8", "replace").decode()
