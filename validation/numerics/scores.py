"""Statistics of one output against its predicted noise, each with a limit from the false-alarm budget.

All are ratios value / limit; above 1 is a finding. ``y`` observed, ``m`` predicted before the store, s the
spacing of the storage grid, var the predicted variance before the store.

* ``nonfinite``: NaN, +inf and -inf stand where the reference has them.
* ``excess``: distance of m from the interval of values that round to y, over Bernstein's limit for that
  element.
* ``flips``: elements not on the predicted grid point, against their expected number.
* ``mean_square``: squared errors over their expectation (noise and the error of the store), per tensor and
  slice.
* ``bias``: mean error in units of the noise, per tensor and slice, without what the store is known to add.
* ``projection``: the same along the truth (a scale error).

Catches: see ``tests``: each is shown to fail on a planted error. Cannot catch: errors below the noise of the
declared profile that neither add up nor point one way.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from validation.numerics.formats import FORMATS, FP32, Format
from validation.numerics.grouping import Grouping
from validation.numerics.limits import bernstein, crossing, log_odds
from validation.numerics.value import Value

STATISTICS = ("nonfinite", "excess", "flips", "mean_square", "bias", "projection")


@dataclass
class Statistic:
    """``value`` over ``limit``; ``where`` marks the elements that break it (None: no single place).

    ``level``: the limit is passed with probability 2 exp(-level) a test, ``share`` over all tests of the
    statistic. ``scores``: value over limit of every element, where each has its own.
    """

    name: str
    value: float
    limit: float
    detail: str = ""
    where: Tensor | None = None
    mean_square: float | None = None
    level: float = 0.0
    share: float = 0.0
    expected: float = 0.0
    scores: Tensor | None = None

    @property
    def surplus(self) -> tuple[float, float]:
        """Value and limit above what is expected: their quotient says how close the call was."""
        value = self.value if math.isnan(self.value) else max(self.value - self.expected, 0.0)
        return value, self.limit - self.expected

    @property
    def failed(self) -> bool:
        return not self.value <= self.limit


@dataclass(frozen=True)
class Question:
    """What is asked of one output: its storage format, axes and slices, the share of the false-alarm budget
    that its statistics spend together, and the calibrated inflation of the predicted deviation by
    statistic."""

    axes: tuple[str, ...]
    format: str
    share: float
    slices: tuple[tuple[str, ...], ...] = ()
    shared: tuple[str, ...] = ()
    inflation: dict[str, float] | None = None

    def inflation_of(self, statistic: str) -> float:
        return (self.inflation or {}).get(statistic, 1.0)


def judge(observed: Tensor, predicted: Value, question: Question) -> list[Statistic]:
    """All statistics of one output. ``observed`` in its storage dtype, any device; ``predicted`` before the
    store."""
    fmt = FORMATS[question.format]
    y, m = observed.double(), predicted.mean
    grid = fmt.round(m)
    share = question.share / len(STATISTICS)
    results = [_nonfinite(y, grid, predicted, fmt, share)]
    finite = torch.isfinite(y) & torch.isfinite(grid) & torch.isfinite(m)
    noise = _noise(predicted, finite, share)
    # Elements that are not finite are judged by their mask alone: here they count as exactly predicted.
    y = torch.where(finite, y, torch.zeros_like(y))
    m = torch.where(finite, m, torch.zeros_like(m))
    results.append(_excess(y, m, noise, fmt, share, question))
    if fmt is not FP32:
        results.append(_flips(y, m, noise, fmt, share, question))
    results += _sliced(y, m, noise, fmt, share, question)
    return results


@dataclass
class _Parts:
    variance: Tensor
    jump_variance: Tensor | None
    jump: Tensor | None


def _noise(predicted: Value, finite: Tensor, share: float) -> _Parts:
    """The predicted noise of the finite elements. Jumps so rare that all of them together stay below an
    eighth of the share are left out: they would widen limits for what will not happen."""

    def clean(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        part = part.expand(finite.shape)
        return torch.where(finite & torch.isfinite(part), part, torch.zeros_like(part))

    variance, jump_variance, jump = (clean(part) for part in predicted.parts())
    if variance is None:
        variance = torch.zeros_like(predicted.mean)
    if jump_variance is None or jump is None:
        return _Parts(variance, None, None)
    probability = jump_variance / (jump * jump).clamp(min=1e-300)
    real = probability > share / (8 * max(finite.numel(), 1))
    zero = torch.zeros_like(jump)
    return _Parts(variance, torch.where(real, jump_variance, zero), torch.where(real, jump, zero))


def _nonfinite(y: Tensor, grid: Tensor, predicted: Value, fmt: Format, share: float) -> Statistic:
    """Non-finite where the other is not, or of another kind. Where noise reaches the edge of overflow, both
    sides of it are right."""
    nan = torch.isnan(y) != torch.isnan(grid)
    infinite = (torch.isinf(y) | torch.isinf(grid)) & (y != grid) & ~torch.isnan(y) & ~torch.isnan(grid)
    wrong = nan | infinite
    if bool(wrong.any()) and predicted.variance is not None:
        mean, (low, high) = predicted.mean, fmt.bracket(fmt.round(y))
        reach = bernstein(
            predicted.variance, predicted.jump_variance, predicted.jump, log_odds(share, y.numel())
        )
        near = torch.isfinite(mean) & (torch.maximum(mean - high, low - mean) <= reach)
        wrong = wrong & ~near
    count = int(wrong.sum())
    detail = ""
    if count:
        extra = int((~torch.isfinite(y) & wrong & torch.isfinite(grid)).sum())
        parts = [f"{extra:,} not finite where the reference is"] if extra else []
        parts += [f"{count - extra:,} finite, or another kind, where it is not"] if count > extra else []
        detail = ", ".join(parts)
    return Statistic("nonfinite", float(count), 0.0, detail, wrong if count else None)


def _excess(y: Tensor, m: Tensor, noise: _Parts, fmt: Format, share: float, question: Question) -> Statistic:
    low, high = fmt.bracket(fmt.round(y))
    beyond = torch.maximum(m - high, low - m).clamp(min=0)
    # An observed value that is not on the storage grid cannot be: dtypes are checked before.
    x = log_odds(share, y.numel())
    factor = question.inflation_of("excess")
    limit = factor * bernstein(noise.variance, noise.jump_variance, noise.jump, x)
    ratio = torch.where(beyond > 0, beyond / limit.clamp(min=1e-300), torch.zeros_like(beyond))
    if ratio.numel() == 0:
        return Statistic("excess", 0.0, 1.0)
    flat = int(ratio.argmax())
    worst = float(ratio.flatten()[flat])
    sd = float(torch.sqrt(noise.variance.flatten()[flat]))
    detail = (
        f"observed {float(y.flatten()[flat]):.8g}, expected {float(m.flatten()[flat]):.8g} "
        f"(sd {sd:.2g}, limit {float(limit.flatten()[flat]):.2g}) "
        f"at {_position(flat, y.shape, question.axes)}"
    )
    where = ratio > 1
    found = Statistic("excess", worst, 1.0, detail, where if worst > 1 else None, level=x, share=share)
    found.scores = ratio if worst > 1 else None
    return found


def _position(flat: int, shape: torch.Size, axes: tuple[str, ...]) -> str:
    words = []
    for size, axis in zip(reversed(shape), reversed(axes), strict=True):
        if size > 1:
            words.append(f"{axis} {flat % size}")
        flat //= size
    return ", ".join(reversed(words)) or "the only element"


def _flips(y: Tensor, m: Tensor, noise: _Parts, fmt: Format, share: float, question: Question) -> Statistic:
    grid = fmt.round(m)
    flipped = y != grid
    low, high = fmt.bracket(grid)
    factor = question.inflation_of("flips")
    variance = noise.variance * factor**2
    if y.numel() == 0:
        return Statistic("flips", 0.0, 1.0)
    p = (
        crossing(high - m, variance, noise.jump_variance, noise.jump)
        + crossing(m - low, variance, noise.jump_variance, noise.jump)
    ).clamp(max=1.0)
    expected = float(p.sum())
    # Elements moved together flip together: up to that many at once, as often as any one of them would.
    together = min(sharing(question, y.shape, frozenset()), max(1.0, 8 * float(p.max()) * y.numel()))
    x = log_odds(share, 1)
    limit = expected + (2 * expected * together * x) ** 0.5 + together * x / 3
    count = int(flipped.sum())
    detail = f"{count} of {y.numel()} elements off their predicted grid point, {expected:.3g} expected"
    return Statistic(
        "flips",
        float(count),
        limit,
        detail,
        flipped if count > limit else None,
        level=x,
        share=share,
        expected=expected,
    )


def sharing(question: Question, shape: torch.Size, kept: Set[str]) -> float:
    """How many elements of a slice one source of noise may move together: the product of the ``shared`` axes
    that the slice sums over. Most sources move fewer (a row, a column); those that move all (a scalar of the
    head) decide how far sums spread."""
    sizes = dict(zip(question.axes, shape, strict=True))
    return float(math.prod(sizes[axis] for axis in question.shared if axis not in kept))


# -- sums over slices ------------------------------------------------------------------------------


def _sliced(
    y: Tensor, m: Tensor, noise: _Parts, fmt: Format, share: float, question: Question
) -> list[Statistic]:
    """Mean square, bias and projection, the worst over the whole tensor and every slice.

    Elements that a rare jump larger than their deviation may hit are judged by their excess alone, exactly
    predicted ones (padding, zero rows) carry no noise to measure by: neither is counted here.
    """
    spacing = fmt.spacing(fmt.round(y))
    store = spacing * spacing / 12
    # An FP32 result's last operation rounds it to its grid: that error is in the prediction already.
    squared = torch.maximum(noise.variance, store) if fmt is FP32 else noise.variance + store
    counted = noise.variance > 0
    if noise.jump is not None and noise.jump_variance is not None:
        squared = squared + noise.jump_variance
        counted = counted & (noise.jump <= torch.sqrt(squared))
    deviation = torch.sqrt(squared)
    zero = torch.zeros_like(y)
    standardised = torch.where(counted, (y - m) / deviation, zero)
    known, share_known = _known(m, noise, fmt)
    unknown = torch.where(counted, (y - m - known) / deviation, zero)
    # Of a known error the square is known too; counted is what it is on average, so that 1 is expected.
    surprise = standardised**2 - torch.where(counted, (known**2 - share_known**2 * store) / squared, zero)
    towards = torch.where(counted, m / deviation, zero)
    noisy = torch.where(counted, noise.variance / deviation**2, zero)
    groups = ((), *question.slices)
    worst: dict[str, Statistic] = {}
    for group in groups:
        grouping = Grouping(y.shape, question.axes, group)
        sums = _Sums(grouping, surprise, unknown, towards, counted, noisy, question)
        for statistic in (
            _mean_square(sums, share / len(groups)),
            _bias(sums, share / len(groups)),
            _projection(sums, share / len(groups)),
        ):
            best = worst.get(statistic.name)
            if best is None or statistic.value * best.limit > best.value * statistic.limit:
                worst[statistic.name] = statistic
    n = float(counted.sum())
    worst["mean_square"].mean_square = float((standardised**2).sum()) / n if n else None
    return list(worst.values())


def _known(m: Tensor, noise: _Parts, fmt: Format) -> tuple[Tensor, Tensor]:
    """The mean error of storing m, and how much of round(m) - m it is: all where there is no noise, nothing
    where noise spreads m over many spacings. In between as the first harmonic of that sawtooth is damped.

    It is no noise and need not cancel over a slice: a product with 1.001 rounds back to its other factor,
    element for element, which is a scale error to the eye of the projection.
    """
    if fmt is FP32:
        return torch.zeros_like(m), torch.zeros_like(m)  # in the prediction already
    grid = fmt.round(m)
    variance = noise.variance if noise.jump_variance is None else noise.variance + noise.jump_variance
    spacings = variance / fmt.spacing(grid).clamp(min=1e-300) ** 2
    damping = torch.exp(-2 * math.pi**2 * spacings)
    return (grid - m) * damping, damping


class _Sums:
    """Sums over the slices of one grouping.

    ``surprise``: squared errors, 1 expected; ``unknown``: errors less what the store is known to add;
    ``noisy``: mean share of the predicted variance that precedes the store; ``moved``: how many summed
    elements one source of that noise may move together.
    """

    def __init__(
        self,
        grouping: Grouping,
        surprise: Tensor,
        unknown: Tensor,
        towards: Tensor,
        counted: Tensor,
        noisy: Tensor,
        question: Question,
    ) -> None:
        self.grouping = grouping
        self.question = question
        u, t = grouping.matrix(unknown), grouping.matrix(towards)
        self.count = grouping.matrix(counted.double()).sum(1)
        self.total, self.squares = u.sum(1), grouping.matrix(surprise).sum(1)
        self.along, self.truth = (u * t).sum(1), (t * t).sum(1)
        # Only the noise before the store is shared; the error of the store is each element's own.
        self.noisy = grouping.matrix(noisy).sum(1) / self.count.clamp(min=1)
        self.moved = sharing(question, unknown.shape, grouping.kept)

    def worst(
        self, name: str, value: Tensor, limit: float | Tensor, unit: str, x: float, share: float
    ) -> Statistic:
        if value.numel() == 0:
            return Statistic(name, 0.0, 1.0)
        limits = torch.as_tensor(limit, dtype=value.dtype, device=value.device).expand(value.shape)
        ratio = value / limits
        flat = int(ratio.argmax())
        failed = ratio > 1
        where = self.grouping.spread(failed) if bool(failed.any()) else None
        detail = f"{float(value[flat]):.4g} {unit}, limit {float(limits[flat]):.4g} ({self.grouping.label})"
        return Statistic(name, float(value[flat]), float(limits[flat]), detail, where, level=x, share=share)


def _mean_square(sums: _Sums, share: float) -> Statistic:
    """Expected 1. Limit by Laurent and Massart (2000, lemma 1) for a chi-square of as many degrees as sources
    of noise."""
    n = sums.count.clamp(min=1)
    x = log_odds(share, n.numel())
    # Sources that move many elements together leave fewer degrees of freedom; their products enter squared.
    degrees = n / (1 + (sums.moved - 1) * sums.noisy**2)
    limit = 1 + 2 * torch.sqrt(x / degrees) + 2 * x / degrees
    inflation = sums.question.inflation_of("mean_square") ** 2
    found = sums.worst(
        "mean_square", sums.squares / n, inflation * limit, "times the predicted square", x, share
    )
    found.expected = 1.0
    return found


def _bias(sums: _Sums, share: float) -> Statistic:
    n = sums.count.clamp(min=1)
    x = log_odds(share, n.numel())
    limit = sums.question.inflation_of("bias") * (2 * x) ** 0.5
    together = 1 + (sums.moved - 1) * sums.noisy
    return sums.worst(
        "bias", sums.total.abs() / torch.sqrt(n * together), limit, "sd of the mean error", x, share
    )


def _projection(sums: _Sums, share: float) -> Statistic:
    norm = torch.sqrt(sums.truth * (1 + (sums.moved - 1) * sums.noisy))
    value = torch.where(norm > 0, sums.along.abs() / norm.clamp(min=1e-300), torch.zeros_like(norm))
    x = log_odds(share, norm.numel())
    limit = sums.question.inflation_of("projection") * (2 * x) ** 0.5
    return sums.worst("projection", value, limit, "sd along the truth", x, share)
