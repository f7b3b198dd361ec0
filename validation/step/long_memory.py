"""One layer's recurrence over up to a hundred thousand tokens, against the reference's own state.

Half-lives are log-uniform over 1 to 1e5 tokens, so what is wrong in a state stays in it. The executor's KDA
core is given random projections, token after token; the reference keeps a state of its own (``carried``),
and both are compared after 1, 2, 4, 8, ... tokens. A token of whose inputs noise could flip a rounding to
BF16 is drawn anew: such a flip would stay in the state, and hide what is ten thousand times smaller.

Catches: state that is lost, crossed, scaled or kept in fewer bits at any of the tokens; ``Memory.sharp`` says
how small an error it would find. Cannot catch: a drift below what the exponential of the decay may be off by
at every token (half an ulp on a CPU); what the recurrence is given (``local``); slots (two requests stay
where they are).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from validation.contracts import contract_named
from validation.contracts.contract import Contract
from validation.contracts.kda import Inputs, inputs
from validation.errors import UserError
from validation.judge import assess
from validation.numerics.arithmetic import Arithmetic, Noise
from validation.numerics.value import Value
from validation.step import progress
from validation.step.carried import Carried
from validation.step.divergence import Divergence, of_operation
from validation.step.executor import Executor
from validation.step.local import Judged, snapshot
from validation.step.walk import Walk, forced
from validation.subjects.kimi_k3.batch import batch_of
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Operation
from validation.subjects.kimi_k3.weights import Weights

OP, LAYER, RANK = "kda_decode", 1, 0
REQUESTS = 2
BLOCK = 64  # tokens drawn at a time
DRAWS = 1000  # of one block


@dataclass(frozen=True)
class Sharp:
    """The smallest errors that a comparison finds: relative error of the whole state, made once, and made
    anew at every token."""

    tokens: int
    once: float
    drift: float


@dataclass
class Memory:
    """``scores``: (tokens, excess, limit) at each comparison; ``found``: the first that failed."""

    scores: list[tuple[int, float, float]] = field(default_factory=list)
    sharp: list[Sharp] = field(default_factory=list)
    found: list[Divergence] = field(default_factory=list)
    judged: Judged | None = None


def compared_at(tokens: int) -> list[int]:
    """Powers of two, from a thousand on those of ten, and the last token."""
    powers = {2**n for n in range(20)} | {10**n for n in range(3, 6)}
    return sorted({n for n in powers if n < tokens} | {tokens})


def long_memory(
    config: Config,
    weights: Weights,
    executor: Executor,
    tokens: int,
    share: float,
    *,
    seed: int = 0,
    device: str = "cpu",
    advance: Callable[[int], None] = lambda tokens: None,
    kept: Path | None = None,
) -> Memory:
    """Run ``tokens`` tokens of the first KDA layer behind layer 0, on rank 0. ``share``: of the false-alarm
    budget, for all comparisons. ``kept``: a file in which progress is kept, and from which it goes on."""
    operation, a = _operation(config, weights, executor, device, seed)
    contract, checks = contract_named(OP), compared_at(tokens)
    noise = Noise(contract.profiles[executor.profile].on(a.state.device.type))
    reference = Carried.of(a.state[a.slots[:, 0].long()])
    g = torch.Generator(device).manual_seed(seed)
    result = Memory()
    run = _Kept(a, reference, g, result)
    first = progress.taken_up(kept, run.go_on) if kept else 0
    for number in range(first + 1, tokens + 1):
        place = (number - 1) % BLOCK
        if place == 0:
            block = _drawn(noise, a, g)
        a.projected.copy_(block.projected[:, place])
        clean = snapshot(a) if number in checks else None
        executor.run(operation, a)
        reference.advance(noise, block.token(place))
        if number in checks:
            judged = _judged(contract, operation, reference, clean, a, share / len(checks))
            excess = next(s for _, s in judged.statistics if s.name == "excess")
            result.scores.append((number, *excess.surplus))
            result.sharp.append(Sharp(number, *reference.smallest(excess.level)))
            if judged.failed:
                result.judged = judged
                result.found.append(replace(of_operation(number - 1, judged), op="long_memory"))
                break
        advance(number)
        if kept and place == BLOCK - 1 and number < tokens and progress.due(kept):
            progress.write(kept, *run.facts(number))
    if kept:
        kept.unlink(missing_ok=True)
    return result


@dataclass
class _Kept:
    """What a run needs to go on behind the last token of a block."""

    a: Any
    reference: Carried
    g: Generator
    result: Memory

    def facts(self, number: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        held = self.reference.parts() | {"conv_state": self.a.conv_state, "rows": self.a.state}
        sharp = [astuple(s) for s in self.result.sharp]
        said = {"number": number, "scores": self.result.scores, "sharp": sharp}
        return held | {"generator": self.g.get_state()}, said

    def go_on(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> int:
        """The token that the run was at."""
        for name, part in self.reference.parts().items():
            part.copy_(tensors[name])
        self.a.conv_state.copy_(tensors["conv_state"])
        self.a.state.copy_(tensors["rows"])
        self.g.set_state(tensors["generator"])
        self.result.scores = [(int(n), value, limit) for n, value, limit in facts["scores"]]
        self.result.sharp = [Sharp(*one) for one in facts["sharp"]]
        return int(facts["number"])


@dataclass
class _Block:
    """The next tokens: BF16 ``projected`` [request, token, column], and what the recurrence is given of
    them."""

    projected: Tensor
    given: Inputs

    def token(self, place: int) -> Inputs:
        parts = {f.name: getattr(self.given, f.name)[:, place : place + 1] for f in fields(Inputs)}
        return Inputs(**parts)


def _drawn(noise: Arithmetic, a: Any, g: Generator) -> _Block:
    """Tokens whose roundings are known. Another draw of one of them is in the windows of the next three."""
    requests, columns = a.projected.shape
    drawn = torch.zeros(requests, BLOCK, columns, dtype=a.projected.dtype, device=a.projected.device)
    new = torch.ones(requests, BLOCK, dtype=torch.bool, device=drawn.device)
    slots, accepted = a.slots[:, :1].expand(-1, BLOCK), torch.ones_like(a.accepted)
    for _ in range(DRAWS):
        fresh = torch.randn(drawn.shape, generator=g, device=drawn.device).to(drawn.dtype)
        drawn = torch.where(new[..., None], fresh, drawn)
        one = replace(a, projected=drawn.flatten(0, 1), slots=slots, accepted=accepted, tokens=BLOCK)
        given = inputs(noise, one)
        new = _uncertain(given)
        if not bool(new.any()):
            return _Block(drawn, given)
    raise UserError(f"of {DRAWS} draws none has only roundings that noise cannot flip")


def _uncertain(given: Inputs) -> Tensor:
    """Tokens with a jump in what the state is made of. bool [request, token]"""
    parts = [value.jump for value in (given.key, given.v, given.decay) if value.jump is not None]
    found = [(part > 0).flatten(2).any(2) for part in parts]
    quiet = torch.zeros(given.beta.shape[:2], dtype=torch.bool, device=given.beta.mean.device)
    return torch.stack([quiet, *found]).any(0)


def _spoiling(change: Callable[[Tensor, int], Tensor]) -> Callable[[Executor], Executor]:
    """Changes the states that every call has written, by the number of the token."""

    def faulty(right: Executor) -> Executor:
        count = itertools.count(1)

        def run(operation: Operation, a: Any) -> None:
            right.run(operation, a)
            slots = a.slots[:, 0].long()
            a.state[slots] = change(a.state[slots].double(), next(count)).float()

        return replace(right, run=run)

    return faulty


# Faults that must be found in so many tokens.
FOUND_WITHIN = 64
FORGETFUL = {
    "state wiped at token 5": _spoiling(lambda state, token: state * (token != 5)),
    "state that loses 1e-3 a token": _spoiling(lambda state, token: state * (1 - 1e-3)),
    "state that loses 1e-6 a token": _spoiling(lambda state, token: state * (1 - 1e-6)),
    "state kept in BF16": _spoiling(lambda state, token: state.bfloat16()),
}


def _operation(
    config: Config, weights: Weights, executor: Executor, device: str, seed: int
) -> tuple[Operation, Any]:
    """The operation and its arguments, bound to the state of two new requests."""
    walk = Walk(config, weights, executor, None, checks=False, device=device, seed=seed, most=REQUESTS)
    for _ in range(REQUESTS):
        walk.admit()
    (ids,) = forced(config, REQUESTS, 1, seed=seed)
    binding = walk.binding(batch_of(config, walk.requests, ids))
    all_layers = [o for o in walk.program(1) if (o.op, o.rank) == (OP, RANK)]
    found = next((o for o in all_layers if o.layer >= LAYER), all_layers[-1])
    return found, found.arguments(binding)


def _judged(
    contract: Contract, operation: Operation, reference: Carried, clean: Any, outcome: Any, share: float
) -> Judged:
    """The executor's state against the reference's: excess and what is not finite."""
    output = next(o for o in contract.outputs if o.name == "state")
    predicted: Value = reference.predicted()
    observed = reference.forgiven(output.view(outcome))
    found = assess(contract, output, observed, {"state": predicted}, share)
    kept = [("state", s) for s in found if s.name in ("excess", "nonfinite")]
    return Judged(operation, kept, clean, outcome)
