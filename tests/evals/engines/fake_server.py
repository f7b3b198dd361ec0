"""A server with the interface of vLLM's, for tests: python fake_server.py PORT [option=value ...].

Tokens are drawn by a hash of (prompt, seed, place), so that the same seed gives the same reply. Every
body goes to the file ``bodies``. Options: plugin=0|1, honest=0 (seed ignored), delay (seconds a token),
die (exit code at start), crash_after (requests), hang=1, cut (number of first requests whose connection
is cut), model, switch_after, child=1, deaf=1 (ignores SIGTERM).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LIMIT = 64  # tokens of context


class State:
    def __init__(self, words: list[str]) -> None:
        self.options = dict(word.split("=", 1) for word in words)
        self.requests, self.lock = 0, threading.Lock()
        self.running = self.most = 0

    def number(self, name: str, default: float = 0) -> float:
        return float(self.options.get(name, default))


def draw(prompt: list[int], seed: int, place: int) -> tuple[int, float]:
    digest = hashlib.sha256(f"{prompt}/{seed}/{place}".encode()).digest()
    return 10 + digest[0], -digest[1] / 64


def reply(body: dict[str, Any], state: State) -> tuple[list[int], list[float]]:
    prompt = ids_of(body)
    seed = body.get("seed", 0) if state.number("honest", 1) else 0
    drawn = [draw(prompt, seed, place) for place in range(body["max_tokens"])]
    forced = (body.get("vllm_xargs") or {}).get("forced_tokens") or []
    if not state.number("plugin", 1):
        forced = []
    tokens = [forced[i] if i < len(forced) else token for i, (token, _) in enumerate(drawn)]
    return tokens, [logprob for _, logprob in drawn]


def ids_of(body: dict[str, Any]) -> list[int]:
    if "messages" in body:
        return [1] + [ord(c) % 200 for message in body["messages"] for c in message["content"]]
    prompt = body["prompt"]
    return list(prompt) if isinstance(prompt, list) else [ord(c) % 200 for c in prompt]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *_: Any) -> None:
        pass

    def send(self, status: int, document: Any) -> None:
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def model(self) -> str:
        after = self.state.number("switch_after", 1e9)
        return "other" if self.state.requests >= after else self.state.options.get("model", "toy")

    def do_GET(self) -> None:
        known: dict[str, Any] = {
            "/health": {},
            "/version": {"version": "0.0.1"},
            "/v1/models": {"data": [{"id": self.model(), "root": "/m", "max_model_len": LIMIT}]},
        }
        self.send(200 if self.path in known else 404, known.get(self.path, {"error": {"message": "no"}}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            return self.send(200, {"tokens": ids_of(body)})
        if self.path == "/detokenize":
            return self.send(200, {"prompt": " ".join(map(str, body["tokens"]))})
        state = self.state
        with state.lock:
            state.requests += 1
            number = state.requests
            state.running += 1
            state.most = max(state.most, state.running)
            if "bodies" in state.options:
                with open(state.options["bodies"], "a") as out:
                    out.write(json.dumps({"path": self.path, "running": state.running, **body}) + "\n")
        try:
            self.answer(body, number)
        except BrokenPipeError:
            pass
        finally:
            with state.lock:
                state.running -= 1

    def answer(self, body: dict[str, Any], number: int) -> None:
        state = self.state
        if number > state.number("crash_after", 1e9):
            print("RuntimeError: the toy engine has died", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if number <= state.number("cut"):
            self.close_connection = True
            return self.connection.close()
        if state.number("hang"):
            time.sleep(5)
        if status := int(state.number("status")):
            return self.send(status, {"error": {"message": f"status {status}", "code": status}})
        if len(ids_of(body)) + body["max_tokens"] > LIMIT:
            text = f"This model's maximum context length is {LIMIT} tokens."
            return self.send(400, {"error": {"message": text, "code": 400}})
        tokens, logprobs = reply(body, state)
        time.sleep(state.number("delay") * len(tokens))
        if state.options.get("odd") == "counts":
            logprobs = logprobs[1:]
        chat = "messages" in body
        chunks = [self.choice(body, [t], [p], chat) for t, p in zip(tokens, logprobs, strict=False)]
        whole = self.choice(body, tokens, logprobs, chat)
        self.write_reply(body, chunks, whole, len(tokens))
        return None

    def choice(self, body: dict[str, Any], tokens: list[int], p: list[float], chat: bool) -> dict[str, Any]:
        text = "".join(f" t{token}" for token in tokens)
        names = [f"token_id:{token}" for token in tokens]
        tops = [
            {name: v, "token_id:3": -9.0, "token_id:2": -9999.0} for name, v in zip(names, p, strict=False)
        ]
        if chat:
            content = [
                {
                    "token": n,
                    "logprob": v,
                    "top_logprobs": [{"token": k, "logprob": x} for k, x in top.items()],
                }
                for n, v, top in zip(names, p, tops, strict=False)
            ]
            said = {"role": "assistant", "content": text}
            return {"message": said, "delta": said, "logprobs": {"content": content}, "token_ids": tokens}
        return {"text": text, "logprobs": {"token_logprobs": p, "top_logprobs": tops}, "token_ids": tokens}

    def write_reply(self, body: dict[str, Any], chunks: list[Any], whole: Any, count: int) -> None:
        prompt = ids_of(body)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count}
        common = {"model": self.model(), "prompt_token_ids": prompt}
        if not body["stream"]:
            return self.send(
                200, {**common, "choices": [whole | {"finish_reason": "length"}], "usage": usage}
            )
        chunks[-1]["finish_reason"] = "length"
        events = [{**common, "choices": [chunk]} for chunk in chunks] + [{"choices": [], "usage": usage}]
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, event in enumerate([*map(json.dumps, events), "[DONE]"]):
            if self.state.options.get("odd") == "torn" and place == 2:
                self.connection.close()
                self.close_connection = True
                return None
            data = f"data: {event}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")
        return None


class Listener(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass


def serve(port: int, words: list[str]) -> Listener:
    handler = type("Bound", (Handler,), {"state": State(words)})
    return Listener(("127.0.0.1", port), handler)


def main() -> None:
    state = State(sys.argv[2:])
    if "die" in state.options:
        print("INFO 11-29 18:00:00 [core.py:1] loading", flush=True)
        print("(EngineCore pid=7) ERROR 11-29 18:00:00 [core.py:9] ValueError: no such toy", flush=True)
        print("RuntimeError: see above", flush=True)
        sys.exit(int(state.options["die"]))
    if "silent" in state.options:
        time.sleep(600)
    if "deaf" in state.options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in state.options:  # a worker in a session of its own
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        print(f"child {child.pid}", flush=True)
    serve(int(sys.argv[1]), sys.argv[2:]).serve_forever()


if __name__ == "__main__":
    main()
