"""Registry of implementations under test: built in, from a plug-in file, or from an entry point.

A provider is a name; under it, one implementation per operation. Registering is one decorator:

    @implements("kda_decode", provider="mine", profile="stock")
    def kda_decode(a: KdaArguments) -> None: ...

What this catches: plug-ins that do not import, register nothing, name an unknown operation or profile,
or whose function takes the wrong number of arguments. What it cannot catch: wrong results (the judge does).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from validation.errors import Unavailable, UserError

ENTRY_POINT_GROUP = "lockstep.providers"

# Built-in providers live outside this package and are imported by name only, so that arrows point one way.
BUILT_IN = {
    "torch": "kernels_under_test.torch_stock",
    "triton": "kernels_under_test.triton_portable",
    "fla": "kernels_under_test.fla_core",
}
# Providers that must be flagged: run as negative controls, never as candidates.
CONTROLS = {"triton_uncorrected": "kernels_under_test.triton_uncorrected"}


@dataclass(frozen=True)
class Implementation:
    """One operation of one provider.

    ``profile`` names one of the contract's profiles. ``requires`` are importable packages, ``devices`` the
    device kinds it runs on. ``supports(case)`` returns None or the reason why it does not serve a case.
    ``deterministic`` promises bit-equal results of equal calls.
    """

    op: str
    provider: str
    profile: str
    function: Callable[[Any], Any]
    requires: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cuda")
    supports: Callable[[Any], str | None] = lambda case: None
    deterministic: bool = True


_REGISTRY: dict[tuple[str, str], Implementation] = {}


def implements(
    op: str,
    *,
    provider: str,
    profile: str = "stock",
    requires: tuple[str, ...] = (),
    devices: tuple[str, ...] = ("cpu", "cuda"),
    supports: Callable[[Any], str | None] = lambda case: None,
    deterministic: bool = True,
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register the decorated function as ``provider``'s implementation of ``op``."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _check_signature(op, provider, function)
        _REGISTRY[op, provider] = Implementation(
            op, provider, profile, function, requires, devices, supports, deterministic
        )
        return function

    return register


def _check_signature(op: str, provider: str, function: Callable[..., Any]) -> None:
    from validation.contracts import contract_named

    contract = contract_named(op)
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        raise UserError(
            f"{provider}'s {op} must take one argument, a {contract.arguments.__name__}; "
            f"found {function.__name__}{inspect.signature(function)}"
        ) from None
