"""Runs single modules of a released vLLM without importing vLLM.

``import vllm`` needs its compiled parts and a few hundred packages; its Triton kernels need neither. A
``Release`` finds vLLM's files (installed, or in a wheel that nobody has to unpack) and executes the modules
that it is asked for, by their own names but in a tree of its own: a real vLLM in the same process is neither
used nor disturbed. Every ``import vllm...`` inside them is answered here, by

* the file itself, for the modules in ``REAL``: kernels, and the helpers that they compute with;
* a stand-in of ``stand_ins``, for what is about the surroundings: device, logging, registration;
* the literal constants of the file, for the modules in ``CONSTANTS``;
* nothing, for all others: their names can be imported, and any use of them raises ``Unavailable``.

What this cannot show: which of its kernels vLLM would choose, and its compiled ones.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import linecache
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from validation.errors import Unavailable

VARIABLE = "LOCKSTEP_VLLM_WHEEL"
VERSION = "0.33.0"
# Executed modules stand under this name in sys.modules, where dataclasses look for the module of a class.
PREFIX = "lockstep_released."
HOW = f"install it, or set {VARIABLE} to its wheel or to a folder that holds vllm/"


class Files:
    """The sources of one vLLM: a folder or a wheel that holds ``vllm/``."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._wheel = None if place.is_dir() else zipfile.ZipFile(place)
        self._names = frozenset(self._wheel.namelist()) if self._wheel else None

    def read(self, file: str) -> str | None:
        """Text of ``vllm/...``, or None where there is no such file."""
        if self._wheel and self._names is not None:
            return self._wheel.read(file).decode() if file in self._names else None
        path = self.place / file
        return path.read_text() if path.is_file() else None

    def version(self) -> str:
        """Version that the files themselves state, or an empty string."""
        found = ast.parse(self.read("vllm/_version.py") or "").body
        for statement in found:
            for name, value in _assigned(statement):
                if name in ("__version__", "version") and isinstance(value, str):
                    return value
        return ""


def find() -> Files:
    """The vLLM named by the variable, else the installed one. Raises Unavailable naming both ways."""
    named = os.environ.get(VARIABLE)
    if named:
        place = Path(named)
        if not place.exists():
            raise Unavailable(f"needs vllm {VERSION}: {VARIABLE} names {named}, which does not exist")
        if not place.is_dir() and not zipfile.is_zipfile(place):
            raise Unavailable(f"needs vllm {VERSION}: {VARIABLE} names {named}, which is no wheel")
        files = Files(place)
    else:
        spec = importlib.util.find_spec("vllm")  # finds the folder; runs nothing of it
        if spec is None or not spec.submodule_search_locations:
            raise Unavailable(f"needs vllm {VERSION}, which is not installed; {HOW}")
        files = Files(Path(next(iter(spec.submodule_search_locations))).parent)
    version = files.version()
    if version.split("+")[0] != VERSION:
        raise Unavailable(f"needs vllm {VERSION}, found {version or 'none'} in {files.place}; {HOW}")
    return files


class Release:
    """Modules of one vLLM, each executed when first asked for and then handed to ``finish``."""

    def __init__(
        self,
        files: Files,
        real: Sequence[str] = (),
        constants: Sequence[str] = (),
        stand_ins: Mapping[str, Mapping[str, Any]] | None = None,
        finish: Callable[[ModuleType], None] = lambda module: None,
    ) -> None:
        self._files = files
        self._real = frozenset(real)
        self._constants = frozenset(constants)
        self._stand_ins = dict(stand_ins or {})
        self._finish = finish
        self._modules: dict[str, ModuleType] = {}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def module(self, name: str) -> ModuleType:
        """``vllm`` or ``vllm....``, and as attributes of their parents all that lie above it."""
        if name in self._modules:
            return self._modules[name]
        parent, _, last = name.rpartition(".")
        above = self.module(parent) if parent else None
        if name in self._real:
            module = self._executed(name)
        else:
            module = self._modules[name] = ModuleType(name)
            module.__dict__.update(self._answers(name))
        if above is not None:
            setattr(above, last, module)
        return module

    def _executed(self, name: str) -> ModuleType:
        file, text = self._source(name)
        shown = str(self._files.place / file)
        module = self._modules[name] = sys.modules[PREFIX + name] = ModuleType(PREFIX + name)
        module.__dict__.update(__file__=shown, __builtins__=self._builtins)
        if file.endswith("/__init__.py"):
            module.__dict__["__path__"] = []  # relative imports inside a package start from itself
        # Triton reads a kernel's source through linecache; without a time stamp it is not looked up on disk.
        linecache.cache[shown] = (len(text), None, text.splitlines(keepends=True), shown)
        try:
            exec(compile(text, shown, "exec"), module.__dict__)
        except BaseException:
            del self._modules[name], sys.modules[PREFIX + name]
            raise
        self._finish(module)
        return module

    def _source(self, name: str) -> tuple[str, str]:
        stem = name.replace(".", "/")
        for file in (f"{stem}.py", f"{stem}/__init__.py"):
            if (text := self._files.read(file)) is not None:
                return file, text
        raise Unavailable(f"needs vllm {VERSION} with {stem}.py; {self._files.place} lacks it")

    def _answers(self, name: str) -> dict[str, Any]:
        """What a module holds that is not executed: its stand-in, its constants, or names that raise."""
        answers: dict[str, Any] = {}
        if name in self._constants:
            for statement in ast.parse(self._source(name)[1]).body:
                answers.update(_assigned(statement))
        answers.update(self._stand_ins.get(name, {}))
        answers.setdefault("__getattr__", lambda attribute: _absent(name, attribute))
        return answers

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """``__import__`` of the executed modules: what lies under ``vllm`` comes from here."""
        if level and globals:
            base = (
                str(globals["__name__"]).removeprefix(PREFIX).rsplit(".", level - ("__path__" in globals))[0]
            )
            name = f"{base}.{name}" if name else base
        if name != "vllm" and not name.startswith("vllm."):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = self.module(name)
        if not fromlist:
            return self.module("vllm")
        for item in fromlist:
            whole = f"{name}.{item}"
            if item not in vars(module) and (whole in self._real or whole in self._stand_ins):
                self.module(whole)
        return module


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, Any]]:
    """Names that a top-level statement sets to a literal, with the literal."""
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets, value = [statement.target], statement.value
    else:
        return
    try:
        literal = ast.literal_eval(value)
    except ValueError:
        return
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id, literal


class _Absent(type):
    """A class that can be named, subclassed and put into annotations, but neither called nor looked into."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise Unavailable(f"{cls.__module__}.{cls.__name__} of vllm is not loaded here")

    def __getattr__(cls, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise Unavailable(f"{cls.__module__}.{cls.__name__}.{attribute} of vllm is not loaded here")

    def __getitem__(cls, item: Any) -> Any:
        return cls


@cache
def _absent(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(name, (), {"__module__": module})
