"""Launches the exchange kernels: what the stress engine calls, by name only.

What this catches: nothing. What it cannot do: choose sizes; they are the layout's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernels_under_test import interpreter

if TYPE_CHECKING:
    from torch import Tensor

WARPS = 8


def prepare(patience: float, stopped: Callable[[], bool], skew: list[int], table: list[list[int]]) -> str:
    """Choose the device of this process, and say what interpreted kernels ask it: how long a wait lasts, what
    delays it, the acts. Returns the device."""
    device = interpreter.prepare()
    from kernels_under_test.exchanges import waiting

    if device == "cpu":
        words_may_wrap()
    waiting.HOST.patience, waiting.HOST.stopped = patience, stopped
    waiting.HOST.skew, waiting.HOST.table = skew, table
    return device


def words_may_wrap() -> None:
    """Hashes wrap on purpose; the interpreter's check of each sum and product is half of its time."""
    from triton.runtime.interpreter import interpreter_builder

    interpreter_builder.options = replace(interpreter_builder.options, sanitize_overflow=False)


def raw_words(seed: int, step: int, publication: int, source: int, index: Any, sentinel: int) -> Any:
    """The payload words that a rank draws, before it makes them canonical: uint32, as ``index`` of numpy."""
    from kernels_under_test.exchanges.words import drawn_words

    return drawn_words(seed, step, publication, source, index, sentinel)


def run_acts(
    *, peers: Tensor, table: Tensor, starts: Tensor, counts: Tensor, batches: Tensor, clock: Tensor,
    skew: Tensor, state: Tensor, log: Tensor, records: Tensor,
    rank: int, seed: int, steps: int, spins: int, logs: bool, ranks: int, rows: int, columns: int,
) -> None:  # fmt: skip
    """Steps of one rank: see ``acts.acts_kernel``. ``records`` [lanes, 16]."""
    from kernels_under_test.exchanges.acts import acts_kernel

    lanes, on_gpu = records.shape[0], records.device.type == "cuda"
    options: dict[str, Any] = {"num_warps": WARPS} if on_gpu else {}
    acts_kernel[lanes,](
        peers, table, starts, counts, batches, clock, skew, state, log, records,
        rank, seed, steps, spins, int(logs),
        RANKS=ranks, ROWS=rows, COLUMNS=columns, LANES=lanes, CHUNK_COLUMNS=-(-columns // ranks),
        THREADS=32 * WARPS, ON_GPU=on_gpu, **options,
    )  # fmt: skip
