"""Which deployments the specialised path of Kimi K3 refuses, and why (section 5.1 of the specification).

The first requirement that is not met gives the reason, in the order of the subject's code. Catches: nothing
by itself; ``lockstep dispatch`` compares it with an implementation. Cannot represent: what the subject does
not check (``UNCHECKED``): those deployments are accepted and may compute wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deployment:
    """What an engine is started with; the defaults are accepted."""

    decode_backend: str = "latency_specialized"
    capability: tuple[int, int] = (10, 3)
    activation: tuple[str, float, float] = ("situ", 4.0, 25.0)
    experts: tuple[int, int, int, int, str] = (896, 16, 1, 1, "sigmoid")
    tensor_parallel: int = 8
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    microbatching: bool = False
    context_parallel: int = 1
    sleep_mode: bool = False
    lora: bool = False
    runner: int = 2
    compilation: str = "VLLM_COMPILE"
    graphs: str = "FULL_AND_PIECEWISE"
    speculation: str = "none"
    adaptive: bool = False
    drafts: int = 0
    aux_env: bool = False
    state_dtypes: tuple[str, str] = ("bfloat16", "float32")
    replay_ssm: bool = False
    mla_core: str = "auto"
    moe_layers: int = 92
    resident_clusters: int = 7
    grid_resident: bool = True
    multicast: bool = True
    kv_cache: str = "fp8"


@dataclass(frozen=True)
class Requirement:
    """One check: the row of section 5.1, what it asks, and whether a deployment meets it."""

    row: int
    asks: str
    met: Callable[[Deployment], bool]


BACKENDS = ("auto", "latency_specialized")
FULL_GRAPHS = ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
MOST_DRAFTS = 7

REQUIREMENTS = (
    Requirement(1, "decode_backend is auto or latency_specialized", lambda d: d.decode_backend in BACKENDS),
    Requirement(2, "compute capability 10.x", lambda d: d.capability[0] == 10),
    Requirement(
        3,
        "activation (situ, 4, 25) and experts (896, 16, 1, 1, sigmoid)",
        lambda d: d.activation == ("situ", 4.0, 25.0) and d.experts == (896, 16, 1, 1, "sigmoid"),
    ),
    Requirement(4, "tensor parallel size 8 or 16", lambda d: d.tensor_parallel in (8, 16)),
    Requirement(4, "pipeline parallel size 1", lambda d: d.pipeline_parallel == 1),
    Requirement(4, "no expert parallelism", lambda d: not d.expert_parallel),
    Requirement(4, "no microbatching", lambda d: not d.microbatching),
    Requirement(
        5,
        "decode context parallel size 1 or the tensor parallel size",
        lambda d: d.context_parallel in (1, d.tensor_parallel),
    ),
    Requirement(6, "no sleep mode", lambda d: not d.sleep_mode),
    Requirement(6, "no LoRA", lambda d: not d.lora),
    Requirement(6, "the V2 model runner", lambda d: d.runner == 2),
    Requirement(
        7,
        "a compilation mode other than STOCK_TORCH_COMPILE",
        lambda d: d.compilation != "STOCK_TORCH_COMPILE",
    ),
    Requirement(8, "full CUDA graphs for decode", lambda d: d.graphs in FULL_GRAPHS),
    Requirement(9, "speculation none or dspark", lambda d: d.speculation in ("none", "dspark")),
    Requirement(9, "no adaptive verification", lambda d: not d.adaptive),
    Requirement(10, "KDA state in (bfloat16, float32)", lambda d: d.state_dtypes == ("bfloat16", "float32")),
    Requirement(10, "no replayed recurrent state", lambda d: not d.replay_ssm),
    Requirement(9, "at most 7 draft tokens", lambda d: d.drafts <= MOST_DRAFTS),
    Requirement(
        9,
        "no AttnRes mixture as auxiliary stream with speculation",
        lambda d: d.speculation == "none" or not d.aux_env,
    ),
    Requirement(
        11, "mla_core auto, tokenspeed or trtllm", lambda d: d.mla_core in ("auto", "tokenspeed", "trtllm")
    ),
    Requirement(11, "a number of MoE layers that is not 1 modulo 3", lambda d: d.moe_layers % 3 != 1),
    Requirement(11, "seven resident clusters of 16 CTAs", lambda d: d.resident_clusters >= 7),
    Requirement(11, "the experts' grid resident", lambda d: d.grid_resident),
    Requirement(11, "multicast memory", lambda d: d.multicast),
)

# Accepted by the subject without a check (section 5.1, "holes").
UNCHECKED = ("kv_cache",)


def refusal(d: Deployment) -> str | None:
    """Why this deployment is refused, None if it is accepted (or ``auto``, which is the stock path)."""
    if d.decode_backend == "auto":
        return None
    for requirement in REQUIREMENTS:
        if not requirement.met(d):
            return f"needs {requirement.asks}"
    return None


# One deployment for each requirement that it alone breaks, in the order of the checks.
REFUSED: tuple[Deployment, ...] = (
    Deployment(decode_backend="fast"),
    Deployment(capability=(9, 0)),
    Deployment(activation=("silu", 4.0, 25.0)),
    Deployment(tensor_parallel=4),
    Deployment(pipeline_parallel=2),
    Deployment(expert_parallel=True),
    Deployment(microbatching=True),
    Deployment(context_parallel=4),
    Deployment(sleep_mode=True),
    Deployment(lora=True),
    Deployment(runner=1),
    Deployment(compilation="STOCK_TORCH_COMPILE"),
    Deployment(graphs="PIECEWISE"),
    Deployment(speculation="eagle", drafts=3),
    Deployment(speculation="dspark", drafts=3, adaptive=True),
    Deployment(state_dtypes=("bfloat16", "bfloat16")),
    Deployment(replay_ssm=True),
    Deployment(speculation="dspark", drafts=8),
    Deployment(speculation="dspark", drafts=3, aux_env=True),
    Deployment(mla_core="flashmla"),
    Deployment(moe_layers=13),
    Deployment(resident_clusters=6),
    Deployment(grid_resident=False),
    Deployment(multicast=False),
)
ACCEPTED: tuple[Deployment, ...] = (
    Deployment(),
    Deployment(decode_backend="auto", capability=(9, 0)),
    Deployment(tensor_parallel=16, context_parallel=16, graphs="FULL"),
    Deployment(speculation="dspark", drafts=7, graphs="FULL_DECODE_ONLY"),
    Deployment(aux_env=True),
    Deployment(kv_cache="bfloat16"),  # a hole: not checked
)
