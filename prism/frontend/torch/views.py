"""ATen's views, slices and concatenations, as reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from prism.frontend.sizes import not_negative
from prism.frontend.torch.values import Handler, Node, Result, TorchValue, converted
from prism.program import build
from prism.program.evaluate import evaluate_expr
from prism.program.extents import Extent, add, at_most, is_static, mul
from prism.program.fold import chosen, in_a_row, op
from prism.program.index import Axis, Index
from prism.program.lookup import from_end, looked_up
from prism.program.nodes import Const, DType, Expr, Read, ReduceKind, Size, walk
from prism.program.views import (
    MAX_CHOICES,
    axes_of,
    broadcast_index,
    places_index,
    progressions,
    reshape_index,
    same_extent,
)

_COUNTED = 1 << 14
"""Places beyond which a formula of positions is not counted out."""


def _indices(axes: Sequence[Axis]) -> list[Index]:
    return [Index.axis(a) for a in axes]


def _view(
    n: Node, index: Sequence[Index], result: int = 0, axes: Sequence[Axis] | None = None, x: TorchValue | None = None
) -> TorchValue:
    return n.define((n["self"] if x is None else x).at(index), axes, result=result, view=True)


def _permuted(n: Node, permutation: Sequence[int]) -> TorchValue:
    index = [Index.const(0)] * len(permutation)
    for axis, source in zip(n.axes, permutation, strict=True):
        index[source] = Index.axis(axis)
    return _view(n, index)


def _permute(n: Node) -> Result:
    rank = len(n["self"].shape)
    return _permuted(n, [d % rank for d in n["dims"]])


def _transpose(n: Node) -> Result:
    rank = len(n["self"].shape)
    if rank == 0:
        return _permuted(n, [])
    order = list(range(rank))
    a, b = n["dim0"] % rank, n["dim1"] % rank
    order[a], order[b] = order[b], order[a]
    return _permuted(n, order)


def _reversed(n: Node) -> Result:
    return _permuted(n, list(reversed(range(len(n["self"].shape)))))


def _matrix_transpose(n: Node) -> Result:
    rank = len(n["self"].shape)
    return _permuted(n, [*range(rank - 2), rank - 1, rank - 2])


def _reshape(n: Node) -> Result:
    """The elements in another shape, that of the result, whatever argument says which."""
    n.settled("size", "shape", "start_dim", "end_dim", "dim", "sizes", "other")
    x: TorchValue = n["self"]
    return x if x.shape == n.shape else _view(n, reshape_index(x.shape, n.axes, n.origin))


def _squeeze(n: Node) -> Result:
    """Dimensions of one element are dropped; a symbolic one stays, so that sizes at which it has one are left out."""
    x: TorchValue = n["self"]
    given = n.get("dim")
    rank = len(x.shape)
    named = range(rank) if given is None else [given] if isinstance(given, int) else given
    for extent in (x.shape[d % rank] for d in named if rank):
        if not is_static(extent) and not not_negative(add(extent, -2), n.builder.ranges):
            raise n.unsupported(f"whether a dimension of {extent} elements is squeezed depends on the sizes")
    return _reshape(n)


def _expand(n: Node) -> Result:
    x: TorchValue = n["self"]
    n.settled("size", "other")
    for have, wanted in zip(x.shape[::-1], n.shape[::-1], strict=False):
        if have != 1 and not same_extent(have, wanted):
            raise n.unsupported(f"whether a dimension of {have} elements has {wanted} depends on the sizes")
    return x if x.shape == n.shape else n.define(x.under(n.axes), view=True)


def _slice(n: Node) -> Result:
    x: TorchValue = n["self"]
    n.settled("end", "length")
    first, step = n["start"], n.get("step", 1)
    d = n["dim"] % len(x.shape)
    if x.shape == n.shape:
        return x
    if isinstance(first, TorchValue):
        raise n.unsupported("where it starts depends on data")
    start = _wrapped(first, x.shape[d])
    if is_static(n.shape[d]):  # of as many elements at every size
        _within(n, start, x.shape[d])
        _within(n, add(start, mul(step, add(n.shape[d], -1))), x.shape[d])
    index = _indices(n.axes)
    index[d] = index[d].scaled(step) + Index.const(start)
    return _view(n, index)


def _within(n: Node, place: Extent, extent: Extent) -> None:
    """See to it that the dimension has the place, by sizes at which it has."""
    ranges = n.builder.ranges
    last = add(extent, mul(-1, add(place, 1)))
    if not is_static(extent) and not (not_negative(place, ranges) and not_negative(last, ranges)):
        raise n.unsupported(f"whether a dimension of {extent} elements has the place {place} depends on the sizes")


def _wrapped(start: Extent | None, extent: Extent) -> Extent:
    """A start as Python slices read it: none is 0, a negative one counts from the end."""
    if start is None:
        return 0
    if isinstance(start, int) and isinstance(extent, int):
        return slice(start, None).indices(extent)[0]
    return add(extent, start) if isinstance(start, int) and start < 0 else start


def _select(n: Node) -> Result:
    x: TorchValue = n["self"]
    d = n["dim"] % len(x.shape)
    at = n["index"]
    if isinstance(at, TorchValue):
        raise n.unsupported("which element is read depends on data")
    place = add(x.shape[d], at) if isinstance(at, int) and at < 0 else at
    if isinstance(at, int):
        _within(n, place, x.shape[d])
    index = _indices(n.axes)
    index.insert(d, Index.const(place))
    return _view(n, index)


def _parts(n: Node) -> Result:
    """split, split_with_sizes, chunk: consecutive slices, as long as the results' shapes say."""
    d = n["dim"] % len(n["self"].shape)
    n.settled("split_size", "split_sizes", "chunks")
    whole = n["self"].shape[d]
    if not is_static(whole) and not whole.is_polynomial(*whole.free_symbols):  # of Min(M, N) torch guards nothing
        raise n.unsupported(f"into how many parts a dimension of {whole} elements is split depends on the sizes")
    start: Extent = 0
    values = []
    for result, shape in enumerate(n.shapes):
        axes = axes_of(shape)
        index = _indices(axes)
        index[d] = index[d] + Index.const(start)
        values.append(_view(n, index, result, axes))
        start = add(start, shape[d])
    return tuple(values)


