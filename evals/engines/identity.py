"""Facts about an in-process engine that the comparability guard compares.

What this catches: other weights, template, versions, types or shapes in one arm. What it cannot catch: a
change of the weights in memory after loading.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.engines.hashing import text_hash

if TYPE_CHECKING:
    from evals.engines.in_process_options import Options


def in_process_facts(folder: Path, options: Options, model: Any, tokenizer: Any) -> dict[str, Any]:
    """A flat dictionary of plain values."""
    import torch

    cuda = options.device == "cuda"
    return {
        "engine": "transformers",
        "backend": options.backend,
        "model": folder.name,
        "weights_hash": weights_hash(folder),
        "architecture": type(model).__name__,
        "dtype": options.dtype,
        "kv_cache_dtype": options.dtype,
        "device_kind": options.device,
        "device_name": torch.cuda.get_device_name() if cuda else "cpu",
        "device_count": 1,
        "tensor_parallel_size": 1,
        "threads": torch.get_num_threads(),
        "max_num_seqs": options.rows,
        "cache_lengths": list(options.lengths),
        "max_model_len": max(options.lengths),
        "tokenizer_hash": text_hash((folder / "tokenizer.json").read_bytes()),
        "chat_template_hash": text_hash((tokenizer.chat_template or "").encode()),
        "speculative_method": "none",
        "version_torch": torch.__version__,
        "version_transformers": version("transformers"),
        "version_cuda": torch.version.cuda or "none",
    }


@functools.cache
def weights_hash(folder: Path) -> str:
    """Over all weight files of a model folder, by name."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as data:
            total.update(path.name.encode() + hashlib.file_digest(data, "sha256").digest())
    return total.hexdigest()[:16]
