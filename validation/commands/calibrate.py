"""``lockstep calibrate``: run honest variants, count false alarms, measure the inflation each statistic
needs.

Exit status 0 if no honest variant raises an alarm with the stored factors in force and no factor above 4 is
needed; 1 otherwise. ``--write`` stores the needed factors in golden/calibration (then run it once more with
another seed: the count of false alarms is only evidence on variants the factors were not taken from).
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation import streams
from validation.commands.measured import counted, measured_arguments, record, selected, write_json
from validation.errors import UserError

if TYPE_CHECKING:
    from validation.faults.calibrate import Spread
    from validation.providers import Implementation

# Head room of a stored factor: the largest of a finite sample is not the largest there is.
MARGIN = 1.15


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    measured_arguments(parser)
    parser.add_argument("--cases", type=int, default=1000, metavar="N", help="honest variants an operation")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="first seed of the variants")
    parser.add_argument(
        "--provider", metavar="NAME", help="cases of this provider, taken to be honest, instead of variants"
    )
    parser.add_argument("--write", action="store_true", help="store the needed factors in golden/calibration")


def main(options: argparse.Namespace, command: str) -> int:
    """Run, print, store."""
    if options.cases < 1:
        raise UserError(f"--cases must be at least 1, not {options.cases}")
    if options.provider and options.write:
        raise UserError("--write stores what honest variants need; leave out --provider")
    ops, device = selected(options)
    kernels = _kernels(options.provider, ops, device)
    from validation.faults.calibrate import spread

    results: list[Spread] = []
    stopped = False
    with counted("honest variants", len(kernels) * options.cases) as advance:
        try:
            for op, kernel in kernels.items():
                results.append(spread(op, options.cases, options.seed, device, advance, kernel))
        except KeyboardInterrupt:  # it costs the operation that was under way, not those before it
            stopped = True
    entries = {r.op: _entry(r, options.seed) for r in results}
    document = record(command, [r.op for r in results], device, entries)
    if options.json:  # before the terminal, whose reader may be gone
        write_json(options.json, document)
    for result in results:
        streams.try_to(partial(_show, result))
    if options.write:
        for op, entry in entries.items():
            _store(op, device, entry, document)
    alarms = sum(len(r.alarms) for r in results)
    print(f"{alarms} false alarms in {sum(r.variants for r in results)} honest variants")
    if stopped:
        raise KeyboardInterrupt
    return 1 if alarms and not options.write else 0


def _kernels(provider: str | None, ops: list[str], device: str) -> dict[str, Implementation | None]:
    """The provider's implementation of every operation it has; without provider None, a drawn variant."""
    if not provider:
        return dict.fromkeys(ops)
    from validation.providers import CONTROLS, implementation, implemented_by, load

    if provider in CONTROLS:
        raise UserError(f"'{provider}' is a negative control: it is wrong on purpose, and no honest provider")
    load([provider], [], device)
    found: dict[str, Implementation | None] = {
        op: implementation(op, provider) for op in ops if op in implemented_by(provider)
    }
    if not found:
        raise UserError(f"provider '{provider}' implements none of {', '.join(ops)}")
    return found


def _entry(result: Spread, seed: int) -> dict[str, Any]:
    return {
        "variants": result.variants,
        "unserved_cases": result.unserved,
        "seed": seed,
        "false_alarms": len(result.alarms),
        "first_alarms": result.alarms[:5],
        "needed_factors": _rounded(result.needed),
        "largest_of_limit": _rounded(result.largest),
        "mean_square": {name: round(value, 4) for name, value in result.mean_squares().items()},
    }


def _rounded(table: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {output: {k: round(v, 3) for k, v in row.items()} for output, row in table.items()}


def _show(result: Spread) -> None:
    print(f"{result.op}: {len(result.alarms)} false alarms in {result.variants} honest variants")
    if result.unserved:
        print(f"  {result.unserved} cases of the quick tier are not served: no variants of them")
    for output, factors in result.needed.items():
        square = result.mean_squares().get(output)
        wide = ", ".join(f"{name} {factor:.2f}" for name, factor in factors.items() if factor > 1)
        largest = max(result.largest[output].values())
        # Where every element is known to the bit but for jumps, there is no square to measure.
        measured = "no smooth noise" if square is None else f"mean square {square:.2f}"
        print(f"  {output:8} {measured}, largest {largest:.2f} of its limit", end="")
        print(f", needs {wide}" if wide else "")
    for alarm in result.alarms[:3]:
        print(f"  false alarm: {alarm}")


def _store(op: str, device: str, entry: dict[str, Any], document: dict[str, Any]) -> None:
    """Merge the factors of one operation and device into its record, with their provenance."""
    import golden
    from validation.calibration import LARGEST_FACTOR, SCHEMA, parse

    folder = Path(golden.__file__).parent / "calibration"
    path = folder / f"{op}.json"
    stored: dict[str, Any] = {"schema": SCHEMA, "devices": {}}
    if path.is_file():
        parse(path.read_text(encoding="utf-8"), str(path))
        stored = json.loads(path.read_text(encoding="utf-8"))
    factors = {
        output: {name: round(factor * MARGIN, 3) for name, factor in row.items() if factor > 1}
        for output, row in entry["needed_factors"].items()
    }
    beyond = [f"{o} {s} {f}" for o, row in factors.items() for s, f in row.items() if f > LARGEST_FACTOR]
    if beyond:
        raise UserError(f"{op} needs an inflation above {LARGEST_FACTOR:g} ({beyond[0]}): refine the model")
    stored["devices"][device] = {
        "factors": factors,
        "variants": entry["variants"],
        "seed": entry["seed"],
        "command": document["command"],
        "environment": document["environment"],
    }
    folder.mkdir(exist_ok=True)
    write_json(path, stored)
