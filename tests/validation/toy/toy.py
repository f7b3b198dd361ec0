"""A suite in miniature: two operations without tensors, and the command run on them as a user runs it.

What this catches: whatever the command, the workers and the reports do wrong around a judge. What it cannot
catch: wrong judgements; the judge here compares lists of integers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation import contracts, providers
from validation.contracts.contract import Case, Contract, Regime, Tier

HERE = Path(__file__).parent
PLUGIN = """\
import ctypes, os, signal, subprocess, sys, time
from validation.providers import implements

@implements("{op}", provider="{provider}")
def function(a):
{body}
    a.out[:] = [row + 1 for row in a.rows]
"""


@dataclass
class ToyArguments:
    """``out[i]`` must become ``rows[i] + 1`` (toy_add) or ``2 * rows[i]`` (toy_scale)."""

    rows: list[int]
    out: list[int] = field(default_factory=list)
    seed: int = 0


def cases(op: str) -> Any:
    """Three quick cases of seeds 1 to 3, five full ones."""
    return lambda tier: tuple(
        Case.of(op, "plain", seed, rows=4) for seed in range(1, 4 if tier == "quick" else 6)
    )


def contract(name: str) -> Contract:
    """A contract of which only the names, cases and profiles matter."""
    nothing: Any = None
    regimes = (Regime("plain", (), "nothing hides in it"),)
    return Contract(
        name,
        f"the operation {name}",
        ToyArguments,
        (),
        regimes,
        nothing,
        nothing,
        cases(name),
        nothing,
        {"stock": None},
    )


def toy_contracts(_tier: Tier = "quick") -> dict[str, Contract]:
    """What replaces the real contracts."""
    return {name: contract(name) for name in ("toy_add", "toy_scale")}


def install() -> None:
    """Replace contracts and built-in providers in this process."""
    contracts.contracts = toy_contracts
    for registry, names in (
        (providers.BUILT_IN, {"right": "toy_right", "absent": "toy_absent"}),
        (providers.CONTROLS, {"toy_wrong": "toy_wrong", "toy_missed": "toy_missed"}),
        (providers.CONTROL_OF, {"toy_wrong": "right"}),
    ):
        registry.clear()
        registry.update(names)
    if os.environ.get("TOY_MISSED"):
        providers.CONTROL_OF["toy_missed"] = "right"


def in_process(monkeypatch: Any, folder: Path) -> None:
    """The toy suite in this process, in ``folder``, until the test ends."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(contracts, "contracts", toy_contracts)
    for name in ("BUILT_IN", "CONTROLS", "CONTROL_OF", "_REGISTRY", "_DEFINED_AT", "_PLUGINS"):
        monkeypatch.setattr(providers, name, {})
    for name in ("toy_right", "toy_wrong"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("LOCKSTEP_DEVICE", "TRITON_INTERPRET"):  # the command sets them
        monkeypatch.setenv(name, os.environ.get(name, ""))
    install()


def command(*words: str) -> list[str]:
    """The command line of ``lockstep`` on the toy suite."""
    return [sys.executable, "-m", "toy_main", *words]


def environment() -> dict[str, str]:
    """Finds this suite and its fakes from any folder."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[2])])}


def lockstep(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command in ``folder`` to its end."""
    env = environment() | more
    return subprocess.run(command(*words), cwd=folder, env=env, capture_output=True, text=True, timeout=180)


def plugin(
    folder: Path, body: str, name: str = "mine.py", op: str = "toy_add", provider: str = "mine"
) -> Path:
    """A plug-in whose one function runs ``body`` and then computes toy_add rightly."""
    path = folder / name
    path.write_text(
        PLUGIN.format(op=op, provider=provider, body=textwrap.indent(textwrap.dedent(body).strip(), "    "))
    )
    return path
