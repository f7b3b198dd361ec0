"""``lockstep sensitivity``: what the forced comparison finds, and how often it finds something in nothing.

Exit status 0 if the false-alarm rate is compatible with its level and every fault with a promise is found
within it; 1 otherwise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.errors import UserError

if TYPE_CHECKING:
    from evals.engines.in_process import InProcessEngine
    from evals.sensitivity.measure import Rates, Size
    from evals.sensitivity.planted import Planted


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="a transformers model (default: SmolLM2-135M)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--dtype", default="bfloat16", metavar="NAME", help="default: bfloat16")
    parser.add_argument(
        "--rows", type=int, metavar="N", help="sequences that decode together (cpu: 8, cuda: 2048)"
    )
    parser.add_argument(
        "--tokens", type=int, default=3000, metavar="N", help="tokens of a run (default: 3000)"
    )
    parser.add_argument("--sets", type=int, default=50, metavar="N", help="sets of tokens (default: 50)")
    parser.add_argument(
        "--groups", type=int, default=4, metavar="N", help="runs of an arm with itself on each set"
    )
    parser.add_argument("--fault-sets", type=int, default=10, metavar="N", help="sets a fault is tried on")
    parser.add_argument(
        "--layers", type=int, nargs="*", metavar="L", help="value caches to plant in (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")


def main(options: argparse.Namespace, command: str) -> int:
    """Measure, print, write."""
    from evals.sensitivity.measure import Size, with_fault, with_itself
    from evals.sensitivity.walks import sample
    from validation.commands.measured import counted, write_json
    from validation.report.document import check_writable

    if options.json:
        check_writable(options.json, "--json")
    size = Size(options.tokens, options.sets, options.groups)
    check(options, size)
    engine, prompts = prepared(options, size)
    faults = wanted(len(engine.model.model.layers), options.layers)
    few = min(options.fault_sets, size.sets)
    total = size.tokens * (size.sets * (1 + 4 * size.groups) + few * 2 * len(faults))
    with counted("tokens", int(total * 16 / 15)) as advance:
        sets = sample(engine, prompts, size.tokens, size.sets, options.seed, advance)
        rates, reference = with_itself(engine, sets, size, options.seed, advance)
        results = [
            with_fault(engine, fault, sets[:few], reference[:few], size, options.seed, advance)
            for fault in faults
        ]
    passed = show(rates, results, size)
    if options.json:
        write_json(options.json, record(command, engine.facts(), rates, results, passed))
    return 0 if passed else 1


def check(options: argparse.Namespace, size: Size) -> None:
    """Raises UserError for numbers that make no measurement."""
    from evals.engines.in_process import SHIFTS

    if not size.checkpoints or min(size.sets, size.groups, options.fault_sets) < 1:
        raise UserError("--tokens must be at least 100, --sets, --groups and --fault-sets at least 1")
    if size.replicates > SHIFTS:
        raise UserError(
            f"--groups must be at most {(SHIFTS - 2) // 4}: an engine has {SHIFTS} different replicates"
        )
    if options.rows is not None and options.rows < 1:
        raise UserError("--rows must be at least 1")


def prepared(options: argparse.Namespace, size: Size) -> tuple[InProcessEngine, list[tuple[int, ...]]]:
    """The engine with a cache as long as the walks need, and their prompts."""
    from dataclasses import replace

    from evals.engines.in_process import SHIFTS, InProcessEngine, Options
    from evals.engines.smollm2 import model_folder
    from evals.sensitivity.prompts import prompts
    from evals.sensitivity.walks import REPLY, prompts_for

    rows = options.rows or (2048 if options.device == "cuda" else 8)
    like = Options("eager", options.dtype, options.device, rows)
    engine = InProcessEngine(options.model or model_folder(), like)
    made = prompts(engine.tokenize, prompts_for(size.tokens, size.sets))
    longest = max(len(ids) for ids in made)
    engine.options = replace(like, lengths=(SHIFTS - 1 + longest + REPLY,))
    return engine, made


def wanted(layers: int, chosen: list[int] | None) -> list[Planted]:
    """Faults that touch no single layer, and those of the layers ``chosen`` (None: of all)."""
    from evals.sensitivity.planted import catalogue

    if chosen and not all(0 <= layer < layers for layer in chosen):
        raise UserError(f"--layers: the model has the layers 0 to {layers - 1}")
    return [
        fault for fault in catalogue(layers) if chosen is None or fault.layer is None or fault.layer in chosen
    ]


def show(rates: Rates, results: list[Rates], size: Size) -> bool:
    """Print a table; whether all is as promised."""
    from evals.sensitivity.measure import LEVEL
    from validation.variance.intervals import clopper_pearson

    print(
        f"{'share of runs that find a difference after':<44}"
        + "".join(f"{n:>8,}" for n in size.checkpoints)
        + "  tokens"
    )
    for each in [rates, *results]:
        shares = "".join(f"{each.alarms[n] / each.runs:>8.1%}" for n in size.checkpoints)
        print(f"{each.name:<44}{shares}  of {each.runs} runs, {each.rms:.4f} nats rms")
    low = [clopper_pearson(rates.alarms[n], rates.runs)[0] for n in size.checkpoints]
    limit = max(rates.limit(n) for n in size.checkpoints)
    print(f"false alarms at a level of {LEVEL:.0%}: upper limit {limit:.1%} in {rates.runs} runs")
    missed = [each for each in results if each.missed(size.tokens)]
    for each in missed:
        print(f"not found within {each.within:,} tokens: {each.name}")
    return max(low) <= LEVEL and not missed


def record(
    command: str, facts: dict[str, Any], rates: Rates, results: list[Rates], passed: bool
) -> dict[str, Any]:
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
