"""Tables of a TOML file as dataclasses, every key and type checked.

What this catches: unknown keys (with the nearest known one), missing keys, wrong types, values that are not
finite. What it cannot catch: values of the right type that make no sense; see ``evals.arms.read``.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from validation.errors import UserError

T = TypeVar("T")


def build(cls: Callable[..., T], table: Any, where: str, **given: Any) -> T:
    """An instance of the dataclass ``cls`` from a table; ``given`` are fields that the table cannot set.

    ``where`` begins every message ("offline.toml: arms.reference"). Raises UserError.
    """
    if not isinstance(table, Mapping):
        raise UserError(f"{where} must be a table, not {_words(table)}")
    hints = get_type_hints(cls)
    known = [each for each in fields(cls) if each.name not in given]  # type: ignore[arg-type]
    for name in table:
        if name not in {each.name for each in known}:
            raise UserError(f"{where}: unknown key '{name}'{nearest(name, [each.name for each in known])}")
    values = dict(given)
    for each in known:
        if each.name in table:
            values[each.name] = value_of(hints[each.name], table[each.name], f"{where}: {each.name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise UserError(f"{where}: the key '{each.name}' is missing; it needs {_kind(hints[each.name])}")
    return cls(**values)


def value_of(hint: Any, value: Any, where: str) -> Any:
    """The value, if it is of the type; integers stand for floats, lists become tuples. Raises UserError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        hint = next(each for each in arguments if each is not type(None))
        return value_of(hint, value, where)
    if is_dataclass(hint):
        return build(hint, value, where)  # type: ignore[arg-type]
    if hint is Any:
        return value
    if origin is Literal:
        if value not in arguments:
            more = nearest(str(value), [str(each) for each in arguments])
            raise UserError(f"{where} must be one of {', '.join(map(str, arguments))}, not {value!r}{more}")
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(value_of(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(value))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {key: value_of(arguments[1], each, f"{where}.{key}") for key, each in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise UserError(f"{where} must be a finite number, not {value}")
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise UserError(f"{where} must be {_kind(hint)}, not {_words(value)}")


def nearest(name: str, known: list[str]) -> str:
    """'; did you mean X?', or what there is."""
    close = get_close_matches(name, known, 1, 0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; known are {', '.join(known)}"


def _kind(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return f"a list, each of it {_kind(arguments[0])}"
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    names = {int: "an integer", float: "a number", str: "text in quotes", bool: "true or false"}
    return names.get(hint, "a table")


def _words(value: Any) -> str:
    return "a table" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)
