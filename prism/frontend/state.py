"""What both readers keep while they read: values, the program that grows, and what is said of it to be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from prism.program import integers
from prism.program.conformance import Claim
from prism.program.decided import Exactness
from prism.program.index import Axis
from prism.program.integers import Interval
from prism.program.nodes import Const, Definition, DType, Expr, Map, Program, Read, SymbolRange, Tensor, walk
from prism.program.sign_analysis import Facts
from prism.program.transform import element_at, replaced
from prism.program.views import Elements, Shape


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """What a value is to the translation: a tensor of the program, or a formula, without reads, over its axes."""

    shape: Shape  # its extents, outermost first
    dtype: DType  # how its elements are stored
    tensor: str = ""  # the tensor of the program, when it is one
    axes: tuple[Axis, ...] = ()  # of the formula
    formula: Expr | None = None  # the closed formula of one element, when it is one
    elements: Elements | None = None  # its elements when they are whole numbers, or truth values, known at translation

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def constant(self) -> npt.NDArray[Any] | None:
        """The array of its elements, where they are known."""
        return self.elements


@dataclass(slots=True)
class State:
    """The program under construction."""

    inputs: list[Tensor] = field(default_factory=list)  # the tensors declared so far, the model's own inputs first
    # The values of those that the model fixes.
    weights: dict[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    definitions: list[Definition] = field(default_factory=list)  # in order
    ranges: dict[str, SymbolRange] = field(default_factory=dict)  # for each symbol, the values that it may take
    granted: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by tensor, what its formula settles, in words
    _taken: set[str] = field(default_factory=set)
    _next: dict[str, int] = field(default_factory=dict)  # numbers to try next, so that many names alike stay cheap
    _types: dict[str, DType] = field(default_factory=dict)
    _bounds: dict[str, Interval] = field(default_factory=dict)
    _known: dict[Expr, Interval] = field(default_factory=dict)  # of formulas that were read, more than they say
    _closed: dict[str, Expr] = field(default_factory=dict)  # what defines tensors that hang on no argument
    _moved: dict[str, str] = field(default_factory=dict)  # for tensors that are another's elements, that other

    def numbered(self, base: str) -> str:
        """The name, with a number where a tensor is called so already."""
        name, n = base, self._next.get(base, 1)
        while name in self._taken:
            name, n = f"{base}_{n}", n + 1
        self._next[base] = n
        self._taken.add(name)
        return name

    def add_input(self, tensor: Tensor, bounds: Interval | None = None) -> None:
        """Declare an input; its elements are what its type lets expect where no bounds are given."""
        self.inputs.append(tensor)
        self._types[tensor.name] = tensor.dtype
        self._bounds[tensor.name] = bounds or integers.of_type(tensor.dtype)

    def add(self, d: Definition, bounds: Interval) -> None:
        """Add a definition."""
        self.definitions.append(d)
        self._types[d.name] = d.dtype
        self._bounds[d.name] = bounds
        if self.is_closed(d.expr):
            self._closed[d.name] = d.expr
        if isinstance(d.expr, Read):
            self._moved[d.name] = d.expr.tensor

    def is_rounding(self, tensor: str, to: DType) -> bool:
        """Whether storing a tensor in a wider type does nothing but take back that it was stored in a narrower one.

        A value that is rounded on its way through operators of a narrow type is rounded for the sake of speed, and
        formulas leave that out; what does nothing else was written for its rounding, which no formula says.
        """
        dtype = self._types.get(tensor)
        if dtype is None or not (dtype.is_float and to.is_float and to.roundoff < dtype.roundoff):
            return False
        while (source := self._moved.get(tensor)) is not None:
            if self._types[source].is_float and self._types[source].roundoff < dtype.roundoff:
                return True
            tensor = source
        return False

    def is_closed(self, expr: Expr) -> bool:
        """Whether it hangs on no argument: on positions, sizes and constants of the model alone."""
        return all(self.hangs_on_none(e.tensor) for e in walk(expr) if isinstance(e, Read))

    def hangs_on_none(self, tensor: str) -> bool:
        """Whether a tensor hangs on no argument."""
        return tensor in self._closed or tensor in self.weights

    def may_turn(self, operands: Sequence[Expr], dtype: DType, *, quotients: bool = False) -> bool:
        """Whether a rounding may turn what is decided by numbers of a floating-point type that hang on no argument.

        The operands are cut to a whole number, or compared, and of that type; `quotients` is as of `Exactness.decides`.
        """
        if not all(map(self.is_closed, operands)):
            return False
        return not Exactness(dtype, self.interval, self._closed).decides(operands, quotients=quotients)

    def bounds_of(self, tensor: str) -> Interval:
        """Bounds of a tensor's elements."""
        return self._bounds.get(tensor, integers.REAL)

    def interval(self, expr: Expr) -> Interval:
        """Bounds of an expression's values, by those of the tensors that it reads."""
        return integers.interval(expr, self.bounds_of, self.ranges, self._known)

    def note(self, expr: Expr, bounds: Interval) -> None:
        """Remember bounds of an expression of which more is known than its operators say."""
        self._known[expr] = bounds

    def reads_floats(self, expr: Expr) -> bool:
        """Whether it is computed from floating-point tensors."""
        return any(isinstance(e, Read) and self._types[e.tensor].is_float for e in walk(expr))

    def may_be_infinite(self, expr: Expr) -> bool:
        """Whether a value of finite inputs is not known to be a number."""
        return self._has_infinities(expr) and not self._is_number(expr)

    def _is_number(self, expr: Expr) -> bool:
        """Whether it is a number, whatever infinities go into it, as the maximum of what a causal mask leaves is."""
        if any(not np.all(np.isfinite(w)) for w in self.weights.values() if w.dtype.kind == "f"):
            return False
        made = {d.name: d for d in self.definitions}
        for _ in range(_WRITTEN_OUT):
            read = {e.tensor for e in walk(expr) if isinstance(e, Read) and e.tensor in made}
            if not read:
                break
            expr = replaced([expr], partial(_in_place, {name: made[name] for name in read}))[0]
        else:
            return False
        return Facts().finite(expr)

    def _has_infinities(self, expr: Expr) -> bool:
        """Whether something infinite, or a division or a logarithm that may be, goes into a value of finite inputs."""
        made = {d.name: d.expr for d in self.definitions}
        seen: set[str] = set()
        todo = [expr]
        while todo:
            for e in walk(todo.pop()):
                match e:
                    case Const(number) if not math.isfinite(number):
                        return True
                    case Map("log" | "log2" | "recip" | "pow", _):
                        return True
                    case Read(tensor, _) if tensor not in seen:
                        seen.add(tensor)
                        if tensor in made:
                            todo.append(made[tensor])
                        elif tensor in self.weights and not np.all(np.isfinite(self.weights[tensor])):
                            return True
        return False


_WRITTEN_OUT = 12
"""Operators behind a value that are written out to tell whether it is a number."""


def _in_place(made: Mapping[str, Definition], e: Expr) -> Expr:
    """What a definition says in place of a read of it."""
    if not (isinstance(e, Read) and e.tensor in made):
        return e
    return element_at(made[e.tensor], e.index)


def claims(
    program: Program, made: Iterable[tuple[str, str, Value]], returned: Iterable[tuple[str, str]]
) -> list[Claim]:
    """What is said of a model: of values by their name and their node, and of what it returns, likewise."""
    tensors = {t.name for t in program.inputs} | {d.name for d in program.definitions}
    found = []
    for label, text, value in made:
        if value.tensor in tensors:
            found.append(Claim(label, text, value.dtype, value.tensor))
        elif not value.tensor and value.formula is not None:
            found.append(Claim(label, text, value.dtype, axes=value.axes, expr=value.formula))
    for name, (label, text) in zip(program.outputs, returned, strict=True):
        found.append(Claim(label, text, program.definition(name).dtype, name))
    return found
