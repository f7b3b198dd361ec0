"""The provider ``fla_modules``: a whole KDA core of flash-linear-attention (package fla-core).

The provider ``fla`` puts FLA's recurrence between torch operations of ours; here the convolution with its
history, the recurrence and the gated norm are all FLA's. Runs on CUDA, and on the CPU in Triton's corrected
interpreter, which must be chosen before fla is imported.

What is theirs and what is ours is said in ``fla_modules.kda``; only what is theirs is under test.
"""

from kernels_under_test import interpreter

interpreter.prepare()

from kernels_under_test.fla_modules.kda import kda_decode, kda_verify  # noqa: E402

__all__ = ["kda_decode", "kda_verify"]
