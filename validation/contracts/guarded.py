"""One tensor in poisoned memory: a red zone before it, one after it, and poison between its elements.

What this catches: writes outside the tensor's own elements, byte for byte, and changed elements, bit for
bit. Reads outside become visible because floats are poisoned with NaN and indices with a free slot.
What it cannot catch: accesses that jump over the red zone, and out-of-bounds reads whose value is not used.

The NaN patterns are signalling on purpose: arithmetic on poison sets the quiet bit, so that a NaN which was
computed from poison and stored is not mistaken for an element that was never written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 256
RED_ZONE = 4096
# The commonest wrong index is off by one row, slot or page: the red zone covers one such step, up to this.
RED_ZONE_MOST = 4 << 20
# Above this span, storage that is mostly holes is poisoned around its rows only (`NEIGHBOURHOOD` bytes each
# side), so that synthetic strides beyond 2^31 elements do not commit gigabytes.
SPARSE_FROM = 256 << 20
NEIGHBOURHOOD = 64 << 10

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAN = {
    torch.bfloat16: 0x7FA5,
    torch.float16: 0x7DA5,
    torch.float32: 0x7FA5A5A5,
    torch.float64: 0x7FF5A5A5A5A5A5A5,
}


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bit patterns as integers, so that NaN and -0.0 compare exactly."""
    return tensor.view(_BITS[tensor.element_size()])


def poison_pattern(dtype: torch.dtype, free_slot: int | None = None) -> int:
    """Bit pattern that unowned memory of this dtype holds; indices hold ``free_slot`` if there is one."""
    if free_slot is not None and dtype in (torch.int32, torch.int64):
        return free_slot
    return _NAN.get(dtype, int.from_bytes(b"\x7f" * dtype.itemsize, "little"))


@dataclass(frozen=True)
class Segment:
    """A stretch of the buffer that is poisoned and compared: all of it, or the surroundings of one row."""

    start: int
    stop: int
    row: int | None = None


