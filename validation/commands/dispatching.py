"""``lockstep kernels --dispatch``: the dispatch tables of the providers that declare one.

What this catches: nothing; it prints what every case's record of launches is compared with.
"""

from __future__ import annotations

import argparse
import sys

from validation.errors import UserError

EVERY = 1 << 16  # from here on a route's number of rows means "any"
GENEROUS = 240  # columns in a file or a pipe


def main(options: argparse.Namespace) -> int:
    """One table for all operations and providers selected."""
    from rich import box
    from rich.table import Table

    from validation import contracts, providers
    from validation.report.terminal import Screen, print_table
    from validation.run import choose_device

    ops = [contracts.contract_named(op).name for op in options.op] or list(contracts.contracts())
    device = choose_device(options.device)
    loaded = providers.load(options.provider, options.plugin, device)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("operation", "provider", "up to rows", "when", "kernels", "settings"):
        table.add_column(name)
    for op in ops:
        for provider in loaded.providers:
            if op not in providers.implemented_by(provider):
                continue
            for route in providers.implementation(op, provider).table:
                rows = "any" if route.rows >= EVERY else str(route.rows)
                settings = ", ".join(f"{k} {v}" for k, v in route.settings.items())
                table.add_row(op, provider, rows, route.when, " ".join(route.kernels), settings)
    if not table.rows:
        raise UserError("no selected provider declares a dispatch table")
    print_table(Screen(file=sys.stdout, width=GENEROUS, highlight=False), table)
    return 0
