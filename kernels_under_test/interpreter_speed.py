"""What makes Triton's interpreter several times faster on small kernels; no result changes by a bit.

Triton describes every type, shape and constant anew, asks of every integer sum whether it overflowed (and,
unless debugging, drops the answer), and remaps its language in every nested function. ``apply`` keeps what
never changes. Scope: the types of ``triton.language``, and the semantics of the interpreter alone, not the
compiler's.

What this cannot catch: it judges nothing. That it changes nothing is what the tests of the interpreter and of
every kernel on the CPU are for.
"""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial
from typing import Any

import numpy as np


def apply(interpreter: Any) -> None:
    """Put all of it in place. Called once a process, by ``interpreter.install``."""
    _languages(interpreter)
    _types(interpreter)
    _questions(interpreter)
    _Semantics(interpreter).install()


def _languages(interpreter: Any) -> None:
    """Half the time of a small kernel: remap triton.language once a launch, not in every nested function.

    Triton also leaves what a nested call remapped for ever; here the launch puts it back.
    """
    import triton.language as tl

    original, semantic = interpreter._patch_lang, interpreter.interpreter_semantic
    remapped: set[int] = set()
    nested: list[Any] = []
    languages: dict[int, tuple[Any, set[int]]] = {}
    builtins: dict[Any, list[tuple[str, Any]]] = {}

    def languages_of(fn: Any) -> set[int]:
        """Which of the two a function's module names; the module is held, so its id stays its own."""
        names = fn.__globals__
        if id(names) not in languages:
            found = {id(lang) for lang in (tl, tl.core) if any(value is lang for value in names.values())}
            languages[id(names)] = names, found
        return languages[id(names)][1]

    def patch_builtin(pkg: Any, builder: Any, scope: Any) -> None:
        if pkg not in builtins:
            members = inspect.getmembers(pkg)
            builtins[pkg] = [(name, member) for name, member in members if tl.core.is_builtin(member)]
        for name, member in builtins[pkg]:
            scope.set_attr(pkg, name, interpreted(member))

    def interpreted(member: Any) -> Any:
        def new_member(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return member(*args, **kwargs)

        return new_member

    def patch_lang(fn: Any) -> Any:
        seen = languages_of(fn)
        if seen and seen <= remapped:
            return interpreter._LangPatchScope()
        outermost = not remapped
        remapped.update(seen)
        scope = original(fn)
        if not outermost:
            nested.append(scope)
            return scope
        restore = scope.restore

        def restore_all() -> None:
            while nested:
                nested.pop().restore()
            restore()
            remapped.clear()

        scope.restore = restore_all
        return scope

    interpreter._patch_lang, interpreter._patch_builtin = patch_lang, patch_builtin


def _types(interpreter: Any) -> None:
    """A third of the time of a kernel: the type and shape of every result are described anew. There are few
    different ones, and nothing changes them, so each is described once."""
    import triton.language.core as core

    blocks: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, dict[str, Any]] = {}
    dtypes: dict[str, Any] = {}
    new_block, new_tensor = core.block_type.__init__, core.tensor.__init__
    np_dtype = interpreter._get_np_dtype

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        numbers = [getattr(size, "value", size) for size in shape]
        key = element_ty.name, *numbers
        if key not in blocks or not set(map(type, numbers)) <= {int}:  # 4.0 finds 4, but is refused
            new_block(self, element_ty, shape)
            blocks[key] = vars(self) | {"sizes": key[1:]}
        vars(self).update(blocks[key])
        self.element_ty = element_ty

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = sizes(type)
        if key not in shapes:
            new_tensor(self, handle, type)
            shapes[key] = {n: v for n, v in vars(self).items() if n not in ("handle", "type", "dtype")}
        vars(self).update(shapes[key])
        self.handle, self.type, self.dtype = handle, type, type.scalar

    def dtype(tt_dtype: Any) -> Any:
        if tt_dtype.name not in dtypes:
            dtypes[tt_dtype.name] = np_dtype(tt_dtype)
        return dtypes[tt_dtype.name]

    alike: dict[Any, Any] = {}
    of_element = core.block_type.with_element_ty

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        if scalar_ty.is_ptr():
            return of_element(self, scalar_ty)
        key = scalar_ty.name, self.sizes
        if key not in alike:
            alike[key] = of_element(self, scalar_ty)
        return alike[key]

    core.block_type.__init__, core.tensor.__init__ = block, tensor
    core.block_type.with_element_ty = with_element_ty
    interpreter._get_np_dtype = dtype


def _questions(interpreter: Any) -> None:
    """A tenth of the time: what is asked of nearly every operand gets its usual answer at once."""
    import triton.language.core as core

    unwrap, equal = core._unwrap_if_constexpr, core.dtype.__eq__
    fits = interpreter._validate_np_data_size
    bare = {core.tensor, core.dtype, bool, int, float, str, type(None)}
    fitting: set[tuple[Any, str]] = set()

    def unwrapped(o: Any) -> Any:
        return o if type(o) in bare else unwrap(o)

    def same(self: Any, other: Any) -> bool:
        return self is other or equal(self, other)

    def fits_in(np_array: Any, tl_dtype: Any) -> bool:
        key = np_array.dtype, tl_dtype.name
        if key not in fitting:
            if not fits(np_array, tl_dtype):
                return False
            fitting.add(key)
        return True

    core._unwrap_if_constexpr, core.dtype.__eq__ = unwrapped, same
    interpreter._validate_np_data_size = fits_in


