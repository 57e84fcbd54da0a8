"""The state of one translation: the values known so far, the definitions made, and what a translator asks of them.

A value is one of three things: a tensor of the program (an input or a definition), a closed formula over its axes
(a constant, a range, a mask of positions) that is written into whatever reads it, or an array of the model that
becomes an input the first time it is read as data. Beside that a small integer tensor may have known elements, as
extents, which is how shapes are computed.
"""

from __future__ import annotations

import functools
import keyword
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prism.errors import FaultyModelError, ShapeError, UnsupportedError
from prism.frontend.sizes import not_negative
from prism.frontend.state import State, Value
from prism.program import build, integers
from prism.program.arrays import numpy_type
from prism.program.extents import Extent, is_static
from prism.program.fold import as_extent, chosen, op
from prism.program.index import Axis, Index
from prism.program.integers import Interval
from prism.program.lookup import from_end
from prism.program.nodes import Const, Definition, DType, Expr, Map, Position, Read, Tensor, walk
from prism.program.octagon import Octagon, octagon
from prism.program.transform import substitute
from prism.program.views import Elements, Shape, axes_of, broadcast_index, broadcast_shapes, places_index, same_extent

MAIN_DOMAINS = ("", "ai.onnx")
"""What models call ONNX's own operators."""
MAX_ELEMENTS = 256
"""The largest integer tensor whose elements are followed at translation."""
MAX_FORMULA = 64
"""The largest closed formula, in nodes, that is written into what reads it; a larger one is a definition."""


@dataclass(frozen=True, slots=True, eq=False)
class OnnxValue(Value):
    """What an ONNX value is to the translation."""

    bounds: Interval | None = None  # of the formula, where it is of an integer type: its operators alone may say less
    array: npt.NDArray[Any] | None = None  # the constant of the model, when it is one
    label: str = ""  # the name it has in the model
    carried: bool = False  # whether the program does not have its type, and its numbers are held in another

    @property
    def constant(self) -> npt.NDArray[Any] | None:
        """The constant of the model, or the elements that follow from it."""
        return self.elements if self.array is None else self.array


