"""From rows of the sample store to the arrays that the statistics take.

All walks of one prompt make one sequence. The replicates of a prompt share the rounding noise of its prefill,
and with it the keys and values that every walk of it reads: what one walk says about a difference between
replicates, the next one repeats. Taken as sequences of their own, which the tests relabel independently, they
would be counted as so many confirmations, and an arm would differ from itself far more often than the level
says.

What this catches: sequences that one arm lacks, or whose tokens are others than those that were to be forced;
both are left out and counted. What it cannot catch: replicates that are copies of each other; the statistics
say so.
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
    probability. ``keys``: the walks in them; ``prompts``: those of each sequence, in the order of both
    arrays. ``lost``: why others are missing. ``tokens`` that count."""

    chosen: Forced | None
    top: Forced | None
    keys: list[str] = field(default_factory=list)
    prompts: list[list[str]] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    tokens: int = 0


@dataclass
class _Sequence:
    """The walks of one prompt: per walk chosen [replicates of both arms, tokens], top [.., k], weights."""

    keys: list[str] = field(default_factory=list)
    chosen: list[np.ndarray] = field(default_factory=list)
    top: list[np.ndarray] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)


def gather(
    wanted: dict[str, tuple[int, ...]],
    reference: Iterable[Row],
    candidate: Iterable[Row],
    replicates: tuple[Sequence[int], Sequence[int]],
) -> Gathered:
    """Walks that both arms walked in all ``replicates``, those of one prompt joined. ``wanted``: key ->
    tokens."""
    rows = [_by_key(reference), _by_key(candidate)]
    gathered = Gathered(None, None)
    sequences: dict[str, _Sequence] = defaultdict(_Sequence)
    for key, tokens in wanted.items():
        found = [[rows[arm][key].get(r) for r in replicates[arm]] for arm in (0, 1)]
        if reason := _unusable(found, tokens):
            gathered.lost[key] = reason
            continue
        both: list[Row] = [*found[0], *found[1]]  # type: ignore[list-item]
        gathered.keys.append(key)
        gathered.tokens += len(tokens) - SKIPPED
        sequence = sequences[prompt_of(both[0])]
        values, weights = common_top(both)
        sequence.keys.append(key)
        sequence.chosen.append(np.stack([row.logprobs[SKIPPED:] for row in both]))
        sequence.top.append(values)
        sequence.weights.append(weights)
    gathered.prompts = [sequence.keys for sequence in sequences.values()]
    if sequences:
        _join(gathered, list(sequences.values()), len(replicates[0]))
    return gathered


def prompt_of(row: Row) -> str:
    """What makes walks depend on each other: the prompt's token ids, the question if the engine did not tell
    them."""
    return row.prompt_hash or row.question or row.key


def _join(gathered: Gathered, sequences: Sequence[_Sequence], count: int) -> None:
    """Both arrays; the first ``count`` replicates are the reference's."""
    chosen = [np.concatenate(each.chosen, axis=1) for each in sequences]
    gathered.chosen = Forced([x[:count] for x in chosen], [x[count:] for x in chosen])
    widest = max(part.shape[-1] for each in sequences for part in each.weights)
    if not widest:
        return
    top = [np.concatenate([_padded(part, widest) for part in each.top], axis=1) for each in sequences]
    weights = [np.concatenate([_padded(part, widest) for part in each.weights], axis=0) for each in sequences]
    gathered.top = Forced([x[:count] for x in top], [x[count:] for x in top], weights)


def _padded(x: np.ndarray, width: int, value: float = 0.0) -> np.ndarray:
    """The last axis filled up to ``width``."""
    if x.shape[-1] == width:
        return x
    pad = [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])]
    return np.pad(x, pad, constant_values=value)


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
    """Log-probabilities [replicates, tokens, k] of the tokens that are among the most likely in every
    replicate, and their mean probability [tokens, k]; where a token is missing in one replicate its weight is
    0.
    """
    widest = max(
        row.top_ids.shape[-1] for row in rows
    )  # an engine may add the forced token to the most likely
    ids = np.stack([_padded(row.top_ids[SKIPPED:], widest, -1) for row in rows])
    logprobs = np.stack([_padded(row.top_logprobs[SKIPPED:], widest, np.nan) for row in rows]).astype(float)
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