def _unfold(n: Node) -> Result:
    """Windows of a dimension, their elements along a new last one."""
    d = n["dimension"] % max(len(n["self"].shape), 1)
    n.settled("size")
    if not n["self"].shape:  # one element, in a window of one
        n.settled("step")
        return _view(n, [])
    *axes, within = n.axes
    index = _indices(axes)
    index[d] = index[d].scaled(n["step"]) + Index.axis(within)
    return _view(n, index)


def _unbind(n: Node) -> Result:
    d = n["dim"] % len(n["self"].shape)
    values = []
    for result, shape in enumerate(n.shapes):
        axes = axes_of(shape)
        index = _indices(axes)
        index.insert(d, Index.const(result))
        values.append(_view(n, index, result, axes))
    return tuple(values)


def concatenated(n: Node, elements: Sequence[Expr], starts: Sequence[Extent], axis: Axis) -> TorchValue:
    """The parts one after another along `axis`: part p is `elements[p]` from position starts[p] on."""
    return n.define(in_a_row(elements, starts, axis))


def _cat(n: Node) -> Result:
    # torch lets empty vectors stand beside parts of any rank; of nothing but these the result is one, too
    tensors: list[TorchValue] = [t for t in n["tensors"] if not (len(t.shape) == 1 and t.shape[0] == 0)] or n["tensors"]
    d = n["dim"] % len(n.shape)
    elements, starts, offset = [], [], 0
    total: Extent = offset
    for t in tensors:
        index = _indices(n.axes)
        # a part of one element is read at its only one, wherever it lies
        index[d] = Index.const(0) if t.shape[d] == 1 else index[d] + Index.const(total).scaled(-1)
        elements.append(t.at(index))
        starts.append(total)
        total = add(total, t.shape[d])
    return concatenated(n, elements, starts, n.axes[d])


