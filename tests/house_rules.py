"""The house rules that a machine can check, over the syntax trees of all Python files.

    python tests/house_rules.py        prints every breach as file:line: rule; exit status 1 if there is one

What this catches: arrows between packages that point the wrong way, circles inside ``validation``, GPU
packages imported by merely importing ``validation``, hand-typed tolerances, pickle, long files, modules
without a docstring. What it cannot catch: imports by a name put together at run time.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 600
GPU_PACKAGES = ("triton", "fla", "vllm", "flashinfer", "cutlass", "cupy")
TOLERANCES = ("allclose", "isclose", "assert_close", "assert_allclose", "rtol", "atol")
PICKLES = ("pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
JUDGING = ("validation", "kernels_under_test", "evals", "golden")

# What a part of the library may import of the library. Parts that are not listed are layers: they may import
# everything but the parts in ABOVE_LAYERS, and no circle may arise among them.
MAY_IMPORT = {
    "validation": (),
    "validation.errors": (),
    "validation.numerics": ("validation.errors",),
    "validation.contracts": ("validation.numerics", "validation.errors"),
    "validation.report": ("validation.errors",),
    "validation.subjects": ("validation.contracts", "validation.numerics", "validation.errors"),
}
ABOVE_LAYERS = (
    "validation.run",
    "validation.commands",
    "validation.cli",
    "validation.__main__",
    "validation.pytest_plugin",
)


@dataclass(frozen=True)
class Breach:
    """One broken rule, where, and what it says."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Import:
    """One imported module, absolute, and whether importing the file imports it at once."""

    module: str
    line: int
    at_once: bool


def module_name(path: str) -> str:
    """Dotted name of a file: ``validation/report/__init__.py`` is ``validation.report``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def part(module: str) -> str:
    """The part of the library that a module belongs to: its first two names."""
    return ".".join(module.split(".")[:2])


def imports(path: str, tree: ast.AST, at_once: bool = True) -> Iterator[Import]:
    """All imports, those inside functions too, relative ones resolved."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_once)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, at_once)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(path, node, at_once and not inside and not _typing_only(node))


def _absolute(path: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = path.split("/")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def check(path: str, source: str) -> list[Breach]:
    """Breaches of every rule that looks at one file."""
    tree = ast.parse(source)
    found = [
        *_arrows(path, tree),
        *_gpu_packages(path, tree),
        *_pickles(path, tree),
        *_tolerances(path, tree),
        *_docstring(path, tree),
    ]
    lines = source.count("\n")
    if lines > LONGEST:
        found.append(Breach(path, lines, "length", f"{lines} lines; split it by ideas ({LONGEST} at most)"))
    return found


def _arrows(path: str, tree: ast.AST) -> Iterator[Breach]:
    here = module_name(path)
    if not _is_in(here, ("validation",)):
        return
    for found in imports(path, tree):
        if _is_in(found.module, ("kernels_under_test", "evals", "tests")):
            yield Breach(path, found.line, "arrow", f"validation must not import {found.module}")
        elif not _may_import(part(here), found.module):
            yield Breach(path, found.line, "arrow", f"{part(here)} must not import {found.module}")


def _may_import(here: str, module: str) -> bool:
    if here in ABOVE_LAYERS or here == part(module) or not _is_in(module, ("validation",)):
        return True
    if here in MAY_IMPORT:
        return _is_in(module, MAY_IMPORT[here])
    return not _is_in(module, ABOVE_LAYERS)


def _gpu_packages(path: str, tree: ast.AST) -> Iterator[Breach]:
    if not _is_in(module_name(path), ("validation",)):
        return
    for found in imports(path, tree):
        if found.at_once and _is_in(found.module, GPU_PACKAGES):
            yield Breach(
                path, found.line, "gpu-package", f"import {found.module} inside the function using it"
            )


def _pickles(path: str, tree: ast.AST) -> Iterator[Breach]:
    for found in imports(path, tree):
        if _is_in(found.module, PICKLES):
            yield Breach(
                path, found.line, "pickle", f"{found.module} runs code on load; use JSON or safetensors"
            )


def _tolerances(path: str, tree: ast.AST) -> Iterator[Breach]:
    if path.split("/")[0] not in JUDGING:
        return
    for node in ast.walk(tree):
        for name in (getattr(node, field, None) for field in ("id", "attr", "arg", "name")):
            if name in TOLERANCES:
                line = getattr(node, "lineno", 0)
                yield Breach(path, line, "tolerance", f"'{name}'; limits come from the predicted noise")


def _docstring(path: str, tree: ast.Module) -> Iterator[Breach]:
    if tree.body and not ast.get_docstring(tree):
        yield Breach(path, 1, "docstring", "a module says what it is for, what it catches and what it cannot")


def circles(sources: Mapping[str, str]) -> list[Breach]:
    """A circle among the parts of ``validation``, if there is one."""
    graph: dict[str, set[str]] = {}
    parts = {part(module_name(path)) for path in sources}
    for path, source in sources.items():
        here = part(module_name(path))
        if _is_in(here, ("validation",)):
            reached = {part(found.module) for found in imports(path, ast.parse(source))}
            graph.setdefault(here, set()).update((reached & parts) - {here})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [Breach("validation", 0, "circle", " -> ".join(error.args[1]))]
    return []


def _is_in(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def sources() -> dict[str, str]:
    """Python files of the repository that git does not ignore, by their path from its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return {path: (ROOT / path).read_text("utf-8") for path in listed if (ROOT / path).exists()}


def main() -> int:
    """Print all breaches of the repository."""
    files = sources()
    found = [breach for path, source in files.items() for breach in check(path, source)] + circles(files)
    for breach in found:
        print(breach)
    print(f"house rules: {len(files)} files, {len(found)} breaches")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main())
