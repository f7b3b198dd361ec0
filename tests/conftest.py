"""What every test of the suite shares: one thread, fixed seeds, and a header that names them.

Nothing collected is pytest's exit status 5, which fails the session; ``test_conftest.py`` shows it.
"""

from __future__ import annotations

import os
import signal
from importlib.metadata import PackageNotFoundError, version

import pytest
import torch
from hypothesis import settings

SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", "0"))

torch.set_num_threads(1)  # one reduction order on every machine, and no fight between pytest's workers
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background, as a shell does it; what the tests start must see Ctrl-C all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("lockstep", derandomize=True, deadline=None, database=None, max_examples=50)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=500)
settings.load_profile(os.environ.get("LOCKSTEP_HYPOTHESIS", "lockstep"))


def pytest_report_header() -> list[str]:
    """Versions that numerical results depend on, and the seeds."""
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "triton", "numpy", "scipy"))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU, so nothing is run on one"
    examples = "random examples" if os.environ.get("LOCKSTEP_HYPOTHESIS") == "explore" else "fixed examples"
    return [
        f"lockstep: {packages}; {torch.get_num_threads()} thread; {gpu}",
        f"seed: {SEED} before every test (LOCKSTEP_TEST_SEED); hypothesis: {examples} (LOCKSTEP_HYPOTHESIS)",
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked ``device`` where there is no GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("device"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random numbers whichever tests ran before."""
    torch.manual_seed(SEED)