class UntranslatedError(UnsupportedError):
    """Something in a node has no translation.

    Args:
        what, said: as for PrismError.
        results: shape and type of each result, where these are known all the same; onnx infers few that hang on sizes.
    """

    def __init__(self, what: str, *, results: Sequence[tuple[Sequence[Extent], DType]] = (), **said: str) -> None:
        super().__init__(what, **said)
        self.results = results


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One ONNX node as a translator sees it; it remembers which operands and attributes were looked at."""

    op: str  # the operator's name
    label: str  # the node as the user knows it
    where: str  # the file and the node, for errors
    version: int  # the version of the operator's schema; 0 for an operator that the user declares
    inputs: tuple[OnnxValue | None, ...]  # its operands; None for one that is left out
    outputs: tuple[str, ...]  # the names of its results; empty for one that is not wanted
    attributes: Given  # by name, as Python values
    _read: set[int] = field(default_factory=set, repr=False)

    def afresh(self) -> Node:
        """The same node, of which nothing was looked at."""
        return replace(self, attributes=self.attributes.afresh(), _read=set())

    @property
    def unread(self) -> list[int]:
        """The places of the operands that are given and that nobody looked at."""
        return [place for place, value in enumerate(self.inputs) if value is not None and place not in self._read]

    def input(self, place: int) -> OnnxValue:
        """The operand at that place. Raises UnsupportedError: it is missing."""
        value = self.optional(place)
        if value is None:
            raise self.unsupported(f"operand {place} is missing", fix="check the model with onnx.checker")
        return value

    def optional(self, place: int) -> OnnxValue | None:
        """The operand at that place, None when it is left out."""
        self._read.add(place)
        return self.inputs[place] if place < len(self.inputs) else None

    def wanted(self, place: int) -> bool:
        """Whether the result at that place has a name, by which something may ask for it."""
        return place < len(self.outputs) and bool(self.outputs[place])

    def integer(self, name: str) -> int:
        """An integer attribute; 0 where the schema has none of that name, or no default for it."""
        return int(self.attributes.get(name, 0))

    def number(self, name: str) -> float:
        """A float attribute, exactly the float32 that ONNX stores; 0 as in `integer`.

        Raises:
            FaultyModelError: it is NaN or an infinity.
        """
        found = float(self.attributes.get(name, 0.0))
        if not math.isfinite(found):
            raise self.faulty(f"the attribute {name} is {found}", fix="export it with a finite number")
        return found

    def flag(self, name: str) -> bool:
        """An integer attribute that says yes or no.

        Raises:
            FaultyModelError: it is neither 1 nor 0: what that means is not said anywhere.
        """
        found = self.integer(name)
        if found not in (0, 1):
            raise self.faulty(f"the attribute {name} is {found}", why="it may be 0 or 1", fix="export it again")
        return bool(found)

    def axis(self, name: str, rank: int) -> int:
        """An axis attribute, counted from the front."""
        return self.wrap(self.integer(name), rank)

    def axes_behind(self, rank: int) -> list[int]:
        """The dimension that is meant; before version 13 the operand is a matrix, of which it and the rest are one."""
        axis = self.axis("axis", rank)
        return [axis] if self.version >= 13 else list(range(axis, rank))

    def wrap(self, axis: int, rank: int) -> int:
        """The axis, counted from the front. Raises ShapeError: there is no such axis."""
        if not -rank <= axis < rank:
            raise self.shape_error(f"axis {axis} is out of range for {rank} dimensions")
        return axis % rank

    def elements(self, place: int, what: str) -> Elements:
        """The elements of an integer operand that must be known at translation.

        Raises:
            UnsupportedError: they depend on data.
        """
        found = known_elements(self.input(place))
        if found is None:
            raise self.unsupported(
                f"{what} is computed from data", fix="export the model with constant shapes, axes and indices"
            )
        return found

    def listed(self, name: str, place: int, what: str) -> Elements | None:
        """Integers that old versions of the operator have as an attribute and new ones as an operand, None without."""
        if name in self.attributes:
            return np.array(self.attributes[name], dtype=object)
        return self._list(place, what) if self.optional(place) is not None else None

    def numbers(self, name: str, place: int, what: str) -> list[int] | None:
        """As `listed`, where each must be a number rather than an expression of symbolic dimensions."""
        found = self.listed(name, place, what)
        return None if found is None else self._static(found, what)

    def integers(self, place: int, what: str) -> list[int]:
        """As `elements`, where each must be a number rather than an expression of symbolic dimensions."""
        return self._static(self._list(place, what), what)

    def _list(self, place: int, what: str) -> Elements:
        found = self.elements(place, what)
        if found.ndim > 1:
            raise self.shape_error(f"{what} has {found.ndim} dimensions", why="it is a list")
        return found

    def _static(self, elements: Elements, what: str) -> list[int]:
        found = elements.ravel().tolist()
        if not all(is_static(e) for e in found):
            raise self.unsupported(f"{what} depends on a symbolic dimension", fix="export with that dimension fixed")
        return [int(e) for e in found]

    def unsupported(
        self, what: str, *, why: str = "", fix: str = "", results: Sequence[tuple[Sequence[Extent], DType]] = ()
    ) -> UntranslatedError:
        """The error to raise for something in this node that has no translation; `results` as UntranslatedError has."""
        fix = fix or "rewrite the node in supported operators"
        return UntranslatedError(what, where=self.where, why=why, fix=fix, results=results)

    def faulty(self, what: str, *, why: str = "", fix: str = "") -> FaultyModelError:
        """The error to raise for what the node's operator cannot have."""
        return FaultyModelError(what, where=self.where, why=why, fix=fix)

    def shape_error(self, what: str, *, why: str = "", differ: tuple[Extent, Extent] | None = None) -> ShapeError:
        """The error to raise for shapes that do not add up in this node; `differ` as ShapeError has it."""
        return ShapeError(what, where=self.where, why=why, fix="check the shapes of the node's operands", differ=differ)

    def agree(self, pairs: Iterable[tuple[Extent, Extent]], what: str) -> None:
        """See to it that the two extents of each pair are equal.

        Raises:
            ShapeError: they are not, as `what` says, or nothing says so.
        """
        for a, b in pairs:
            if not same_extent(a, b):
                raise self.shape_error(what, differ=(a, b))


