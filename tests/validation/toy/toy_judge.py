"""The judge of the toy suite, named to the workers by ``toy_main``. Importing it puts the suite in place."""

from __future__ import annotations

import os
import signal
from typing import Any

import toy

from validation.contracts.contract import Case
from validation.errors import UserError
from validation.report.schema import CaseResult, Element, Finding, Score

toy.install()

RIGHT = {"toy_add": lambda row: row + 1, "toy_scale": lambda row: 2 * row}


def judge_case(
    case: Case,
    implementation: Any,
    device: str,
    *,
    share: float,
    mode: str = "profile",
    controls: bool = False,
) -> CaseResult:
    """Compare with the right list. Rows of 13 break the judge itself, rows of 14 are undecidable,
    rows of 17 kill it."""
    rows = case["rows"]
    result = CaseResult(case.op, implementation.provider, case.line(), "pass")
    if rows == 13:
        raise ZeroDivisionError("the judge is broken")
    if rows == 14:
        result.verdict, result.note = "undecided", "needs more rows"
        return result
    if rows == 15:
        raise UserError("this case cannot be built")
    if rows == 16:
        result.scores.append(Score("out", "bits", object(), 1.0))  # type: ignore[arg-type]
        return result
    if rows == 17:
        with open("kills", "a") as kills:
            kills.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    arguments = toy.ToyArguments(list(range(rows)), [0] * rows, case.seed)
    implementation.function(arguments)
    expected = [RIGHT[case.op](row) for row in arguments.rows]
    wrong = [i for i, (a, b) in enumerate(zip(arguments.out, expected, strict=True)) if a != b]
    result.scores.append(Score("out", "bits", float(len(wrong)), 0.5))
    result.scores.append(Score("out", "share", share, 1.0))
    if wrong:
        result.verdict = "fail"
        worst = [Element(f"row {i}", float(arguments.out[i]), float(expected[i])) for i in wrong]
        at = ("kernels", case.op, implementation.provider, case.line(), "bits", "out")
        result.findings.append(
            Finding(*at, float(len(wrong)), 0.5, f"row {wrong[0]} only", "differs", "", worst)
        )
    if controls:
        result.controls_planted = result.controls_caught = 3
    return result
