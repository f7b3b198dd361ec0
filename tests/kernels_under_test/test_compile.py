"""The kernels compile for Hopper as they are launched, keep their tiles in registers, and use the
tensor cores; no launcher reads data on the host."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels_under_test import triton_portable
from kernels_under_test.triton_portable.experts_dot import LAYOUT

SCRIPT = Path(__file__).with_name("compile_kernels.py")
# Kernels whose products are on tensor cores where the rows are many.
PRODUCTS = {
    "split_k_kernel",
    "partial_dot_kernel",
    "front_split_kernel",
    "gate_up_split_kernel",
    "up_split_kernel",
}
# Launched for more rows than a decode step has; and what prefetch launches, whose table is made on the host.
NOT_LISTED = {"embedding_rows_kernel", "l2_prefetch_kernel", "consumer_kernel"}
SHARED_MEMORY = 227 << 10  # bytes of one program on Hopper and Blackwell


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """All kernels, compiled where the interpreter was not chosen."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    cache = str(tmp_path_factory.mktemp("triton"))
    environment |= {
        "LOCKSTEP_DEVICE": "cuda",
        "TRITON_CACHE_DIR": cache,
        "PYTHONPATH": str(SCRIPT.parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    ran = subprocess.run([sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


MOST_STACK = {"mla_split_kernel": 256, "mla_counted_kernel": 96}  # bytes a thread


@pytest.mark.stress
def test_every_kernel_that_the_tables_name_compiles(compiled):
    tables = [declared["table"] for declared in triton_portable.operations().values()]
    named = {kernel for table in tables for route in table for kernel in route.kernels}
    assert named - {c["kernel"] for c in compiled} <= NOT_LISTED


@pytest.mark.stress
def test_nothing_spills(compiled):
    """But constants of the attention's loop, whose registers are full of keys: with smaller tiles, which do
    not spill, it takes half as long again."""
    spilled = {c["kernel"]: c["stack"] for c in compiled if c["stack"] > MOST_STACK.get(c["kernel"], 0)}
    assert spilled == {}


@pytest.mark.stress
def test_operands_of_assembled_products_lie_where_it_takes_them_from(compiled):
    found = [c for c in compiled if c["assembled"]]
    assert {c["kernel"] for c in found} == {"up_kernel", "down_kernel"}
    for c in found:
        assert c["assembled"] == [LAYOUT.format(warps=c["num_warps"])]


@pytest.mark.stress
def test_shared_memory_fits(compiled):
    assert {c["kernel"]: c for c in compiled if c["shared"] > SHARED_MEMORY} == {}


@pytest.mark.stress
def test_products_of_many_rows_use_the_tensor_cores(compiled):
    found = {c["kernel"] for c in compiled if c["instruction"] == "wgmma.mma"}
    assert found >= PRODUCTS
