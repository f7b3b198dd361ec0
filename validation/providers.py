"""Registry of implementations under test: built in, from a plug-in file, or from an entry point.

A provider is a name; under it, one implementation per operation. Registering is one decorator:

    @implements("kda_decode", provider="mine", profile="stock")
    def kda_decode(a: KdaArguments) -> None: ...

What this catches: a declaration that is wrong (``validation.declaration``), two functions for the same
operation, a missing package or device. What it cannot catch: wrong results (the judge does).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from validation.declaration import check_declaration, check_provider, check_signature, refusal
from validation.dispatch.table import Route
from validation.errors import Unavailable, UserError
from validation.plugin_file import import_file, staying, survives
from validation.trace import describe, shortened

ENTRY_POINT_GROUP = "lockstep.providers"

# Built-in providers live outside this package and are imported by name only, so that arrows point one way.
BUILT_IN = {
    "torch": "kernels_under_test.torch_stock",
    "triton": "kernels_under_test.triton_portable",
    "fla": "kernels_under_test.fla_core",
    "fla_modules": "kernels_under_test.fla_modules",
    "vllm_triton": "kernels_under_test.vllm_triton",
}
# Built in, too, but run, and listed, only where asked for by name.
FURTHER = {"inductor": "kernels_under_test.inductor_step"}
# Providers that must be flagged: run as negative controls, never as candidates.
CONTROLS = {"triton_uncorrected": "kernels_under_test.triton_uncorrected"}
# The control is only evidence where its candidate ran.
CONTROL_OF = {"triton_uncorrected": "triton"}
# Operations that a control cannot show: kernels without BF16 and products run alike in both interpreters.
NOT_SHOWN_BY = {"triton_uncorrected": ("reject_sample",)}


@dataclass(frozen=True)
class Implementation:
    """One operation of one provider.

    ``profile`` names one of the contract's profiles. ``requires`` are importable packages, ``devices`` the
    device kinds it runs on. ``supports(case)`` returns None or the reason why it does not serve a case.
    ``deterministic`` promises bit-equal results of equal calls. ``kernels(case)`` names the Triton kernels
    that it launches for a case, in order: what is launched is compared. ``table`` is its dispatch table.
    """

    op: str
    provider: str
    profile: str
    function: Callable[[Any], Any]
    requires: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu", "cuda")
    supports: Callable[[Any], str | None] = lambda case: None
    deterministic: bool = True
    kernels: Callable[[Any], tuple[str, ...]] | None = None
    table: tuple[Route, ...] = ()

    def missing(self, device: str) -> str | None:
        """Why this cannot run here on ``device``, or None."""
        if device not in self.devices:
            return f"runs on {' and '.join(self.devices)} only, not on {device}"
        absent = [name for name in self.requires if not _importable(name)]
        return f"needs the package {', '.join(absent)}, which is not installed" if absent else None

    def refuses(self, case: Any) -> str | None:
        """Why it does not serve this case, or None; UserError where ``supports`` itself is wrong."""
        return refusal(f"{self.provider}'s supports() for {self.op}", self.supports, case)


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # the parent of a dotted name; no name at all
        return False


_REGISTRY: dict[tuple[str, str], Implementation] = {}
_DEFINED_AT: dict[tuple[str, str], tuple[str, int]] = {}


def implements(
    op: str,
    *,
    provider: str,
    profile: str = "stock",
    requires: tuple[str, ...] = (),
    devices: tuple[str, ...] = ("cpu", "cuda"),
    supports: Callable[[Any], str | None] = lambda case: None,
    deterministic: bool = True,
    kernels: Callable[[Any], tuple[str, ...]] | None = None,
    table: tuple[Route, ...] = (),
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register the decorated function as ``provider``'s implementation of ``op``.

    The function takes the contract's arguments, of which it writes the ``write`` and ``update`` fields in
    place; or it returns the ``write`` fields in order. ``UserError`` if anything in the declaration is wrong.
    """

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        check_provider(provider)
        check_declaration(op, provider, declared)
        check_signature(op, provider, function)
        _claim(op, provider, function)
        _REGISTRY[op, provider] = Implementation(
            op,
            provider,
            profile,
            function,
            tuple(requires),
            tuple(devices),
            supports,
            deterministic,
            kernels,
            tuple(table),
        )
        return function

    declared = {
        "profile": profile,
        "requires": requires,
        "devices": devices,
        "supports": supports,
        "deterministic": deterministic,
        "kernels": kernels,
        "table": table,
    }
    return register


def implementation(op: str, provider: str) -> Implementation:
    """The registered implementation. Raises UserError naming what is known."""
    found = _REGISTRY.get((op, provider))
    if found is not None:
        return found
    ops = implemented_by(provider)
    if not ops:
        known = ", ".join(known_providers())
        raise UserError(f"unknown provider '{shortened(provider, 80)}'; known: {known}")
    raise UserError(f"provider '{provider}' does not implement '{op}'; it implements: {', '.join(ops)}")


