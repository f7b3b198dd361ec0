"""What a comparison is going to cost, said before it starts.

What this catches: a run of days that was meant to be one of minutes. What it cannot know: how long replies
will be; the longest that they can be is said, and for the in-process engine on this machine what earlier
runs took.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.arms.config import Comparison
from evals.running.selection import ITEMS, Selection, parts
from validation.report.words import duration

FILE = "rates.json"
HUB = {"aime25": 30, "gpqa_diamond": 198, "mrcr_2needle": 800, "mrcr_4needle": 800, "mrcr_8needle": 800}


def questions(selection: Selection, task: str) -> int:
    """Questions of one task of the arms file."""
    names = parts(task)
    if selection.data == "mirrored":
        return max(1, (selection.limit or ITEMS) // len(names)) * len(names)
    return sum(min(selection.limit or HUB[name], HUB[name]) for name in names)


def lines(comparison: Comparison, selection: Selection, cache: Path) -> list[str]:
    """A line a task, one for the walks, and the time if it is known."""
    out, most = [], 0
    for name, task in comparison.tasks.items():
        replies = questions(selection, name) * task.repeats
        most += replies * task.max_tokens
        out.append(
            f"{name}: {questions(selection, name)} questions x {task.repeats} replies an arm, "
            f"at most {task.max_tokens:,} tokens each"
        )
    if comparison.forced:
        walked = comparison.forced.tokens * comparison.forced.replicates
        out.append(
            f"forced: {comparison.forced.tokens:,} tokens x {comparison.forced.replicates} replicates an arm"
        )
        most += walked
    known = remembered(cache).get(key(comparison))
    time = (
        f"about {duration(2 * most * known)} as on earlier runs here"
        if known
        else "time is told as replies come"
    )
    return [*out, f"two arms: at most {2 * most:,} tokens; {time}"]


def key(comparison: Comparison) -> str:
    """What a rate belongs to."""
    return f"{comparison.name} {comparison.configuration_hash}"


def remembered(cache: Path) -> dict[str, float]:
    """Seconds for each token of the upper bound, by comparison."""
    try:
        plain: Any = json.loads((cache / FILE).read_text("utf-8"))
        return {str(k): float(v) for k, v in plain.items()} if isinstance(plain, Mapping) else {}
    except (OSError, ValueError, TypeError):
        return {}


def remember(cache: Path, comparison: Comparison, selection: Selection, seconds: float) -> None:
    """Keep what a whole run took, for the next estimate. A cache that cannot be written is no error."""
    most = sum(questions(selection, n) * t.repeats * t.max_tokens for n, t in comparison.tasks.items())
    most += comparison.forced.tokens * comparison.forced.replicates if comparison.forced else 0
    try:
        cache.mkdir(parents=True, exist_ok=True)
        rates = {**remembered(cache), key(comparison): seconds / max(2 * most, 1)}
        (cache / FILE).write_text(json.dumps(rates, indent=1) + "\n", "utf-8")
    except OSError:
        return
