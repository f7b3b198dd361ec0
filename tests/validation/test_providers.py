"""Finding providers: entry points, missing packages and devices, definitions that run twice."""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from toy import in_process, plugin

from validation import providers
from validation.errors import Unavailable, UserError
from validation.providers import implementation, implements, load


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_process(monkeypatch, tmp_path)


def offer(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """An installed package that offers the provider "third" through the entry-point group."""
    (folder / "third_party.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "third_party", raising=False)
    points = [EntryPoint("third", "third_party", providers.ENTRY_POINT_GROUP)]
    monkeypatch.setattr(providers, "entry_points", lambda group: [p for p in points if p.group == group])


def test_an_installed_package_offers_its_provider_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(monkeypatch, tmp_path, plugin(tmp_path, "pass", provider="third").read_text())
    assert "third" in providers.known_providers()
    assert load([], []).providers == ["right"], "it runs when it is asked for"
    assert load(["third"], []).providers == ["third"]
    assert implementation("toy_add", "third").profile == "stock"


OFFERS = [
    ("import nopackage", Unavailable, "provider 'third' needs the package nopackage, which is not installed"),
    ("from sys import nothing", Unavailable, "provider 'third' cannot use an installed package: ImportError"),
    ("1 / 0", UserError, "provider 'third' does not import: ZeroDivisionError"),
    ("x = 1", UserError, "provider 'third' registers no operation under that name"),
    ("import sys; sys.exit(0)", UserError, "provider 'third' does not import: SystemExit: 0"),
    ("import os; os._exit(0)", UserError, r"does not import: SystemExit: os._exit\(0\) was called"),
    (
        "import os; os.abort()",
        UserError,
        "provider 'third' ends the interpreter while it is imported: SIGABRT",
    ),
]


@pytest.mark.parametrize(("text", "kind", "words"), OFFERS, ids=[words[17:40] for _, _, words in OFFERS])
def test_an_installed_package_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, kind: type, words: str
) -> None:
    offer(monkeypatch, tmp_path, text)
    with pytest.raises(kind, match=words):
        load(["third"], [])


def test_what_cannot_run_here_is_skipped_unless_asked_for() -> None:
    loaded = load([], [])
    assert (loaded.providers, list(loaded.skipped)) == (["right"], ["absent"])
    with pytest.raises(Unavailable, match="provider 'absent' is not part of this installation"):
        load(["absent"], [])


@pytest.mark.parametrize("package", ["nopackage", "nopackage.inner", "json.nopackage"])
def test_a_missing_requirement_is_named(package: str) -> None:
    implements("toy_add", provider="needy", requires=("json", package))(lambda a: None)
    with pytest.raises(Unavailable, match=f"provider 'needy' needs the package {package}, which is not"):
        load(["needy"], [])


def test_a_device_is_checked_for_each_operation() -> None:
    implements("toy_add", provider="half", devices=("cuda",))(lambda a: None)
    implements("toy_scale", provider="half")(lambda a: None)
    assert load(["half"], []).providers == ["half"]
    assert implementation("toy_add", "half").missing("cpu") == "runs on cuda only, not on cpu"
    assert implementation("toy_add", "half").missing("cuda") is None


def test_the_same_definition_may_run_again() -> None:
    for _ in range(2):

        @implements("toy_add", provider="again")
        def function(a: object) -> None: ...

        assert implementation("toy_add", "again").function is function


def test_a_function_written_in_c_is_taken() -> None:
    implements("toy_add", provider="native")(iter)
    assert implementation("toy_add", "native").function is iter


def test_a_lookup_names_what_there_is(tmp_path: Path) -> None:
    load([], [plugin(tmp_path, "pass")])
    with pytest.raises(UserError, match="'mine' does not implement 'toy_scale'; it implements: toy_add"):
        implementation("toy_scale", "mine")
    with pytest.raises(UserError, match="unknown provider 'nope'; known: right, absent, mine"):
        implementation("toy_add", "nope")


def test_a_device_that_a_copy_of_this_process_cannot_use_is_not_tried_in_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = plugin(tmp_path, "pass")
    path.write_text("import os\nopen('pids', 'a').write(f'{os.getpid()}\\n')\n" + path.read_text())
    monkeypatch.setenv("LOCKSTEP_DEVICE", "cuda")
    assert load([], [path]).providers == ["mine"]
    assert (tmp_path / "pids").read_text() == f"{os.getpid()}\n"


def test_a_plugin_is_imported_by_its_processes_children_as_ever(tmp_path: Path) -> None:
    """``os._exit`` is refused in the importing process only: a child it forks may end with it."""
    path = plugin(tmp_path, "pass")
    path.write_text("import os\nif not (child := os.fork()): os._exit(0)\n" + path.read_text())
    path.write_text(
        path.read_text().replace("import ctypes", "assert os.waitpid(child, 0)[1] == 0\nimport ctypes")
    )
    assert load([], [path]).providers == ["mine"]
    assert os._exit.__name__ == "_exit"


def test_a_plugin_in_under_25_lines_runs(tmp_path: Path) -> None:
    path = plugin(tmp_path, "pass")
    assert len(path.read_text().splitlines()) < 25
    assert load([], [path, path]).providers == ["mine"]
