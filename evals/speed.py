"""Speed, kept apart: each measure in its own column, with the circumstances that it depends on.

What this catches: speed-ups that come from mixing prefill and decode, from downtime, from other lengths or
batches, or from synthetic acceptance, since all of those stand beside the figure. What it cannot catch: a
machine that was busy with something else. What was not measured stays blank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evals.store.row import Row

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Speed:
    """One arm on one task. Times in seconds, throughput in tokens per second; None: not measured or not
    known.

    ``decode``: per request, tokens after the first over the time after the first. ``output``: all tokens over
    the time in which any request was in flight (a run that was interrupted does not count its pause).
    """

    arm: str
    task: str
    replies: int
    input_tokens: float | None
    output_tokens: float | None
    decode_median: float | None
    decode_p5: float | None
    first_token_median: float | None
    first_token_p95: float | None
    latency_median: float | None
    latency_p95: float | None
    output: float | None
    concurrency: int | None
    batch: int | None
    speculation: str | None
    draft_tokens: int | None
    acceptance_length: float | None
    synthetic_acceptance: bool | None


def speed_of(
    rows: Iterable[Row], facts: Mapping[str, Any] | None = None, concurrency: int | None = None
) -> Speed:
    """From the free replies of one arm on one task. Failed and forced requests are left out.

    ``facts``: of the engine, for batch and speculation. Raises ValueError for rows of several arms or tasks.
    """
    kept = [row for row in rows if row.ok and row.kind == "free"]
    names = {(row.arm, row.task) for row in kept}
    if len(names) > 1:
        raise ValueError(f"rows of several arms or tasks: {sorted(names)}")
    arm, task = next(iter(names), ("", ""))
    facts = facts or {}
    known = [row for row in kept if row.total is not None]
    first = [row.first_token for row in kept if row.first_token is not None]
    totals = [row.total for row in known if row.total is not None]
    decode = [value for value in map(_decode, kept) if value is not None]
    accepted = np.concatenate([np.zeros(0), *(row.accepted for row in kept)])
    return Speed(
        arm, task, len(kept),
        input_tokens=_quantile([row.prompt_tokens for row in kept if row.prompt_tokens], 0.5),
        output_tokens=_quantile([row.completion_tokens for row in kept], 0.5),
        decode_median=_quantile(decode, 0.5), decode_p5=_quantile(decode, 0.05),
        first_token_median=_quantile(first, 0.5), first_token_p95=_quantile(first, 0.95),
        latency_median=_quantile(totals, 0.5), latency_p95=_quantile(totals, 0.95),
        output=_output(known) if len(known) == len(kept) else None,
        concurrency=concurrency if concurrency is not None else facts.get("concurrency"),
        batch=facts.get("max_num_seqs"),
        speculation=facts.get("speculative_method"),
        draft_tokens=facts.get("speculative_tokens"),
        acceptance_length=float(1 + accepted.mean()) if len(accepted) else None,
        synthetic_acceptance=_synthetic(facts.get("speculative_acceptance")),
    )  # fmt: skip


def _synthetic(acceptance: Any) -> bool | None:
    """Whether drafts are accepted whatever the model says; None if the engine does not tell."""
    return None if acceptance in (None, "", "unknown") else acceptance == "synthetic"


def _decode(row: Row) -> float | None:
    """Tokens per second after the first token, which prefill makes; None for a reply of one token."""
    if row.total is None or row.first_token is None or row.completion_tokens < 2:
        return None
    seconds = row.total - row.first_token
    return (row.completion_tokens - 1) / seconds if seconds > 0 else None


def _output(rows: Sequence[Row]) -> float | None:
    seconds = busy([(row.time - (row.total or 0.0), row.time) for row in rows])
    return sum(row.completion_tokens for row in rows) / seconds if seconds > 0 else None


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of time spans."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _quantile(values: Sequence[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None


def as_dict(speeds: Iterable[Speed]) -> list[dict[str, Any]]:
    """For the results document; unknown values are null."""
    return [asdict(speed) for speed in speeds]


COLUMNS = {
    "arm": "arm", "task": "task", "replies": "replies", "input_tokens": "input tokens",
    "output_tokens": "output tokens", "decode_median": "decode tok/s", "decode_p5": "p5",
    "first_token_median": "first token s", "first_token_p95": "p95", "latency_median": "latency s",
    "latency_p95": "p95", "output": "output tok/s", "concurrency": "in flight", "batch": "batch",
    "speculation": "speculation", "draft_tokens": "drafts", "acceptance_length": "accepted",
    "synthetic_acceptance": "synthetic",
}  # fmt: skip


def as_table(speeds: Iterable[Speed]) -> Table:
    """For the terminal; columns that no arm knows are left out, single unknown values are blank."""
    from rich.table import Table

    rows = [asdict(speed) for speed in speeds]
    shown = [name for name in COLUMNS if any(row[name] is not None for row in rows)]
    table = Table(box=None, pad_edge=False)
    for name in shown:
        table.add_column(COLUMNS[name], justify="left" if name in ("arm", "task", "speculation") else "right")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in shown))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{value:.3g}"
        if isinstance(value, float) and value < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )
