"""One run: plan, workers, journal, verdict, and the document with everything in it.

    document = run(make_plan(settings), open_folder(...), ...)

What this catches: an interrupted run keeps what is done (verdict undecided, with how many of how many);
every finding carries the one line that replays it; a disk that fills up ends the run with what is done. What
it cannot catch: a machine that goes away while a report is written; cases.jsonl then still holds every
finished case.

The false-alarm budget of a run, 1e-3 for all of it, is split evenly over its cases (``plan.share``).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from validation.errors import UserError
from validation.execution import ledger as known_failures
from validation.execution.environment import collect, configuration_hash
from validation.execution.journal import Header, Journal, reopen
from validation.execution.plan import Plan, Settings, Task, unserved
from validation.execution.pool import run_isolated
from validation.execution.process import device_variables
from validation.execution.progress import Progress
from validation.execution.verdict import judge_controls, verdict
from validation.report.document import reason, save, to_json
from validation.report.junit import to_junit
from validation.report.plain import to_plain
from validation.report.schema import CaseResult, Document
from validation.report.terminal import as_text

REPORTS = Path("reports")


class Stopped(Exception):
    """Ctrl-C or SIGTERM (``interrupted``), or something could not be written (``trouble`` says what in one
    line); what is done is in ``document``."""

    def __init__(self, document: Document, interrupted: bool, trouble: str) -> None:
        super().__init__(trouble or "interrupted")
        self.document = document
        self.interrupted = interrupted
        self.trouble = trouble


def choose_device(name: str | None) -> str:
    """The device of the run: as asked for, else CUDA where there is a GPU. Sets what workers inherit."""
    if name != "cpu":
        import torch

        usable = torch.cuda.is_available()
        if name == "cuda" and not usable:
            raise UserError("--device cuda: no CUDA device here (torch.cuda.is_available() is false)")
        name = "cuda" if usable else "cpu"
    os.environ.update(device_variables(name))
    if name == "cuda":
        os.environ.pop("TRITON_INTERPRET", None)
    return name


def new_folder(root: Path, settings: Settings | str) -> Path:
    """reports/<time>-<hash>/, made now, so that an unwritable place is noticed before the run. ``settings``:
    what is hashed, or the hash itself."""
    digest = settings if isinstance(settings, str) else configuration_hash(settings)
    name = f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{digest}"
    for suffix in ("", *(f"-{i}" for i in range(2, 100))):
        folder = root / (name + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.exists():
                continue
            raise UserError(f"cannot write --report-dir {root}: not a folder") from None
        except OSError as error:
            raise UserError(f"cannot write --report-dir {root}: {reason(error)}") from None
        return folder
    raise UserError(f"cannot write --report-dir {root}: it is full of runs of this second")


def begin(plan: Plan, folder: Path, resume: bool) -> Journal:
    """The journal of a new run, or of one that is taken up again."""
    if resume:
        journal = reopen(folder)
        plan.skipped = journal.header.skipped | plan.skipped
        plan.unserved = unserved(plan)
        return journal
    return Journal(folder, Header(plan.settings, collect(plan.settings), skipped=plan.skipped))


def run(
    plan: Plan, journal: Journal, folder: Path, command: str, ledger: list[known_failures.Entry]
) -> Document:
    """Execute what is not finished yet; the document is written to ``folder`` in any case.

    Raises ``Stopped`` with the partial document on Ctrl-C, and where the journal or a report cannot be
    written.
    """
    began = time.monotonic()
    environment = collect(plan.settings)
    results = {task.key: journal.finished[task.key] for task in plan.tasks if task.key in journal.finished}
    notes = _resumed(results, journal.header.environment, environment)
    interrupted, trouble = False, ""
    try:
        _execute(plan, journal, folder, results)
        journal.close()
    except KeyboardInterrupt:
        interrupted = True
    except (UserError, OSError) as error:
        trouble = str(error) if isinstance(error, UserError) else f"the run stopped: {reason(error)}"
    finally:
        with contextlib.suppress(UserError):
            journal.close()
    document = assemble(plan, results, environment, command, ledger)
    if trouble:
        document.verdict = "error"
    document.notes = [*([trouble] if trouble else []), *notes, *document.notes]
    document.seconds = time.monotonic() - began
    trouble = "; ".join(filter(None, [trouble, write(document, folder)]))
    if interrupted or trouble:
        raise Stopped(document, interrupted, trouble)
    return document


def _execute(plan: Plan, journal: Journal, folder: Path, results: dict[str, CaseResult]) -> None:
    """Run the open tasks; every result is stored as it comes."""
    tasks = [task for task in plan.tasks if task.key not in results]
    progress = Progress(tasks)
    announced: set[tuple[str, str]] = set()
    try:
        with contextlib.closing(run_isolated(tasks, plan.settings, plan.share, folder / "workers")) as events:
            for event in events:
                if event is None:
                    progress.tick()
                    continue
                task, result = event
                _finish(plan.settings, task, result)
                results[task.key] = result
                journal.add(task, result)
                progress.add(task, result)
                if len(tasks) > 1:
                    _announce(progress, task, result, announced)
    finally:
        progress.close()


def _finish(settings: Settings, task: Task, result: CaseResult) -> None:
    """Give every finding the line that replays it."""
    for finding in result.findings:
        finding.replay = replay_line(settings, task)


def replay_line(settings: Settings, task: Task) -> str:
    """The command that runs one case again, as it ran here."""
    words = ["lockstep", "replay", task.key + ("@cuda" if settings.device == "cuda" else "")]
    for plugin in settings.plugins:
        words += ["--plugin", plugin]
    if settings.mode != "profile":
        words += ["--mode", settings.mode]
    return shlex.join(words)


def _announce(progress: Progress, task: Task, result: CaseResult, announced: set[tuple[str, str]]) -> None:
    """Name the first wrong thing of each pair at once; the report follows when all is done."""
    pair = (task.case.op, task.provider)
    if task.role != "candidate" or pair in announced or result.verdict not in ("fail", "error"):
        return
    announced.add(pair)
    if result.findings:
        worst = max(result.findings, key=lambda f: f.ratio)
        what = ", ".join(filter(None, [worst.output, worst.statistic, worst.where, worst.message]))
        progress.say(f"{task.case.op} by {task.provider} fails: {what}")
    else:
        progress.say(f"{task.case.op} by {task.provider} {result.verdict}: {result.note}")


def assemble(
    plan: Plan,
    results: dict[str, CaseResult],
    environment: dict[str, Any],
    command: str,
    ledger: list[known_failures.Entry],
) -> Document:
    """The document of what was done, in the order of the plan."""
    done = [(task, results[task.key]) for task in plan.tasks if task.key in results]
    cases = [result for task, result in done if task.role == "candidate"]
    controls = judge_controls([result for task, result in done if task.role == "control"])
    complete = len(done) == len(plan.tasks)
    records = known_failures.apply(ledger, cases, datetime.date.today(), complete=complete)
    decided, reasons = verdict(cases, controls, records, plan.unserved)
    if not complete:
        decided, reasons = "undecided", [f"stopped after {len(done)} of {len(plan.tasks)} cases", *reasons]
    return Document(command, decided, environment, cases, dict(plan.skipped), controls, records, reasons)


def write(document: Document, folder: Path, text: Callable[[Document], str] = as_text) -> str:
    """results.json, junit.xml and report.txt; ``text`` makes the last. Returns in one line what could not be
    written."""
    made = (("results.json", to_json), ("junit.xml", to_junit), ("report.txt", text))
    troubles = []
    for name, make in made:
        try:
            save(make(document), folder / name)
        except UserError as error:
            troubles.append(str(error))
    return troubles[0] if troubles else ""


def _resumed(results: dict[str, CaseResult], before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a reader of a resumed run must know."""
    if not results:
        return []
    now = to_plain(now)  # as it is stored
    changed = [k for k in now if k not in ("date", "configuration_hash") and now[k] != before.get(k)]
    notes = [f"resumed: {len(results)} cases are from the earlier run"]
    return notes + ([f"the earlier run had another {', '.join(changed)}"] if changed else [])
