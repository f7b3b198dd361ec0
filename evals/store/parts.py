"""Parts: closed journals as Parquet files, whose name carries the SHA-256 of their bytes.

What this catches: any byte changed or missing in a part, a part that was never finished (it has no name yet).
What it cannot catch: a part deleted as a whole; its requests are asked again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evals.store import disk
from evals.store.row import Row
from evals.store.table import FLOATS, to_table

if TYPE_CHECKING:
    import pyarrow as pa

NAME = re.compile(r"part-(\d{6,})-([0-9a-f]{16})\.parquet")
GROUP = 64  # rows that are read together: at 1e5 tokens and 20 most likely ones about 1.5 GB


def number(path: Path) -> int:
    """The number of a part or a journal, from its name."""
    return int(re.split(r"[-.]", path.name)[1])


def listed(folder: Path) -> list[Path]:
    """The parts of a store, in order."""
    return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name)), key=number)


def write(folder: Path, index: int, rows: Sequence[Row]) -> Path:
    """Write one part under a temporary name, bring it to the disk, then give it its name."""
    import pyarrow.parquet as pq

    temporary = folder / f"part-{index:06d}.tmp"
    try:
        pq.write_table(
            to_table(rows),
            temporary,
            compression="zstd",
            row_group_size=GROUP,
            use_dictionary=False,
            # Float64 values that are float32 in truth compress to half this way.
            column_encoding=dict.fromkeys(FLOATS, "BYTE_STREAM_SPLIT"),
        )
        path = folder / f"part-{index:06d}-{digest(temporary)}.parquet"
        disk.publish(temporary, path)
    except OSError:  # on a full disk the attempt must not hold the space
        disk.remove(temporary)
        raise
    return path


def digest(path: Path) -> str:
    """Sixteen hex digits of the file's SHA-256."""
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()[:16]


def whole(path: Path) -> bool:
    """Whether the file is byte for byte what was written."""
    match = NAME.fullmatch(path.name)
    return match is not None and digest(path) == match[2]


def read(path: Path, columns: list[str] | None = None) -> pa.Table:
    """One part as a table (only these columns, if given)."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(path).read(columns=columns)
