"""What a request asks to be forced, and when it is refused; shared by both runners and free of torch.

What this catches: lists that cannot be forced, before they reach a model runner. What it cannot catch:
token ids beyond the vocabulary, whose size vLLM's validation hook does not tell; the runners look at
those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

KEY = "forced_tokens"  # in SamplingParams.extra_args, over HTTP vllm_xargs


def forced_tokens(sampling_params: Any) -> tuple[int, ...]:
    """Token ids to be forced, empty where the request asks for none. ValueError says what is wrong
    with them."""
    value = (getattr(sampling_params, "extra_args", None) or {}).get(KEY)
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"{KEY} must be a list of token ids, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{KEY} is empty; leave it out to force nothing")
    for place, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ValueError(f"{KEY}[{place}] is {token!r}; token ids are integers of 0 or more")
    return tuple(value)


def validate(sampling_params: Any) -> None:
    """Refuse what would not come back as given (vLLM answers a ValueError from here with status 400)."""
    if not forced_tokens(sampling_params):
        return
    # A grammar masks forced tokens after us, and a thinking budget forces its own over ours.
    for other in ("structured_outputs", "thinking_token_budget", "trace_decode_token_ids"):
        if getattr(sampling_params, other, None) is not None:
            raise ValueError(f"{KEY} cannot be combined with {other}")


def inside(tokens: Sequence[int], vocabulary: int) -> bool:
    """All token ids are inside the vocabulary (an index beyond it would end the whole engine)."""
    return not tokens or max(tokens) < vocabulary
