"""The planted faults are in the assembly: Triton puts no barrier where one must be missing."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from validation.sanitize.tools import TOOLS

ROOT = Path(__file__).parents[2]
COMPILE = """
import json
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels_under_test.planted import KERNELS
types = {"x": "*i32", "out": "*i32", "BLOCK": "constexpr"}
hopper = {"target": GPUTarget("cuda", 90, 32), "options": {"num_warps": 4}}
def ptx(kernel):
    return compile(ASTSource(kernel, types, constexprs={"BLOCK": 128}), **hopper).asm["ptx"]
print(json.dumps({name: ptx(kernel) for name, kernel in KERNELS.items()}))
"""


@pytest.fixture(scope="module")
def assembly(tmp_path_factory):
    """PTX of every planted kernel for Hopper, by its name."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env = kept | {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    ran = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return {
        name: re.findall(r"\b(?:bar|st|ld|bra)\.?[\w.:]*", text)
        for name, text in json.loads(ran.stdout).items()
    }


def test_every_tool_has_its_fault(assembly):
    assert set(assembly) == {tool.planted for tool in TOOLS}


def test_no_barrier_stands_between_the_racing_accesses(assembly):
    words = [w for w in assembly["planted_race_kernel"] if "shared" in w or w.startswith("bar")]
    assert words == ["st.volatile.shared.b32", "ld.volatile.shared.b32"]


def test_a_branch_leads_around_the_divergent_barrier(assembly):
    words = [w for w in assembly["planted_divergence_kernel"] if w.startswith(("bar", "bra"))]
    assert words == ["bra", "bar.sync"]
