"""Guarded memory for one case: what an operation may read, must write, and must leave alone.

    arena = Arena(contract, arguments, device)
    violations = store_returned(arena, provider(arena.arguments)) + arena.check()

What this catches: elements never written, inputs changed, state changed outside the owned slots and pages,
writes before, behind and between the rows of a tensor, arguments replaced instead of written, and results of
the wrong count, shape, dtype or device. What it cannot catch: wrong values in elements that may change, and
accesses far beyond the red zones (those end in a fault, or in another tensor's memory).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from validation.contracts.contract import DTYPES, Contract, TensorSpec, tensor_specs
from validation.contracts.guarded import Guarded, Trespass, poison_pattern


@dataclass(frozen=True)
class Violation:
    """One broken rule of memory. ``mask`` marks elements of ``field`` along ``axes``, where there are any.

    ``statistic``: unwritten, input_changed, untouched_changed, red_zone, replaced; and of returned values
    signature, shape, dtype, device.
    """

    field: str
    statistic: str
    mask: Tensor | None
    axes: tuple[str, ...]
    message: str


class Arena:
    """Places the tensors of one case in guarded memory and says afterwards what was broken."""

    def __init__(self, contract: Contract, arguments: Any, device: torch.device | str = "cpu") -> None:
        self.contract = contract
        self.device = torch.device(device)
        self.specs = _specs_present(arguments)
        self.touched = {k: v.to(self.device) for k, v in _touched(contract, arguments, self.specs).items()}
        self.guards = _guards(contract, arguments, self.specs, self.device)
        tensors = {name: guard.tensor for name, guard in self.guards.items()}
        self.arguments = dataclasses.replace(arguments, **tensors)
        self._placed = dataclasses.replace(self.arguments)
        self._given = arguments

    def outcome(self) -> Any:
        """The arguments as they were given, but for the memory that may change, as it is now: what to judge,
        even if a field was replaced, resized or changed against its word."""
        changed = {k: self.guards[k].current() for k, spec in self.specs.items() if spec.access != "read"}
        return dataclasses.replace(self._given, **changed)

    def check(self) -> list[Violation]:
        """Every rule broken since the arena was made, in the order of the fields."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        found = self._replaced()
        for name, spec in self.specs.items():
            changed, trespasses = self.guards[name].compare()
            found += self._elements(name, spec, changed)
            found += [Violation(name, "red_zone", None, spec.axes, _red_zone(name, t)) for t in trespasses]
        return found

    def _elements(self, name: str, spec: TensorSpec, changed: Tensor) -> list[Violation]:
        if spec.access == "write":
            statistic, mask, rule = "unwritten", _still_poison(changed, self.guards[name]), "never written"
        elif spec.access == "update":
            mask = changed & ~self.touched[name]
            statistic, rule = "untouched_changed", "changed although this step does not own them"
        else:
            statistic, mask, rule = "input_changed", changed, "changed although the tensor is only read"
        if not mask.any():
            return []
        message = f"{name}: {int(mask.sum())} of {mask.numel()} elements were {rule}"
        return [Violation(name, statistic, mask, spec.axes, message)]

    def _replaced(self) -> list[Violation]:
        """Fields that no longer hold what they were given, so that the caller would never see the result."""
        found = []
        for f in dataclasses.fields(self.arguments):
            was, now = getattr(self._placed, f.name), getattr(self.arguments, f.name)
            if f.name in self.guards:
                same = self.guards[f.name].holds(now)
                message = f"{f.name}: was replaced by another tensor or resized; it must be used in place"
            else:
                same = now is was or (not isinstance(now, Tensor) and bool(now == was))
                message = f"{f.name}: was {was!r} and is {now!r} after the run"
            if not same:
                found.append(Violation(f.name, "replaced", None, (), message))
        return found


