"""Makes the helper modules of this folder importable and lets no test leave a lock behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _no_lock_left() -> Iterator[None]:
    from evals.store import lock

    yield
    for path in list(lock._HELD):
        lock.release(path.parent)
