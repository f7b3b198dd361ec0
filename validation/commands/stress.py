"""``lockstep stress``: real ranks exchange by the proved protocols, under skew, until a bound is reached.

Exit status 0 if no exchange failed, every planted fault and drill was found, and the bound was reached; 1
for a wrong word, a hang, parted ranks or spoilt memory; 2 where a planted fault went unnoticed or the time
was too short for the bound; 3 where ranks could not be started or died.

What this catches and cannot catch: see ``validation.stress.campaign``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation import streams
from validation.commands.outcome import check_outputs, conclude, need_gpus, seconds
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.report.schema import Document
    from validation.stress.campaign import Plan, Results

LANES = {"cpu": 1, "cuda": 112}
SHORT = "DKA"  # on a CPU: an even number of expert layers, 2 mod 3, and one of each kind
EXCHANGES = {"quick": {"cpu": 2_000, "cuda": 2_000_000}, "full": {"cpu": 10_000, "cuda": 20_000_000}}
# Limits: a run ends when its exchanges are done, on two idle cores in about two minutes.
SECONDS = {"quick": {"cpu": 600.0, "cuda": 90.0}, "full": {"cpu": 900.0, "cuda": 480.0}}
REPEATS = {"quick": 16, "full": 500}  # decode steps walked again
RISK = 1.0
MOST_RANKS = {"cpu": 4, "cuda": 8}
MOST = 10**12  # exchanges or tokens: beyond it no run of months would get


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu, in the interpreter")
    add("--ranks", type=int, default=2, metavar="N", help="processes, on GPUs one each (default: 2)")
    add("--tier", choices=("quick", "full"), default="quick", help="how many exchanges (default: quick)")
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument(
        "--exchanges", type=int, metavar="N", help="exchanges that must pass without a failure"
    )
    bound.add_argument(
        "--reply", type=int, metavar="TOKENS", help="as many as a reply of Kimi K3 of that length needs"
    )
    add("--risk", type=float, default=RISK, metavar="P", help="failures in such a reply, below (default: 1)")
    add("--seconds", type=seconds, metavar="S", help="time for exchanges and trials, from the start on")
    add("--mode", action="append", default=[], metavar="NAME", help="only this stress mode (repeatable)")
    add("--layers", metavar="PATTERN", help="one letter a layer, as in lockstep sync")
    add("--batches", type=int, nargs="+", metavar="N", help="rows that steps are drawn from")
    add("--lanes", type=int, metavar="N", help="programs, of 64 columns each")
    add("--seed", type=int, default=0, metavar="N", help="of payloads, batches and skew (default: 0)")
    add(
        "--fault",
        action="append",
        default=[],
        metavar="NAME",
        help="plant only this fault (repeatable), and stop",
    )
    add("--all-faults", action="store_true", help="plant every fault, not one for each mode")
    add("--trials", type=int, default=1, metavar="N", help="hangs and kills to be named (default: 1 each)")
    add(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="walk decode steps of this provider again (repeatable; default: torch, on a CPU)",
    )
    add("--time", action="store_true", help="time exchanges of real tensors beside NCCL (GPUs)")
    add("--kernels", default="", metavar="MODULE", help=argparse.SUPPRESS)
    add("--list", action="store_true", help="list modes, faults and exchanges, run or not")
    add("--json", type=Path, metavar="FILE", help="write the results document here too")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML here too")
    add("--report-dir", type=Path, metavar="DIR", help="folder of all reports (default: reports)")


def main(options: argparse.Namespace, command: str) -> int:
    """Run all stages, print, write."""
    if options.list:
        return _list()
    check_outputs(options)
    if options.fault and (options.json or options.junit):
        raise UserError("--fault prints and writes no document: leave out --json and --junit, or --fault")
    plan = _plan(options)
    if options.fault:
        return _plant(plan, options)
    from validation.run import REPORTS, new_folder, write
    from validation.stress.campaign import Results, carry_out

    folder = new_folder(options.report_dir or REPORTS, _hash(plan))
    results, interrupted = Results(plan), False
    try:
        carry_out(results, lambda line: streams.say(f"lockstep: {line}"), options.kernels)
    except KeyboardInterrupt:
        interrupted = True
    document = _document(results, command, options.tier, interrupted)
    trouble = write(document, folder)
    return conclude(document, options, folder, _show(results), interrupted, trouble)


def _plan(options: argparse.Namespace) -> Plan:
    """What is asked for. Raises UserError where it cannot be."""
    from validation.run import choose_device
    from validation.stress.campaign import BATCHES, Plan
    from validation.stress.script import SUBJECT
    from validation.stress.skew import MODES, only
    from validation.sync.setting import Setting, check

    device = options.device
    if not 2 <= options.ranks <= MOST_RANKS[device]:
        raise UserError(f"--ranks {options.ranks}: 2 to {MOST_RANKS[device]} on {device}")
    for name in options.mode:
        only(name, device, 0)
    if not 1 / MOST <= options.risk <= MOST:
        raise UserError(f"--risk {options.risk:g}: from {1 / MOST:g} to {MOST:g} failures in a reply")
    if options.trials < 0 or not 0 <= options.seed < 2**31:
        raise UserError("--trials must be at least 0, --seed from 0 to 2147483647")
    choose_device(device)
    backends = tuple(options.backend or (("torch",) if device == "cpu" else ()))
    if backends and "hashes" in (options.mode or MODES):
        from validation import providers

        providers.load(list(backends), [], device)
    if device == "cuda":
        need_gpus(options.ranks)
    usual = SHORT if device == "cpu" else SUBJECT
    layers, batches = usual if options.layers is None else options.layers, tuple(options.batches or BATCHES)
    check(Setting(options.ranks, layers, batches, barrier=False))
    if len(batches) > 64:
        raise UserError(f"--batches: at most 64 different ones, not {len(batches)}")
    lanes = LANES[device] if options.lanes is None else options.lanes
    if not 1 <= lanes <= 112:
        raise UserError(f"--lanes {lanes}: 1 to 112, which is a row of 7,168 columns")
    tier = options.tier
    return Plan(
        device, options.ranks, lanes, layers, _exchanges(options),
        options.seconds or SECONDS[tier][device], tuple(options.mode or MODES), batches=batches,
        seed=options.seed, every_fault=options.all_faults or (device == "cuda"), trials=options.trials,
        timed=options.time, backends=backends, repeats=REPEATS[tier],
    )  # fmt: skip


def _exchanges(options: argparse.Namespace) -> int:
    """Exchanges that must pass: as told, or as many as the reply needs."""
    from validation.stress import bound
    from validation.stress.script import exchanges_a_token

    usual, reply = EXCHANGES[options.tier][options.device], options.reply
    if reply is not None and not 1 <= reply <= MOST:
        raise UserError(f"--reply {reply}: from 1 to {MOST:,} tokens")
    needed = bound.needed(reply, exchanges_a_token(), options.risk) if reply else options.exchanges
    if needed is not None and not 1 <= needed <= MOST:
        said = f"--risk {options.risk:g}" if reply else f"--exchanges {options.exchanges}"
        raise UserError(f"{said}: from 1 to {MOST:,} exchanges can be asked for")
    return usual if needed is None else needed


def _plant(plan: Plan, options: argparse.Namespace) -> int:
    """Single faults: what each is found as."""
    from validation.stress.campaign import planted
    from validation.stress.crew import Crew
    from validation.stress.faults import fault_named

    faults = [fault_named(name) for name in options.fault]
    missed = 0
    with Crew(plan.ranks, plan.lanes, plan.device) as crew:
        for fault in faults:
            control = planted(plan, crew, fault)
            missed += not control.found
            how = (
                f"found after {control.after:,} exchanges: {control.words}" if control.found else "NOT FOUND"
            )
            print(f"{fault.kind} {fault.name}: {how}")
    print(f"{len(faults) - missed} of {len(faults)} planted faults found")
    return 2 if missed else 0


def _document(results: Results, command: str, tier: str, interrupted: bool) -> Document:
    from validation.commands.stress_report import cases, controls, details
    from validation.execution.environment import collect
    from validation.execution.plan import Settings
    from validation.report.schema import Document

    plan = results.plan
    settings = Settings(("stress",), ("triton",), tier=tier, device=plan.device, seed=plan.seed)
    stopped = ["stopped before the end"] if interrupted else results.doubts
    verdict = "undecided" if interrupted and not results.failures else results.verdict
    return Document(
        command, verdict, collect(settings), cases(results), controls=controls(results),
        notes=[*results.failures[:20], *results.errors, *stopped], seconds=results.seconds,
        details=details(results),
    )  # fmt: skip


def _show(results: Results) -> Any:
    def show(document: Document, console: Any, folder: str) -> None:
        from validation.commands.stress_report import lines

        for line in lines(results, document):
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"report: {folder}", soft_wrap=True)
        console.print(_last(document, results), markup=False, soft_wrap=True)

    return show


def _last(document: Document, results: Results) -> str:
    from validation.stress.campaign import bound_words

    said = bound_words(results) if document.verdict == "pass" else "; ".join(document.notes[:1])
    return f"{document.verdict.upper()}: {said}, in {document.seconds:.0f} s"


def _hash(plan: Plan) -> str:
    import hashlib

    return hashlib.sha256(repr(plan).encode()).hexdigest()[:8]


def _list() -> int:
    from validation.stress.faults import FAULTS
    from validation.stress.script import BARE, FORMS, NOT_RUN, SPREADS
    from validation.stress.skew import MODES
    from validation.sync.kimi_k3 import subject

    for mode in MODES:
        faults = ", ".join(f"{fault.name} ({fault.kind})" for fault in FAULTS if mode in fault.modes)
        print(f"mode {mode}: {faults}")
    for name, spread in SPREADS.items():
        print(f"exchange {name}: {FORMS[spread]}" + (f" ({BARE[name]})" if name in BARE else ""))
    for name, reason in NOT_RUN.items():
        print(f"exchange {name}: not run: {reason}")
    local = ", ".join(e.name for e in subject().exchanges.values() if e.pattern == "local")
    print(f"on one rank alone, and not run: {local}")
    return 0
