"""Modules of a vLLM are run from a folder or a wheel, without vLLM: tried on one that is made up here."""

import sys
import zipfile

import pytest
import torch

from kernels_under_test.vllm_release import stand_ins
from kernels_under_test.vllm_release.tree import VARIABLE, Files, Release, find
from validation.errors import Unavailable

KERNEL = """
from vllm.triton_utils import tl, triton
from vllm.model_executor.layer import Layer
from ..limits import PAD
from .helpers import twice

exp = tl.exp


class Mine(Layer):
    pass


@triton.jit
def kernel(x, y, n: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(y + lane, exp(tl.load(x + lane, mask=lane < n)), mask=lane < n)


def launched(x):
    y = torch_like(x)
    kernel[(1,)](x, y, n=x.numel(), BLOCK=16)
    return twice(y)


def torch_like(x):
    import torch
    from vllm.late import nothing_else

    return torch.full_like(x, float("nan"))
"""
SOURCES = {
    "vllm/__init__.py": "raise SystemExit('vllm itself must not be imported')",
    "vllm/_version.py": "__version__ = version = '0.33.0'",
    "vllm/limits.py": "import a_package_that_nobody_has\nPAD = -1\nNULL: int = 0\nSIZE = len('three')",
    "vllm/ops/__init__.py": "raise SystemExit('nor any package of it')",
    "vllm/ops/helpers.py": "def twice(x):\n    return 2 * x\n",
    "vllm/ops/kernel.py": KERNEL,
    "vllm/ops/broken.py": "from vllm.gone import thing\nthing.use()",
}


def folder(tmp_path, sources=SOURCES):
    for file, text in sources.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def wheel(tmp_path):
    path = tmp_path / "vllm-0.33.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in SOURCES.items():
            archive.writestr(file, text)
    return path


def release(place):
    real = ("vllm.ops.kernel", "vllm.ops.helpers", "vllm.ops.broken")
    return Release(Files(place), real, ("vllm.limits",), stand_ins.stand_ins(), stand_ins.late)


@pytest.mark.parametrize("place", [folder, wheel])
def test_a_kernel_runs_from_files_that_are_never_imported(place, tmp_path):
    before = set(sys.modules)
    module = release(place(tmp_path)).module("vllm.ops.kernel")
    x = torch.tensor([0.0, -torch.inf, torch.inf])
    assert module.launched(x).tolist() == [2.0, 0.0, torch.inf]
    assert module.PAD == -1
    assert not [name for name in set(sys.modules) - before if name.split(".")[0] == "vllm"]


def test_what_is_not_loaded_can_be_named_but_not_used(tmp_path):
    module = release(folder(tmp_path)).module("vllm.ops.kernel")
    with pytest.raises(Unavailable, match=r"ops\.kernel\.Mine"):
        module.Mine()
    with pytest.raises(Unavailable, match=r"vllm\.model_executor\.layer\.Layer\.forward"):
        module.Layer.forward  # noqa: B018 (looking it up is what is tried)


def test_constants_are_read_where_the_file_cannot_run(tmp_path):
    limits = release(folder(tmp_path)).module("vllm.limits")
    assert (limits.PAD, limits.NULL) == (-1, 0)
    with pytest.raises(Unavailable):  # no literal, so it is not known
        limits.SIZE()


def test_a_module_that_fails_is_not_kept_half_done(tmp_path):
    found = release(folder(tmp_path))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"vllm\.gone\.thing\.use"):
            found.module("vllm.ops.broken")
    assert not [name for name in sys.modules if name.endswith("vllm.ops.broken")]


def test_a_missing_file_is_named(tmp_path):
    found = Release(Files(folder(tmp_path)), ("vllm.ops.removed",))
    with pytest.raises(Unavailable, match=r"vllm/ops/removed\.py"):
        found.module("vllm.ops.removed")


@pytest.mark.parametrize("place", [folder, wheel])
def test_the_variable_names_a_folder_or_a_wheel(place, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(place(tmp_path)))
    assert find().read("vllm/ops/helpers.py") == SOURCES["vllm/ops/helpers.py"]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (None, "does not exist"),
        ({"vllm/_version.py": "__version__ = '0.32.0'"}, r"found 0\.32\.0"),
        ({"other/_version.py": ""}, "found none"),
    ],
)
def test_another_place_is_refused_with_the_reason(sources, message, tmp_path, monkeypatch):
    place = folder(tmp_path, sources) if sources else tmp_path / "nowhere"
    monkeypatch.setenv(VARIABLE, str(place))
    with pytest.raises(Unavailable, match=message):
        find()


def test_a_file_that_is_no_wheel_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "vllm.whl"
    path.write_text("no archive")
    monkeypatch.setenv(VARIABLE, str(path))
    with pytest.raises(Unavailable, match="no wheel"):
        find()
