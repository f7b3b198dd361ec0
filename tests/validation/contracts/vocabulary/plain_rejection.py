"""The acceptance rule of speculative decoding as one would say it, request by request, token by token."""

from __future__ import annotations

import numpy as np

from validation.contracts.vocabulary.reject_arguments import RejectSampleArguments

ONE = np.float32(1)


def plain(a: RejectSampleArguments, strict: bool) -> list[list[int]]:
    """Tokens and count of every request. ``strict``: p > u q and weights over e; else p / q >= u and weights
    times 1 / e, all of it in FP32."""
    emitted, start = [], 0
    with np.errstate(all="ignore"):
        for request, end in enumerate(a.ends.tolist()):
            tokens = _request(a, request, range(start, end), strict)
            kept = len(tokens) - 1
            emitted.append(tokens + [-1] * (a.tokens.shape[1] - len(tokens)) + [kept])
            start = end
    return emitted


def _request(a: RejectSampleArguments, request: int, rows: range, strict: bool) -> list[int]:
    greedy = float(a.temperature[request]) == 0
    tokens: list[int] = []
    for row in rows:
        draft, p = int(a.drafts[row]), a.target[row].cpu().numpy()
        q = None if a.proposal is None else a.proposal[row].cpu().numpy()
        if greedy:
            best = first_largest(p.tolist())
            tokens.append(best)
            if draft != best:
                return tokens
        elif draft >= 0 and _kept(p[draft], ONE if q is None else q[draft], a.uniform[row], strict):
            tokens.append(draft)
        else:
            return [*tokens, _recovered(p, q, draft, a.noise[request].cpu().numpy(), strict)]
    return [*tokens, int(a.bonus[request])]


def _kept(p: np.float32, q: np.float32, u: object, strict: bool) -> bool:
    u = np.float32(float(u))  # type: ignore[arg-type]
    return bool(q > 0 and (p > u * q if strict else p / q >= u))


def _recovered(p: np.ndarray, q: np.ndarray | None, draft: int, e: np.ndarray, strict: bool) -> int:
    scores = []
    for token in range(len(p)):
        weight = max(p[token] - q[token], np.float32(0)) if q is not None else p[token]
        if q is None and token == draft:
            weight = np.float32(0)
        scores.append(float(weight / e[token] if strict else weight * (ONE / e[token])))
    return first_largest(scores)


def first_largest(numbers: list[float]) -> int:
    return numbers.index(max(numbers))
