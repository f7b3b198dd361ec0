"""Tests of the kernels run in Triton's interpreter, which must be chosen before triton is imported."""

import os

os.environ.setdefault("LOCKSTEP_DEVICE", "cpu")

from kernels_under_test.interpreter import prepare

prepare()
