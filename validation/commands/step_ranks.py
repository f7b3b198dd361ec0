"""``lockstep step --ranks N``: ranks as processes, bit for bit.

They exchange by gloo, or with ``--exchange mailboxes`` (the default on GPUs, and for the Triton kernels)
through the mailboxes of the specialised path.

What this catches and cannot catch: see ``validation.step.ranks`` and ``validation.stress.decode``.
"""

from __future__ import annotations

import argparse
import os
import time

from validation.errors import UserError

RANKS = (2, 4, 8)
DEFAULT_STEPS = 100
MAILBOXES = ("triton",)  # providers whose ranks exchange through mailboxes if nothing else is said


def main(options: argparse.Namespace, command: str) -> int:
    """Walk, compare, print; 0 if every rank held the same bits after every step."""
    names = options.provider or ["triton" if options.device == "cuda" else "torch"]
    if len(names) > 1:
        raise UserError(f"--ranks walks with one provider, not {len(names)}")
    by_itself = options.device == "cuda" or names[0] in MAILBOXES
    if options.exchange == "mailboxes" or (by_itself and options.exchange is None):
        from validation.commands import step_decode

        return step_decode.main(options, command, names[0])
    if options.device == "cuda":
        raise UserError("--exchange gloo: those ranks walk on a CPU; leave out --device cuda")
    if options.plugin:
        raise UserError(
            "--plugin: ranks through gloo know built-in providers alone; add --exchange mailboxes"
        )
    if options.json or options.junit or options.report_dir or options.seconds:
        unfit = "--json, --junit, --report-dir and --seconds"
        raise UserError(f"--ranks through gloo writes no such document: leave out {unfit}")
    if options.ranks not in RANKS:
        raise UserError(f"--ranks {options.ranks}: one of {', '.join(map(str, RANKS))}")
    from validation import providers, streams
    from validation.step.ranks import Job, run_ranks

    name = names[0]
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
