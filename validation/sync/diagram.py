"""A violating run as a text sequence diagram: one lifeline per rank, one line per event.

Catches nothing. What it cannot show: the events of ranks that are not needed for the violation.
"""

from __future__ import annotations

from collections.abc import Sequence

from validation.sync.events import Kind, Program
from validation.sync.minimal import steps
from validation.sync.state import Violation

WIDTH = 9  # columns of one lifeline
LONGEST = 20  # events drawn; of a longer run the last ones


def sequence(program: Program, trace: Sequence[int], violation: Violation) -> str:
    """The diagram: ``*`` acts, ``o`` receives. The last line is the violation."""
    lines = ["".join(f"rank {rank}".ljust(WIDTH) for rank in range(program.ranks))]
    drawn = steps(program, trace)
    if len(drawn) > LONGEST:
        lines.append(f"{_waiting(program)}     {len(drawn) - LONGEST} earlier events, all needed")
    for number, step in list(enumerate(drawn, 1))[-LONGEST:]:
        lines.append(f"{_lifelines(program, step)}{number:3}  {_words(program, step)}")
    return "\n".join([*lines, f"{violation.invariant}: {violation.message}"])


def _waiting(program: Program) -> str:
    return ":".ljust(WIDTH) * program.ranks


def _lifelines(program: Program, step: list[int]) -> str:
    """The row of lifelines: an arrow from the rank that acts to those whose words change."""
    source = program.events[step[0]].rank
    targets = {program.words[w].rank for i in step for w in program.events[i].words}
    row = [" "] * (WIDTH * program.ranks)
    reached = {source, *targets}
    for column in range(min(reached) * WIDTH, max(reached) * WIDTH):
        row[column] = "-"
    for rank in range(program.ranks):
        row[rank * WIDTH] = "o" if rank in targets else "|"
    for rank in targets:
        if rank > source:
            row[rank * WIDTH - 1] = ">"
        elif rank < source:
            row[rank * WIDTH + 1] = "<"
    row[source * WIDTH] = "*"
    return "".join(row)


def _words(program: Program, step: list[int]) -> str:
    """What happens, in words: where, what, which parity."""
    event = program.events[step[0]]
    word = program.words[event.words[0]]
    parity = f" (parity {word.parity})" if word.exchange not in ("embedding", "framework") else ""
    if event.kind is Kind.STORE:
        return f"{event.label}: {program.names[event.tags[0]]} arrives{parity}"
    verb = "re-arms" if event.kind is Kind.REARM else ("polls" if event.guard else "reads")
    return f"{event.label}: {verb} {event.exchange}{parity}"
