"""``lockstep sync``: prove the subject's mailbox protocols over all interleavings, and find planted faults.

Exit status 0 if every protocol is proved safe and every planted fault is found; 1 for an unplanted violation,
with its smallest trace as a sequence diagram; 2 if something was not proved or a planted fault was not found.

Catches: protocols that are unsafe as specified, for the layers, ranks and batches asked for. Cannot catch:
kernels that do not follow the specification, and what the memory model in ``validation.sync.events`` leaves
out.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation import streams
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.sync.fault import Fault
    from validation.sync.protocols import Protocol
    from validation.sync.setting import Setting
    from validation.sync.verify import Outcome

WIDTH = 150  # columns in a file or a pipe


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--protocol", action="append", default=[], metavar="NAME", help="only this one (repeatable)"
    )
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N", help="ranks (default: 2 3 4)")
    layers = parser.add_mutually_exclusive_group()
    layers.add_argument(
        "--layers",
        metavar="PATTERN",
        help="one letter a layer: K KDA and experts, A MLA and experts, D dense",
    )
    layers.add_argument("--moe-layers", type=int, metavar="N", help="one dense layer and N with experts")
    parser.add_argument("--batches", type=int, nargs="+", metavar="N", help="rows of each step in turn")
    parser.add_argument("--plan", type=int, choices=(8, 16), help="kernels of TP8 or TP16 (default: both)")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="plant only this one (repeatable)"
    )
    parser.add_argument("--list", action="store_true", help="list protocols, exchanges and faults")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results document here")


def main(options: argparse.Namespace, command: str) -> int:
    """Prove, plant, print; the exit status follows from the verdict."""
    from validation.commands.outcome import INTERRUPTED
    from validation.report.document import check_writable
    from validation.report.schema import EXIT_STATUS

    if options.list:
        return _list()
    if options.json:
        check_writable(options.json, "--json")
    faults, jobs = _faults(options), _jobs(options)
    began = time.perf_counter()
    proofs: list[Proof] = []
    controls: list[Control] = []
    interrupted, trouble = False, ""
    try:
        _run(jobs, faults, proofs, controls)
    except KeyboardInterrupt:
        interrupted = True
    verdict = _verdict(proofs, controls)
    if interrupted and verdict == "pass":
        verdict = "undecided"
    try:
        if options.json:
            _write(options.json, command, verdict, proofs, controls, time.perf_counter() - began)
    except UserError as error:  # what was proved is shown all the same
        trouble = str(error)
    streams.try_to(lambda: _show(proofs, controls, bool(options.fault)))
    if proofs or not interrupted:
        print(_summary(verdict, proofs, controls, time.perf_counter() - began))
    if trouble:
        raise UserError(trouble)
    if interrupted:
        left = len(jobs) + len(faults) - len(proofs) - len(controls)
        streams.say(f"lockstep: interrupted; {left} of {len(jobs) + len(faults)} were not examined")
        return INTERRUPTED
    return EXIT_STATUS[verdict]


def _faults(options: argparse.Namespace) -> list[Fault]:
    """Negative controls: all, or those named."""
    from validation.sync.faults import FAULTS
    from validation.sync.verify import fault_named

    return [fault_named(name) for name in options.fault] or list(FAULTS)


def _jobs(options: argparse.Namespace) -> list[tuple[Protocol, Setting]]:
    """Protocols in all settings asked for; none where single faults are planted."""
    from validation.sync.kimi_k3 import subject
    from validation.sync.protocols import PROTOCOLS, RANKS, protocol_named
    from validation.sync.setting import pattern
    from validation.sync.verify import settings

    layers = options.layers if options.moe_layers is None else pattern(options.moe_layers)
    batches = None if options.batches is None else tuple(options.batches)
    plans = (options.plan,) if options.plan else ()
    chosen = [protocol_named(name) for name in options.protocol] or list(PROTOCOLS)
    ranks = options.ranks or RANKS
    k3 = subject()
    jobs = [
        (p, s)
        for p in chosen
        for n in ranks
        for s in settings(k3, p, n, p.layers if layers is None else layers, batches, plans)
    ]
    if not jobs:
        names = " ".join(protocol.name for protocol in chosen)
        raise UserError(f"no such step uses {names}; see lockstep sync --list for what there is")
    return [] if options.fault else jobs


Proof = tuple["Protocol", "Outcome"]
Control = tuple["Fault", "Outcome"]


def _run(
    jobs: list[tuple[Protocol, Setting]], faults: list[Fault], proofs: list[Proof], controls: list[Control]
) -> None:
    """Everything, under a progress bar; what is done is in the two lists, whatever ends it."""
    from validation.commands.measured import counted
    from validation.sync.kimi_k3 import subject
    from validation.sync.verify import examine, find

    protocols = subject()
    with counted("interleavings", len(jobs) + len(faults)) as advance:
        for protocol, setting in jobs:
            proofs.append((protocol, examine(protocols, setting)))
            advance()
        for fault in faults:
            controls.append((fault, find(protocols, fault)))
            advance()


def _verdict(proofs: list[Proof], controls: list[Control]) -> Any:
    """Fail before undecided: a violation stands whatever the controls say."""
    if any(outcome.answer == "unsafe" for _, outcome in proofs):
        return "fail"
    missed = any(outcome.answer != "unsafe" for _, outcome in controls)
    return "undecided" if missed or any(o.answer != "safe" for _, o in proofs) else "pass"


def _show(proofs: list[Proof], controls: list[Control], drawn: bool) -> None:
    """Tables, then the first violation of each protocol as a diagram."""
    from validation.report.terminal import Screen, print_table

    screen = Screen(file=sys.stdout, width=WIDTH, highlight=False)
    if proofs:
        print_table(screen, _proof_table(proofs))
    print_table(screen, _control_table(controls))
    shown = set()
    for protocol, outcome in proofs:
        if outcome.diagram and protocol.name not in shown:
            shown.add(protocol.name)
            print(f"\n{protocol.name}: {_words(outcome.setting)}\n{outcome.diagram}")
    for fault, outcome in controls if drawn else ():
        print(f"\n{fault.name} ({fault.kind}): {_words(outcome.setting)}\n{outcome.diagram}")


def _words(setting: Setting) -> str:
    batches = " ".join(map(str, setting.batches))
    return f"{setting.ranks} ranks, layers {setting.layers}, batches {batches}, kernels of TP{setting.plan}"


def _proof_table(proofs: list[Proof]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("protocol", "ranks", "runs", "states", "seconds", "verdict"):
        table.add_column(heading, justify="left" if heading in ("protocol", "verdict") else "right")
    rows: dict[tuple[str, int], list[Outcome]] = {}
    for protocol, outcome in proofs:
        rows.setdefault((protocol.name, outcome.setting.ranks), []).append(outcome)
    for (name, ranks), found in rows.items():
        unsafe = sum(o.answer == "unsafe" for o in found)
        open_ = sum(o.answer == "not proved" for o in found)
        word = f"unsafe in {unsafe}" if unsafe else f"not proved in {open_}" if open_ else "safe"
        states, seconds = sum(o.states for o in found), sum(o.seconds for o in found)
        table.add_row(name, str(ranks), str(len(found)), f"{states:,}", f"{seconds:.2f}", word)
    return table


def _control_table(controls: list[Control]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("planted fault", "kind", "like", "states", "seconds", "events", "found as"):
        table.add_column(heading, justify="right" if heading in ("states", "seconds", "events") else "left")
    for fault, o in controls:
        found = o.invariant or "NOT FOUND"
        table.add_row(
            fault.name, fault.kind, fault.report, f"{o.states:,}", f"{o.seconds:.2f}", str(o.events), found
        )
    return table


def _summary(verdict: str, proofs: list[Proof], controls: list[Control], seconds: float) -> str:
    found = [outcome for _, outcome in controls if outcome.answer == "unsafe"]
    longest = max((outcome.events for outcome in found), default=0)
    states = sum(outcome.states for _, outcome in proofs)
    lines = [f"negative controls: {len(found)} of {len(controls)} planted faults found"]
    lines[0] += f", traces of at most {longest} events" if found else ""
    if not proofs:
        return f"{lines[0]}\n{verdict.upper()}: only planted faults were asked for"
    safe = sum(outcome.answer == "safe" for _, outcome in proofs)
    lines.append(f"{verdict.upper()}: {safe} of {len(proofs)} runs proved safe")
    lines[-1] += f", {states:,} states, in {seconds:.0f} s"
    return "\n".join(lines)


def _list() -> int:
    """Protocols with their exchanges, then faults."""
    from validation.sync.faults import FAULTS
    from validation.sync.kimi_k3 import subject
    from validation.sync.protocols import PROTOCOLS

    exchanges = subject().exchanges
    for protocol in PROTOCOLS:
        print(f"{protocol.name}: {protocol.summary}")
        for e in (exchanges[name] for name in protocol.exchanges):
            held = f"sentinel {e.sentinel}, {e.parities} x {e.parity}, re-armed by {e.rearmed_by}, {e.when}"
            print(f"  {e.name:16} {e.pattern:10} {'by launch order' if e.plain else held}")
    for fault in FAULTS:
        print(f"{fault.kind} {fault.name} {fault.report}".rstrip())
    return 0


def _write(
    path: Path, command: str, verdict: Any, proofs: list[Proof], controls: list[Control], seconds: float
) -> None:
    """The results document: one case a run, one finding a violation, one control a fault."""
    from validation.execution.environment import collect
    from validation.execution.plan import Settings
    from validation.report.document import save, to_json
    from validation.report.schema import Document

    document = Document(
        command=command,
        verdict=verdict,
        environment=collect(Settings(ops=(), device="cpu")),
        cases=[_case(protocol, outcome) for protocol, outcome in proofs],
        controls=[
            {
                "name": fault.name,
                "kind": fault.kind,
                "report": fault.report,
                "found": outcome.answer == "unsafe",
                "invariant": outcome.invariant,
                "states": outcome.states,
                "seconds": outcome.seconds,
                "events": outcome.events,
                "trace": outcome.diagram.splitlines(),
            }
            for fault, outcome in controls
        ],
        seconds=seconds,
        details={"states": sum(outcome.states for _, outcome in proofs)},
    )
    save(to_json(document), path)


def _case(protocol: Protocol, outcome: Outcome) -> Any:
    from validation.report.schema import CaseResult, Finding

    s = outcome.setting
    batches = " ".join(map(str, s.batches))
    words = f"--protocol {protocol.name} --ranks {s.ranks} --layers {s.layers}"
    words += f" --batches {batches} --plan {s.plan}"
    verdicts: dict[str, Any] = {"safe": "pass", "unsafe": "fail", "not proved": "undecided"}
    result = CaseResult(protocol.name, "kimi_k3", words, verdicts[outcome.answer], seconds=outcome.seconds)
    result.note = f"{outcome.states} states" + ", random walks only" * outcome.walked
    if outcome.answer == "unsafe":
        result.findings.append(
            Finding(
                layer="sync",
                op=protocol.name,
                provider="kimi_k3",
                case=words,
                statistic=outcome.invariant,
                output=protocol.name,
                value=1.0,
                limit=0.0,
                where=_words(s),
                message=outcome.message,
                replay=f"lockstep sync {words}",
            )
        )
    return result
