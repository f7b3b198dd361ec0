"""tanh to 2 ulps of FP32 and SiTU made of it, for kernels: Triton has no tanh that runs in its interpreter.

Near 0 an odd polynomial (the coefficients of Cephes' ``tanhf``, S. Moshier, within 1 ulp for |x| < 0.625);
beyond, 1 - 2 / (exp(2 |x|) + 1), whose last difference no longer cancels there.

What this cannot show: the subject's own library functions.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """FP32; NaN stays NaN, +-inf give +-1, -0.0 stays -0.0."""
    size = tl.abs(x)
    large = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    large = tl.where(x < 0, -large, large)
    z = x * x
    small = -5.70498872745e-3 * z + 2.06390887954e-2
    small = small * z - 5.37397155531e-2
    small = small * z + 1.33314422036e-1
    small = small * z - 3.33332819422e-1
    # Where |x| is large the polynomial may overflow; it is not chosen there.
    return tl.where(size < 0.625, small * z * x + x, large)


@triton.jit
def situ(gate, up, beta, linear):
    """beta tanh(gate / beta) sigmoid(gate) * linear tanh(up / linear), FP32."""
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    return (beta * tanh(gate / beta) * sigmoid) * (linear * tanh(up / linear))
