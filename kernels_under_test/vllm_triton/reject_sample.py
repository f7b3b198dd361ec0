"""The acceptance rule through the three kernels of vLLM's rejection sampler (its first runner's).

vLLM's: the walks over greedy and over random requests, and a recovered token for every draft. Ours, in torch:
dense copies, the most probable tokens (vLLM takes torch's argmax too), the reciprocal of the exponential
numbers, placeholders in all slots beforehand, the count. Random numbers are the case's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernels_under_test import interpreter
from kernels_under_test.vllm_release import modules
from validation.providers import implements

if TYPE_CHECKING:
    from validation.contracts.contract import Case
    from validation.contracts.vocabulary.reject_arguments import RejectSampleArguments

_module = modules.module(modules.REJECTION)

BLOCK = 8192  # tokens a program holds; as vLLM's launcher has it
PLACEHOLDER = -1
MOST_INTERPRETED = 1000


def supports(case: Case) -> str | None:
    if case["requests"] > MOST_INTERPRETED and interpreter.device() == "cpu":
        return "a program for every request takes minutes in the interpreter"
    return None


@implements("reject_sample", provider="vllm_triton", profile="stock", requires=("triton",), supports=supports)
def reject_sample(a: RejectSampleArguments) -> None:
    """tokens[request, slot] and accepted[request]; see ``RejectSampleArguments``."""
    requests, live = len(a.ends), int(a.ends[-1])
    target = a.target[:live].contiguous()
    proposal = None if a.proposal is None else a.proposal[:live].contiguous()
    drafts, uniform = a.drafts[:live].contiguous(), a.uniform[:live].double()
    tokens = torch.full(a.tokens.shape, PLACEHOLDER, dtype=torch.int32, device=target.device)
    greedy, bonus, inverse = a.greedy, a.bonus.long(), a.noise.reciprocal().contiguous()
    recovered = torch.empty_like(drafts)
    _module.rejection_greedy_sample_kernel[(requests,)](
        tokens, a.ends, drafts, target.argmax(-1), bonus, greedy, a.most, None, None, SYNTHETIC_MODE=False
    )
    _module.sample_recovered_tokens_kernel[(requests, a.most)](
        recovered, a.ends, drafts, proposal, target, inverse, a.vocabulary,
        BLOCK_SIZE=BLOCK, NO_DRAFT_PROBS=proposal is None, USE_FP64_GUMBEL=False,
    )  # fmt: skip
    _module.rejection_random_sample_kernel[(requests,)](
        tokens, a.ends, drafts, proposal, target, bonus, recovered, uniform, greedy, a.most, a.vocabulary,
        None, NO_DRAFT_PROBS=proposal is None, SYNTHETIC_MODE=False,
    )  # fmt: skip
    a.tokens.copy_(tokens)
    # Less the token after the drafts; a request that pads the batch has none.
    a.accepted.copy_(((tokens != PLACEHOLDER).sum(1) - 1).clamp(min=0))
