"""Plant one fault in a walk and see what is blamed first.

Catches: nothing by itself. Cannot say: how small a fault may be; each is planted at one size.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from validation.step.budget import LOCAL_SHARE
from validation.step.executor import Executor
from validation.step.faults import Planted
from validation.step.scenarios import DRAFTS, first_divergence
from validation.step.walk import Walk
from validation.subjects.kimi_k3.config import Config, scaled
from validation.subjects.kimi_k3.weights import Weights, random_weights


@dataclass(frozen=True)
class Blamed:
    """``named``: the first divergence is at the operation or check that the fault must be blamed on."""

    kind: str
    fault: str
    found: bool
    named: bool
    first: str


@functools.lru_cache(maxsize=4)
def _model(drafts: int, seed: int) -> tuple[Config, Weights]:
    config = scaled(drafts=drafts, layers=5, block=2)
    return config, random_weights(config, seed)


def plant(fault: Planted, right: Executor, seed: int = 0) -> Blamed:
    """Walk the fault's scenario until something is wrong."""
    config, weights = _model(DRAFTS.get(fault.scenario, 0), seed)
    walk = Walk(config, weights, fault.executor(right), LOCAL_SHARE, fault.hooks(), seed=seed)
    first = first_divergence(walk, fault.scenario)
    named = first is not None and first.op == fault.blamed
    return Blamed(fault.kind, fault.name, first is not None, named, first.words() if first else "")
