"""What of an sGraph a vendor's library can compute as well: products (`products.py`), and attention.

A kernel is attention by its denotation, whatever its statements, loops and tiles are: of

    sum_j exp(s[i, j] - m[i]) * v[j, e] / sum_j exp(s[i, j] - m[i]),    m[i] = max_j s[i, j]

with s[i, j] = scale * sum_d q[i, d] * k[j, d], everywhere or for j <= i alone and -inf elsewhere, over stored tensors
of one type. A product is read as its factors, those that a sum does not range over before it; so it does not matter
whether the weights are divided or the sum, and where the scale stands. All else is an affine place in a tensor:
operands are views of what is stored, with strides, and so are heads that share keys. Nothing else qualifies: a bias,
another mask, a part of a split.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from prism.errors import IllegalIRError
from prism.program.extents import Extent, add, exact_quotient, is_static, mul, product, strides_of
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, Map, Position, Read, Reduce, ReduceKind, Tensor, free_axes
from prism.program.transform import substitute
from prism.sgraph.denote import kernel_stores
from prism.sgraph.nodes import Gather, Kernel, Load, Pointwise, Scan, SGraph, Split, Store
from prism.sgraph.products import PlainProduct, plain_product

WIDEST = 256
"""The widest head that fused kernels of torch take, elements (by torch's own checks)."""
ALIGNED = 8
"""What every stride and width is a multiple of, elements: 16 bytes, as those kernels load (by torch's own checks)."""


@dataclass(frozen=True, slots=True)
class Strided:
    """A stored tensor as [batch, heads, rows, width]."""

    tensor: str  # its name
    offset: Extent  # of the first element
    sizes: tuple[Extent, Extent, Extent, Extent]  # of the four dimensions
    strides: tuple[Extent, Extent, Extent, Extent]  # of them, elements

    def is_whole(self, shape: Sequence[Extent]) -> bool:
        """Whether it is all of the tensor, of that shape, in the order in which it is stored."""
        dense = self.offset == 0 and self.strides == strides_of(self.sizes)
        return dense and product(self.sizes) == product(shape)


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """out = softmax(scale * query @ key.mT, where causal for keys up to the query alone) @ value."""

    query: Strided  # of every head
    key: Strided  # of as many heads, or of fewer, each for as many heads in a row
    value: Strided  # as the keys are
    out: Strided  # the result, as the queries are
    scale: float  # of the scores
    causal: bool  # whether query i is for keys up to i; there are as many of both then
    dtype: DType  # the element type of all tensors
    copied: bool  # whether the result is copied to its place from the library's, as it is unless it is a whole tensor

    @property
    def kind(self) -> tuple[bool, ...]:
        """What tells its cost from that of other kernels that move and compute as much."""
        return self.causal, self.copied

    @property
    def grouped(self) -> bool:
        """Whether several heads share their keys and values."""
        return self.query.sizes[1] != self.key.sizes[1]


def plain_attention(kernel: Kernel, sgraph: SGraph) -> PlainAttention | None:
    """The attention that a kernel of the sGraph is, or None when it is anything else."""
    touched = tuple(sgraph.tensor(name) for name in (*kernel.reads, *kernel.writes))
    dtypes = {t.dtype for t in touched}
    if len(dtypes) != 1 or not all(d.is_half for d in dtypes) or not _may_be(kernel):
        return None
    return _attention(kernel, touched)


def _may_be(kernel: Kernel) -> bool:
    """Whether it is worth its denotation: a store, exponentials, no part of a split."""
    found = [*kernel.statements()]
    stores = [s for s in found if isinstance(s, Store)]
    if any(isinstance(s, Gather | Scan) for s in found) or len(stores) != 1 or stores[0].places:
        return False
    if not 3 <= sum(isinstance(s, Load) for s in found) <= 6:
        return False
    if any(isinstance(r, Split) or a.name.endswith(".part") for a, r in kernel.roles):
        return False
    return any(isinstance(s, Pointwise) and s.op == "exp" for s in found)


@lru_cache(maxsize=1024)
def _attention(kernel: Kernel, touched: tuple[Tensor, ...]) -> PlainAttention | None:
    try:
        ((tensor, (index, value)),) = kernel_stores(kernel).items()
    except IllegalIRError:
        return None
    found = _softmax(value)
    return None if found is None else _viewed(*found, Read(tensor, index), {t.name: t for t in touched})


# The value.


@dataclass(frozen=True, slots=True)
class _Sum:
    """Over an axis, of a product of factors that all depend on it."""

    axis: Axis
    factors: tuple[_Factor, ...]


_Factor = Expr | _Sum


@dataclass(frozen=True, slots=True)
class _Scores:
    """scale * sum_width query * key, where `kept` is not negative; -inf elsewhere."""

    scale: float
    query: Read
    key: Read
    width: Axis
    kept: Index | None = None

    def like(self, other: _Scores) -> bool:
        """Whether they are the same but for rounding of the scale."""
        return math.isclose(self.scale, other.scale, rel_tol=1e-12) and (
            (self.query, self.key, self.width, self.kept) == (other.query, other.key, other.width, other.kept)
        )


def _factors(e: Expr) -> list[_Factor]:
    """What the expression is the product of; of sums, what does not depend on their axis stands before them."""
    match e:
        case Map("mul", args):
            return [f for a in args for f in _factors(a)]
        case Map("neg", (a,)):
            return [Const(-1.0), *_factors(a)]
        case Reduce(ReduceKind.SUM, axis, body):
            within = _factors(body)
            own = tuple(f for f in within if axis in _free(f))
            return [*(f for f in within if axis not in _free(f)), _Sum(axis, own)] if own else [e]
        case _:
            return [e]


def _free(f: _Factor) -> frozenset[Axis]:
    if isinstance(f, _Sum):
        return frozenset[Axis]().union(*map(_free, f.factors)) - {f.axis}
    return free_axes(f)


def _softmax(value: Expr) -> tuple[_Scores, Read, Axis] | None:
    """The scores, what they weigh, and the axis of the keys."""
    match sorted(_factors(value), key=lambda f: isinstance(f, _Sum)):
        case [Map("recip", (Reduce(ReduceKind.SUM, under, weights),)), _Sum(keys, (one, other))]:
            weight, read = (other, one) if isinstance(one, Read) else (one, other)
            above = None if isinstance(weight, _Sum) else _weights(weight, keys)
            below = _weights(substitute(weights, {under: Index.axis(keys)}), keys)
            if above is None or below is None or not above.like(below) or not isinstance(read, Read):
                return None
            return above, read, keys
        case _:
            return None


def _weights(e: Expr, keys: Axis) -> _Scores | None:
    """The scores of which these are the exponentials, less their largest over the keys."""
    match e:
        case Map("exp", (Map("add", (one, other)),)):
            scores, shift = (one, other) if keys in free_axes(one) else (other, one)
        case _:
            return None
    found, least = _scores(scores), _split(_factors(shift))
    match least:
        case [number, [Reduce(ReduceKind.MAX, axis, body)]] if found is not None and number < 0:
            largest = _scores(substitute(body, {axis: Index.axis(keys)}), -number)
            return found if largest is not None and largest.like(found) else None
        case _:
            return None


def _split(factors: Sequence[_Factor]) -> tuple[float, list[_Factor]]:
    """The product of the numbers among factors, and the others."""
    return (
        math.prod(f.value for f in factors if isinstance(f, Const)),
        [f for f in factors if not isinstance(f, Const)],
    )


def _scores(e: Expr, times: float = 1.0) -> _Scores | None:
    """The expression, times a positive number, as scores."""
    number, others = _split(_factors(e))
    number *= times
    match others:
        case [_Sum(axis, (Read() as one, Read() as other))]:
            width = Axis("width", axis.extent)
            first, second = (_renamed(r, axis, width) for r in (one, other))
            # The keys' axis decides which is which, once all is known; till then the order is that of names.
            query, key = sorted((first, second), key=str)
            return _Scores(number, query, key, width)
        case [Map("where", (mask, then, otherwise))] if number > 0:
            kept = _not_negative(mask)
            inf = Const(float("-inf"))
            if kept is None or (then != inf and otherwise != inf):
                return None
            if then == inf:
                kept, then = (kept + 1).scaled(-1), otherwise
            inner = _scores(then, number)
            if inner is None or inner.kept is not None:
                return None
            return _Scores(inner.scale, inner.query, inner.key, inner.width, kept)
        case _:
            return None


def _renamed(read: Read, axis: Axis, new: Axis) -> Read:
    return Read(read.tensor, tuple(i.substitute({axis: Index.axis(new)}) for i in read.index))


def _not_negative(mask: Expr) -> Index | None:
    """What is not negative just where the mask holds, if that is a comparison of places."""
    match mask:
        case Map("le" | "lt" as op, (low, high)):
            first, second = _place(low), _place(high)
            if first is None or second is None:
                return None
            return second + first.scaled(-1) + (-1 if op == "lt" else 0)
        case Map("not", (inner,)):
            found = _not_negative(inner)
            return None if found is None else (found + 1).scaled(-1)
        case _:
            return None


def _place(e: Expr) -> Index | None:
    match e:
        case Position(index):
            return index
        case Const(value) if value.is_integer():
            return Index.const(int(value))
        case Map("add", (one, other)):
            first, second = _place(one), _place(other)
            return None if first is None or second is None else first + second
        case Map("mul", (Const(value), other)) | Map("mul", (other, Const(value))) if value.is_integer():
            found = _place(other)
            return None if found is None else found.scaled(int(value))
        case Map("neg", (other,)):
            found = _place(other)
            return None if found is None else found.scaled(-1)
        case _:
            return None


# The views.


@dataclass(frozen=True, slots=True)
class _Flat:
    """Where an element lies in its tensor: the strides of axes, outermost first, and an offset."""

    tensor: str
    strides: Mapping[Axis, Extent]
    offset: Extent

    def has(self, axes: Sequence[Axis]) -> bool:
        return all(a in self.strides for a in axes)

    def merged(self, axes: Sequence[Axis]) -> tuple[Extent, Extent | None] | None:
        """Size and stride of the axes as one, the last the fastest; None where they do not lie so."""
        for outer, inner in itertools.pairwise(axes):
            if self.strides[outer] != mul(self.strides[inner], inner.extent):
                return None
        return product([a.extent for a in axes]), self.strides[axes[-1]] if axes else None

    def view(self, batch: Sequence[Axis], heads: Sequence[Axis], rows: Sequence[Axis], width: Axis) -> Strided | None:
        """The tensor in four dimensions, if that takes no copy."""
        sizes, strides = [width.extent], [self.strides[width]]
        for axes in (rows, heads, batch):
            found = self.merged(axes)
            if found is None:
                return None
            # What is of extent 1 lies as if it were not.
            strides.append(mul(sizes[-1], strides[-1]) if found[1] is None else found[1])
            sizes.append(found[0])
        if any(exact_quotient(s, ALIGNED) is None for s in (self.offset, *strides[1:])):
            return None
        a, b, c, d = reversed(sizes)
        e, f, g, h = reversed(strides)
        return Strided(self.tensor, self.offset, (a, b, c, d), (e, f, g, h))


def _flat(read: Read, tensor: Tensor) -> _Flat | None:
    strides: dict[Axis, Extent] = {}
    offset: Extent = 0
    for i, unit in zip(read.index, strides_of(tensor.shape), strict=True):
        if not i.is_affine():
            return None
        offset = add(offset, mul(i.offset, unit))
        # Within a dimension the coarser terms come first, where that can be told.
        for a, c in sorted(i.terms, key=lambda t: -t[1] if isinstance(t[1], int) else -math.inf):
            if not isinstance(a, Axis) or a in strides:
                return None
            strides[a] = mul(c, unit)
    return _Flat(tensor.name, strides, offset)


def _viewed(
    scores: _Scores, values: Read, keys: Axis, result: Read, tensors: Mapping[str, Tensor]
) -> PlainAttention | None:
    """The attention with its operands as views, if there are such."""
    one, other, value, out = (_flat(r, tensors[r.tensor]) for r in (scores.query, scores.key, values, result))
    if one is None or other is None or value is None or out is None or (keys in one.strides) == (keys in other.strides):
        return None
    query, key = (other, one) if keys in one.strides else (one, other)
    columns = [a for a in out.strides if a not in query.strides and a not in key.strides]
    if len(columns) != 1 or keys in out.strides or scores.width in value.strides:
        return None
    (column,) = columns
    if any(
        f.strides.get(a) != 1 for f, a in ((query, scores.width), (key, scores.width), (value, column), (out, column))
    ):
        return None
    extent = column.extent
    if extent != scores.width.extent or not is_static(extent) or extent > WIDEST or int(extent) % ALIGNED:
        return None
    batch = [a for a in out.strides if a in query.strides and a in key.strides]
    own = [a for a in out.strides if a in query.strides and a not in key.strides]
    # Every axis belongs to what it should, and to nothing else.
    every = (
        (query, {*batch, *own, scores.width}),
        (key, {*batch, keys, scores.width}),
        (value, {*batch, keys, column}),
        (out, {*batch, *own, column}),
    )
    if any({*f.strides} != axes for f, axes in every):
        return None
    causal = scores.kept is not None
    for groups, rows in _rows(own, scores.kept, keys):
        # The last axis that keys have is their heads, if it can be.
        for split in (*reversed(range(len(batch))), len(batch)):
            outer, heads = batch[:split], batch[split:]
            views = [f.view(outer, [*heads, *groups], rows, w) for f, w in ((query, scores.width), (out, column))]
            views += [f.view(outer, heads, [keys], w) for f, w in ((key, scores.width), (value, column))]
            found = [v for v in views if v is not None]
            if len(found) == 4:
                dtype, copied = tensors[query.tensor].dtype, not found[1].is_whole(tensors[result.tensor].shape)
                return PlainAttention(found[0], found[2], found[3], found[1], scores.scale, causal, dtype, copied)
    return None


def _rows(own: Sequence[Axis], kept: Index | None, keys: Axis) -> Iterator[tuple[list[Axis], list[Axis]]]:
    """The ways to tell heads that share their keys from the rows of one, among the axes that keys do not have."""
    if kept is None:
        # Queries of several heads are rows of one: keys are loaded once for all.
        yield [], [*own]
    for row in reversed(own):
        if kept is None or (row.extent == keys.extent and kept == Index.axis(row) + Index.axis(keys).scaled(-1)):
            yield [a for a in own if a != row], [row]


LibraryCall: TypeAlias = PlainProduct | PlainAttention


def library_call(kernel: Kernel, sgraph: SGraph) -> LibraryCall | None:
    """What a library computes in place of the kernel; None when it has nothing for it."""
    return plain_product(kernel, sgraph) or plain_attention(kernel, sgraph)


def library_calls(sgraph: SGraph) -> dict[str, LibraryCall]:
    """The launches of one kernel that a library has something for, by name, in order."""
    lone = {x.name: x.kernels[0] for x in sgraph.launches if len(x.kernels) == 1}
    found = {name: library_call(k, sgraph) for name, k in lone.items()}
    return {name: c for name, c in found.items() if c is not None}
