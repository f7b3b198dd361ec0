"""Contracts, one module per operation family; ``contract_named`` finds one by its name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from validation.contracts.contract import Contract
from validation.errors import UserError

# Module under this package and name in it, in the order of the decode step.
_CONTRACTS = (
    ("vocabulary.embedding", "CONTRACT"),
    ("attn_res", "CONTRACT"),
    ("projection", "CONTRACT"),
    ("kda", "DECODE"),
    ("kda", "VERIFY"),
    ("mla.query", "CONTRACT"),
    ("mla.attention", "CONTRACT"),
    ("mla.value", "CONTRACT"),
    ("mla.dcp", "CONTRACT"),
    ("oproj", "CONTRACT"),
    ("dense", "CONTRACT"),
    ("moe.front", "CONTRACT"),
    ("moe.route", "CONTRACT"),
    ("moe.quantize", "CONTRACT"),
    ("moe.experts", "CONTRACT"),
    ("moe.shared", "CONTRACT"),
    ("moe.tail", "CONTRACT"),
    ("moe.small_batch", "CONTRACT"),
    ("vocabulary.logits", "CONTRACT"),
    ("vocabulary.reject", "CONTRACT"),
    ("prefetch", "CONTRACT"),
)


@cache
def contracts() -> dict[str, Contract]:
    """All contracts by name, in the order of the decode step."""
    found = [getattr(import_module(f"{__name__}.{module}"), name) for module, name in _CONTRACTS]
    return {contract.name: contract for contract in found}


def contract_named(name: str) -> Contract:
    known = contracts()
    if name not in known:
        raise UserError(f"unknown operation '{name}'; known: {', '.join(known)}")
    return known[name]
