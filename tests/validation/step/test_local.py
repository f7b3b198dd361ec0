"""Operations of a running step judged on their own arguments; captures of those that are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from step_case import small

from validation.contracts import contract_named
from validation.errors import UserError
from validation.step.capture import captured, load_capture, save_capture
from validation.step.executor import Executor, provider, vanilla
from validation.step.walk import Diverged, Walk, forced
from validation.subjects.kimi_k3.weights import random_weights

SHARE = 1e-8


def _walk(executor: Executor, drafts: int = 0, **more: object) -> Walk:
    config = small(drafts)
    walk = Walk(config, random_weights(config), executor, SHARE, **more)  # type: ignore[arg-type]
    walk.admit(), walk.admit()
    return walk


@pytest.mark.parametrize("profile", ["stock", "specialized"])
def test_the_reference_agrees_with_itself(profile: str) -> None:
    walk = _walk(vanilla(profile))
    for ids in forced(walk.config, 2, 2):
        walk.step(ids)
    assert walk.found == []


def test_stock_steps_agree_plain_and_verified() -> None:
    walk = _walk(provider("torch"), drafts=2)
    for ids in forced(walk.config, 2, 2):
        walk.step(ids)
    for ids in forced(walk.config, 2, 2, 3):
        walk.step(ids, [1, 3])
    assert walk.found == []


def test_scores_of_a_step_are_those_that_the_noise_predicts() -> None:
    """Mean square 1 where the store dominates: the limits are neither wide nor narrow."""
    squares: dict[tuple[str, str], list[float]] = {}
    walk = _walk(provider("torch"))
    walk.seen = lambda step, judged: [
        squares.setdefault((judged.operation.op, name), []).append(s.mean_square)
        for name, s in judged.statistics
        if s.mean_square is not None
    ]
    for ids in forced(walk.config, 2, 3):
        walk.step(ids)
    for pair in (("attn_res", "out"), ("projection", "out"), ("experts", "out"), ("kda_decode", "out")):
        mean = sum(squares[pair]) / len(squares[pair])
        assert 0.85 < mean < 1.15, pair


def test_one_wrong_element_is_named_with_its_place() -> None:
    right = provider("torch")

    def run(operation, a):  # type: ignore[no-untyped-def]
        right.run(operation, a)
        if (operation.op, operation.layer) == ("dense_mlp", 0):
            a.out[1, 17] = a.out[1, 17] * 1.125

    walk = _walk(replace(right, run=run))
    walk.step(forced(walk.config, 2, 1)[0])
    first = walk.first()
    assert first is not None
    assert (first.step, first.layer, first.op, first.output) == (0, 0, "dense_mlp", "out")
    assert first.element == "row 1, column 17"
    assert first.words() == "step 0, layer 0, dense_mlp: out excess"
    assert len(walk.found) == 1  # those behind it start from what it left


def test_an_input_that_is_written_is_named() -> None:
    right = provider("torch")

    def run(operation, a):  # type: ignore[no-untyped-def]
        right.run(operation, a)
        if (operation.op, operation.rank) == ("projection", 1):
            a.x[0, 0] += 1

    walk = _walk(replace(right, run=run), stop=True)
    with pytest.raises(Diverged):
        walk.step(forced(walk.config, 2, 1)[0])
    first = walk.first()
    assert first is not None
    assert (first.op, first.rank, first.output, first.statistic) == ("projection", 1, "x", "input_changed")


@pytest.mark.parametrize(
    ("op", "field"), [("kda_decode", "state"), ("kda_decode", "conv_state"), ("mla_query", "cache")]
)
def test_state_of_another_that_is_written_is_named(op: str, field: str) -> None:
    right = provider("torch")

    def run(operation, a):  # type: ignore[no-untyped-def]
        contract = contract_named(operation.op)
        touched = contract.touched(a) if operation.op == op else {}
        right.run(operation, a)
        if (operation.op, operation.rank) == (op, 1):
            strangers = (~touched[field]).nonzero()
            getattr(a, field)[tuple(strangers[len(strangers) // 2])] = 3

    walk = _walk(replace(right, run=run), stop=True)
    with pytest.raises(Diverged):
        walk.step(forced(walk.config, 2, 1)[0])
    first = walk.first()
    assert first is not None
    assert (first.op, first.rank, first.output, first.statistic) == (op, 1, field, "untouched_changed")


def test_a_kernel_that_was_not_launched_is_named() -> None:
    """Torch launches none of Triton's."""
    walk = _walk(replace(provider("torch"), launching=frozenset({"dense_mlp"})))
    walk.step(forced(walk.config, 2, 1)[0])
    assert {(d.op, d.statistic) for d in walk.found} == {("dense_mlp", "dispatch")}


