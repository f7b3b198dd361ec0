"""Progress of a long run in one file: state, requests, free slots and pages, and the result so far.

Data only (safetensors with JSON beside the tensors), written beside the old one and then put in its place, at
most once a minute. Catches: a file of another run, by the key in its name; one that is damaged, which is
refused; and one of an older kind of run, which is not taken up, and said so. Cannot hold: random numbers
(those of a window come from its number).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation import streams
from validation.errors import Unavailable, UserError
from validation.subjects.kimi_k3.requests import Request

if TYPE_CHECKING:
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
        "schema": SCHEMA,
        "window": window,
        "number": walk.number,
        "requests": [asdict(r) | {"tokens": []} for r in walk.requests],
        "free_slots": pool.free_slots,
        "free_pages": pool.free_pages,
        "result": {name: getattr(result, name) for name in KEPT},
    }
    tensors = {f"{kind}.{layer}": t.contiguous().cpu() for kind, layer, t in walk.state.buffers()}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".writing")
    _safetensors().save_file(tensors, beside, {"facts": json.dumps(facts)})
    os.replace(beside, path)


def older(folder: Path) -> list[Path]:
    """Files of a folder that hold progress of an older kind of run: none of them can be taken up."""
    return [path for path in sorted(folder.glob("*.safetensors")) if not _known(path)]


def _known(path: Path) -> bool:
    """Whether progress is of this kind; a damaged file is for ``load`` to refuse."""
    try:
        return bool(_facts(path).get("schema") == SCHEMA)
    except UserError:
        return True


def _facts(path: Path) -> dict[str, Any]:
    _safetensors()
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as opened:
            return dict(json.loads(opened.metadata()["facts"]))
    except Exception as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    words = " ".join(str(error).split())
    return UserError(f"{path} holds no progress ({words}); delete it to start anew")


def load(path: Path, walk: Walk, result: LongRun) -> int:
    """Take up a run; the window that is next, 0 where nothing was kept, or only of an older kind."""
    for one in older(path.parent):
        streams.say(f"lockstep: {one} is of an older kind of run, which starts anew; the file can be deleted")
    if not path.exists() or not _known(path):
        return 0
    facts = _facts(path)
    try:
        tensors: dict[str, Any] = _safetensors().load_file(path)
    except Exception as error:
        raise _damaged(path, error) from None
    for kind, layer, tensor in walk.state.buffers():
        tensor.copy_(tensors[f"{kind}.{layer}"])
    names = {f.name for f in fields(Request)}
    walk.requests = [Request(**{n: v for n, v in r.items() if n in names}) for r in facts["requests"]]
    walk.number = facts["number"]
    walk.pool.free_slots, walk.pool.free_pages = facts["free_slots"], facts["free_pages"]
    for name, value in facts["result"].items():
        setattr(result, name, {int(k): v for k, v in value.items()} if name == "digests" else value)
    return int(facts["window"])


def _safetensors() -> Any:
    try:
        import safetensors.torch as file
    except ModuleNotFoundError:
        raise Unavailable("long runs keep their progress with the package safetensors; install it") from None
    return file
