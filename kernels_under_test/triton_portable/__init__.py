"""The provider ``triton``: portable Triton kernels built like the subject's specialised ones.

Each module is one operation of Kimi K3's latency-specialised decode (vLLM 0.33.0, read, not copied),
with the same association of terms and the same roundings, declared as the profile ``specialized``.
On the CPU they run in Triton's interpreter, which is chosen and corrected here, before the kernels are
decorated; on CUDA nothing of that is imported.

What they cannot show: clusters, mailboxes, programmatic launches and the subject's own summation order.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kernels_under_test import interpreter

interpreter.prepare()

from validation.providers import implements  # noqa: E402

# Each module has OPERATIONS: operation -> what ``implements`` takes (``function``, and where it has them
# ``kernels``, ``table``, ``supports``, ``profile``).
MODULES = (
    "vocabulary", "attn_res", "projection", "kda", "mla_query", "mla_attention", "mla_value", "mla_dcp",
    "oproj", "dense_mlp", "moe_front", "route", "mx_quantize", "experts", "shared_expert", "moe_tail",
    "small_batch", "reject_sample", "prefetch",
)  # fmt: skip


def operations() -> dict[str, dict[str, Any]]:
    """Every operation of the package with what it declares, in the order of the decode step."""
    found: dict[str, dict[str, Any]] = {}
    for name in MODULES:
        found |= import_module(f"{__name__}.{name}").OPERATIONS
    return found


def register(provider: str, devices: tuple[str, ...] = ("cpu", "cuda"), only: tuple[str, ...] = ()) -> None:
    """Register the operations (``only`` some of them) under a provider's name."""
    for op, declared in operations().items():
        if only and op not in only:
            continue
        options = {"profile": "specialized", "requires": ("triton",), "devices": devices} | declared
        function = options.pop("function")
        implements(op, provider=provider, **options)(function)


if interpreter.is_corrected():
    from validation.step.executor import WHOLE

    register("triton")
    WHOLE["triton"] = lambda device: import_module("kernels_under_test.executor.over_triton").whole(device)
