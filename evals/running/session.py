"""A whole comparison: reference, candidate, judgement.

Only one engine is up at a time: the arms may need the same devices. The reference answers the tasks, runs
its seeds a second time and walks its own replies; the candidate then walks the same tokens before it answers.

What this catches: arms that cannot be compared, before the candidate's work begins. What it cannot catch: a
machine that changed between the two arms; facts are compared, load is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.arms.asked import asked_of
from evals.arms.config import Arm, Comparison, sampled_settings
from evals.arms.guard import Comparability, changed, guard
from evals.engines.api import EngineLost
from evals.forced.walk import PROMPTS, Walk, choose, replicate_numbers
from evals.running.evaluate import Answers, Side
from evals.running.opening import check, opened
from evals.running.progress import Progress
from evals.running.recall import first_facts, walks_of
from evals.running.selection import Selection
from evals.store.read import load_rows
from evals.store.row import Row
from evals.store.store import Store
from validation.errors import UserError

SAMPLES = "samples"


@dataclass
class Gone:
    """What both arms left behind; index 0 is the reference. Facts: when the arm's first sample came (in an
    earlier process, if the run was resumed), at the start and at the end of this one."""

    answers: list[Answers] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    first: list[dict[str, Any]] = field(default_factory=list)
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
                    check_forcing(comparison, gone.facts[-1])
                    rows = kept(folder)
                    earlier = any(row.arm == arm.name for row in rows)
                    gone.first.append(first_facts(folder, arm, gone.facts[-1], earlier))
                    if number and stops(comparison, gone):
                        break
                    side = Side(comparison, selection, arm, engine, store, rows, progress)
                    _one(side, number, gone, folder)
                    gone.later.append(engine.facts())
            except (EngineLost, UserError) as error:
                raise told(arm, error, folder) from None
            finally:
                progress.close()
    gone.comparability = judged(comparison, gone, folder)
    return gone


def check_forcing(comparison: Comparison, facts: Mapping[str, Any]) -> None:
    """Raises UserError if walks are wanted of a server that does not force tokens: now, not after its
    answers."""
    from evals.engines.openai import INSTALL

    if comparison.forced and facts.get("forcing") == "absent":
        raise UserError(
            f"the server does not force tokens; {INSTALL}, or leave out the walks: --forced-tokens 0"
        )


def told(arm: Arm, error: Exception, folder: Path) -> UserError:
    """One line: which arm, what happened, and how to go on if there is something to go on from."""
    reason = " ".join(str(error).split())
    if "--resume" in reason:
        return UserError(reason)
    where = "" if arm.name in reason.split(":")[0] else f"{arm.name}: "
    stored = isinstance(error, EngineLost) or kept(folder)
    return UserError(
        f"{where}{reason}" + (f"; what came is stored, go on with --resume {folder}" if stored else "")
    )


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
            asked = gone.answers[0].asked
            if forced.source == "prompts":
                asked = side.prompted(forced.tokens, forced.length)
            rows = [
                row for row in kept(folder) if row.arm == name and row.kind == "free" and row.replicate == 0
            ]
            requests = [each.request for each in asked]
            gone.walks = walks_of(folder, asked, lambda: choose(requests, rows, forced.tokens, forced.length))
            side.walk(gone.walks, replicates)
    else:
        if forced:
            side.walk(gone.walks, replicates)
        gone.answers.append(side.answer())


def judged(comparison: Comparison, gone: Gone, folder: Path) -> Comparability:
    """The guard over everything that was recorded."""
    asked = later = None
    if len(gone.later) == 2:
        rows = kept(folder)
        each = [asked_of(free(rows, arm)) for arm in comparison.arms]
        asked, later = (each[0], each[1]), (gone.later[0], gone.later[1])
    found = guard(comparison, gone.facts[0], gone.facts[1], asked, later)
    for arm, first, now in zip(comparison.arms, gone.first, gone.facts, strict=False):
        found.differences += changed(arm.name, first, now)
    return found


def kept(folder: Path, warn: Callable[[str], None] = lambda _: None) -> list[Row]:
    """All samples of a run; an empty list before the first."""
    samples = folder / SAMPLES
    return load_rows(samples, warn=warn) if samples.exists() else []


def free(rows: list[Row], arm: Arm) -> list[Row]:
    """The arm's answers to the tasks, without second runs and walks."""
    mine = [row for row in rows if row.arm == arm.name and row.kind == "free" and row.replicate == 0]
    return [row for row in mine if row.task != PROMPTS]
