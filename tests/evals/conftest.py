"""What the tests of evaluations share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder for the in-process engine."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny-model"))
