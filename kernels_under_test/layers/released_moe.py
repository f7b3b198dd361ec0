"""Routed experts by the released MXFP4 product ``triton_kernels.matmul_ogs`` (the copy in vLLM 0.33.0).

Weights are swizzled once into that library's layout for the device. BF16 activations, as it takes them on
Hopper.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels_under_test.layers.shapes import EXPERTS, TOP_K
from kernels_under_test.layers.weights import Moe
from kernels_under_test.vllm_release.tree import find


def library(name: str) -> Any:
    """A module of ``triton_kernels``: the installed one, or the one inside the release."""
    place = str(find().place / "vllm" / "third_party")
    if place not in sys.path:
        sys.path.append(place)
    return importlib.import_module(f"triton_kernels{'.' + name if name else ''}")


class Experts:
    """w13 and w2 of all experts, ready for the library; a call computes the weighted sum over 16 experts.
    ``activation`` makes hidden rows [row, f] of gate and up [row, 2 f]."""

    def __init__(self, w: Moe, activation: Callable[[Tensor], Tensor]) -> None:
        self._activation = activation
        self._ogs = library("matmul_ogs")
        self._routing = library("routing")
        self._topk = library("topk").topk
        library("matmul_ogs_details.opt_flags").update_opt_flags_constraints({"split_k": 1})
        self._w13, self._config13 = self._swizzled(w.w13, w.w13_scale)
        self._w2, self._config2 = self._swizzled(w.w2, w.w2_scale)

    def _swizzled(self, codes: Tensor, scales: Tensor) -> tuple[Any, Any]:
        tensor, layout = library("tensor"), library("tensor_details.layout")
        flex = library("numerics").InFlexData()
        scales = torch.nn.functional.pad(scales, (0, -scales.shape[-1] % 4))
        codes, scales = codes.transpose(-2, -1), scales.transpose(-2, -1)
        kind, options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        weight = tensor.convert_layout(tensor.wrap_torch_tensor(codes, dtype=tensor.FP4), kind, **options)
        kind, options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
        scale = tensor.convert_layout(tensor.wrap_torch_tensor(scales), kind, **options)
        context = self._ogs.FlexCtx(rhs_data=flex)
        return weight, self._ogs.PrecisionConfig(weight_scale=scale, flex_ctx=context)

    def __call__(self, x: Tensor, scores: Tensor, ids: Tensor, weights: Tensor, out: Tensor) -> None:
        # The library reads both with the stride of a dense row; what Inductor hands over may lie otherwise.
        # Ids of 32 bits: of 16 it makes a bit matrix by shifts in 16 bits, and half of the experts are lost.
        ids, weights = ids.contiguous(), weights.contiguous()
        _, ids, bitmatrix = self._topk(scores, TOP_K, apply_softmax=False, y_indx=ids)
        data, gather, scatter = self._routing.routing_from_bitmatrix(bitmatrix, weights, ids, EXPERTS, TOP_K)
        hidden = self._ogs.matmul_ogs(
            x, self._w13, None, data, gather_indx=gather, precision_config=self._config13
        )
        hidden = self._activation(hidden)
        self._ogs.matmul_ogs(
            hidden, self._w2, None, data, scatter_indx=scatter, precision_config=self._config2,
            gammas=data.gate_scal, y=out[None],
        )  # fmt: skip
