"""Results as standard JSON and back, with the types checked on the way in.

What this catches: missing or unknown fields, wrong types, text that is no JSON. What it cannot catch: a
well-formed document whose numbers are wrong. Non-finite numbers, which JSON lacks, are written as the
strings "inf", "-inf" and "nan".
"""

from __future__ import annotations

import dataclasses
import json
import math
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
NON_FINITE = ("inf", "-inf", "nan")


class MalformedError(ValueError):
    """Data that does not have the shape of the results schema; the message says where."""


def to_plain(value: Any) -> Any:
    """Dataclasses, containers and numbers as what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


def dump_line(value: Any) -> str:
    """One line of standard JSON."""
    return json.dumps(to_plain(value), allow_nan=False, separators=(",", ":"))


def from_plain(kind: type[T], data: Any, where: str = "document") -> T:
    """Inverse of ``to_plain`` for a dataclass. Raises MalformedError naming the place."""
    if not isinstance(data, dict):
        raise MalformedError(f"{where} is not an object")
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    if unknown := sorted(set(data) - set(fields)):
        raise MalformedError(f"{where} has an unknown field '{unknown[0]}'")
    for name, f in fields.items():
        if name not in data and f.default is f.default_factory is dataclasses.MISSING:
            raise MalformedError(f"{where} lacks the field '{name}'")
    return kind(**{name: _decoded(hints[name], v, f"{where}.{name}") for name, v in data.items()})


def _decoded(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return from_plain(hint, value, where)  # type: ignore[arg-type]
    if origin is Literal:
        return _checked(value, value in inner, where, f"one of {', '.join(map(str, inner))}")
    if origin in (Union, UnionType):
        return (
            None if value is None else _decoded(next(h for h in inner if h is not type(None)), value, where)
        )
    if origin in (list, tuple):
        _checked(value, isinstance(value, list), where, "a list")
        return origin(_decoded(inner[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        _checked(value, isinstance(value, dict), where, "an object")
        return {k: _decoded(inner[1], v, f"{where}.{k}") for k, v in value.items()}
    if hint is float:
        return _number(value, where)
    return _checked(value, type(value) is hint, where, f"a {hint.__name__}")


def _number(value: Any, where: str) -> float:
    number = type(value) in (int, float) or value in NON_FINITE
    return float(_checked(value, number, where, "a number"))


def _checked(value: Any, right: bool, where: str, expected: str) -> Any:
    if not right:
        raise MalformedError(f"{where} is {str(value)[:40]!r}, not {expected}")
    return value
