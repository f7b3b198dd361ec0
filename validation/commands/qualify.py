"""``lockstep qualify``: plant every catalogued fault, count those noticed, name the closest call.

Exit status 0 if every fault is noticed, 1 if one passes. What this cannot catch: faults nobody planted.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from validation.commands.measured import counted, measured_arguments, record, selected, write_json

if TYPE_CHECKING:
    from validation.faults.qualify import Caught


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    measured_arguments(parser)
    parser.add_argument("--list", action="store_true", help="list every fault, not only those that matter")


def main(options: argparse.Namespace, command: str) -> int:
    """Plant, count, print."""
    ops, device = selected(options)
    from validation.faults.catalogue import FAULTS
    from validation.faults.qualify import plant

    faults = [fault for op in ops for fault in FAULTS[op]()]
    results: list[Caught] = []
    with counted("planting faults", len(faults)) as advance:
        for fault in faults:
            results.append(plant(fault, device))
            advance()
    for op in ops:
        _show(op, [r for r in results if r.op == op], options.list)
    if options.json:
        summary = {op: _summary([r for r in results if r.op == op]) for op in ops}
        entries = {"summary": summary, "faults": [asdict(r) for r in results]}
        write_json(options.json, record(command, ops, device, entries))
    return 0 if all(r.caught for r in results) else 1


def _summary(results: list[Caught]) -> dict[str, float]:
    caught = [r for r in results if r.caught]
    smallest = min((r.factor for r in caught), default=0.0)
    return {"planted": len(results), "caught": len(caught), "smallest_factor": smallest}


def _show(op: str, results: list[Caught], everything: bool) -> None:
    """One line an operation; below it what passed and, with --list, every fault."""
    summary = _summary(results)
    print(f"{op}: {summary['caught']} of {summary['planted']} planted faults caught", end="")
    caught = sorted((r for r in results if r.caught), key=lambda r: r.factor)
    print(f"; closest: {caught[0].fault}, {caught[0].factor:.3g} times its limit" if caught else "")
    for result in results:
        if everything or not result.caught:
            state = f"{result.factor:12.4g} x limit" if result.caught else "NOT NOTICED"
            print(f"  {result.fault:26} {result.case.split(':')[2]:12} {result.profile:12} {state}", end="")
            print(f"  {result.statistic}: {result.where}" if result.caught else f"  {result.what}")
