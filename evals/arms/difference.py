"""The static guard: two arms as configured may differ in the declared factor and in nothing else.

What this catches: a second difference (named with both values), a factor that nothing sets, arms that are
equal. What it cannot catch: a setting that the engine ignores or overrides; the guard at run time compares
facts.
"""

from __future__ import annotations

from evals.arms.checked import nearest
from evals.arms.config import NO_FACTOR, Arm, Comparison, arm_settings
from evals.arms.facts import PARALLEL, never_implied
from validation.errors import UserError

UNSET = "not set"


def differences(reference: Arm, candidate: Arm) -> dict[str, tuple[object, object]]:
    """Settings in which two arms differ, with both values ("not set" where there is none)."""
    a, b = arm_settings(reference), arm_settings(candidate)
    paths = [*a, *(path for path in b if path not in a)]
    return {p: (a.get(p, UNSET), b.get(p, UNSET)) for p in paths if a.get(p, UNSET) != b.get(p, UNSET)}


def covers(factor: str, path: str) -> bool:
    """Whether a setting is the factor, or lies in the table that is."""
    return path == factor or path.startswith(factor + ".")


def check_factor(comparison: Comparison, where: str) -> None:
    """Raises UserError if the arms differ in anything but the factor, or not at all."""
    factor = comparison.factor
    found = differences(*comparison.arms)
    if factor != NO_FACTOR:
        _known(comparison, where)
    for path, (a, b) in found.items():
        if not covers(factor, path):
            declared = "none" if factor == NO_FACTOR else f"'{factor}'"
            raise UserError(
                f"{where}: the arms differ in {path} (reference {_say(a)}, candidate {_say(b)}), but "
                f"the factor declared is {declared}; move {path} to [common] or declare it as the factor"
            )
    if not found and factor not in (NO_FACTOR, "server.url"):
        raise UserError(
            f"{where}: the arms do not differ in the factor '{factor}'; give them different values, "
            'or set factor = "none" to compare an arm with itself'
        )
    _implied(comparison, where)


def _known(comparison: Comparison, where: str) -> None:
    paths = list({path: None for arm in comparison.arms for path in arm_settings(arm)})
    if comparison.factor == "server.url":
        a, b = (arm.server.url for arm in comparison.arms)
        if a == b:
            raise UserError(f"{where}: the factor is server.url, but both arms attach to {a or 'no server'}")
    elif not any(covers(comparison.factor, path) for path in paths):
        raise UserError(
            f"{where}: the factor '{comparison.factor}' is not a setting of either arm"
            f"{nearest(comparison.factor, paths)}"
        )


def _implied(comparison: Comparison, where: str) -> None:
    for name in comparison.implies:
        # TP 8 against TP 16 may be what is compared; the number of devices then follows, as declared.
        split = comparison.factor.endswith(PARALLEL) and (name == "device_count" or name in PARALLEL)
        if never_implied(name) and not split:
            raise UserError(
                f"{where}: implies may not contain '{name}': arms that differ in it are not "
                "comparable, whatever the factor is"
            )


def _say(value: object) -> str:
    return UNSET if value == UNSET else repr(value)
