"""Progress of a long run in one file: tensors and facts; of a long walk its state, requests, free slots and
pages, and the result so far.

Data only (safetensors with JSON beside the tensors), written beside the old one and then put in its place, at
most once a minute. Catches: a file of another run, by the key in its name; one that is damaged, which is
refused; and one of an older kind of run, which is not taken up, and said so. Cannot hold: random numbers
(those of a window come from its number).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation import streams
from validation.errors import Unavailable, UserError
from validation.subjects.kimi_k3.requests import Request
from validation.trace import describe

if TYPE_CHECKING:
    from torch import Tensor

    from validation.step.long_run import LongRun
    from validation.step.walk import Walk

EVERY = 60.0  # seconds
SCHEMA = "lockstep.long_run/2"  # 1 had no name, and plain steps only
KEPT = ("largest", "apart", "digests", "steps", "verified", "windows", "compared", "judged", "twice")


def due(path: Path) -> bool:
    """Whether it is time to write again."""
    return not path.exists() or time.time() - path.stat().st_mtime > EVERY


def save(path: Path, walk: Walk, result: LongRun, window: int) -> None:
    """Write what a run needs to go on with ``window``."""
    pool = walk.pool
    facts = {
        "window": window,
        "number": walk.number,
        "requests": [asdict(r) | {"tokens": []} for r in walk.requests],
        "free_slots": pool.free_slots,
        "free_pages": pool.free_pages,
        "result": {name: getattr(result, name) for name in KEPT},
    }
    write(path, {f"{kind}.{layer}": t for kind, layer, t in walk.state.buffers()}, facts)


def load(path: Path, walk: Walk, result: LongRun) -> int:
    """Take up a run; the window that is next, 0 where nothing was kept, or only of an older kind."""
    return taken_up(path, lambda tensors, facts: _go_on(tensors, facts, walk, result))


def _go_on(tensors: dict[str, Tensor], facts: dict[str, Any], walk: Walk, result: LongRun) -> int:
    for kind, layer, tensor in walk.state.buffers():
        tensor.copy_(tensors[f"{kind}.{layer}"])
    names = {f.name for f in fields(Request)}
    walk.requests = [Request(**{n: v for n, v in r.items() if n in names}) for r in facts["requests"]]
    walk.number = facts["number"]
    walk.pool.free_slots, walk.pool.free_pages = facts["free_slots"], facts["free_pages"]
    for name in KEPT:
        value = facts["result"][name]
        setattr(result, name, {int(k): v for k, v in value.items()} if name == "digests" else value)
    return int(facts["window"])


def write(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Put a file in the place of the last one. Raises UserError where that cannot be."""
    held = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    beside = path.with_suffix(".writing")
    file = _safetensors()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file.save_file(held, beside, {"facts": json.dumps({"schema": SCHEMA} | facts)})
        os.replace(beside, path)
    except Exception as error:  # OSError, or the package's own
        with contextlib.suppress(OSError):
            beside.unlink()
        raise UserError(
            f"cannot keep the progress {path}: {describe(error)}; make room and run again, to go on from "
            "what was kept"
        ) from None


def taken_up(path: Path, go_on: Callable[[dict[str, Tensor], dict[str, Any]], int]) -> int:
    """What ``go_on`` makes of tensors and facts of a file; 0 where there is none, or only of an older kind.
    Raises UserError for a file that cannot be read, or that says what no run has written."""
    for one in older(path.parent):
        streams.say(f"lockstep: {one} is of an older kind of run, which starts anew; the file can be deleted")
    if not path.exists() or not _known(path):
        return 0
    file = _safetensors()
    try:
        return go_on(file.load_file(path), _facts(path))
    except Exception as error:
        raise _damaged(path, error) from None


def older(folder: Path) -> list[Path]:
    """Files of a folder that hold progress of an older kind of run: none of them can be taken up."""
    return [path for path in sorted(folder.glob("*.safetensors")) if not _known(path)]


def _known(path: Path) -> bool:
    """Whether progress is of this kind; a damaged file is for ``taken_up`` to refuse."""
    try:
        return bool(_facts(path).get("schema") == SCHEMA)
    except Exception:
        return True


def _facts(path: Path) -> dict[str, Any]:
    _safetensors()
    from safetensors import safe_open

    with safe_open(path, "pt") as opened:
        return dict(json.loads(opened.metadata()["facts"]))


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} holds no progress ({describe(error)}); delete it to start anew")


def _safetensors() -> Any:
    try:
        import safetensors.torch as file
    except ModuleNotFoundError:
        raise Unavailable("long runs keep their progress with the package safetensors; install it") from None
    return file
