"""Where a run took place: versions, device, commit, and a hash of what was asked.

What this catches: nothing; it lets two documents be compared. What it cannot say: clocks, other load on the
machine, or sources that git ignores.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from validation.execution.plan import Settings

PACKAGES = ("torch", "triton", "numpy", "fla-core")
DECIDES = ("ops", "providers", "tier", "device", "seed", "mode", "budget")
ROOT = Path(__file__).parents[2]


def collect(settings: Settings) -> dict[str, Any]:
    """Everything a reader needs to judge whether a result applies elsewhere."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **{package: _version(package) for package in PACKAGES},
        "device": device_name(settings.device),
        **commit(ROOT),
        "configuration": {name: asdict(settings)[name] for name in DECIDES},
        "configuration_hash": configuration_hash(settings),
    }


def configuration_hash(settings: Settings) -> str:
    """Eight hex digits over the operations, providers, tier, device, seed, mode and budget."""
    text = json.dumps({name: asdict(settings)[name] for name in DECIDES}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def device_name(device: str) -> str:
    """The name of the GPU with its CUDA version, or "cpu"."""
    if device != "cuda":
        return "cpu"
    import torch

    return f"{torch.cuda.get_device_name()} (CUDA {torch.version.cuda})"


def commit(root: Path) -> dict[str, Any]:
    """Commit of the sources and whether they differ from it.

    Where they are no git checkout, such as a copy taken to another machine: what LOCKSTEP_COMMIT says, if
    set.
    """
    head = _git(root, "rev-parse", "HEAD")
    if not head or _git(root, "rev-parse", "--show-toplevel") != str(root):
        named = os.environ.get("LOCKSTEP_COMMIT")
        return {"commit": named} if named else {}
    return {"commit": head, "modified": bool(_git(root, "status", "--porcelain"))}


def _git(root: Path, *arguments: str) -> str:
    try:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
