"""What a torch value is while a graph is translated, and the growing program that it is translated into.

A value is either a tensor (an input or a definition) or a formula without reads: constants, aranges and the masks made
of them need no operator of their own, they are instantiated where they are used.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from prism.errors import UnsupportedError
from prism.frontend.state import State, Value
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.integers import EXACT, Interval, from_fraction, stored
from prism.program.nodes import Const, Definition, DType, Expr, Position, Read, Tensor, walk
from prism.program.transform import substitute
from prism.program.views import Shape, axes_of, broadcast_index

UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""ATen's operators whose results hold what happens to be in memory."""


@dataclass(frozen=True, slots=True, eq=False)
class TorchValue(Value):
    """A torch tensor."""

    def at(self, index: Sequence[Index]) -> Expr:
        """The element at an index per dimension."""
        if self.formula is None:
            return Read(self.tensor, tuple(index))
        return substitute(self.formula, dict(zip(self.axes, index, strict=True)))

    def under(self, axes: Sequence[Axis]) -> Expr:
        """The element under the last of the axes, as broadcasting aligns them."""
        return self.at(broadcast_index(self.shape, list(map(Index.axis, axes))))

    @property
    def position(self) -> Index | None:
        """The index that a formula's elements are, when they are the values of one (over `axes`)."""
        match self.formula:
            case Position(index):
                return index
            case Const(value) if value.is_integer():
                return Index.const(int(value))
        return None


@dataclass(slots=True, eq=False)
class Node:
    """One call of an ATen operator: its arguments by their schema names, and what its result looks like.

    It remembers which arguments its handler has asked for, so that none is dropped unseen (see `unread`).
    """

    builder: Builder  # the program under construction
    name: str  # the node's name in torch's graph
    operator: str  # what torch calls it, with its overload
    origin: str  # the node as the user knows it: operator, name, and line of source where torch knows it
    arguments: Mapping[str, Any]  # by name; what a handler asks for here alone is not noted
    shapes: Sequence[Shape]  # the shape of each result
    dtypes: Sequence[DType]  # the data type of each result
    # The places of the results that something uses; of an operator of one result, 0.
    wanted: frozenset[int] = frozenset((0,))
    _read: set[str] = field(default_factory=set, init=False)

    def __getitem__(self, argument: str) -> Any:
        self._read.add(argument)
        return self.arguments[argument]

    def get(self, argument: str, default: Any = None) -> Any:
        """The argument, or the default where the overload has no such argument."""
        self._read.add(argument)
        return self.arguments.get(argument, default)

    def has(self, argument: str) -> bool:
        """Whether the overload has such an argument."""
        return argument in self.arguments

    def values(self) -> list[Any]:
        """Every argument, in the schema's order."""
        self._read.update(self.arguments)
        return list(self.arguments.values())

    def settled(self, *arguments: str) -> None:
        """Note that the result's shape and type, or what the operator is, say all that these arguments mean."""
        self._read.update(arguments)

    def unread(self) -> list[str]:
        """The arguments that no one has asked for."""
        return [a for a in self.arguments if a not in self._read]

    @property
    def shape(self) -> Shape:
        """The first result's shape."""
        return self.shapes[0]

    @property
    def dtype(self) -> DType:
        """The first result's data type."""
        return self.dtypes[0]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes for the first result."""
        return axes_of(self.shape)

    def define(
        self,
        expr: Expr,
        axes: Sequence[Axis] | None = None,
        *,
        result: int = 0,
        view: bool = False,
        bounds: Interval | None = None,
    ) -> TorchValue:
        """The value of one result, as its type stores it: `expr` over `axes` (those of the first result by default).

        Bounds of the expression are derived where a handler does not know better.
        """
        over = tuple(axes) if axes is not None else self.axes
        name = self.name if len(self.shapes) == 1 else f"{self.name}_{result}"
        return self.builder.define(name, over, expr, self.dtypes[result], self.origin, view=view, bounds=bounds)

    def results(self, *makers: Callable[[], TorchValue], first: Sequence[str] = ()) -> Result:
        """The results in order, of which those are made that something uses; only the first has to do with `first`."""
        self._read.update(first)
        made = tuple(make() if place in self.wanted else None for place, make in enumerate(makers))
        return made if len(self.shapes) > 1 or made[0] is None else made[0]

    def granted(self, value: TorchValue, *clauses: str) -> TorchValue:
        """The value, of which torch leaves open what is so in the program, as the clauses say."""
        # Numbers that hang on no argument may be put in where they are read, and then no one reads the tensor.
        closed = not value.tensor or self.builder.hangs_on_none(value.tensor)
        self.builder.granted["" if closed else value.tensor] = clauses
        return value

    def bounds(self, expr: Expr) -> Interval:
        """Bounds of an expression's values."""
        return self.builder.interval(expr)

    def unsupported(self, why: str, fix: str = "") -> UnsupportedError:
        """The error that says that this node has no translation."""
        found = UnsupportedError(
            f"{self.operator} has no translation",
            where=self.origin,
            why=why,
            fix=fix or "rewrite this part with supported operations, or keep it outside the traced function",
        )
        found.in_part = True
        return found


