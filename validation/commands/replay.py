"""``lockstep replay CASE``: one case again, with everything that is known about where it is wrong.

What this catches: the same as the run that printed the case, under the same limits (``plan.share``). What it
cannot reproduce: a fault that needs other cases before it in the same process.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from validation.commands.outcome import carry_out, check_outputs, common_arguments
from validation.errors import UserError
from validation.trace import shortened

if TYPE_CHECKING:
    from validation.execution.plan import Plan

FORM = "PROVIDER/OP:name=value,...:REGIME:SEED"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument(
        "case", metavar="CASE", help=f"{FORM}, as a finding prints it; @cuda behind it if it ran there"
    )
    common_arguments(parser)


def main(options: argparse.Namespace, command: str) -> int:
    """Run the one case and print its map."""
    check_outputs(options)
    from validation.report.detail import show

    return carry_out(_plan(options), options, command, show)


def _plan(options: argparse.Namespace) -> Plan:
    from validation import contracts, providers
    from validation.contracts.contract import Case
    from validation.execution.plan import Plan, Settings, Task
    from validation.execution.shapes import check_case
    from validation.run import choose_device

    provider, line, device = parse(options.case)
    case = Case.parse(line)
    check_case(case, contracts.contract_named(case.op))
    choose_device(device)
    providers.load([provider], options.plugin, device)
    implementation = providers.implementation(case.op, provider)
    if reason := implementation.missing(device) or implementation.refuses(case):
        raise UserError(f"provider '{provider}' does not serve this case: {reason}")
    settings = Settings(
        ops=(case.op,),
        providers=(provider,),
        plugins=tuple(options.plugin),
        device=device,
        mode=options.mode or "profile",
        case_timeout=options.case_timeout,
    )
    return Plan(settings, [Task(provider, case, controls=True)])


def parse(text: str) -> tuple[str, str, str]:
    """Provider, case line and device."""
    line, _, device = text.partition("@")
    provider, slash, case = line.partition("/")
    if not slash or not provider or device not in ("", "cpu", "cuda"):
        form = f"it reads {FORM}, with @cuda behind it on a GPU"
        raise UserError(f"'{shortened(text)}' is not a case to replay; {form}")
    return provider, case, device or "cpu"
