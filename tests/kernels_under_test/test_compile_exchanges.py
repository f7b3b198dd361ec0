"""The exchange kernels compile for Hopper without spills, poll by volatile loads, and fence before they
publish again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_exchanges.py")


@pytest.mark.stress
def test_exchange_kernels_compile_and_poll_what_no_compiler_may_keep(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "LOCKSTEP_DEVICE": "cuda",
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    ran = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(found) == 18
    assert not [one for one in found if one["stack"]]
    assert not [one for one in found if one["copied"]]
    assert all(one["volatile"] for one in found)
    assert all(one["fences"] for one in found if one["kernel"] == "acts_kernel")
    assert not [one for one in found if one["unordered"] and one["kernel"] == "acts_kernel"]
    wide = [one for one in found if one["kernel"] == "one_shot_kernel"]
    assert all(one["volatile"] == ["ld.volatile.global.v4.b32"] for one in wide)
