"""The reference interpreter: any Program in float64, definition by definition. The oracle of every test.

The value of an expression is an array over an ordered tuple of the expression's free axes. Pointwise operations align
their arguments by axis; a read is a strided view wherever its indices are affine and within bounds; a sum of products
is contracted pairwise by matrix products, so that a matmul never holds m*k*n numbers, a prefix sum is one, and an
element at a place that data give is fetched. The interpreter is written over `arrays.Arrays`, so another array library
can run the same programs (see prism/backends/eager.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce

import numpy as np
import sympy

from prism.errors import ShapeError
from prism.program import extents
from prism.program.arrays import NUMPY, Array, Arrays
from prism.program.extents import Extent
from prism.program.index import Axis, FloorDiv, Index, Mod
from prism.program.lookup import Lookup, Sent, lookup, sent
from prism.program.nodes import (
    Const,
    Expr,
    Loop,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    ReduceKind,
    Size,
    Steps,
    Tensor,
    walk,
)
from prism.program.prefix import carried
from prism.program.transform import Numbering
from prism.program.windows import NoWindow, Sight, need, seen, sight

# Above this many elements a product is not held whole, even for the sake of infinities (see _sum_of_product).
_WHOLE_PRODUCT = 1 << 22


@dataclass(frozen=True, slots=True)
class NamedArray:
    """An array with one dimension per axis; one without axes may be a plain number."""

    axes: tuple[Axis, ...]
    array: Array


def evaluate(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    xp: Arrays = NUMPY,
    seen: Callable[[str, Array], None] | None = None,
) -> dict[str, np.ndarray]:
    """The program's outputs, by name, in float64.

    Args:
        program: the program.
        inputs: an array per program input, of any numeric type; those that the program holds as weights may be left
            out. Extents' symbols are bound from the shapes.
        xp: numpy's operations, or others on its arrays.
        seen: see `run`.

    Raises:
        ShapeError: an input is missing, or the shapes contradict each other or the declared ones.
    """
    given = {t.name: np.asarray(_value_of(program, inputs, t), dtype=np.float64) for t in program.inputs}
    binding = bind(program.inputs, {name: a.shape for name, a in given.items()})
    with np.errstate(all="ignore"):
        results = run(program, given, binding, xp, seen)
    return {name: np.array(results[name], dtype=np.float64) for name in program.outputs}


def evaluate_expr(
    expr: Expr, tensors: Mapping[str, np.ndarray], binding: Mapping[str, int], axes: tuple[Axis, ...]
) -> np.ndarray:
    """The values of an expression as a float64 array over `axes`, in that order; they hold its free axes."""
    as_float = {name: np.asarray(a, dtype=np.float64) for name, a in tensors.items()}
    with np.errstate(all="ignore"):
        machine = Interpreter(as_float, binding, NUMPY)
        return np.array(machine.over(machine.value(expr), axes), dtype=np.float64)


def run(
    program: Program,
    tensors: Mapping[str, Array],
    binding: Mapping[str, int],
    xp: Arrays,
    seen: Callable[[str, Array], None] | None = None,
) -> dict[str, Array]:
    """The program's outputs by name, computed by `xp`: each definition that an output needs, once.

    Args:
        program: the program.
        tensors: an array for every input.
        binding: the value of every symbol.
        xp: the array library; where it has a method `store(array, dtype)`, every defined tensor passes through it.
        seen: called with each defined tensor, which is not kept longer than it is needed.
    """
    store = getattr(xp, "store", None)
    last = _last_uses(program)
    known = dict(tensors)
    loops: dict[str, Mapping[str, Array]] = {}
    for position, d in enumerate(program.definitions):
        if d.name not in last:
            continue
        machine = Interpreter(known, binding, xp, loops)
        array = machine.over(machine.value(d.expr), d.axes)
        known[d.name] = array if store is None else store(array, d.dtype)
        if seen is not None:
            seen(d.name, known[d.name])
        for name in [n for n in known if last.get(n) == position and n not in program.outputs]:
            del known[name]
    return {name: known[name] for name in program.outputs}


def _last_uses(program: Program) -> dict[str, int]:
    """For each tensor that an output needs, the position of the last definition that reads it."""
    last = {name: len(program.definitions) for name in program.outputs}
    for position in reversed(range(len(program.definitions))):
        d = program.definitions[position]
        if d.name not in last:
            continue
        for e in walk(d.expr):
            if isinstance(e, Read):
                last.setdefault(e.tensor, position)
    return last


def _value_of(program: Program, inputs: Mapping[str, np.ndarray], tensor: Tensor) -> object:
    if tensor.name in inputs:
        return inputs[tensor.name]
    if tensor.name in program.weights:
        return program.weights[tensor.name]
    raise ShapeError(
        f"input {tensor.name} is missing",
        where=program.name,
        fix=f"pass an array of shape [{', '.join(map(str, tensor.shape))}]",
    )


def bind(declared: Sequence[Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The value of every symbol in the declared shapes, from the actual shapes.

    Raises:
        ShapeError: a shape has another rank, or an extent contradicts its declaration or another input.
    """
    pairs: list[tuple[Tensor, Extent, int]] = []
    for t in declared:
        actual = tuple(shapes[t.name])
        if len(actual) != len(t.shape):
            raise _mismatch(t, actual, f"it has {len(actual)} dimensions, not {len(t.shape)}")
        pairs += [(t, e, n) for e, n in zip(t.shape, actual, strict=True)]
    binding: dict[str, int] = {}
    for _, extent, n in pairs:
        if isinstance(extent, sympy.Symbol):
            binding.setdefault(extent.name, n)
    left = [(extent, n) for _, extent, n in pairs if not isinstance(extent, int)]
    many = -1
    while many != len(binding):  # what is found in one dimension may tell another
        many = len(binding)
        for extent, n in left:
            unknown = [s for s in extent.free_symbols if s.name not in binding]
            if len(unknown) == 1:
                bound = {s: binding[s.name] for s in extent.free_symbols if s.name in binding}
                solutions = [s for s in sympy.solve(extent.subs(bound) - n, unknown[0]) if s.is_Integer and s > 0]
                if len(solutions) == 1:
                    binding[unknown[0].name] = int(solutions[0])
    for t, extent, n in pairs:
        try:
            expected = extents.evaluate(extent, binding)
        except KeyError as missing:
            raise _mismatch(t, shapes[t.name], f"nothing gives a value to {missing.args[0]}") from None
        if expected != n:
            raise _mismatch(t, shapes[t.name], f"{extent} is {expected} and {n} was passed")
    return binding


