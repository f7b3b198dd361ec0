"""The kernels compile for sm_90 and sm_100, keep their tiles in registers, and use the tensor cores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_kernels.py")
TENSOR_CORE = {"sm_90a": "wgmma.mma", "sm_100a": "tcgen05.mma"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """All kernels for both targets, compiled where the interpreter was not chosen."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    cache = str(tmp_path_factory.mktemp("triton"))
    environment |= {
        "LOCKSTEP_DEVICE": "cuda",
        "TRITON_CACHE_DIR": cache,
        "PYTHONPATH": str(SCRIPT.parents[2]),
    }
    ran = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_every_kernel_compiles_for_both_targets(compiled):
    kernels = {"attn_res_kernel", "kda_kernel", "skinny_kernel", "split_k_kernel", "add_splits_kernel"}
    for target in TENSOR_CORE:
        assert {c["kernel"] for c in compiled if c["target"] == target} == kernels


def test_nothing_spills(compiled):
    assert {c["kernel"]: c for c in compiled if c["stack"]} == {}


def test_split_k_uses_the_tensor_cores(compiled):
    found = {(c["target"], c["instruction"]) for c in compiled if c["kernel"] == "split_k_kernel"}
    assert found == set(TENSOR_CORE.items())
