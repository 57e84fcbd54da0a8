"""Triton's interpreter made stricter and more like a GPU than it is; torch, triton and numpy alone.

- a load or store outside the kernel's tensors is an error and not a crash, and so is storing an element twice;
- fresh memory holds NaN, so that reading what nobody wrote shows;
- bfloat16, which the interpreter keeps as uint16, is rounded to nearest, and widened for products and differences;
- TF32 products round their operands.
- a maximum or minimum over an axis is NaN where an element is, as the emitted `larger` and `smaller` are on a GPU;
- a comparison of scalars stays a truth value where it is spread over a tile, so that masks can be joined with it;
- a scalar is a Python integer, for the bounds of a loop, whatever numpy thinks of arrays with one element (2.4 refuses
  those that Triton 3.6 hands it);
- functions that kernels call are prepared once a launch and not at every call, which costs as much as ten statements;
- integers wrap without being watched, as they do on a GPU: the checks take a third of the time, and assert nothing
  unless a kernel is debugged; numpy's type of one of Triton's is looked up in a table that is not made at each look.

Triton decides when it is imported whether it interprets, so TRITON_INTERPRET has to be set before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np


class MemoryGuard:
    """The memory that the kernel in flight may touch, and what it has stored."""

    def __init__(self) -> None:
        self.starts = np.empty(0, np.uint64)
        self.ends = np.empty(0, np.uint64)
        self.stored: list[np.ndarray] = []

    def open(self, tensors: list[Any]) -> None:
        """The tensors of a launch."""
        spans = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors)
        self.starts = np.array([a for a, _ in spans], np.uint64)
        self.ends = np.array([b for _, b in spans], np.uint64)
        self.stored = []

    def check(self, pointers: Any, mask: Any, what: str) -> Any:
        """The pointers that the mask lets through; all must be in a tensor."""
        # A truth value that was spread over a tile comes as an integer.
        where, let_through = np.broadcast_arrays(pointers, mask.astype(bool))
        touched = where[let_through]
        if touched.size:
            # Mostly all are in one tensor.
            first = int(np.searchsorted(self.starts, touched.min(), side="right")) - 1
            if first >= 0 and touched.max() < self.ends[first]:
                return touched
            at = np.searchsorted(self.starts, touched, side="right") - 1
            if (at < 0).any() or (touched >= self.ends[np.maximum(at, 0)]).any():
                raise IndexError(f"{what} outside of every tensor of the kernel")
        return touched

    def close(self) -> None:
        """The launch has ended."""
        if self.stored:
            addresses = np.concatenate([s.ravel() for s in self.stored])
            if np.unique(addresses).size != addresses.size:
                raise RuntimeError("an element is stored twice: programs race, or a loop repeats a store")
        self.stored = []


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 as bfloat16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).reshape(values.shape)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bits as float32."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(bits.shape)


def round_tf32(values: np.ndarray) -> np.ndarray:
    """float32 with a fraction of ten bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded, bits).astype(np.uint32).view(np.float32).reshape(values.shape)


