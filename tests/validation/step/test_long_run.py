"""Windows of a long run, plain and drafted: right executors pass; state that is wiped, drifts, loses
precision or is rolled back wrongly is found in its first windows and named; a run goes on from its cut."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from step_case import small

from validation.errors import UserError
from validation.step import jitter, limits, progress
from validation.step.executor import Executor, provider, vanilla
from validation.step.faults import step_faults
from validation.step.long_run import LongRun, Pace, Paths, compare, long_run
from validation.step.long_walk import _said
from validation.step.walk import Hooks, Walk
from validation.subjects.kimi_k3.weights import random_weights

SHARE = 1e-8


@functools.cache
def _weights():  # type: ignore[no-untyped-def]
    return random_weights(small())


@functools.cache
def _limits() -> dict[str, float]:
    """Those that the command takes, of windows of 25 steps: shorter windows are below them all the more."""
    pairs = limits.Pairs(small(), _weights(), ("stock", "stock"), 25, drawn=0)
    return limits.limits(limits.squares(pairs), SHARE)


DRAFTS = 3


@functools.cache
def _drafting():  # type: ignore[no-untyped-def]
    """The model that drafts, and limits of its windows: those of moved pairs, with nothing taken off."""
    config = small(DRAFTS)
    weights = random_weights(config)
    pairs = limits.Pairs(config, weights, ("stock", "stock"), 8)
    both = [jitter.moved(provider("inductor"), seed) for seed in (1, 2)]
    return config, weights, limits.limits(limits.ran(pairs, both, 12, 1, lambda words: None), SHARE)


def _drafted(executor: Executor, pace: Pace, hooks: Hooks | None = None, kept: Path | None = None) -> LongRun:
    config, weights, known = _drafting()
    paths = Paths(executor, provider("inductor"), known, SHARE)
    return long_run(config, weights, paths, pace, hooks=hooks, kept=kept)


def test_another_backend_passes_over_drafted_windows() -> None:
    pace = Pace(16, window=8, renewed=1, counts=(2, 3), sizes=(2, 4), judged=2, lasting=True)
    run = _drafted(provider("torch"), pace)
    assert run.found == []
    assert (run.steps, run.verified, run.judged) == (16, 11, 2)
    assert 0 < max(run.largest.values()) < 1
    assert run.unjudged == []


@pytest.mark.parametrize(
    "name", ["accepted_off_by_one", "accepted_baked_in", "history_rewound_wrongly", "slots_not_permuted"]
)
def test_a_wrong_rollback_is_found_and_blamed_on_the_core(name: str) -> None:
    """No step behind the first is judged: distances call for the place."""
    run = _drafted(_fault(name).executor(provider("torch")), Pace(8, window=8))
    assert run.found[0].op == "kda_verify"
    assert run.place is not None
    assert run.place.judged is not None
    assert run.place.judged.failed


def test_a_state_changed_between_drafted_steps_is_found_at_its_step() -> None:
    first = _drafted(provider("torch"), Pace(8, window=8), _fault("state_wiped_at_step_5").hooks()).found[0]
    assert (first.op, first.step) == ("continuity", 5)


def test_progress_of_an_older_kind_is_not_taken_up_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(progress.streams, "say", said.append)
    kept, other = tmp_path / "run.safetensors", tmp_path / "other.safetensors"
    facts = json.dumps({"window": 1, "requests": []})
    for path in (kept, other):
        save_file({"kv.3": torch.zeros(1)}, path, {"facts": facts})
    run = _drafted(provider("torch"), Pace(2, window=2), kept=kept)
    assert (run.steps, run.found) == (2, [])
    assert [line.split()[1] for line in said] == [str(other), str(kept)]
    assert all("starts anew" in line and "can be deleted" in line for line in said)
    assert other.exists()


def _run(executor: Executor, pace: Pace, hooks: Hooks | None = None, kept: Path | None = None) -> LongRun:
    paths = Paths(executor, provider("inductor"), _limits(), SHARE)
    return long_run(small(), _weights(), paths, pace, hooks=hooks, kept=kept)


def _fault(name: str):  # type: ignore[no-untyped-def]
    return next(f for f in step_faults() if f.name == name)


def test_another_backend_passes_over_windows_tenants_and_padding() -> None:
    pace = Pace(20, window=8, renewed=1, counts=(2, 3, 1), sizes=(2, 4), judged=2, lasting=True)
    run = _run(vanilla("stock"), pace)
    assert run.found == []
    assert (run.steps, run.windows, run.compared, run.judged) == (20, 3, 3, 2)
    assert 0 < max(run.largest.values()) < 1
    assert run.unjudged == []


def test_judged_steps_are_the_first_the_last_and_between_them_by_the_logarithm() -> None:
    assert sorted(Pace(10_000, judged=5).judged_steps()) == [0, 9, 99, 999, 9999]
    assert Pace(100).judged_steps() == frozenset()


@pytest.mark.parametrize("name", ["state_wiped_at_step_5", "drift_between_steps"])
def test_state_changed_between_steps_is_found_at_its_step(name: str) -> None:
    run = _run(provider("torch"), Pace(8, window=8), _fault(name).hooks())
    first = run.found[0]
    assert (first.op, first.step) == ("continuity", 5 if "5" in name else 1)


@pytest.mark.parametrize("name", ["drift_in_core", "bf16_state"])
def test_a_wrong_operation_is_found_and_named_with_a_capture(name: str) -> None:
    """No step of the run is judged: the distances of the window (or nothing) call for the place."""
    fault = _fault(name)
    run = _run(fault.executor(provider("torch")), Pace(64, window=32, judged=1))
    assert run.found[0].op == "kda_decode"
    assert run.found[0].step < 64
    assert run.place is not None
    assert run.place.judged is not None
    assert run.place.judged.failed


def test_a_distance_beyond_its_limit_is_a_finding() -> None:
    result = LongRun(limits={"recurrent of layer 2": 1.0, "KL divergence": 1.0})
    near, far = torch.tensor([0.1, 0.5]), torch.tensor([0.2, 2.0])
    (found,) = compare(result, {"recurrent of layer 2": far, "KL divergence": near}, 9)
    assert (found.step, found.layer, found.output, found.where) == (9, 2, "recurrent", "request 1")


def test_a_run_goes_on_from_its_progress_and_ends_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model drafts: the last step of the second window accepts drafts, and the third begins there."""
    pace = Pace(12, window=4, counts=(2, 3), renewed=2, lasting=True)
    whole = _drafted(provider("torch"), pace)
    kept = tmp_path / "long" / "run.safetensors"
    monkeypatch.setattr(progress, "EVERY", 0.0)
    seen: list[int] = []

    def cut(steps: int) -> None:
        seen.append(steps)
        if steps == 8:
            raise KeyboardInterrupt

    config, weights, known = _drafting()
    paths = Paths(provider("torch"), provider("inductor"), known, SHARE)
    with pytest.raises(KeyboardInterrupt):
        long_run(config, weights, paths, pace, advance=cut, kept=kept)
    again = long_run(config, weights, paths, pace, advance=seen.append, kept=kept)
    assert seen == [4, 8, 8, 12]
    assert again.digests == whole.digests
    assert (again.largest, again.verified) == (whole.largest, whole.verified)
    assert not kept.exists()
    assert (whole.resumed, again.resumed) == (0, 4)
    assert "the first 4 steps are from an earlier run that was cut" in _said(again)
    kept.write_bytes(b"no tensors")
    with pytest.raises(UserError, match="holds no progress"):
        long_run(config, weights, paths, pace, kept=kept)


