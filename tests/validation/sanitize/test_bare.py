"""Bare arguments: nothing around a tensor, and what must be written is not written."""

import torch

from validation.contracts import contract_named, contracts
from validation.contracts.contract import Case, tensor_specs
from validation.contracts.guarded import bits
from validation.sanitize import bare

DECODE = Case.parse("kda_decode:heads=2,dim=60,requests=2:unit_state:90")


def test_a_strided_tensor_has_memory_from_its_first_element_to_its_last():
    tensor = bare.bare(torch.zeros(3, 4), (10, 2), "cpu")
    assert tensor.stride() == (10, 2)
    assert tensor.untyped_storage().nbytes() == 4 * (2 * 10 + 3 * 2 + 1)


def test_no_elements_need_no_memory():
    assert bare.bare(torch.zeros(0, 4), (10, 2), "cpu").untyped_storage().nbytes() == 0


def test_values_and_strides_are_those_of_the_case():
    placed, clean = bare.arguments(DECODE, "cpu"), contract_named("kda_decode").build(DECODE)
    strides = contracts()["kda_decode"].strides(clean)
    assert strides
    for name, spec in tensor_specs(clean).items():
        tensor = getattr(placed, name)
        if name in strides:
            assert tensor.stride() == strides[name]
        if spec.access != "write":
            assert bits(tensor).equal(bits(getattr(clean, name))), name


def test_what_must_be_written_is_not_filled(monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda size, **k: torch.zeros(size, **k) + 7)
    placed = bare.arguments(DECODE, "cpu")
    assert bool((placed.out == 7).all())
