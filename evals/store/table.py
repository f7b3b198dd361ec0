"""Rows as an Arrow table and back.

What this catches: a table that lacks a column (KeyError). What it cannot catch: wrong values.

Matrices [T, k] are stored as one flat list and their width, ``top``: reading 1e5 x 20 values then costs
milliseconds, as nested lists it costs seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from evals.store.row import Row

if TYPE_CHECKING:
    import pyarrow as pa

TEXT = (
    *("run", "arm", "task", "question", "question_hash", "key", "kind", "sampling", "prompt_hash"),
    *("finish", "failure", "message", "text"),
)
INTEGERS = ("repeat", "replicate", "seed", "prompt_tokens", "completion_tokens", "attempts")
SECONDS = ("first_token", "total", "time")
LISTS = {
    "token_ids": np.int32,
    "logprobs": np.float64,
    "top_ids": np.int32,
    "top_logprobs": np.float64,
    "accepted": np.int32,
}
MATRICES = ("top_ids", "top_logprobs")
FLOATS = ("logprobs.list.element", "top_logprobs.list.element")


def schema() -> pa.Schema:
    """Columns of the store, in order."""
    import pyarrow as pa

    lists = {name: pa.list_(pa.from_numpy_dtype(kind)) for name, kind in LISTS.items()}
    return pa.schema(
        [
            *((name, pa.string()) for name in TEXT),
            *((name, pa.int64()) for name in (*INTEGERS, "top")),
            *((name, pa.float64()) for name in SECONDS),
            *lists.items(),
        ]
    )


def to_table(rows: Sequence[Row]) -> pa.Table:
    """A table of these rows."""
    import pyarrow as pa

    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows] for name in (*TEXT, *INTEGERS, *SECONDS)
    }
    columns["top"] = [row.top_ids.shape[1] for row in rows]
    for name, kind in LISTS.items():
        arrays = [np.asarray(getattr(row, name), kind).ravel() for row in rows]
        offsets = np.cumsum([0, *(len(array) for array in arrays)]).astype(np.int32)
        values = np.concatenate([np.zeros(0, kind), *arrays])
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, from_pandas=False))
    return pa.table(columns, schema=schema())


def to_rows(table: pa.Table) -> Iterator[Row]:
    """The rows of a table, one by one."""
    for batch in table.combine_chunks().to_batches():
        plain = {name: batch.column(name).to_pylist() for name in (*TEXT, *INTEGERS, *SECONDS, "top")}
        lists = {name: _slices(batch.column(name)) for name in LISTS}
        for i in range(batch.num_rows):
            values: dict[str, Any] = {name: plain[name][i] for name in (*TEXT, *INTEGERS, *SECONDS)}
            values |= {name: slices[i] for name, slices in lists.items()}
            if width := plain["top"][i]:
                values |= {name: values[name].reshape(-1, width) for name in MATRICES}
            else:
                values |= {name: values[name].reshape(0, 0) for name in MATRICES}
            yield Row(**values)


def _slices(column: Any) -> list[np.ndarray]:
    """Each list of a column as an array.

    ``values`` starts at the column's buffer, so offsets apply as they are.
    """
    offsets, values = column.offsets.to_numpy(), column.values.to_numpy(zero_copy_only=False)
    return [values[a:b] for a, b in pairwise(offsets)]
