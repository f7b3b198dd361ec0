"""Measured levels and powers of all tests: A/A comparisons, and effects at the printed MDE.

Catches: a test that alarms more often than its level (exact lower confidence limit above the level), and a
printed minimum detectable effect that is found in fewer than 78 % of runs. A planted bad test (independent
replies assumed where they are not) must be flagged, or the simulation proves nothing. Cannot catch: an excess
too small for the number of runs; the upper limits say what is left open.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from validation.variance.data import Array
from validation.variance.intervals import clopper_pearson, upper_limit
from validation.variance.multiplicity import holm
from validation.variance.result import LEVEL, NAN
from validation.variance.scenarios import SCENARIOS

FIGURES = ("p_value", "effect", "mde", "statistic", "low", "high")
CHUNK = 50
WANTED_POWER = 0.78
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Rate:
    """How often one test said 'different' (``kind`` 'level') or found its MDE ('power')."""

    scenario: str
    test: str
    kind: str
    runs: int
    found: int
    low: float
    high: float
    mde: float = NAN
    control: bool = False
    failed: bool = False

    @property
    def rate(self) -> float:
        return self.found / self.runs if self.runs else NAN


def chunk(scenario: str, tests: tuple[str, ...], strength: float, seed: int, start: int, stop: int) -> Array:
    """Figures of runs start..stop, [runs, tests, FIGURES]. Run i is the same whatever the chunk,
    and shares its random numbers with run i at any other strength."""
    s = SCENARIOS[scenario]
    out = np.full((stop - start, len(tests), len(FIGURES)), np.nan)
    key = [seed, list(SCENARIOS).index(scenario)]
    for row, i in zip(out, range(start, stop), strict=True):
        data = s.draw(np.random.default_rng([*key, i]), strength)
        for figures, name in zip(row, tests, strict=True):
            test = s.tests[name](data, i)
            figures[:] = [getattr(test, field) for field in FIGURES]
    return out


def many(
    pool: Executor,
    scenario: str,
    tests: tuple[str, ...],
    strength: float,
    seed: int,
    runs: int,
    advance: Advance,
) -> Array:
    """``chunk`` over all runs, in parallel."""
    futures = [
        pool.submit(chunk, scenario, tests, strength, seed, start, min(start + CHUNK, runs))
        for start in range(0, runs, CHUNK)
    ]
    parts = []
    for future in futures:
        parts.append(future.result())
        advance(len(parts[-1]))
    return np.concatenate(parts)


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Processes with one thread each."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def levels(scenario: str, figures: Array, total: int, level: float = LEVEL) -> list[Rate]:
    """Rejection rates of one scenario's tests under no effect, and of all with Holm's adjustment.

    ``high``: exact 95 % upper limit of the rate. ``failed``: the exact lower limit lies above the level, at
    5 % over the ``total`` rates of the simulation together (exact tests sit *at* their level; without that
    one in 40 of them would fail by chance). A test without a p-value does not reject.
    """
    s = SCENARIOS[scenario]
    p, names = figures[:, :, 0], list(s.tests)
    found = [(name, int((p[:, i] <= level).sum())) for i, name in enumerate(names)]
    honest = [i for i, name in enumerate(names) if name not in s.control]
    if len(honest) > 1:
        any_of = sum(any(x <= level for x in holm(list(row[honest]))) for row in p)
        found.append(("any of these, Holm", any_of))
    rates = []
    for name, count in found:
        low = clopper_pearson(count, len(p), 1 - 2 * 0.05 / total)[0]
        high = upper_limit(count, len(p))
        rates.append(
            Rate(
                scenario,
                name,
                "level",
                len(p),
                count,
                low,
                high,
                control=name in s.control,
                failed=low > level,
            )
        )
    return rates


def measure(scenario: str, name: str, figures: Array) -> tuple[float, float]:
    """Typical effect and printed MDE on a scale on which effects add up: log for ratios, squares for rms."""
    effect, mde, statistic = figures[:, 1], figures[:, 2], figures[:, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        if "ratio" in name:
            logs = np.log(effect)
            return float(np.mean(logs[np.isfinite(logs)])), math.log(float(np.nanmedian(mde)))
        if name == "crossed":
            return float(np.mean(statistic)), float(np.nanmedian(mde)) ** 2
    return float(np.mean(effect)), float(np.nanmedian(mde))


def strengths(
    pool: Executor, scenario: str, tests: tuple[str, ...], null: Array, seed: int, runs: int, advance: Advance
) -> dict[str, float]:
    """For every test the strength of the fault whose mean effect is the median MDE printed in A/A runs.

    The mean effect is measured at eight strengths, with the random numbers of the A/A runs, of which the mean
    is taken off, and interpolated; NaN where no strength reaches it.
    """
    s = SCENARIOS[scenario]
    grid = np.concatenate([[0.0], s.strongest * 2.0 ** np.arange(-7.0, 1.0)])
    drawn = [null[:runs]] + [many(pool, scenario, tests, g, seed, runs, advance) for g in grid[1:]]
    reached = {}
    for i, name in enumerate(tests):
        effects = np.array([measure(scenario, name, x[:, i])[0] for x in drawn])
        if not name.startswith("Kolmogorov"):  # a supremum is above 0 without any effect, its MDE too
            effects = np.abs(effects - effects[0])
        effects = np.maximum.accumulate(effects)
        goal = measure(scenario, name, null[:, i])[1]
        reached[name] = float(np.interp(goal, effects, grid)) if goal < effects[-1] else NAN
    return reached


def powers(
    pool: Executor, scenario: str, null: Array, seed: int, runs: int, advance: Advance, level: float = LEVEL
) -> list[Rate]:
    """Detection rates at the printed MDE; ``failed``: fewer than 78 % of the runs."""
    s = SCENARIOS[scenario]
    names = list(s.tests)
    with_mde = [
        i
        for i, n in enumerate(names)
        if n not in s.control + s.level_only and np.isfinite(null[:, i, 2]).any()
    ]
    if s.planted or not with_mde:
        return []
    tests = tuple(names[i] for i in with_mde)
    reached = strengths(pool, scenario, tests, null[:, with_mde], seed, max(20, min(100, runs // 8)), advance)
    rates = []
    for i, name in zip(with_mde, tests, strict=True):
        mde = float(np.nanmedian(null[:, i, 2]))
        if math.isnan(reached[name]):
            rates.append(Rate(scenario, name, "power", 0, 0, 0.0, 1.0, mde))
            continue
        p = many(pool, scenario, (name,), reached[name], seed + 2, runs, advance)[:, 0, 0]
        found = int((p <= level).sum())
        low, high = clopper_pearson(found, runs)
        rates.append(
            Rate(scenario, name, "power", runs, found, low, high, mde, failed=found < WANTED_POWER * runs)
        )
    return rates


def simulate(
    runs: int,
    seed: int,
    jobs: int,
    advance: Callable[[str, int], None],
    scenarios: Sequence[str] = tuple(SCENARIOS),
    power: bool = True,
) -> list[Rate]:
    """All scenarios: levels first, then powers. ``advance(scenario, comparisons done)``."""
    total = sum(len(SCENARIOS[name].tests) + 1 for name in scenarios)
    rates: list[Rate] = []
    with workers(jobs) as pool:
        for name in scenarios:
            s = SCENARIOS[name]

            def step(n: int, name: str = name) -> None:
                advance(name, n)

            null = many(pool, name, tuple(s.tests), s.planted, seed, runs, step)
            rates += levels(name, null, total)
            if power:
                rates += powers(pool, name, null, seed, runs, step)
    return rates


def verdict(rates: Sequence[Rate]) -> list[str]:
    """What failed, one reason a line; empty if levels, powers and negative control are as they must be."""
    reasons = []
    for r in rates:
        where = f"{r.scenario}, {r.test}"
        if r.control and not r.failed:
            reasons.append(f"{where}: the negative control was not flagged ({r.rate:.1%})")
        elif not r.control and r.kind == "level" and r.failed:
            reasons.append(f"{where}: false alarms in {r.rate:.1%} of runs, at least {r.low:.1%}")
        elif not r.control and r.failed:
            reasons.append(f"{where}: its MDE of {r.mde:.4g} is found in {r.rate:.1%} of runs only")
    return reasons
