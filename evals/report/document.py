"""A comparison as a results document: one case a test, and everything that was measured under ``details``.

What this catches: nothing; it states. What it cannot hold: the samples; the store beside it does.
"""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from evals.arms.config import Comparison
from evals.arms.guard import Comparability
from evals.judging.controls import Control
from validation.execution.environment import ROOT, commit
from validation.report.schema import CaseResult, Document, Finding, Verdict
from validation.variance.decision import Decision, overall, shown_within

LAYER = "evals"
PACKAGES = ("torch", "transformers", "lm-eval", "datasets", "scipy", "pyarrow")


def document(
    command: str,
    comparison: Comparison,
    decided: Sequence[Decision],
    planted: Sequence[Control],
    comparability: Comparability,
    facts: Mapping[str, Any],
    details: Mapping[str, Any],
    replay: str,
) -> Document:
    """The verdict: ``overall`` of the decisions, error if the arms cannot be compared, and undecided if a
    planted difference went unnoticed."""
    verdict, reasons = overall(decided)
    if comparability.differences:
        verdict, reasons = "error", [f"confounded: {each}" for each in comparability.differences]
    missed = [each for each in planted if not each.noticed]
    if verdict == "pass" and (missed or not planted):
        verdict, reasons = (
            "undecided",
            [missed_words(each) for each in missed] or ["no difference was planted"],
        )
    cases = [case(comparison, each, replay) for each in shown_within(decided)]
    controls = [
        {
            "provider": each.planted,
            "op": each.comparison,
            "cases": 1,
            "flagged": each.noticed,
            "notes": [each.note],
        }
        for each in planted
    ]
    notes = [*reasons, *caveats(comparability)]
    plain = {
        "tests": [test_row(each) for each in decided],
        "arms": dict(facts),
        "declared_differences": [str(each) for each in comparability.declared],
        **details,
    }
    return Document(command, verdict, environment(comparison), cases, {}, controls, [], notes, details=plain)


def caveats(comparability: Comparability) -> list[str]:
    """What could not be known, the facts that neither arm tells in one line."""
    silent = " is unknown in both arms"
    names = [each.removesuffix(silent) for each in comparability.caveats if each.endswith(silent)]
    others = [each for each in comparability.caveats if not each.endswith(silent)]
    return others + ([f"not told by either arm: {', '.join(names)}"] if names else [])


def missed_words(control: Control) -> str:
    """Why a pass would prove nothing."""
    why = f": {control.note}" if control.note else "; more questions or repeats would show it"
    return f"{control.comparison}: {control.planted} went unnoticed{why}"


def case(comparison: Comparison, decision: Decision, replay: str) -> CaseResult:
    """One decision. A test without a margin that found nothing passes: it had no equivalence to show."""
    verdicts: dict[str, Verdict] = {
        "equivalent": "pass",
        "different": "fail",
        "error": "error",
        "confounded": "error",
    }
    verdict = verdicts.get(decision.verdict, "undecided" if decision.gating else "pass")
    result = CaseResult(
        decision.comparison,
        comparison.candidate.label or "candidate",
        decision.test.name,
        verdict,
        note=decision.reason,
    )
    if verdict == "fail":
        test = decision.test
        finding = Finding(
            LAYER, decision.comparison, result.provider, test.name, test.name, decision.comparison,
            value=comparison.alpha, limit=_finite(decision.adjusted_p), where="", message=decision.reason,
            replay=replay,
        )  # fmt: skip
        result.findings.append(finding)
    return result


def _finite(p: float) -> float:
    return 0.0 if math.isnan(p) else p


def test_row(decision: Decision) -> dict[str, Any]:
    """One test in plain values."""
    return {
        "comparison": decision.comparison,
        "verdict": decision.verdict,
        "gating": decision.gating,
        "adjusted_p": None if math.isnan(decision.adjusted_p) else decision.adjusted_p,
        "reason": decision.reason,
        **decision.test.to_dict(),
    }


def environment(comparison: Comparison) -> dict[str, Any]:
    """Where and with what."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **{package: _version(package) for package in PACKAGES},
        **commit(ROOT),
        "configuration": _plain(asdict(replace(comparison, source=Path(comparison.source).name))),
        "configuration_hash": comparison.configuration_hash,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
