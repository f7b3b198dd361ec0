"""One writer at a time: a lock that the operating system gives back when its holder ends, however it ends.

A POSIX record lock belongs to one process, is not inherited by the servers it starts, and works over NFS; so
no lock is ever stale. It says nothing to the process that holds it, hence the table of what is held here.

What this catches: a second run into the same store. What it cannot catch: file systems without locks.
"""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path
from typing import IO

from validation.errors import UserError

_HELD: dict[Path, IO[str]] = {}


def acquire(folder: Path) -> None:
    """Take the lock of a store. Raises UserError, naming the holder, if it is taken."""
    path = (folder / "lock").resolve()
    if path in _HELD:
        raise _taken(folder, f"this process ({os.getpid()})")
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read(200).strip() or "another process"
        file.close()
        raise _taken(folder, holder) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    _HELD[path] = file


def release(folder: Path) -> None:
    """Give the lock back, if it is held here."""
    if file := _HELD.pop((folder / "lock").resolve(), None):
        file.close()


def _taken(folder: Path, holder: str) -> UserError:
    return UserError(
        f"the store {folder} is in use by {holder}; wait for it or stop it, or name another folder"
    )
