"""What is timed: operations and layers of a subject, each in two arms with the bytes that it must move.

A subject's package gives ``operations(setting)`` and ``layers(setting)``; nothing here knows which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One point: ranks the model is split over, rows of the step, context length of each request (tokens)."""

    ranks: int
    rows: int
    context: int


@dataclass(frozen=True)
class Timed:
    """One operation or layer in one arm.

    ``bytes``: what this arm must move through memory (each operand once). ``uses`` names the kernels or
    libraries. ``make()`` draws fresh operands on the device and returns the call on them.
    """

    name: str
    arm: str
    bytes: int
    uses: str
    make: Callable[[], Callable[[], object]]


@dataclass(frozen=True)
class Pair:
    """The same work in both arms."""

    name: str
    specialized: Timed
    stock: Timed
