"""Where questions come from: the hub at a pinned revision, local files checked by SHA-256, or a set made
here.

``documents(task, data)`` with ``data``: "hub" (default), "mirrored" (made here, offline), or a directory. A
directory holds the original files, at their path in the data set or by their bare name; or JSONL with the
same columns. Bytes are checked against the pins, and for other files against ``manifest.json`` in the
directory: {"files": {"NAME": "SHA-256"}}. What is not listed is not read.

What this catches: missing, gated, changed, incomplete or empty data, other columns. What it cannot catch: a
manifest written for wrong data.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evals.data import mirrored, rows
from evals.data.pins import PINS, Pinned
from validation.errors import UserError

MAKE: dict[str, Callable[[Mapping[str, Any]], rows.Document]] = {
    "aime25": rows.aime,
    "gpqa_diamond": rows.gpqa,
    **{f"mrcr_{n}needle": rows.mrcr for n in (2, 4, 8)},
}


def documents(task: str, data: str = "hub", items: int = 0, seed: int = 0) -> tuple[list[rows.Document], int]:
    """Documents of ``task`` and how many rows were dropped because they lie outside of all length bins.

    ``items`` and ``seed`` are for "mirrored" sets only. Every fault of the data is a UserError that names the
    remedy.
    """
    if task not in PINS:
        raise UserError(f"no data set is known for task {task!r}; there are {', '.join(PINS)}")
    if data == "mirrored":
        made = [MAKE[task](row) for row in mirrored.raw(task, items, seed)]
        return rows.distinct(made, task), 0
    raw = _from_hub(PINS[task]) if data == "hub" else _from_directory(task, Path(data))
    made = [MAKE[task](row) for row in _checked(raw, task)]
    kept = [document for document in made if document.get("bin", 0) >= 0]
    if not kept:
        raise UserError(
            f"{task}: no row is left in {data!r}; give the original files of {PINS[task].repository}"
        )
    return rows.distinct(kept, task), len(made) - len(kept)


def _checked(raw: Iterator[Mapping[str, Any]], task: str) -> Iterator[Mapping[str, Any]]:
    for number, row in enumerate(raw, 1):
        missing = [name for name in PINS[task].columns if row.get(name) in (None, "")]
        if missing:
            raise UserError(
                f"{task}: row {number} has no {', '.join(missing)}; it needs {', '.join(PINS[task].columns)}"
            )
        yield row


def _from_directory(task: str, directory: Path) -> Iterator[Mapping[str, Any]]:
    if not directory.is_dir():
        raise UserError(f"data directory {directory} does not exist; give 'hub', 'mirrored' or a directory")
    for path, expected in _listed(task, directory):
        _verify(path, expected)
        yield from read(path)


def _listed(task: str, directory: Path) -> list[tuple[Path, str]]:
    """Files of ``task`` in ``directory`` with the SHA-256 they must have: pinned originals, else the
    manifest's."""
    pin = PINS[task]
    found = []
    for name, expected in pin.files.items():
        path = next((p for p in (directory / name, directory / Path(name).name) if p.is_file()), None)
        if path is not None:
            found.append((path, expected))
    if found and len(found) < len(pin.files):
        raise UserError(
            f"{task}: {len(found)} of {len(pin.files)} files in {directory}; needed: {', '.join(pin.files)}"
        )
    if manifest := _manifest(directory):
        own = [
            (directory / name, sha)
            for name, sha in sorted(manifest.items())
            if Path(name).name.startswith(task)
        ]
        found = own or found
    if not found:
        needed = ", ".join(pin.files)
        raise UserError(
            f"{task}: {directory} holds neither {needed} nor a manifest.json that lists {task}*.jsonl"
        )
    return found


def _manifest(directory: Path) -> dict[str, str]:
    path = directory / "manifest.json"
    if not path.is_file():
        return {}
    try:
        files = json.loads(path.read_text("utf-8"))["files"]
        if not all(isinstance(sha, str) and len(sha) == 64 for sha in files.values()):
            raise ValueError("a value is no SHA-256")
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise ValueError("a name leaves the directory")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f'{path}: must be {{"files": {{"NAME": "SHA-256"}}}} ({error})') from error
    return dict(files)


def _verify(path: Path, expected: str) -> None:
    if not path.is_file():
        raise UserError(f"{path} is listed but missing; add it or take it out of manifest.json")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected.lower():
        raise UserError(
            f"{path} has SHA-256 {actual}, expected {expected}: download the pinned revision again, or, if "
            "other data is meant, name it TASK-....jsonl and list it in manifest.json"
        )


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """Rows of a JSONL, CSV or Parquet file."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=8):
                yield from batch.to_pylist()
        elif path.suffix == ".csv":
            csv.field_size_limit(1 << 24)
            with path.open(newline="", encoding="utf-8-sig") as file:
                yield from csv.DictReader(file)
        elif path.suffix == ".jsonl":
            with path.open(encoding="utf-8") as file:
                for line in filter(str.strip, file):
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("a line is no JSON object")
                    yield row
        else:
            raise UserError(f"{path}: only .jsonl, .csv and .parquet are read")
    except (ValueError, OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from error


def _from_hub(pin: Pinned) -> Iterator[Mapping[str, Any]]:
    for name, expected in pin.files.items():
        path = _download(pin, name)
        _verify(path, expected)
        yield from read(path)


def _download(pin: Pinned, name: str) -> Path:
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        raise UserError("the hub needs 'huggingface_hub': install it, or give --data DIR") from error
    where = f"{pin.repository} at {pin.revision[:8]}"
    try:
        return Path(hf_hub_download(pin.repository, name, repo_type="dataset", revision=pin.revision))
    except errors.GatedRepoError as error:
        raise UserError(
            f"{where} is gated: accept its terms at https://huggingface.co/datasets/{pin.repository}, "
            "then set HF_TOKEN (or run 'hf auth login'); or give --data DIR with the file"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _unreachable(where, name) from error
        hint = (
            " (it is gated: accept its terms and set HF_TOKEN)"
            if pin.gated and "HF_TOKEN" not in os.environ
            else ""
        )
        raise UserError(f"the hub has no {name} in {where}{hint}; give --data DIR with the file") from error
    except Exception as error:  # transport errors come in many classes, all with the same remedy
        raise _unreachable(where, name) from error


def _unreachable(where: str, name: str) -> UserError:
    return UserError(
        f"cannot reach the hub for {name} of {where}; give --data DIR with the file, or --data mirrored"
    )
