"""What a run will do: the cases of the selected operations and providers, and each one's share of the budget.

What this catches: selections that name something unknown or leave nothing to run. What it cannot catch:
anything about results.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from validation import contracts, providers
from validation.contracts.contract import Case
from validation.errors import UserError

BUDGET = 1e-3  # probability that a whole run of right providers has any false alarm
COUNTED_AS = 10_000  # cases; see ``share``
CONTROL_CASES = 2  # cases of each operation on which a provider-level control must be flagged
JUDGE = "validation.judge:judge_case"


@dataclass(frozen=True)
class Settings:
    """The selection and everything else that decides what a run computes."""

    ops: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    tier: str = "quick"
    device: str = "cpu"
    seed: int = 0
    mode: str = "profile"
    budget: float = BUDGET
    case_timeout: float | None = None
    judge: str = field(default_factory=lambda: JUDGE)


@dataclass(frozen=True)
class Task:
    """One case of one provider. ``role`` "control": a provider that must be flagged."""

    provider: str
    case: Case
    controls: bool = False
    role: str = "candidate"

    @property
    def key(self) -> str:
        """What is replayed: PROVIDER/OP:shape:REGIME:SEED."""
        return f"{self.provider}/{self.case.line()}"


@dataclass
class Plan:
    """Tasks in the order of the decode step, with what was left out and why: ``skipped`` by PROVIDER or
    PROVIDER/OP; ``unserved`` says of which operations nothing at all runs."""

    settings: Settings
    tasks: list[Task]
    skipped: dict[str, str] = field(default_factory=dict)
    unserved: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return share(self.settings.budget, sum(task.role == "candidate" for task in self.tasks))


def share(budget: float, cases: int) -> float:
    """One case's part of the family-wise false-alarm budget.

    A run counts as at least 10,000 cases, so that limits do not depend on what was selected: a case that is
    replayed alone, or run with ``--op``, meets the limits of the whole run. Only a run of more cases than
    that has tighter shares (that is, wider limits) than the replay of one of its cases.
    """
    return budget / max(COUNTED_AS, cases)


def make_plan(settings: Settings) -> Plan:
    """Load the providers and list the tasks; the returned settings name every operation and provider."""
    ops = settings.ops or tuple(contracts.contracts())
    for op in ops:
        contracts.contract_named(op)
    for name in settings.providers:
        if name in providers.CONTROLS:
            raise UserError(f"'{name}' is a negative control: it runs by itself, where it must be flagged")
    loaded = providers.load(settings.providers, settings.plugins, settings.device)
    settings = replace(settings, ops=tuple(dict.fromkeys(ops)), providers=tuple(loaded.providers))
    plan = Plan(settings, [], dict(loaded.skipped))
    for op in settings.ops:
        for provider in settings.providers:
            plan.tasks += _tasks(plan, op, provider)
    if not plan.tasks:
        raise UserError(f"nothing to run: {_why_empty(plan)}")
    plan.unserved = unserved(plan)
    plan.tasks += _control_tasks(plan)
    return plan


def _tasks(plan: Plan, op: str, provider: str) -> list[Task]:
    """Cases of the tier that the provider serves; controls are planted in the first."""
    if op not in providers.implemented_by(provider):
        return []
    implementation = providers.implementation(op, provider)
    if reason := implementation.missing(plan.settings.device):
        plan.skipped[f"{provider}/{op}"] = reason
        return []
    cases, refused = [], Counter[str]()
    for case in cases_of(op, plan.settings):
        if reason := implementation.refuses(case):
            refused[reason] += 1
        else:
            cases.append(case)
    if refused:
        plan.skipped[f"{provider}/{op}"] = _refusals(refused, len(cases))
    return [Task(provider, case, controls=i == 0) for i, case in enumerate(cases)]


def cases_of(op: str, settings: Settings) -> list[Case]:
    """Cases of one operation with their seeds shifted."""
    cases = contracts.contract_named(op).cases(settings.tier)  # type: ignore[arg-type]
    return [replace(case, seed=case.seed + settings.seed) for case in cases]


def _refusals(refused: Counter[str], served: int) -> str:
    """Why cases are not served, and how many of how many where that is not all of them."""
    total = refused.total() + served
    if not served and len(refused) == 1:
        return next(iter(refused))
    return "; ".join(f"{count} of {total} cases: {reason}" for reason, count in refused.items())


def unserved(plan: Plan) -> list[str]:
    """Of which operations nothing runs although a provider implements them, and why: that is no pass."""
    running = {task.case.op for task in plan.tasks}
    found = []
    for op in plan.settings.ops:
        why = [f"{name} {reason}" for name, reason in plan.skipped.items() if _concerns(name, op)]
        if op not in running and why:
            found.append(f"nothing ran of {op}: {'; '.join(why)}")
    return found


def _concerns(skipped: str, op: str) -> bool:
    """Does this entry of ``Plan.skipped`` take the operation away?"""
    provider, slash, operation = skipped.partition("/")
    return operation == op if slash else op in providers.implemented_by(provider)


def _control_tasks(plan: Plan) -> list[Task]:
    """First cases of providers that must be flagged, on the CPU, where their candidate runs too.

    A control is never loaded here, because it may need a process of its own.
    """
    tasks: list[Task] = []
    if plan.settings.device != "cpu":
        return tasks
    for control, candidate in providers.CONTROL_OF.items():
        for op in plan.settings.ops:
            if op in providers.NOT_SHOWN_BY.get(control, ()):
                continue
            cases = [t.case for t in plan.tasks if (t.provider, t.case.op) == (candidate, op)]
            tasks += [Task(control, case, role="control") for case in cases[:CONTROL_CASES]]
    return tasks


def _why_empty(plan: Plan) -> str:
    """Why a selection holds no case."""
    if not plan.settings.providers:
        return "; ".join(plan.skipped.values()) or "no provider was selected"
    if plan.skipped:
        return "; ".join(f"{name} {reason}" for name, reason in plan.skipped.items())
    served = [
        f"{name} implements {', '.join(providers.implemented_by(name))}" for name in plan.settings.providers
    ]
    return f"no selected provider implements {', '.join(plan.settings.ops)}; " + "; ".join(served)