def sizes(type: Any) -> tuple[int, ...]:
    """Of a block; none of a scalar."""
    return getattr(type, "sizes", ())


# Types whose promotion depends on nothing but themselves. Numbers beside them, by value and type.
PLAIN = {"int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "fp32", "fp64"}
NUMBERS = (bool, int, float)


class _Semantics:
    """A quarter of the time: operands of one type and shape need nothing, and a number beside a tensor
    becomes the same constant every time. All else goes the interpreter's own way."""

    def __init__(self, interpreter: Any) -> None:
        self.handle, self.semantic = interpreter.TensorHandle, interpreter.interpreter_semantic
        self.block_type = interpreter.tl.block_type
        self.constants: dict[Any, Any] = {}
        self.promoted: dict[Any, tuple[Any, Any]] = {}

    def install(self) -> None:
        # Unless it debugs, Triton computes whether integers overflow, and drops the answer.
        options = self.semantic.builder.options
        self.semantic.builder.options = dataclasses.replace(options, sanitize_overflow=options.debug)
        self.broadcast = self.semantic.broadcast_impl_value
        for name in REPLACED:
            setattr(self.semantic, name, partial(getattr(self, name), getattr(self.semantic, name)))

    def broadcast_impl_shape(self, original: Any, input: Any, shape: Any) -> Any:
        return input if sizes(input.type) == tuple(shape) else original(input, shape)

    def broadcast_impl_value(self, original: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if sizes(lhs.type) == sizes(rhs.type) else original(lhs, rhs)

    def cast(self, original: Any, input: Any, dst_ty: Any, fp_downcast_rounding: Any = None) -> Any:
        same = input.type.scalar is dst_ty.scalar
        return input if same else original(input, dst_ty, fp_downcast_rounding)

    def scalar_constant(self, original: Any, value: Any, dtype: Any) -> Any:
        if type(value) not in NUMBERS or value != value:  # NaN has a sign that shows nowhere
            return original(value, dtype)
        key = type(value), repr(value), dtype.name  # repr: 0.0 is not -0.0
        if key not in self.constants:
            self.constants[key] = original(value, dtype).handle
            self.constants[key].data.flags.writeable = False  # a write is an error, not another number
        kept = self.constants[key]
        return self.semantic.tensor(self.handle(kept.data, kept.dtype), dtype)  # some shifts change handles

    def binary_op_type_checking_impl(
        self, original: Any, lhs: Any, rhs: Any, *how: Any, **more: Any
    ) -> tuple[Any, Any]:
        of_lhs, of_rhs = self._type_of(lhs), self._type_of(rhs)
        moved = how[:1] == (True,) and of_rhs is not None and of_rhs.is_int() and self._is_pointer(lhs)
        if moved or (of_lhs is of_rhs and of_rhs is not None):
            return self._alike(lhs, rhs)
        first = type(lhs) in NUMBERS
        number, ty = (lhs, of_rhs) if first else (rhs, of_lhs)
        if ty is None or type(number) not in NUMBERS:
            return original(lhs, rhs, *how, **more)
        key = first, type(number), repr(number), ty.name, how, tuple(more.items())
        if key not in self.promoted:
            lhs, rhs = original(lhs, rhs, *how, **more)
            self.promoted[key] = lhs.type.scalar, rhs.type.scalar
            return lhs, rhs
        return self._alike(*map(self._typed, (lhs, rhs), self.promoted[key]))

    def _type_of(self, operand: Any) -> Any:
        """Of a tensor's elements, if it is plain."""
        if type(operand) is not self.semantic.tensor:
            return None
        scalar = operand.type.scalar
        return scalar if scalar.name in PLAIN else None

    def _is_pointer(self, operand: Any) -> bool:
        return type(operand) is self.semantic.tensor and operand.type.scalar.is_ptr()

    def _typed(self, operand: Any, ty: Any) -> Any:
        is_number = type(operand) in NUMBERS
        return self.semantic.scalar_constant(operand, ty) if is_number else self.semantic.cast(operand, ty)

    def _alike(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """Both as blocks of one shape, each number once in memory. Arithmetic of two operands is all that may
        see them: Triton's loads and stores take no steps of 0."""
        one, other = sizes(lhs.type), sizes(rhs.type)
        if one == other:
            return lhs, rhs
        if one and other and not (len(one) == len(other) and all(map(_fits, one, other))):
            return self.broadcast(lhs, rhs)
        wide = tuple(map(max, one, other)) if one and other else one or other
        return self._spread(lhs, wide), self._spread(rhs, wide)

    def _spread(self, operand: Any, wide: tuple[int, ...]) -> Any:
        own, scalar = sizes(operand.type), operand.type.scalar
        if own == wide:
            return operand
        data = np.ascontiguousarray(operand.handle.data)
        steps = [0 if n == 1 else step for n, step in zip(own, data.strides, strict=True)] if own else None
        data = np.ndarray(wide, data.dtype, data, strides=steps or (0,) * len(wide))
        return self.semantic.tensor(self.handle(data, scalar), self.block_type(scalar, list(wide)))


def _fits(one: int, other: int) -> bool:
    return one == other or 1 in (one, other)


REPLACED = (
    "broadcast_impl_shape",
    "broadcast_impl_value",
    "cast",
    "scalar_constant",
    "binary_op_type_checking_impl",
)
