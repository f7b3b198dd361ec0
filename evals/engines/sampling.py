"""Drawing tokens so that two arms can be compared draw by draw.

The Gumbel-max trick with noise that depends only on (seed, position, token): two arms with the same seed draw
the same token unless their logits differ by more than the margin between the two best candidates (Token-DiFR,
arXiv 2511.20621). Nucleus cut-off as usual: the smallest set of most likely tokens that holds ``top_p``.

What this catches: nothing; it makes the first divergence of two replies mean something. What it cannot do:
reproduce another engine's random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FIRST_CUT = 256  # most nuclei are smaller; sorting the whole vocabulary costs more than the model's step


@dataclass(frozen=True)
class Draw:
    """How the token at ``position`` of one reply is drawn; ``forced``: the token it has to be."""

    seed: int
    position: int
    temperature: float
    top_p: float
    forced: int | None = None

    def noise(self, ids: np.ndarray) -> np.ndarray:
        """Standard Gumbel noise of each token, [ids]."""
        uniform = (mixed(self.seed, self.position, ids) >> np.uint64(11)).astype(float) + 0.5
        return np.asarray(-np.log(-np.log(uniform * 2.0**-53)))

    def choose(self, ids: np.ndarray, logprobs: np.ndarray) -> int:
        """The token among ``ids`` (most likely first) whose log-probability at this temperature plus noise is
        largest."""
        return int(ids[np.argmax(logprobs + self.noise(ids))])


def mixed(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """64 random bits for each token id: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over
    a key of seed and position."""
    with np.errstate(over="ignore"):
        key = _finalised(np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(position))
        return _finalised(key + ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _finalised(x: np.ndarray | np.uint64) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def drawn(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token a row from logits [rows, vocabulary]. Temperature 0 is greedy."""
    heat = torch.tensor([max(draw.temperature, 1e-6) for draw in draws], device=logits.device)
    logprobs = (logits / heat[:, None]).log_softmax(-1)
    values, ids = (x.cpu().numpy() for x in logprobs.topk(min(FIRST_CUT, logits.shape[-1]), dim=-1))
    chosen = []
    for i, draw in enumerate(draws):
        kept = nucleus(values[i], draw.top_p)
        if draw.temperature <= 0:
            chosen.append(int(ids[i, 0]))
        elif kept is not None:
            chosen.append(draw.choose(ids[i, :kept], values[i, :kept]))
        else:
            every, order = (x.cpu().numpy() for x in logprobs[i].sort(descending=True))
            size = nucleus(every, draw.top_p) or len(every)
            chosen.append(draw.choose(order[:size], every[:size]))
    return chosen


def nucleus(logprobs: np.ndarray, top_p: float) -> int | None:
    """How many of the tokens, most likely first, are kept; None if those given do not hold ``top_p``."""
    reached = np.cumsum(np.exp(logprobs.astype(float)))
    if reached[-1] < top_p:
        return None
    return int(np.searchsorted(reached, top_p)) + 1


@dataclass(frozen=True)
class Seen:
    """The next token of several rows with its log-probability, and the most likely ones."""

    token: list[int]
    logprob: list[float]
    top_ids: list[list[int]]
    top_logprobs: list[list[float]]


def look(logits: Tensor, draws: Sequence[Draw], top: int) -> Seen:
    """Logits [rows, vocabulary]. Log-probabilities in FP32, of the model itself: temperature 1, nothing cut
    off."""
    logits = logits.float()
    token = [draw.forced or 0 for draw in draws]
    free = [i for i, draw in enumerate(draws) if draw.forced is None]
    if free:
        for i, chosen in zip(free, drawn(logits[free], [draws[i] for i in free]), strict=True):
            token[i] = chosen
    logprobs = logits.log_softmax(-1)
    at = torch.tensor(token, device=logits.device)[:, None]
    logprob = logprobs.gather(-1, at)[:, 0].tolist()
    if not top:
        return Seen(token, logprob, [[]] * len(token), [[]] * len(token))
    values, ids = logprobs.topk(top, dim=-1)
    return Seen(token, logprob, ids.tolist(), values.tolist())
