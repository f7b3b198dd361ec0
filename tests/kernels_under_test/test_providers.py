"""The provider ``triton`` is judged to pass, and the same kernels in Triton's own interpreter to fail."""

import json
import os
import subprocess
import sys

import pytest

from kernels_under_test import interpreter, triton_portable
from validation.contracts.contract import Case
from validation.judge import judge_case
from validation.providers import implementation

# A case of each operation whose arithmetic goes through every corrected part that it uses.
CASES = [
    "attn_res:rows=2,width=256,blocks=4,write=-1,merge=0,finish=0,aux=0:typical:4",
    "projection:rows=2,columns=136,k=1000:typical:2",
    "projection:rows=4,columns=136,k=1000:typical:4",
    "kda_decode:heads=2,dim=60,requests=2:unit_state:5",
    "kda_verify:heads=2,dim=64,requests=3,tokens=3:null_slots:6",
]

# One process, since choosing the uncorrected interpreter is final.
UNCORRECTED = """
import json, sys
from kernels_under_test import triton_uncorrected
from validation.contracts.contract import Case
from validation.judge import judge_case
from validation.providers import implementation, implemented_by
assert implemented_by("triton") == ()
for line in json.loads(sys.argv[1]):
    case = Case.parse(line)
    print(judge_case(case, implementation(case.op, "triton_uncorrected"), "cpu", share=1e-9).verdict)
"""


@pytest.mark.parametrize("line", CASES)
def test_the_kernels_pass(line):
    case = Case.parse(line)
    found = implementation(case.op, "triton")
    assert found.function is triton_portable.operations()[case.op]["function"]
    result = judge_case(case, found, interpreter.device(), share=1e-9)
    assert result.verdict == "pass", result.findings


def test_the_same_kernels_fail_in_the_uncorrected_interpreter():
    environment = os.environ | {"LOCKSTEP_DEVICE": "cpu"}
    command = [sys.executable, "-c", UNCORRECTED, json.dumps(CASES)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.stdout.split() == ["fail"] * len(CASES), ran.stderr[-2000:]
