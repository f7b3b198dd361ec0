"""Where compute-sanitizer is: named by the user, on PATH, in the CUDA toolkit, or in its wheel.

What this catches: a file that is there and cannot be executed. What it cannot catch: one that is too old for
the driver; its own words end up in the result.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from validation.errors import UserError

NAME = "compute-sanitizer"
TOOLKIT = Path("/usr/local/cuda/bin")
# In a wheel of the toolkit: of CUDA 13 and later, and of CUDA 12.
IN_WHEELS = (f"nvidia/cu*/bin/{NAME}", f"nvidia/cuda_sanitizer_api/**/{NAME}")


def find(named: Path | None = None) -> str:
    """The executable's path. Raises UserError that says where it was looked for."""
    if named is not None:
        if not _runs(named):
            raise UserError(f"--sanitizer {named}: no executable file")
        return str(named)
    for candidate in _candidates():
        if _runs(candidate):
            return str(candidate)
    raise UserError(
        f"{NAME} is neither on PATH, nor in {TOOLKIT}, nor installed as a wheel; install the CUDA toolkit, "
        "or the package nvidia-cuda-sanitizer-api, or name the file with --sanitizer"
    )


def _candidates() -> Iterator[Path]:
    on_path = shutil.which(NAME)
    yield from ([Path(on_path)] if on_path else [])
    yield TOOLKIT / NAME
    for folder in dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()]):
        for pattern in IN_WHEELS:
            yield from sorted(Path(folder).glob(pattern))


def _runs(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def version(binary: str) -> str:
    """What it says of itself, such as "2025.3.1.0"; UserError if it says nothing."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"{binary} does not run ({type(error).__name__}); name another with --sanitizer"
        ) from None
    words = said.partition("Version ")[2].split()
    if not words:
        raise UserError(f"{binary} does not say its version; name another with --sanitizer")
    return words[0]
