"""The program's data flow against a restatement of section 2.1 in float64, and steps against each other."""

from __future__ import annotations

import pytest
import torch
from step_case import Case, small
from torch import Tensor

from validation.step.executor import Executor, vanilla
from validation.subjects.kimi_k3.operation import Operation


def _bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).double()


class _Recorder:
    """What each operation of a step saw and left, by (operation, layer)."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], dict[str, Tensor]] = {}
        self.vanilla = vanilla("stock")

    def run(self, operation: Operation, a: object) -> None:
        self.vanilla.run(operation, a)
        tensors = {n: t.clone() for n, t in vars(a).items() if isinstance(t, Tensor)}
        self.seen.setdefault((operation.op, operation.layer), tensors)


def _mixed(case: Case, name: str, sources: list[Tensor], final: bool = False) -> Tensor:
    """RMSNorm of the softmax mixture of the sources; weights of the boundary ``name``."""
    w = {part: case.weights[f"{name}.{part}"].double() for part in ("score_gamma", "score_proj", "gamma")}
    scores = []
    for v in sources:
        normed = v / (v.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["score_gamma"]
        scores.append((normed * w["score_proj"]).sum(-1))
    shares = torch.softmax(torch.stack(scores, -1), -1)
    m = sum(shares[:, i, None] * v for i, v in enumerate(sources))
    m = _bf16(m) if final else m
    return _bf16(m / (m.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["gamma"])


def test_residual_stream_is_that_of_section_2_1() -> None:
    case, recorder = Case(small()), _Recorder()
    c = case.config
    ids = case.ids()
    case.step(Executor("recorder", "stock", recorder.run), ids)
    prefix, blocks, delta = None, [], None
    for layer in range(c.layers):
        writes = layer % c.attn_res_block == 0
        if layer == 0:
            table = case.weights["embedding"].flatten(0, 1)
            prefix = table[torch.tensor(ids).flatten()].double()
        else:
            prefix = _bf16(prefix + delta)
        sources = [*blocks, prefix]
        if writes:
            blocks = [*blocks, prefix]
        seen = recorder.seen["attn_res", layer]
        assert torch.equal(seen["out"].double(), _mixed(case, f"layers.{layer}.before", sources)), layer
        if layer in c.aux:
            assert torch.equal(seen["aux"].double(), prefix)
        after = recorder.seen["oproj", layer]
        a = _bf16(
            sum(_bf16(y.double() @ w.double().T) for y, w in zip(after["y"], after["weight"], strict=True))
        )
        prefix = a if writes else _bf16(prefix + a)
        assert torch.equal(after["prefix"].double(), prefix)
        assert torch.equal(after["out"].double(), _mixed(case, f"layers.{layer}.after", [*blocks, prefix])), (
            layer
        )
        delta = recorder.seen["dense_mlp" if layer == 0 else "moe_tail", layer]["out"].double()
    prefix = _bf16(prefix + delta)
    last = _mixed(case, "final", [*blocks, prefix], final=True)
    assert torch.equal(recorder.seen["attn_res", c.layers]["out"].double(), last)
    logits = _bf16(last @ case.weights["head"].flatten(0, 1)[: c.vocabulary].double().T)
    assert torch.equal(case.scratch.logits[0, :2, : c.vocabulary].double(), logits)
    assert len(blocks) == c.blocks


@pytest.mark.parametrize("dcp", [False, True])
def test_verify_step_equals_plain_steps(dcp: bool) -> None:
    """The keys, the history and the logits of four tokens at once are those of four steps, up to the state's
    FP32 roundings between them."""
    plain, verify = (Case(small(drafts=3, dcp=dcp)) for _ in range(2))
    first, ids = plain.ids(), plain.ids(4)
    one = vanilla("stock")
    for case in (plain, verify):
        case.step(one, first)
    rows = [plain.step(one, [[row[t]] for row in ids]) for t in range(4)]
    got = verify.step(one, ids).unflatten(0, (2, 4))
    assert sum(not torch.equal(got[:, t], rows[t]) for t in range(4)) == 0
    for layer, kv in verify.state.kv.items():
        assert torch.equal(kv, plain.state.kv[layer])
    for layer, state in verify.state.recurrent.items():
        for a, b in zip(verify.requests, plain.requests, strict=True):
            distance = (state[:, a.slots[3]] - plain.state.recurrent[layer][:, b.slots[0]]).abs().max()
            assert distance <= 4 * 2.0**-23 * state[:, a.slots[3]].abs().max()
            history = verify.state.conv[layer][:, a.slots[0], :, 3:6]
            assert torch.equal(history, plain.state.conv[layer][:, b.slots[0], :, :3])


def test_sharded_cache_gives_the_same_step() -> None:
    """Decode context parallelism changes where keys lie, not what a row is, up to its own roundings."""
    whole, sharded = Case(small()), Case(small(dcp=True))
    one = vanilla("specialized")
    for _ in range(5):
        ids = whole.ids()
        a, b = whole.step(one, ids), sharded.step(one, ids)
    assert (a.float() - b.float()).abs().max() < 0.1 * a.float().std()
    assert a.isfinite().all()
    stored = (sharded.state.kv[3] != 0x7F).any(-1).flatten(1).sum(1).tolist()
    assert sorted(stored) == [2 * 2, 2 * 3]  # of five positions of two requests


def test_padding_requests_change_nothing() -> None:
    alone, padded = Case(small(drafts=2)), Case(small(drafts=2))
    ids = alone.ids(3)
    a, b = alone.step(vanilla(), ids), padded.step(vanilla(), ids, padded=5)
    assert torch.equal(a, b[: len(a)])
    assert alone.state.digest() == padded.state.digest()
