"""Numbers: drift, coarser state, poison, another rule of quantisation (F06, F31, F51, F53).

Catches and cannot catch: see the package.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from validation.step.faults.planted import KDA, Planted, afterwards, at_step, instead
from validation.step.walk import Hooks, Walk

SLOWLY = 0.999


def _written_slots(a: Any) -> Tensor:
    return a.slots[a.slots > 0].long()


def _bf16_between_tokens(a: Any) -> None:
    slots = a.slots[:, 1:][a.slots[:, 1:] > 0].long()
    a.state[slots] = a.state[slots].bfloat16().float()


def _bf16_state(a: Any) -> None:
    a.state[_written_slots(a)] = a.state[_written_slots(a)].bfloat16().float()


def _drift(a: Any) -> None:
    a.state[_written_slots(a)] *= SLOWLY


def _nan_state(a: Any) -> None:
    a.state[_written_slots(a)[0], 0, 0, 0] = float("nan")


def _slow_drift(walk: Walk) -> None:
    if walk.number:
        for tensor in walk.state.recurrent.values():
            tensor[:, walk.requests[0].slots] *= SLOWLY


def _poisoned(walk: Walk) -> None:
    walk.state.recurrent[1][0, walk.requests[0].slots[0], 0, 0, 0] = float("nan")


_FLOOR = instead("mx_quantize", lambda operation, a: replace(a, rule="floor"))
FAULTS = (
    Planted("F06", "drift_in_core", "kda_decode", "plain", afterwards("kda_decode", _drift)),
    Planted("F06", "drift_between_steps", "continuity", "plain", hooks=lambda: Hooks(between=_slow_drift)),
    Planted("F06", "bf16_state", "kda_decode", "plain", afterwards("kda_decode", _bf16_state)),
    Planted("F31", "verify_rounds_state", KDA, "verify", afterwards(KDA, _bf16_between_tokens)),
    Planted("F51", "nan_between_steps", "continuity", "plain", hooks=lambda: at_step(2, _poisoned)),
    Planted("F51", "nan_from_core", KDA, "verify", afterwards(KDA, _nan_state)),
    Planted("F53", "block_scale_rule", "mx_quantize", "plain", _FLOOR),
)
