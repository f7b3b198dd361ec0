"""Both paths from the same state on forced tokens, each keeping its own: what adds up.

How far an honest backend drifts from the vanilla step is not typed in. It is measured on an ensemble of
honest variants (``honest``), run as further requests of one batch. Of every distance (KL divergence of the
next-token distributions, log-probability of the forced token, recurrent state, history and keys by layer) the
sum of squares up to a step is taken. Over variants its logarithm is taken for normal; the limit is the
predictive bound of Student's t at the test's share of the budget. Top-1 disagreements are judged one by one:
the vanilla margin must be within what the variants' own differences of those two logits allow.

Catches: drift and lost state that single operations hide. Cannot catch: what is smaller than honest backends
differ by, nor anything in a distance that no variant shows at all (reported as ``unjudged``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from validation.errors import UserError
from validation.step.divergence import Divergence, of_check
from validation.step.executor import Executor, vanilla
from validation.step.honest import honest
from validation.step.walk import Walk

MEMBERS = 24


@dataclass(frozen=True)
class Step:
    """One forced step: ids[request][token] and how many are accepted."""

    ids: list[list[int]]
    accepted: list[int]


@dataclass
class Reading:
    """What one walk left after a step: logits [request, token, vocabulary], and by (kind, layer) the live
    state of every request [request, number]."""

    logits: Tensor
    state: dict[tuple[str, int], Tensor]


def read(walk: Walk, logits: Tensor) -> Reading:
    """The state that the next step starts from, in float32."""
    state = {}
    for kind, layer, tensor in walk.state.buffers():
        parts = []
        for r in walk.requests:
            if kind == "recurrent":
                part = tensor[:, r.slots[r.accepted - 1]]
            elif kind == "conv":
                part = tensor[:, r.slots[0], :, r.accepted - 1 : r.accepted + 2]
            else:
                part = _newest_keys(walk, tensor, r.pages, r.length, r.accepted)
            parts.append(part.float().flatten().cpu())
        state[kind, layer] = torch.stack([p[: min(len(q) for q in parts)] for p in parts])
    return Reading(logits.float().cpu().unflatten(0, (len(walk.requests), -1)), state)


def _newest_keys(walk: Walk, cache: Tensor, pages: list[list[int]], length: int, accepted: int) -> Tensor:
    """The last accepted key of a request on every rank that holds it; on the first, where caches are
    sharded."""
    if walk.config.dcp > 1:
        return torch.zeros(1)
    page, last = walk.config.page, length - 1
    rows = [cache[rank, own[last // page], last % page] for rank, own in enumerate(pages)]
    return torch.stack(rows).view(torch.float8_e4m3fn)


def run(walk: Walk, steps: Sequence[Step], copies: int = 1) -> list[Reading]:
    """Walk the steps with ``copies`` of every request."""
    for _ in range(copies * len(steps[0].ids)):
        walk.admit()
    return [read(walk, walk.step(s.ids * copies, s.accepted * copies)) for s in steps]


@dataclass
class Ensemble:
    """Vanilla readings and those of ``members`` honest variants on the same steps."""

    steps: Sequence[Step]
    vanilla: list[Reading]
    honest: list[Reading]
    members: int


def ensemble(like: Walk, steps: Sequence[Step], members: int = MEMBERS, seed: int = 1) -> Ensemble:
    """Run vanilla and its variants with the model and the profile of ``like``."""
    if members < 4:
        raise UserError(f"{members} honest variants tell no spread; at least 4")
    requests, tokens = len(steps[0].ids), max(len(s.ids[0]) for s in steps)
    profile = like.executor.profile

    def walk(executor: Executor, count: int) -> Walk:
        rows = count * tokens
        return Walk(
            like.config,
            like.weights,
            executor,
            None,
            most=count,
            context=like.context,
            rows=rows,
            checks=False,
        )

    reference = run(walk(vanilla(profile), requests), steps)
    variants = run(walk(honest(profile, seed), requests * members), steps, members)
    return Ensemble(steps, reference, variants, members)


@dataclass
class Drift:
    """The judgement: ``scores`` are (what, step, value, limit), ``unjudged`` distances that no variant
    shows."""

    found: list[Divergence] = field(default_factory=list)
    scores: list[tuple[str, int, float, float]] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)


def judged(candidate: list[Reading], e: Ensemble, share: float) -> Drift:
    """Every distance at every checkpoint, and every top-1 disagreement. ``share``: of the budget, for all."""
    drift = Drift()
    distances = _distances(candidate, e, 1)
    spread = _distances(e.honest, e, e.members)
    checkpoints = _checkpoints(len(e.steps))
    each = share / 2 / (len(distances) * len(checkpoints))
    for name, own in distances.items():
        theirs = spread[name]
        quantum = theirs[theirs > 0].min() ** 2 if bool((theirs > 0).any()) else None
        if quantum is None:
            drift.unjudged.append(name)
            continue
        for step in checkpoints:
            value = float((own[: step + 1] ** 2).sum() + quantum)
            limit = predictive_limit((theirs[: step + 1] ** 2).sum((0, 2)) + quantum, each)
            if limit == math.inf:
                drift.unjudged.append(f"{name} after step {step}")
                continue
            drift.scores.append((name, step, math.sqrt(value), math.sqrt(limit)))
            if not value <= limit:
                drift.found.append(_divergence(name, step, math.sqrt(value), math.sqrt(limit)))
                break
    drift.found += _disagreements(candidate, e, share / 2)
    drift.found.sort(key=lambda d: d.step)
    return drift


def _divergence(name: str, step: int, value: float, limit: float) -> Divergence:
    kind, _, layer = name.partition(" of layer ")
    message = f"{kind} {value:.3g} from vanilla after step {step}; honest variants stay below {limit:.3g}"
    number = int(layer) if layer else -1
    return Divergence(step, number, "free_running", -1, kind, "excess", value, limit, "", "", message)


def _checkpoints(steps: int) -> list[int]:
    """Steps 3, 7, 15, ... and the last one."""
    found = [2**n - 1 for n in range(2, 20) if 2**n - 1 < steps - 1]
    return [*found, steps - 1]


def predictive_limit(squares: Tensor, share: float) -> float:
    """Above this the next honest value lies with probability ``share``, if logarithms are normal. [member]

    They are not always (a rare flip moves a distance by orders of magnitude), so the deviation is widened
    until every variant passes when it is judged by the others. Infinite where most variants are equal: they
    tell no spread."""
    from scipy import stats

    logs = squares.double().log()
    n = len(logs)
    if len(logs.unique()) <= n // 2:
        return math.inf
    quantile = float(stats.t.isf(share, n - 1))
    others = (logs.sum() - logs) / (n - 1)
    deviation = ((logs.square().sum() - logs.square()) / (n - 1) - others.square()).clamp(min=0)
    deviation = (deviation * (n - 1) / (n - 2)).sqrt().clamp(min=1e-12)
    reach = (logs - others) / (deviation * (1 + 1 / (n - 1)) ** 0.5 * float(stats.t.isf(share, n - 2)))
    widened = max(1.0, float(reach.max()))
    return float(torch.exp(logs.mean() + widened * quantile * (1 + 1 / n) ** 0.5 * logs.std()))


def normal_limit(differences: Tensor, share: float) -> float:
    """Above this the next honest difference lies with probability ``share``, in size, if differences are
    normal around 0; widened like ``predictive_limit``. [member]"""
    from scipy import stats

    x = differences.double()
    n = len(x)
    others = ((x.square().sum() - x.square()) / (n - 1)).sqrt().clamp(min=1e-30)
    widened = max(1.0, float((x.abs() / others).max()) / float(stats.t.isf(share / 2, n - 1)))
    return float(x.square().mean().sqrt()) * float(stats.t.isf(share / 2, n)) * widened


def _distances(readings: list[Reading], e: Ensemble, members: int) -> dict[str, Tensor]:
    """By name: distances from vanilla [step, request], or [step, member, request] of an ensemble."""
    found: dict[str, list[Tensor]] = {}
    for number, (mine, right) in enumerate(zip(readings, e.vanilla, strict=True)):
        logits = mine.logits.unflatten(0, (members, -1))
        ours, theirs = logits.log_softmax(-1), right.logits.log_softmax(-1)
        kl = (theirs.exp() * (theirs - ours)).sum(-1).clamp(min=0)
        found.setdefault("KL divergence", []).append(kl.sqrt().sum(-1))
        if number + 1 < len(e.steps):
            following = torch.tensor([row[0] for row in e.steps[number + 1].ids])
            place = torch.tensor(e.steps[number].accepted) - 1
            rows = torch.arange(len(following))
            change = ours[:, rows, place, following] - theirs[rows, place, following]
            found.setdefault("log-probability of the forced token", []).append(change.abs())
        for (kind, layer), state in mine.state.items():
            right_state = right.state[kind, layer]
            difference = (state.unflatten(0, (members, -1)) - right_state).norm(dim=-1)
            scale = right_state.norm(dim=-1).clamp(min=1e-30)
            found.setdefault(f"{kind} of layer {layer}", []).append(difference / scale)
    stacked = {name: torch.stack(parts) for name, parts in found.items()}
    return stacked if members > 1 else {name: part[:, 0] for name, part in stacked.items()}


def _disagreements(candidate: list[Reading], e: Ensemble, share: float) -> list[Divergence]:
    """Top-1 tokens that differ although the variants' noise does not reach the vanilla margin."""
    found = []
    count = sum(r.logits.shape[0] * r.logits.shape[1] for r in candidate)
    for step, (mine, right, theirs) in enumerate(zip(candidate, e.vanilla, e.honest, strict=True)):
        top, other = right.logits.argmax(-1), mine.logits.argmax(-1)
        variants = theirs.logits.unflatten(0, (e.members, -1))
        for place in torch.nonzero(top != other).tolist():
            a, b = int(top[tuple(place)]), int(other[tuple(place)])
            row = right.logits[tuple(place)]
            margin = float(row[a] - row[b])
            rows = variants[:, place[0], place[1]]
            limit = normal_limit((rows[:, a] - rows[:, b]) - margin, share / count)
            if margin > limit:
                message = f"top-1 is {b}, vanilla {a} by {margin:.3g}; noise allows {limit:.3g}"
                found.append(
                    of_check(step, "free_running", "top-1", message, count=1, where=f"request {place[0]}")
                )
    return found
