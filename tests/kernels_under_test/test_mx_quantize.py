"""The quantising kernel on every BF16 pattern, and what it refuses."""

import pytest
import torch

from kernels_under_test.interpreter import device
from kernels_under_test.torch_stock.mx_quantize import mx_quantize as stock
from kernels_under_test.triton_portable.mx_quantize import mx_quantize
from tests.kernels_under_test.memory import spread
from validation.contracts.moe.quantize import MxQuantizeArguments
from validation.errors import UserError


def arguments(x: torch.Tensor, rule: str) -> MxQuantizeArguments:
    rows, width = x.shape
    codes = torch.full((rows, width + 16), 0xA5, dtype=torch.uint8, device=device())
    scales = torch.full((rows, width // 32 + 3), 0xA5, dtype=torch.uint8, device=device())
    return MxQuantizeArguments(spread(x), codes[:, :width], scales[:, : width // 32], rule)


def every_pattern() -> torch.Tensor:
    """All 65,536 BF16 values, 32 neighbours a block: every exponent and sign as a maximum, all NaN blocks."""
    return torch.arange(65536).to(torch.int16).view(torch.bfloat16).reshape(16, 4096)


@pytest.mark.parametrize("rule", ["floor", "no_saturation"])
def test_every_pattern_agrees_with_the_tensor_operations(rule):
    a = arguments(every_pattern(), rule)
    b = arguments(every_pattern(), rule)
    mx_quantize(a)
    stock(b)
    assert torch.equal(a.scales, b.scales)
    nan = (a.codes & 0x7F) == 0x7F
    assert torch.equal(nan, (b.codes & 0x7F) == 0x7F)
    assert torch.equal(a.codes[~nan], b.codes[~nan])


@pytest.mark.parametrize("width", [32, 96, 160])
def test_nothing_beyond_a_row_is_written(width):
    a = arguments(torch.ones(3, width, dtype=torch.bfloat16), "floor")
    mx_quantize(a)
    assert bool((a.codes == 0x78).all())
    assert bool((a.scales == 119).all())
    for field, size in (("codes", width + 16), ("scales", width // 32 + 3)):
        tensor = getattr(a, field)
        beyond = tensor.as_strided((3, size - tensor.shape[1]), (size, 1), tensor.shape[1])
        assert bool((beyond == 0xA5).all())


def test_a_broken_block_is_refused_before_launch():
    with pytest.raises(UserError, match="whole blocks of 32; the width is 33"):
        mx_quantize(arguments(torch.ones(1, 33, dtype=torch.bfloat16), "floor"))
