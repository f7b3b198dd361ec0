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
    if options.json:  # before the terminal, whose reader may be gone
        summary = {op: _summary([r for r in results if r.op == op]) for op in ops}
        entries = {"summary": summary, "faults": [asdict(r) for r in results]}
        write_json(options.json, record(command, ops, device, entries))
    for op in ops:
        _show(op, [r for r in results if r.op == op], options.list)
    return 0 if all(r.caught for r in results) else 1


def _closest(results: list[Caught]) -> Caught | None:
    """The caught fault that came nearest to passing, among those that a limit had to tell from noise."""
    return min((r for r in results if r.caught and not r.counted), key=lambda r: r.factor, default=None)


def _summary(results: list[Caught]) -> dict[str, object]:
    closest = _closest(results)
    return {
        "planted": len(results),
        "caught": sum(r.caught for r in results),
        "closest": closest.fault if closest else None,
        "smallest_factor": closest.factor if closest else None,
    }


def _show(op: str, results: list[Caught], everything: bool) -> None:
    """One line an operation; below it what passed and, with --list, every fault."""
    closest = _closest(results)
    print(f"{op}: {sum(r.caught for r in results)} of {len(results)} planted faults caught", end="")
    print(f"; closest call: {closest.fault}, {closest.factor:.3g} times its limit" if closest else "")
    for result in results:
        if everything or not result.caught:
            unit = "wrong" if result.counted else "x limit"
            state = f"{result.factor:12,.4g} {unit}" if result.caught else "NOT NOTICED"
            print(f"  {result.fault:26} {result.case.split(':')[2]:12} {result.profile:12} {state}", end="")
            print(f"  {result.statistic}: {result.where}" if result.caught else f"  {result.what}")
