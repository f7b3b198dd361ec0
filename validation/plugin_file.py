"""Import one plug-in file, and say in one line what is wrong with it.

What this catches: a file that is missing, does not parse, or raises while it is imported. What it cannot
catch: a plug-in that kills the interpreter while it is imported (its functions run in a worker, its import
does not).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from validation.errors import UserError
from validation.trace import describe, line_in


def import_file(path: Path) -> None:
    """Execute a plug-in file as a module. Raises UserError naming the exception and the line."""
    whole = path.resolve()
    if not whole.is_file():
        raise UserError(f"plug-in {path} does not exist or is no file")
    name = f"lockstep_plugin_{len(sys.modules)}_{whole.stem}"
    spec = importlib.util.spec_from_file_location(name, whole)
    if spec is None or spec.loader is None:
        raise UserError(f"plug-in {path} is no Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(whole.parent) not in sys.path:
        sys.path.append(str(whole.parent))
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        needs = f"needs the module '{error.name}', which is not installed"
        raise UserError(f"plug-in {path} {needs} ({line_in(error, whole)})") from None
    except BaseException as error:
        raise UserError(f"plug-in {path} does not import: {describe(error, whole)}") from None