def store_returned(arena: Arena, returned: Any) -> list[Violation]:
    """Copy returned tensors into the ``write`` fields, in order; what does not fit is named instead."""
    if returned is None:
        return []
    values = returned if isinstance(returned, tuple) else (returned,)
    fields = {name: spec for name, spec in arena.specs.items() if spec.access == "write"}
    if len(values) != len(fields) or not all(isinstance(v, Tensor) for v in values):
        expected = ", ".join(f"{name}: {spec.describe()}" for name, spec in fields.items()) or "no tensor"
        message = f"expected None or, in this order, ({expected}); found {_describe(returned)}"
        return [Violation("", "signature", None, (), f"{arena.contract.name} returned: {message}")]
    found = []
    for (name, spec), value in zip(fields.items(), values, strict=True):
        target = arena.guards[name].tensor
        misfits = _misfits(name, spec, target, value)
        if not misfits:
            target.copy_(value.detach())
        found += misfits
    return found


def _misfits(name: str, spec: TensorSpec, target: Tensor, value: Tensor) -> list[Violation]:
    pairs = {
        "shape": (tuple(target.shape), tuple(value.shape)),
        "dtype": (target.dtype, value.dtype),
        "device": (target.device, value.device),
    }
    return [
        Violation(name, statistic, None, spec.axes, f"{name}: expected {statistic} {expected}, found {found}")
        for statistic, (expected, found) in pairs.items()
        if expected != found
    ]


def _describe(returned: Any) -> str:
    if isinstance(returned, Tensor):
        return f"a {str(returned.dtype).removeprefix('torch.')} tensor {list(returned.shape)}"
    if isinstance(returned, tuple):
        return f"({', '.join(_describe(item) for item in returned)})"
    return f"a {type(returned).__name__}"


def _red_zone(name: str, trespass: Trespass) -> str:
    where = "in a gap between elements" if trespass.region == "gap" else f"{trespass.region} the tensor"
    return f"{name}: {trespass.count} bytes {where} overwritten, first at byte offset {trespass.offset:+d}"


def _still_poison(changed: Tensor, guard: Guarded) -> Tensor:
    """Elements that hold the poison. A byte may hold it honestly, so bytes count by whole last-axis rows."""
    same = ~changed
    if guard.layout.itemsize > 1 or same.dim() == 0:
        return same
    return same.all(-1, keepdim=True).expand_as(same)


def _unwritten_pattern(dtype: torch.dtype) -> int:
    """What elements hold that must be written. E4M3's NaN, poison of bytes elsewhere, can be the right answer
    of a whole row (a token with a NaN): 0xA5 cannot."""
    return 0xA5 if dtype == torch.uint8 else poison_pattern(dtype)


def _specs_present(arguments: Any) -> dict[str, TensorSpec]:
    """Tensor fields that this case has (None: absent). Raises ValueError where build() broke its own word."""
    specs = {k: s for k, s in tensor_specs(arguments).items() if getattr(arguments, k) is not None}
    for name, spec in specs.items():
        value, dtype = getattr(arguments, name), getattr(torch, DTYPES.get(spec.dtype, spec.dtype))
        if value.dtype != dtype or value.dim() != len(spec.axes):
            raise ValueError(f"{name} is declared {spec.describe()} but was built as {_describe(value)}")
    return specs


def _touched(contract: Contract, arguments: Any, specs: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    updates = [name for name, spec in specs.items() if spec.access == "update"]
    touched = contract.touched(arguments) if updates else {}
    missing = [name for name in updates if name not in touched]
    if missing:
        raise ValueError(f"{contract.name}: touched() says nothing about {', '.join(missing)}")
    return {name: touched[name].broadcast_to(getattr(arguments, name).shape) for name in updates}


def _guards(
    contract: Contract, arguments: Any, specs: Mapping[str, TensorSpec], device: torch.device
) -> dict[str, Guarded]:
    free_slot = getattr(arguments, "free_slot", getattr(contract, "free_slot", None))
    free_slot = free_slot(arguments) if callable(free_slot) else free_slot
    strides = contract.strides(arguments)
    guards = {}
    for name, spec in specs.items():
        value = getattr(arguments, name)
        pattern = poison_pattern(value.dtype, free_slot)
        fill = _unwritten_pattern(value.dtype) if spec.access == "write" else None
        guards[name] = Guarded(value, strides.get(name), device, pattern, fill)
    return guards
