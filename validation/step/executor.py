"""How a program is run: one function per operation, called in order.

``vanilla`` computes every operation by its contract's reference, rounded where a profile says; ``provider``
by the implementations of a provider. Both write the same fields of the same arguments, so they can take turns
step by step, or operation by operation.

Catches: nothing by itself. Cannot represent: an executor that fuses operations (it is compared by what it
leaves: state, auxiliary rows and logits).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from validation.contracts import contract_named
from validation.contracts.contract import tensor_specs
from validation.errors import UserError
from validation.numerics.arithmetic import Rounded
from validation.providers import implementation, implemented_by, load_provider
from validation.step.store import store
from validation.subjects.kimi_k3.operation import Binding, Operation, Program

Run = Callable[[Operation, Any], None]


@dataclass(frozen=True)
class Executor:
    """``run(operation, arguments)`` carries one operation out in place; ``profile`` says where it rounds.
    ``launching``: operations that must launch Triton kernels, so that a silent fallback shows. ``replays``: a
    whole step runs the same kernels as its operations one by one, so that every byte must be equal."""

    name: str
    profile: str
    run: Run
    launching: frozenset[str] = frozenset()
    replays: bool = False

    def step(self, program: Program, binding: Binding) -> None:
        """All operations of a step, in order."""
        for operation in program:
            self.run(operation, operation.arguments(binding))

    def order(self, program: Program) -> Program:
        """The operations in the order in which ``step`` issues them."""
        return program

    def upto(self, program: Program, binding: Binding, count: int) -> None:
        """As ``step``, but only the first ``count`` operations of ``order``: to find the first wrong one."""
        self.step(self.order(program)[:count], binding)

    def variants(self) -> dict[str, tuple[Executor, bool]]:
        """This executor in other ways of running whole steps, by name, and whether each is right: planted
        faults, and honest variants that must leave the same bytes."""
        return {}


def eagerly(executor: Executor, program: Program, binding: Binding) -> None:
    """The operations one by one in the order given, whatever the executor's own way of running a step."""
    for operation in program:
        executor.run(operation, operation.arguments(binding))


# Providers that run a whole step in a way of their own, by name: what makes such an executor. They register
# here.
WHOLE: dict[str, Callable[[str], Executor]] = {}


def fastest(name: str, device: str = "cpu") -> Executor:
    """The executor of a provider that runs whole steps at once on that device, if it has one; else operation
    by operation."""
    load_provider(name)
    return WHOLE[name](device) if name in WHOLE else provider(name)


def vanilla(profile: str = "specialized") -> Executor:
    """The contracts' references: slow, float64 between the declared roundings, the same on every machine."""

    def run(operation: Operation, a: Any) -> None:
        contract = contract_named(operation.op)
        values = contract.reference(Rounded(contract.profiles[profile]), a)
        store(operation.op, a, {name: value.mean for name, value in values.items()})

    return Executor("vanilla", profile, run)


def provider(name: str) -> Executor:
    """The implementations of a provider. Raises UserError if it lacks an operation of the step or declares
    several profiles."""
    load_provider(name)
    served = [op for op in STEP_OPERATIONS if op not in OPTIONAL or op in implemented_by(name)]
    found = {op: implementation(op, name) for op in served}
    profiles = {one.profile for one in found.values()}
    if len(profiles) != 1:
        raise UserError(f"provider '{name}' declares {', '.join(sorted(profiles))}; a step needs one profile")
    functions = {op: one.function for op, one in found.items()}
    launching = frozenset(op for op, one in found.items() if one.kernels is not None)

    def run(operation: Operation, a: Any) -> None:
        if operation.op not in functions:
            raise UserError(f"provider '{name}' does not implement '{operation.op}'")
        returned = functions[operation.op](a)
        if returned is not None:
            _take(a, returned)

    return Executor(name, profiles.pop(), run, launching)


def alternating(one: Executor, other: Executor) -> Executor:
    """Two executors of one profile that take turns, step by step, on the same state."""
    if one.profile != other.profile:
        raise UserError(f"{one.name} rounds as {one.profile}, {other.name} as {other.profile}: no turns")
    turns = [other, one]

    def run(operation: Operation, a: Any) -> None:
        if operation.op == "embedding":
            turns.reverse()
        turns[0].run(operation, a)

    return Executor(f"{one.name} and {other.name}", one.profile, run)


def _take(a: Any, returned: Any) -> None:
    """Outputs that were returned instead of written."""
    names = [name for name, spec in tensor_specs(a).items() if spec.access == "write"]
    tensors = returned if isinstance(returned, tuple) else (returned,)
    for name, tensor in zip(names, tensors, strict=True):
        getattr(a, name).copy_(tensor)


STEP_OPERATIONS = (
    "embedding", "attn_res", "projection", "kda_decode", "kda_verify", "mla_query", "mla_attention",
    "mla_value", "mla_dcp", "oproj", "dense_mlp", "moe_front", "route", "mx_quantize", "experts",
    "shared_expert", "moe_tail", "logits",
)  # fmt: skip
# Only steps with a sharded cache have it.
OPTIONAL = ("mla_dcp",)
