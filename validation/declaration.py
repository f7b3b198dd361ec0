"""What ``@implements`` is told, checked before it is believed.

What this catches: an unknown operation, profile or device, a provider name that cannot name a file, a string
where a tuple is meant, a list where a function is meant, a function that takes the wrong number of arguments.
What it cannot catch: a declaration that is well formed and untrue.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from validation.contracts import contract_named
from validation.dispatch.table import Route
from validation.errors import UserError
from validation.trace import shortened

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}")  # it also names log files
DEVICES = ("cpu", "cuda")
WORDS = {
    "requires": 'a tuple of names of packages, such as ("triton",)',
    "devices": 'a tuple of devices, such as ("cpu", "cuda")',
}


def check_provider(provider: Any) -> None:
    """A provider's name: short enough for a file, nothing that a shell or a case line reads otherwise."""
    if not isinstance(provider, str) or not NAME.fullmatch(provider):
        name = shortened(repr(provider), 80)
        raise UserError(
            f"{name} is no provider name: at most 64 letters, digits and _ . + - only, "
            "with a letter, a digit or _ first"
        )


def check_declaration(op: Any, provider: str, given: Mapping[str, Any]) -> None:
    """Types first, then what they name. ``given``: the other arguments of ``implements`` by name."""
    if not isinstance(op, str):
        raise UserError(f"{provider} implements {_found(op)}; expected the name of an operation")
    profiles = contract_named(op).profiles
    whose = f"{provider}'s {op}"
    if not isinstance(given["profile"], str) or given["profile"] not in profiles:
        known = ", ".join(profiles)
        raise UserError(f"{whose} declares the unknown profile '{given['profile']}'; known: {known}")
    for name, expected in WORDS.items():
        if not _all_are(given[name], str):
            raise UserError(f"{whose}: {name}= must be {expected}, not {_found(given[name])}")
    if unknown := [d for d in given["devices"] if d not in DEVICES]:
        raise UserError(f"{whose} names the unknown device '{unknown[0]}'; known: {', '.join(DEVICES)}")
    if not given["devices"]:
        raise UserError(f"{whose}: devices= is empty; known: {', '.join(DEVICES)}")
    _check_functions(whose, given)


def _check_functions(whose: str, given: Mapping[str, Any]) -> None:
    expectations = (
        ("supports", callable, "a function of the case that returns None or a reason"),
        (
            "kernels",
            lambda v: v is None or callable(v),
            "a function of the case that returns the names of the kernels",
        ),
        (
            "table",
            lambda v: _all_are(v, Route),
            "a tuple of Route (from validation.dispatch.table)",
        ),
        ("deterministic", lambda v: isinstance(v, bool), "True or False"),
    )
    for name, right, expected in expectations:
        if not right(given[name]):
            raise UserError(f"{whose}: {name}= must be {expected}, not {_found(given[name])}")


def _all_are(value: Any, kind: type) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(item, kind) for item in value)


def _found(value: Any) -> str:
    return shortened(f"the {type(value).__name__} {value!r}", 120)


def check_signature(op: str, provider: str, function: Any) -> None:
    """The decorated function takes the operation's arguments, and nothing else that must be given."""
    expected = contract_named(op).arguments.__name__
    if not callable(function):
        raise UserError(f"{provider}'s {op} must be a function, not {_found(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a callable written in C: nothing to check before it is called
    try:
        signature.bind(object())
    except TypeError:
        name = getattr(function, "__name__", "function")
        raise UserError(
            f"{provider}'s {op} must take one argument, a {expected} (from validation.contracts.arguments); "
            f"found {name}{signature}"
        ) from None


def refusal(whose: str, supports: Callable[[Any], Any], case: Any) -> str | None:
    """What ``supports(case)`` answers: None, or why the case is not served. UserError for anything else."""
    try:
        reason = supports(case)
    except Exception as error:
        raise UserError(f"{whose} raised {type(error).__name__}: {error} on {case.line()}") from error
    if reason is not None and not isinstance(reason, str):
        raise UserError(f"{whose} must return None or a reason in words, not {_found(reason)}")
    return reason or None


def kernel_names(whose: str, kernels: Callable[[Any], Any], case: Any) -> tuple[str, ...]:
    """What ``kernels(case)`` answers: names, in order of launch. UserError for anything else."""
    try:
        names = kernels(case)
    except Exception as error:
        raise UserError(f"{whose} raised {type(error).__name__}: {error} on {case.line()}") from error
    if not _all_are(names, str):
        raise UserError(f"{whose} must return the names of kernels in a tuple, not {_found(names)}")
    return tuple(names)
