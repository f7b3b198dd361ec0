"""The writer of a sample store: add responses, know which are finished, survive a kill at any moment.

A response goes into the open journal before ``add`` returns; from then on a kill of this process does not
lose it (a loss of power loses at most ``sync_seconds``). A journal that is long enough is closed: written as
a part, then deleted. Opening a store finishes what an earlier process left.

What this catches: see ``evals.store``. What it cannot catch: a response that came after the kill; it is asked
again.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from evals.engines.api import Request
from evals.store import disk, header, journal, lock, parts
from evals.store.row import Row, is_final
from validation.errors import UserError

Warn = Callable[[str], None]


def to_stderr(text: str) -> None:
    """Where warnings go if the caller names nothing else."""
    print(text, file=sys.stderr)


class Store:
    """An open sample store; use it in a ``with`` statement or close it.

    ``seal_rows``, ``seal_bytes``: size at which a journal becomes a part. ``sync_seconds``: how much a loss
    of power may cost. Raises UserError if the store is in use, of another configuration, or cannot be
    written.
    """

    def __init__(
        self,
        folder: Path,
        configuration: str,
        run: str = "",
        settings: Mapping[str, Any] | None = None,
        *,
        seal_rows: int = 256,
        seal_bytes: int = 64 << 20,
        sync_seconds: float = 1.0,
        warn: Warn = to_stderr,
    ) -> None:
        self.folder, self.warn = Path(folder), warn
        self.seal_rows, self.seal_bytes, self.sync_seconds = seal_rows, seal_bytes, sync_seconds
        self._finished: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._file: int | None = None
        self._rows = self._bytes = 0
        self._synced = time.monotonic()
        self._guarded("create", lambda: self.folder.mkdir(parents=True, exist_ok=True))
        lock.acquire(self.folder)
        try:
            self.header = header.agree(self.folder, run, configuration, settings or {})
            self._guarded("read", self._recover)
        except BaseException:
            lock.release(self.folder)
            raise

    def finished(self, arm: str, replicate: int = 0) -> frozenset[str]:
        """Keys that need not be asked again: replies, and failures that would come back."""
        return frozenset(self._finished[arm, replicate])

    def remaining(self, arm: str, requests: Iterable[Request], replicate: int = 0) -> list[Request]:
        """The requests that are still to be asked, in order."""
        done = self._finished[arm, replicate]
        return [request for request in requests if request.key not in done]

    def add(self, row: Row) -> bool:
        """Keep one response.

        False if its request is finished already: the first one stands, this is dropped.
        """
        if row.key in self._finished[row.arm, row.replicate]:
            return False
        self._guarded("write", lambda: self._append(journal.line(row)))
        if row.final:
            self._finished[row.arm, row.replicate].add(row.key)
        if self._rows >= self.seal_rows or self._bytes >= self.seal_bytes:
            self.seal()
        return True

    def seal(self) -> None:
        """Turn the open journal into a part."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self._guarded("write", lambda: self._seal(self._journal))

    def close(self) -> None:
        """Seal and let another process write."""
        try:
            self.seal()
        finally:
            lock.release(self.folder)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._journal = self.folder / f"journal-{self._next():06d}.jsonl"
            self._file = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            self._rows = self._bytes = 0
        disk.append(self._file, data)
        self._rows, self._bytes = self._rows + 1, self._bytes + len(data)
        if time.monotonic() - self._synced >= self.sync_seconds:
            disk.sync(self._file)
            self._synced = time.monotonic()

    def _next(self) -> int:
        """A number that no file of the store has, damaged ones included."""
        used = [parts.number(path) for name in ("part-*", "journal-*") for path in self.folder.glob(name)]
        return max(used, default=0) + 1

    def _recover(self) -> None:
        """Finish what an earlier process left, set aside what is damaged, and read what is finished."""
        for path in self.folder.glob("*.tmp"):
            disk.remove(path)
        present = set()
        for path in parts.listed(self.folder):
            if parts.whole(path):
                present.add(parts.number(path))
                self._note(path)
            else:
                aside = disk.set_aside(path)
                self.warn(f"damaged part set aside as {aside}; its requests are asked again")
        for path in sorted(self.folder.glob("journal-*.jsonl"), key=parts.number):
            if parts.number(path) in present:
                disk.remove(path)  # its part was complete before the kill
            else:
                self._note(self._seal(path))

    def _seal(self, path: Path) -> Path | None:
        lines = journal.read(path)
        if lines.damaged:
            damaged = path.with_name(path.name + ".damaged")
            damaged.write_bytes(b"\n".join(lines.damaged) + b"\n")
            self.warn(f"{len(lines.damaged)} damaged lines of {path} set aside as {damaged.name}; "
                      "their requests are asked again")  # fmt: skip
        part = parts.write(self.folder, parts.number(path), lines.rows) if lines.rows else None
        disk.remove(path)
        return part

    def _note(self, part: Path | None) -> None:
        if part is None:
            return
        table = parts.read(part, ["arm", "replicate", "key", "failure"]).to_pydict()
        for arm, replicate, key, failure in zip(*table.values(), strict=True):
            if is_final(failure):
                self._finished[arm, replicate].add(key)

    def _guarded(self, what: str, work: Callable[[], Any]) -> None:
        try:
            work()
        except OSError as error:
            reason = error.strerror or " ".join(str(error).split())
            raise UserError(
                f"cannot {what} the store {self.folder}: {reason}; what was stored is kept, "
                "mend that and run again with --resume"
            ) from None
