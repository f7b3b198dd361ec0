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


def texts(count: int, at_least: int | None = None) -> list[str]:
    """The first ``count`` prompts in an order that is always the same. Raises UserError if there are fewer
    than ``at_least`` (default: ``count``)."""
    every = [f"{o} the {a} {n}." for o, a, n in product(OPENINGS, ADJECTIVES.split(), NOUNS.split())]
    needed = count if at_least is None else at_least
    if needed > len(every):
        raise UserError(
            f"{needed:,} prompts are needed and there are {len(every):,}; lower the tokens (--tokens, --sets)"
        )
    random.Random(0).shuffle(every)
    return every[:count]


def prompts(tokenize: Callable[[Request], list[int]], count: int) -> list[tuple[int, ...]]:
    """Token ids of ``count`` different prompts with the model's template, of as few lengths as possible:
    those of one length are prefilled together. The same for the same tokenizer and count."""
    drawn = texts(3 * count + 64, at_least=count)
    by_length: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for text in drawn:
        request = Request("", 0, messages=({"role": "user", "content": text},))
        ids = tuple(tokenize(request))
        by_length[len(ids)].append(ids)
    grouped = sorted(by_length.values(), key=lambda group: (-len(group), len(group[0])))
    return [ids for group in grouped for ids in group][:count]
