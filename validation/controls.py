"""Negative controls on the spot: faults planted in the outputs of the run at hand, which the judge must
notice.

They prove that this judgement, at this shape and with these limits, could have failed. They do not measure
sensitivity to subtle faults; ``lockstep qualify`` does, with faults planted inside the operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from validation.contracts.contract import Output

TILE = 8


def planted(output: Output, observed: Tensor, before: Tensor) -> Iterator[Tensor]:
    """Faulty copies of ``observed``; ``before`` is the same view of the arguments before the run.

    Integers: a bit flipped; a stale fragment. Else: one element halved; a stale fragment of eight elements;
    for FP32 state, a drift of 1e-3. A copy that happens to equal the original is not yielded.
    """
    usable = torch.isfinite(observed) & (observed != 0)
    if not bool(usable.any()):
        return
    if not observed.is_floating_point():
        yield from _differing(observed, (_other_integer(observed), _stale_fragment(observed, before)))
        return
    yield from _differing(
        observed,
        (_one_element(observed, usable), _stale_fragment(observed, before), _drift(output, observed)),
    )


def _differing(observed: Tensor, faults: Iterable[Tensor | None]) -> Iterator[Tensor]:
    for fault in faults:
        if fault is None:
            continue
        same = (fault == observed) | ((fault != fault) & (observed != observed))
        if not bool(same.all()):
            yield fault


def _one_element(observed: Tensor, usable: Tensor) -> Tensor:
    flat = int(torch.where(usable, observed.abs(), torch.zeros_like(observed)).argmax())
    fault = observed.clone(memory_format=torch.contiguous_format)
    fault.view(-1)[flat] *= 0.5
    return fault


def _other_integer(observed: Tensor) -> Tensor:
    """The lowest bit of the first element is flipped."""
    fault = observed.clone(memory_format=torch.contiguous_format)
    fault.view(-1)[0] = fault.view(-1)[0] ^ 1
    return fault


def _stale_fragment(observed: Tensor, before: Tensor) -> Tensor | None:
    """The last eight elements of the last axis keep what was there before (or, for fresh outputs, zeros)."""
    if observed.ndim == 0 or observed.shape[-1] < 2:
        return None
    fault = observed.clone(memory_format=torch.contiguous_format)
    fault[..., -TILE:] = before[..., -TILE:]
    return fault


def _drift(output: Output, observed: Tensor) -> Tensor | None:
    return observed * 0.999 if output.format == "fp32" and not output.exact else None