def _stack(n: Node) -> Result:
    d = n["dim"] % len(n.shape)
    index = _indices([a for i, a in enumerate(n.axes) if i != d])
    return concatenated(n, [t.at(index) for t in n["tensors"]], list(range(len(n["tensors"]))), n.axes[d])


def _flip(n: Node) -> Result:
    x: TorchValue = n["self"]
    if not x.shape:
        n.settled("dims")
        return x
    flipped = {d % len(x.shape) for d in n["dims"]}
    index = _indices(n.axes)
    for d in flipped:
        index[d] = index[d].scaled(-1) + Index.const(add(x.shape[d], -1))
    return _view(n, index)


def _roll(n: Node) -> Result:
    """Shifted reads on either side of the seam, one dimension after another."""
    x: TorchValue = n["self"]
    if not n["dims"]:
        raise n.unsupported("it rolls the flattened tensor", "name the dimensions to roll")
    places: list[tuple[Expr | None, list[Index]]] = [(None, _indices(n.axes))]
    for shift, dim in zip(n["shifts"], n["dims"], strict=True):
        d = dim % len(x.shape)
        extent = x.shape[d]
        if not isinstance(extent, int):
            raise n.unsupported("it rolls a dimension of symbolic extent")
        by = shift % extent if extent else 0
        if by == 0:
            continue
        wrapped = op("lt", build.position(n.axes[d]), Const(float(by)))
        split: list[tuple[Expr | None, list[Index]]] = []
        for condition, index in places:
            for first, offset in ((True, extent - by), (False, -by)):
                side = wrapped if first else op("not", wrapped)
                moved = [i + offset if k == d else i for k, i in enumerate(index)]
                split.append((side if condition is None else op("and", condition, side), moved))
        places = split
    value = x.at(places[-1][1])
    for condition, index in reversed(places[:-1]):
        assert condition is not None
        value = op("where", condition, x.at(index), value)
    return n.define(value)


def _repeat(n: Node) -> Result:
    x: TorchValue = n["self"]
    n.settled("repeats")
    own = n.axes[len(n.shape) - len(x.shape) :]
    places = zip(own, x.shape, strict=True)
    return n.define(x.at([Index.axis(a) if a.extent == e else Index.axis(a).mod(e) for a, e in places]))


def _diagonal(n: Node) -> Result:
    x: TorchValue = n["self"]
    a, b = n["dim1"] % len(x.shape), n["dim2"] % len(x.shape)
    *rest, along = n.axes
    index = iter(_indices(rest))
    low, high = max(0, -n["offset"]), max(0, n["offset"])
    places = [
        Index.axis(along) + low if d == a else Index.axis(along) + high if d == b else next(index)
        for d in range(len(x.shape))
    ]
    return _view(n, places)


def _index(n: Node) -> Result:
    """Indexing by tensors of integers, whose elements are positions (aranges and slices of them) or given by data."""
    x: TorchValue = n["self"]
    given: list[TorchValue | None] = list(n["indices"]) + [None] * (len(x.shape) - len(n["indices"]))
    chosen = [d for d, v in enumerate(given) if v is not None]
    values = [v for v in given if v is not None]
    rank = max(len(v.shape) for v in values)
    adjacent = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
    at = chosen[0] if adjacent else 0
    own, rest = n.axes[at : at + rank], iter([*n.axes[:at], *n.axes[at + rank :]])
    index = [Index.const(0) if v is not None else Index.axis(next(rest)) for v in given]
    return _looked_up(n, x, index, {d: (v, own[rank - len(v.shape) :]) for d, v in enumerate(given) if v is not None})


def _index_select(n: Node) -> Result:
    """Slices of a dimension at positions."""
    x: TorchValue = n["self"]
    places: TorchValue = n["index"]
    if not x.shape:
        n.settled("dim")
        return _same(n)
    d = n["dim"] % len(x.shape)
    own = n.axes[d : d + 1] if places.shape else ()
    return _looked_up(n, x, _indices(n.axes), {d: (places, own)}, negative=False)