def _captured(tmp_path: Path) -> tuple[Walk, Path]:
    right = provider("torch")

    def run(operation, a):  # type: ignore[no-untyped-def]
        right.run(operation, a)
        if operation.op == "route":
            a.weights[0, 0] *= 2

    walk = _walk(replace(right, run=run, name="faulty"))
    walk.step(forced(walk.config, 2, 1)[0])
    assert walk.blamed is not None
    path = tmp_path / "capture.safetensors"
    save_capture(path, walk.config, walk.blamed, 0, walk.executor)
    return walk, path


def test_a_capture_fails_again_and_a_right_executor_passes_on_it(tmp_path: Path) -> None:
    walk, path = _captured(tmp_path)
    capture = load_capture(path, walk.config)
    assert capture.facts["op"] == "route"
    assert capture.judged(SHARE).failed
    assert capture.rerun(walk.executor, SHARE).failed
    assert not capture.rerun(provider("torch"), SHARE).failed
    again = capture.judged(SHARE).worst()
    assert again[0] == walk.found[0].output
    assert torch.equal(capture.clean.logits, walk.blamed.clean.logits)  # type: ignore[union-attr]


def test_a_capture_of_another_configuration_is_refused(tmp_path: Path) -> None:
    walk, path = _captured(tmp_path)
    other = small(drafts=1)
    assert load_capture(path, None).facts["configuration"] == walk.config.digest()
    with pytest.raises(
        UserError, match=f"configuration {walk.config.digest()}, this one is {other.digest()}"
    ):
        load_capture(path, other)
    with pytest.raises(UserError, match="cannot read the capture"):
        load_capture(tmp_path / "absent", other)
    (tmp_path / "text").write_text("no capture at all")
    with pytest.raises(UserError, match="is no capture"):
        load_capture(tmp_path / "text", other)


def test_a_damaged_capture_is_refused_whatever_is_missing(tmp_path: Path) -> None:
    walk, path = _captured(tmp_path)
    with safe_open(path, "pt") as opened:
        facts = json.loads(opened.metadata()["facts"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    broken = [(tensors, {k: v for k, v in facts.items() if k != name}) for name in facts]
    broken += [(tensors, facts | {name: "nonsense"}) for name in facts if name != "executor"]
    broken += [({k: v for k, v in tensors.items() if not k.endswith(".logits")}, facts)]
    broken += [(tensors, facts | {"model": facts["model"] | {"page": 32}})]
    broken += [(tensors | {"after.ids": tensors["after.ids"][:0]}, facts), (tensors, [1])]
    for held, said in broken:
        save_file(held, tmp_path / "damaged", {"facts": json.dumps(said)})
        if said != facts and isinstance(said, dict) and "executor" not in said:
            continue  # nothing depends on who it was
        for config in (walk.config, None):
            with pytest.raises(UserError, match=r"is damaged|is no capture|is a capture of configuration"):
                load_capture(tmp_path / "damaged", config)


def test_a_capture_that_cannot_be_written_costs_no_finding(tmp_path: Path) -> None:
    walk, path = _captured(tmp_path)
    assert walk.blamed is not None
    words = captured(tmp_path / "no" / "c.safetensors", walk.config, walk.blamed, 0, walk.executor)
    assert words.startswith("not captured: ")
    assert captured(path, walk.config, walk.blamed, 0, walk.executor) == (
        f"captured: lockstep step --replay {path}"
    )


def test_an_executor_that_raises_is_named_in_one_line(tmp_path: Path) -> None:
    walk, path = _captured(tmp_path)

    def raises(operation, a):  # type: ignore[no-untyped-def]
        raise RuntimeError("no such luck")

    with pytest.raises(UserError, match="bad fails at route: RuntimeError: no such luck"):
        load_capture(path, walk.config).rerun(replace(walk.executor, run=raises, name="bad"), SHARE)
