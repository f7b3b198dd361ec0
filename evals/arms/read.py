"""Reading an arms file: one line for everything that is wrong with it.

    factor = "additional_config.decode_backend"      the one setting in which the arms may differ
    [common]                                         settings of both arms
    [arms.reference]  [arms.candidate]               what is special to each: only the factor
    [tasks.NAME]  [forced]                           what both are asked

What this catches: unknown and missing keys, wrong types and ranges, variables that are not set, arms that
differ in anything but the factor, arms that do not differ. What it cannot catch: what only shows at run time
(``guard``).
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evals.arms.checked import build, nearest
from evals.arms.config import Arm, Comparison, Forced, TaskSettings
from evals.arms.difference import check_factor
from evals.arms.ranges import check_arm, check_forced, check_levels, check_task
from validation.errors import UserError

READY = Path(__file__).parent / "ready"
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
TOP = ("name", "factor", "implies", "alpha", "seed", "common", "arms", "tasks", "forced")


def ready_files() -> dict[str, Path]:
    """The arms files that come with the package, by name."""
    return {path.stem: path for path in sorted(READY.glob("*.toml"))}


def read_arms(path: Path | str, environ: Mapping[str, str] | None = None) -> Comparison:
    """Read and check an arms file, or the ready one of that name. Raises UserError, one line.

    ``${NAME}`` and ``${NAME:-default}`` in any text are replaced from ``environ`` (default: the process's).
    """
    path = _find(Path(path))
    table = expanded(_parsed(path), path.name, os.environ if environ is None else environ)
    where = path.name
    for key in table:
        if key not in TOP:
            raise UserError(f"{where}: unknown key '{key}'{nearest(key, list(TOP))}")
    arms = _arms(table, where)
    tasks = {
        name: build(TaskSettings, each, f"{where}: tasks.{name}", name=name)
        for name, each in _table(table, "tasks", where).items()
    }
    forced = build(Forced, table["forced"], f"{where}: forced") if "forced" in table else None
    rest = {key: table[key] for key in ("name", "factor", "implies", "alpha", "seed") if key in table}
    given = {**arms, "tasks": tasks, "forced": forced, "source": str(path)}
    comparison = build(Comparison, {"name": path.stem, **rest}, where, **given)
    check(comparison, where)
    return comparison


def check(comparison: Comparison, where: str = "arms") -> None:
    """Ranges, and that the arms differ in the factor and in nothing else. Raises UserError."""
    check_levels(comparison, where)
    for arm in comparison.arms:
        check_arm(arm, f"{where}: arms.{arm.name}")
    for task in comparison.tasks.values():
        check_task(task, f"{where}: tasks.{task.name}")
    if comparison.forced:
        check_forced(comparison.forced, f"{where}: forced")
    check_factor(comparison, where)


def expanded(value: Any, where: str, environ: Mapping[str, str]) -> Any:
    """The value with environment variables filled in, in all text inside it."""
    if isinstance(value, Mapping):
        return {key: expanded(each, f"{where}: {key}", environ) for key, each in value.items()}
    if isinstance(value, list):
        return [expanded(each, where, environ) for each in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if found := environ.get(name) or default:
            return found
        raise UserError(f"{where} needs the environment variable {name}, which is not set; export {name}=...")

    return VARIABLE.sub(fill, value)


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    ready = ready_files()
    if str(path) in ready:
        return ready[str(path)]
    raise UserError(f"there is no arms file {path}; name one that exists, or a ready one: {', '.join(ready)}")


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid TOML: {' '.join(str(error).split())}") from None


def _table(table: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: {key} must be a table")
    return value


def _arms(table: Mapping[str, Any], where: str) -> dict[str, Arm]:
    common, arms = _table(table, "common", where), _table(table, "arms", where)
    for name in arms:
        if name not in ("reference", "candidate"):
            raise UserError(f"{where}: unknown arm '{name}'; the arms are called reference and candidate")
    built = {}
    for name in ("reference", "candidate"):
        if name not in arms:
            raise UserError(f"{where}: there is no table [arms.{name}]; two arms are compared")
        own = _table(arms, name, f"{where}: arms")
        built[name] = build(Arm, merged(common, own), f"{where}: arms.{name}", name=name)
    return built


def merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """``common`` with the settings of ``own`` over it, table by table."""
    out = dict(common)
    for key, value in own.items():
        before = out.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        out[key] = merged(before, value) if both else value  # type: ignore[arg-type]
    return out