def _embedding(n: Node) -> Result:
    """The rows of a table at positions."""
    n.settled("padding_idx", "scale_grad_by_freq", "sparse")  # of gradients
    places: TorchValue = n["indices"]
    rank = len(places.shape)
    index = [Index.const(0), *_indices(n.axes[rank:])]
    return _looked_up(n, n["weight"], index, {0: (places, n.axes[:rank])}, negative=False)


def _embedding_bag(n: Node) -> Result:
    """Sums, means or maxima of rows of a table: of bags of as many places each, one after another."""
    n.settled("scale_grad_by_freq", "sparse")  # of gradients
    weight, places, starts, by = n["weight"], n["indices"], n["offsets"].position, n["per_sample_weights"]
    bag, column = n.axes
    (given,) = places.shape
    length = given // bag.extent if isinstance(given, int) and isinstance(bag.extent, int) else 0
    own = starts.substitute({a: Index.axis(bag) for a in starts.axes()}) if starts is not None else None
    if not length or own != Index.axis(bag).scaled(length) or n["include_last_offset"] or n["padding_idx"] >= 0:
        raise n.unsupported("how many places a bag has depends on data", "give places of two dimensions, a bag a row")
    one, row = Axis("k", length), Axis("r", weight.shape[0])
    at = [Index.axis(bag).scaled(length) + Index.axis(one)]
    each = looked_up(row, places.at(at), weight.at([Index.axis(row), Index.axis(column)]))
    own_rows = n.builder.define(f"{n.name}_rows", (bag, one, column), each, weight.dtype, n.origin)
    element = own_rows.under([bag, one, column])
    if by is not None:
        element = op("mul", element, by.at(at))
    mode = ("sum", "mean", "max")[n["mode"]]
    value = build.reduce(ReduceKind.MAX if mode == "max" else ReduceKind.SUM, one, element)
    if mode == "mean":
        value = op("mul", value, Const(1.0 / length))

    def of_gradients() -> TorchValue:
        raise n.unsupported("what its gradient is told of the bags is not computed")

    return n.results(lambda: n.define(value), *[of_gradients] * 3)


def _gather(n: Node) -> Result:
    """One element of a dimension for each of the result."""
    x: TorchValue = n["self"]
    if not x.shape:
        n.settled("dim", "index")
        return n.define(x.at([]))
    d = n["dim"] % len(x.shape)
    return _looked_up(n, x, _indices(n.axes), {d: (n["index"], n.axes)}, negative=False)


def _looked_up(
    n: Node,
    x: TorchValue,
    index: list[Index],
    places: Mapping[int, tuple[TorchValue, Sequence[Axis]]],
    *,
    negative: bool = True,
) -> TorchValue:
    """The element of a tensor at positions, in some dimensions those that values over the given axes hold.

    torch wants every position to lie in its dimension; where one that data give does not, this is 0. `places` has the
    values by dimension, in the place of what `index` has there. With `negative`, negative positions count from the end.
    """
    scattered: list[int] = []
    fetched: list[tuple[Axis, Expr]] = []
    read: Callable[[Sequence[Index]], Expr] = x.at
    for d, (v, axes) in places.items():
        found = _places(n, v, axes, x.shape[d], negative)
        if isinstance(found, Index):
            index[d] = found
        elif isinstance(found, tuple):
            read = _piecewise(read, d, found[1], found[0])
        elif found is None:
            scattered.append(d)
        elif x.shape[d] == 1:
            index[d] = Index.const(0)
        else:
            bound = Axis(f"r{d}", x.shape[d])
            fetched.append((bound, from_end(found, bound) if negative and n.bounds(found).low < 0 else found))
            index[d] = Index.axis(bound)
    if not scattered and not fetched and read == x.at:
        return _view(n, index, x=x)
    value = read(index)
    if scattered:
        # few places that follow no line: one after another, each where the result is at it
        table = {d: (e, places[d][1]) for d in scattered if (e := places[d][0].elements) is not None}
        axes = [a for a in n.axes if any(a in own and e.shape[own.index(a)] != 1 for e, own in table.values())]
        if not all(a.extent for a in axes):  # of no places there are no elements
            return n.define(Const(0.0))

        def element(at: tuple[int, ...]) -> Expr:
            where = dict(zip(axes, at, strict=True))
            own = {}
            for d, (e, over) in table.items():
                place = (where.get(a, 0) if many != 1 else 0 for a, many in zip(over, e.shape, strict=True))
                own[d] = int(e[tuple(place)]) % int(x.shape[d])
            return read([Index.const(own[k]) if k in own else i for k, i in enumerate(index)])

        value = chosen([int(a.extent) for a in axes], _indices(axes), element)
    for bound, place in fetched:
        value = looked_up(bound, place, value)
    return n.define(value)


