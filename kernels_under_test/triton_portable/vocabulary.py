"""The two operations at the ends of a decode step: the embedding and the logits."""

from __future__ import annotations

from kernels_under_test.triton_portable import embedding_kernels, logits_kernels

OPERATIONS = {
    "embedding": {
        "function": embedding_kernels.embedding,
        "kernels": embedding_kernels.kernels,
        "table": embedding_kernels.TABLE,
    },
    "logits": {
        "function": logits_kernels.logits,
        "kernels": logits_kernels.kernels,
        "table": logits_kernels.TABLE,
        "supports": logits_kernels.supports,
    },
}
