"""What the executed modules of vLLM are told about their surroundings, in place of vLLM's own modules.

Only what decides where and how a kernel is launched is here; nothing that computes. The device is described
as vLLM describes an NVIDIA GPU of its capability; in the interpreter it is one without programmatic
launches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from kernels_under_test import interpreter


class DeviceCapability(NamedTuple):
    """Compute capability of a GPU."""

    major: int
    minor: int


class Platform:
    """vLLM's ``current_platform``, as far as the kernels ask."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self.device_type = "cuda" if cuda else "cpu"

    def is_cuda(self) -> bool:
        return self._cuda

    def is_cuda_alike(self) -> bool:
        return self._cuda

    def is_rocm(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False

    def is_cpu(self) -> bool:
        """False: on a CPU vLLM would take other code than the kernels under test."""
        return False

    def get_device_capability(self, device_id: int = 0) -> DeviceCapability | None:
        return DeviceCapability(*torch.cuda.get_device_capability(device_id)) if self._cuda else None

    def has_device_capability(self, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        found = self.get_device_capability(device_id)
        wanted = divmod(capability, 10) if isinstance(capability, int) else capability
        return found is not None and tuple(found) >= tuple(wanted)

    def is_device_capability_family(self, capability: int, device_id: int = 0) -> bool:
        found = self.get_device_capability(device_id)
        return found is not None and found.major == capability // 10

    def is_arch_support_pdl(self) -> bool:
        """Programmatic dependent launch: from capability 9.0 on, as in vLLM."""
        return self.has_device_capability((9, 0))

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn


class CustomOp(torch.nn.Module):
    """Base of vLLM's layers; ``register`` is used as a decorator."""

    @classmethod
    def register(cls, name: str, **options: Any) -> Callable[[type], type]:
        return lambda layer: layer


class JitKernel:
    """Base of the kernels that vLLM compiles before it serves; here one that is only defined."""

    def __class_getitem__(cls, key: object) -> type:
        return cls


def compute_units(device_id: int = 0) -> int:
    """Streaming multiprocessors; 1 in the interpreter, where more programs are only slower."""
    if not torch.cuda.is_available():
        return 1
    return int(torch.cuda.get_device_properties(device_id or 0).multi_processor_count)


def shared_memory(device_id: int = 0) -> int:
    """Bytes of shared memory that a program may ask for."""
    return int(torch.cuda.get_device_properties(device_id).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def nothing(*args: Any, **kwargs: Any) -> None:
    """In place of registrations."""


def late(module: ModuleType) -> None:
    """Let ``exp = tl.exp`` at the top of a module mean what ``tl.exp`` means when a kernel runs.

    The interpreter exchanges the members of ``triton.language`` while a kernel runs, and a name bound before
    keeps the member that only a compiler can call.
    """
    for name, value in vars(module).items():
        original = str(getattr(value, "__name__", ""))
        if getattr(value, "__triton_builtin__", False) and value is getattr(tl, original, None):
            setattr(module, name, _when_called(original))


def _when_called(name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(tl, name)(*args, **kwargs)


def stand_ins() -> Mapping[str, Mapping[str, Any]]:
    """By module of vLLM: the names that it is imported for."""
    platform = Platform(interpreter.device() == "cuda")
    return {
        "vllm.triton_utils": {
            "HAS_TRITON": True,
            "LOG2E": 1.4426950408889634,
            "LOGE2": 0.6931471805599453,
            "triton": triton,
            "tl": tl,
            "tldevice": libdevice,
        },
        "vllm.platforms": {"current_platform": platform},
        "vllm.platforms.interface": {"DeviceCapability": DeviceCapability},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.model_executor.custom_op": {"CustomOp": CustomOp},
        "vllm.model_executor.layers.fused_moe.utils": {
            "resolve_moe_use_td": lambda: False,  # as vLLM leaves it unless it is switched on
            "warn_if_moe_use_td_ineffective": nothing,
        },
        "vllm.model_executor.warmup.jit_warmup": {"kernel_launcher": lambda launch: launch},
        "vllm.model_executor.warmup.jit_warmup_triton_helper": {
            "VllmTritonJitKernel": JitKernel,
            "triton_kernel_dispatcher_with_warmup": lambda **options: lambda dispatch: dispatch,
        },
        "vllm.utils.platform_utils": {"num_compute_units": compute_units},
        "vllm.utils.mem_utils": {
            "get_max_shared_memory_bytes": shared_memory,
        },
        "vllm.utils.torch_utils": {"direct_register_custom_op": nothing},
    }
