"""Known failures: a TOML file of findings that are expected, each with an issue and an expiry date.

    [[known]]
    provider = "fla"
    op = "kda_decode"
    case = "kda_decode:*:slow_decay:*"        # a glob over the case line; default *
    statistic = "excess"                      # optional
    issue = "https://example.org/issues/7"
    expires = 2027-03-31

What this catches: entries without issue or date, with an operation or a statistic that does not exist,
expired entries, entries whose failure is gone (an unexpected pass is as loud as an unexpected failure); an
unknown provider is said, since it may belong to a plug-in that is not loaded. What it cannot catch: a new
fault in a case that is already excused by an entry without a statistic.
"""

from __future__ import annotations

import datetime
import fnmatch
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation import contracts, providers
from validation.errors import UserError
from validation.report.document import reason
from validation.report.schema import STATISTICS, CaseResult

DEFAULT = Path("known_failures.toml")
MANDATORY = ("provider", "op", "issue", "expires")
OPTIONAL = ("case", "statistic")


@dataclass(frozen=True)
class Entry:
    """One known failure."""

    provider: str
    op: str
    issue: str
    expires: datetime.date
    case: str = "*"
    statistic: str = ""

    def matches(self, result: CaseResult) -> bool:
        """Does this entry speak of that case?"""
        same = (self.provider, self.op) == (result.provider, result.op)
        return same and fnmatch.fnmatchcase(result.case, self.case)

    def describe(self) -> str:
        statistic = f" ({self.statistic})" if self.statistic else ""
        return f"{self.provider}/{self.op} {self.case}{statistic}"


def load(path: Path | None) -> list[Entry]:
    """Entries of the given ledger, or of the default one if it exists."""
    if path is None:
        if not DEFAULT.exists():
            return []
        path = DEFAULT
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the ledger {path}: {reason(error)}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the ledger {path} is no TOML: {error}") from None
    entries = data.pop("known", [])
    if data or not isinstance(entries, list):
        raise UserError(
            f"the ledger {path} may hold [[known]] tables only; found '{next(iter(data), 'known')}'"
        )
    return [_entry(f"entry {i} of the ledger {path}", item) for i, item in enumerate(entries, start=1)]


def _entry(name: str, item: Any) -> Entry:
    if not isinstance(item, dict):
        raise UserError(f"{name} is no table; write [[known]] above it")
    for key in MANDATORY:
        if not item.get(key):
            raise UserError(f"{name} has no '{key}'; mandatory: {', '.join(MANDATORY)}")
    for key, value in item.items():
        if key not in MANDATORY + OPTIONAL:
            raise UserError(f"{name} has an unknown key '{key}'; known: {', '.join(MANDATORY + OPTIONAL)}")
        if key != "expires" and not isinstance(value, str):
            raise UserError(f"{name}: '{key}' must be a string")
    if "://" not in item["issue"]:
        raise UserError(f"{name}: 'issue' must be a link, not '{item['issue']}'")
    entry = Entry(**{**item, "expires": _date(name, item["expires"])})
    for key, known in (("op", tuple(contracts.contracts())), ("statistic", STATISTICS)):
        if item.get(key, "") not in ("", *known):
            raise UserError(f"{name}: unknown {key} '{item[key]}'; known: {', '.join(known)}")
    return entry


def _date(name: str, value: Any) -> datetime.date:
    if isinstance(value, datetime.datetime):
        return value.date()
    if isinstance(value, datetime.date):
        return value
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise UserError(f"{name}: 'expires' must be a date like 2027-03-31, not '{value}'") from None


def apply(
    entries: Sequence[Entry], results: Sequence[CaseResult], today: datetime.date, *, complete: bool = True
) -> list[dict[str, Any]]:
    """Mark the findings that entries excuse (``Finding.known``); one record per entry with its state.

    States: ``known`` (it excuses something), ``fixed`` (its cases ran and none failed that way), ``expired``,
    ``unmatched`` (nothing of it ran). An expired entry excuses nothing. Only a complete run can find an
    entry fixed.
    """
    return [_record(entry, *_applied(entry, results, today, complete)) for entry in entries]


def _applied(
    entry: Entry, results: Sequence[CaseResult], today: datetime.date, complete: bool
) -> tuple[str, str]:
    if entry.expires < today:
        return (
            "expired",
            f"expired on {entry.expires}: fix it, or renew the entry with its issue {entry.issue}",
        )
    ran = [r for r in results if entry.matches(r) and r.verdict in ("pass", "fail")]
    excused = [f for r in ran for f in r.findings if entry.statistic in ("", f.statistic)]
    for finding in excused:
        finding.known = entry.issue
    if excused:
        return "known", f"excuses {len(excused)} findings until {entry.expires}: {entry.issue}"
    if ran and complete:
        return "fixed", f"fixed: {len(ran)} cases ran and none failed; remove the entry or narrow its glob"
    known = (*providers.known_providers(), *providers.CONTROLS)
    if entry.provider not in known:
        names = ", ".join(known)
        return "unmatched", f"no provider '{entry.provider}' is known here; known: {names}"
    return "unmatched", "nothing that ran matches it"


def _record(entry: Entry, state: str, message: str) -> dict[str, Any]:
    return {
        "entry": entry.describe(),
        "issue": entry.issue,
        "expires": entry.expires.isoformat(),
        "state": state,
        "message": message,
    }


def violated(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records that fail the run: expired entries and unexpected passes."""
    return [record for record in records if record["state"] in ("expired", "fixed")]