@dataclass(frozen=True, slots=True)
class Operand:
    """A shape, and how the elements of a value, or what is made of them, are read."""

    shape: Shape
    at: Callable[[Sequence[Index]], Expr]

    def read(self, axes: Sequence[Axis]) -> Expr:
        """One element broadcast to the axes, aligned at the last dimension."""
        return self.at(broadcast_index(self.shape, list(map(Index.axis, axes))))


def known_elements(value: OnnxValue) -> Elements | None:
    """The elements of a value as extents, when they are integers known at translation."""
    if value.elements is not None:
        return value.elements
    shape = static_shape(value.shape)
    if value.formula is None or value.dtype.is_float or shape is None:
        return None
    uniform = as_extent(value.formula)
    if uniform is None or int(np.prod(shape)) > MAX_ELEMENTS:
        return None
    filled = np.empty(shape, dtype=object)
    filled[...] = uniform
    return filled


def whole_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of an integer type; of truth values, 0 and 1."""
    if dtype == DType.BOOL:
        return 0, 1
    half = 1 << (8 * dtype.bytes - 1)
    return (0, 2 * half - 1) if dtype == DType.UINT8 else (-half, half - 1)


def static_shape(shape: Sequence[Extent]) -> tuple[int, ...] | None:
    """The shape as numbers, None when a dimension is symbolic."""
    return tuple(int(e) for e in shape) if all(is_static(e) for e in shape) else None


def identifier(text: str) -> str:
    """A legal Python identifier that resembles the text."""
    cleaned = re.sub(r"\W", "_", text, flags=re.ASCII) or "_"
    if cleaned[0].isdigit():
        cleaned = f"_{cleaned}"
    return f"{cleaned}_" if keyword.iskeyword(cleaned) else cleaned


@dataclass(slots=True)
class Graph(State):
    """The program under construction."""

    where: str = ""  # the file, for errors
    # What symbols of the model are that have no range of their own: they have to equal others.
    equal: Mapping[str, Extent] = field(default_factory=dict)
    _octagons: dict[int, tuple[Octagon | None, object]] = field(default_factory=dict)
    _stored: dict[int, tuple[str, object]] = field(
        default_factory=dict
    )  # holds the array, so that its id stays its own

    def fresh(self, wanted: str) -> str:
        """An identifier that no tensor has yet, like the one wanted."""
        return self.numbered(identifier(wanted))

    def reserve(self, name: str) -> None:
        """Keep a name from being given to a tensor."""
        self._taken.add(name)

    def limit(self, symbol: str, high: int) -> None:
        """Note that the symbol is at most `high`: a slice or a lookup reads no further."""
        r = self.ranges[symbol]
        self.ranges[symbol] = replace(r, high=min(r.high, high), hint=min(r.hint, high), open=False)

    def require(self, difference: Extent) -> bool:
        """See to it that a number is not negative; whether that could be said (see `not_negative`)."""
        return not_negative(difference, self.ranges)

    def declare(self, label: str, shape: Shape, dtype: DType) -> OnnxValue:
        """A new input of the program."""
        tensor = Tensor(self.fresh(label), shape, dtype)
        self.add_input(tensor)
        return OnnxValue(shape, dtype, tensor=tensor.name, label=label)

    def at(self, value: OnnxValue, index: Sequence[Index]) -> Expr:
        """One element of the value. Raises UnsupportedError: it is an integer that float64 does not hold."""
        if len(index) != value.rank:
            name = value.label or value.tensor
            raise ValueError(f"{name} has {value.rank} dimensions, and {len(index)} are expected")
        if value.tensor:
            return Read(value.tensor, tuple(index))
        self._refuse_inexact(value)
        if value.formula is not None:
            found = _substituted(value.formula, dict(zip(value.axes, index, strict=True)))
            if value.bounds is not None:
                self._known[found] = value.bounds
            return found
        if value.elements is not None:
            return self._element(value.elements, value, index)
        return self._held(value, index)

    def _refuse_inexact(self, value: OnnxValue) -> None:
        """Refuse whole numbers beyond those that float64 has, in which programs are evaluated."""
        source = value.constant
        if value.dtype != DType.INT64 or source is None:
            return
        ends = [int(source.min()), int(source.max())] if value.array is not None and source.size else source.ravel()
        largest = max((abs(int(e)) for e in ends if is_static(e)), default=0)
        if largest > integers.EXACT:
            raise UnsupportedError(
                f"the constant {value.label!r} holds {largest}",
                where=self.where,
                why="whole numbers beyond 2^53 are not computed with exactly",
                fix="use smaller ones",
            )

    def _element(self, elements: Elements, value: OnnxValue, index: Sequence[Index]) -> Expr:
        """One of several known elements: regular ones are a position, a few others a choice, more an array."""
        regular = places_index(elements, index)
        if regular is not None:
            told = build.position(regular)
            return op("eq", told, Const(1.0)) if value.dtype == DType.BOOL and regular.terms else told
        if value.array is not None or all(is_static(e) for e in elements.ravel()):
            return self._held(value, index)
        return chosen(elements.shape, index, lambda place: build.size(elements[place]))

    def _held(self, value: OnnxValue, index: Sequence[Index]) -> Expr:
        """An element of a constant array: what positions tell of it, else a read."""
        source = value.constant
        assert source is not None
        if id(source) not in self._octagons:
            numbers = source if value.array is not None else source.astype(numpy_type(value.dtype))
            self._octagons[id(source)] = (octagon(numbers), source)
        told = self._octagons[id(source)][0]
        return Read(self._store(value), tuple(index)) if told is None else told.at(index)

    def _store(self, value: OnnxValue) -> str:
        """The input that holds a constant array of the model, declared when it is first read."""
        source = value.constant
        assert source is not None
        if id(source) not in self._stored:
            name = self.fresh(value.label or "constant")
            self.add_input(Tensor(name, value.shape, value.dtype), _bounds_of(source, value.dtype))
            self.weights[name] = source if value.array is not None else source.astype(numpy_type(value.dtype))
            self._stored[id(source)] = (name, source)
        return self._stored[id(source)][0]

    def read(self, value: OnnxValue, axes: Sequence[Axis]) -> Expr:
        """One element of the value broadcast to the axes, aligned at the last dimension."""
        return self.operand(value).read(axes)

    def operand(self, value: OnnxValue) -> Operand:
        """The value as an operand of what both readers share."""
        return Operand(value.shape, lambda index: self.at(value, index))

    def bounds(self, value: OnnxValue | Expr) -> Interval:
        """Bounds of the elements of a value, or of an expression over the program's tensors."""
        if isinstance(value, Expr):
            return self.interval(value)
        if value.formula is not None:
            return value.bounds or self.bounds(value.formula)
        if value.array is not None:
            return _bounds_of(value.array, value.dtype)
        if value.elements is not None:
            parts = [self.bounds(build.size(e)) for e in value.elements.ravel()]
            return functools.reduce(Interval.hull, parts, parts[0]) if parts else integers.of_type(value.dtype)
        return self.bounds_of(value.tensor)

    def place(self, value: Expr, axis: Axis) -> Expr:
        """A place along the axis that data give; one that may be negative counts from the end where it is."""
        return value if self.bounds(value).low >= 0 else from_end(value, axis)

    def define(
        self,
        node: Node,
        axes: Sequence[Axis],
        expr: Expr,
        dtype: DType,
        *,
        view: bool = False,
        output: int = 0,
        bounds: Interval | None = None,
    ) -> OnnxValue:
        """The value of one element over the axes: a definition, or a closed formula when nothing is read.

        Args:
            node: where it comes from.
            axes: one for each dimension.
            expr: the element over the reals; what of it an integer type stores is seen to here.
            dtype: how it is stored.
            view: whether it only re-indexes.
            output: which of the node's results it is.
            bounds: of the element, where the caller knows better than the formula says.

        Raises:
            UnsupportedError: the type stores something else, and no formula says what exactly.
        """
        shape = tuple(a.extent for a in axes)
        negative = [e for e in shape if is_static(e) and int(e) < 0]
        if negative:
            raise node.shape_error(
                f"a dimension of the result would have {negative[0]} elements",
                why="more is taken away from a dimension than it has",
            )
        for e in shape:
            if not self.require(e):
                raise node.unsupported(
                    f"a dimension of {e} elements has no translation",
                    why="it is negative for some sizes of the inputs",
                    fix="export with that dimension fixed",
                )
        if not dtype.is_float:
            expr, bounds = integers.stored(expr, dtype, bounds or self.bounds(expr), node.where)
        label = node.outputs[output] if output < len(node.outputs) and node.outputs[output] else node.label
        if not any(isinstance(e, Read) for e in walk(expr)) and sum(1 for _ in walk(expr)) <= MAX_FORMULA:
            return OnnxValue(shape, dtype, axes=tuple(axes), formula=expr, bounds=bounds, label=label)
        return self.define_tensor(label, axes, expr, dtype, origin=node.label, view=view, bounds=bounds)

    def define_tensor(
        self,
        label: str,
        axes: Sequence[Axis],
        expr: Expr,
        dtype: DType,
        *,
        origin: str,
        view: bool = False,
        bounds: Interval | None = None,
    ) -> OnnxValue:
        """A definition of the program, of what its type stores."""
        if any(isinstance(e, Const) and math.isnan(e.value) for e in walk(expr)):
            raise FaultyModelError(
                "a constant is NaN",
                where=f"{self.where}, {origin if origin.startswith('output ') else f'node {origin!r}'}",
                why="nothing can be proved of a value that is not a number",
                fix="mask with a large number or an infinity in its place",
            )
        d = Definition(self.fresh(label), tuple(axes), expr, dtype, origin, view)
        self.add(d, bounds or self.bounds(expr))
        return OnnxValue(tuple(a.extent for a in axes), dtype, tensor=d.name, label=label)

    def pointwise(
        self,
        node: Node,
        values: Sequence[OnnxValue],
        f: Callable[..., Expr],
        dtype: DType | None = None,
        bounds: Interval | None = None,
    ) -> OnnxValue:
        """`f` of the corresponding elements of the values, broadcast together."""
        shape = broadcast_shapes(*(v.shape for v in values), where=node.where)
        axes = axes_of(shape)
        expr = f(*(self.read(v, axes) for v in values))
        return self.define(node, axes, expr, dtype or values[0].dtype, bounds=bounds)

    def view(
        self,
        node: Node,
        value: OnnxValue,
        shape: Shape,
        index: Callable[[tuple[Axis, ...]], Sequence[Index]],
        *,
        output: int = 0,
    ) -> OnnxValue:
        """A re-indexing of the value: element `axes` of the result is element `index(axes)` of the value."""
        axes = axes_of(shape)
        return self.define(node, axes, self.at(value, index(axes)), value.dtype, view=True, output=output)