def harden() -> None:
    """Makes the interpreter check memory and treat bfloat16 and TF32 as a GPU does."""
    import torch
    import triton.language as tl
    from triton.runtime import interpreter

    guard = MemoryGuard()
    builder = interpreter.InterpreterBuilder
    handle = interpreter.TensorHandle
    load, store, cast, dot, splat, subtract = (
        builder.create_masked_load,
        builder.create_masked_store,
        builder.cast_impl,
        builder.create_dot,
        builder.create_splat,
        builder.create_fsub,
    )
    executor = interpreter.GridExecutor
    prepare, launch = executor._init_args_hst, executor.__call__

    def masked_load(self: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        # A descriptor's mask is an array, whose data is a buffer.
        guard.check(pointers.data, np.asarray(mask.data), "a load")
        return load(self, pointers, mask, *rest, **named)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        guard.stored.append(guard.check(pointers.data, mask.data, "a store"))
        return store(self, pointers, value, mask, *rest)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        before, after = source.dtype.scalar, target.scalar
        if before == tl.bfloat16 and after != tl.bfloat16:
            return (
                cast(self, handle(from_bfloat16(source.data), tl.float32), target)
                if after != tl.float32
                else handle(from_bfloat16(source.data), tl.float32)
            )
        if after == tl.bfloat16 and before != tl.bfloat16:
            wide = source if before == tl.float32 else cast(self, source, tl.float32)
            return handle(to_bfloat16(wide.data), tl.bfloat16)
        return cast(self, source, target)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> Any:
        widened = []
        for operand in (a, b):
            data = operand.data
            if operand.dtype.scalar == tl.bfloat16:
                data = from_bfloat16(data)
            elif operand.dtype.scalar == tl.float16:
                data = data.astype(np.float32)
            elif operand.dtype.scalar == tl.float32 and str(precision).endswith("TF32"):
                data = round_tf32(data)
            widened.append(handle(data, tl.float32))
        return dot(self, *widened, d, precision, *rest)

    def create_fsub(self: Any, a: Any, b: Any) -> Any:
        if a.dtype.scalar != tl.bfloat16:
            return subtract(self, a, b)
        return handle(to_bfloat16(from_bfloat16(a.data) - from_bfloat16(b.data)), tl.bfloat16)

    def get_bf16(self: Any, value: float) -> Any:
        return handle(to_bfloat16(np.array([value], np.float32)), tl.bfloat16)

    def create_splat(self: Any, spread: Any, scalar: Any) -> Any:
        # The interpreter would take the type of what was compared, which is a float's.
        if scalar.data.dtype == np.bool_:
            return handle(np.full(spread.shape, scalar.data.reshape(-1)[0]), tl.int1)
        return splat(self, spread, scalar)

    numpy_types: dict[str, Any] = {}
    look_up = interpreter._get_np_dtype

    def numpy_type(made_of: Any) -> Any:
        scalar = made_of.scalar
        if scalar.name not in numpy_types:
            numpy_types[scalar.name] = look_up(scalar)
        return numpy_types[scalar.name]

    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        found = prepare(self, args, kwargs)
        prepared.clear()
        guard.open([a for a in [*found[0], *found[1].values()] if hasattr(a, "data_ptr")])
        return found

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = launch(self, *args, **kwargs)
        guard.close()
        return result

    prepare_tensor = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        prepare_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    device_function = interpreter.InterpretedFunction
    patch = interpreter._patch_lang
    reduction = interpreter.ReduceOps
    reduce = reduction.apply_impl
    prepared: set[tuple[int, ...]] = set()

    def patched(fn: Any) -> Any:
        # What a launch (or an earlier call in it) has made of the language holds until the launch ends.
        prepared.add(_languages(fn))
        return patch(fn)

    def call_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _languages(self.fn) not in prepared:
            patched(self.fn)
        return self.rewrite()(*args, **kwargs)

    def _languages(fn: Any) -> tuple[int, ...]:
        return tuple(sorted(id(v) for v in fn.__globals__.values() if v is tl or v is tl.core))

    def reduce_impl(self: Any, values: Any) -> Any:
        # By name: each module has its own function. The interpreter would walk its elements one by one.
        name = getattr(self.combine_fn, "__name__", "")
        whole = {"larger": np.max, "smaller": np.min, "multiply": np.prod}.get(name)
        return reduce(self, values) if whole is None else self.min_max(values[0], val_reduce_op=whole)

    language = interpreter.interpreter_builder
    language.options = replace(language.options, sanitize_overflow=False)
    interpreter._get_np_dtype = numpy_type
    builder.create_masked_load = masked_load
    builder.create_masked_store = masked_store
    builder.cast_impl = cast_impl
    builder.create_dot = create_dot
    builder.create_splat = create_splat
    builder.create_fsub = create_fsub
    builder.get_bf16 = get_bf16
    executor._init_args_hst = init_args
    executor.__call__ = call
    interpreter._patch_lang = patched
    interpreter._patch_lang_tensor = patch_tensor
    device_function.__call__ = call_device
    reduction.apply_impl = reduce_impl

    empty = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> Any:
        made = empty(*args, **kwargs)
        if made.is_floating_point():
            made.fill_(float("nan"))
        return made

    torch.empty = poisoned
