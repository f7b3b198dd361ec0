"""Negative controls of a step run: faults planted in what the run itself produced, which must be noticed.

They prove that these checks, with these limits, could have failed. They do not measure sensitivity;
``lockstep step --faults`` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from validation.contracts import contract_named
from validation.controls import planted
from validation.judge import assess, observe
from validation.step import between
from validation.step.free_running import Ensemble, Reading, judged
from validation.step.local import Judged
from validation.step.walk import Walk


@dataclass
class Count:
    """Faults planted and noticed, and the first that was not."""

    planted: int = 0
    caught: int = 0
    missed: str = ""

    def add(self, what: str, noticed: bool) -> None:
        self.planted += 1
        self.caught += noticed
        if not noticed and not self.missed:
            self.missed = what


def in_operation(count: Count, operation: Judged, share: float) -> None:
    """Faults in the outputs of one operation that was right."""
    if operation.failed:
        return
    contract = contract_named(operation.operation.op)
    observed = observe(contract, operation.outcome)
    for output in contract.outputs:
        if output.name not in operation.predicted:
            continue
        for fault in planted(output, observed[output.name], output.view(operation.clean)):
            statistics = assess(contract, output, fault, operation.predicted, share)
            noticed = any(s.failed for s in statistics)
            count.add(f"{operation.operation.name}: {output.name}", noticed)


def between_steps(count: Count, walk: Walk) -> None:
    """One bit of every buffer of a live request, one byte of a replicated key, one staged number."""
    for kind, layer, _ in walk.state.buffers():
        changed = walk.state.clone()
        request = walk.requests[0]
        if kind == "recurrent":
            changed.recurrent[layer][-1, request.slots[0], 0, 0, 0] += 1
        elif kind == "conv":
            changed.conv[layer][-1, request.slots[0], 0, 0] += 1
        else:
            changed.kv[layer][-1, request.pages[-1][0], 0, 0] ^= 1
        count.add(f"{kind} of layer {layer}", bool(between.continuity(0, walk.state, changed)))


def in_readings(count: Count, candidate: list[Reading], e: Ensemble, share: float) -> None:
    """Readings as of a state that is 5 % off, and logits of another token."""
    for what, readings in _spoiled(candidate):
        count.add(what, bool(judged(readings, e, share).found))


def _spoiled(candidate: list[Reading]) -> Iterator[tuple[str, list[Reading]]]:
    for pair in candidate[0].state:
        if pair[0] == "recurrent":
            spoiled = [Reading(r.logits, r.state | {pair: r.state[pair] * 2}) for r in candidate]
            yield f"state of layer {pair[1]} doubled", spoiled
    yield "logits of the next token", [Reading(r.logits.roll(1, -1), r.state) for r in candidate]
