"""Weights to and from safetensors, compared with what the configuration asks for.

Catches: a file that is none, tensors that are missing, superfluous or of another shape or dtype, each named.
Cannot catch: a right shape with wrong numbers in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from validation.errors import Unavailable, UserError
from validation.subjects.kimi_k3.config import Config
from validation.subjects.kimi_k3.shapes import weight_specs
from validation.subjects.kimi_k3.weights import Weights

_SHOWN = 4


def save_weights(weights: Weights, path: Path, config: Config) -> None:
    """One safetensors file with the configuration's digest beside the tensors."""
    file = _safetensors()
    file.save_file({n: t.contiguous() for n, t in weights.items()}, path, {"configuration": config.digest()})


def load_weights(path: Path, config: Config) -> Weights:
    """The weights of ``path``. UserError naming every tensor that is missing, unknown or misshapen (the first
    few of many)."""
    file = _safetensors()
    try:
        weights: Weights = file.load_file(path)
    except OSError as error:
        raise UserError(f"cannot read the weights {path}: {error.strerror or error}") from None
    except Exception as error:
        raise UserError(f"{path} is no safetensors file: {' '.join(str(error).split())}") from None
    check_weights(weights, config, str(path))
    return weights


def check_weights(weights: Weights, config: Config, where: str) -> None:
    """Raise UserError unless ``weights`` are what ``config`` asks for."""
    specs = weight_specs(config)
    troubles = [f"{name} is missing" for name in specs if name not in weights]
    troubles += [f"{name} is unknown" for name in weights if name not in specs]
    for name, spec in specs.items():
        if name in weights:
            shape, dtype = tuple(weights[name].shape), str(weights[name].dtype).removeprefix("torch.")
            if (shape, dtype) != (spec.shape, spec.dtype):
                wanted = f"{spec.dtype} {list(spec.shape)}"
                troubles.append(f"{name} is {dtype} {list(shape)}, expected {wanted}")
    if troubles:
        more = f" and {len(troubles) - _SHOWN} more" if len(troubles) > _SHOWN else ""
        raise UserError(f"{where} does not fit this configuration: {'; '.join(troubles[:_SHOWN])}{more}")


def _safetensors() -> Any:
    try:
        import safetensors.torch as file
    except ModuleNotFoundError:
        raise Unavailable("weights from a file need the package safetensors; install it") from None
    return file
