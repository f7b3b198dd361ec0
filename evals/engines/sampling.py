"""Drawing tokens so that two arms can be compared draw by draw.

The Gumbel-max trick with noise that depends only on (seed, position, token): two arms with the same seed draw the
same token unless their logits differ by more than the margin between the two best candidates (Token-DiFR,
arXiv 2511.20621). Nucleus cut-off as usual: the smallest set of most likely tokens that holds ``top_p``.

What this catches: nothing; it makes the first divergence of two replies mean something. What it cannot do:
reproduce another engine's random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST_CUT = 256  # most nuclei are smaller; sorting the whole vocabulary costs more than the model's step


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Logits [vocabulary] with everything outside the nucleus at -inf. The most likely token always stays."""
    if top_p >= 1:
        return logits
    probabilities = logits.softmax(-1)
    size = min(FIRST_CUT, logits.numel())
    values, ids = probabilities.topk(size)
    if float(values.sum()) < top_p:
        values, ids = probabilities.sort(descending=True)
    before = values.cumsum(-1) - values
    kept = ids[before < top_p]
    cut = torch.full_like(logits, -torch.inf)
    cut[kept] = logits[kept]
    return cut


class Draws:
    """The random numbers of one reply: call once per position, in order."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def choose(self, logits: Tensor, temperature: float, top_p: float) -> int:
        """One token id from FP32 logits [vocabulary] on the CPU. Temperature 0 is greedy."""
        if temperature <= 0:
            return int(logits.argmax())
        noise = torch.empty_like(logits).exponential_(generator=self.generator)
        return int((nucleus(logits / temperature, top_p) - noise.log()).argmax())


def top_of(logprobs: Tensor, count: int) -> tuple[list[list[int]], list[list[float]]]:
    """The ``count`` most likely tokens of each row of [rows, vocabulary]: ids and log-probabilities."""
    values, ids = logprobs.topk(count, dim=-1)
    return ids.tolist(), values.tolist()


