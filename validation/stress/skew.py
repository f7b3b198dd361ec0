"""What disturbs a run: delays at every act, torn publications and those in another order, overwritten inputs,
jitter, neighbours.

Delays inside kernels are drawn from a hash of (seed, rank, step, act, lane, place); those of the host from a
generator seeded by (seed, rank). Lengths in ns inside kernels, in seconds on the host.

What this catches: nothing by itself. What it cannot do: make every order happen; ``validation.sync`` explores
those, on a model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from validation.errors import UserError


@dataclass(frozen=True)
class Skew:
    """``short_every``: of how many draws one is a delay of up to ``short`` ns; 0: no delays in kernels.
    ``rank_every``: the same for all lanes of a rank at once. ``torn_every``: publications that arrive in two
    parts. ``reordered``: publications of a kernel between which no wait lies are made the other way round by
    every second rank, as a weak memory order lets them arrive. ``staged``: inputs lie in memory and are
    overwritten right after the call. ``jitter``: seconds that a rank waits before a launch at most.
    ``idle``: seconds of an idle gap, one between eight launches or so. ``neighbours``: other work on the same
    processors. ``cold``: ranks start apart, without a first run.
    """

    short_every: int = 0
    short: int = 0
    long_every: int = 1
    long: int = 0
    rank_every: int = 1
    rank: int = 0
    torn_every: int = 0
    staged: bool = False
    jitter: float = 0.0
    idle: float = 0.0
    neighbours: bool = False
    cold: bool = False
    reordered: bool = False
    seed: int = 0

    def row(self) -> list[int]:
        """The kernels' table of delays (int32)."""
        lengths = [self.short_every, self.short, self.long_every, self.long]
        return [self.seed % 2**31, *lengths, self.torn_every, self.rank_every, self.rank]


QUIET = Skew()
# Lengths around the time of one exchange (about 5 us on NVLink, 10 ms between interpreted kernels), and a few
# a hundred times as long.
MEASURES = {
    "cuda": Skew(32, 8_000, 8192, 400_000, 2048, 100_000, 32, True, 0.01, 0.3, True, True, True),
    "cpu": Skew(8, 3_000_000, 128, 20_000_000, 128, 10_000_000, 3, True, 0.01, 0.2, True, True, True),
}
DELAYS = ("short_every", "short", "long_every", "long", "rank_every", "rank")
# Which fields each mode turns on; replay and the checks that always run have none.
MODES: dict[str, tuple[str, ...]] = {
    "delays": DELAYS,
    "fragments": ("torn_every", *DELAYS),
    "order": ("reordered", "torn_every", *DELAYS),
    "overwritten": ("staged", *DELAYS),
    "neighbours": ("neighbours",),
    "idle": ("idle", "jitter"),
    "cold": ("cold",),
    "jitter": ("jitter",),
    "batches": ("torn_every", *DELAYS),
    "payloads": (),
    "replay": (),
    "hashes": (),
    "canaries": (),
    "watchdog": (),
}


def only(mode: str, device: str, seed: int) -> Skew:
    """The skew of one mode. Raises UserError for a name that is none."""
    if mode not in MODES:
        raise UserError(f"no stress mode '{mode}'; there are {', '.join(MODES)}")
    full = MEASURES[device]
    return replace(QUIET, seed=seed, **{name: getattr(full, name) for name in MODES[mode]})


def of(modes: list[str], device: str, seed: int) -> Skew:
    """The skew of several modes together."""
    names = {name for mode in modes for name in MODES[mode]}
    full = MEASURES[device]
    return replace(
        QUIET, seed=seed, **{f.name: getattr(full, f.name) for f in fields(Skew) if f.name in names}
    )
