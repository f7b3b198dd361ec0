"""Length bins of MRCR: o200k_base tokens of all message contents and the answer.

[4096, 8192], (8192, 16384], ... (524288, 1048576]: the first bin is closed at both ends, every other one
excludes its left edge, so a row of exactly 2^k tokens lies in the lower bin; rows outside of all bins are
dropped and counted.

What this catches: rows one bin too high, and rows outside of all bins that land in the first (both in public
implementations, F57). What it cannot catch: a counter that splits text otherwise than the published
tokenizer. The table that ``bpe-openai`` carries has the SHA-256 that tiktoken pins for o200k_base (a test
checks it); its split rules were compared with tiktoken 0.14.0 on that table once, by hand: equal counts for
23,000 random texts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from validation.errors import UserError

EDGES = tuple(4096 << i for i in range(9))  # 4096 ... 1048576
NAMES = tuple(f"{EDGES[i] >> 10}k-{EDGES[i + 1] >> 10}k" for i in range(8))


def bin_of(tokens: int) -> int | None:
    """Index of the bin that holds ``tokens``, or None outside of all bins."""
    if not EDGES[0] <= tokens <= EDGES[-1]:
        return None
    return max(bisect_left(EDGES, tokens) - 1, 0)


def tokens_of(messages: Iterable[Mapping[str, str]], answer: str) -> int:
    """o200k_base tokens of the contents of ``messages`` and of ``answer``, each counted alone."""
    count = counter()
    return sum(count(message["content"]) for message in messages) + count(answer)


@cache
def counter() -> Callable[[str], int]:
    """Counts o200k_base tokens offline. Raises UserError where the package that carries the table is
    missing."""
    try:
        import bpe_openai
    except ImportError as error:
        raise UserError("MRCR bins need o200k_base: install 'bpe-openai' (it carries the table)") from error
    encoding = bpe_openai.get_encoding("o200k_base")
    return lambda text: len(encoding.encode_ordinary(text))
