"""A real vLLM server and a real trained model: forcing, log-probabilities, speed, and a kill in the middle.

Given by LOCKSTEP_VLLM_PYTHON (the Python of an environment with vLLM and the plug-in) and
LOCKSTEP_VLLM_MODEL (a model's folder); skipped without them. ``-s`` prints the figures. About three
minutes on two cores.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.engines.api import EngineLost, Request, Response, Sampling
from evals.engines.openai import OpenAIEngine
from evals.engines.openai_body import Dialect
from evals.engines.server import Server

PYTHON, MODEL = os.environ.get("LOCKSTEP_VLLM_PYTHON", ""), os.environ.get("LOCKSTEP_VLLM_MODEL", "")
MODES = os.environ.get("LOCKSTEP_VLLM_MODES", "eager,compiled").split(",")
pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif(
        not (PYTHON and MODEL), reason="LOCKSTEP_VLLM_PYTHON and LOCKSTEP_VLLM_MODEL are not set"
    ),
]
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
TOPICS = ("rivers", "bread", "stars", "trains", "winter", "music", "bees", "glass")


def command(mode: str) -> list[str]:
    words = [
        PYTHON,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        MODEL,
        "--served-model-name",
        "toy",
    ]
    words += ["--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16", "--max-model-len", "1024"]
    words += ["--max-num-seqs", "32", "--generation-config", "vllm"]
    return words + (["--enforce-eager"] if mode == "eager" else [])


@pytest.fixture(scope="module", params=MODES)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAIEngine]:
    log = tmp_path_factory.mktemp(request.param) / "server.log"
    with Server(command(request.param), log, ENVIRONMENT) as server:
        print(f"\n{request.param}: ready after {server.start_seconds:.1f} s")
        yield OpenAIEngine(server=server, concurrency=1, timeout=300)


def ask(engine: OpenAIEngine, requests: list[Request], concurrency: int = 1) -> dict[str, Response]:
    engine.concurrency = concurrency
    found: dict[str, Response] = {}
    engine.run(requests, lambda request, response: found.update({request.key: response}))
    assert len(found) == len(requests)
    return found


def free(count: int, tokens: int, base: int = 0) -> list[Request]:
    sampling = Sampling(max_tokens=tokens, extra={"ignore_eos": True})
    topics = [TOPICS[i % len(TOPICS)] for i in range(count)]
    said = [({"role": "user", "content": f"Write about {topic}."},) for topic in topics]
    return [Request(f"{i}", base + i, sampling, messages=message, top=3) for i, message in enumerate(said)]


def forced_from(requests: list[Request], replies: dict[str, Response]) -> list[Request]:
    forced = {key: tuple(reply.token_ids) for key, reply in replies.items()}
    return [
        Request(r.key, 999, r.sampling, messages=r.messages, forced=forced[r.key], top=3) for r in requests
    ]


def test_facts(engine: OpenAIEngine) -> None:
    facts = engine.facts()
    print("\n" + "\n".join(f"  {name} = {value}" for name, value in facts.items()))
    assert (facts["seed"], facts["forcing"], facts["dtype"]) == ("honoured", "present", "torch.bfloat16")
    assert (facts["device_kind"], facts["device_count"]) == ("cpu", 1)


def test_forced_equals_free(engine: OpenAIEngine) -> None:
    """Alone in the batch: equal tokens, and log-probabilities equal bit for bit."""
    requests = free(3, 96)
    alone = ask(engine, requests)
    again = ask(engine, forced_from(requests, alone))
    for key, reply in alone.items():
        assert again[key].token_ids == reply.token_ids
        assert again[key].logprobs == reply.logprobs
        assert again[key].top_logprobs == reply.top_logprobs
    together = ask(engine, forced_from(requests * 1, alone), 3)
    pairs = [(a, b) for k in alone for a, b in zip(alone[k].logprobs, together[k].logprobs, strict=True)]
    apart = [abs(a - b) for a, b in pairs]
    print(
        f"\n3 x 96 tokens, alone against 3 at once: {sum(d > 0 for d in apart)} differ, "
        f"largest {max(apart):.3g}"
    )


def test_arbitrary_tokens_are_forced_and_the_stream_tells_the_same(engine: OpenAIEngine) -> None:
    draw = random.Random(1)
    forced = tuple(draw.randrange(49152) for _ in range(200))
    request = Request("any", 1, prompt="The", forced=forced, top=2)
    streamed = ask(engine, [request])["any"]
    engine.dialect = Dialect(stream=False)
    whole = ask(engine, [request])["any"]
    engine.dialect = Dialect()
    assert streamed.token_ids == whole.token_ids == list(forced)
    assert streamed.logprobs == whole.logprobs
    assert streamed.text == whole.text


@pytest.mark.parametrize("concurrency", [8, 16, 32])
def test_speed(engine: OpenAIEngine, concurrency: int) -> None:
    """Free replies and forced ones, tokens a second over the whole run."""
    requests = free(concurrency, 64, base=1000)
    began = time.monotonic()
    replies = ask(engine, requests, concurrency)
    middle = time.monotonic()
    ask(engine, forced_from(requests, replies), concurrency)
    end = time.monotonic()
    tokens = sum(len(reply.token_ids) for reply in replies.values())
    first = sorted(reply.first_token or 0 for reply in replies.values())[concurrency // 2]
    speeds = f"free {tokens / (middle - began):.0f}, forced {tokens / (end - middle):.0f} tokens/s"
    print(f"\nconcurrency {concurrency}: {speeds}; median time to first token {first:.2f} s")
    assert tokens == 64 * concurrency


def test_kill_in_the_middle(engine: OpenAIEngine) -> None:
    """Last, for it ends the server: whole replies are reported, cut ones are not."""
    found: dict[str, Response] = {}
    engine.concurrency = 4

    def done(request: Request, response: Response) -> None:
        found[request.key] = response
        if len(found) == 3:
            assert engine.server
            os.kill(engine.server.pid, signal.SIGKILL)

    with pytest.raises(EngineLost) as caught:
        engine.run(free(16, 48), done)
    print(f"\n{len(found)} of 16 reported; {caught.value}")
    assert 3 <= len(found) < 16
    assert all(reply.ok and len(reply.token_ids) == 48 for reply in found.values())
    assert Path(engine.server.log).exists() if engine.server else False
