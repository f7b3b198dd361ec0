"""The comparability guard: what both arms reported and were asked must be equal but for the declared factor.

What this catches: other devices or device counts, parallelism, versions, weights, cache formats, templates,
prompts, sampling, seeds, questions, repeats; speculation or synthetic acceptance in one arm; facts that
change during the run; a factor that is not in effect. What it cannot catch: differences that no recorded fact
shows (listed as caveats where a fact is unknown in both arms).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from evals.arms.asked import Asked
from evals.arms.config import NO_FACTOR, Comparison
from evals.arms.facts import FACTS, MUST, fact, unknown

UNKNOWN = "unknown"
# Restatements of the configuration as a whole. The arms file has been checked to differ in the factor alone,
# so under a factor they differ because of it; in a comparison of an arm with itself they must not.
WHOLE = ("command", "environment", "fingerprint")
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """One difference: the values in both arms, why it matters, and the fault kind or complaint behind it."""

    field: str
    reference: str
    candidate: str
    why: str
    report: str = ""

    def __str__(self) -> str:
        source = f" [{self.report}]" if self.report else ""
        return f"{self.field}: {self.reference} against {self.candidate}; {self.why}{source}"


@dataclass
class Comparability:
    """``differences`` confound; ``declared`` follow from the factor; ``caveats``: what could not be known."""

    differences: list[Difference] = field(default_factory=list)
    declared: list[Difference] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Literal["comparable", "confounded"]:
        """A confounded comparison has no result."""
        return "confounded" if self.differences else "comparable"


def guard(
    comparison: Comparison,
    reference: Facts,
    candidate: Facts,
    asked: tuple[Asked, Asked] | None = None,
    later: tuple[Facts, Facts] | None = None,
) -> Comparability:
    """Judge two arms from their facts, from what each was asked, and from the facts at the end of the run."""
    out = compare_facts(comparison.factor, comparison.implies, reference, candidate)
    if asked:
        out.differences += compare_asked(*asked)
    for name, facts in (("reference", reference), ("candidate", candidate)):
        if facts.get("seed") == "ignored":
            why = f"{name} ignores seeds: its K replies may be copies of one, and nothing pairs the arms"
            out.differences.append(Difference("seed", "-", "ignored", why, "F59"))
    for name, before, after in zip(
        ("reference", "candidate"), (reference, candidate), later or (), strict=False
    ):
        out.differences += changed(name, before, after)
    return out


def compare_facts(factor: str, implies: tuple[str, ...], reference: Facts, candidate: Facts) -> Comparability:
    """Every fact of either arm. Facts named like the factor, or in ``implies``, may differ."""
    out = Comparability()
    patterns = (*_facts_of(factor), *implies, *(() if factor == NO_FACTOR else WHOLE))
    expected = [each.name for each in FACTS if "*" not in each.name]
    for name in dict.fromkeys([*reference, *candidate, *expected]):
        a, b = reference.get(name), candidate.get(name)
        if unknown(a) and unknown(b):
            if name in MUST:
                out.differences.append(Difference(name, UNKNOWN, UNKNOWN, "it must be known to compare arms"))
            else:
                out.caveats.append(f"{name} is unknown in both arms")
        elif _text(a) != _text(b):
            allowed = any(fnmatchcase(name, pattern) for pattern in patterns)
            why = "follows from the factor" if allowed else fact(name).why
            found = Difference(name, _text(a), _text(b), why, "" if allowed else fact(name).report)
            (out.declared if allowed else out.differences).append(found)
    _in_effect(out, factor, reference, candidate)
    return out


def compare_asked(reference: Asked, candidate: Asked) -> list[Difference]:
    """Questions, repeats, prompts, parameters and seeds."""
    found = [*_questions(reference, candidate), *_prompts(reference, candidate)]
    shared = reference.seeds.keys() & candidate.seeds.keys()
    if not found and reference.seeds.keys() != candidate.seeds.keys():
        counts = f"{len(reference.seeds)} samples", f"{len(candidate.seeds)} samples"
        found.append(Difference("repeats", *counts, "only the same repeats can be paired", "F60"))
    for name, why in (
        ("sampling", "replies drawn under other parameters are not comparable"),
        ("seeds", "the same question and repeat must be drawn with the same seed"),
    ):
        a, b = getattr(reference, name), getattr(candidate, name)
        other = sorted(key for key in shared if a[key] != b[key])
        if other:
            first = other[0]
            where = f"{name} of {'/'.join(map(str, first[:3]))} and {len(other) - 1} more"
            found.append(Difference(where, *_parted(str(a[first]), str(b[first])), why, "F59"))
    return found


def changed(arm: str, before: Facts, after: Facts) -> list[Difference]:
    """Facts of one arm that are not at the end what they were at the start."""
    why = f"{arm} changed during the run: its samples come from two configurations"
    return [
        Difference(name, _text(before.get(name)), _text(after.get(name)), why)
        for name in dict.fromkeys([*before, *after])
        if _text(before.get(name)) != _text(after.get(name))
    ]


def _facts_of(factor: str) -> tuple[str, ...]:
    """Names under which an engine reports the factor: whole path, last name, and what lies below."""
    if factor == NO_FACTOR:
        return ()
    last = factor.rsplit(".", 1)[-1]
    return factor, f"{factor}.*", last, f"{last}.*"


def _in_effect(out: Comparability, factor: str, reference: Facts, candidate: Facts) -> None:
    """A factor that both arms report with one value did nothing: a silent fallback, or a dead setting."""
    for name in _facts_of(factor)[::2]:
        a, b = reference.get(name), candidate.get(name)
        if not unknown(a) and not unknown(b):
            if _text(a) == _text(b):
                why = "the factor is not in effect: both arms run the same (a fallback, or a dead setting)"
                out.differences.append(Difference(name, _text(a), _text(b), why, "F54"))
            return
    if factor not in (NO_FACTOR, "server.url"):
        out.caveats.append(
            f"neither arm reports {factor}; whether the factor is in effect must be shown otherwise"
        )


def _questions(reference: Asked, candidate: Asked) -> list[Difference]:
    found = []
    if reference.questions != candidate.questions:
        only = [
            f"{len(one)} questions of its own" + (f", first {'/'.join(min(one))}" if one else "")
            for one in (
                reference.questions - candidate.questions,
                candidate.questions - reference.questions,
            )
        ]
        found.append(
            Difference("questions", only[0], only[1], "only the same questions can be paired", "F60")
        )
    shared = reference.questions & candidate.questions
    other = sorted(q for q in shared if reference.texts[q] != candidate.texts[q])
    if other:
        a, b = (", ".join(sorted(each.texts[other[0]])) for each in (reference, candidate))
        where = f"questions {'/'.join(other[0])} and {len(other) - 1} more"
        found.append(Difference(where, a, b, "another question under the same name", "F59"))
    if reference.repeats != candidate.repeats:
        a, b = (json.dumps(each.repeats, sort_keys=True) for each in (reference, candidate))
        found.append(Difference("repeats", a, b, "K must be the same in both arms", "F60"))
    return found


def _prompts(reference: Asked, candidate: Asked) -> list[Difference]:
    found = []
    for name, asked in (("reference", reference), ("candidate", candidate)):
        several = sorted(q for q, hashes in asked.prompts.items() if len(hashes) > 1)
        if several:
            a, b, *_ = sorted(asked.prompts[several[0]])
            why = f"{name} got different tokens in repeats of one question"
            found.append(Difference(f"prompts of {'/'.join(several[0])}", a, b, why, "F59"))
    known = [any(each.prompts.values()) for each in (reference, candidate)]
    if (reference.seeds or candidate.seeds) and not all(known):
        a, b = ("known" if k else UNKNOWN for k in known)
        found.append(Difference("prompts", a, b, "the prompts' token ids must be known in both arms", "F59"))
        return found
    shared = reference.questions & candidate.questions
    other = sorted(q for q in shared if _both(reference, candidate, q))
    if other:
        a, b = (", ".join(sorted(each.prompts[other[0]])) for each in (reference, candidate))
        where = f"prompts of {'/'.join(other[0])} and {len(other) - 1} more"
        found.append(Difference(where, a, b, _prompt_reason(reference, candidate, other), "F59"))
    return found


def _both(reference: Asked, candidate: Asked, question: tuple[str, str]) -> bool:
    a, b = reference.prompts[question], candidate.prompts[question]
    return bool(a and b and a != b)


def _prompt_reason(reference: Asked, candidate: Asked, questions: list[tuple[str, str]]) -> str:
    steps = {candidate.lengths[q] - reference.lengths[q] for q in questions}
    if steps in ({1}, {-1}):
        arm = "candidate" if steps == {1} else "reference"
        return (
            f"{arm} has one token more in every prompt: a doubled BOS there, or one missing in the other arm"
        )
    return "the arms see other tokens for the same question"


def _parted(a: str, b: str) -> tuple[str, str]:
    """Only the parameters in which two sets of sampling parameters differ."""
    try:
        one, two = json.loads(a), json.loads(b)
        names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
        return tuple(", ".join(f"{n} {each.get(n)}" for n in names) for each in (one, two))  # type: ignore
    except (ValueError, AttributeError, TypeError):
        return a, b


def _text(value: Any) -> str:
    """A value in one form: 1 and 1.0 are equal, lists and tuples too."""
    if unknown(value):
        return UNKNOWN
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
