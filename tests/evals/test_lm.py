"""Tests of lm-eval's model interface: keys, seeds, what is asked again, and what is kept when an engine goes
away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from evals.engines.api import Done, EngineLost, Request, Response, Sampling
from evals.engines.hashing import seed_of
from evals.graders.reply import Reply, failure_of, finish_of
from evals.lm import LockstepLM, question_of, sampling_of
from evals.store.read import load_rows
from evals.store.store import Store

OPTIONS = {"until": [], "do_sample": True, "temperature": 1.0, "top_p": 0.95, "max_gen_toks": 64}


class Engine:
    """Says the seed; goes away after ``lives`` requests; fails on keys in ``fails``."""

    def __init__(self, lives: int = 1000, fails: Sequence[str] = ()) -> None:
        self.lives, self.fails, self.seen = lives, fails, []  # type: ignore[var-annotated]

    def run(self, requests: Sequence[Request], done: Done) -> None:
        for request in reversed(requests):  # any order is allowed
            if len(self.seen) == self.lives:
                raise EngineLost("gone")
            self.seen.append(request)
            failure: Any = "timeout" if request.key in self.fails else ""
            ids = [] if failure else [1, 2]
            done(
                request,
                Response(
                    request.key,
                    request.seed,
                    str(request.seed),
                    ids,
                    [-1.0] * len(ids),
                    finish="stop",
                    failure=failure,
                ),
            )


def lm(engine: Any, store: Store, known: dict[str, Reply] | None = None, **sampling: Any) -> LockstepLM:
    made = LockstepLM(engine, store, "reference", {"mirrored_aime25": sampling}, known or {}, seed=5)
    made.chat = made.apply_chat_template([{"role": "user", "content": "1 + 1?"}])
    return made


def instances(model: Any, questions: int = 2, repeats: int = 2) -> list[Instance]:
    """As lm-eval gives them: an instance K times in a row."""
    return [
        Instance(
            "generate_until", {"id": f"q{i}"}, (model.chat, dict(OPTIONS)), 0, ("mirrored_aime25", i, repeats)
        )
        for i in range(questions)
        for _ in range(repeats)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "samples", "c0", "run") as opened:
        yield opened


def test_each_repeat_has_its_own_key_and_seed(store: Store) -> None:
    engine = Engine()
    model = lm(engine, store)
    replies = model.generate_until(instances(model))
    wanted = [(q, k) for q in ("q0", "q1") for k in (0, 1)]
    assert [a.request.key for a in model.asked] == [f"aime25/{q}/{k}" for q, k in wanted]
    assert replies == [str(seed_of("aime25", q, k, 5)) for q, k in wanted]
    assert len(set(replies)) == 4
    assert all(r.messages == ({"role": "user", "content": "1 + 1?"},) for r in engine.seen)
    assert all(not r.prompt and not r.forced and r.replicate == 0 for r in engine.seen)


def test_what_the_store_has_is_not_asked_again(store: Store) -> None:
    engine = Engine()
    model = lm(
        engine,
        store,
        {"aime25/q0/1": Reply("kept", "length"), "aime25/q1/0": Reply("", "", "context", "long")},
    )
    replies = model.generate_until(instances(model))
    assert sorted(r.key for r in engine.seen) == ["aime25/q0/0", "aime25/q1/1"]
    assert replies[1] == "kept"
    assert finish_of(replies[1]) == "length"
    assert failure_of(replies[2]) == "context"
    assert len(model.asked) == 4


def test_a_failure_is_stored_and_reaches_the_graders_as_one(store: Store, tmp_path: Path) -> None:
    model = lm(Engine(fails=["aime25/q1/0"]), store)
    replies = model.generate_until(instances(model))
    assert [failure_of(each) for each in replies] == ["", "", "timeout", ""]
    assert [row.failure for row in load_rows(tmp_path / "samples") if row.key == "aime25/q1/0"] == ["timeout"]


def test_what_came_before_the_engine_went_is_kept(store: Store, tmp_path: Path) -> None:
    model = lm(Engine(lives=3), store)
    with pytest.raises(EngineLost):
        model.generate_until(instances(model))
    assert sorted(row.key for row in load_rows(tmp_path / "samples")) == [
        "aime25/q0/1",
        "aime25/q1/0",
        "aime25/q1/1",
    ]


def test_the_arms_file_changes_the_sampling(store: Store) -> None:
    engine = Engine()
    model = lm(engine, store, temperature=0.6, max_tokens=7, until=["X"], top_k=3)
    model.generate_until(instances(model, 1, 1))
    assert engine.seen[0].sampling == Sampling(0.6, 0.95, 7, ("X",), {"top_k": 3})


def test_sampling_without_an_arms_file_is_the_tasks() -> None:
    assert sampling_of(OPTIONS, {}) == Sampling(1.0, 0.95, 64, (), {})


def test_questions_without_an_id_are_named_by_their_content() -> None:
    assert question_of({"id": 3}) == "3"
    assert question_of({"a": 1, "b": 2}) == question_of({"b": 2, "a": 1}) != question_of({"a": 1, "b": 3})


def test_loglikelihood_is_refused(store: Store) -> None:
    with pytest.raises(NotImplementedError):
        lm(Engine(), store).loglikelihood([])
