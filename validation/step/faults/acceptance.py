"""Verify steps: accepted counts, windows and rollback (F28 to F31, F44, F53).

Catches and cannot catch: see the package.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from validation.step.faults.planted import KDA, Planted, afterwards, changed, frozen, instead, permuted
from validation.subjects.kimi_k3.operation import Operation


def _one_more(operation: Operation, a: Any) -> Any:
    return replace(a, accepted=(a.accepted + 1).clamp(max=a.tokens))


def _too_short_window(operation: Operation, a: Any) -> Any:
    slots = a.slots.clone()
    slots[:, 2:] = 0
    return replace(a, slots=slots)


def _rewound(a: Any) -> None:
    """The history moves on by one column less."""
    slots = a.slots[a.slots[:, 0] > 0, 0].long()
    history = a.conv_state[slots]
    a.conv_state[slots] = torch.cat([history[..., :1], history[..., :-1]], -1)


_IGNORED = changed("accepted", torch.ones_like)
FAULTS = (
    Planted("F28", "accepted_off_by_one", KDA, "verify", instead(KDA, _one_more)),
    Planted("F28", "accepted_ignored", KDA, "verify", instead(KDA, _IGNORED)),
    Planted("F29", "window_too_short", KDA, "verify", instead(KDA, _too_short_window)),
    Planted("F29", "history_rewound_wrongly", KDA, "verify", afterwards(KDA, _rewound)),
    Planted("F30", "accepted_not_permuted", KDA, "verify", instead(KDA, changed("accepted", permuted))),
    Planted("F30", "slots_not_permuted", KDA, "verify", instead(KDA, changed("slots", permuted))),
    Planted("F44", "slots_baked_in", KDA, "verify", frozen(KDA, "slots")),
    Planted("F44", "accepted_baked_in", KDA, "verify", frozen(KDA, "accepted")),
    Planted("F53", "plain_core_for_verify", KDA, "verify", instead(KDA, _IGNORED, 2)),
)
