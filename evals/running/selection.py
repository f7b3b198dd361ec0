"""What a run asks: which tasks, how many questions and repeats, from which data. Kept beside the samples.

What this catches: a resumed run with another selection, unknown tasks, numbers below 1. What it cannot
catch: data that changed between two runs; it is pinned by hash.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evals.arms.config import Comparison, with_repeats, with_tasks
from evals.arms.read import read_arms
from evals.tasks.loading import NAMES, load_tasks
from validation.errors import UserError

FILE = "selection.json"
OFFLINE = "offline"
ITEMS = 30  # questions of a mirrored set, unless --limit says otherwise


@dataclass(frozen=True)
class Selection:
    """``arms``: file or name; ``tasks``: of the arms file, all if empty; ``limit``: questions of each task;
    ``k``: replies to each (None: as the arms file says); ``data``: "mirrored", "hub" or a folder;
    ``forced``: tokens to walk (None: as the arms file says, 0: none)."""

    arms: str = OFFLINE
    tasks: tuple[str, ...] = ()
    limit: int | None = None
    k: int | None = None
    data: str = "mirrored"
    forced: int | None = None

    def comparison(self) -> Comparison:
        """The arms file with what was selected. Raises UserError."""
        comparison = read_arms(self.arms)
        for name, value in (("--k", self.k), ("--limit", self.limit)):
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if self.tasks:
            if unknown := [name for name in self.tasks if name not in comparison.tasks]:
                known = ", ".join(comparison.tasks)
                raise UserError(f"--tasks: {self.arms} has no task '{unknown[0]}'; it has {known}")
            comparison = with_tasks(comparison, tuple(dict.fromkeys(self.tasks)))
        if self.k is not None:
            comparison = with_repeats(comparison, self.k)
        if comparison.forced and comparison.forced.replicates < 2:
            raise UserError(
                f"{self.arms}: forced: replicates must be at least 2; noise is seen between replicates"
            )
        if self.forced is not None and comparison.forced:
            if self.forced < 0:
                raise UserError(f"--forced-tokens must not be negative, is {self.forced}")
            forced = replace(comparison.forced, tokens=self.forced) if self.forced else None
            comparison = replace(comparison, forced=forced)
        return comparison

    def load(self, comparison: Comparison, task: str) -> list[Any]:
        """lm-eval's task objects of one task of the arms file ("mrcr" stands for its three needle counts)."""
        settings = comparison.tasks[task]
        names = parts(task)
        if self.data != "mirrored":
            return load_tasks(names, settings.repeats, self.data, None, None, settings.max_tokens)
        items = max(1, (self.limit or ITEMS) // len(names))
        return load_tasks(names, settings.repeats, self.data, items, comparison.seed, settings.max_tokens)

    @property
    def limit_of_data(self) -> int | None:
        """lm-eval's limit; a mirrored set is made in the right size instead."""
        return None if self.data == "mirrored" else self.limit


def parts(task: str) -> list[str]:
    """Names of the lm-eval tasks behind one name of an arms file."""
    found = [name for name in NAMES if name == task or name.startswith(f"{task}_")]
    if not found:
        raise UserError(f"no task is called '{task}'; there are {', '.join((*NAMES, 'mrcr'))}")
    return found


def save(selection: Selection, folder: Path) -> None:
    (folder / FILE).write_text(json.dumps(asdict(selection), indent=1) + "\n", "utf-8")


def load(folder: Path) -> Selection:
    """The selection of an earlier run. Raises UserError if the folder holds none."""
    try:
        plain = json.loads((folder / FILE).read_text("utf-8"))
        return Selection(**{**plain, "tasks": tuple(plain["tasks"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"cannot resume {folder}: {what}; name the report folder of a run of evals") from None