def _piecewise(
    read: Callable[[Sequence[Index]], Expr], d: int, pieces: Sequence[tuple[int, Index]], axis: Axis
) -> Callable[[Sequence[Index]], Expr]:
    """What stands at an index whose position in a dimension is one of several along an axis, each from a place on."""

    def element(index: Sequence[Index]) -> Expr:
        elements = [read([*index[:d], own, *index[d + 1 :]]) for _, own in pieces]
        return in_a_row(elements, [start for start, _ in pieces], axis)

    return element


def _places(
    n: Node, v: TorchValue, axes: Sequence[Axis], extent: Extent, negative: bool
) -> Index | tuple[Axis, list[tuple[int, Index]]] | Expr | None:
    """What a value says of positions along a dimension: an index over the axes, a number that data give, or None.

    Several indices, each from a place of an axis on, are for those on a few lines; None is for a few on no line.
    """
    if v.dtype is DType.BOOL or (negative and v.dtype is DType.UINT8):  # both are masks to indexing
        raise n.unsupported("which elements are read depends on data", "keep masks outside the traced function")
    position = v.position
    known = v.elements
    counted = _counted(v) if known is None and position is None else known
    if counted is not None and isinstance(extent, int):
        wrapped = np.where((counted < 0) & negative, counted + extent, counted)
        if wrapped.size and (wrapped.min() < 0 or wrapped.max() >= extent):
            raise n.unsupported(f"index {int(counted.flat[0])} is not in a dimension of extent {extent}")
        regular = places_index(wrapped.astype(object), _indices(axes))
        if regular is not None:
            return regular
        pieces = progressions(wrapped, axes)
        if pieces is not None:
            return pieces
        if known is not None and known.size <= MAX_CHOICES:
            return None
    if position is None and known is not None and not v.tensor:
        raise n.unsupported(f"it looks {known.size} places up that follow no rule", "look up fewer at a time")
    if position is None:
        return v.under(axes)
    mapping = {a: Index.const(0) if a.extent == 1 else Index.axis(b) for a, b in zip(v.axes, axes, strict=True)}
    moved = position.substitute(mapping)
    for index in (moved, moved + Index.const(extent)):
        if index.within(extent):
            return index
    raise n.unsupported(f"index {moved} is not known to lie in a dimension of extent {extent}")


def _counted(v: TorchValue) -> np.ndarray | None:
    """The whole numbers that a formula of positions makes of fixed lengths; None for others, and for many."""
    formula = v.formula
    if formula is None or v.dtype.is_float or not all(isinstance(e, int) for e in v.shape):
        return None
    if math.prod(map(int, v.shape)) > _COUNTED or any(isinstance(e, (Read, Size)) for e in walk(formula)):
        return None
    return evaluate_expr(formula, {}, {}, tuple(v.axes)).astype(np.int64)


# Writing into a part of a tensor, as assignments to slices and in-place operations on views are exported


def _written(n: Node, inside: Sequence[Expr], source: Expr) -> TorchValue:
    """The tensor with another value where all conditions hold."""
    value = n["self"].under(n.axes)
    for condition in inside[:0:-1]:
        source = op("where", condition, source, value)
    return n.define(op("where", inside[0], source, value) if inside else source)


