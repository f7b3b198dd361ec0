"""Servers that are started, watched and stopped, and that outlive nobody."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evals.engines.api import EngineLost, Request, Response, Sampling
from evals.engines.openai import OpenAIEngine
from evals.engines.retry import Retries
from evals.engines.server import Server, last_lines
from evals.engines.server_facts import options_of, server_facts
from tests.processes import eventually, running
from validation.errors import UserError

SCRIPT = str(Path(__file__).with_name("fake_server.py"))
ROOT = Path(__file__).parents[3]


def server(folder: Path, *words: str, **options: float) -> Server:
    return Server([sys.executable, SCRIPT, "{port}", *words], folder / "server.log", **options)  # type: ignore[arg-type]


def child_of(log: Path) -> int:
    found = re.search(r"child (\d+)", log.read_text())
    assert found
    return int(found.group(1))


def test_it_starts_answers_and_stops_with_all_its_children(tmp_path: Path) -> None:
    """Also with a child in a session of its own, and a free port."""
    with server(tmp_path, "child=1") as ours:
        engine = OpenAIEngine(server=ours)
        assert engine.probe() == {"seed": "honoured", "forcing": "present"}
        child = child_of(ours.log)
        assert running(ours.pid)
        assert running(child)
    assert not running(ours.pid)
    assert not running(child)
    assert "signal 15" in ours.ended()


def test_a_deaf_server_is_killed(tmp_path: Path) -> None:
    ours = server(tmp_path, "deaf=1", grace=0.3).start()
    ours.stop()
    assert not running(ours.pid)
    assert "signal 9" in ours.ended()


def test_a_server_that_does_not_start_says_why_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        server(tmp_path, "die=3").start()
    message = str(caught.value)
    assert "exit status 3" in message
    assert "ValueError: no such toy ... RuntimeError: see above" in message
    assert str(tmp_path / "server.log") in message
    assert "\n" not in message


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    ours = server(tmp_path, "silent=1", ready=0.5)
    with pytest.raises(UserError, match="was not ready"):
        ours.start()
    assert not running(ours.pid)


def test_commands_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be run: .*no-such-program"):
        Server(["/no-such-program", "{port}"], tmp_path / "log").start()
    with pytest.raises(UserError, match=r"no \{port\}"):
        Server(["program"], tmp_path / "log")
    with pytest.raises(UserError, match="empty"):
        Server([], tmp_path / "log")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_with_its_client(tmp_path: Path, number: int) -> None:
    """Also by kill -9 of the client."""
    code = (
        "import sys, time; from pathlib import Path; from evals.engines.server import Server\n"
        f"s = Server([sys.executable, {SCRIPT!r}, '{{port}}', 'child=1'], "
        f"Path({str(tmp_path / 'log')!r})).start()\n"
        "print(s.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as client:
        assert client.stdout
        pid = int(client.stdout.readline())
        child = child_of(tmp_path / "log")
        assert running(pid)
        assert running(child)
        client.send_signal(number)
    assert eventually(lambda: not running(pid) and not running(child))


def test_the_server_ends_with_its_guardian(tmp_path: Path) -> None:
    ours = server(tmp_path).start()
    assert ours._guardian
    ours._guardian.kill()
    assert eventually(lambda: not running(ours.pid) and bool(ours.ended()))
    ours.stop()


@pytest.mark.parametrize("how", ["kill", "crash"])
def test_a_server_killed_in_the_middle_is_lost_after_what_came_was_reported(tmp_path: Path, how: str) -> None:
    """Replies that came are whole; those that were cut are not reported, and one line says what happened."""
    words = ["delay=0.02"] + (["crash_after=9"] if how == "crash" else [])
    found: dict[str, Response] = {}
    with server(tmp_path, *words) as ours:
        engine = OpenAIEngine(server=ours, concurrency=4, retries=Retries(first=0.02))

        def done(request: Request, response: Response) -> None:
            found[request.key] = response
            if how == "kill" and len(found) == 5:
                os.kill(ours.pid, signal.SIGKILL)

        requests = [Request(f"{i}", i, Sampling(max_tokens=4), prompt="x") for i in range(40)]
        with pytest.raises(EngineLost, match="killed by signal 9") as caught:
            engine.run(requests, done)
    assert 4 <= len(found) < 40
    assert all(response.ok and len(response.token_ids) == 4 for response in found.values())
    assert f"{40 - len(found)} requests without a reply" in str(caught.value)
    if how == "crash":
        assert "RuntimeError: the toy engine has died" in str(caught.value)


def test_log_lines_are_short_and_name_the_first_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == "no log was written"
    log.write_text("(EngineCore pid=7) ERROR 11-29 18:21:35 [core.py:9] OSError: no weights\n" + "x" * 900)
    assert last_lines(log).startswith("last of its log: OSError: no weights ... xxx")
    assert len(last_lines(log)) < 340


def test_options_of_a_command_line() -> None:
    words = [
        "vllm",
        "serve",
        "m",
        "-tp",
        "8",
        "--enforce-eager",
        "--kv-cache-dtype=fp8",
        "--no-enable-prefix-caching",
    ]
    assert options_of(words) == {
        "tensor-parallel-size": "8",
        "enforce-eager": True,
        "kv-cache-dtype": "fp8",
        "enable-prefix-caching": False,
    }


def test_facts_from_a_command_line_and_from_server_info() -> None:
    """The server's own configuration wins over what was asked for."""
    command = [
        "vllm",
        "serve",
        "m",
        "--port",
        "1",
        "-tp",
        "8",
        "--additional-config",
        '{"decode_backend": "auto"}',
    ]
    asked = server_facts(lambda path: None, command, {"A": "1"})
    assert (asked["tensor_parallel_size"], asked["device_count"], asked["kv_cache_dtype"]) == (
        8,
        8,
        "unknown",
    )
    assert asked["additional_config"] == '{"decode_backend": "auto"}'
    assert asked["speculative_method"] == "none"
    assert asked["command"] == f"vllm serve m -tp 8 --additional-config {command[-1]}"
    sizes = {"tensor_parallel_size": 16, "pipeline_parallel_size": 1, "data_parallel_size": 1}
    info = {
        "vllm_config": {
            "parallel_config": sizes,
            "cache_config": {"cache_dtype": "fp8"},
            "speculative_config": None,
            "additional_config": {"decode_backend": "latency_specialized"},
        },
        "system_env": {"nvidia_gpu_models": "GPU 0: GB300\nGPU 1: GB300", "torch_version": "2.14"},
    }
    told = server_facts({"/server_info?config_format=json": info}.get, command, {})
    assert (told["tensor_parallel_size"], told["device_count"], told["kv_cache_dtype"]) == (16, 16, "fp8")
    assert (told["device_name"], told["version_torch"]) == ("GB300", "2.14")
    assert told["additional_config"] == '{"decode_backend": "latency_specialized"}'
    metrics = 'vllm:cache_config_info{block_size="128",cache_dtype="auto"} 1.0'
    assert server_facts({"/metrics": metrics}.get, [], {})["kv_cache_dtype"] == "auto"
