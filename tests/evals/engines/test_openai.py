"""The client against a fake server: seeds, failures, forced tokens, concurrency; nothing is invented."""

from __future__ import annotations

import importlib.util
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.engines.api import EngineLost, Request, Response, Sampling
from evals.engines.hashing import hash_ids
from evals.engines.openai import OpenAIEngine
from evals.engines.openai_body import Dialect, body_of
from evals.engines.retry import Retries
from evals.engines.server import free_port
from validation.errors import UserError

spec = importlib.util.spec_from_file_location("fake_server", Path(__file__).with_name("fake_server.py"))
assert spec is not None
assert spec.loader is not None
fake = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake)
FAST = Retries(attempts=3, first=0.01)
FOUR = Sampling(max_tokens=4)


class Toy:
    """Fake servers of one test, ended with it."""

    def __init__(self, folder: Path) -> None:
        self.bodies, self.servers = folder / "bodies", list[Any]()

    def engine(self, *words: str, **options: Any) -> OpenAIEngine:
        server = fake.serve(0, [f"bodies={self.bodies}", *words])
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.servers.append(server)
        return OpenAIEngine(f"http://127.0.0.1:{server.server_port}", retries=FAST, **options)

    def seen(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.bodies.read_text().splitlines()]


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    made = Toy(tmp_path)
    yield made
    for server in made.servers:
        server.shutdown()
        server.server_close()


def answers(engine: OpenAIEngine, *requests: Request) -> dict[str, Response]:
    found: dict[str, Response] = {}
    engine.run(requests, lambda request, response: found.update({request.key: response}))
    return found


def test_every_request_carries_its_own_seed(toy: Toy) -> None:
    """Also through chat, streamed or not."""
    requests = [Request(f"q/{i}", seed=100 + i, sampling=FOUR, prompt="Hi") for i in range(6)]
    requests.append(Request("chat", seed=7, sampling=FOUR, messages=({"role": "user", "content": "Hi"},)))
    found = answers(toy.engine(), *requests)
    assert {(body["path"], body["seed"]) for body in toy.seen()} == {
        *(("/v1/completions", 100 + i) for i in range(6)),
        ("/v1/chat/completions", 7),
    }
    assert len({tuple(response.token_ids) for response in found.values()}) == 7


@pytest.mark.parametrize("chat", [False, True])
def test_streamed_and_whole_replies_are_the_same(toy: Toy, chat: bool) -> None:
    """Text, tokens, log-probabilities, top k, usage and the hash of the prompt that the server saw."""
    said: dict[str, Any] = (
        {"messages": ({"role": "user", "content": "Hi"},)} if chat else {"prompt_ids": (5, 6)}
    )
    request = Request("q", 3, FOUR, top=2, **said)
    streamed = answers(toy.engine(), request)["q"]
    whole = answers(toy.engine(dialect=Dialect(stream=False)), request)["q"]
    ids = fake.ids_of({"messages": [{"content": "Hi"}]} if chat else {"prompt": [5, 6]})
    drawn = [fake.draw(ids, 3, place) for place in range(4)]
    for response in (streamed, whole):
        assert response.ok
        assert response.finish == "length"
        assert list(zip(response.token_ids, response.logprobs, strict=True)) == drawn
        assert response.top_ids == [[token, 3] for token, _ in drawn]
        assert response.text == "".join(f" t{token}" for token, _ in drawn)
        assert response.prompt_hash == hash_ids(ids)
        assert response.prompt_tokens == len(ids)
    assert streamed.first_token is not None
    assert whole.first_token is None
    assert streamed.total is not None
    assert streamed.total >= streamed.first_token


def test_minus_9999_is_minus_infinity(toy: Toy) -> None:
    response = answers(toy.engine(), Request("q", 3, FOUR, prompt="x", top=3))["q"]
    assert response.top_logprobs[0][2] == -math.inf


def test_probe_tells_an_honest_server_from_one_that_ignores_seeds(toy: Toy) -> None:
    assert toy.engine().probe() == {"seed": "honoured", "forcing": "present"}
    assert toy.engine("honest=0", "plugin=0").probe() == {"seed": "ignored", "forcing": "absent"}


def test_distinct_seeds_do_not_serialise(toy: Toy) -> None:
    """32 requests with 32 seeds are in flight at once, or nearly."""
    engine = toy.engine("delay=0.5", concurrency=32)
    requests = [Request(f"{i}", i, Sampling(max_tokens=2), prompt="x") for i in range(32)]
    assert len(answers(engine, *requests)) == 32
    assert max(body["running"] for body in toy.seen()) > 16


def test_done_is_called_from_the_calling_thread(toy: Toy) -> None:
    threads: set[int] = set()
    requests = [Request(f"{i}", i, FOUR, prompt="x") for i in range(4)]
    toy.engine().run(requests, lambda *_: threads.add(threading.get_ident()))
    assert threads == {threading.get_ident()}


def test_cut_connections_are_tried_again_and_replies_are_not(toy: Toy) -> None:
    response = answers(toy.engine("cut=2"), Request("q", 1, FOUR, prompt="x"))["q"]
    assert response.ok
    assert response.attempts == 3
    before = len(toy.seen())
    failed = answers(toy.engine("status=500"), Request("q", 1, FOUR, prompt="x"))["q"]
    assert failed.failure == "server"
    assert len(toy.seen()) == before + 1


