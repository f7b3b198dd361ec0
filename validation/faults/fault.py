"""One planted fault: a faulty kernel and the one case in which it must be noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from validation.contracts.contract import Case
from validation.providers import Implementation


@dataclass(frozen=True)
class Fault:
    """``profile`` is the profile it is judged by; ``kind`` the id of its kind (``F07``) in the catalogue of
    public reports, which the case's regime lists."""

    name: str
    what: str
    case: Case
    profile: str
    function: Callable[[Any], None]
    kind: str = ""

    def implementation(self) -> Implementation:
        return Implementation(self.case.op, f"planted {self.name}", self.profile, self.function)
