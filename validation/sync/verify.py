"""What a run does: prove protocols in settings, and find planted faults.

Catches: a protocol that is unsafe for some interleaving, layer pattern or batch sequence; a checker that no
longer finds what was planted. Cannot catch: a subject that does not do what the specification says.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from validation.errors import UserError
from validation.sync import search
from validation.sync.build import build
from validation.sync.diagram import sequence
from validation.sync.events import Program
from validation.sync.exchange import Subject
from validation.sync.fault import Fault, planted
from validation.sync.faults import FAULTS
from validation.sync.minimal import minimal, steps
from validation.sync.protocols import Protocol, changes
from validation.sync.setting import MOST_EVENTS, Setting, check, last, launches

WALKS, SEED = 20, 0
Answer = Literal["safe", "unsafe", "not proved"]


@dataclass
class Outcome:
    """One setting explored. ``events``: of the smallest trace; ``diagram``: that trace drawn.

    ``states`` counts states visited, ``seconds`` wall time with building. ``walked``: by random walks only.
    """

    setting: Setting
    states: int
    seconds: float
    answer: Answer
    invariant: str = ""
    message: str = ""
    events: int = 0
    diagram: str = ""
    walked: bool = False


def examine(subject: Subject, setting: Setting, limit: int = search.LIMIT) -> Outcome:
    """Explore a setting; a program too large for that is walked at random. Raises UserError."""
    check(setting)
    began = time.perf_counter()
    program = build(subject, setting)
    large = len(program.events) > MOST_EVENTS
    found = search.walk(program, SEED, WALKS) if large else search.explore(program, limit)
    outcome = Outcome(setting, found.states, 0.0, "safe" if found.complete else "not proved", walked=large)
    if found.violation:
        _explain(outcome, program, found)
    outcome.seconds = time.perf_counter() - began
    return outcome


def _explain(outcome: Outcome, program: Program, found: search.Result) -> None:
    """The smallest trace of a violation, drawn."""
    assert found.violation
    trace = minimal(program, found.trace, found.violation)
    outcome.answer, outcome.invariant = "unsafe", str(found.violation.invariant)
    outcome.message, outcome.events = found.violation.message, len(steps(program, trace))
    outcome.diagram = sequence(program, trace, found.violation)


def settings(
    subject: Subject,
    protocol: Protocol,
    ranks: int,
    layers: str,
    batches: tuple[int, ...] | None,
    plans: tuple[int, ...],
) -> list[Setting]:
    """Every setting in which a protocol is to be proved; without ``batches`` all changes that use it."""
    return [
        setting
        for plan in plans or protocol.plans
        if plan in protocol.plans
        for sequence_ in ([batches] if batches else changes(plan))
        if uses(subject, setting := Setting(ranks, layers, sequence_, plan, protocol.dcp, protocol.exchanges))
    ]


def uses(subject: Subject, setting: Setting) -> bool:
    """Does any step launch a kernel that touches the exchanges in question?"""
    check(setting)
    names = {
        name
        for batch in setting.batches
        for layer in range(len(setting.layers))
        for name in [*launches(setting, layer, batch), *last(setting), "Embed"]
    }
    touched = {
        act.exchange
        for name in names
        for chain in (*subject.kernels[name].chains, *subject.kernels[name].early)
        for act in chain
    }
    return not touched.isdisjoint(setting.targets)


def find(subject: Subject, fault: Fault) -> Outcome:
    """Explore with the fault planted."""
    return examine(planted(subject, fault.edits), fault.setting)


def fault_named(name: str) -> Fault:
    """Raises UserError for a name that is none."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise UserError(f"no planted fault '{name}'; see lockstep sync --list")
