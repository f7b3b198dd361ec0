"""Responses to put into a store, and what must come out again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evals.engines.api import Request, Response, Sampling
from evals.store.row import Label, Row, row_of
from evals.store.store import Store

CONFIGURATION = "0123456789abcdef"


def request(i: int, task: str = "toy") -> Request:
    return Request(f"{task}/{i}/0", seed=1000 + i, sampling=Sampling(max_tokens=32), prompt=f"question {i}")


def response(i: int, task: str = "toy", failure: str = "", top: int = 3) -> Response:
    """Different for every i, the same every time it is asked for."""
    draw = np.random.default_rng(i)
    if failure:
        return Response(f"{task}/{i}/0", 1000 + i, failure=failure, message="no answer")  # type: ignore[arg-type]
    n = int(draw.integers(1, 30))
    return Response(
        f"{task}/{i}/0",
        1000 + i,
        text=f"answer {i} \u2028 \u00e9 \U0001f642",
        token_ids=draw.integers(0, 150_000, n).tolist(),
        logprobs=(-draw.exponential(size=n)).tolist(),
        top_ids=draw.integers(0, 150_000, (n, top)).tolist(),
        top_logprobs=(-draw.exponential(size=(n, top))).tolist(),
        finish="stop",
        prompt_tokens=7,
        prompt_hash="00ff",
        first_token=0.25,
        total=1.5,
        accepted=[2, 0, 1],
    )


def row(i: int, arm: str = "reference", failure: str = "", task: str = "toy", replicate: int = 0) -> Row:
    label = Label("run", arm, task, str(i), "abcd", replicate=replicate)
    return row_of(label, request(i, task), response(i, task, failure), time=1.7e9 + i)


def open_store(folder: Path, warned: list[str] | None = None, **options: object) -> Store:
    """A store whose warnings go into a list; without one, a warning fails the test."""
    return Store(
        folder, CONFIGURATION, "run", warn=_unexpected if warned is None else warned.append, **options
    )  # type: ignore[arg-type]


def _unexpected(text: str) -> None:
    raise AssertionError(f"warned: {text}")


def plain(row: Row) -> dict[str, object]:
    """A row as comparable values: arrays as lists of bytes and shape."""
    values = vars(row).copy()
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            values[name] = (value.dtype.str, value.shape, value.tobytes())
    return values
