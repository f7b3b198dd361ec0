"""``lockstep step --ranks N``: ranks as processes, bit for bit.

What this catches and cannot catch: see ``validation.step.ranks``.
"""

from __future__ import annotations

import argparse
import os
import time

from validation.errors import UserError

RANKS = (2, 4, 8)
DEFAULT_STEPS = 100


def main(options: argparse.Namespace, command: str) -> int:
    """Walk, compare, print; 0 if every rank held the same bits after every step."""
    if options.ranks not in RANKS:
        raise UserError(f"--ranks {options.ranks}: one of {', '.join(map(str, RANKS))}")
    from validation import providers, streams
    from validation.step.ranks import Job, run_ranks

    name = (options.provider or ["torch"])[0]
    providers.load([name], options.plugin, "cpu")
    steps, began = options.steps or DEFAULT_STEPS, time.monotonic()
    found = run_ranks(
        Job(options.ranks, steps, name, options.seed), lambda line: streams.say(f"lockstep: {line}")
    )
    if os.environ.get("RANK", "0") == "0":
        for divergence in found:
            print(f"{divergence.words()}: {divergence.message}")
        state = "FAIL" if found else "PASS"
        print(f"{state}: {options.ranks} ranks by {name}, {steps} steps, in {time.monotonic() - began:.0f} s")
    return int(bool(found))
