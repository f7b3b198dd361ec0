"""Documented errors of elementary functions, in ulps of the FP32 result.

Sources. CUDA C++ Programming Guide 13.0, mathematical functions appendix: expf 1, tanhf 2, rsqrtf 2, division
0.5, sqrtf 0.5; intrinsics: __expf 2 + floor(|1.173 x|). PTX ISA 9.0: ex2.approx 2 ulp, rcp.approx 1 ulp,
div.full 2 ulp, rsqrt.approx 2**-22.9 relative (about 2 ulp), tanh.approx 2**-11 relative (4,096 ulp at
worst). Triton lowers ``exp`` to ex2.approx(x * log2 e), ``rsqrt`` to rsqrt.approx and division to div.full.
CPU: SLEEF u10 functions 1 ulp, MKL's sqrt 1 ulp.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FunctionError:
    """Largest error: ``ulps`` + ``ulps_per_argument`` * |x|, in ulps of the result."""

    ulps: float
    ulps_per_argument: float = 0.0


CORRECTLY_ROUNDED = FunctionError(0.5)

# Accurate library functions (CPU and CUDA without fast math).
ACCURATE = {
    "exp": FunctionError(1.0),
    "exp2": FunctionError(1.0),
    "log": FunctionError(1.0),
    "tanh": FunctionError(2.0),
    "rsqrt": FunctionError(2.0),
    "sqrt": CORRECTLY_ROUNDED,
    "divide": CORRECTLY_ROUNDED,
}

# CPU libraries (SLEEF u10, MKL, or the C library): at most 1 ulp, for the square root too. rsqrt is a root
# and a division: half an ulp of the root is up to 1 ulp of its inverse, and the division adds its half.
CPU = {**ACCURATE, "tanh": FunctionError(1.0), "sqrt": FunctionError(1.0), "rsqrt": FunctionError(1.5)}

# Triton on NVIDIA: the product x * log2(e) is rounded before ex2: a relative error of up to 2**-24 |x| in the
# result, |x| / 2 to |x| ulps by its significand, 0.72 |x| for the mean one.
TRITON = {
    "exp": FunctionError(2.0, 0.72),
    "exp2": FunctionError(2.0),
    "log": FunctionError(2.0),
    "tanh": FunctionError(2.0),
    "rsqrt": FunctionError(2.0),
    "sqrt": FunctionError(1.0),
    "divide": FunctionError(2.0),
}

# The subject's CuTe kernels with fast math: __expf, approximate division, tanh.approx.
FAST = {
    "exp": FunctionError(2.0, 1.173),
    "exp2": FunctionError(2.0),
    "log": FunctionError(2.0, 1.0),
    "tanh": FunctionError(4096.0),
    "rsqrt": FunctionError(2.0),
    "sqrt": FunctionError(1.0),
    "divide": FunctionError(2.0),
}

TABLES = {"accurate": ACCURATE, "cpu": CPU, "triton": TRITON, "fast": FAST}


def variance_in_ulps(ulps: float) -> float:
    """Variance, in squared ulps, of an error bounded by ``ulps``: the last rounding (uniform over half an ulp
    on either side) plus an approximation error uniform over the rest of the bound."""
    return (0.25 + max(ulps - 0.5, 0.0) ** 2) / 3
