"""Provider ``torch``: the stock order of operations in storage dtypes, unfused, on any device.

Rounds where the stock path of the subject rounds: after each projection, after the convolution's SiLU, after
the recurrence, at every output. It is the honest baseline that calibration starts from, not a fast kernel.
"""

from importlib import import_module

MODULES = (
    "vocabulary", "attn_res", "projection", "kda", "mla_query", "mla_attention", "mla_value", "mla_dcp",
    "oproj", "dense_mlp", "moe_front", "route", "mx_quantize", "experts", "shared_expert", "moe_tail",
    "small_batch", "reject_sample", "prefetch",
)  # fmt: skip

for _name in MODULES:
    import_module(f"{__name__}.{_name}")
