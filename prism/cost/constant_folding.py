"""What a model computes from its weights alone, computed once, when it is read.

A definition that reads weights and constants alone is the same at every call: T5's position biases, a table of rotary
angles, a weight that is normalised. It becomes a weight of its own name, whose values are computed as the model does,
each definition rounded to its data type, so that what decides by them (a bucket, a comparison) decides alike. What is
searched, proved and emitted then reads it. So it is a statement of the program, as what a reader folds: a folder's
proof is of the program with these weights, and `prism verify FOLDER --model` folds the model again.

Reading more is not free: what is folded has to save more operations than the bytes that it adds are worth, unless
rounded numbers decide something in it, which programs are evaluated without. So a causal mask stays a predicate, a
weight of eight bits stays what is read, and what is only a view stays a view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from prism.program.arrays import NumpyArrays, numpy_type
from prism.program.evaluate import bind, run
from prism.program.extents import is_static
from prism.program.lookup import lookup
from prism.program.nodes import Definition, DType, Map, Program, Steps, free_axes, walk
from prism.program.products import work
from prism.program.region import reads, subprogram

OPERATIONS_PER_BYTE = 8
"""Operations that take as long as a byte from memory (data sheets: 4 on two cores of an EPYC 9004, 14 on an H200)."""
PICKED = 16
"""Operations that a load at a place which data give takes (guess: the lanes of a vector, each a load of its own)."""
LARGEST = 1 << 26
"""Operations above which nothing is computed when a model is read (guess: about a second)."""


def fold_constants(program: Program) -> Program:
    """The program with the definitions as weights that hang on weights alone, where that is worth the bytes.

    Folding what it returns changes nothing.
    """
    while (found := _folded(program)) is not program:
        program = found  # beside what was folded another definition may be worth its bytes
    return program


def _folded(program: Program) -> Program:
    """The same, as far as is seen at once; the program itself where nothing is."""
    if not program.weights:
        return program
    cones = _Cones(program)
    read = {t for d in program.definitions if d.name not in cones.constant for t in reads(d.expr)}
    # An output stays one: what returns the same at every call is computed by it, and nothing is gained.
    waiting = [t for t in sorted(read & cones.constant, key=program.order.__getitem__) if t not in program.outputs]
    chosen: dict[str, None] = {}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in program.outputs and cones.worth(name):
            chosen[name] = None
        else:
            waiting += [t for t in reads(program.definition(name).expr) if t in cones.constant]
    if not chosen:
        return program
    return _with_weights(program, _values(program, list(chosen)))


class _Cones:
    """The constant definitions of a program, and what hangs on them."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.constant: set[str] = set()  # the definitions that read weights, or nothing, of extents that are known
        for d in program.definitions:
            known = all(t in program.weights or t in self.constant for t in reads(d.expr))
            if known and _plain(d):
                self.constant.add(d.name)

    def worth(self, name: str) -> bool:
        """Whether reading it takes less than computing it anew does."""
        cone, sources = self._cone(name)
        operations = sum(_operations(self._program.definition(t)) for t in cone)
        size = self._bytes(name)
        if operations > LARGEST or size > LARGEST or not sources:
            return False
        if any(map(self._decides, cone)):
            return True  # rounded as the model does, or it may decide otherwise
        more = size - sum(map(self._bytes, sources))
        return operations > max(0, more) * OPERATIONS_PER_BYTE

    def _decides(self, name: str) -> bool:
        """Whether numbers that were computed are cut to whole ones or compared in a definition."""
        d = self._program.definition(name)
        cuts = not d.dtype.is_float or any(isinstance(e, Map) and e.op in ("floor", "round") for e in walk(d.expr))
        return cuts and any(t in self.constant and self._program.tensor(t).dtype.is_float for t in reads(d.expr))

    def _cone(self, name: str) -> tuple[list[str], set[str]]:
        """The definitions that it hangs on, itself among them, and the weights that these read."""
        cone: dict[str, None] = {}
        sources: set[str] = set()
        stack = [name]
        while stack:
            t = stack.pop()
            if t in self._program.weights:
                sources.add(t)
            elif t not in cone:
                cone[t] = None
                stack += reads(self._program.definition(t).expr)
        return list(cone), sources

    def _bytes(self, name: str) -> int:
        t = self._program.tensor(name)
        return math.prod(map(int, t.shape)) * t.dtype.bytes


def _plain(d: Definition) -> bool:
    """Whether it is computed at extents that are known, and outside of loops."""
    return all(is_static(a.extent) for a in d.axes) and not any(isinstance(e, Steps) for e in walk(d.expr))


def _operations(d: Definition) -> int:
    """Operations of a definition, weighed as `OPS` does; a view has none, and what data give the place of is loaded."""
    if d.view:
        return 0
    found = work(d.expr)
    picked = [e for e in map(lookup, walk(d.expr)) if e is not None]
    over = [*found.others, *((1, p.axes) for p in found.products)]
    over += [(PICKED, free_axes(e.element) | free_axes(e.place)) for e in picked]
    one = {e.axis for e in picked}
    return sum(cost * math.prod(int(a.extent) for a in axes - one) for cost, axes in over)


class _Rounding(NumpyArrays):
    """numpy, by which every definition is rounded to its data type."""

    def store(self, array: np.ndarray, dtype: DType) -> np.ndarray:
        """The numbers that such a tensor holds, in float64."""
        return _stored(array, dtype).astype(np.float64)


def _stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The array in its data type, bfloat16 as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.asarray(array, dtype=np.float64, order="C").astype(numpy_type(dtype))
    return found.astype(np.float32) if dtype is DType.BFLOAT16 else found


def _values(program: Program, names: Sequence[str]) -> dict[str, np.ndarray]:
    """What the definitions are, by name."""
    part = subprogram(program, program.name, names)
    given = {t.name: np.asarray(program.weights[t.name], dtype=np.float64) for t in part.inputs}
    with np.errstate(all="ignore"):
        found = run(part, given, bind(part.inputs, {name: a.shape for name, a in given.items()}), _Rounding())
    return {name: _stored(array, program.tensor(name).dtype) for name, array in found.items()}


def _with_weights(program: Program, values: Mapping[str, np.ndarray]) -> Program:
    """The program with such definitions as weights, without what nothing reads any more."""
    below = subprogram(program, program.name, program.outputs, values)
    needed = {d.name for d in below.definitions}
    read = {t for d in below.definitions for t in reads(d.expr)}
    return replace(
        program,
        inputs=(
            *(t for t in program.inputs if t.name in read or t.name not in program.weights),
            *(program.tensor(name) for name in values),
        ),
        definitions=tuple(d for d in program.definitions if d.name in needed),
        weights={n: w for n, w in program.weights.items() if n in read} | dict(values),
    )
