"""Contracts, one module per operation family; ``contract_named`` finds one by its name."""

from __future__ import annotations

from functools import cache

from validation.contracts.contract import Contract
from validation.errors import UserError


@cache
def contracts() -> dict[str, Contract]:
    """All contracts by name, in the order of the decode step."""
    from validation.contracts import attn_res, kda, projection

    found = (attn_res.CONTRACT, projection.CONTRACT, kda.DECODE, kda.VERIFY)
    return {contract.name: contract for contract in found}


def contract_named(name: str) -> Contract:
    known = contracts()
    if name not in known:
        raise UserError(f"unknown operation '{name}'; known: {', '.join(known)}")
    return known[name]
