"""Provider ``torch``: the stock order of operations in storage dtypes, unfused, on any device.

Rounds where the stock path of the subject rounds: after each projection, after the convolution's SiLU, after
the recurrence, at every output. It is the honest baseline that calibration starts from, not a fast kernel.
"""

from kernels_under_test.torch_stock import attn_res, kda, projection

__all__ = ["attn_res", "kda", "projection"]
