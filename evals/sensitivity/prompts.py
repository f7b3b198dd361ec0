"""Ten thousands of different short prompts, so that every walk of the measurement has one of its own.

Walks of one prompt share the rounding noise of its keys and values: a few dozen prompts, however many tokens
are walked on them, are a few dozen observations.

What this catches: nothing. What it cannot do: represent other text; the measured figures hold for these
prompts.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from itertools import product

from evals.engines.api import Request
from validation.errors import UserError

OPENINGS = (
    "Write about",
    "Talk about",
    "Think about",
    "Sing about",
    "Tell me about",
    "Give advice about",
    "Write a letter about",
    "Write a poem about",
    "Tell a story about",
    "Explain the idea of",
)
ADJECTIVES = (
    "small large old new quiet bright dark cold warm red blue green black white gold young wild simple "
    "strange happy sad brave strong fast slow deep high long short empty hidden secret modern ancient "
    "local famous broken heavy light soft hard rich poor wise sweet dry wet sharp clean rare"
)
NOUNS = (
    "city house river garden forest mountain village school market bridge train ship horse dog cat bird "
    "fish tree flower stone road door window table clock book letter song story game car engine machine "
    "kitchen field island beach lake storm winter summer morning night king queen doctor teacher farmer "
    "artist writer soldier child family friend dream coat ring box map lamp"
)


def prompts(tokenize: Callable[[Request], list[int]], count: int) -> list[tuple[int, ...]]:
    """Token ids of ``count`` different prompts with the model's template, of as few lengths as possible:
    those of one length are prefilled together. The same for the same tokenizer and count."""
    texts = [f"{o} the {a} {n}." for o, a, n in product(OPENINGS, ADJECTIVES.split(), NOUNS.split())]
    if count > len(texts):
        most = len(texts)
        raise UserError(f"{count:,} prompts are needed and there are {most:,}; lower --tokens or --sets")
    random.Random(0).shuffle(texts)
    by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for text in texts[: 3 * count + 64]:
        request = Request("", 0, messages=({"role": "user", "content": text},))
        ids = tuple(tokenize(request))
        by_length[len(ids)].append(ids)
    grouped = sorted(by_length.values(), key=lambda group: (-len(group), len(group[0])))
    return [ids for group in grouped for ids in group][:count]
