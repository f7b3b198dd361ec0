"""What a resumed run must find as it was: the facts of each arm, and the tokens that are walked.

What this catches: a server, a package or a device that changed between two sessions of one run; walks that
would be chosen anew because a reply came late. What it cannot catch: a change that no fact shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.arms.config import Arm
from evals.forced.walk import Walk
from evals.lm import Asked
from evals.store import disk
from validation.errors import UserError

FACTS, WALKS = "facts.json", "walks.json"


def first_facts(folder: Path, arm: Arm, now: Mapping[str, Any], samples: bool) -> dict[str, Any]:
    """The facts under which the arm's first samples came: ``now``, unless there are ``samples`` of an earlier
    session."""
    plain = _read(folder / FACTS) or {}
    if samples and arm.name in plain:
        return dict(plain[arm.name])
    _write(folder / FACTS, {**plain, arm.name: dict(now)})
    return dict(now)


def walks_of(folder: Path, asked: Sequence[Asked], choose: Callable[[], list[Walk]]) -> list[Walk]:
    """The walks of the run: those of an earlier session, else chosen now."""
    plain = _read(folder / WALKS)
    if plain is None:
        walks = choose()
        _write(folder / WALKS, {each.request.key: list(each.tokens) for each in walks})
        return walks
    by_key = {each.request.key: each for each in asked}
    if lost := plain.keys() - by_key.keys():
        raise UserError(
            f"cannot resume {folder}: {min(lost)} was walked and is not asked any more; start a new run"
        )
    return [
        Walk(by_key[key].request, label.task, label.question, label.repeat, tuple(tokens))
        for key, tokens in plain.items()
        for label in (by_key[key].label,)
    ]


def _read(path: Path) -> dict[str, Any] | None:
    """None if there is no such file. Raises UserError if it is damaged."""
    try:
        plain = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot resume: {path} is damaged ({' '.join(str(error).split())}); start a new run"
        ) from None
    if not isinstance(plain, dict):
        raise UserError(f"cannot resume: {path} is damaged (no table); start a new run")
    return plain


def _write(path: Path, plain: Mapping[str, Any]) -> None:
    """Whole or not at all: a kill must not leave half of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(plain, default=str) + "\n", "utf-8")
    disk.publish(temporary, path)