def test_a_run_that_failed_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    kept = tmp_path / "run.safetensors"
    hooks = _fault("state_wiped_at_step_5").hooks()
    assert _run(provider("torch"), Pace(12, window=4), hooks, kept).found
    assert not kept.exists(), "its steps would be taken for those of what was mended"


def test_progress_that_lacks_something_or_cannot_be_kept_is_one_line(tmp_path: Path) -> None:
    walk, result = Walk(small(), _weights(), provider("torch"), None), LongRun()
    walk.admit()
    kept = tmp_path / "run.safetensors"
    progress.save(kept, walk, result, 3)
    assert progress.load(kept, walk, LongRun()) == 3
    with safe_open(kept, "pt") as opened:
        facts = json.loads(opened.metadata()["facts"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    lacking = [(tensors, {k: v for k, v in facts.items() if k != name}) for name in facts if name != "schema"]
    less = dict(list(facts["result"].items())[1:])
    for held, said in [
        *lacking,
        (dict(list(tensors.items())[1:]), facts),
        (tensors, facts | {"result": less}),
    ]:
        save_file(held, kept, {"facts": json.dumps(said)})
        with pytest.raises(UserError, match=r"holds no progress.*delete it to start anew"):
            progress.load(kept, walk, LongRun())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot keep the progress .*make room and run again"):
        progress.save(tmp_path / "file" / "run.safetensors", walk, result, 3)