Result: TypeAlias = "TorchValue | tuple[TorchValue | None, ...]"
Handler: TypeAlias = Callable[[Node], Result]


class Builder(State):
    """Collects the inputs and definitions of a program under construction."""

    def unique(self, name: str) -> str:
        """An identifier like `name` that no tensor has yet."""
        base = re.sub(r"\W", "_", name).strip("_") or "t"
        return self.numbered(base if base.isidentifier() and not keyword.iskeyword(base) else f"t_{base}")

    def input(self, name: str, shape: Shape, dtype: DType, bounds: Interval | None = None) -> TorchValue:
        """Declare an input; see `add_input`."""
        tensor = Tensor(self.unique(name), shape, dtype)
        self.add_input(tensor, bounds)
        return TorchValue(shape, dtype, tensor.name)

    def define(
        self,
        name: str,
        axes: tuple[Axis, ...],
        expr: Expr,
        dtype: DType,
        origin: str,
        *,
        view: bool = False,
        bounds: Interval | None = None,
    ) -> TorchValue:
        """A value as its type stores it; it becomes a definition when it reads a tensor."""
        shape: tuple[Extent, ...] = tuple(a.extent for a in axes)
        kept, within = stored(expr, dtype, bounds or self.interval(expr), origin)
        if not any(isinstance(e, Read) for e in walk(kept)):
            return TorchValue(shape, dtype, axes=axes, formula=kept)
        return self._defined(name, axes, kept, dtype, origin, within, view=view)

    def materialise(
        self, name: str, axes: tuple[Axis, ...], expr: Expr, dtype: DType, origin: str, *, view: bool = False
    ) -> TorchValue:
        """A definition, even of what reads no tensor, of a value that is as its type stores it."""
        return self._defined(name, axes, expr, dtype, origin, self.interval(expr), view=view)

    def _defined(
        self, name: str, axes: tuple[Axis, ...], expr: Expr, dtype: DType, origin: str, bounds: Interval, *, view: bool
    ) -> TorchValue:
        d = Definition(self.unique(name), axes, expr, dtype, origin, view and isinstance(expr, Read))
        self.add(d, bounds)
        return TorchValue(d.tensor.shape, dtype, d.name)


def converted(n: Node, e: Expr, dtype: DType) -> Expr:
    """A value cast to another type: cut off towards 0 for whole numbers, and wrapped where the type is narrow."""
    if dtype.is_float:
        return e
    bounds = n.bounds(e)
    # Whole numbers of an integer type are all meant, those of a floating-point type up to what casts assume.
    if dtype is not DType.BOOL and (not bounds.whole or n.builder.reads_floats(e)):
        e, bounds = from_fraction(e, bounds)
    kept, within = stored(e, dtype, bounds, n.origin)
    n.builder.note(kept, within)
    return kept


def number(value: TorchValue | Extent | float | bool, axes: Sequence[Axis]) -> Expr:
    """An operand of a pointwise operation: a tensor under the axes, a Python number, or a symbolic size."""
    from prism.program import build

    if isinstance(value, TorchValue):
        return value.under(axes)
    if isinstance(value, (bool, int, float)):
        return constant(value)
    return build.size(value)


def constant(value: float | bool, where: str = "") -> Const:
    """A number of the model, which float64 must hold. Raises UnsupportedError: it does not."""
    if value != value:
        raise UnsupportedError(
            "NaN as a number", where=where, why="no formula has it", fix="say where it is to come from: 0 / 0"
        )
    if isinstance(value, int) and abs(value) > EXACT and int(float(value)) != value:
        raise UnsupportedError(
            f"the number {value}", where=where, why="float64 does not hold it", fix="use numbers within ±2^53"
        )
    return Const(float(value))


def is_truth(value: object) -> bool:
    """Whether an operand holds truth values."""
    return isinstance(value, bool) or (isinstance(value, TorchValue) and value.dtype is DType.BOOL)