def _slice_scatter(n: Node) -> Result:
    """The tensor with a slice of it replaced: place p is the source's (p - start) / step."""
    source: TorchValue = n["src"]
    n.settled("end")
    d, step = n["dim"] % len(n.shape), n["step"]
    start, length, axis = _wrapped(n["start"], n.shape[d]), source.shape[d], n.axes[d]
    if length == 0:
        return _same(n)
    index, inside = _indices(n.axes), []
    if step != 1 and not isinstance(start, int):
        raise n.unsupported("it writes with a step from a place that is not a number")
    position = build.position(axis)
    end = add(start, mul(step, add(length, -1)))
    # Of places that are a step apart there is none before the first step's, and none after the last one's.
    if not at_most(add(start, 1), step):
        inside.append(op("le", build.position(Index.const(start)), position))
    if not at_most(n.shape[d], add(end, step)):
        inside.append(op("le", position, build.position(Index.const(end))))
    if step == 1:
        index[d] = index[d] + Index.const(start).scaled(-1)
    else:
        inside.append(op("eq", build.position(index[d].mod(step)), Const(float(start % step))))
        index[d] = index[d].floordiv(step) + -(start // step)
    return _written(n, inside, converted(n, source.at(broadcast_index(source.shape, index)), n.dtype))


def _same(n: Node) -> TorchValue:
    value: TorchValue = n["self"]
    return value


def _select_scatter(n: Node) -> Result:
    """The tensor with one place of a dimension replaced."""
    source: TorchValue = n["src"]
    d, at = n["dim"] % len(n.shape), n["index"]
    if isinstance(at, TorchValue):
        raise n.unsupported("which element is written depends on data")
    place = add(n.shape[d], at) if isinstance(at, int) and at < 0 else at
    inside = op("eq", build.position(n.axes[d]), build.position(Index.const(place)))
    element = source.under([a for k, a in enumerate(n.axes) if k != d])
    return _written(n, [inside], converted(n, element, n.dtype))


def _diagonal_scatter(n: Node) -> Result:
    """The tensor with a diagonal replaced."""
    source: TorchValue = n["src"]
    a, b = n["dim1"] % len(n.shape), n["dim2"] % len(n.shape)
    low, high = max(0, -n["offset"]), max(0, n["offset"])
    row, column = Index.axis(n.axes[a]) + -low, Index.axis(n.axes[b]) + -high
    inside = op("eq", build.position(row), build.position(column))
    rest = [Index.axis(axis) for d, axis in enumerate(n.axes) if d not in (a, b)]
    return _written(n, [inside], converted(n, source.at([*rest, row]), n.dtype))


def _copy(n: Node) -> Result:
    """What is copied over the whole of a tensor, in its type."""
    n.settled("self")
    return n.define(converted(n, n["src"].under(n.axes), n.dtype))


HANDLERS: Mapping[str, Handler] = {
    "copy": _copy,
    "slice_scatter": _slice_scatter,
    "select_scatter": _select_scatter,
    "diagonal_scatter": _diagonal_scatter,
    "permute": _permute,
    "unfold": _unfold,
    "transpose": _transpose,
    "t": _reversed,
    "numpy_T": _reversed,
    "mT": _matrix_transpose,
    "matrix_H": _matrix_transpose,
    "view": _reshape,
    "_unsafe_view": _reshape,
    "reshape": _reshape,
    "flatten": _reshape,
    "unflatten": _reshape,
    "unsqueeze": _reshape,
    "squeeze": _squeeze,
    "view_as": _reshape,
    "expand": _expand,
    "expand_as": _expand,
    "broadcast_to": _expand,
    "slice": _slice,
    "narrow": _slice,
    "select": _select,
    "split": _parts,
    "split_with_sizes": _parts,
    "chunk": _parts,
    "unbind": _unbind,
    "cat": _cat,
    "stack": _stack,
    "flip": _flip,
    "roll": _roll,
    "repeat": _repeat,
    "diagonal": _diagonal,
    "index": _index,
    "index_select": _index_select,
    "gather": _gather,
    "embedding": _embedding,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
}
