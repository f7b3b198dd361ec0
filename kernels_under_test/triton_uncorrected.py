"""The provider ``triton_uncorrected``: the kernels of ``triton`` in the interpreter as Triton ships it.

A negative control. The kernels are right and the machine under them is not: BF16 is truncated, not rounded,
and BF16 operands of ``tl.dot`` are multiplied as integers. A suite that passes this provider sees nothing.
Importing it must come first in a process of its own, before anything imports triton; CPU only.
"""

from __future__ import annotations

from kernels_under_test import interpreter

interpreter.leave_uncorrected()

from kernels_under_test.triton_portable import register  # noqa: E402

register(
    "triton_uncorrected",
    devices=("cpu",),
    only=(
        "attn_res",
        "projection",
        "kda_decode",
        "kda_verify",
        "embedding",
        "logits",
        "prefetch",
        "oproj",
        "dense_mlp",
        "moe_front",
        "route",
        "mx_quantize",
        "experts",
        "shared_expert",
        "moe_tail",
        "small_batch",
        "mla_query",
        "mla_value",
        "mla_attention",
        "mla_dcp",
    ),
)
