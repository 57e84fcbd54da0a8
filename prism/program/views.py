"""Views as index arithmetic: what every front end needs to say reshape, transpose, broadcast, slice and concatenate.

Each function returns the expression (or the indices) of one element of the result, written over the result's axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from prism.errors import ShapeError, UnsupportedError
from prism.program.deferred import Deferred
from prism.program.extents import Extent, add, at_most, exact_quotient, is_static, mul, normal, product
from prism.program.index import Axis, Index, row_major

if TYPE_CHECKING:
    import sympy
else:
    sympy = Deferred("sympy")

Shape: TypeAlias = tuple[Extent, ...]
Elements: TypeAlias = npt.NDArray[np.object_]
"""Whole numbers known at translation, as extents."""

MAX_CHOICES = 64
"""The most places of a lookup that are written out, one choice for each."""

MAX_PIECES = 8
"""The most progressions that more places may be, one after another: of those that reflect a border there are three."""


def axes_of(shape: Sequence[Extent], prefix: str = "i") -> tuple[Axis, ...]:
    """One fresh axis per dimension: i0, i1, ... ; use another prefix for axes that a reduction binds."""
    return tuple(Axis(f"{prefix}{d}", normal(extent)) for d, extent in enumerate(shape))


def same_extent(a: Extent, b: Extent) -> bool:
    """Whether two extents are equal for every value of their symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(sympy.expand(sympy.sympify(a) - b) == 0)


def compare_extents(name: str, a: Extent, b: Extent) -> bool | None:
    """Whether a < b (lt), a <= b (le) or a = b (eq) for every value of the symbols; None when that depends."""
    match name:
        case "lt":
            return True if at_most(add(a, 1), b) else False if at_most(b, a) else None
        case "le":
            return True if at_most(a, b) else False if at_most(add(b, 1), a) else None
        case _:
            if same_extent(a, b):
                return True
            return False if at_most(add(a, 1), b) or at_most(add(b, 1), a) else None


def broadcast_index(shape: Shape, at: Sequence[Index]) -> list[Index]:
    """The index of what broadcasts to the dimensions that `at` is an index into, aligned at the last one."""
    aligned = at[len(at) - len(shape) :]
    return [Index.const(0) if e == 1 else i for e, i in zip(shape, aligned, strict=True)]


