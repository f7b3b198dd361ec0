"""The repository keeps the house rules, and each rule is shown to fail on planted source."""

from __future__ import annotations

import pytest

from tests.house_rules import LONGEST, check, circles, sources

FILES = sources()


def test_files_are_found() -> None:
    assert {"noxfile.py", "validation/errors.py", "tests/house_rules.py"} <= set(FILES)


@pytest.mark.parametrize("path", FILES)
def test_file(path: str) -> None:
    assert [str(breach) for breach in check(path, FILES[path])] == []


def test_no_circles() -> None:
    assert circles(FILES) == []


PLANTED = {
    "arrow": [
        ("validation/judge.py", "import kernels_under_test.torch_stock"),
        ("validation/judge.py", "from evals import arms"),
        ("validation/judge.py", "def f():\n    import kernels_under_test"),
        ("validation/judge.py", "from validation.cli import main"),
        ("validation/numerics/scores.py", "from validation.contracts import contract_named"),
        ("validation/numerics/scores.py", "from ..contracts import contract_named"),
        ("validation/contracts/arena.py", "import validation.providers"),
        ("validation/contracts/__init__.py", "from ..report import schema"),
        ("validation/report/terminal.py", "from validation import run"),
        ("validation/report/terminal.py", "from validation.judge import judge"),
        (
            "validation/report/terminal.py",
            "if TYPE_CHECKING:\n    from validation.execution.pool import Pool",
        ),
        ("validation/faults/plant.py", "from validation.run import run"),
        ("validation/judge.py", "from validation.commands import kernels"),
        ("validation/__init__.py", "from validation.contracts import contract_named"),
    ],
    "gpu-package": [
        ("validation/judge.py", "import triton"),
        ("validation/judge.py", "from triton import language as tl"),
        ("validation/judge.py", "try:\n    from fla.ops import kda\nexcept ImportError:\n    kda = None"),
        ("validation/judge.py", "class A:\n    import vllm"),
    ],
    "tolerance": [
        ("validation/judge.py", "ok = torch.allclose(a, b)"),
        ("kernels_under_test/mine.py", "from torch.testing import assert_close"),
        ("kernels_under_test/mine.py", "same(a, b, rtol=1e-2)"),
        ("golden/make.py", "atol = 1e-3"),
        ("golden/make.py", "def same(a, b, atol): ..."),
    ],
    "pickle": [
        ("validation/execution/worker.py", "import pickle"),
        ("tests/test_worker.py", "from pickle import loads"),
        ("kernels_under_test/mine.py", "def f():\n    import cloudpickle"),
    ],
    "length": [("tests/test_long.py", "x = 1\n" * (LONGEST + 1))],
}
CASES = [(rule, path, source) for rule, planted in PLANTED.items() for path, source in planted]


@pytest.mark.parametrize(("rule", "path", "source"), CASES)
def test_planted_breach_is_seen(rule: str, path: str, source: str) -> None:
    assert [breach.rule for breach in check(path, f'"""Doc."""\n{source}')] == [rule]


def test_missing_docstring_is_seen() -> None:
    assert [breach.rule for breach in check("validation/judge.py", "x = 1\n")] == ["docstring"]


def test_planted_circle_is_seen() -> None:
    planted = {
        "validation/step/a.py": "from validation.sync import b",
        "validation/sync/b.py": "def f():\n    from validation.step import a",
    }
    (breach,) = circles(planted)
    assert breach.rule == "circle"
    assert "validation.step" in breach.message


ALLOWED = [
    (
        "validation/numerics/scores.py",
        "from validation.errors import UserError\nfrom validation.numerics import limits",
    ),
    ("validation/contracts/kda.py", "from validation.numerics.arithmetic import Exact"),
    ("validation/judge.py", "def f():\n    import triton\nif TYPE_CHECKING:\n    import triton"),
    ("validation/judge.py", "from validation import report\nimport torch.fx\nimport flask"),
    ("validation/cli.py", "from validation import run"),
    ("validation/judge.py", "message = 'neither rtol nor allclose'"),
    ("kernels_under_test/mine.py", "import triton\nfrom validation.contracts.arguments import KdaArguments"),
    ("tests/test_judge.py", "assert torch.allclose(a, b, rtol=1e-6)"),
    ("tests/test_long.py", "x = 1\n" * (LONGEST - 1)),
    ("tests/kernels_under_test/__init__.py", ""),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED)
def test_what_is_allowed_is_not_reported(path: str, source: str) -> None:
    assert check(path, f'"""Doc."""\n{source}' if source else "") == []
