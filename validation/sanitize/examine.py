"""All tools over all cases: warm up, planted faults, the tools side by side, and who is to blame.

    results, controls = Examination(...).run(advance)

First every case runs without a tool, which also fills Triton's cache; at the same time each tool is shown
its planted fault. Then each tool sees all cases, several operations a process. What it reports names a
kernel; where several cases launched that kernel, each is run again alone.

What this catches: see ``validation.sanitize``. What it cannot catch: a fault that needs other cases before it
in the same process is reported, but only with the operations that launch its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation.contracts.contract import Case
from validation.report.schema import CaseResult
from validation.sanitize.blame import Found, Plain, result_of, suspects
from validation.sanitize.subject import Job
from validation.sanitize.tools import Tool
from validation.sanitize.watched import Watch, Watched

MOST_ALONE = 12  # cases run again alone for one tool; the rest of its reports keep several names


@dataclass
class Examination:
    """What is examined and with what. ``together``: processes at a time, which share one GPU."""

    provider: str
    plugins: list[str]
    cases: list[Case]
    tools: Sequence[Tool]
    watch: Watch
    together: int
    results: list[CaseResult] = field(default_factory=list)
    controls: list[dict[str, Any]] = field(default_factory=list)

    def steps(self) -> int:
        """Processes that will certainly run, for a progress bar."""
        under, plain = len(self._groups(self._parts)), len(self._groups(self.together))
        return plain + (under + 1) * len(self.tools)

    def run(self, advance: Callable[[], object]) -> None:
        """Fill ``results``, one for each tool and case, and ``controls``, one for each tool."""
        with ThreadPoolExecutor(self.together) as pool:
            try:
                self._run(pool, advance)
            finally:
                self.watch.close()  # before the pool waits for what it began

    def _run(self, pool: ThreadPoolExecutor, advance: Callable[[], object]) -> None:
        shown = [pool.submit(self._planted, tool, advance) for tool in self.tools]
        groups = self._groups(self.together)  # most of this is compiling, which needs no tool
        plain = Plain.of(list(pool.map(lambda g: self._watched(None, g, advance), groups)))
        sound = [[line for line in group if plain.right(line)] for group in self._groups(self._parts)]
        runs = [
            [pool.submit(self._watched, tool, group, advance) for group in sound if group]
            for tool in self.tools
        ]
        for tool, proof, ran in zip(self.tools, shown, runs, strict=True):
            seen = [each.result() for each in ran]
            alone = dict(pool.map(lambda line, t=tool: self._alone(t, line), self._to_repeat(seen)))
            silence = self._control(tool, proof.result())
            found = Found(tool, seen, alone)
            self.results += [result_of(found, case, self.provider, plain, silence) for case in self.cases]

    @property
    def _parts(self) -> int:
        """Processes that share the cases under one tool: more would pay more starts than they save."""
        return max(1, self.together // 2)

    def _groups(self, parts: int) -> list[list[str]]:
        """The cases in ``parts`` groups: every n-th, so that no group has all the slow ones."""
        lines = [case.line() for case in self.cases]
        return [group for group in (lines[part::parts] for part in range(parts)) if group]

    def _watched(self, tool: Tool | None, cases: list[str], advance: Callable[[], object]) -> Watched:
        name = tool.name if tool else "plain"
        found = self.watch.run(tool, Job("", self.provider, self.plugins, list(cases)), name)
        advance()
        return found

    def _alone(self, tool: Tool, case: str) -> tuple[str, Watched]:
        job = Job("", self.provider, self.plugins, [case])
        return case, self.watch.run(tool, job, f"{tool.name}-alone", alone=True)

    def _planted(self, tool: Tool, advance: Callable[[], object]) -> Watched:
        found = self.watch.run(tool, Job("", planted=tool.planted), f"{tool.name}-planted")
        advance()
        return found

    def _to_repeat(self, seen: Iterable[Watched]) -> list[str]:
        """Cases to run alone: those of every report with several suspects, one of each operation first."""
        lists = [suspects(report, ran.answers) for ran in seen for report in ran.log.reports]
        lines = dict.fromkeys(line for each in lists if len(each) > 1 for line in each)
        first = dict.fromkeys({line.partition(":")[0]: line for line in reversed(lines)}.values())
        return list(dict.fromkeys([*first, *lines]))[:MOST_ALONE]

    def _control(self, tool: Tool, proof: Watched) -> str:
        """Note whether the planted fault was reported; if not, why the tool's silence proves nothing."""
        shown = [report for report in proof.log.reports if report.kernel == tool.planted]
        said = [f"{report.what}: {report.where}" for report in shown[:1]]
        notes = said or proof.doubts or ["nothing was reported"]
        control = {
            "provider": tool.name,
            "op": tool.planted,
            "cases": 1,
            "flagged": len(shown),
            "notes": notes,
        }
        self.controls.append(control)
        return "" if shown else f"{tool.name} did not report its planted fault, so its silence proves nothing"


def groups_at_a_time(cores: int) -> int:
    """Processes side by side: one for every two cores, up to six, which share the memory of one GPU."""
    return max(1, min(6, cores // 2))


def new_watch(binary: str, folder: Path, limit: float) -> Watch:
    """A ``Watch`` whose files lie in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return Watch(binary, folder, limit)
