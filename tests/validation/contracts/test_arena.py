"""Every way of breaking the rules of memory is planted once and must be seen; honest writers give nothing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from validation.contracts import guarded
from validation.contracts.arena import Arena, Violation, store_returned
from validation.contracts.contract import Contract, read, update, write

ROWS, COLUMNS, SLOTS = 3, 5, 4
PAGE, TAIL = 16, 2  # elements from slot to slot, and from head to head within it


@dataclass
class CopyArguments:
    """out := x and cache[slot] := x[row, :2], for the rows whose slot is positive."""

    x: Tensor = read("row column", "bf16")
    slots: Tensor = read("row", "i32")
    cache: Tensor = update("slot head v", "fp32")
    out: Tensor = write("row column", "bf16")
    codes: Tensor = write("row byte", "u8")
    scale: float = 1.0
    free_slot: int = SLOTS - 1


def _touched(a: CopyArguments) -> dict[str, Tensor]:
    owned = torch.zeros(a.cache.shape[0], dtype=torch.bool)
    owned[a.slots.long()] = True
    return {"cache": owned[:, None, None]}


def _contract(strides: dict[str, tuple[int, ...]] | None = None) -> Contract:
    return Contract(
        name="copy",
        summary="copies",
        arguments=CopyArguments,
        outputs=(),
        regimes=(),
        build=lambda case: None,
        reference=lambda ar, arguments: {},
        cases=lambda tier: (),
        touched=_touched,
        profiles={},
        strides=lambda arguments: strides or {},
    )


def _arguments(rows: int = ROWS) -> CopyArguments:
    x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(1)).bfloat16()
    if rows:
        x[0, 0], x[0, 1] = float("nan"), -0.0
    return CopyArguments(
        x=x,
        slots=torch.tensor([2, 0, 1], dtype=torch.int32)[:rows],
        cache=torch.full((SLOTS, 2, 1), -0.0),
        out=torch.zeros(rows, COLUMNS, dtype=torch.bfloat16),
        codes=torch.zeros(rows, 4, dtype=torch.uint8),
    )


def _honest(a: CopyArguments) -> None:
    a.out.copy_(a.x)
    a.codes.fill_(0x7F)
    a.codes[:, 0] = 1
    a.cache[a.slots.long()] = a.x[:, :2, None].float()


LAYOUTS = {
    "dense": {},
    "pages": {"cache": (PAGE, TAIL, 1)},
    "transposed": {"x": (1, 8), "cache": (PAGE, 1, TAIL)},
}


DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.device)] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=LAYOUTS)
def arena(request: pytest.FixtureRequest, device: str) -> Arena:
    return Arena(_contract(LAYOUTS[request.param]), _arguments(), device)


def _only(arena: Arena) -> Violation:
    found = arena.check()
    assert len(found) == 1, found
    return found[0]


def _beside(tensor: Tensor, offset: int) -> Tensor:
    """One element at a distance from the first, as a bad pointer would reach it."""
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


def test_honest_writer(arena: Arena) -> None:
    _honest(arena.arguments)
    assert arena.check() == []


def test_arguments_arrive_bit_for_bit(arena: Arena) -> None:
    given, placed = _arguments(), arena.arguments
    assert torch.equal(placed.x.cpu().view(torch.int16), given.x.view(torch.int16))
    assert torch.equal(placed.cache.cpu().view(torch.int32), given.cache.view(torch.int32))
    assert placed.x.data_ptr() % 256 == 0
    assert placed.out.isnan().all()


def test_strides_are_the_contracts() -> None:
    assert Arena(_contract(LAYOUTS["pages"]), _arguments()).arguments.cache.stride() == (PAGE, TAIL, 1)


def test_unwritten_element(arena: Arena) -> None:
    poison = arena.arguments.out[1, 2].clone()
    _honest(arena.arguments)
    arena.arguments.out[1, 2] = poison
    found = _only(arena)
    assert (found.field, found.statistic, found.axes) == ("out", "unwritten", ("row", "column"))
    assert found.mask is not None
    assert found.mask.nonzero().tolist() == [[1, 2]]


def test_nothing_written(arena: Arena) -> None:
    assert [(v.field, v.statistic) for v in arena.check()] == [("out", "unwritten"), ("codes", "unwritten")]


def test_nan_computed_from_poison_counts_as_written(arena: Arena) -> None:
    poison = arena.arguments.out.clone()
    _honest(arena.arguments)
    arena.arguments.out.copy_(poison.float() * 1.0)
    assert arena.check() == []
    assert arena.arguments.out.isnan().all()


@pytest.mark.parametrize(("where", "pattern"), [((0, 1), 0x0000), ((0, 0), 0x7FC1), ((2, 3), 0x4110)])
def test_input_changed_even_if_only_in_sign_or_payload(
    arena: Arena, where: tuple[int, int], pattern: int
) -> None:
    _honest(arena.arguments)
    guarded.bits(arena.arguments.x)[where] = pattern
    found = _only(arena)
    assert (found.field, found.statistic) == ("x", "input_changed")
    assert found.mask is not None
    assert found.mask.nonzero().tolist() == [list(where)]


def test_untouched_slot_changed(arena: Arena) -> None:
    _honest(arena.arguments)
    arena.arguments.cache[3, 1] = 0.0
    found = _only(arena)
    assert (found.field, found.statistic, found.axes) == ("cache", "untouched_changed", ("slot", "head", "v"))
    assert found.mask is not None
    assert found.mask.nonzero().tolist() == [[3, 1, 0]]


def test_touched_is_taken_from_the_clean_arguments(arena: Arena) -> None:
    _honest(arena.arguments)
    arena.arguments.slots[0] = 3
    arena.arguments.cache[3] = 1.0
    assert [v.statistic for v in arena.check()] == ["input_changed", "untouched_changed"]


@pytest.mark.parametrize("field", ["x", "slots", "cache", "out", "codes"])
def test_write_before_and_behind(arena: Arena, field: str) -> None:
    _honest(arena.arguments)
    tensor, layout = getattr(arena.arguments, field), arena.guards[field].layout
    _beside(tensor, -layout.zone).view(torch.uint8).fill_(0xFE)
    _beside(tensor, layout.span).view(torch.uint8).fill_(0xFE)
    _beside(tensor, layout.span + layout.zone - 1).view(torch.uint8).fill_(0xFE)
    before, after = arena.check()
    size, zone = layout.itemsize, layout.zone * layout.itemsize
    assert zone >= 4096
    assert (before.field, before.statistic, after.statistic) == (field, "red_zone", "red_zone")
    assert f"{size} bytes before the tensor overwritten, first at byte offset -{zone}" in before.message
    assert f"{2 * size} bytes after the tensor" in after.message
    assert f"offset +{layout.span * size}" in after.message


def test_single_byte_of_a_red_zone_element() -> None:
    arena = Arena(_contract(), _arguments())
    _honest(arena.arguments)
    _beside(arena.arguments.cache, -1).view(torch.uint8)[2] = 0
    assert "1 bytes before the tensor overwritten, first at byte offset -2" in _only(arena).message


def test_write_into_a_gap() -> None:
    arena = Arena(_contract(LAYOUTS["pages"]), _arguments())
    _honest(arena.arguments)
    _beside(arena.arguments.cache, PAGE + 1).fill_(float("nan"))
    found = _only(arena)
    assert (found.field, found.statistic, found.mask) == ("cache", "red_zone", None)
    assert f"in a gap between elements overwritten, first at byte offset +{4 * (PAGE + 1)}" in found.message


def test_poison_is_nan_for_floats_and_a_free_slot_for_indices(arena: Arena) -> None:
    a = arena.arguments
    assert _beside(a.x, -1).isnan().all()
    assert _beside(a.x, -1).view(torch.int16).item() == 0x7FA5
    assert _beside(a.cache, -1).view(torch.int32).item() == 0x7FA5A5A5
    assert _beside(a.slots, ROWS).item() == SLOTS - 1
    assert _beside(a.codes, -1).item() == 0x7F


def test_poison_of_indices_without_a_free_slot() -> None:
    assert guarded.poison_pattern(torch.int32) == 0x7F7F7F7F


def test_replaced_tensor_and_changed_scalar(arena: Arena) -> None:
    _honest(arena.arguments)
    arena.arguments.x = arena.arguments.x.clone()
    arena.arguments.scale = 2.0
    assert [(v.field, v.statistic) for v in arena.check()] == [("x", "replaced"), ("scale", "replaced")]


def test_tensor_pointed_elsewhere(arena: Arena) -> None:
    _honest(arena.arguments)
    arena.arguments.x.set_(torch.zeros_like(arena.arguments.x))
    assert [(v.field, v.statistic) for v in arena.check()] == [("x", "replaced")]


def test_empty_batch() -> None:
    arena = Arena(_contract(LAYOUTS["pages"]), _arguments(rows=0))
    assert arena.check() == []
    assert store_returned(arena, (arena.arguments.out, arena.arguments.codes)) == []
    _beside(arena.arguments.out, 0).fill_(1.0)
    assert "after the tensor" in _only(arena).message


def test_absent_tensor_is_left_out() -> None:
    arguments = _arguments()
    arguments.x = None  # type: ignore[assignment]
    arena = Arena(_contract(), arguments)
    assert arena.arguments.x is None
    assert "x" not in arena.guards


class TestSparse:
    """Strides with huge holes: the same rules, but only the surroundings of the rows are committed."""

    STEP = 1 << 16

    @pytest.fixture
    def arena(self, monkeypatch: pytest.MonkeyPatch) -> Arena:
        monkeypatch.setattr(guarded, "SPARSE_FROM", 1 << 16)
        monkeypatch.setattr(guarded, "NEIGHBOURHOOD", 1 << 13)
        arena = Arena(_contract({"cache": (self.STEP, TAIL, 1)}), _arguments())
        assert arena.guards["cache"].layout.sparse
        assert not arena.guards["x"].layout.sparse
        return arena

    def test_committed_memory_is_small(self, arena: Arena) -> None:
        guard = arena.guards["cache"]
        assert sum(len(image) for image in guard.image) < len(guard.memory) / 10

    def test_honest(self, arena: Arena) -> None:
        _honest(arena.arguments)
        assert arena.check() == []
        assert arena.arguments.cache[2, 1, 0] == arena.arguments.x[0, 1].float()

    def test_untouched(self, arena: Arena) -> None:
        _honest(arena.arguments)
        arena.arguments.cache[3, 1] = 7.0
        found = _only(arena)
        assert found.mask is not None
        assert (found.statistic, found.mask.nonzero().tolist()) == ("untouched_changed", [[3, 1, 0]])

    @pytest.mark.parametrize(
        ("offset", "where"),
        [
            (-1, "before the tensor"),
            (1, "in a gap"),
            (STEP - 5, "in a gap"),
            (3 * STEP + 3, "after the tensor"),
        ],
    )
    def test_red_zones(self, arena: Arena, offset: int, where: str) -> None:
        _honest(arena.arguments)
        _beside(arena.arguments.cache, offset).fill_(1.0)
        found = _only(arena)
        assert where in found.message
        assert f"first at byte offset {4 * offset:+d}" in found.message

    def test_rows_closer_than_two_neighbourhoods(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(guarded, "SPARSE_FROM", 1 << 10)
        arena = Arena(_contract({"cache": (4096, TAIL, 1)}), _arguments())
        _honest(arena.arguments)
        assert arena.check() == []


def test_offsets_beyond_2_to_31_elements_stay_uncommitted() -> None:
    step = (1 << 31) + 64
    cache = torch.zeros(2, 2, dtype=torch.float32)
    guard = guarded.Guarded(cache, (step, 1), "cpu", guarded.poison_pattern(cache.dtype))
    guard.tensor[1, 1] = 3.0
    changed, trespasses = guard.compare()
    assert changed.nonzero().tolist() == [[1, 1]]
    assert trespasses == []
    assert sum(len(image) for image in guard.image) < 1 << 20


def test_red_zone_covers_one_step_of_the_outermost_axis() -> None:
    layout = guarded.Layout.of((4, 3, 1000), (5000, 1000, 1), 4)
    assert layout.zone >= 5000


@pytest.mark.parametrize("strides", [(2, 1), (0, 1), (1, 1)])
def test_overlapping_strides_are_refused(strides: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="overlap"):
        guarded.Layout.of((3, 3), strides, 2)


def test_touched_must_name_every_update_field() -> None:
    contract = _contract()
    object.__setattr__(contract, "touched", lambda arguments: {})
    with pytest.raises(ValueError, match=r"touched\(\) says nothing about cache"):
        Arena(contract, _arguments())


def test_build_must_keep_the_declared_dtype() -> None:
    arguments = _arguments()
    arguments.x = arguments.x.float()
    with pytest.raises(ValueError, match=r"x is declared read bf16 .* built as a float32 tensor \[3, 5\]"):
        Arena(_contract(), arguments)


class TestReturned:
    """Values handed back instead of written."""

    @pytest.fixture
    def arena(self) -> Arena:
        return Arena(_contract(), _arguments())

    def _good(self, arena: Arena) -> tuple[Tensor, Tensor]:
        return arena.arguments.x.clone(), torch.ones(ROWS, 4, dtype=torch.uint8)

    def test_none(self, arena: Arena) -> None:
        _honest(arena.arguments)
        assert store_returned(arena, None) == arena.check() == []

    def test_tuple_is_stored(self, arena: Arena) -> None:
        assert store_returned(arena, self._good(arena)) == arena.check() == []
        assert torch.equal(arena.arguments.out.view(torch.int16), arena.arguments.x.view(torch.int16))

    def test_written_arguments_handed_back(self, arena: Arena) -> None:
        _honest(arena.arguments)
        assert store_returned(arena, (arena.arguments.out, arena.arguments.codes)) == arena.check() == []

    def test_wrong_shape_and_dtype(self, arena: Arena) -> None:
        out, codes = self._good(arena)
        shape, dtype = store_returned(arena, (out[:2], codes.int()))
        assert (shape.field, shape.statistic) == ("out", "shape")
        assert shape.message == "out: expected shape (3, 5), found (2, 5)"
        assert (dtype.field, dtype.statistic) == ("codes", "dtype")
        assert dtype.message == "codes: expected dtype torch.uint8, found torch.int32"
        assert [v.statistic for v in arena.check()] == ["unwritten", "unwritten"]

    def test_wrong_device(self, arena: Arena) -> None:
        out, codes = self._good(arena)
        (found,) = store_returned(arena, (out.to("meta"), codes))
        assert (found.statistic, found.message) == ("device", "out: expected device cpu, found meta")

    @pytest.mark.parametrize("bad", ["count", "list", "number", "mixed"])
    def test_signature(self, arena: Arena, bad: str) -> None:
        out, codes = self._good(arena)
        value = {"count": out, "list": [out, codes], "number": 3.0, "mixed": (out, None)}[bad]
        (found,) = store_returned(arena, value)
        assert found.statistic == "signature"
        assert "(out: write bf16 [row, column], codes: write u8 [row, byte]); found " in found.message
