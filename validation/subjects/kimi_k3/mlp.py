"""The MLP of a layer: dense, or latent mixture of experts with shared experts (section 2.1, step 2d).

Catches: nothing by itself. Cannot represent: the fused kernels of one or two rows (contract ``small_batch``
judges those) and the side stream of the shared experts.
"""

from __future__ import annotations

from validation.contracts.dense import DenseMlpArguments
from validation.contracts.moe.experts_arguments import ExpertsArguments
from validation.contracts.moe.front import MoeFrontArguments
from validation.contracts.moe.quantize import MxQuantizeArguments
from validation.contracts.moe.route import RouteArguments
from validation.contracts.moe.shared import SharedExpertArguments
from validation.contracts.moe.tail import MoeTailArguments
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Binding, Operation, Program


def dense(c: Config, layer: int) -> Program:
    """``second`` -> ``delta``, summed over ranks."""

    def arguments(b: Binding) -> DenseMlpArguments:
        rows = b.batch.rows
        return DenseMlpArguments(
            x=b.scratch.second[:rows],
            gate_up=b.weight(layer, "gate_up"),
            down=b.weight(layer, "down"),
            out=b.scratch.delta[:rows],
        )

    return [Operation("dense_mlp", layer, -1, arguments)]


def moe(c: Config, layer: int) -> Program:
    """Front, routing, quantisation, every rank's experts, shared experts, tail."""
    found = [Operation("moe_front", layer, -1, lambda b: _front(b, layer))]
    found += [Operation("route", layer, -1, lambda b: _route(b, layer))]
    found += [Operation("mx_quantize", layer, -1, _quantize)]
    found += [Operation("experts", layer, rank, _experts(layer, rank)) for rank in range(c.ranks)]
    found += [Operation("shared_expert", layer, -1, lambda b: _shared(b, layer))]
    return [*found, Operation("moe_tail", layer, -1, lambda b: _tail(b, layer))]


def _front(b: Binding, layer: int) -> MoeFrontArguments:
    s, rows = b.scratch, b.batch.rows
    return MoeFrontArguments(
        h=s.second[:rows],
        router=b.weight(layer, "router"),
        down=b.weight(layer, "latent_down"),
        logits=s.router_logits[:rows],
        latent=s.latent[:rows],
    )


def _route(b: Binding, layer: int) -> RouteArguments:
    s, rows = b.scratch, b.batch.rows
    return RouteArguments(
        logits=s.router_logits[:rows],
        bias=b.weight(layer, "route_bias"),
        ids=s.ids[:rows],
        weights=s.route_weights[:rows],
        scale=b.config.routed_scale,
    )


def _quantize(b: Binding) -> MxQuantizeArguments:
    s, rows = b.scratch, b.batch.rows
    return MxQuantizeArguments(x=s.latent[:rows], codes=s.codes[:rows], scales=s.scales[:rows])


def _experts(layer: int, rank: int):  # type: ignore[no-untyped-def]
    def arguments(b: Binding) -> ExpertsArguments:
        s, rows = b.scratch, b.batch.rows
        return ExpertsArguments(
            x=s.codes[:rows],
            x_scale=s.scales[:rows],
            ids=s.ids[:rows],
            weights=s.route_weights[:rows],
            w13=b.weight(layer, "w13")[rank],
            w13_scale=b.weight(layer, "w13_scale")[rank],
            w2=b.weight(layer, "w2")[rank],
            w2_scale=b.weight(layer, "w2_scale")[rank],
            out=s.routed[rank, :rows],
            rows=None,
            live=b.config.live_moe,
            hidden_rule="floor" if b.config.floor_rule else "no_saturation",
        )

    return arguments


def _shared(b: Binding, layer: int) -> SharedExpertArguments:
    s, rows = b.scratch, b.batch.rows
    return SharedExpertArguments(
        h=s.second[:rows],
        gate_up=b.weight(layer, "shared_gate_up"),
        down=b.weight(layer, "shared_down"),
        partial=s.shared_partial[:, :rows],
        out=s.shared[:rows],
    )


def _tail(b: Binding, layer: int) -> MoeTailArguments:
    s, rows = b.scratch, b.batch.rows
    return MoeTailArguments(
        latent=s.routed[:, :rows],
        rows=s.no_pairs,
        weights=s.no_weights,
        shared=s.shared_partial[:, :rows],
        gamma=b.weight(layer, "latent_gamma"),
        up=b.weight(layer, "up"),
        out=s.delta[:rows],
        eps=b.config.eps,
    )
