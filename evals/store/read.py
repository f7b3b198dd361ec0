"""Reading a sample store, also while another process writes to it.

What this catches: damaged parts and lines (skipped, with one line each), attempts that a later reply
replaced, samples stored twice. What it cannot catch: samples that are missing; compare with what was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evals.store import header, journal, parts
from evals.store.row import Identity, Row, is_final
from evals.store.store import Warn, to_stderr
from evals.store.table import schema, to_rows, to_table

if TYPE_CHECKING:
    import pyarrow as pa

KEYS = ["arm", "task", "replicate", "key", "failure"]


@dataclass
class _Source:
    """One part, or one journal held in memory, and which of its rows are wanted."""

    part: Path | None
    held: Any
    keys: dict[str, list[Any]]
    wanted: np.ndarray


def load(
    folder: Path,
    arm: str | None = None,
    task: str | None = None,
    *,
    columns: list[str] | None = None,
    attempts: bool = False,
    warn: Warn = to_stderr,
) -> pa.Table:
    """The samples as an Arrow table, in the order in which they came (columns: ``evals.store.table.schema``).

    One row a sample: the first final one, else the last failed attempt; ``attempts`` gives all rows. Raises
    UserError if the folder is no store.
    """
    import pyarrow as pa

    names = columns or schema().names
    tables = [_table(source, names) for source in _sources(Path(folder), arm, task, attempts, warn)]
    empty = schema().empty_table().select(names)
    return pa.concat_tables([empty, *tables])


def iterate(
    folder: Path,
    arm: str | None = None,
    task: str | None = None,
    *,
    attempts: bool = False,
    warn: Warn = to_stderr,
) -> Iterator[Row]:
    """The samples one by one, as ``load`` selects them; at most one group of rows is in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for source in _sources(Path(folder), arm, task, attempts, warn):
        if source.part is None:
            yield from to_rows(source.held.filter(pa.array(source.wanted)))
            continue
        file, start = pq.ParquetFile(source.part), 0
        for group in range(file.num_row_groups):
            wanted = source.wanted[start : start + file.metadata.row_group(group).num_rows]
            start += len(wanted)
            if wanted.any():
                yield from to_rows(file.read_row_group(group).filter(pa.array(wanted)))


def load_rows(folder: Path, arm: str | None = None, task: str | None = None, **options: Any) -> list[Row]:
    """The samples as rows (see ``iterate``)."""
    return list(iterate(folder, arm, task, **options))


def _table(source: _Source, names: list[str]) -> pa.Table:
    import pyarrow as pa

    table = source.held.select(names) if source.part is None else parts.read(source.part, names)
    return table.select(names).filter(pa.array(source.wanted))


def _sources(folder: Path, arm: str | None, task: str | None, attempts: bool, warn: Warn) -> list[_Source]:
    header.load(folder)
    sources = _listed(folder, warn)
    if not attempts:
        _keep_one(sources)
    for source in sources:
        for name, value in (("arm", arm), ("task", task)):
            if value is not None:
                source.wanted &= np.array([each == value for each in source.keys[name]], bool)
    return sources


def _listed(folder: Path, warn: Warn) -> list[_Source]:
    # A writer may turn a journal into a part meanwhile: journals are read first, parts then replace them.
    journals = {}
    for path in sorted(folder.glob("journal-*.jsonl"), key=parts.number):
        try:
            journals[parts.number(path)] = journal.read(path)
        except FileNotFoundError:
            continue
    sources = {}
    for number, lines in journals.items():
        if lines.damaged:
            warn(f"{len(lines.damaged)} damaged lines in journal {number} of {folder} skipped")
        sources[number] = _source(None, to_table(lines.rows))
    for path in parts.listed(folder):
        if parts.whole(path):
            sources[parts.number(path)] = _source(path, parts.read(path, KEYS))
        else:
            warn(f"damaged part {path} skipped; resume the run to ask its requests again")
    return [sources[number] for number in sorted(sources)]


def _source(part: Path | None, table: Any) -> _Source:
    held = table if part is None else None
    return _Source(part, held, table.select(KEYS).to_pydict(), np.ones(table.num_rows, bool))


def _keep_one(sources: list[_Source]) -> None:
    """Of each sample the first final row, else the last one."""
    chosen: dict[Identity, tuple[int, int, bool]] = {}
    for i, source in enumerate(sources):
        keys = source.keys
        rows = zip(keys["arm"], keys["replicate"], keys["key"], keys["failure"], strict=True)
        for j, (arm, replicate, key, failure) in enumerate(rows):
            before = chosen.get((arm, replicate, key))
            if before is None or not before[2]:
                chosen[arm, replicate, key] = (i, j, is_final(failure))
        source.wanted[:] = False
    for i, j, _ in chosen.values():
        sources[i].wanted[j] = True
