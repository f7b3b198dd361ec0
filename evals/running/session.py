"""A whole comparison: reference, candidate, judgement.

Only one engine is up at a time: the arms may need the same devices. The reference answers the tasks, runs its seeds a
second time and walks its own replies; the candidate then walks the same tokens before it answers.

What this catches: arms that cannot be compared, before the candidate's work begins. What it cannot catch: a
machine that changed between the two arms; facts are compared, load is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.arms.asked import asked_of
from evals.arms.config import Arm, Comparison, sampled_settings
from evals.arms.guard import Comparability, guard
from evals.engines.api import EngineLost
from evals.forced.walk import Walk, choose, replicate_numbers
from evals.running.evaluate import Answers, Side
from evals.running.opening import check, opened
from evals.running.progress import Progress
from evals.running.selection import Selection
from evals.store.read import load_rows
from evals.store.row import Row
from evals.store.store import Store
from validation.errors import UserError

SAMPLES = "samples"


@dataclass
class Gone:
    """What both arms left behind; index 0 is the reference."""

    answers: list[Answers] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    later: list[dict[str, Any]] = field(default_factory=list)
    walks: list[Walk] = field(default_factory=list)
    comparability: Comparability = field(default_factory=Comparability)


def carry_out(comparison: Comparison, selection: Selection, folder: Path, progress: Progress) -> Gone:
    """Both arms. Raises UserError where an engine does not start or goes away; what came is stored."""
    gone = Gone()
    for arm in comparison.arms:
        check(arm)
    for task in comparison.tasks:  # data that are missing are said before an engine starts, not after
        selection.load(comparison, task)
    settings = sampled_settings(comparison)
    with Store(folder / SAMPLES, comparison.configuration_hash, folder.name, settings) as store:
        for number, arm in enumerate(comparison.arms):
            try:
                with opened(arm, folder / f"{arm.name}.log") as engine:
                    gone.facts.append(engine.facts())
                    if number and stops(comparison, gone):
                        break
                    side = Side(comparison, selection, arm, engine, store, kept(folder), progress)
                    _one(side, number, gone, folder)
                    gone.later.append(engine.facts())
            except EngineLost as lost:
                reason = " ".join(str(lost).split())
                raise UserError(
                    f"{arm.name}: {reason}; what came is stored, go on with --resume {folder}"
                ) from None
            finally:
                progress.close()
    gone.comparability = judged(comparison, gone, folder)
    return gone


def stops(comparison: Comparison, gone: Gone) -> bool:
    """Whether the facts alone already make the comparison worthless."""
    return bool(guard(comparison, gone.facts[0], gone.facts[1]).differences)


def _one(side: Side, number: int, gone: Gone, folder: Path) -> None:
    forced, name = side.comparison.forced, side.arm.name
    replicates = replicate_numbers(number, forced.replicates) if forced else []
    if number == 0:
        gone.answers.append(side.answer())
        side.rerun(gone.answers[0].asked)
        if forced:
            rows = [
                row for row in kept(folder) if row.arm == name and row.kind == "free" and row.replicate == 0
            ]
            gone.walks = choose(gone.answers[0].requests, rows, forced.tokens, forced.length)
            side.walk(gone.walks, replicates)
    else:
        if forced:
            side.walk(gone.walks, replicates)
        gone.answers.append(side.answer())


def judged(comparison: Comparison, gone: Gone, folder: Path) -> Comparability:
    """The guard over everything that was recorded."""
    if len(gone.later) < 2:
        return guard(comparison, gone.facts[0], gone.facts[1])
    rows = kept(folder)
    asked = [asked_of(free(rows, arm)) for arm in comparison.arms]
    return guard(
        comparison, gone.facts[0], gone.facts[1], (asked[0], asked[1]), (gone.later[0], gone.later[1])
    )


def kept(folder: Path, warn: Callable[[str], None] = lambda _: None) -> list[Row]:
    """All samples of a run; an empty list before the first."""
    samples = folder / SAMPLES
    return load_rows(samples, warn=warn) if samples.exists() else []


def free(rows: list[Row], arm: Arm) -> list[Row]:
    """The arm's answers to the tasks, without second runs and walks."""
    return [row for row in rows if row.arm == arm.name and row.kind == "free" and row.replicate == 0]
