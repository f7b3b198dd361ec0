"""One class for both of vLLM's model runners, because they load the same entry-point group.

Each runner checks that what it loads is a subclass of its own interface, and tells them apart by nothing
but the arguments of the constructor: V1 gives (config, device, pinned), V2 gives (config, request
states). ``ForcedTokens`` is a subclass of all interfaces this vLLM has, and its construction yields the
processor of the runner that asks.
"""

from __future__ import annotations

from typing import Any

from lockstep_forced.request import validate


def _interfaces() -> tuple[type, ...]:
    found: list[type] = []
    try:
        from vllm.v1.sample.logits_processor.interface import LogitsProcessor as InterfaceV1

        found.append(InterfaceV1)
    except ImportError:  # a vLLM that has dropped the V1 runner
        pass
    try:
        from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as InterfaceV2

        found.append(InterfaceV2)
    except ImportError:  # a vLLM from before the V2 interface
        pass
    return tuple(found)


class ForcedTokens(*_interfaces()):  # type: ignore[misc]
    """Forces ``extra_args["forced_tokens"]``; see README.md. Never an object of its own."""

    def __new__(cls, vllm_config: Any, *arguments: Any) -> Any:
        if len(arguments) == 1:
            from lockstep_forced.runner_v2 import ForcedTokensV2

            return ForcedTokensV2(vllm_config, *arguments)
        from lockstep_forced.runner_v1 import ForcedTokensV1

        return ForcedTokensV1(vllm_config, *arguments)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        validate(sampling_params)


__all__ = ["ForcedTokens"]
