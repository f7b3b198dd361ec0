"""A diverging operation in one file: its arguments before and after, to be judged again and run again.

Data only (safetensors with JSON beside the tensors). Catches: a capture of another configuration, by its
hash; a file that is none. Cannot hold: what happened between operations, which is not one call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation.contracts import contract_named
from validation.contracts.contract import tensor_specs
from validation.errors import Unavailable, UserError
from validation.step.executor import Executor
from validation.step.local import Judged, compared, snapshot
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.operation import Operation
from validation.trace import describe

FORMAT = "lockstep.capture/1"


@dataclass(frozen=True)
class Capture:
    """``clean`` and ``outcome`` are arguments of the operation's contract; ``facts`` say whence they are."""

    operation: Operation
    clean: Any
    outcome: Any
    facts: dict[str, Any]

    def judged(self, share: float) -> Judged:
        """The outcome as it was, judged again."""
        return compared(self.operation, self.clean, self.outcome, str(self.facts["profile"]), share)

    def rerun(self, executor: Executor, share: float) -> Judged:
        """The operation run again from its arguments; UserError if the executor cannot."""
        a = snapshot(self.clean)
        try:
            executor.run(self.operation, a)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{executor.name} fails at {self.operation.op}: {describe(error)}") from error
        return compared(self.operation, self.clean, a, executor.profile, share)


def save_capture(path: Path, config: Config, judged: Judged, step: int, executor: Executor) -> None:
    """Write the operation's arguments before and after."""
    operation = judged.operation
    facts = {
        "format": FORMAT,
        "configuration": config.digest(),
        "model": dataclasses.asdict(config),
        "step": step,
        "layer": operation.layer,
        "op": operation.op,
        "rank": operation.rank,
        "executor": executor.name,
        "profile": executor.profile,
        "scalars": _scalars(judged.clean),
    }
    tensors = {}
    for prefix, arguments in (("before", judged.clean), ("after", judged.outcome)):
        for name in tensor_specs(arguments):
            if getattr(arguments, name) is not None:
                tensors[f"{prefix}.{name}"] = getattr(arguments, name).contiguous().clone()
    _safetensors().save_file(tensors, path, {"facts": json.dumps(facts)})


def captured(path: Path, config: Config, judged: Judged, step: int, executor: Executor) -> str:
    """``save_capture``, in words for the result; a file that cannot be written costs no finding."""
    try:
        save_capture(path, config, judged, step, executor)
    except Exception as error:  # of the disk, or of the package that writes
        with contextlib.suppress(OSError):
            path.unlink()
        return f"not captured: {describe(error)}"
    return f"captured: lockstep step --replay {shlex.quote(str(path))}"


def load_capture(path: Path, config: Config | None, device: str = "cpu") -> Capture:
    """Read a capture to a device; UserError if it is none, or if it is from another configuration than
    ``config`` (None: any)."""
    _safetensors()
    from safetensors import safe_open

    try:
        with safe_open(path, "pt", device=device) as opened:
            facts = json.loads((opened.metadata() or {}).get("facts", "{}"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except OSError as error:
        raise UserError(f"cannot read the capture {path}: {error.strerror or error}") from None
    except Exception as error:
        raise UserError(f"{path} is no capture: {' '.join(str(error).split())}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise UserError(f"{path} is no capture of this format ({FORMAT})")
    if config and facts.get("configuration") != config.digest():
        raise UserError(
            f"{path} is a capture of configuration {facts.get('configuration')}, this one is "
            f"{config.digest()}; leave out the options that name a model"
        )
    try:
        _check_model(facts)
        operation = Operation(facts["op"], int(facts["layer"]), int(facts["rank"]), _unbound)
        parts = [_arguments(facts, tensors, prefix) for prefix in ("before", "after")]
        capture = Capture(operation, parts[0], parts[1], facts | {"step": int(facts["step"])})
        capture.judged(1.0)
    except Exception as error:  # whatever a file says that is not as it was written
        raise UserError(f"{path} is damaged: {describe(error)}; make the capture again") from None
    return capture


def _check_model(facts: dict[str, Any]) -> None:
    """Raise ValueError unless the model is the one whose hash stands beside it."""
    sizes: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in facts["model"].items()}
    if Config(**sizes).digest() != facts["configuration"]:
        raise ValueError("its model is not the one of its hash")


def _unbound(binding: Any) -> Any:
    raise UserError("a captured operation has its own arguments")


def _scalars(arguments: Any) -> dict[str, Any]:
    tensors = tensor_specs(arguments)
    found = {
        f.name: getattr(arguments, f.name) for f in dataclasses.fields(arguments) if f.name not in tensors
    }
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}


def _arguments(facts: dict[str, Any], tensors: dict[str, Any], prefix: str) -> Any:
    kind = contract_named(facts["op"]).arguments
    given = {name: tensors.get(f"{prefix}.{name}") for name in tensor_specs(kind)}
    return kind(**given, **facts["scalars"])


def _safetensors() -> Any:
    try:
        import safetensors.torch as file
    except ModuleNotFoundError:
        raise Unavailable("captures need the package safetensors; install it") from None
    return file
