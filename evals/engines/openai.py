"""An engine behind an OpenAI-compatible server, started by us or attached by URL.

What this catches: a server without the plug-in (forced tokens that do not come back), a model that changes, a
server that goes away, failures that are not replies. What it cannot catch: a server that reports tokens it
did not draw.

Every request is an HTTP request of its own with its own seed in the body; ``concurrency`` worker threads keep
that many in flight. Only the standard library is used: http.client and threads are enough, because the server
computes.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evals.engines.api import Done, EngineLost, Request, Response, Sampling
from evals.engines.openai_answer import Parts, error_text, response_of
from evals.engines.openai_body import Dialect, body_of, path_of
from evals.engines.retry import Answer, Channel, OutOfTime, Retries, Unreachable
from evals.engines.server import Server
from evals.engines.server_facts import UNKNOWN, model_card, server_facts
from validation.errors import UserError

INSTALL = "pip install --no-deps evals/forced/vllm_plugin into the server's environment, then restart it"
PROBE = "The"  # far below one cache block: no prefix is shared between probes
SHORT = 30.0  # seconds for questions that need no model


class OpenAIEngine:
    """``url``: http://HOST:PORT. ``server``: the process behind it, if it is ours; ``close`` stops it.

    ``timeout``: seconds for one whole reply; a reply that takes longer is a failure, not tried again.
    """

    def __init__(
        self,
        url: str = "",
        server: Server | None = None,
        model: str = "",
        concurrency: int = 8,
        timeout: float = 3600.0,
        dialect: Dialect | None = None,
        headers: Mapping[str, str] | None = None,
        retries: Retries | None = None,
    ) -> None:
        if not (url or server):
            raise UserError("an arm with an OpenAI-compatible engine needs a server command or a url")
        if concurrency < 1:
            raise UserError(f"concurrency is {concurrency}; it must be 1 or more")
        self.server, self.url = server, (url or (server.url if server else "")).rstrip("/")
        self.concurrency, self.timeout = concurrency, timeout
        self.dialect, self.headers = dialect or Dialect(), dict(headers or {})
        self.retries = retries or Retries()
        self._stop = threading.Event()
        self.fingerprint = UNKNOWN
        card = self._card()
        self.model = model or str(card.get("id", ""))
        if not self.model:
            raise UserError(f"the server at {self.url} lists no model; name one in the arm")
        self._identity = _identity(card)

    def run(self, requests: Sequence[Request], done: Done) -> None:
        """All requests; ``done`` from this thread. Requests cut by the end of the server are not reported."""
        bodies = [(request, body_of(request, self.model, self.dialect)) for request in requests]
        self._check_model()
        work, results = deque(bodies), queue.SimpleQueue[Any]()
        self._stop.clear()
        channels = [Channel(self.url, self.headers) for _ in range(min(self.concurrency, len(bodies)))]
        for channel in channels:
            threading.Thread(target=self._worker, args=(channel, work, results), daemon=True).start()
        cut: list[str] = []
        try:
            for _ in bodies:
                request, response, parts = results.get()
                if isinstance(response, BaseException):
                    raise response
                if response.failure in ("transport", "server") and self.lost():
                    self._stop.set()
                    cut.append(request.key)
                elif response.failure == "" or not cut:
                    self._check(request, response, parts)
                    done(request, response)
                else:
                    cut.append(request.key)
        finally:
            self._stop.set()
            for channel in channels:
                channel.close()
        if cut:
            raise EngineLost(f"{self.lost() or 'the server went away'}; {len(cut)} requests without a reply")
        self._check_model()

    def _worker(self, channel: Channel, work: deque[Any], results: queue.SimpleQueue[Any]) -> None:
        """One request after the other; after a stop the rest is handed back as not sent."""
        while True:
            try:
                request, body = work.popleft()
            except IndexError:
                return
            try:
                results.put((request, *self._ask(channel, request, body)))
            except BaseException as error:  # a defect of ours: the caller's thread must see it
                results.put((request, error, None))

    def _ask(self, channel: Channel, request: Request, body: dict[str, Any]) -> tuple[Response, Parts | None]:
        response = Response(request.key, request.seed)
        if self._stop.is_set():
            response.failure, response.message = "transport", "not sent: the server went away"
            return response, None

        def send() -> Answer:
            return channel.exchange("POST", path_of(request), body, self.timeout, bool(body["stream"]))

        try:
            return response_of(request, self.retries.run(send, self._in_vain))
        except OutOfTime:
            response.failure, response.message = "timeout", f"no reply within {self.timeout:g} s"
        except Unreachable as error:
            response.failure, response.message = "transport", str(error)
            response.attempts = error.attempts
        return response, None

    def _in_vain(self) -> bool:
        return self._stop.is_set() or bool(self.server and self.server.ended())

    def lost(self) -> str:
        """Empty while the server lives; otherwise one line that says what became of it."""
        if self.server and (ended := self.server.ended()):
            return f"the server ended: {ended}"
        try:
            status = Channel(self.url, self.headers).exchange("GET", "/health", None, SHORT).status
        except OutOfTime:
            return ""  # busy, not gone
        except Unreachable as error:
            return f"the server at {self.url} does not answer any more ({error})"
        return f"the server at {self.url} says that it is unwell (status {status})" if status >= 500 else ""

    def _check(self, request: Request, response: Response, parts: Parts | None) -> None:
        if parts is None or not response.ok:
            return
        if parts.model and parts.model != self.model:
            raise UserError(f"the server's model changed from {self.model} to {parts.model}; start again")
        if parts.fingerprint:
            if self.fingerprint not in (UNKNOWN, parts.fingerprint):
                raise UserError(
                    f"the server's configuration changed from {self.fingerprint} to {parts.fingerprint}; "
                    "start again"
                )
            self.fingerprint = parts.fingerprint
        if request.forced and (wrong := _not_forced(request.forced, response.token_ids)):
            raise UserError(f"request {request.key}: {wrong}; {INSTALL}")

    def _check_model(self) -> None:
        if (now := _identity(self._card())) != self._identity:
            raise UserError(f"the server's model changed from {self._identity} to {now}; start again")

    def _card(self) -> dict[str, Any]:
        card = model_card(self._get)
        if not card:
            why = self.lost()
            if why:
                raise EngineLost(why)
            raise UserError(f"{self.url}/v1/models lists no model; is it an OpenAI-compatible server?")
        return card

    def _get(self, path: str) -> Any:
        """Parsed JSON, or text; None where the server does not offer it or does not answer."""
        channel = Channel(self.url, self.headers)
        try:
            answer = channel.exchange("GET", path, None, SHORT)
        except (Unreachable, OutOfTime):
            return None
        finally:
            channel.close()
        if answer.status != 200:
            return None
        text = answer.body.decode("utf-8", "replace")
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _post(self, path: str, body: Any) -> Any:
        channel = Channel(self.url, self.headers)
        try:
            answer = channel.exchange("POST", path, body, SHORT)
        except (Unreachable, OutOfTime) as error:
            raise EngineLost(self.lost() or f"{path} was not answered ({error})") from None
        finally:
            channel.close()
        if answer.status != 200:
            raise UserError(f"{path} was refused by the server: {error_text(answer.body)}")
        return json.loads(answer.body)

    def facts(self) -> dict[str, Any]:
        """What the server says of itself and of its process; asks it for a few tokens (see ``probe``)."""
        command = self.server.command if self.server else ()
        environment = self.server.environment if self.server else {}
        probed = self.probe()
        return {
            **server_facts(self._get, command, environment),
            **probed,
            "fingerprint": self.fingerprint,
            "concurrency": self.concurrency,
            "stream": self.dialect.stream,
        }

    def probe(self) -> dict[str, str]:
        """Does a seed reach the sampler, and is the plug-in there? Asked, not believed.

        ``seed``: honoured, ignored (another seed, same reply) or not repeatable (same seed, other reply).
        ``forcing``: present, absent. "unknown" where the probe itself got no reply.
        """
        hot = Sampling(temperature=1.5, top_p=1.0, max_tokens=16)
        same, again, other = (
            self._one(Request(f"probe/{n}", s, hot, prompt=PROBE)) for n, s in enumerate((1, 1, 2))
        )
        seed = UNKNOWN
        if same.ok and again.ok and other.ok:
            seed = "honoured" if same.text != other.text else "ignored"
            seed = seed if same.text == again.text else "not repeatable"
        forcing = UNKNOWN
        if self.dialect.vllm and same.ok and len(same.token_ids) > 1:
            wanted = tuple(reversed(same.token_ids[:8])) + (same.token_ids[0],) * 2
            got = self._one(Request("probe/forced", 1, hot, prompt=PROBE, forced=wanted))
            forcing = "present" if tuple(got.token_ids) == wanted else "absent"
        return {"seed": seed, "forcing": forcing}

    def _one(self, request: Request) -> Response:
        channel = Channel(self.url, self.headers)
        self._stop.clear()
        try:
            response, parts = self._ask(channel, request, body_of(request, self.model, self.dialect))
        finally:
            channel.close()
        self._check(replace(request, forced=()), response, parts)
        return response

    def counters(self) -> dict[str, float]:
        """vLLM's counters of /metrics, summed over engines: speculation, preemptions, non-finite logits,
        ..."""
        found: dict[str, float] = {}
        for line in str(self._get("/metrics") or "").splitlines():
            name, _, value = (
                line.partition(" ") if "{" not in line else (line.split("{")[0], "", line.split()[-1])
            )
            if name.startswith("vllm:") and name.endswith("_total"):
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def tokenize(self, request: Request) -> list[int]:
        """Token ids of the prompt, from the server's own tokenizer and template."""
        if request.prompt_ids:
            return list(request.prompt_ids)
        body: dict[str, Any] = {"model": self.model}
        if request.messages:
            body["messages"] = [dict(message) for message in request.messages]
            for name in ("chat_template_kwargs", "chat_template"):
                if name in request.sampling.extra:
                    body[name] = request.sampling.extra[name]
        else:
            body |= {"prompt": request.prompt, "add_special_tokens": self.dialect.special_tokens}
        return [int(token) for token in self._post("/tokenize", body)["tokens"]]

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, special ones included."""
        return str(self._post("/detokenize", {"model": self.model, "tokens": list(token_ids)})["prompt"])

    def close(self) -> None:
        """Stop the server if it is ours."""
        self._stop.set()
        if self.server:
            self.server.stop()


def _identity(card: Mapping[str, Any]) -> str:
    return f"{card.get('id')} ({card.get('root')}, {card.get('max_model_len')} tokens)"


def _not_forced(wanted: Sequence[int], got: Sequence[int]) -> str:
    """Empty if the forced tokens came back; otherwise what came instead."""
    if list(wanted) == list(got):
        return ""
    if list(got) == list(wanted[: len(got)]):
        return f"the server stopped after {len(got)} of {len(wanted)} forced tokens"
    place = next(i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b)
    return (
        f"the server did not force the tokens (place {place}: {wanted[place]} wanted, {got[place]} came): "
        "its plug-in is not installed, the token is not in its vocabulary, or acceptance is synthetic"
    )
