"""Progress of a long run in one file: tensors and facts; of a long walk its state, requests, free slots and
pages, and the result so far.

Data only (safetensors with JSON beside the tensors), written beside the old one and then put in its place, at
most once a minute. Catches: a file of another run, by the key in its name, and one that is damaged, which is
refused. Cannot hold: random numbers (those of a window come from its number).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.errors import Unavailable, UserError
from validation.subjects.kimi_k3.requests import Request
from validation.trace import describe

if TYPE_CHECKING:
    from torch import Tensor

    from validation.step.long_run import LongRun
    from validation.step.walk import Walk

EVERY = 60.0  # seconds
KEPT = ("largest", "apart", "digests", "steps", "windows", "compared", "judged", "twice")


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
    """Take up a run; the window that is next, 0 where nothing was kept."""
    if not path.exists():
        return 0
    with readable(path):
        return _taken_up(*read(path), walk, result)


def _taken_up(tensors: dict[str, Tensor], facts: dict[str, Any], walk: Walk, result: LongRun) -> int:
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
        file.save_file(held, beside, {"facts": json.dumps(facts)})
        os.replace(beside, path)
    except Exception as error:  # OSError, or the package's own
        with contextlib.suppress(OSError):
            beside.unlink()
        raise UserError(
            f"cannot keep the progress {path}: {describe(error)}; make room and run again, to go on from "
            "what was kept"
        ) from None


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a file; inside ``readable``."""
    file = _safetensors()
    from safetensors import safe_open

    tensors = file.load_file(path)
    with safe_open(path, "pt") as opened:
        return tensors, json.loads(opened.metadata()["facts"])


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises UserError for a file that cannot be read, or that says what no run has written."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path} holds no progress ({describe(error)}); delete it to start anew") from None


def _safetensors() -> Any:
    try:
        import safetensors.torch as file
    except ModuleNotFoundError:
        raise Unavailable("long runs keep their progress with the package safetensors; install it") from None
    return file
