"""From an arm's configuration to an engine that is up, and down again afterwards.

What this catches: engine arguments that the engine does not have, models that are not there, servers that do
not start (with the last lines of their log). What it cannot catch: an argument that a server accepts and
ignores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from evals.arms.checked import build, nearest
from evals.arms.config import Arm
from evals.engines.api import Engine
from validation.errors import UserError

if TYPE_CHECKING:
    from evals.engines.in_process import Options

DTYPES, DEVICES = ("float32", "bfloat16", "float16"), ("cpu", "cuda")


def check(arm: Arm) -> None:
    """What can be known to be wrong before any engine starts. Raises UserError, one line."""
    if arm.engine == "transformers":
        options_of(arm)
        folder = model_path(arm.model)
        if not (folder / "config.json").exists():
            raise UserError(
                f"arms.{arm.name}: {folder} holds no model (no config.json); "
                "give the folder of a transformers model"
            )


@contextlib.contextmanager
def opened(arm: Arm, log: Path) -> Iterator[Engine]:
    """The arm's engine. ``log``: where a server that is started writes."""
    if arm.engine == "transformers":
        yield from _in_process(arm)
    elif arm.engine == "vllm_inprocess":
        yield from _replay(arm)
    else:
        yield from _server(arm, log)


def _in_process(arm: Arm) -> Iterator[Engine]:
    from evals.engines.in_process import InProcessEngine

    engine = InProcessEngine(model_path(arm.model), options_of(arm))
    try:
        yield engine
    finally:
        engine.close()


def options_of(arm: Arm) -> Options:
    """Engine arguments as options of the in-process engine. Raises UserError for unknown ones and wrong
    values."""
    from evals.engines.in_process import BACKENDS, Options

    known, where = [each.name for each in fields(Options)], f"arms.{arm.name}"
    for name in arm.engine_args:
        if name not in known:
            raise UserError(f"{where}: unknown engine argument '{name}'{nearest(name, known)}")
    options = build(Options, arm.engine_args, f"{where}: engine_args")
    for name, choice in (("backend", BACKENDS), ("dtype", DTYPES), ("device", DEVICES)):
        if getattr(options, name) not in choice:
            wrong = getattr(options, name)
            raise UserError(
                f"{where}: engine argument {name} must be one of {', '.join(choice)}, not '{wrong}'"
            )
    if options.rows < 1 or options.threads < 0 or min(options.lengths, default=0) < 1:
        raise UserError(f"{where}: rows and lengths must be at least 1, threads at least 0")
    return options


def model_path(model: str) -> Path:
    """The folder of a model: the one that a package carries by its name, else a path."""
    from evals.engines import smollm2

    return smollm2.model_folder() if model == smollm2.NAME else Path(model)


def _replay(arm: Arm) -> Iterator[Engine]:
    from evals.engines.vllm_inprocess import open_engine

    os.environ.update(arm.environment)
    arguments = dict(arm.engine_args)
    if arm.additional_config:
        arguments["additional_config"] = dict(arm.additional_config)
    engine = open_engine(arm.model, arguments, arm.concurrency)
    try:
        yield engine
    finally:
        engine.close()


def _server(arm: Arm, log: Path) -> Iterator[Engine]:
    from evals.arms.command import server_command
    from evals.engines.openai import OpenAIEngine
    from evals.engines.server import Server, free_port

    asked = {"concurrency": arm.concurrency, "timeout": arm.request_timeout}
    if arm.server.url:
        engine = OpenAIEngine(url=arm.server.url, **asked)  # type: ignore[arg-type]
        try:
            yield engine
        finally:
            engine.close()
        return
    port = free_port()
    limits = {"ready": arm.server.start_timeout, "grace": arm.server.stop_timeout}
    server = Server(
        server_command(arm, port), log, dict(arm.environment), f"http://127.0.0.1:{port}", **limits
    )
    with server:
        engine = OpenAIEngine(server=server, **asked)  # type: ignore[arg-type]
        try:
            yield engine
        finally:
            engine.close()
