"""Judge one case of one provider: run it in the arena, predict its noise, compare.

Catches: everything the contract's outputs, state and memory rules can show at this shape and regime. Cannot
catch: faults that need another shape, another regime, several steps or several ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from validation.calibration import inflation_for
from validation.contracts import contract_named
from validation.contracts.arena import Arena, Violation, store_returned
from validation.contracts.contract import Case, Contract, Output, Tier, tensor_specs
from validation.controls import planted
from validation.declaration import kernel_names
from validation.dispatch.launches import device_kernels, disagreement, recorded
from validation.errors import UserError
from validation.numerics.arithmetic import Noise
from validation.numerics.choices import Choice
from validation.numerics.profile import Profile
from validation.numerics.scores import Question, Statistic, judge
from validation.numerics.value import Value
from validation.providers import Implementation
from validation.report.elements import worst_elements
from validation.report.schema import CaseResult, Finding, Score
from validation.report.where import describe
from validation.trace import describe as describe_error
from validation.trace import place

TIERS: tuple[Tier, ...] = ("quick", "full")


def judge_case(
    case: Case,
    implementation: Implementation,
    device: str,
    *,
    share: float,
    mode: str = "profile",
    controls: bool = False,
) -> CaseResult:
    """Verdict, scores and findings of one case.

    ``share`` is the case's part of the family-wise false-alarm budget. ``mode``: ``profile`` (the provider
    rounds where it declared) or ``accuracy`` (any choice at the optional sites). With ``controls``, faults
    are planted in the outputs on the spot and must be noticed, and the case is run twice to compare bits.
    """
    started = time.perf_counter()
    contract = contract_named(case.op)
    result = CaseResult(case.op, implementation.provider, case.line(), "pass")
    report = _Reporter(result, case, implementation, device)
    clean, arena = _built(contract, case, device)
    with recorded() as launched, _possible(contract, case, implementation.profile):
        ran = _run(arena, implementation, report)
    result.kernels = launched
    if not ran:
        return _closed(result, started)
    if implementation.kernels is not None:
        whose = f"{implementation.provider}'s kernels() for {implementation.op}"
        report.launches(kernel_names(whose, implementation.kernels, case), launched)
    for violation in arena.check():
        report.violation(violation)
    observed = observe(contract, arena.outcome())
    made = contract.adopt(clean, arena.outcome())
    predicted = predict(contract, implementation.profile, device, mode, made)
    statistics = {}
    for output in contract.outputs:
        if output.name in predicted:
            statistics[output.name] = assess(contract, output, observed[output.name], predicted, share)
            report.output(output, statistics[output.name], observed[output.name], predicted[output.name])
    if controls:
        _control(contract, clean, observed, predicted, share, result)
        if implementation.deterministic:
            _repeat(case, contract, clean, implementation, device, observed, report)
    return _closed(result, started)


def _built(contract: Contract, case: Case, device: str) -> tuple[Any, Arena]:
    """The arguments of the case and the arena with them, or a UserError that says why there can be none."""
    try:
        clean = on_device(contract.build(case), device)
        return clean, Arena(contract, clean, device)
    except Exception as error:
        raise _impossible(error) from error


@contextlib.contextmanager
def _possible(contract: Contract, case: Case, profile: str) -> Iterator[None]:
    """Where a provider raises on sizes that no case of the contract has: if not even the reference can be
    computed on them, the case is to blame."""
    try:
        yield
    except BaseException:
        if case.shape not in {own.shape for tier in TIERS for own in contract.cases(tier)}:
            try:
                predict(contract, profile, "cpu", "profile", contract.build(case))
            except Exception as error:
                raise _impossible(error) from error
        raise


def _impossible(error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    traceback.print_exception(error)  # for whoever repairs the contract
    return UserError(f"this case cannot be built: {describe_error(error)} ({place(error)})")


def on_device(arguments: Any, device: str) -> Any:
    """The same arguments with every tensor on ``device``."""
    given = {name: getattr(arguments, name) for name in tensor_specs(arguments)}
    moved = {name: tensor.to(device) for name, tensor in given.items() if tensor is not None}
    return dataclasses.replace(arguments, **moved)


def observe(contract: Contract, arguments: Any) -> dict[str, Tensor]:
    """The judged views of the arguments after a run, copied."""
    return {
        output.name: output.view(arguments).clone()
        for output in contract.outputs
        if output.present(arguments)
    }


def predict(contract: Contract, profile: str, device: str, mode: str, clean: Any) -> dict[str, Any]:
    """The noise reading of the reference under the named profile: a ``Value`` (or ``Choice``) by output."""
    chosen: Profile = contract.profiles[profile].on(device)
    if mode == "accuracy":
        chosen = chosen.accuracy()
    return contract.reference(Noise(chosen), clean)


def assess(
    contract: Contract,
    output: Output,
    observed: Tensor,
    predicted: dict[str, Any],
    share: float,
    raw: bool = False,
) -> list[Statistic]:
    """All statistics of one output. Bit-exact outputs spend none of the share, the others an equal part each.

    ``raw``: without the calibrated inflation (calibration itself).
    """
    value = predicted[output.name]
    if output.exact:
        return [_bits(observed, value)]
    judged = sum(1 for o in contract.outputs if not o.exact and o.name in predicted)
    if isinstance(value, Choice):
        return [_choice(observed, value, share / judged)]
    question = Question(
        output.axes,
        output.format,
        share / judged,
        output.slices,
        output.shared,
        {} if raw else inflation_for(contract.name, output.name, value.mean.device.type),
    )
    return judge(observed, value, question)


def _bits(observed: Tensor, value: Value) -> Statistic:
    """Bit-exact outputs: any differing bit is wrong, except between NaN payloads."""
    expected = value.mean.to(observed.dtype)
    same = (observed == expected) & (torch.signbit(observed) == torch.signbit(expected))
    wrong = ~(same | (torch.isnan(observed) & torch.isnan(expected)))
    count = int(wrong.sum())
    detail = f"{count} of {wrong.numel()} elements differ from the bit-exact result" if count else ""
    return Statistic("bits", float(count), 0.0, detail, wrong if count else None)


def _choice(observed: Tensor, choice: Choice, share: float) -> Statistic:
    """A discrete choice is admissible or it is not; noise decides which scores could have changed places."""
    wrong = choice.wrong(observed, share)
    count = int(wrong.sum())
    detail = f"{count} of {wrong.numel()} choices are none that noise admits" if count else ""
    where = wrong.unsqueeze(-1).expand(observed.shape) if count else None
    return Statistic("choice", float(count), 0.0, detail, where)


def _run(arena: Arena, implementation: Implementation, report: _Reporter) -> bool:
    """Call the provider; False if it raised or returned what cannot be judged."""
    if arena.device.type == "cuda":
        torch.cuda.synchronize()  # a kernel launched early may read its weights before the copy of them ends
    try:
        returned = implementation.function(arena.arguments)
        if arena.device.type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        report.add("exception", "", 1.0, 0.0, f"{last.name}, line {last.lineno}", message)
        return False
    violations = store_returned(arena, returned)
    for violation in violations:
        report.violation(violation)
    return not violations


def _control(
    contract: Contract,
    clean: Any,
    observed: dict[str, Tensor],
    predicted: dict[str, Any],
    share: float,
    result: CaseResult,
) -> None:
    """Plant faults in copies of the observed outputs; each must be noticed where the honest output was
    not."""
    for output in contract.outputs:
        if output.name not in predicted:
            continue
        before = output.view(clean)
        for fault in planted(output, observed[output.name], before):
            result.controls_planted += 1
            statistics = assess(contract, output, fault, predicted, share)
            result.controls_caught += any(s.failed for s in statistics)


def _repeat(
    case: Case,
    contract: Contract,
    clean: Any,
    implementation: Implementation,
    device: str,
    observed: dict[str, Tensor],
    report: _Reporter,
) -> None:
    """The same call from the same state must give the same bits. On a GPU it is watched: what the device ran
    is kept in the result, and the kernels of the dispatch table must be among it."""
    arena = Arena(contract, clean, device)
    ran = True

    def call() -> None:
        nonlocal ran
        ran = _run(arena, implementation, report)

    if device == "cuda":
        report.device(device_kernels(call), implementation, case)
    else:
        call()
    if not ran:
        return
    outcome = arena.outcome()
    for output in contract.outputs:
        if output.name not in observed:
            continue
        again = output.view(outcome)
        differs = (again != observed[output.name]) & ~(
            torch.isnan(again) & torch.isnan(observed[output.name])
        )
        if bool(differs.any()):
            where = describe(differs.cpu(), output.axes)
            message = f"{int(differs.sum())} elements changed between two equal calls"
            report.add("not_repeatable", output.name, float(differs.sum()), 0.0, where, message)


def _closed(result: CaseResult, started: float) -> CaseResult:
    if result.findings:
        result.verdict = "fail"
        result.findings.sort(key=lambda f: f.telling, reverse=True)
    result.seconds = time.perf_counter() - started
    return result


class _Reporter:
    """Turns statistics and violations into scores and findings of one result."""

    def __init__(self, result: CaseResult, case: Case, implementation: Implementation, device: str) -> None:
        self.result = result
        self.case = case
        self.provider = implementation.provider
        suffix = "@cuda" if device == "cuda" else ""
        self.replay = f"lockstep replay '{self.provider}/{case.line()}{suffix}'"

    def add(self, statistic: str, output: str, value: float, limit: float, where: str, message: str) -> None:
        self.result.findings.append(
            Finding(
                "kernels",
                self.case.op,
                self.provider,
                self.case.line(),
                statistic,
                output,
                value,
                limit,
                where,
                message,
                self.replay,
            )
        )

    def launches(self, expected: tuple[str, ...], launched: list[str]) -> None:
        self.result.scores.append(Score("", "dispatch", float(list(expected) != launched), 0.0))
        if message := disagreement(expected, launched):
            self.add("dispatch", "", 1.0, 0.0, "", message)

    def device(self, seen: list[str], implementation: Implementation, case: Case) -> None:
        """Kernels that the device ran; those of the table must be among them."""
        times = Counter(seen)  # of torch's own kernels there are hundreds
        self.result.device_kernels = [n if c == 1 else f"{c} times {n}" for n, c in times.items()]
        expected = implementation.kernels(case) if implementation.kernels else ()
        if absent := [name for name in expected if name not in seen]:
            message = f"the device did not run {', '.join(absent)}; it ran {', '.join(seen) or 'nothing'}"
            self.add("dispatch", "", 1.0, 0.0, "", message)

    def violation(self, violation: Violation) -> None:
        where = "" if violation.mask is None else describe(violation.mask.cpu(), violation.axes)
        count = 1.0 if violation.mask is None else float(violation.mask.sum())
        self.result.scores.append(Score(violation.field, violation.statistic, count, 0.0))
        self.add(violation.statistic, violation.field, count, 0.0, where, violation.message)

    def output(
        self, output: Output, statistics: list[Statistic], observed: Tensor, value: Value | Choice
    ) -> None:
        for s in statistics:
            excess, limit = s.surplus
            self.result.scores.append(Score(output.name, s.name, excess, limit))
            if s.mean_square is not None:
                self.result.mean_squares[output.name] = s.mean_square
            if s.failed:
                where = ""
                if s.where is not None:
                    distance = (observed.double() - value.mean).abs().expand(s.where.shape)
                    error = distance if s.scores is None else s.scores
                    where = describe(s.where.cpu(), output.axes, error.cpu())
                self.add(s.name, output.name, excess, limit, where, s.detail)
                if s.where is not None:
                    self.result.findings[-1].worst = worst_elements(
                        s.where, output.axes, observed, value.mean, scores=s.scores
                    )
