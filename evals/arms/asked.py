"""What one arm was asked, read from its samples: questions, repeats, prompts as tokens, parameters, seeds.

What this catches: nothing by itself; ``guard`` compares two of them. What it cannot catch: parameters that a
server was sent and did not use (seeds that have no effect show as equal replies, see ``evals.signals``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from evals.store.row import Row

Question = tuple[str, str]
Sample = tuple[str, str, int, int]


@dataclass
class Asked:
    """By question (task, id) and by sample (task, id, repeat, replicate).

    ``prompts``: hashes of the token ids seen; ``lengths``: prompt tokens; rows without a hash (no reply came)
    say nothing about the prompt.
    """

    texts: dict[Question, set[str]] = field(default_factory=dict)
    prompts: dict[Question, set[str]] = field(default_factory=dict)
    lengths: dict[Question, int] = field(default_factory=dict)
    sampling: dict[Sample, str] = field(default_factory=dict)
    seeds: dict[Sample, int] = field(default_factory=dict)

    @property
    def questions(self) -> set[Question]:
        return {*self.texts}

    @property
    def repeats(self) -> dict[str, int]:
        """Most repeats of a question, by task."""
        out: dict[str, int] = {}
        for task, _, repeat, _ in self.seeds:
            out[task] = max(out.get(task, 0), repeat + 1)
        return out


def asked_of(rows: Iterable[Row]) -> Asked:
    """From the samples of one arm (failed ones too: they were asked)."""
    asked = Asked()
    for row in rows:
        question, sample = (row.task, row.question), (row.task, row.question, row.repeat, row.replicate)
        asked.texts.setdefault(question, set()).add(row.question_hash)
        asked.sampling[sample], asked.seeds[sample] = row.sampling, row.seed
        hashes = asked.prompts.setdefault(question, set())
        if row.prompt_hash:
            hashes.add(row.prompt_hash)
            asked.lengths[question] = row.prompt_tokens
    return asked
