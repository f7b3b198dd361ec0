"""What a rank is asked to do, and what it answers: plain data over pipes.

What this catches: nothing; a message that does not fit is refused by ``report.plain``. What it cannot say:
how the ranks are placed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from validation.stress.skew import QUIET, Skew
from validation.sync.setting import TP8


@dataclass(frozen=True)
class Setup:
    """What a rank's process is for. ``file``: descriptor of the shared file; ``store``: path of the meeting
    point of a process group, on GPUs. ``kernels``: module of the kernels; ``engine``: the module whose
    ``Engine`` carries the orders out."""

    rank: int
    ranks: int
    lanes: int
    device: str
    file: int
    store: str
    kernels: str
    engine: str


@dataclass(frozen=True)
class Job:
    """One run of all ranks. ``plan`` and ``dcp``: whose kernels a step launches, TP8's or TP16's, with
    context parallelism or without. ``batches``: rows that steps are drawn from; in turn if ``in_turn``.

    ``launched``: one launch for each kernel of the subject's step (captured in graphs on a GPU) instead of
    one for ``chunk`` steps. ``patience``: seconds of a wait that counts as hanging. ``seconds``: after which
    the run stops at the next chunk on all ranks; 0: never.
    """

    name: str
    layers: str
    plan: int = TP8
    batches: tuple[int, ...] = (8,)
    in_turn: bool = False
    steps: int = 1
    chunk: int = 1
    seed: int = 0
    launched: bool = False
    skew: Skew = QUIET
    fault: str = ""
    patience: float = 10.0
    hang: tuple[int, int, int] | None = None
    dcp: bool = False


@dataclass(frozen=True)
class Decode:
    """One walk of a scaled-down model over ``steps`` decode steps, by ranks or by one process for all.

    ``ranks``, ``layers``, ``block``: of the model; new requests come every ``renewed`` steps, as many as the
    next of ``counts``, padded to the smallest of ``sizes``; the first one stays. ``chunk``: steps that are
    logged on the device. ``patience``: seconds of a wait that counts as hanging. ``fault``: see
    ``validation.stress.decode.boxes`` and ``engine``.
    """

    provider: str
    ranks: int
    steps: int
    layers: int = 14
    block: int = 3
    renewed: int = 250
    counts: tuple[int, ...] = (2, 3, 1, 4)
    sizes: tuple[int, ...] = (1, 2, 4)
    chunk: int = 1000
    seed: int = 0
    skew: Skew = QUIET
    patience: float = 60.0
    fault: str = ""
    plugins: tuple[str, ...] = ()


@dataclass
class Answer:
    """A rank's message: ``ready`` (its mailboxes are filled), ``beat``, ``done``, ``audited``, or ``failed``.

    ``hashes``: of each step's state, eight hex digits a step. ``records``: of the lanes in which something
    went wrong. ``timed``: microseconds by name, where a comparison was asked for. ``left``: of a walk, 32 hex
    digits a step for each rank that the process plays: what all ranks must have alike, and everything.
    ``digests``: by name, for each rank that it plays.
    """

    state: str
    rank: int
    steps: int = 0
    exchanges: int = 0
    seconds: float = 0.0
    hashes: str = ""
    records: list[list[int]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    timed: dict[str, float] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    digests: list[dict[str, str]] = field(default_factory=list)
    message: str = ""
    refused: bool = False


@dataclass(frozen=True)
class Order:
    """What the parent says: ``job`` (fill), ``go``, ``audit`` (after so many steps), ``compare`` (real
    tensors; with NCCL's times if ``steps`` is 1), ``fused``, ``end``. Of a walk: ``decode`` (prepare),
    ``walk`` (so many steps more), ``digests`` (of one step)."""

    what: str
    job: Job | None = None
    decode: Decode | None = None
    steps: int = 0


def batches_of(job: Job) -> list[int]:
    """Rows of every step."""
    if job.in_turn:
        return [job.batches[step % len(job.batches)] for step in range(job.steps)]
    return random.Random(f"batches {job.seed}").choices(job.batches, k=job.steps)
