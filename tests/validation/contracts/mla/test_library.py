"""The noise of a library that rounds softmax weights to BF16 is the noise of doing so."""

import torch

from validation.contracts.mla.attention import LIBRARY
from validation.contracts.mla.library import scaled_keys, with_rounded_weights
from validation.numerics.arithmetic import Noise
from validation.numerics.value import Value


def test_rounded_weights_are_off_as_much_as_predicted():
    """Weights rounded relative to another maximum in each of 400 rows: mean square 1, within 5 deviations."""
    g = torch.Generator().manual_seed(5)
    rows, keys, width = 400, 60, 16
    e = torch.exp(-3 * torch.rand(rows, keys, generator=g, dtype=torch.float64))
    e[:, 0] = 1.0
    base = torch.rand(rows, 1, generator=g, dtype=torch.float64) * 2
    rounded = (e * torch.exp(base)).bfloat16().double() * torch.exp(-base)
    rounded[:, 0] = 1.0  # its own maximum: exactly 1 whatever came before
    values = torch.randn(keys, width, generator=g, dtype=torch.float64)
    ar = Noise(LIBRARY)
    exact = (e @ values) / e.sum(-1, keepdim=True)
    predicted = with_rounded_weights(ar, Value(ar, exact), Value(ar, e), values)
    found = (rounded @ values) / e.sum(-1, keepdim=True)
    square = ((found - exact) ** 2 / predicted.variance).mean(-1)
    assert abs(float(square.mean()) - 1) < 5 * float(square.std()) / rows**0.5 + 0.25  # a binade: 1 to 4


def test_a_single_weight_is_exact():
    ar = Noise(LIBRARY)
    one = Value(ar, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    values = torch.ones(2, 3, dtype=torch.float64)
    assert not with_rounded_weights(ar, Value(ar, values[:1]), one, values).variance.any()


def test_keys_are_scaled_and_then_rounded():
    """0x38 is 1, 0x3D is 1.625, 0x7F is NaN; 1.625 * 0.3 is no BF16 number."""
    keys = scaled_keys(torch.tensor([0x38, 0x3D, 0x7F], dtype=torch.uint8), 0.3)
    assert keys.dtype == torch.bfloat16
    assert keys[:2].tolist() == torch.tensor([0.3, 0.4875]).bfloat16().tolist()
    assert keys[2].isnan()
