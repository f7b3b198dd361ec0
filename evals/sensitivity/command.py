"""``lockstep sensitivity``: what the forced comparison finds, and how often it finds something in nothing.

Exit status 0 if the false-alarm rate is compatible with its level and every fault with a promise is found within
it; 1 otherwise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.errors import UserError

if TYPE_CHECKING:
    from evals.sensitivity.measure import Rates, Size


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--model", type=Path, metavar="DIR", help="a transformers model (default: SmolLM2-135M)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--dtype", default="bfloat16", metavar="NAME", help="default: bfloat16")
    parser.add_argument("--rows", type=int, default=32, metavar="N", help="sequences that decode together")
    parser.add_argument("--tokens", type=int, default=3000, metavar="N", help="tokens of a run (default: 3000)")
    parser.add_argument("--sets", type=int, default=50, metavar="N", help="sets of tokens (default: 50)")
    parser.add_argument("--groups", type=int, default=4, metavar="N", help="runs of an arm with itself on each set")
    parser.add_argument("--fault-sets", type=int, default=10, metavar="N", help="sets a fault is tried on")
    parser.add_argument("--layers", type=int, nargs="*", metavar="L", help="value caches to plant in (default: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")


def main(options: argparse.Namespace, command: str) -> int:
    """Measure, print, write."""
    from evals.engines.in_process import InProcessEngine, Options
    from evals.engines.smollm2 import model_folder
    from evals.sensitivity.measure import Size, walks_of, with_fault, with_itself
    from evals.sensitivity.planted import catalogue
    from validation.commands.measured import counted, write_json
    from validation.report.document import check_writable

    if options.json:
        check_writable(options.json, "--json")
    size = Size(options.tokens, options.sets, options.groups)
    if not size.checkpoints or size.sets < 1 or size.groups < 1:
        raise UserError("--tokens must be at least 100, --sets and --groups at least 1")
    like = Options("eager", options.dtype, options.device, options.rows, (256,))
    engine = InProcessEngine(options.model or model_folder(), like)
    faults = _wanted(catalogue(len(engine.model.model.layers)), options.layers)
    few = min(options.fault_sets, size.sets)
    total = size.tokens * (size.sets * (1 + 4 * size.groups) + few * 2 * len(faults))
    with counted("tokens", total) as advance:
        sets = walks_of(engine, size, options.seed, advance)
        rates, reference = with_itself(engine, sets, size, options.seed, advance)
        results = [
            with_fault(engine, fault, sets[:few], reference[:few], size, options.seed, advance) for fault in faults
        ]
    passed = show(rates, results, size)
    if options.json:
        write_json(options.json, record(command, engine.facts(), rates, results, passed))
    return 0 if passed else 1


def _wanted(faults: list[Any], layers: list[int] | None) -> list[Any]:
    if layers is None:
        return faults
    names = tuple(f"layer {layer}" for layer in layers)
    return [fault for fault in faults if "layer" not in fault.name or fault.name.endswith(names)]


def show(rates: Rates, results: list[Rates], size: Size) -> bool:
    """Print a table; whether all is as promised."""
    from evals.sensitivity.measure import LEVEL
    from validation.variance.intervals import clopper_pearson

    print(f"{'share of runs that find a difference after':<44}" + "".join(f"{n:>8,}" for n in size.checkpoints) + "  tokens")
    for each in [rates, *results]:
        shares = "".join(f"{each.alarms[n] / each.runs:>8.1%}" for n in size.checkpoints)
        print(f"{each.name:<44}{shares}  of {each.runs} runs, {each.rms:.4f} nats rms")
    low = [clopper_pearson(rates.alarms[n], rates.runs)[0] for n in size.checkpoints]
    limit = max(rates.limit(n) for n in size.checkpoints)
    print(f"false alarms at a level of {LEVEL:.0%}: upper limit {limit:.1%} in {rates.runs} runs")
    missed = [each for each in results if each.within and not (each.found_within and each.found_within <= each.within)]
    for each in missed:
        print(f"not found within {each.within:,} tokens: {each.name}")
    return max(low) <= LEVEL and not missed


def record(command: str, facts: dict[str, Any], rates: Rates, results: list[Rates], passed: bool) -> dict[str, Any]:
    """The figures with where they come from."""
    import datetime

    from validation.execution.environment import ROOT, commit

    def plain(each: Rates) -> dict[str, Any]:
        limits = {n: each.limit(n) for n in each.alarms}
        return {
            "name": each.name,
            "runs": each.runs,
            "alarms": each.alarms,
            "upper_limits": limits,
            "found_within": each.found_within,
            "rms_nats": each.rms,
        }

    return {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **commit(ROOT),
        "facts": facts,
        "passed": passed,
        "with_itself": plain(rates),
        "faults": [plain(each) for each in results],
    }
