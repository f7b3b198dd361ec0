"""A dispatch table finds the first route that serves, and says what it does not serve."""

from __future__ import annotations

import pytest

from validation import cli, providers
from validation.contracts import contracts
from validation.dispatch.table import Route, route
from validation.errors import UserError
from validation.providers import Implementation, implementation, implemented_by, load_provider

TABLE = (
    Route(2, ("small",)),
    Route(64, ("large", "add")),
    Route(8, ("other",), when="16 ranks"),
)


@pytest.mark.parametrize(("rows", "kernels"), [(1, ("small",)), (2, ("small",)), (3, ("large", "add"))])
def test_the_first_route_that_holds_the_rows_serves(rows: int, kernels: tuple[str, ...]) -> None:
    assert route(TABLE, rows).kernels == kernels


def test_routes_of_another_condition_are_not_taken() -> None:
    assert route(TABLE, 1, "16 ranks").kernels == ("other",)


@pytest.mark.parametrize(
    ("rows", "when", "most"), [(65, "", "at most 64"), (9, "16 ranks", r"\(16 ranks\); at most 8")]
)
def test_more_rows_than_any_route_are_refused_by_number(rows: int, when: str, most: str) -> None:
    with pytest.raises(UserError, match=most):
        route(TABLE, rows, when)


def test_every_specialised_kernel_is_in_a_table() -> None:
    load_provider("triton")
    for op in contracts():
        assert op in implemented_by("triton")
        declared = implementation(op, "triton")
        assert declared.table, op
        assert declared.kernels is not None, op
        named = {kernel for entry in declared.table for kernel in entry.kernels}
        for case in contracts()[op].cases("full"):
            if declared.supports(case) is None:
                launched = declared.kernels(case)
                assert set(launched) <= named, case.line()


@pytest.mark.parametrize("columns", ["", "60", "80", "200"])
def test_printed_names_are_whole_however_narrow_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    names = tuple(f"a_kernel_with_a_rather_long_name_{i}" for i in range(3))
    table = (Route(4, names, {"tile": 16, "warps": 8}, "sixteen ranks"), Route(1 << 30, names[:1]))
    mine = Implementation("shared_expert", "a_long_provider", "stock", lambda a: None, table=table)
    monkeypatch.setattr(providers, "load", lambda *_: providers.Loaded(["a_long_provider"]))
    monkeypatch.setattr(providers, "_REGISTRY", {("shared_expert", "a_long_provider"): mine})
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["kernels", "--dispatch", "--device", "cpu"]) == 0
    words = capsys.readouterr().out.split()
    assert {*names, "shared_expert", "a_long_provider", "sixteen", "any"} <= set(words)
    assert words.count(names[0]) == 2