def broadcast_shapes(*shapes: Sequence[Extent], where: str = "") -> Shape:
    """The shape that the shapes broadcast to, aligned at the last dimension.

    Raises:
        ShapeError: two extents differ and neither is 1.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Extent] = []
    for d in range(rank):
        extent: Extent = 1
        for shape in shapes:
            position = d - (rank - len(shape))
            if position < 0 or shape[position] == 1:
                continue
            if extent == 1:
                extent = normal(shape[position])
            elif not same_extent(extent, shape[position]):
                raise ShapeError(
                    f"shapes {', '.join(shape_text(s) for s in shapes)} do not broadcast",
                    where=where,
                    why=f"extents {extent} and {shape[position]} meet",
                    fix="check the shapes of the operands",
                    differ=(extent, shape[position]),
                    stretch=True,
                )
        result.append(extent)
    return tuple(result)


def resolve_shape(shape: Sequence[Extent], requested: Sequence[Extent], where: str = "") -> Shape:
    """`requested` with a single -1 replaced by what the number of elements leaves.

    Raises:
        ShapeError: the numbers of elements differ, or -1 has no integer solution.
        UnsupportedError: whether it has one depends on the symbols.
    """
    total = product(shape)
    known = product([e for e in requested if e != -1])
    holes = sum(e == -1 for e in requested)
    if holes == 0 and same_extent(total, known):
        return tuple(normal(e) for e in requested)
    if holes == 1 and known != 0:
        hole = exact_quotient(total, known)
        if hole is not None:
            return tuple(hole if e == -1 else normal(e) for e in requested)
    # Dimensions at one place that are called otherwise on the two sides are meant to be one.
    named = (pair for pair in zip(shape, requested, strict=False) if all(isinstance(e, sympy.Symbol) for e in pair))
    differ = next((pair for pair in named if pair[0] != pair[1]), None if holes else (total, known))
    if holes == 1 and differ is None and not (is_static(total) and is_static(known)):
        raise UnsupportedError(
            f"shape {shape_text(shape)} is not known to be viewed as {shape_text(requested)}",
            where=where,
            why=f"whether {total} is a multiple of {known} depends on the sizes",
            fix="export with these dimensions fixed",
        )
    raise ShapeError(
        f"shape {shape_text(shape)} cannot be viewed as {shape_text(requested)}",
        where=where,
        why="the numbers of elements differ",
        fix="check the requested shape",
        differ=differ,
        stretch=differ is not None and differ[0] is not total,
    )


def reshape_index(shape: Sequence[Extent], axes: Sequence[Axis], where: str = "") -> tuple[Index, ...]:
    """For each dimension of `shape`, its index when the elements are laid out row-major over `axes` instead.

    The dimensions are matched in the smallest groups of equal numbers of elements, so that a dimension that stays
    whole is its axis, a merge is `n*i + j`, and only a split leaves `//` and `%`.

    Raises:
        ShapeError: the numbers of elements differ.
    """
    index: list[Index] = []
    i = j = 0
    while i < len(shape) or j < len(axes):
        old, new = [i] if i < len(shape) else [], [j] if j < len(axes) else []
        many_old: Extent = shape[i] if old else 1
        many_new: Extent = axes[j].extent if new else 1
        while not same_extent(many_old, many_new):
            next_old, next_new = i + len(old), j + len(new)
            # The side that is smaller takes one more dimension; where that is not known, the side that divides.
            take_old = (_smaller(many_old, many_new) and next_old < len(shape)) or next_new >= len(axes)
            if take_old and next_old >= len(shape):
                raise ShapeError(
                    f"shape {shape_text(shape)} cannot be viewed as {shape_text([a.extent for a in axes])}",
                    where=where,
                    why="the numbers of elements differ",
                    fix="check the requested shape",
                )
            if take_old:
                many_old = mul(many_old, shape[next_old])
                old.append(next_old)
            else:
                many_new = mul(many_new, axes[next_new].extent)
                new.append(next_new)
        index += _group([shape[d] for d in old], [axes[d] for d in new])
        i, j = i + len(old), j + len(new)
    return tuple(index)


def _smaller(a: Extent, b: Extent) -> bool:
    if at_most(a, b):
        return True
    if at_most(b, a):
        return False
    # Neither is known to be smaller: the one that divides the other is the one to grow.
    return exact_quotient(b, a) is not None


def _group(shape: Sequence[Extent], axes: Sequence[Axis]) -> list[Index]:
    linear = row_major(axes)
    index: list[Index] = []
    for d, extent in enumerate(shape):
        inner = product(shape[d + 1 :])
        outermost = d == 0 or product(shape[:d]) == 1
        part = linear.floordiv(inner)
        index.append(Index.const(0) if extent == 1 else part if outermost else part.mod(extent))
    return index


def shape_text(shape: Sequence[Extent]) -> str:
    """Lengths as messages write them."""
    return f"[{', '.join(map(str, shape))}]"


def places_index(elements: Elements, at: Sequence[Index]) -> Index | None:
    """Elements as an index of their place: a sum over dimensions of multiples of the digits of the position there.

    So are progressions, transposed, interleaved and repeated ranges. None for others.
    """
    if elements.size == 0:
        return None
    first = elements.ravel()[0]
    steps = [
        _digits([elements[_along(elements, d, p)] - first for p in range(n)]) for d, n in enumerate(elements.shape)
    ]
    for place in np.ndindex(elements.shape):
        expected = first
        for d, p in enumerate(place):
            expected += sum(s * (p // unit % size) for s, unit, size in steps[d])
        if not same_extent(expected, elements[place]):
            return None
    total = Index.const(first)
    for extent, position, parts in zip(elements.shape, at, steps, strict=True):
        for step, unit, size in parts:
            digit = position if unit == 1 else position.floordiv(unit)
            total = total + (digit if unit * size == extent else digit.mod(size)).scaled(step)
    return total


def progressions(table: Elements, axes: Sequence[Axis]) -> tuple[Axis, list[tuple[int, Index]]] | None:
    """Elements that vary along one axis as progressions one after another: where each begins, and its index there.

    None where there are more than MAX_PIECES, another axis along which elements vary, or one that is no number. `axes`
    stand for the table's dimensions.
    """
    along = [a for a, many in zip(axes, table.shape, strict=True) if many != 1]
    elements = table.ravel().tolist()
    if len(along) != 1 or not elements or not all(isinstance(e, int) for e in elements):
        return None
    pieces: list[tuple[int, Index]] = []
    start = 0
    while start < len(elements) and len(pieces) <= MAX_PIECES:
        step = elements[start + 1] - elements[start] if start + 1 < len(elements) else 0
        end = start + 1
        while end < len(elements) and elements[end] == elements[end - 1] + step:
            end += 1
        pieces.append((start, Index.axis(along[0]).scaled(step) + (elements[start] - step * start)))
        start = end
    return (along[0], pieces) if len(pieces) <= MAX_PIECES else None


def _along(elements: Elements, d: int, p: int) -> tuple[int, ...]:
    return tuple(p if e == d else 0 for e in range(elements.ndim))


def _digits(line: Sequence[Extent]) -> list[tuple[Extent, int, int]]:
    """(step, unit, size) of the digits of the position, position // unit % size, that the elements step by.

    What the elements are at the first places of each digit; whether they are that at the others remains to be seen.
    """
    found: list[tuple[Extent, int, int]] = []
    unit, count = 1, len(line)
    while unit < count:
        step = add(line[unit], mul(-1, line[0]))
        size = 2
        while size * unit < count and same_extent(line[size * unit], add(line[0], mul(size, step))):
            size += 1
        if (count // unit) % size:
            size = count // unit
        found.append((step, unit, size))
        unit *= size
    return found
