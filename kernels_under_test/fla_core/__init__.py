"""The provider ``fla``: the KDA recurrence of flash-linear-attention (package fla-core, 0.5.2 to 0.6.0).

Runs on CUDA, and on the CPU in Triton's corrected interpreter, which must be chosen before fla is imported.

What is theirs and what is ours is said in ``fla_core.kda``; only what is theirs is under test.
"""

from kernels_under_test import interpreter

interpreter.prepare()

from kernels_under_test.fla_core.kda import kda_decode, kda_verify  # noqa: E402

__all__ = ["kda_decode", "kda_verify"]
