"""The KDA core in plain FP32 torch, with one switch for every fault of the 40-fault study and for the faults
of a verify step.

``run(a, order, fault, stock)`` with ``fault=""`` is an honest kernel in the given summation order; ``stock``
rounds the convolution and the core output to BF16. The code follows the formulas, not any kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from validation.contracts.arguments import KdaArguments
from validation.faults.orders import Order

# Fault -> what is wrong. The first forty are the study's.
DECODE_FAULTS = {
    "dt_bias_dropped": "gate without dt_bias",
    "A_log_dropped": "gate with exp(A_log) = 1",
    "no_decay": "decay = 1",
    "exp2_for_exp": "decay = 2**gate",
    "lower_bound_-4.9": "bound -4.9",
    "gate_bf16": "gate rounded to BF16 before exp",
    "beta_bf16": "beta rounded to BF16",
    "beta_raw": "beta without sigmoid",
    "beta_one": "beta = 1",
    "decay_wrong_axis": "decay along v instead of k",
    "delta_uses_undecayed": "S k from the state before decay",
    "no_delta_correction": "S k taken as 0",
    "drop_last_k_tile": "S k over the first three quarters of k",
    "sign_flip_update": "S - d k^T",
    "no_update": "S not updated by d k^T",
    "output_before_update": "o from the decayed state before the update",
    "k_not_normalised": "k not normalised",
    "q_not_normalised": "q not normalised (the scale stays)",
    "q_scale_missing": "q without D**-0.5",
    "l2_eps_1e-3": "L2 eps 1e-3",
    "no_silu": "convolution without SiLU",
    "conv_tap_shift": "taps rotated by one",
    "conv_drop_oldest_tap": "oldest tap left out",
    "conv_state_not_written": "history not shifted",
    "state_bf16_store": "state stored as BF16",
    "state_drift_1e-3": "stored state times 0.999",
    "last_row_tile_stale": "the last 8 rows v keep the old state",
    "one_head_stale": "one head keeps the old state",
    "one_slot_stale": "one request keeps the old state",
    "state_zeroed": "state stored as zeros",
    "state_transposed": "state stored transposed",
    "state_never_written": "state not stored",
    "swap_two_slots": "two requests use each other's slot",
    "norm_eps_1e-3": "output norm eps 1e-3",
    "norm_weight_missing": "output norm without weight",
    "output_gate_missing": "no output gate",
    "gate_tanh": "tanh for the output gate's sigmoid",
    "bf16_accumulate": "o accumulated in BF16 term by term",
    "one_nan": "one NaN in out",
    "one_element_wrong": "one element of out off by 0.05",
}
VERIFY_FAULTS = {
    "accepted_ignored": "initial state always from the first slot",
    "accepted_plus_one": "initial state from the slot after the accepted one",
    "window_from_zero": "convolution window always from column 0",
    "window_off_by_one": "convolution window one column early",
    "history_not_shifted": "history written without its own taps",
    "state_to_first_slot": "every state to the first slot",
    "last_state_not_written": "the last token's state not stored",
    "states_late_by_one": "each slot gets the state before its token",
    "null_slot_written": "states of null entries go to slot 0",
    "gate_of_first_token": "every token decays with token 0's gate",
    "beta_of_next_token": "beta taken one token late",
    "tokens_reversed": "tokens run in reverse order",
    "state_bf16_between": "state rounded to BF16 between tokens",
    "output_of_token_0": "row 1 repeats the output of token 0",
}


def run(a: KdaArguments, order: Order, fault: str = "", stock: bool = False) -> None:
    """One step, in place, wrong in the way ``fault`` says."""
    requests, q = a.slots.shape
    slots, first = a.slots.long(), a.accepted.long() - 1
    if fault == "swap_two_slots":
        slots = slots[[1, 0, *range(2, requests)]]
    start = {"accepted_ignored": torch.zeros_like(first), "accepted_plus_one": (first + 1) % q}.get(
        fault, first
    )
    live = slots.gather(1, first[:, None])[:, 0] > 0
    a.out.zero_()
    if not bool(live.any()):
        return
    rows = a.projected.reshape(requests, q, -1)[live]
    slots, start, first = slots[live], start[live], first[live]
    z = _convolution(a, rows, slots[:, 0], first, order, fault, stock)
    old = a.state[slots.gather(1, start[:, None])[:, 0]]
    core, states = _recurrence(a, rows, z, old, order, fault)
    _store(a, slots, old, states, fault)
    if stock:
        core = _bf16(core)
    out = _gated_norm(a, rows, core, order, fault)
    if fault == "one_nan":
        out[0, 0, 0, 3] = float("nan")
    if fault == "one_element_wrong":
        out[0, 0, 0, 3] += 0.05
    if fault == "output_of_token_0":
        out[:, 1] = out[:, 0]
    a.out.reshape(requests, q, -1)[live] = out.reshape(len(rows), q, -1).bfloat16()


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _convolution(
    a: KdaArguments, rows: Tensor, slot: Tensor, first: Tensor, order: Order, fault: str, stock: bool
) -> Tensor:
    """SiLU of the convolution, FP32 [request, token, part, head, dim]; writes the history."""
    n, q = rows.shape[:2]
    column = {"window_from_zero": torch.zeros_like(first), "window_off_by_one": (first - 1).clamp(min=0)}
    begin = column.get(fault, first)
    index = (begin[:, None] + torch.arange(3, device=rows.device))[:, None].expand(-1, 3 * a.width, -1)
    taps = a.conv_state[slot].gather(2, index)
    window = torch.cat([taps, rows[..., : 3 * a.width].transpose(1, 2)], 2)
    kept = window[..., :-1] if fault == "history_not_shifted" else window[..., 1:]
    if fault != "conv_state_not_written":
        a.conv_state[slot, :, : 2 + q] = kept
    weight = a.conv_weight.reshape(4, -1)
    if fault == "conv_tap_shift":
        weight = weight.roll(1, 0)
    taps_used = range(1, 4) if fault == "conv_drop_oldest_tap" else range(4)
    u = torch.stack(
        [
            order.sum(torch.stack([window[..., t + j].float() * weight[j] for j in taps_used]), 0)
            for t in range(q)
        ],
        1,
    )
    z = u if fault == "no_silu" else u * torch.sigmoid(u)
    return (_bf16(z) if stock else z).reshape(n, q, 3, a.heads, a.head_dim)


def _decay(a: KdaArguments, rows: Tensor, order: Order, fault: str) -> Tensor:
    g = _bf16(order.matmul(rows[..., a.columns()["f_a"]], a.f_b))
    g = g.reshape(*rows.shape[:2], a.heads, a.head_dim)
    if fault != "dt_bias_dropped":
        g = g + a.dt_bias.reshape(a.heads, -1)
    if fault != "A_log_dropped":
        g = g * a.a_log.exp()[:, None]
    gate = (-4.9 if fault == "lower_bound_-4.9" else a.lower_bound) * torch.sigmoid(g)
    if fault == "gate_bf16":
        gate = _bf16(gate)
    if fault == "gate_of_first_token":
        gate = gate[:, :1].expand_as(gate)
    if fault == "no_decay":
        return torch.ones_like(gate)
    return torch.exp2(gate) if fault == "exp2_for_exp" else torch.exp(gate)


def _beta(a: KdaArguments, rows: Tensor, fault: str) -> Tensor:
    raw = rows[..., a.columns()["beta"]].float()
    if fault == "beta_raw":
        return raw
    beta = torch.ones_like(raw) if fault == "beta_one" else torch.sigmoid(raw)
    if fault == "beta_of_next_token":
        beta = beta.roll(-1, 1)
    return _bf16(beta) if fault == "beta_bf16" else beta


def _query_and_key(a: KdaArguments, z: Tensor, order: Order, fault: str) -> tuple[Tensor, Tensor]:
    eps = 1e-3 if fault == "l2_eps_1e-3" else a.eps_l2
    scale = 1.0 if fault == "q_scale_missing" else a.head_dim**-0.5

    def normalised(x: Tensor, skip: bool, factor: float) -> Tensor:
        inverse = torch.rsqrt(order.sum(x * x, -1) + eps)[..., None]
        return x * factor if skip else x * (inverse * factor)

    query = normalised(z[:, :, 0], fault == "q_not_normalised", scale)
    return query, normalised(z[:, :, 1], fault == "k_not_normalised", 1.0)


def _recurrence(
    a: KdaArguments, rows: Tensor, z: Tensor, state: Tensor, order: Order, fault: str
) -> tuple[Tensor, list[Tensor]]:
    """Core output [request, token, head, v] and the state after every token."""
    query, key = _query_and_key(a, z, order, fault)
    decay, beta = _decay(a, rows, order, fault), _beta(a, rows, fault)
    tokens = list(range(z.shape[1]))
    outputs: list[Tensor] = []
    states: list[Tensor] = []
    for t in reversed(tokens) if fault == "tokens_reversed" else tokens:
        k, q = key[:, t, :, None], query[:, t, :, None]
        before = state
        along = decay[:, t, :, :, None] if fault == "decay_wrong_axis" else decay[:, t, :, None]
        state = state * along
        correction = _correction(before if fault == "delta_uses_undecayed" else state, k, order, fault)
        update = ((z[:, t, 2] - correction) * beta[:, t, :, None])[..., None] * k
        decayed = state
        if fault != "no_update":
            state = state - update if fault == "sign_flip_update" else state + update
        read = decayed if fault == "output_before_update" else state
        outputs.append(_bf16_chain(read * q) if fault == "bf16_accumulate" else order.sum(read * q, -1))
        states.append(before if fault == "states_late_by_one" else state)
        if fault == "state_bf16_between":
            state = _bf16(state)
    return torch.stack(outputs, 1), states


def _correction(state: Tensor, k: Tensor, order: Order, fault: str) -> Tensor:
    if fault == "no_delta_correction":
        return torch.zeros_like(state[..., 0])
    if fault == "drop_last_k_tile":
        kept = state.shape[-1] * 3 // 4
        return order.sum((state * k)[..., :kept], -1)
    return order.sum(state * k, -1)


def _bf16_chain(terms: Tensor) -> Tensor:
    total = torch.zeros_like(terms[..., 0])
    for term in terms.unbind(-1):
        total = _bf16(total + term)
    return total


def _store(a: KdaArguments, slots: Tensor, old: Tensor, states: list[Tensor], fault: str) -> None:
    """State after token t to slots[:, t] where that is above 0."""
    if fault == "state_never_written":
        return
    for t, state in enumerate(states):
        if fault == "last_state_not_written" and t == len(states) - 1:
            continue
        target = slots[:, 0] if fault == "state_to_first_slot" else slots[:, t]
        stored = target >= 0 if fault == "null_slot_written" else target > 0
        a.state[target[stored]] = _damaged(state, old, fault)[stored]


def _damaged(state: Tensor, old: Tensor, fault: str) -> Tensor:
    state = state.clone()
    if fault == "state_bf16_store":
        return _bf16(state)
    if fault == "state_drift_1e-3":
        return state * 0.999
    if fault == "state_zeroed":
        return torch.zeros_like(state)
    if fault == "state_transposed":
        return state.transpose(-1, -2)
    if fault == "last_row_tile_stale":
        state[..., -8:, :] = old[..., -8:, :]
    if fault == "one_head_stale":
        head = 5 % state.shape[1]
        state[:, head] = old[:, head]
    if fault == "one_slot_stale":
        request = 2 % state.shape[0]
        state[request] = old[request]
    return state


def _gated_norm(a: KdaArguments, rows: Tensor, core: Tensor, order: Order, fault: str) -> Tensor:
    eps = 1e-3 if fault == "norm_eps_1e-3" else a.eps
    gate = rows[..., a.columns()["gate"]].float().reshape(core.shape)
    out = core * torch.rsqrt(order.sum(core * core, -1)[..., None] * (1.0 / a.head_dim) + eps)
    if fault != "norm_weight_missing":
        out = out * a.norm_weight.float()
    if fault == "output_gate_missing":
        return out
    return out * (torch.tanh(gate) if fault == "gate_tanh" else torch.sigmoid(gate))