@dataclass(frozen=True)
class Layout:
    """Where a strided tensor lies in its buffer. Everything in elements; ``outer`` is the slowest axis."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    outer: int | None
    span: int
    zone: int
    sparse: bool

    @classmethod
    def of(cls, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Layout:
        """Raises ValueError if two elements would share memory."""
        wide = sorted((s, axis) for axis, (n, s) in enumerate(zip(shape, strides, strict=True)) if n > 1)
        reach = 0
        for stride, axis in wide:
            if stride <= reach:
                raise ValueError(f"strides {strides} of shape {shape} overlap at axis {axis}")
            reach += (shape[axis] - 1) * stride
        used = math.prod(shape)
        span = reach + 1 if used else 0
        outer = wide[-1][1] if wide and used else None
        sparse = outer is not None and span * itemsize > max(SPARSE_FROM, 4 * used * itemsize)
        step = strides[outer] * itemsize if outer is not None else 0
        zone = NEIGHBOURHOOD if sparse else min(max(RED_ZONE, step), RED_ZONE_MOST)
        zone = -(-zone // ALIGNMENT) * ALIGNMENT // itemsize
        return cls(shape, strides, itemsize, outer, span, zone, sparse)

    @property
    def total(self) -> int:
        return self.zone + self.span + self.zone

    def segments(self) -> list[Segment]:
        """Disjoint stretches that hold every element."""
        if not self.sparse or self.outer is None:
            return [Segment(0, self.total)]
        step, rows = self.strides[self.outer], self.shape[self.outer]
        row_span = self.span - (rows - 1) * step
        around = min(self.zone, (step - row_span) // 2)
        starts = [self.zone + row * step for row in range(rows)]
        return [Segment(s - around, s + row_span + around, row) for row, s in enumerate(starts)]

    def elements(self, stretch: Tensor, segment: Segment) -> Tensor:
        """View of the tensor's elements (of the segment's row) in a stretch of memory."""
        offset = stretch.storage_offset() + self.zone - segment.start
        if segment.row is None or self.outer is None:
            return stretch.as_strided(self.shape, self.strides, offset)
        keep = [axis for axis in range(len(self.shape)) if axis != self.outer]
        shape, strides = [self.shape[a] for a in keep], [self.strides[a] for a in keep]
        return stretch.as_strided(shape, strides, offset + segment.row * self.strides[self.outer])


@dataclass(frozen=True)
class Trespass:
    """Bytes changed outside the elements: ``region`` before, gap or after; offset from the first element."""

    region: str
    offset: int
    count: int


class Guarded:
    """A copy of ``value`` in poisoned memory on ``device``. ``fill`` replaces its values by a bit pattern."""

    def __init__(
        self,
        value: Tensor,
        strides: tuple[int, ...] | None,
        device: torch.device | str,
        pattern: int,
        fill: int | None = None,
    ) -> None:
        shape = tuple(value.shape)
        dense = torch.empty(shape, device="meta").stride()
        self.layout = Layout.of(shape, tuple(strides or dense), value.element_size())
        self.memory = _aligned(self.layout, device)
        self.segments = self.layout.segments()
        source = bits(value.detach().contiguous()).to(device)
        for segment in self.segments:
            stretch = self._stretch(segment).fill_(pattern)
            elements = self.layout.elements(stretch, segment)
            elements.copy_(self._row(source, segment)) if fill is None else elements.fill_(fill)
        self.image = [self._stretch(segment).clone() for segment in self.segments]
        self.dtype = value.dtype
        self.tensor = self.current()
        self._home = _home(self.tensor)

    def current(self) -> Tensor:
        """A fresh view of the elements: right whatever was done to ``tensor`` itself."""
        whole = Segment(0, self.layout.total)
        return self.layout.elements(self.memory, whole).view(self.dtype)

    def holds(self, tensor: object) -> bool:
        """Whether ``tensor`` still is the tensor placed here, at the same address, shape and strides."""
        return tensor is self.tensor and _home(self.tensor) == self._home

    def compare(self) -> tuple[Tensor, list[Trespass]]:
        """Mask of elements whose bits changed, and the changes in red zones and gaps."""
        changed = torch.zeros(self.layout.shape, dtype=torch.bool, device=self.memory.device)
        outside = []
        for segment, before in zip(self.segments, self.image, strict=True):
            differs = self._stretch(segment) != before
            elements = self.layout.elements(differs, segment)
            self._row(changed, segment).copy_(elements)
            elements.fill_(False)
            places = differs.nonzero().flatten()
            if len(places):
                outside.append(self._trespasses(segment, before, places))
        return changed, [trespass for group in outside for trespass in group]

    def _trespasses(self, segment: Segment, before: Tensor, places: Tensor) -> list[Trespass]:
        now = self._stretch(segment)[places].view(torch.uint8)
        was = before[places].view(torch.uint8)
        size = self.layout.itemsize
        first_byte = (places + segment.start - self.layout.zone) * size
        address = (first_byte[:, None] + torch.arange(size, device=places.device)).flatten()[now != was].cpu()
        regions = {
            "before": address < 0,
            "gap": (address >= 0) & (address < self.layout.span * size),
            "after": address >= self.layout.span * size,
        }
        return [Trespass(r, int(address[at][0]), int(at.sum())) for r, at in regions.items() if at.any()]

    def _stretch(self, segment: Segment) -> Tensor:
        return self.memory[segment.start : segment.stop]

    def _row(self, tensor: Tensor, segment: Segment) -> Tensor:
        if segment.row is None or self.layout.outer is None:
            return tensor
        return tensor.select(self.layout.outer, segment.row)


def _home(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _aligned(layout: Layout, device: torch.device | str) -> Tensor:
    size = layout.total * layout.itemsize
    raw = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=device)
    shift = -raw.data_ptr() % ALIGNMENT
    return raw[shift : shift + size].view(_BITS[layout.itemsize])
