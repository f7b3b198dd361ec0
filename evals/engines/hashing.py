"""Fingerprints of what an engine was asked: the same prompt must be the same tokens in both arms.

What this catches: another template, tokenizer or a doubled BOS in one arm (F59). What it cannot catch: a
server that changes the tokens after it has reported them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def hash_ids(token_ids: Sequence[int]) -> str:
    """Sixteen hex digits over the token ids of a prompt."""
    text = ",".join(str(int(i)) for i in token_ids)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def seed_of(task: str, question: str, repeat: int, base: int = 0) -> int:
    """The seed of one reply in [0, 2**31): the same in both arms, another for every question and repeat."""
    text = f"{base}/{task}/{question}/{repeat}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def text_hash(data: bytes) -> str:
    """Sixteen hex digits over bytes."""
    return hashlib.sha256(data).hexdigest()[:16]
