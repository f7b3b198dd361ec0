"""Turn a mask of wrong elements into words: "head 5, last 8 of 128 rows, from token 3 on".

What this catches: nothing; it names. A mask that is a rectangle (the product of one index set per axis) is
named exactly, up to index sets too irregular to list, for which it says how many of how many. What it cannot
do: find the shape of a mask that is no rectangle; it then says how many elements, which axes hold them all,
and where the worst is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MOST_RUNS = 4  # an index set of more separate ranges than this is counted, not listed
NEARLY = 0.97  # from this share on, what is right is not worth naming (unless it is a rectangle)
SLIGHT = 3  # an axis is said to hold scattered elements when each of its named indices has this many


def describe(mask: Tensor, axes: Sequence[str], severity: Tensor | None = None) -> str:
    """Where ``mask`` is true, in the words of ``axes``.

    ``severity`` (same shape, larger is worse) lets scattered elements be reported by their worst instead
    of their first.
    """
    if mask.ndim != len(axes):
        raise ValueError(f"mask of shape {tuple(mask.shape)} does not have the axes {tuple(axes)}")
    count, total = int(mask.sum()), mask.numel()
    if count == 0:
        return "nowhere"
    if count == total:
        return "everywhere"
    held = [projection(mask, axis) for axis in range(mask.ndim)]
    box = 1
    for indices in held:
        box *= len(indices)
    if box == count:
        return _rectangle(held, mask.shape, axes)
    if count >= NEARLY * total:
        return f"nearly everywhere ({count:,} of {total:,} elements)"
    return _scattered(mask, held, axes, count, severity)


def projection(mask: Tensor, axis: int) -> list[int]:
    """Indices along ``axis`` at which anything is wrong."""
    others = [a for a in range(mask.ndim) if a != axis]
    along = mask.amax(dim=others) if others else mask
    return [int(i) for i in along.nonzero().flatten().tolist()]


def _rectangle(held: list[list[int]], shape: Sequence[int], axes: Sequence[str]) -> str:
    limited = [(a, h, n) for a, h, n in zip(axes, held, shape, strict=True) if len(h) < n]
    if len(limited) == 1 and len(limited[0][1]) == 1:
        axis, indices, _ = limited[0]
        return f"{axis} {indices[0]} only"
    return ", ".join(axis_words(axis, indices, size) for axis, indices, size in limited)


def _scattered(
    mask: Tensor, held: list[list[int]], axes: Sequence[str], count: int, severity: Tensor | None
) -> str:
    space, named = 1, []
    for axis, indices, size in zip(axes, held, mask.shape, strict=True):
        worth_naming = len(indices) < size and count >= SLIGHT * len(indices) and _listable(indices, size)
        space *= len(indices) if worth_naming else size
        if worth_naming:
            named.append(axis_words(axis, indices, size))
    over = f" over {', '.join(named)}" if named else ""
    word, place = ("worst", _worst(mask, severity)) if severity is not None else ("first", _first(mask))
    at = place_words(axes, place, mask.shape)
    return f"{count:,} of {space:,} elements scattered{over}, {word} at {at}"


def place_words(axes: Sequence[str], place: Sequence[int], shape: Sequence[int]) -> str:
    """One element in words; axes of length one say nothing and are left out."""
    return ", ".join(f"{axis} {i}" for axis, i, n in zip(axes, place, shape, strict=True) if n > 1)


def _first(mask: Tensor) -> list[int]:
    return [int(i) for i in mask.nonzero()[0].tolist()]


def _worst(mask: Tensor, severity: Tensor) -> list[int]:
    places = mask.nonzero()
    inside = severity[mask].nan_to_num(nan=float("inf"))
    return [int(i) for i in places[int(inside.argmax())].tolist()]


def axis_words(axis: str, indices: list[int], size: int) -> str:
    """A proper subset of the indices of one axis, in words. ``indices`` are ascending."""
    runs = _runs(indices)
    if len(indices) == 1:
        return f"{axis} {indices[0]}"
    if len(runs) == 1:
        return _one_run(axis, *runs[0], size)
    for words in (_all_but(axis, indices, size), _stepped(axis, indices, size), _blocks(axis, runs, size)):
        if words:
            return words
    if len(runs) <= MOST_RUNS:
        return f"{plural(axis)} {_listed(runs)}"
    return f"{len(indices)} of {size} {plural(axis)} between {indices[0]} and {indices[-1]}"


def plural(axis: str) -> str:
    """``rows`` of ``row``. One-letter axes (k, v, q) have no plural."""
    if len(axis) == 1:
        return axis
    if axis.endswith("y") and axis[-2] not in "aeiou":
        return axis[:-1] + "ies"
    return axis + ("es" if axis.endswith(("s", "x", "ch", "sh")) else "s")


def _runs(indices: list[int]) -> list[tuple[int, int]]:
    """Maximal ranges of consecutive indices, both ends included."""
    runs: list[tuple[int, int]] = []
    for i in indices:
        if runs and runs[-1][1] == i - 1:
            runs[-1] = (runs[-1][0], i)
        else:
            runs.append((i, i))
    return runs


def _one_run(axis: str, start: int, end: int, size: int) -> str:
    length = end - start + 1
    if axis == "token" and end == size - 1:
        return f"from token {start} on"
    if end - start == 1 and start > 0 and end < size - 1:
        return f"{plural(axis)} {start} and {end}"
    if len(axis) == 1 or (start > 0 and end < size - 1):
        return f"{plural(axis)} {start} to {end}"
    return f"{'first' if start == 0 else 'last'} {length} of {size} {plural(axis)}"


def _all_but(axis: str, indices: list[int], size: int) -> str | None:
    missing = sorted(set(range(size)) - set(indices))
    if size < 4 or len(missing) > 2:
        return None
    return f"all {plural(axis)} but {' and '.join(map(str, missing))}"


def _stepped(axis: str, indices: list[int], size: int) -> str | None:
    """Every other row; every 4th row from row 2 to row 30."""
    step = indices[1] - indices[0]
    if len(indices) < 3 or step < 2 or indices != list(range(indices[0], indices[-1] + 1, step)):
        return None
    start = f" from {axis} {indices[0]}" if indices[0] > 0 else ""
    end = f" to {axis} {indices[-1]}" if indices[-1] + step < size else ""
    return f"every {'other' if step == 2 else _ordinal(step)} {axis}{start}{end}"


def _blocks(axis: str, runs: list[tuple[int, int]], size: int) -> str | None:
    """Tiles: "columns 64 to 127 of every 128"."""
    if len(runs) < 3:
        return None
    (start, end), period = runs[0], runs[1][0] - runs[0][0]
    inside = range(start, end + 1)
    whole = [i for i in range(size) if i % period in inside]
    if end >= period or _runs(whole) != runs:
        return None
    return f"{plural(axis)} {start} to {end} of every {period}"


def _listed(runs: list[tuple[int, int]]) -> str:
    parts: list[str] = []
    for a, b in runs:
        parts += [f"{a} to {b}"] if b > a + 1 else sorted({str(a), str(b)}, key=int)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _listable(indices: list[int], size: int) -> bool:
    return " between " not in axis_words("row", indices, size)


def _ordinal(n: int) -> str:
    suffix = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"
