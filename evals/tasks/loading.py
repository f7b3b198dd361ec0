"""Tasks for ``lm_eval.simple_evaluate`` with another number of repeats, other data or another length limit.

    simple_evaluate(model=lm, tasks=load_tasks(["aime25"], k=4, data="mirrored"), apply_chat_template=True,
    ...)

What this catches: a number of repeats that reaches the generation but not the filter, so that replies are
thrown away. What it cannot catch: limits changed by lm-eval's own ``--gen_kwargs``; the samples record them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from validation.errors import UserError

HERE = Path(__file__).parent
NAMES = ("aime25", "gpqa_diamond", "mrcr_2needle", "mrcr_4needle", "mrcr_8needle")


def load_tasks(
    names: Sequence[str],
    k: int | None = None,
    data: str | None = None,
    items: int | None = None,
    seed: int | None = None,
    max_tokens: int | None = None,
) -> list[Any]:
    """Task objects for ``tasks=``, one for each of ``names`` (``NAMES``; with "mirrored_" before it, the
    offline set).

    ``k``: replies to each question; ``data``: "hub", "mirrored" or a directory; ``items`` and ``seed``: size
    and seed of a mirrored set; ``max_tokens``: limit of a reply. None keeps what the YAML file says;
    data="mirrored" makes "aime25" mean "mirrored_aime25". Raises UserError for unknown names, k < 1 and every
    fault of the data.
    """
    from lm_eval.tasks import TaskManager

    for label, value in (("K", k), ("the number of items", items), ("max_tokens", max_tokens)):
        if value is not None and value < 1:
            raise UserError(f"{label} must be at least 1, not {value}")
    given = {"data": data, "items": items, "seed": seed}
    meta = {key: value for key, value in given.items() if value is not None}
    manager = TaskManager(include_path=str(HERE), include_defaults=False, metadata=meta)
    return [_load(manager, _full_name(name, data), k, max_tokens) for name in names]


def _full_name(name: str, data: str | None) -> str:
    bare = name.removeprefix("mirrored_")
    if bare not in NAMES:
        raise UserError(f"no task is called {name!r}; there are {', '.join(NAMES)}")
    if data is None:
        return name
    return f"mirrored_{bare}" if data == "mirrored" else bare


def _load(manager: Any, name: str, k: int | None, max_tokens: int | None) -> Any:
    task = manager.load([name])["tasks"][name]
    if k is not None:
        task.set_repeats(k)
    if max_tokens is not None:
        task.config.generation_kwargs["max_gen_toks"] = max_tokens
    return task