def test_a_connection_that_is_always_cut_is_a_transport_failure(toy: Toy) -> None:
    """The server lives (its health is asked), so the engine is not lost."""
    response = answers(toy.engine("cut=99"), Request("q", 1, FOUR, prompt="x"))["q"]
    assert (response.failure, response.attempts, response.token_ids) == ("transport", 3, [])


def test_a_torn_stream_is_no_reply(toy: Toy) -> None:
    response = answers(toy.engine("odd=torn"), Request("q", 1, FOUR, prompt="x"))["q"]
    assert (response.failure, response.token_ids, response.text) == ("transport", [], "")


@pytest.mark.parametrize(
    ("words", "failure"),
    [(["status=404"], "refused"), (["status=422"], "refused"), (["odd=counts"], "malformed")],
)
def test_failures_have_classes_of_their_own(toy: Toy, words: list[str], failure: str) -> None:
    response = answers(toy.engine(*words), Request("q", 1, FOUR, prompt="x"))["q"]
    assert response.failure == failure
    assert response.message


def test_too_long_a_prompt_is_a_context_failure(toy: Toy) -> None:
    response = answers(toy.engine(), Request("q", 1, FOUR, prompt="x" * 99))["q"]
    assert response.failure == "context"


def test_no_reply_in_time_is_a_timeout_and_not_tried_again(toy: Toy) -> None:
    response = answers(toy.engine("hang=1", timeout=0.3), Request("q", 1, FOUR, prompt="x"))["q"]
    assert (response.failure, len(toy.seen())) == ("timeout", 1)


def test_forced_tokens_come_back(toy: Toy) -> None:
    response = answers(toy.engine(), Request("q", 1, FOUR, prompt="x", forced=(7, 8, 9, 9, 9)))["q"]
    assert response.token_ids == [7, 8, 9, 9, 9]
    body = toy.seen()[-1]
    assert (body["max_tokens"], body["ignore_eos"], body["vllm_xargs"]) == (
        5,
        True,
        {"forced_tokens": [7, 8, 9, 9, 9]},
    )


def test_a_server_without_the_plug_in_is_one_clear_line(toy: Toy) -> None:
    engine = toy.engine("plugin=0")
    with pytest.raises(
        UserError, match=r"did not force .* pip install --no-deps evals/forced/vllm_plugin"
    ) as caught:
        answers(engine, Request("q", 1, FOUR, prompt="x", forced=(7, 8)))
    assert "\n" not in str(caught.value)


def test_a_model_that_changes_is_seen(toy: Toy) -> None:
    with pytest.raises(UserError, match="model changed from toy"):
        answers(
            toy.engine("switch_after=3", concurrency=1),
            *(Request(f"{i}", i, FOUR, prompt="x") for i in range(5)),
        )


def test_nobody_at_the_address_is_a_lost_engine() -> None:
    with pytest.raises(EngineLost, match="does not answer"):
        OpenAIEngine(f"http://127.0.0.1:{free_port()}", retries=FAST)


def test_an_attached_server_that_goes_away_loses_no_reply_and_invents_none(toy: Toy) -> None:
    engine = toy.engine("delay=0.02", concurrency=2)
    server, found = toy.servers[0], dict[str, Response]()

    def done(request: Request, response: Response) -> None:
        found[request.key] = response
        if len(found) == 3:
            server.shutdown()
            server.server_close()
            server.RequestHandlerClass.state.options["cut"] = "1e9"

    with pytest.raises(EngineLost):
        engine.run([Request(f"{i}", i, FOUR, prompt="x") for i in range(12)], done)
    toy.servers.clear()
    assert 3 <= len(found) < 12
    assert all(response.ok and len(response.token_ids) == 4 for response in found.values())


def test_tokenize_and_detokenize_ask_the_server(toy: Toy) -> None:
    engine = toy.engine()
    assert engine.tokenize(Request("q", 1, prompt="AB")) == [65, 66]
    assert engine.tokenize(Request("q", 1, prompt_ids=(4, 5))) == [4, 5]
    assert engine.detokenize([4, 5]) == "4 5"


def test_facts_say_what_is_unknown(toy: Toy) -> None:
    facts = toy.engine().facts()
    assert (facts["model"], facts["model_root"], facts["version_server"]) == ("toy", "/m", "0.0.1")
    assert (facts["max_model_len"], facts["seed"], facts["forcing"]) == (64, "honoured", "present")
    assert facts["kv_cache_dtype"] == facts["device_count"] == facts["additional_config"] == "unknown"


def test_extra_parameters_may_not_replace_the_seed() -> None:
    with pytest.raises(UserError, match="must not contain seed"):
        body_of(Request("q", 1, Sampling(extra={"seed": 3}), prompt="x"), "m", Dialect())


def test_a_plain_server_gets_no_words_of_vllm() -> None:
    body = body_of(Request("q", 1, FOUR, prompt="x"), "m", Dialect(vllm=False))
    assert not set(body) & {"top_k", "min_p", "return_token_ids", "vllm_xargs", "add_special_tokens"}
    with pytest.raises(UserError, match="plug-in"):
        body_of(Request("q", 1, FOUR, prompt="x", forced=(1,)), "m", Dialect(vllm=False))
