"""SiTU(g, u) = beta tanh(g / beta) sigmoid(g) * lin tanh(u / lin): the subject's activation.

Source: the subject's specification, operations 3.12, 3.15, 3.16 and appendix A. Three forms are in use; a
profile names its own under ``algebra["situ"]``:

* ``direct``: tanh and sigmoid each by a function;
* ``half_tanh``: sigmoid(g) as (1 + tanh(g / 2)) / 2, which is exactly 0 for g below about -18 in FP32;

and ``algebra["tanh"]`` says how tanh itself is computed (see ``Arithmetic.tanh``).

Catches nothing by itself; what a contract says about its activation. Cannot represent a table over BF16
patterns: that is ``direct`` rounded once.
"""

from __future__ import annotations

import torch

from validation.numerics.arithmetic import Arithmetic
from validation.numerics.value import Value, accumulate

BETA, LINEAR_BETA = 4.0, 25.0


def situ(ar: Arithmetic, g: Value, u: Value, beta: float = BETA, linear: float = LINEAR_BETA) -> Value:
    """SiTU in FP32, unrounded; ``g`` and ``u`` of one shape."""
    return gate_half(ar, g, beta) * (ar.tanh(u * (1.0 / linear)) * linear)


def gate_half(ar: Arithmetic, g: Value, beta: float = BETA) -> Value:
    """beta tanh(g / beta) sigmoid(g). The noise of g is counted once, with the slope of the whole."""
    known = Value(ar, g.mean, bits=g.bits)
    if ar.algebra("situ", "direct") == "half_tanh":
        half = (ar.tanh(known * 0.5) + 1.0) * (0.5 * beta)
    else:
        half = ar.sigmoid(known) * beta
    product = ar.tanh(known * (1.0 / beta)) * half
    if not ar.noisy:
        return product
    tanh, sigmoid = torch.tanh(g.mean / beta), torch.sigmoid(g.mean)
    slope = (1 - tanh * tanh) * sigmoid + beta * tanh * sigmoid * (1 - sigmoid)
    carried = ar.through(g, product.mean, slope)
    return Value(
        ar,
        product.mean,
        accumulate(product.variance, carried.variance),
        carried.jump_variance,
        carried.jump,
    )
