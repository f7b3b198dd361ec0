"""compute-sanitizer is found where it is, and a wrong file is said in one line."""

from pathlib import Path

import pytest

from validation.errors import UserError
from validation.sanitize import binary


def executable(path: Path, text: str = "#!/bin/sh\necho Version 2025.3.1.0\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither on PATH, nor a toolkit, nor a wheel."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(binary, "TOOLKIT", tmp_path / "toolkit")
    monkeypatch.setattr(binary.sysconfig, "get_path", lambda name: str(tmp_path / "packages"))
    monkeypatch.setattr(binary.site, "getsitepackages", lambda: [])
    return tmp_path


def test_the_path_comes_before_the_toolkit_and_the_toolkit_before_wheels(nowhere):
    wheel = executable(nowhere / "packages/nvidia/cu13/bin/compute-sanitizer")
    assert binary.find() == str(wheel)
    toolkit = executable(nowhere / "toolkit/compute-sanitizer")
    assert binary.find() == str(toolkit)
    on_path = executable(nowhere / "path/compute-sanitizer")
    assert binary.find() == str(on_path)


def test_the_wheel_of_cuda_12_is_found(nowhere):
    wheel = executable(nowhere / "packages/nvidia/cuda_sanitizer_api/bin/compute-sanitizer")
    assert binary.find() == str(wheel)


def test_what_cannot_be_executed_is_passed_over(nowhere):
    executable(nowhere / "toolkit/compute-sanitizer").chmod(0o644)
    with pytest.raises(UserError, match=r"neither on PATH.*nvidia-cuda-sanitizer-api.*--sanitizer"):
        binary.find()


def test_a_named_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(UserError, match="no executable file"):
        binary.find(tmp_path / "absent")


def test_the_version_is_what_it_says(tmp_path):
    assert binary.version(str(executable(tmp_path / "right"))) == "2025.3.1.0"
    with pytest.raises(UserError, match="does not say its version"):
        binary.version(str(executable(tmp_path / "mute", "#!/bin/sh\n")))
    with pytest.raises(UserError, match="does not run"):
        binary.version(str(tmp_path / "absent"))
