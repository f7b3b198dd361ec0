"""Walking: which replies are forced, that each replicate walks what is missing, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evals.engines.api import Request, Response
from evals.forced.walk import SHORTEST, Walk, choose, forced, replicate_numbers, walk
from evals.store.row import Row


def asked(question: str, repeat: int) -> Request:
    return Request(f"t/{question}/{repeat}", 1, prompt=question)


def reply(request: Request, length: int, **changes: Any) -> Row:
    _, question, repeat = request.key.split("/")
    made = Row("", "reference", "t", question, request.key, 1, repeat=int(repeat), prompt_hash=question)
    return replace(made, token_ids=np.arange(length, dtype=np.int32), **changes)


REQUESTS = [asked(question, repeat) for question in "ab" for repeat in range(2)]


def test_first_repeats_come_first_and_the_last_walk_is_cut() -> None:
    walks = choose(REQUESTS, [reply(each, 20) for each in reversed(REQUESTS)], 50)
    assert [each.request.key for each in walks] == ["t/a/0", "t/b/0", "t/a/1"]
    assert [len(each.tokens) for each in walks] == [20, 20, 10]
    assert walks == choose(REQUESTS, [reply(each, 20) for each in REQUESTS], 50)


def test_failed_short_and_unknown_replies_are_not_walked() -> None:
    rows = [
        reply(REQUESTS[0], 20, failure="timeout"),
        reply(REQUESTS[1], SHORTEST - 1),
        reply(asked("c", 0), 20),
        reply(REQUESTS[2], SHORTEST),
    ]
    assert [each.request.key for each in choose(REQUESTS, rows, 100)] == ["t/b/0"]


def test_no_two_replicates_have_the_same_number() -> None:
    assert replicate_numbers(0, 3) + replicate_numbers(1, 3) == list(range(6))


class Store:
    """Keeps rows, and what it has already."""

    def __init__(self, had: Sequence[tuple[int, str]]) -> None:
        self.had, self.rows = set(had), []  # type: ignore[var-annotated]

    def remaining(self, arm: str, requests: Sequence[Request], replicate: int) -> list[Request]:
        return [each for each in requests if (replicate, each.key) not in self.had]

    def add(self, row: Row) -> None:
        self.rows.append(row)


class Engine:
    """Answers with the tokens that were forced, in whatever order it is asked."""

    def __init__(self) -> None:
        self.orders: list[list[str]] = []

    def run(self, requests: Sequence[Request], done: Any) -> None:
        self.orders.append([each.key for each in requests])
        for each in requests:
            done(each, Response(each.key, each.seed, token_ids=list(each.forced), finish="length"))


def test_every_replicate_walks_what_is_missing_in_an_order_of_its_own() -> None:
    requests = [asked(f"q{i}", 0) for i in range(12)]
    walks = [Walk(each, "t", each.key.split("/")[1], 0, (1, 2, 3)) for each in requests]
    store, engine = Store([(3, walks[5].key)]), Engine()
    walk(engine, store, "candidate", walks, [2, 3])  # type: ignore[arg-type]
    assert [len(order) for order in engine.orders] == [12, 11]
    assert [key for key in engine.orders[0] if key != walks[5].key] != engine.orders[1]
    identities = {each.identity for each in store.rows}
    wanted = {("candidate", r, each.key) for r in (2, 3) for each in walks}
    assert identities == wanted - {("candidate", 3, walks[5].key)}
    assert {(each.kind, each.question) for each in store.rows if each.key == walks[0].key} == {
        ("forced", "t/q0")
    }


def test_a_forced_request_is_the_free_one_with_tokens_and_its_replicate() -> None:
    each = Walk(REQUESTS[0], "t", "a", 0, (4, 5))
    request = forced(each, 3)
    assert (request.forced, request.replicate, request.key) == ((4, 5), 3, "forced/t/a/0")
    assert (request.prompt, request.seed) == (REQUESTS[0].prompt, REQUESTS[0].seed)
