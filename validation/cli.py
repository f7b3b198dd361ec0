"""The command ``lockstep``.

Exit status: 0 pass, 1 fail, 2 undecided, 3 error (bad input, missing requirement, infrastructure), 130 when
interrupted (what was done is written and can be resumed), 141 when the reader of
stdout goes away before there is a verdict.

What this catches: every mistake a user can make ends in one line on stderr. What it cannot catch: mistakes
in Lockstep itself; they end in a traceback and exit status 3.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from validation import streams
from validation.errors import UserError

ERROR, INTERRUPTED, NO_READER = 3, 130, 141
# What an operating system refuses for want of room: never a mistake of Lockstep.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
NO_FOLDER = "No usable temporary directory"  # what tempfile says on a full disk


@dataclass(frozen=True)
class Command:
    """One subcommand; ``module`` has ``arguments(parser)`` and ``main(options, command)``."""

    name: str
    summary: str
    module: str


# A new subcommand is one line here and one module.
COMMANDS = (
    Command("kernels", "judge the kernels of single operations", "validation.commands.kernels"),
    Command("step", "judge whole decode steps against the vanilla step", "validation.commands.step"),
    Command("dispatch", "compare a plan() with the truth table of steps", "validation.commands.dispatch"),
    Command("sync", "prove mailbox protocols over all interleavings", "validation.commands.sync"),
    Command("sanitize", "run compute-sanitizer over the kernels", "validation.commands.sanitize"),
    Command("stress", "exchange between real ranks under skew", "validation.commands.stress"),
    Command("evals", "compare two backends end to end on walked tokens and tasks", "evals.command"),
    Command("replay", "run one case again and map where it is wrong", "validation.commands.replay"),
    Command("qualify", "plant known faults and count those noticed", "validation.commands.qualify"),
    Command("calibrate", "run honest variants and measure their spread", "validation.commands.calibrate"),
    Command("variance", "check the statistics, plan a comparison", "validation.commands.variance"),
    Command(
        "sensitivity",
        "plant faults in a model and count tokens until they are found",
        "evals.sensitivity.command",
    ),
    Command(
        "selfcheck", "compare an arm with itself many times and count false alarms", "evals.selfcheck.command"
    ),
)


class Parser(argparse.ArgumentParser):
    """argparse, but a wrong command line is an error (3), since 2 means undecided."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()  # while a reader that went away can still be dealt with
        super().exit(status, message)


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="lockstep",
        description="Judge specialised decode kernels by their predicted rounding noise.",
        epilog="exit status: 0 pass, 1 fail, 2 undecided, 3 error, 130 interrupted",
    )
    commands = top.add_subparsers(metavar="COMMAND", dest="name")
    for command in COMMANDS:
        module = importlib.import_module(command.module)
        sub = commands.add_parser(
            command.name, help=command.summary, description=f"{command.summary.capitalize()}."
        )
        module.arguments(sub)
        sub.set_defaults(main=module.main)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    streams.open_closed()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        top = parser()
        options = top.parse_args(words)
        if not options.name:
            top.print_help(sys.stderr)
            return ERROR
        with _terminable():
            status = options.main(options, shlex.join(["lockstep", *words]))
        sys.stdout.flush()
    except UserError as error:
        streams.say(f"lockstep: {' '.join(str(error).split())}")
        return ERROR
    except KeyboardInterrupt:
        streams.say("lockstep: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        streams.silence(sys.stdout)  # no second complaint at exit
        return NO_READER
    except Exception as error:
        return _unexpected(error)
    return int(status)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does (CI cancels with it). Only the first counts: ``timeout`` sends
    two at once, and the second must not cost the report that is then written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _unexpected(error: Exception) -> int:
    """A machine without room is said in one line; the rest is a mistake in Lockstep itself."""
    if isinstance(error, OSError) and (error.errno in NO_ROOM or NO_FOLDER in str(error)):
        streams.silence(sys.stdout)  # it may be what could not be written
        where = f"{error.filename}: " if error.filename else ""
        streams.say(f"lockstep: {where}{str(error.strerror).lower()}; make room and run again")
        return ERROR
    traceback.print_exc()
    streams.say("lockstep: this is a mistake in Lockstep itself, please report it")
    return ERROR


if __name__ == "__main__":
    sys.exit(main())
