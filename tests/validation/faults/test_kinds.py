"""Every plantable kind of public fault has a regime that exposes it, and planted faults that show it."""

from __future__ import annotations

import pytest

from validation.contracts import contract_named, contracts
from validation.faults.catalogue import FAULTS

# Kinds of the fault catalogue that can be planted in a kernel on one device.
PLANTABLE = (*(f"F{n:02d}" for n in range(1, 25)), "F31", "F32", "F45", "F48", "F50", "F51", "F53")
# Shown elsewhere: F11 by the second call of every first case (equal calls, equal bits),
# F53 by the record of launches against the dispatch table.
OTHERWISE = {"F11", "F53"}
OLDER = ("attn_res", "projection", "kda_decode", "kda_verify")  # their faults name no kind


def listed() -> set[str]:
    return {kind for c in contracts().values() for regime in c.regimes for kind in regime.kinds}


@pytest.mark.parametrize("kind", PLANTABLE)
def test_every_plantable_kind_has_a_regime(kind: str) -> None:
    assert kind in listed() | OTHERWISE


def test_every_operation_has_faults() -> None:
    assert set(FAULTS) == set(contracts())


@pytest.mark.parametrize("op", list(contracts()))
def test_every_operation_has_at_least_twenty_faults_of_kinds_that_their_regimes_list(op: str) -> None:
    faults = list(FAULTS[op]())
    names = {(f.name, f.profile, f.case) for f in faults}
    assert len(names) == len(faults)
    assert len({f.name for f in faults}) >= 20
    for fault in faults:
        if op not in OLDER:
            assert fault.kind in contract_named(op).regime(fault.case.regime).kinds, fault.name
