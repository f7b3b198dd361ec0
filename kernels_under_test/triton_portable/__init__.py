"""The provider ``triton``: portable Triton kernels built like the subject's specialised ones.

Each module is one operation of Kimi K3's latency-specialised decode (vLLM 0.33.0, read, not copied),
with the same association of terms and the same roundings, declared as the profile ``specialized``.
On the CPU they run in Triton's interpreter, which is chosen and corrected here, before the kernels are
decorated; on CUDA nothing of that is imported.

What they cannot show: clusters, mailboxes, programmatic launches and the subject's own summation order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels_under_test import interpreter

interpreter.prepare()

from kernels_under_test.triton_portable.attn_res import attn_res  # noqa: E402
from kernels_under_test.triton_portable.kda import kda_decode, kda_verify  # noqa: E402
from kernels_under_test.triton_portable.projection import projection  # noqa: E402
from validation.providers import implements  # noqa: E402

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "attn_res": attn_res,
    "projection": projection,
    "kda_decode": kda_decode,
    "kda_verify": kda_verify,
}


def register(provider: str, devices: tuple[str, ...] = ("cpu", "cuda")) -> None:
    """Register the four operations under a provider's name."""
    for op, function in OPERATIONS.items():
        implements(op, provider=provider, profile="specialized", requires=("triton",), devices=devices)(
            function
        )


if interpreter.is_corrected():
    register("triton")
