"""Time of a sequence of calls under CUDA-graph replay, and the bandwidth that a device's memory really gives.

What this catches: launch gaps inside a sequence (they are part of its time), and inputs that stay in the
cache (callers rotate over several instances, see ``instances``). What it cannot catch: other work on the
device; the spread of the repeats shows it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

WARM_UP = 3
REPEATS = 20
# Replays are repeated until one timed stretch takes this long: far above the resolution of events.
STRETCH_MS = 3.0
# Rotated instances together hold this many times the cache, so that each meets memory, not the cache.
TIMES_CACHE = 3
MOST_INSTANCES = 64


@dataclass(frozen=True)
class Time:
    """Seconds a call: median over the repeats, and the lower and upper quartile."""

    seconds: float
    low: float
    high: float


def replayed(calls: Sequence[Callable[[], object]]) -> Time:
    """Capture ``calls`` one after another in one CUDA graph and time its replays; seconds per call.

    The calls must be capturable: no host synchronisation, no new shapes. They run a few times before.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    once = _stretch(graph, 3)
    count = max(3, int(STRETCH_MS / max(once * 1e3, 1e-3)) + 1)
    times = sorted(_stretch(graph, count) / len(calls) for _ in range(REPEATS))
    quarter = len(times) // 4
    return Time(statistics.median(times), times[quarter], times[-quarter - 1])


def _stretch(graph: torch.cuda.CUDAGraph, count: int) -> float:
    """Seconds of one replay, the mean of ``count`` in a row."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        graph.replay()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / count


def instances(bytes_each: int) -> int:
    """How many instances of a call's operands must be rotated over so that the cache does not hold them."""
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return max(2, min(MOST_INSTANCES, -(-TIMES_CACHE * cache // max(bytes_each, 1))))


def memory_bandwidth() -> float:
    """Bytes a second: the better of a large copy (bytes read plus bytes written) and a large read."""
    words = 1 << 29  # 2 GiB
    source = torch.empty(words, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    size = source.numel() * source.element_size()
    copied = 2 * size / replayed([lambda: target.copy_(source)]).seconds
    out = torch.empty((), dtype=torch.float32, device="cuda")
    read = size / replayed([lambda: torch.amax(source, 0, out=out)]).seconds
    return max(copied, read)