def _mismatch(tensor: Tensor, actual: Sequence[int], why: str) -> ShapeError:
    return ShapeError(
        f"an array of shape [{', '.join(map(str, actual))}] does not fit [{', '.join(map(str, tensor.shape))}]",
        where=f"input {tensor.name}",
        why=why,
        fix="pass arrays of the declared shapes",
    )


class Interpreter:
    """Values of expressions over given tensors. Equal sub-expressions are computed once.

    What the steps of loops made is in `loops`, by their names; what is run is added.
    """

    def __init__(
        self,
        tensors: Mapping[str, Array],
        binding: Mapping[str, int],
        xp: Arrays,
        loops: MutableMapping[str, Mapping[str, Array]] | None = None,
    ) -> None:
        self._tensors = tensors
        self._loops = {} if loops is None else loops
        self._binding = binding
        self._xp = xp
        # Sub-expressions are numbered by structure (a node and the numbers of its children), in linear time.
        self._numbers = Numbering()
        self._values: dict[int, NamedArray] = {}

    def size(self, axis: Axis) -> int:
        """The extent of an axis."""
        return extents.evaluate(axis.extent, self._binding)

    def over(self, value: NamedArray, axes: Sequence[Axis]) -> Array:
        """The value as an array over exactly `axes`, repeated along those that it does not depend on."""
        shape = [self.size(a) for a in axes]
        array = value.array if value.axes else self._xp.pointwise("add", (self._xp.number(value.array), 0.0))
        return self._xp.broadcast(self._align(NamedArray(value.axes, array), axes), shape)

    def index(self, index: Index, axes: Sequence[Axis]) -> Array:
        """The values of an index, as an integer array (or int) that broadcasts over `axes`."""
        total: Array = extents.evaluate(index.offset, self._binding)
        for atom, coefficient in index.terms:
            match atom:
                case Axis():
                    shape = [-1 if a == atom else 1 for a in axes]
                    part = self._xp.reshape(self._xp.arange(self.size(atom)), shape)
                case FloorDiv(inner, divisor):
                    part = self.index(inner, axes) // self._divisor(divisor)
                case Mod(inner, divisor):
                    part = self.index(inner, axes) % self._divisor(divisor)
            total = total + part * extents.evaluate(coefficient, self._binding)
        return total

    def value(self, expr: Expr) -> NamedArray:
        """The value of an expression over its free axes."""
        number = self._numbers.of(expr)
        if number not in self._values:
            self._values[number] = self._compute(expr)
        return self._values[number]

    def _compute(self, expr: Expr) -> NamedArray:
        match expr:
            case Const(number):
                return NamedArray((), number)
            case Size(extent):
                return NamedArray((), float(extents.evaluate(extent, self._binding)))
            case Position(index):
                axes = _ordered(index)
                return NamedArray(axes, self._xp.number(self.index(index, axes)))
            case Read(tensor, indices):
                return self._read(self._tensors[tensor], indices)
            case Reduce():
                return self._reduce(expr)
            case Steps(loop, output, indices):
                return self._read(self._stepped(loop)[output], indices)
            case Map("add", (a, Map("neg", (b,)))):
                return self._pointwise("sub", (self.value(a), self.value(b)))
            case Map("mul", (a, Map("recip", (b,)))):
                return self._pointwise("div", (self.value(a), self.value(b)))
            case Map("floor", (Map("mul", (a, Map("recip", (b,)))),)) if hasattr(self._xp, "floor_quotient"):
                # 1 / 0.1 rounds up to 10 in float64, and 0.1 in float64 is more than a tenth: it is in 1 nine times
                axes, (dividend, divisor) = self._together([self.value(a), self.value(b)])
                return NamedArray(axes, self._xp.floor_quotient(dividend, divisor))
            case Map(op, args):
                return self._pointwise(op, [self.value(a) for a in args])
        raise TypeError(f"not an expression: {expr!r}")

    def _stepped(self, loop: Loop) -> Mapping[str, Array]:
        """What each step of a loop makes, by the body's outputs, the place first."""
        if loop.name not in self._loops:
            trips = extents.evaluate(loop.trips, self._binding)
            given = {t.name: self._tensors[t.name] for t in loop.body.inputs if t.name in self._tensors}
            carried = {
                s.before: self._tensors[s.first] if s.place is None else self._tensors[s.first][s.place]
                for s in loop.states
            }
            made: dict[str, list[Array]] = {name: [] for name in loop.body.outputs}
            for n in reversed(range(trips)) if loop.reverse else range(trips):
                own = {inner: self._tensors[outer][n] for inner, outer in loop.slices}
                step = run(loop.body, {**given, **carried, **own}, self._binding, self._xp)
                carried = {s.before: step[s.after] for s in loop.states}
                for name, array in step.items():
                    made[name].append(array)
            every = {name: self._xp.stack(found[::-1] if loop.reverse else found) for name, found in made.items()}
            self._loops[loop.name] = every
        return self._loops[loop.name]

    # Pointwise

    def _align(self, value: NamedArray, axes: Sequence[Axis]) -> Array:
        """The array with its dimensions in the order of `axes`, and extent 1 for those that it lacks."""
        if not value.axes or value.axes == tuple(axes):
            return value.array
        place = {a: d for d, a in enumerate(value.axes)}
        order = [place[a] for a in axes if a in place]
        array = value.array
        if order != sorted(order):
            array = self._xp.transpose(array, order)
        if len(axes) == len(order):
            return array
        return self._xp.reshape(array, [self.size(a) if a in place else 1 for a in axes])

    def _pointwise(self, op: str, args: Sequence[NamedArray]) -> NamedArray:
        axes, arrays = self._together(args)
        return NamedArray(axes, self._xp.pointwise(op, arrays))

    def _together(self, args: Sequence[NamedArray]) -> tuple[tuple[Axis, ...], list[Array]]:
        """The axes of all arguments, and their arrays over these."""
        axes = tuple(dict.fromkeys(a for v in sorted(args, key=lambda v: -len(v.axes)) for a in v.axes))
        return axes, [self._align(v, axes) for v in args]

    # Reads

    def _read(self, array: Array, indices: Sequence[Index]) -> NamedArray:
        axes = tuple(dict.fromkeys(a for i in indices for a in _ordered(i)))
        sizes = {a: self.size(a) for a in axes}
        shape = tuple(array.shape)
        ranges = [self._range(i, sizes) for i in indices]
        inside = all(low >= 0 and high < n for (low, high), n in zip(ranges, shape, strict=True))
        if inside and all(i.is_affine() for i in indices) and 0 not in shape and 0 not in sizes.values():
            first = [extents.evaluate(i.offset, self._binding) for i in indices]
            steps = [self._steps(i, axes) for i in indices]
            view = self._xp.strided(array, [sizes[a] for a in axes], first, steps)
            if view is not None:
                return NamedArray(axes, view)
        places = [self.index(i, axes) for i in indices]
        if not axes:
            # One element, and out of bounds: only `where` may stand above it.
            return NamedArray((), 0.0 if not inside else array[tuple(places)])
        valid: Array | None = None
        for place, (low, high), n in zip(places, ranges, shape, strict=True):
            if low < 0 or high >= n:
                # a constant index out of bounds is an int here, and its comparison a Python bool
                within = (place >= 0) & (place < n)
                valid = within if valid is None else valid & within
        full = [place if not isinstance(place, int) else place + 0 * self._grid(axes) for place in places]
        if isinstance(valid, bool):
            valid = None if valid else self._grid(axes) < 0
        gathered = self._xp.gather(array, full, valid)
        return NamedArray(axes, self._xp.broadcast(gathered, [sizes[a] for a in axes]))

    def _grid(self, axes: Sequence[Axis]) -> Array:
        return self._xp.reshape(self._xp.arange(self.size(axes[0])), [-1] + [1] * (len(axes) - 1))

    def _steps(self, index: Index, axes: Sequence[Axis]) -> list[int]:
        of = {atom: extents.evaluate(c, self._binding) for atom, c in index.terms}
        return [of.get(a, 0) for a in axes]

    def _divisor(self, divisor: Extent) -> int:
        """What an index is divided by; an extent that is 0 is of a dimension without places."""
        return extents.evaluate(divisor, self._binding) or 1

    def _range(self, index: Index, sizes: Mapping[Axis, int]) -> tuple[int, int]:
        """Bounds (inclusive) on the values of an index; exact when it is affine."""
        low = high = extents.evaluate(index.offset, self._binding)
        for atom, coefficient in index.terms:
            match atom:
                case Axis():
                    bottom, top = 0, sizes[atom] - 1
                case FloorDiv(inner, divisor):
                    by = self._divisor(divisor)
                    bottom, top = (b // by for b in self._range(inner, sizes))
                case Mod(inner, divisor):
                    by = self._divisor(divisor)
                    bottom, top = self._range(inner, sizes)
                    if bottom // by != top // by:
                        bottom, top = 0, by - 1
                    else:
                        bottom, top = bottom % by, top % by
            c = extents.evaluate(coefficient, self._binding)
            low, high = low + min(c * bottom, c * top), high + max(c * bottom, c * top)
        return low, high

    # Reductions

    def _reduce(self, expr: Reduce) -> NamedArray:
        found = carried(expr)
        if found is not None:
            term = self.value(found.term)
            values = [term] if found.factor is None else [term, self.value(found.factor)]
            axes, _ = self._together(values)
            arrays = (self.over(v, axes) for v in values)
            return NamedArray(axes, self._xp.carried(found.how, axes.index(found.axis), *arrays))
        chosen = lookup(expr)
        places = getattr(self._xp, "places", None)
        if chosen is not None and places is not None and self.size(chosen.axis) > 0:
            return self._looked_up(chosen, places)
        bound = [expr.axis]
        body = expr.body
        # Nested reductions of one kind are one, unless the inner one's axis shadows an outer one.
        while isinstance(body, Reduce) and body.kind == expr.kind and body.axis not in bound:
            if self._numbers.of(body) in self._values:
                break
            bound.append(body.axis)
            body = body.body
        adds = getattr(self._xp, "added", None)
        goes = sent(body, bound) if expr.kind is ReduceKind.SUM and adds is not None else None
        if goes is not None and adds is not None and places is not None:
            return self._added(goes, bound, places, adds)
        if expr.kind is not ReduceKind.SUM:
            windowed = self._windowed(expr.kind, bound, [body])
            return self._fold(expr.kind, self.value(body), bound) if windowed is None else windowed
        sign, factors = _factors(body)
        windowed = self._windowed(expr.kind, bound, factors)
        if windowed is None:
            return self._sum_of_product(bound, sign, [self.value(f) for f in factors])
        return windowed if sign == 1.0 else self._pointwise("mul", (windowed, NamedArray((), sign)))

    def _looked_up(self, chosen: Lookup, places: Callable[[Array], Array]) -> NamedArray:
        """The elements at their places, which `places` makes integers; 0 where there is none."""
        place, element = self.value(chosen.place), self.value(chosen.element)
        rest = [a for a in element.axes if a != chosen.axis]
        axes = tuple(dict.fromkeys((*place.axes, *rest)))
        sizes = [self.size(a) for a in axes]
        at = places(self._align(place, axes))
        indices = [at if a == chosen.axis else self.index(Index.axis(a), axes) for a in element.axes]
        taken = self._xp.gather(element.array, indices, (at >= 0) & (at < self.size(chosen.axis)))
        return NamedArray(axes, self._xp.broadcast(taken, sizes))

    def _added(
        self, goes: Sent, bound: Sequence[Axis], whole: Callable[[Array], Array], adds: Callable[..., Array]
    ) -> NamedArray:
        """Each term added by `adds` where it goes; `whole` makes places integers."""
        term, places = self.value(goes.term), [self.value(place) for _, place in goes.places]
        axes, _ = self._together([*places, term])
        rest = tuple(a for a in axes if a not in bound)
        along = tuple(a for a, _ in goes.places)
        valid: Array = True
        indices: list[Array] = []
        for axis, place in zip(along, places, strict=True):
            at = whole(self.over(place, axes))
            indices.append(at)
            valid = valid & (at >= 0) & (at < self.size(axis))
        indices += [self._xp.broadcast(self.index(Index.axis(a), axes), [self.size(b) for b in axes]) for a in rest]
        sizes = [self.size(a) for a in (*along, *rest)]
        found = NamedArray((*along, *rest), adds(sizes, indices, valid, self.over(term, axes)))
        return self._fold(ReduceKind.SUM, found, [a for a in bound if a not in axes])

    def _fold(self, kind: ReduceKind, value: NamedArray, bound: Sequence[Axis]) -> NamedArray:
        """The reduction of a value over axes, some of which it may not have."""
        dims = [d for d, a in enumerate(value.axes) if a in bound]
        rest = tuple(a for a in value.axes if a not in bound)
        array = self._xp.reduce(kind, value.array, dims) if dims else value.array
        result = NamedArray(rest, array)
        repeats = math.prod(self.size(a) for a in bound if a not in value.axes)
        if repeats == 0:
            return NamedArray((), kind.identity)
        if repeats != 1 and kind is ReduceKind.SUM:
            return self._pointwise("mul", (result, NamedArray((), float(repeats))))
        if repeats != 1 and kind is ReduceKind.PROD:
            return self._pointwise("pow", (result, NamedArray((), float(repeats))))
        return result

    def _windowed(self, kind: ReduceKind, bound: Sequence[Axis], factors: Sequence[Expr]) -> NamedArray | None:
        """A reduction over the taps of a window by the array library's own function for it; None where it is none."""
        function = getattr(self._xp, "windowed", None)
        if function is None:
            return None
        for n, factor in enumerate(factors):
            with suppress(NoWindow):
                read, asked = seen(factor, kind.identity)
                need(any(not i.axes() <= {*bound} and i.axes() & {*bound} for i in read.index))
                more = [self.value(f) for f in (*factors[:n], *factors[n + 1 :])]
                weights = reduce(lambda a, b: self._pointwise("mul", (a, b)), more) if more else None
                theirs = weights.axes if weights is not None else ()
                shape = tuple(self._tensors[read.tensor].shape)
                found = sight(read, asked, shape, bound, theirs, self._size_of, kind is ReduceKind.SUM)
                made = function(kind, *self._through(read, bound, found, weights), found.windows)
                if made is not None:
                    return self._of_digits(found, made)
        return None

    def _through(
        self, read: Read, bound: Sequence[Axis], found: Sight, weights: NamedArray | None
    ) -> tuple[Array, Array | None, int]:
        """What windows see as [batch, channels, places ...], weights as [rows, depth, taps ...], and groups of both."""
        begin, sizes, steps = found.view
        flat = self._xp.reshape(self._tensors[read.tensor], [-1])
        seen_by = self._xp.strided(flat, sizes, [begin], [steps])
        need(seen_by is not None)
        batch, groups, rows, depth = (
            math.prod(found.sizes[n] for n in part) for part in (found.batch, found.shared, found.rows, found.depth)
        )
        image = self._xp.reshape(seen_by, [batch, groups * depth, *sizes[len(sizes) - len(found.axes) :]])
        if weights is None:
            return image, None, groups
        axes = list(dict.fromkeys((*weights.axes, *(a for a in bound if self.size(a) > 1))))
        names = [n for a in axes for n in found.digits[a]]
        wanted = [*found.shared, *found.rows, *found.depth, *(a.tap for a in found.axes if a.tap is not None)]
        need(sorted(names) == sorted(wanted))
        split = self._xp.reshape(self.over(weights, axes), [found.sizes[n] for n in names])
        turned = self._xp.transpose(split, [names.index(n) for n in wanted])
        return image, self._xp.reshape(turned, [groups * rows, depth, *(a.taps for a in found.axes)]), groups

    def _of_digits(self, found: Sight, array: Array) -> NamedArray:
        """What an array of [batch, channels, pixels ...] is by axes."""
        names = [*found.batch, *found.shared, *found.rows, *(a.lane for a in found.axes if a.lane is not None)]
        axes = tuple(a for a, own in found.digits.items() if all(n in names for n in own))
        order = [names.index(n) for a in axes for n in found.digits[a]]
        split = self._xp.reshape(array, [found.sizes[n] for n in names])
        return NamedArray(axes, self._xp.reshape(self._xp.transpose(split, order), [self.size(a) for a in axes]))

    def _size_of(self, extent: Extent) -> int:
        return extents.evaluate(extent, self._binding)

    def _sum_of_product(self, bound: Sequence[Axis], scale: float, factors: list[NamedArray]) -> NamedArray:
        if not factors:
            return NamedArray((), scale * math.prod(self.size(a) for a in bound))
        if len(factors) > 1 and not all(self._xp.all_finite(f.array) for f in factors):
            # inf*0 is NaN for each element: taking a factor out of the sum, or summing one alone, would miss it.
            every = {a for f in factors for a in f.axes}
            if math.prod(self.size(a) for a in every) <= _WHOLE_PRODUCT:
                whole = factors[0]
                for f in factors[1:]:
                    whole = self._pointwise("mul", (whole, f))
                factors = [whole]
        outside = [f for f in factors if not any(a in bound for a in f.axes)]
        inside = [f for f in factors if any(a in bound for a in f.axes)]
        repeats = math.prod(self.size(a) for a in bound if not any(a in f.axes for f in inside))
        while len(inside) > 1:
            inside = [
                self._fold(ReduceKind.SUM, f, [a for a in f.axes if a in bound and a not in _axes(inside, n)])
                for n, f in enumerate(inside)
            ]
            pairs = [(i, j) for i in range(len(inside)) for j in range(i + 1, len(inside))]
            i, j = min(pairs, key=lambda p: self._pair_cost(inside, p, bound))
            product = self._pair(inside[i], inside[j], _summed_by(inside, (i, j), bound))
            inside = [product] + [f for n, f in enumerate(inside) if n not in (i, j)]
        total = self._fold(ReduceKind.SUM, inside[0], [a for a in bound if a in inside[0].axes]) if inside else None
        result = total
        for f in outside:
            result = f if result is None else self._pointwise("mul", (result, f))
        assert result is not None
        scale *= repeats
        return result if scale == 1.0 else self._pointwise("mul", (result, NamedArray((), scale)))

    def _pair_cost(
        self, factors: Sequence[NamedArray], pair: tuple[int, int], bound: Sequence[Axis]
    ) -> tuple[int, int]:
        done = _summed_by(factors, pair, bound)
        every = dict.fromkeys(a for n in pair for a in factors[n].axes)
        work = math.prod(self.size(a) for a in every)
        return math.prod(self.size(a) for a in every if a not in done), work

    def _pair(self, a: NamedArray, b: NamedArray, done: Sequence[Axis]) -> NamedArray:
        """The product of two values summed over `done`, which both have: a stack of matrix products."""
        if not done:
            return self._pointwise("mul", (a, b))
        stack = [x for x in a.axes if x in b.axes and x not in done]
        rows = [x for x in a.axes if x not in b.axes]
        columns = [x for x in b.axes if x not in a.axes]
        m, k, n = (math.prod(self.size(x) for x in group) for group in (rows, done, columns))
        left = self._align(a, [*stack, *rows, *done])
        right = self._align(b, [*stack, *done, *columns])
        leading = [math.prod(self.size(x) for x in stack)] if stack else []
        result = self._xp.matmul(self._xp.reshape(left, [*leading, m, k]), self._xp.reshape(right, [*leading, k, n]))
        axes = (*stack, *rows, *columns)
        return NamedArray(axes, self._xp.reshape(result, [self.size(x) for x in axes]))


def _factors(body: Expr) -> tuple[float, list[Expr]]:
    """The factors of nested products, and the sign and constants in front of them."""
    scale, factors = 1.0, []
    stack = [body]
    while stack:
        match stack.pop():
            case Map("mul", (a, b)):
                stack += (b, a)
            case Map("neg", (a,)):
                scale = -scale
                stack.append(a)
            case Const(number) if math.isfinite(number):
                scale *= number
            case other:
                factors.append(other)
    return scale, factors


def _axes(factors: Sequence[NamedArray], *but: int) -> set[Axis]:
    """The axes of all factors but those at the positions given (one value may be a factor twice)."""
    return {a for n, f in enumerate(factors) if n not in but for a in f.axes}


def _summed_by(factors: Sequence[NamedArray], pair: tuple[int, int], bound: Sequence[Axis]) -> list[Axis]:
    """The axes that the product of a pair of factors may be summed over at once."""
    i, j = pair
    others = _axes(factors, i, j)
    return [a for a in factors[i].axes if a in factors[j].axes and a in bound and a not in others]


def _ordered(index: Index) -> tuple[Axis, ...]:
    return tuple(sorted(index.axes(), key=lambda a: (a.name, str(a.extent))))
