"""The few operations on files that the store's promise rests on, each whole or without effect.

What this catches: a write cut short by a full disk (taken back), a file that appears under its name before
its contents are on the disk. What it cannot catch: a disk that reports data as written and loses it.
"""

from __future__ import annotations

import os
from pathlib import Path


def append(file: int, data: bytes) -> None:
    """Write ``data`` at the end of an open file. On an error what was written of it is removed again."""
    start = os.lseek(file, 0, os.SEEK_END)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
    except BaseException:  # Ctrl-C too: a line half written would spoil the next one
        os.ftruncate(file, start)
        raise


def sync(file: int) -> None:
    """What was written is on the disk when this returns."""
    os.fsync(file)


def publish(temporary: Path, path: Path) -> None:
    """Give a finished temporary file its name, contents first."""
    file = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(temporary, path)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Delete a file that is no longer needed; it may be gone already."""
    path.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename a damaged file to NAME.damaged (.damaged.2 and so on, if taken) and return the new name."""
    target, number = path.with_name(path.name + ".damaged"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged.{number}")
    os.replace(path, target)
    return target


def sync_folder(folder: Path) -> None:
    """Names created, changed and removed in the folder are on the disk when this returns."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
