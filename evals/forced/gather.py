"""From rows of the sample store to the arrays that the statistics take.

What this catches: sequences that one arm lacks, or whose tokens are others than those that were to be forced; both
are left out and counted. What it cannot catch: replicates that are copies of each other; the statistics say so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from evals.store.row import Row
from validation.variance.forced import Forced

SKIPPED = 1  # the first token of a continuation: its log-probability comes from prefill


@dataclass
class Gathered:
    """``chosen``: log-probabilities of the forced tokens; ``top``: of the most likely ones, weighted by their
    probability. ``keys``: the sequences, in the order of both. ``lost``: why others are missing."""

    chosen: Forced | None
    top: Forced | None
    keys: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    tokens: int = 0


def gather(
    wanted: dict[str, tuple[int, ...]],
    reference: Iterable[Row],
    candidate: Iterable[Row],
    replicates: tuple[Sequence[int], Sequence[int]],
) -> Gathered:
    """Sequences that both arms walked in all ``replicates``. ``wanted``: key -> tokens."""
    rows = [_by_key(reference), _by_key(candidate)]
    gathered = Gathered(None, None)
    chosen, top = ([], []), ([], [], [])  # type: ignore[var-annotated]
    for key, tokens in wanted.items():
        found = [[rows[arm][key].get(r) for r in replicates[arm]] for arm in (0, 1)]
        if reason := _unusable(found, tokens):
            gathered.lost[key] = reason
            continue
        gathered.keys.append(key)
        gathered.tokens += len(tokens) - SKIPPED
        for arm in (0, 1):
            chosen[arm].append(np.stack([row.logprobs[SKIPPED:] for row in found[arm]]))  # type: ignore[union-attr]
        values, weights = common_top(found[0] + found[1])  # type: ignore[arg-type, operator]
        top[0].append(values[: len(found[0])])
        top[1].append(values[len(found[0]) :])
        top[2].append(weights)
    if gathered.keys:
        gathered.chosen = Forced(*chosen)
        gathered.top = Forced(*top) if all(w.shape[1] for w in top[2]) else None
    return gathered


def _by_key(rows: Iterable[Row]) -> dict[str, dict[int, Row]]:
    found: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        found[row.key][row.replicate] = row
    return found


def _unusable(found: list[list[Row | None]], tokens: tuple[int, ...]) -> str:
    """Why a sequence cannot be compared; empty if it can."""
    for name, rows in zip(("reference", "candidate"), found, strict=True):
        for row in rows:
            if row is None:
                return f"not walked in every replicate of the {name} arm"
            if not row.ok:
                return f"{row.failure} in the {name} arm: {row.message}"
            if tuple(row.token_ids) != tokens or len(row.logprobs) != len(tokens):
                return f"the {name} arm returned other tokens than were forced"
    return "" if len(tokens) > SKIPPED else "too short"


def common_top(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities [replicates, tokens, k] of the tokens that are among the most likely in every replicate,
    and their mean probability [tokens, k]; where a token is missing in one replicate its weight is 0.
    """
    ids = np.stack([row.top_ids[SKIPPED:] for row in rows])
    logprobs = np.stack([row.top_logprobs[SKIPPED:] for row in rows]).astype(float)
    if not ids.size:
        return np.zeros((*ids.shape[:2], 0)), np.zeros((ids.shape[1], 0))
    first = ids[0]
    aligned = np.stack([_aligned(first, ids[r], logprobs[r]) for r in range(len(rows))])
    present = np.isfinite(aligned).all(axis=0)
    aligned = np.where(present, aligned, 0.0)
    weights = np.where(present, np.exp(aligned).mean(axis=0), 0.0)
    return aligned, weights


def _aligned(wanted: np.ndarray, ids: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
    """Log-probabilities of ``wanted`` [tokens, k] as reported in ``ids``; NaN where they are not."""
    same = wanted[:, :, None] == ids[:, None, :]
    at = same.argmax(axis=2)
    found = np.take_along_axis(logprobs, at, axis=1)
    return np.where(same.any(axis=2) & (wanted >= 0), found, np.nan)
