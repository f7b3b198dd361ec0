"""How an in-process engine runs its model: backend, type, device and shapes."""

from __future__ import annotations

from dataclasses import dataclass

BACKENDS = ("eager", "inductor")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Options:
    """How the model runs. ``rows`` decode together; ``lengths`` are the cache lengths the step is built
    for."""

    backend: str = "eager"
    dtype: str = "bfloat16"
    device: str = "cpu"
    rows: int = 32
    lengths: tuple[int, ...] = (256, 512)
    threads: int = 0  # 0: as torch chooses