def implemented_by(provider: str) -> tuple[str, ...]:
    """Operations that the loaded provider implements."""
    return tuple(op for op, name in _REGISTRY if name == provider)


def known_providers() -> tuple[str, ...]:
    """Names that ``--provider`` accepts: built in, installed through the entry point, or loaded."""
    loaded = [provider for _, provider in _REGISTRY if provider not in CONTROLS]
    return tuple(dict.fromkeys([*BUILT_IN, *installed(), *loaded]))


def installed() -> dict[str, EntryPoint]:
    """Providers that other packages offer through the entry-point group, by name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


@dataclass
class Loaded:
    """Providers ready to run, in order, and why others were skipped."""

    providers: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def load(names: Sequence[str], plugins: Sequence[Path | str], device: str = "cpu") -> Loaded:
    """Import the named providers and all plug-ins.

    Without names: the providers of the plug-ins if there are plug-ins, else all built-in ones; what cannot
    run here is skipped with its reason. A provider asked for by name that cannot run raises ``Unavailable``.
    """
    from_plugins = [name for path in dict.fromkeys(map(str, plugins)) for name in load_plugin(Path(path))]
    wanted = list(dict.fromkeys(names or from_plugins or BUILT_IN))
    loaded = Loaded()
    for name in wanted:
        try:
            load_provider(name)
            _require(name, device)
            loaded.providers.append(name)
        except Unavailable as error:
            if names:
                raise
            loaded.skipped[name] = str(error).removeprefix(f"provider '{name}' ")
    return loaded


def load_provider(name: str, probe: bool = True) -> None:
    """Import one provider by name: already registered, built in, a control, or an installed entry point (the
    last with ``probe`` first in a copy of this process)."""
    if implemented_by(name):
        return
    package = {**BUILT_IN, **FURTHER, **CONTROLS}.get(name)
    if package:
        _import(name, package, lambda: importlib.import_module(package))
    elif point := installed().get(name):
        if probe:
            survives(f"provider '{name}'", point.load)
        _import(name, point.module, point.load)
    else:
        known = ", ".join(known_providers())
        unknown = f"unknown provider '{shortened(name, 80)}'"
        raise UserError(f"{unknown}; known: {known}, and those of a --plugin FILE.py")
    if not implemented_by(name):
        raise UserError(f"provider '{name}' registers no operation under that name")


def _import(name: str, package: str, run: Callable[[], object]) -> None:
    try:
        with staying():
            run()
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        if package == missing or package.startswith(missing + "."):
            raise Unavailable(f"provider '{name}' is not part of this installation ({package})") from None
        top = missing.split(".")[0]
        raise Unavailable(f"provider '{name}' needs the package {top}, which is not installed") from None
    except ImportError as error:
        raise Unavailable(f"provider '{name}' cannot use an installed package: {describe(error)}") from None
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"provider '{name}' does not import: {describe(error)}") from error


_PLUGINS: dict[Path, tuple[str, ...]] = {}


def load_plugin(path: Path, probe: bool = True) -> tuple[str, ...]:
    """Import a plug-in file; returns the providers it registers. The same file is imported once, with
    ``probe`` after an import in a copy of this process."""
    whole = path.resolve()
    if whole not in _PLUGINS:
        before = set(_REGISTRY)
        import_file(path, probe)
        new = [key for key in _REGISTRY if key not in before]
        _check_names(path, whole, new)
        new = [key for key in new if not _reserved(key[1])]  # a plug-in may build on a built-in provider
        if not new:
            raise UserError(
                f"plug-in {path} registers nothing; decorate a function with "
                '@implements("OPERATION", provider="NAME") from validation.providers'
            )
        _PLUGINS[whole] = tuple(dict.fromkeys(provider for _, provider in new))
    return _PLUGINS[whole]


def _reserved(provider: str) -> bool:
    return provider in BUILT_IN or provider in FURTHER or provider in CONTROLS


def _check_names(path: Path, whole: Path, new: list[tuple[str, str]]) -> None:
    for key in new:
        if _reserved(key[1]) and _DEFINED_AT[key][0] == str(whole):
            raise UserError(f"plug-in {path} uses the built-in provider name '{key[1]}'; choose another")


def _require(provider: str, device: str) -> None:
    """Raise Unavailable unless some operation of the loaded provider can run on ``device``."""
    reasons = [_REGISTRY[op, provider].missing(device) for op in implemented_by(provider)]
    if all(reasons):
        raise Unavailable(f"provider '{provider}' {reasons[0]}")


def _claim(op: str, provider: str, function: Callable[..., Any]) -> None:
    """Refuse a second function for the same operation; the same definition run again replaces itself."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    place = (code.co_filename, code.co_firstlineno) if code else (repr(function), 0)
    before = _DEFINED_AT.setdefault((op, provider), place)
    if before != place:
        first, second = (f"{file.rsplit('/', 1)[-1]} line {line}" for file, line in (before, place))
        raise UserError(
            f"provider '{provider}' implements '{op}' twice: in {first} and in {second}; "
            "give one of them another provider name"
        )
