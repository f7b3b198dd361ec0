"""All signals of one reply, and of an arm as arrays [questions, repeats] for the statistics.

What this catches: see ``loops``, ``logprobs`` and ``divergence``. What it cannot catch: signals of a request
that got no reply; those cells are NaN, and the failure counts as what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from evals.signals.divergence import Divergence, first_divergence
from evals.signals.logprobs import odd_logprobs
from evals.signals.loops import COVERED, final_loop, novelty, runs
from evals.store.row import Row

NAN = float("nan")


@dataclass(frozen=True)
class Signals:
    """Of one reply, as numbers: flags are 0 or 1, NaN where nothing is known.

    ``length`` in tokens; ``truncated``: cut at its limit; ``loop``, ``loop_period``, ``loop_covered``: it
    ends in a repetition; ``stuck``, ``stuck_token``: it ends in one token for at least 48; ``longest_run`` of
    one token; ``novelty``: share of distinct 8-grams in the last 2,048 tokens; ``missing``, ``infinite``,
    ``positive``: numbers of impossible log-probabilities; ``mean_logprob``; ``acceptance_length``: tokens per
    verify step.
    """

    length: float
    truncated: float
    loop: float
    loop_period: float
    loop_covered: float
    stuck: float
    stuck_token: float
    longest_run: float
    novelty: float
    missing: float
    infinite: float
    positive: float
    mean_logprob: float
    acceptance_length: float


NAMES = tuple(each.name for each in fields(Signals))


def signals_of(row: Row) -> Signals:
    """The signals of one reply. Raises ValueError if there is none."""
    if not row.ok:
        raise ValueError(f"{row.key} has no reply ({row.failure}), so no signals")
    loop, run = final_loop(row.token_ids), runs(row.token_ids)
    stuck = run.final >= COVERED
    odd = odd_logprobs(row.logprobs, len(row.token_ids))
    finite = row.logprobs[np.isfinite(row.logprobs)]
    return Signals(
        length=float(len(row.token_ids)),
        truncated=float(row.finish == "length"),
        loop=float(bool(loop)),
        loop_period=float(loop.period) if loop else NAN,
        loop_covered=float(loop.covered) if loop else NAN,
        stuck=float(stuck),
        stuck_token=float(run.token) if stuck else NAN,
        longest_run=float(run.longest),
        novelty=novelty(row.token_ids),
        missing=float(odd.missing),
        infinite=float(odd.infinite),
        positive=float(odd.positive),
        mean_logprob=float(finite.mean()) if len(finite) else NAN,
        acceptance_length=float(1 + row.accepted.mean()) if len(row.accepted) else NAN,
    )


def grid(rows: Iterable[Row], questions: Sequence[str], repeats: int) -> dict[str, np.ndarray]:
    """Each signal of one arm and task as an array [questions, repeats], NaN where there is no reply.

    Rows of other questions or repeats raise ValueError: they would be dropped in silence.
    """
    out = {name: np.full((len(questions), repeats), np.nan) for name in NAMES}
    place = {question: i for i, question in enumerate(questions)}
    for row in rows:
        i = place.get(row.question, -1)
        if i < 0 or not 0 <= row.repeat < repeats:
            raise ValueError(f"{row.key} is none of the {len(questions)} questions x {repeats} repeats")
        if row.ok:
            found = signals_of(row)
            for name in NAMES:
                out[name][i, row.repeat] = getattr(found, name)
    return out


def rates(arrays: dict[str, np.ndarray]) -> dict[str, float]:
    """One number per signal for a table: the mean over replies (for counts: the share with any)."""
    counts = ("missing", "infinite", "positive")
    out = {"replies": float(np.isfinite(arrays["length"]).sum())}
    for name, values in arrays.items():
        known = values[np.isfinite(values)]
        if name != "stuck_token":
            out[name] = float((known > 0).mean() if name in counts else known.mean()) if len(known) else NAN
    return out


def divergences(reference: Iterable[Row], candidate: Iterable[Row]) -> dict[str, Divergence]:
    """First divergence of each key to which both arms replied."""
    replies = {row.key: row for row in reference if row.ok}
    return {
        row.key: first_divergence(replies[row.key], row) for row in candidate if row.ok and row.key in replies
    }
