"""What an operation must compute, as data: arguments, judged outputs, reference, cases.

A contract knows no kernel. A provider (see ``validation.providers``) receives the contract's
``arguments`` dataclass, whose tensor fields say shape, dtype and access, and writes the ``write`` and
``update`` fields in place (or returns the ``write`` fields, in order).

What this cannot catch: nothing by itself; the judgement lives in ``validation.judge``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from validation.errors import UserError

if TYPE_CHECKING:
    import torch

Access = Literal["read", "update", "write"]
Tier = Literal["quick", "full"]

DTYPES = {
    "bf16": "bfloat16",
    "fp32": "float32",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
}


@dataclass(frozen=True)
class TensorSpec:
    """Axes (in words, space separated), storage dtype and access of one tensor argument."""

    axes: tuple[str, ...]
    dtype: str
    access: Access

    def describe(self) -> str:
        return f"{self.access} {self.dtype} [{', '.join(self.axes)}]"


def _tensor(axes: str, dtype: str, access: Access) -> Any:
    return field(metadata={"tensor": TensorSpec(tuple(axes.split()), dtype, access)})


def read(axes: str, dtype: str) -> Any:
    """A tensor the operation may only read."""
    return _tensor(axes, dtype, "read")


def update(axes: str, dtype: str) -> Any:
    """A tensor changed in place: state, caches."""
    return _tensor(axes, dtype, "update")


def write(axes: str, dtype: str) -> Any:
    """A tensor of which every element must be written; it arrives poisoned."""
    return _tensor(axes, dtype, "write")


def tensor_specs(arguments: type | object) -> dict[str, TensorSpec]:
    """Tensor fields of an arguments dataclass (class or instance), in declaration order."""
    fields = dataclasses.fields(arguments)  # type: ignore[arg-type]
    return {f.name: f.metadata["tensor"] for f in fields if "tensor" in f.metadata}


@dataclass(frozen=True)
class Case:
    """One contract at one shape, regime and seed. ``line()`` and ``parse()`` are inverse."""

    op: str
    shape: tuple[tuple[str, int], ...]
    regime: str
    seed: int

    @classmethod
    def of(cls, op: str, regime: str, seed: int, **shape: int) -> Case:
        return cls(op, tuple(shape.items()), regime, seed)

    def __getitem__(self, key: str) -> int:
        return dict(self.shape)[key]

    def line(self) -> str:
        shape = ",".join(f"{k}={v}" for k, v in self.shape)
        return f"{self.op}:{shape}:{self.regime}:{self.seed}"

    @classmethod
    def parse(cls, line: str) -> Case:
        """Inverse of ``line``. Raises UserError naming the expected form."""
        try:
            op, shape, regime, seed = line.split(":")
            pairs = [item.split("=") for item in shape.split(",")] if shape else []
            return cls(op, tuple((k, int(v)) for k, v in pairs), regime, int(seed))
        except ValueError:
            raise UserError(
                f"'{line}' is not a case; a case reads OP:name=value,...:REGIME:SEED, "
                "as printed in the replay line of a finding"
            ) from None


@dataclass(frozen=True)
class Regime:
    """A named way of drawing inputs, the fault kinds it exposes (ids of the fault catalogue), and why."""

    name: str
    kinds: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Output:
    """One tensor that is judged.

    ``view`` maps the arguments after the run to the judged elements (for example the live slots of a
    state cache); its axes are named in ``axes``. ``exact`` outputs are compared bit for bit. ``slices``
    are groups of axes whose statistics are taken separately. ``shared`` names the axes along which one
    source of noise may move all elements together (a scalar of the head; a state's error stays through all
    tokens). ``present`` says whether the case has
    this output. A discrete choice (ids of a top-k) is predicted as ``validation.numerics.choices.Choice``.
    """

    name: str
    axes: tuple[str, ...]
    format: str
    view: Callable[[Any], torch.Tensor]
    exact: bool = False
    slices: tuple[tuple[str, ...], ...] = ()
    shared: tuple[str, ...] = ()
    present: Callable[[Any], bool] = lambda arguments: True


@dataclass(frozen=True)
class Contract:
    """One operation.

    ``build(case)`` draws the arguments on the CPU (write fields are absent: zeros of the right shape).
    ``reference(ar, arguments)`` returns, for each output name, the value in the arithmetic ``ar``; it
    must not modify the arguments. ``touched(arguments)`` returns for every ``update`` field a boolean
    tensor (of the field's shape, or broadcastable to it) of elements that may change; all others must
    stay bit-identical. ``strides(arguments)`` optionally gives the element strides of fields that real
    caches do not store densely. ``free_slot`` is what int tensors are poisoned with beyond their end.
    """

    name: str
    summary: str
    arguments: type
    outputs: tuple[Output, ...]
    regimes: tuple[Regime, ...]
    build: Callable[[Case], Any]
    reference: Callable[[Any, Any], dict[str, Any]]
    cases: Callable[[Tier], tuple[Case, ...]]
    touched: Callable[[Any], Mapping[str, torch.Tensor]]
    profiles: Mapping[str, Any]
    strides: Callable[[Any], Mapping[str, tuple[int, ...]]] = lambda arguments: {}
    adopt: Callable[[Any, Any], Any] = lambda clean, outcome: clean

    def regime(self, name: str) -> Regime:
        for regime in self.regimes:
            if regime.name == name:
                return regime
        known = ", ".join(r.name for r in self.regimes)
        raise UserError(f"{self.name} has no regime '{name}'; known: {known}")
