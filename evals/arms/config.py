"""What an arms file says, as frozen data.

What this catches: nothing by itself; ``evals.arms.read`` checks. What it cannot catch: an engine that ignores
a setting; the guard compares what the engines report.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from evals.engines.api import Sampling

EngineKind = Literal["transformers", "vllm", "vllm_inprocess", "openai"]
NO_FACTOR = "none"

# Where and how long, not what: these may differ between the arms and from one session to the next.
PLACE = (
    "label",
    "server.url",
    "server.python",
    "server.start_timeout",
    "server.stop_timeout",
    "request_timeout",
)


@dataclass(frozen=True)
class Server:
    """How to reach a server: a ``command`` that starts it, or the ``url`` of one that runs
    ("http://host:8000").

    In the command ``{python}``, ``{model}`` and ``{port}`` are filled in, and the element ``{arguments}``
    becomes the engine arguments. Times in seconds.
    """

    command: tuple[str, ...] = ()
    url: str = ""
    python: str = ""
    start_timeout: float = 1800.0
    stop_timeout: float = 60.0


@dataclass(frozen=True)
class Arm:
    """One backend with its whole configuration. ``name`` is "reference" or "candidate"; ``label`` is for
    people.

    ``engine_args``: for "vllm" its command line, with underscores (true: --x, false: --no-x); for
    "vllm_inprocess" the arguments of its LLM class; for "transformers" the options of the in-process engine.
    ``concurrency``: requests in flight. ``request_timeout``: seconds until a reply counts as missing.
    """

    name: str
    model: str
    engine: EngineKind
    label: str = ""
    revision: str = ""
    concurrency: int = 32
    request_timeout: float = 3600.0
    server: Server = Server()
    environment: Mapping[str, str] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    additional_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskSettings:
    """One task, the same for both arms. ``repeats``: K replies to each question.

    ``margin``: score difference, in points of 100, below which the arms count as equivalent, and why it is
    that.
    """

    name: str
    repeats: int
    max_tokens: int
    margin: float
    margin_reason: str
    temperature: float = 1.0
    top_p: float = 0.95
    stop: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sampling(self) -> Sampling:
        """What every request of the task asks for."""
        return Sampling(self.temperature, self.top_p, self.max_tokens, self.stop, dict(self.extra))


@dataclass(frozen=True)
class Forced:
    """The teacher-forced part: ``tokens`` in all, in sequences of ``length``, each walked ``replicates``
    times.

    ``source``: the sequences are the reference's own "replies" to the tasks, or to short everyday "prompts"
    (where the tasks' replies are too short to be walked). ``top``: most likely tokens reported at each
    position. ``margin``: mean Kullback-Leibler divergence in nats per token below which the arms count as
    equivalent, and why it is that.

    ``noise_ratio``: how many times the reference's rounding noise (mean square from replicate to replicate)
    the candidate's may be. A backend may round elsewhere, and be quieter; 2 is a second rounding at every
    site.
    """

    margin: float
    margin_reason: str
    tokens: int = 2000
    length: int = 200
    replicates: int = 2
    top: int = 20
    source: Literal["replies", "prompts"] = "replies"
    noise_ratio: float = 2.0


@dataclass(frozen=True)
class Comparison:
    """Two arms, what they may differ in, and what they are asked.

    ``factor``: dotted path of the one setting that may differ ("additional_config.decode_backend"), or "none"
    for an arm compared with itself. ``implies``: names of run-time facts that follow from the factor.
    ``alpha``: error level of the whole run.
    """

    name: str
    factor: str
    reference: Arm
    candidate: Arm
    tasks: Mapping[str, TaskSettings]
    forced: Forced | None = None
    implies: tuple[str, ...] = ()
    alpha: float = 0.05
    seed: int = 0
    source: str = ""

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Reference first."""
        return self.reference, self.candidate

    @property
    def configuration_hash(self) -> str:
        """Sixteen hex digits over everything that decides what is sampled (see ``sampled_settings``)."""
        text = json.dumps(sampled_settings(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def sampled_settings(comparison: Comparison) -> dict[str, Any]:
    """Flat settings on which samples depend, for the header of a sample store.

    Left out is what only says where and how long, how the samples are judged (margins, level), and how many
    there are (repeats, forced tokens, replicates): a store may be judged anew and extended.
    """
    settings: dict[str, Any] = {"seed": comparison.seed}
    for arm in comparison.arms:
        settings |= {f"arms.{arm.name}.{k}": v for k, v in arm_settings(arm).items()}
    for name, task in sorted(comparison.tasks.items()):
        settings |= {f"tasks.{name}.{k}": v for k, v in flat(asdict(task.sampling)).items()}
    if comparison.forced:
        settings |= {f"forced.{k}": getattr(comparison.forced, k) for k in ("length", "top", "source")}
    return settings


def arm_settings(arm: Arm) -> dict[str, Any]:
    """What an arm is, as a flat dictionary of dotted paths, without its name and place."""
    settings = flat(asdict(arm))
    return {k: v for k, v in settings.items() if k not in PLACE and k != "name"}


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as one with dotted paths; empty tables leave nothing, tuples become lists."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{before}{key}.")
        else:
            out[before + key] = list(value) if isinstance(value, tuple) else value
    return out


def with_repeats(comparison: Comparison, repeats: int) -> Comparison:
    """The same comparison with K replies to each question of every task."""
    return replace(comparison, tasks={k: replace(t, repeats=repeats) for k, t in comparison.tasks.items()})


def with_tasks(comparison: Comparison, names: tuple[str, ...]) -> Comparison:
    """The same comparison with these tasks only, in this order. Raises KeyError for one it does not have."""
    return replace(comparison, tasks={name: comparison.tasks[name] for name in names})
