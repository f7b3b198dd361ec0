"""What ``lockstep kernels --time`` measures: every operation and the three kinds of layer, in both arms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType

from kernels_under_test.layers import specialised, stock
from kernels_under_test.layers.shapes import BLOCKS, RANK_SHAPES
from kernels_under_test.layers.step import Layer, Step
from kernels_under_test.layers.weights import Stream
from validation.timing.subject import Pair, Setting, Timed

ARMS: dict[str, ModuleType] = {"specialized": specialised, "stock": stock}


@dataclass(frozen=True)
class Kind:
    """One kind of layer: how its steps are made in an arm."""

    name: str
    steps: Callable[[ModuleType, Setting], list[Step]]


def _steps(attention: str, mlp: str, arm: ModuleType, setting: Setting) -> list[Step]:
    shapes, stream = RANK_SHAPES[setting.ranks], Stream.draw(setting.rows)
    # Layer 0 has no block to read; the others are timed with all but one of the eight.
    blocks = 0 if mlp == "dense" else BLOCKS - 1
    if attention == "kda":
        before = arm.kda_attention(shapes, setting.rows, stream, blocks)
    else:
        before = arm.mla_attention(shapes, setting.rows, setting.context, stream, blocks)
    return [*before, *getattr(arm, mlp)(shapes, setting.rows)]


LAYERS = (
    Kind("layer KDA + MoE", partial(_steps, "kda", "moe")),
    Kind("layer MLA + MoE", partial(_steps, "mla", "moe")),
    Kind("layer KDA + dense", partial(_steps, "kda", "dense")),
)


def names(setting: Setting) -> list[str]:
    """Names of ``pairs(setting)``, in its order."""
    return [pair.name for pair in pairs(setting)]


def pairs(setting: Setting) -> list[Pair]:
    """Operations first, then layers. Every operation is taken from the first layer that has it."""
    found: dict[str, Pair] = {}
    for kind in LAYERS:
        names = {arm: kind.steps(module, setting) for arm, module in ARMS.items()}
        known = {step.name for step in names["stock"]}
        for step in names["specialized"]:
            if step.name in known and step.name not in found:
                found[step.name] = _pair(step.name, kind, setting, names)
    for kind in LAYERS:
        names = {arm: kind.steps(module, setting) for arm, module in ARMS.items()}
        found[kind.name] = _layer(kind, setting, names)
    return list(found.values())


def _pair(name: str, kind: Kind, setting: Setting, steps: dict[str, list[Step]]) -> Pair:
    def timed(arm: str) -> Timed:
        example = next(step for step in steps[arm] if step.name == name)

        def make() -> Callable[[], object]:
            return next(s for s in kind.steps(ARMS[arm], setting) if s.name == name).call

        return Timed(name, arm, example.moved(), example.uses, make)

    return Pair(name, timed("specialized"), timed("stock"))


def _layer(kind: Kind, setting: Setting, steps: dict[str, list[Step]]) -> Pair:
    def timed(arm: str) -> Timed:
        uses = ", ".join(dict.fromkeys(part for step in steps[arm] for part in step.uses.split(", ")))
        moved = sum(step.moved() for step in steps[arm])
        return Timed(kind.name, arm, moved, uses, lambda: Layer(kind.steps(ARMS[arm], setting)))

    return Pair(kind.name, timed("specialized"), timed("stock"))
