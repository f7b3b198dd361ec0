"""``plan()`` of the specialised executor: the q of a step that it serves, or none.

Written from the shape of the subject's own: early returns over counts, before anything is launched. It
decides by counts alone, so all ranks decide alike.
"""

from __future__ import annotations

from validation.subjects.kimi_k3.deployment import Deployment
from validation.subjects.kimi_k3.steps import StepKind

FIXED = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64})


def batches(captured: tuple[int, ...], q: int) -> frozenset[int]:
    """Row counts that are prepared."""
    return FIXED | {size + -size % q for size in captured if size + -size % q <= 64}


def plan(step: StepKind) -> int | None:
    """Tokens a request of a step that is served; None: the stock forward runs."""
    if not step.capturing or step.intermediate or step.mode != "FULL" or not step.metadata:
        return None
    if step.rows not in batches(step.captured, step.tokens):
        return None
    kda, mla = step.kda, step.mla
    if kda.spec == 0:
        return None if kda.prefills + mla.prefills else 1
    requests, rest = divmod(step.rows, step.tokens)
    if rest or kda.decodes or kda.prefills:
        return None
    served = (
        kda.spec_rows == requests
        and kda.spec_tokens == kda.spec * step.tokens
        and mla.decodes == requests
        and mla.decode_tokens == step.rows
    )
    return step.tokens if served else None


def refuses(d: Deployment) -> str | None:
    """Why a deployment is refused at start-up, or None."""
    if d.decode_backend == "auto":
        return None
    speculates = d.speculation != "none"
    checks = (
        (d.decode_backend == "latency_specialized", "decode_backend is auto or latency_specialized"),
        (d.capability[0] == 10, "compute capability 10.x"),
        ((d.activation, d.experts) == (("situ", 4.0, 25.0), (896, 16, 1, 1, "sigmoid")),
         "activation (situ, 4, 25) and experts (896, 16, 1, 1, sigmoid)"),
        (d.tensor_parallel == 8 or d.tensor_parallel == 16, "tensor parallel size 8 or 16"),
        (d.pipeline_parallel == 1, "pipeline parallel size 1"),
        (not d.expert_parallel, "no expert parallelism"),
        (not d.microbatching, "no microbatching"),
        (d.context_parallel == 1 or d.context_parallel == d.tensor_parallel,
         "decode context parallel size 1 or the tensor parallel size"),
        (not d.sleep_mode, "no sleep mode"),
        (not d.lora, "no LoRA"),
        (d.runner == 2, "the V2 model runner"),
        (d.compilation != "STOCK_TORCH_COMPILE", "a compilation mode other than STOCK_TORCH_COMPILE"),
        (d.graphs.startswith("FULL"), "full CUDA graphs for decode"),
        (not speculates or d.speculation == "dspark", "speculation none or dspark"),
        (not d.adaptive, "no adaptive verification"),
        (d.state_dtypes == ("bfloat16", "float32"), "KDA state in (bfloat16, float32)"),
        (not d.replay_ssm, "no replayed recurrent state"),
        (d.drafts < 8, "at most 7 draft tokens"),
        (not (speculates and d.aux_env), "no AttnRes mixture as auxiliary stream with speculation"),
        (d.mla_core in ("auto", "tokenspeed", "trtllm"), "mla_core auto, tokenspeed or trtllm"),
        (d.moe_layers % 3 != 1, "a number of MoE layers that is not 1 modulo 3"),
        (d.resident_clusters >= 7, "seven resident clusters of 16 CTAs"),
        (d.grid_resident, "the experts' grid resident"),
        (d.multicast, "multicast memory"),
    )  # fmt: skip
    return next((f"needs {asked}" for met, asked in checks if not met), None)
