"""Import one plug-in file, and say in one line what is wrong with it.

What this catches: a file that is missing, does not parse, raises while it is imported, or ends the
interpreter (``os._exit`` is refused, and native crashes happen in a copy of this process first). What it
cannot catch: an import that never ends; on a GPU, which a copy of a process cannot use, native crashes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from validation.errors import UserError
from validation.trace import describe, line_in


def import_file(path: Path, probe: bool = True) -> None:
    """Execute a plug-in file as a module. Raises UserError naming the exception and the line.

    ``probe``: first in a copy of this process (see ``survives``).
    """
    whole = path.resolve()
    if not whole.is_file():
        raise UserError(f"plug-in {path} does not exist or is no file")
    if importlib.util.spec_from_file_location("plugin", whole) is None:
        raise UserError(f"plug-in {path} is no Python file (its name must end in .py)")
    if probe:
        survives(f"plug-in {path}", lambda: _execute(whole))
    try:
        _execute(whole)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        needs = f"needs the module '{error.name}', which is not installed"
        raise UserError(f"plug-in {path} {needs} ({line_in(error, whole)})") from None
    except BaseException as error:
        raise UserError(f"plug-in {path} does not import: {describe(error, whole)}") from None


def _execute(whole: Path) -> None:
    name = f"lockstep_plugin_{len(sys.modules)}_{whole.stem}"
    spec = importlib.util.spec_from_file_location(name, whole)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(whole.parent) not in sys.path:
        sys.path.append(str(whole.parent))
    with staying():
        spec.loader.exec_module(module)


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """``os._exit`` raises SystemExit in this process meanwhile."""
    here, leave = os.getpid(), os._exit

    def refuse(status: int) -> None:
        if os.getpid() != here:
            leave(status)
        raise SystemExit(f"os._exit({status}) was called")

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave


def survives(what: str, load: Callable[[], object]) -> None:
    """Run ``load`` in a copy of this process; UserError if that ends otherwise than by an exception.

    An exception is left to the import that follows, which describes it. What the copy prints goes nowhere.
    """
    if not hasattr(os, "fork") or os.environ.get("LOCKSTEP_DEVICE") == "cuda":
        return
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries; the copy has none
        child = os.fork()
    if child == 0:
        _attempt(load, write)
    os.close(write)
    status: int | None = None
    try:
        ended = os.read(read, 1)
        status = os.waitpid(child, 0)[1]
    finally:
        os.close(read)
        if status is None:  # interrupted
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    if not ended:
        raise UserError(f"{what} ends the interpreter while it is imported: {_ending(status)}")


def _attempt(load: Callable[[], object], write: int) -> None:
    """In the copy: load, say that the interpreter is still there, and end without any clean-up."""
    try:
        faulthandler.disable()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        with contextlib.suppress(BaseException), staying():
            load()
        os.write(write, b".")
    finally:
        os._exit(0)


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"it exits with status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