def _bounds_of(array: npt.NDArray[Any], dtype: DType) -> Interval:
    """Bounds of a constant; nothing is said of fractions."""
    if dtype.is_float or array.size == 0:
        return integers.of_type(dtype)
    return Interval(float(array.min()), float(array.max()), whole=True)


def _substituted(expr: Expr, mapping: Mapping[Axis, Index]) -> Expr:
    """A closed formula with its axes replaced, and positions that became numbers folded."""

    def fold(e: Expr) -> Expr:
        match e:
            case Position(index):
                return build.position(index)
            case Map("recip", (Const(),)):
                return e  # of a quotient that is rounded once
            case Map(name, args):
                return op(name, *(fold(a) for a in args))
            case _:
                return e

    return fold(substitute(expr, mapping))


Translator: TypeAlias = Callable[[Graph, Node], Sequence[OnnxValue]]
"""What makes an operator's results."""


def single(f: Callable[[Graph, Node], OnnxValue]) -> Translator:
    """Of what makes an operator's only result."""
    return lambda graph, node: [f(graph, node)]


class Given(Mapping[str, Any]):
    """Arguments by name; looking one up, or asking whether it is there, counts as knowing it.

    A handler that does not know an argument must not drop it. So when it is done, a call is refused in which an
    argument that it never looked at says something.
    """

    __slots__ = ("_read", "_values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        self._read.add(str(name))
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def afresh(self) -> Given:
        """The same arguments, none of them looked at."""
        return Given(self._values)

    @property
    def unread(self) -> Mapping[str, Any]:
        """The arguments that nobody looked at."""
        return {name: value for name, value in self._values.items() if name not in self._read}
