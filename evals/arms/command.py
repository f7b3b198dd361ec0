"""The command that starts a server, from an arm's settings.

What this catches: a value that no command line can carry (null). What it cannot catch: a flag that the
installed server does not have; the server then does not start, and its log says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from evals.arms.config import Arm

DEFAULT = (
    *("{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"),
    *("--host", "127.0.0.1", "--port", "{port}", "{arguments}"),
)


def server_command(arm: Arm, port: int) -> list[str]:
    """Words of the command, placeholders filled in. ``{python}`` is the arm's, else this interpreter."""
    filled = {"{python}": arm.server.python or sys.executable, "{model}": arm.model, "{port}": str(port)}
    words: list[str] = []
    for word in arm.server.command or DEFAULT:
        if word == "{arguments}":
            words += arguments(arm)
            continue
        for name, value in filled.items():
            word = word.replace(name, value)
        words.append(word)
    return words


def arguments(arm: Arm) -> list[str]:
    """Engine arguments as flags, ``additional_config`` as one in JSON, both in the order of the file."""
    words: list[str] = []
    for name, value in _named(arm).items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is False:
            words.append(f"--no-{flag[2:]}")
        elif isinstance(value, Mapping):
            words += [flag, json.dumps(value)]
        elif isinstance(value, list | tuple):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return words


def _named(arm: Arm) -> dict[str, Any]:
    named = dict(arm.engine_args)
    if arm.revision:
        named["revision"] = arm.revision
    if arm.additional_config:
        named["additional_config"] = dict(arm.additional_config)
    return named
