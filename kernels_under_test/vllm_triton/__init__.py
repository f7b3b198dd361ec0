"""The provider ``vllm_triton``: Triton kernels of a released vLLM (0.33.0), run without its compiled parts.

They are the kernels that Kimi K3's stock decode launches where vLLM has no native one, or that it offers for
the same mathematics (each module says which). They run on CUDA, and on the CPU in Triton's corrected
interpreter, which must be chosen before triton is imported. The sources come from an installed vLLM or from
the wheel that LOCKSTEP_VLLM_WHEEL names; no text of vLLM is in this repository.

What is theirs and what is ours is said in each module; only what is theirs is under test.
"""

from kernels_under_test import interpreter

interpreter.prepare()

from kernels_under_test.vllm_triton import (  # noqa: E402, F401
    attn_res,
    batch_invariant,
    experts,
    kda,
    mla_attention,
    mla_dcp,
    mx_quantize,
    projection,
    reject_sample,
    route,
)
