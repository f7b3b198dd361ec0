"""``lockstep step --faults``: plant every catalogued fault of whole steps and say which place is blamed.

Exit status 0 if every fault is found and at least 95 of 100 blame the right place. What this cannot catch:
faults nobody planted.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from validation.commands.measured import counted, record, write_json

NAMED = 0.95  # the least part of the faults whose operation or check must be named rightly


def main(options: argparse.Namespace, command: str) -> int:
    """Plant, walk to the first divergence, print."""
    import torch

    from validation import providers
    from validation.step.executor import provider
    from validation.step.faults import step_faults
    from validation.step.planting import plant

    torch.set_num_threads(1)
    name = (options.provider or ["torch"])[0]
    providers.load([name], options.plugin, "cpu")
    right, faults, results = provider(name), step_faults(), []
    began = time.monotonic()
    with counted("planting faults", len(faults)) as advance:
        for fault in faults:
            results.append(plant(fault, right, options.seed))
            advance()
    for r in results:
        print(f"{'found ' if r.found else 'MISSED'} {r.kind} {r.fault:<28} {r.first or '-'}")
    found, named = sum(r.found for r in results), sum(r.named for r in results)
    seconds = time.monotonic() - began
    print(f"{found} of {len(results)} faults found, {named} blame the right place, in {seconds:.0f} s")
    if options.json:
        entries = {
            "found": found,
            "named": named,
            "planted": len(results),
            "faults": [asdict(r) for r in results],
        }
        write_json(options.json, record(command, ["step"], "cpu", entries))
    return int(not (found == len(results) and named >= NAMED * len(results)))
