"""Which case a report belongs to, and the verdict of a case under a tool.

A report names a kernel, and a kernel may belong to several operations. A case is to blame where it alone
launched the kernel in that process, or where it was run alone and the tool reported the kernel again.

What this cannot tell: who is to blame where no suspect is reported alone; the first is then named, with all
others.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from validation.contracts.contract import Case
from validation.report.schema import CaseResult, Finding, Score, Verdict
from validation.sanitize.log import Report
from validation.sanitize.subject import Answer
from validation.sanitize.tools import Tool
from validation.sanitize.watched import Watched


@dataclass
class Found:
    """What one tool saw: all cases in a few processes, and some of them again, each alone."""

    tool: Tool
    seen: list[Watched]
    alone: dict[str, Watched]

    def group(self, line: str) -> Watched | None:
        """The process that ran a case with others."""
        return next((ran for ran in self.seen if line in ran.asked), None)

    def reports(self, line: str) -> Iterator[tuple[Report, str]]:
        """Reports for which a case is to blame, with what must be said of the blame."""
        group = self.group(line)
        for report in group.log.reports if group else ():
            named = suspects(report, group.answers if group else ())
            again = [case for case in named if self._again(case, report)]
            if named == [line] or line in again:
                yield from ((r, "") for r in self._details(line, report))
            elif not again and named and named[0] == line:
                others = ", ".join(dict.fromkeys(case.partition(":")[0] for case in named))
                yield report, f"; not seen again alone, so it may be any case of {others}"

    def _again(self, case: str, report: Report) -> bool:
        ran = self.alone.get(case)
        return ran is not None and any(r.kernel == report.kernel for r in ran.log.reports)

    def _details(self, line: str, report: Report) -> list[Report]:
        """What the tool reported of the kernel when the case ran alone, which may say more."""
        ran = self.alone.get(line)
        return [r for r in ran.log.reports if r.kernel == report.kernel] if ran else [report]


def suspects(report: Report, answers: Sequence[Answer]) -> list[str]:
    """Cases that launched the kernel of a report; all of the process where none is known to have."""
    launched = [answer.case for answer in answers if report.kernel and report.kernel in answer.kernels]
    return launched or [answer.case for answer in answers]


@dataclass
class Plain:
    """The cases run without a tool, and what went wrong with those processes."""

    answers: dict[str, Answer]
    lost: list[str]

    @classmethod
    def of(cls, ran: Sequence[Watched]) -> Plain:
        answers = {answer.case: answer for each in ran for answer in each.answers}
        return cls(answers, [doubt for each in ran for doubt in each.doubts])

    def right(self, line: str) -> bool:
        """Whether the case ran to its end."""
        return line in self.answers and not self.answers[line].error

    def error(self, line: str) -> str:
        if line in self.answers:
            return f"without a tool: {self.answers[line].error}"
        return "; ".join(self.lost) or "did not run without a tool"


def result_of(found: Found, case: Case, provider: str, plain: Plain, silence: str) -> CaseResult:
    """The result of one case under one tool. ``silence``: why the tool's silence proves nothing, if so."""
    line, tool = case.line(), found.tool.name
    result = CaseResult(case.op, provider, line, "pass")
    reports = list({(r.what, r.at): (r, blame) for r, blame in found.reports(line)}.values())
    result.findings = [_finding(tool, case, provider, report, blame) for report, blame in reports]
    result.scores = [Score("", tool, float(len(reports)), 0.0)]
    group = found.group(line)
    answer = next((a for a in group.answers if a.case == line), None) if group else None
    result.kernels = answer.kernels if answer else []
    if result.findings:
        result.verdict = "fail"
    elif not plain.right(line):
        result.verdict, result.note = "error", plain.error(line)
    elif answer is not None and answer.error:
        result.verdict, result.note = "error", f"under {tool}: {answer.error}"
    elif doubts := [*(group.doubts if group else ["it was not run"]), *filter(None, [silence])]:
        result.verdict, result.note = "undecided", "; ".join(doubts)
    return result


def tool_of(result: CaseResult) -> str:
    """The tool of a result of ``result_of``."""
    return result.scores[0].statistic


def worst(results: Sequence[CaseResult]) -> Verdict:
    """The verdict of several results: the worst, and undecided where there is none."""
    order: tuple[Verdict, ...] = ("fail", "error", "undecided", "pass")
    found = {result.verdict for result in results} or {"undecided"}
    return next(verdict for verdict in order if verdict in found)


def _finding(tool: str, case: Case, provider: str, report: Report, blame: str) -> Finding:
    times = f", {report.count:,} reports" if report.count > 1 else ""
    return Finding(
        "sanitize",
        case.op,
        provider,
        case.line(),
        tool,
        report.kernel,
        float(report.count),
        0.0,
        report.where,
        f"{report.what}{times}{blame}",
        shlex.join(["lockstep", "sanitize", "--tool", tool, "--provider", provider, "--case", case.line()]),
    )
