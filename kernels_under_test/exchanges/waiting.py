"""Delays and bounded waits, on a GPU and in the interpreter.

Compiled, a delay spins on the device's clock and a wait counts its looks. In the interpreter a kernel is
Python, and the two functions of the host below are called by it: a delay sleeps, and a wait gives way to the
other processes, looks at the clock, and at a flag by which everybody is told to stop.

What this cannot do: promise a delay's length; neither a GPU's clock nor a scheduler is that exact.
"""

# mypy: disable-error-code="no-untyped-def"
# (an annotation on a kernel's parameter means something to Triton)

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import triton
import triton.language as tl

from kernels_under_test.exchanges.words import asked, mixed, number

# Fields of the skew table (int32): see validation.stress.skew.
SEED, SHORT_EVERY, SHORT, LONG_EVERY, LONG, TORN_EVERY, RANK_EVERY, RANK_DELAY = range(8)
# Places within an act: those from the first to before the second lie between two parts of a publication.
BETWEEN_PARTS, OTHER_PHASES = tl.constexpr(2), tl.constexpr(12)
EAGER_LOOKS = 20  # of an interpreted wait, before it sleeps between looks
NAP = 1e-4  # seconds
# After so many looks the others are busy with long kernels of their own, and looking takes their time.
PATIENT_LOOKS, REST = 200, 5e-3


def _nobody() -> bool:
    return False


@dataclass
class Host:
    """What interpreted kernels ask this process. ``patience``: seconds of a wait. ``stopped``: give up?
    ``skew``: the table of delays; ``table``: the acts."""

    skew: list[int] = field(default_factory=lambda: [0, 0, 0, 1, 0, 0, 1, 0])
    table: list[list[int]] = field(default_factory=list)
    patience: float = 10.0
    stopped: Callable[[], bool] = _nobody
    began: float = 0.0


HOST = Host()


@triton.jit
def draw(skew, rank, step, act, phase):
    """A uint32 by which a delay is drawn, the same for all lanes of a rank."""
    key = tl.load(skew).to(tl.uint32) + tl.cast(rank, tl.uint32) * 0x9E3779B1
    key += tl.cast(step, tl.uint32) * 0x85EBCA77 + tl.cast(act, tl.uint32) * 0xC2B2AE3D
    return mixed(key + tl.cast(phase, tl.uint32) * 0x27D4EB2F)


@triton.jit
def delay(skew, rank, step, act, lane, phase: tl.constexpr, ON_GPU: tl.constexpr):
    """Once in SHORT_EVERY up to SHORT ns, once in LONG_EVERY up to LONG ns; and, the same for all lanes of a
    rank, once in RANK_EVERY up to RANK_DELAY ns. Between the parts of a publication there always is one.
    Compiled, the odds are powers of two: a division costs more than an exchange has time for."""
    if not ON_GPU:
        host_delay(rank, step, act, lane, phase)
    elif tl.load(skew + 1) > 0:
        whole = draw(skew, rank, step, act, phase)
        h = mixed(whole + tl.cast(lane, tl.uint32))
        every = tl.load(skew + 1).to(tl.uint32)
        if phase >= BETWEEN_PARTS and phase < OTHER_PHASES:
            every = every * 0 + 1
        span = tl.where((h & (every - 1)) == 0, tl.load(skew + 2), 0)
        span = tl.where(((h >> 4) & (tl.load(skew + 3).to(tl.uint32) - 1)) == 0, tl.load(skew + 4), span)
        length = (span.to(tl.int64) * (h >> 16).to(tl.int64)) >> 16
        all_lanes = (whole & (tl.load(skew + 6).to(tl.uint32) - 1)) == 0
        more = (tl.load(skew + 7).to(tl.int64) * (whole >> 16).to(tl.int64)) >> 16
        length += tl.where(all_lanes, more, 0)
        until = tl.extra.cuda.globaltimer() + length
        while tl.extra.cuda.globaltimer() < until:
            length += 1


@triton.jit
def torn(skew, rank, step, act, lane, ON_GPU: tl.constexpr):
    """Is this publication to arrive in two parts? 0: no; 1: the first word of each fragment comes first; n:
    the first n rows do."""
    if ON_GPU:
        every = tl.load(skew + 5).to(tl.uint32)
        h = mixed(draw(skew, rank, step, act, 31) + tl.cast(lane, tl.uint32))
        parts = tl.where((every > 0) & ((h & (every - 1)) == 0), (h >> 16) & 127, 0).to(tl.int32)
        parts = tl.where(parts > 64, 1, parts)
    else:
        parts = host_torn(rank, step, act, lane)
    return parts


def host_draw(place: str) -> random.Random:
    return random.Random(f"{HOST.skew[SEED]} {place}")


@asked
def host_delay(rank: Any, step: Any, act: Any, lane: Any, phase: Any) -> None:
    """Sleep by the same rules, drawn in another way."""
    every, short, rarely, long = HOST.skew[SHORT_EVERY : LONG + 1]
    if not every:
        return
    every = 1 if BETWEEN_PARTS.value <= number(phase) < OTHER_PHASES.value else every
    at = f"{number(rank)} {number(step)} {number(act)} {number(phase)}"
    lanes, all_lanes = host_draw(f"{at} {number(lane)}"), host_draw(at)
    span = long if lanes.random() < 1 / rarely else short if lanes.random() < 1 / every else 0
    ns = span * lanes.random()
    if all_lanes.random() < 1 / HOST.skew[RANK_EVERY]:
        ns += HOST.skew[RANK_DELAY] * all_lanes.random()
    if ns:
        time.sleep(ns * 1e-9)


@asked
def host_torn(rank: Any, step: Any, act: Any, lane: Any) -> int:
    """``torn``, drawn in another way."""
    every = HOST.skew[TORN_EVERY]
    draw = host_draw(f"torn {number(rank)} {number(step)} {number(act)} {number(lane)}")
    if not every or draw.random() >= 1 / every:
        return 0
    return 1 if draw.random() < 0.5 else draw.randrange(2, 64)


@asked
def host_waits(tries: Any, most: Any) -> int:
    """Looks so far, or ``most`` when it is time to give up; gives way to other processes first."""
    seen, now = number(tries), time.monotonic()
    if seen <= 1:
        HOST.began = now
    if now - HOST.began > HOST.patience or HOST.stopped():
        return number(most)
    os.sched_yield() if seen < EAGER_LOOKS else time.sleep(NAP if seen < PATIENT_LOOKS else REST)
    return min(seen, number(most) - 1)


@asked
def host_fields(act: Any) -> tuple[int, ...]:
    """The fields of an act as Python has them: so many loads less. The sentinel is a word without a sign."""
    *fields, sentinel, holds, _ = HOST.table[number(act)]
    return (*fields, sentinel & 0xFFFFFFFF, holds)
