"""Ranges of the values in an arms file.

What this catches: values with which a run would be meaningless or would fail hours later (K = 0, a margin of
0, a server without a port). What it cannot catch: a margin that is too wide; its reason is printed with every
verdict.
"""

from __future__ import annotations

from evals.arms.config import Arm, Comparison, Forced, TaskSettings
from validation.errors import UserError


def check_levels(comparison: Comparison, where: str) -> None:
    """The error level, and that there is something to do. Raises UserError."""
    if not 0 < comparison.alpha < 0.5:
        raise UserError(
            f"{where}: alpha must lie between 0 and 0.5, not {comparison.alpha:g}; 0.05 is the usual level"
        )
    if comparison.seed < 0:
        raise UserError(f"{where}: seed must not be negative, not {comparison.seed}")
    if not comparison.tasks and comparison.forced is None:
        raise UserError(f"{where}: nothing to compare; add a table [tasks.NAME] or [forced]")


def check_task(task: TaskSettings, where: str) -> None:
    """Raises UserError."""
    if task.repeats < 1:
        raise UserError(f"{where}: repeats (K) must be at least 1, not {task.repeats}")
    if task.max_tokens < 1:
        raise UserError(f"{where}: max_tokens must be at least 1, not {task.max_tokens}")
    if task.temperature < 0:
        raise UserError(f"{where}: temperature must not be negative, not {task.temperature:g}")
    if not 0 < task.top_p <= 1:
        raise UserError(f"{where}: top_p must lie above 0 and at most at 1, not {task.top_p:g}")
    if task.temperature == 0 and task.repeats > 1:
        raise UserError(
            f"{where}: {task.repeats} repeats at temperature 0 are one reply; set temperature, or repeats = 1"
        )
    _margin(task.margin, task.margin_reason, where, 100.0, "points of 100")


def check_forced(forced: Forced, where: str) -> None:
    """Raises UserError."""
    for name in ("tokens", "length", "replicates", "top"):
        if getattr(forced, name) < 1:
            raise UserError(f"{where}: {name} must be at least 1, not {getattr(forced, name)}")
    if forced.length > forced.tokens:
        raise UserError(f"{where}: length ({forced.length}) is more than tokens ({forced.tokens}); lower it")
    if not forced.noise_ratio > 1:
        raise UserError(f"{where}: noise_ratio must be more than 1, not {forced.noise_ratio}")
    _margin(forced.margin, forced.margin_reason, where, float("inf"), "nats per token")


def check_arm(arm: Arm, where: str) -> None:
    """Raises UserError."""
    if not arm.model.strip():
        raise UserError(f"{where}: model is empty; name a model or its folder")
    if arm.concurrency < 1:
        raise UserError(f"{where}: concurrency must be at least 1, not {arm.concurrency}")
    for name, value in (
        ("request_timeout", arm.request_timeout),
        ("server.start_timeout", arm.server.start_timeout),
        ("server.stop_timeout", arm.server.stop_timeout),
    ):
        if value <= 0:
            raise UserError(f"{where}: {name} must be more than 0 seconds, not {value:g}")
    _server(arm, where)


def _server(arm: Arm, where: str) -> None:
    command, url = arm.server.command, arm.server.url
    if arm.engine == "openai":
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{where}: engine 'openai' needs server.url = \"http://HOST:PORT\", not '{url}'")
        if command:
            raise UserError(
                f"{where}: engine 'openai' attaches by server.url; for a command use engine = 'vllm'"
            )
    elif url:
        raise UserError(f"{where}: server.url is for engine 'openai', not '{arm.engine}'")
    elif command and arm.engine != "vllm":
        raise UserError(f"{where}: server.command is for engine 'vllm', not '{arm.engine}'")
    elif command:
        if not any("{port}" in word for word in command):
            raise UserError(f"{where}: server.command must contain {{port}}; the port is chosen at the start")
        settings = arm.engine_args or arm.additional_config
        if settings and "{arguments}" not in command:
            raise UserError(
                f'{where}: server.command lacks the element "{{arguments}}"; engine_args would be lost'
            )


def _margin(margin: float, reason: str, where: str, most: float, unit: str) -> None:
    if not 0 < margin < most:
        raise UserError(
            f"{where}: margin must be more than 0 {unit}, not {margin:g}; equivalence needs a margin"
        )
    if len(reason.split()) < 3:
        raise UserError(f"{where}: margin_reason must say in words why {margin:g} {unit} do not matter")
