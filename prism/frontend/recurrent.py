"""Recurrent layers under both readers: a loop whose step is a cell.

What hangs on no state, the inputs' product with their weights and the biases, is one product of all steps, which the
reader defines; a step has its slice of that. The gates' order, functions and places differ between libraries, and are
arguments here. LSTM: Hochreiter & Schmidhuber, 1997, with forget gates (Gers et al., 2000); GRU: Cho et al., 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prism.program import build
from prism.program.extents import Extent, mul
from prism.program.fold import op
from prism.program.formulas import UNARY
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Expr, Loop, Program, Read, ReduceKind, State, SymbolRange, Tensor

Element = Callable[[Sequence[Index]], Expr]
"""An element of an operand, by an index per dimension."""
Function = Callable[[Expr], Expr]
"""A pointwise function."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """What a layer goes over, in one direction."""

    name: str  # what the loop is called, unique in the program; its names begin so
    trips: Extent  # steps
    batch: Extent  # sequences
    hidden: Extent  # elements of a state
    dtype: DType  # of states
    pre: str  # the tensor [trips, batch, gates * hidden] of what hangs on no state
    # For each state, the tensor that it is before the first step, and its place along that one's first dimension.
    first: Sequence[tuple[str, int | None]]
    reverse: bool  # whether the last place comes first
    unique: Callable[[str], str]  # makes a name of its own of one
    ranges: Mapping[str, SymbolRange]  # of the symbols that extents mention


@dataclass(frozen=True, slots=True)
class Recurrent:
    """The weights of a step, and the tensors that they are elements of."""

    weight: Element  # [gates * hidden, hidden]
    bias: Element | None  # [gates * hidden]; None where there is none that only a step can add
    tensors: Sequence[Tensor]  # their declarations


@dataclass(slots=True)
class _Step:
    """A step under construction."""

    of: Sequences
    weights: Recurrent
    inputs: list[Tensor] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    row: Axis = field(init=False)
    column: Axis = field(init=False)

    def __post_init__(self) -> None:
        self.row, self.column = Axis("i0", self.of.batch), Axis("i1", self.of.hidden)

    def given(self, name: str, columns: Extent) -> str:
        found = self.of.unique(f"{self.of.name}_{name}")
        self.inputs.append(Tensor(found, (self.of.batch, columns), self.of.dtype))
        return found

    def define(self, name: str, expr: Expr, columns: Extent | None = None) -> str:
        """A definition over rows and as many columns, by default the states'."""
        found = self.of.unique(f"{self.of.name}_{name}")
        column = self.column if columns is None else Axis("i1", columns)
        self.definitions.append(Definition(found, (self.row, column), expr, self.of.dtype, self.of.name))
        return found

    def at(self, tensor: str, gate: int = 0) -> Expr:
        """The element of a gate, of a tensor of gates side by side."""
        return Read(tensor, (Index.axis(self.row), Index.axis(self.column) + Index.const(mul(gate, self.of.hidden))))

    def product(self, state: str, gates: int, first: int = 0, bias: bool = False) -> str:
        """The state's product with the weights of so many gates, and their bias."""
        k, columns = Axis("k", self.of.hidden), mul(gates, self.of.hidden)
        column = Index.axis(Axis("i1", columns)) + Index.const(mul(first, self.of.hidden))
        read = Read(state, (Index.axis(self.row), Index.axis(k)))
        expr: Expr = build.reduce(ReduceKind.SUM, k, op("mul", read, self.weights.weight([column, Index.axis(k)])))
        if bias and self.weights.bias is not None:
            expr = op("add", expr, self.weights.bias([column]))
        return self.define("product", expr, columns)

    def loop(self, before: Sequence[str], after: Sequence[str], pre: str) -> Loop:
        used = [*self.inputs, *self.weights.tensors]
        body = Program(f"{self.of.name}_step", tuple(used), tuple(self.definitions), tuple(after), dict(self.of.ranges))
        states = tuple(
            State(b, first, a, place) for b, a, (first, place) in zip(before, after, self.of.first, strict=True)
        )
        return Loop(self.of.name, body, self.of.trips, states, ((pre, self.of.pre),), self.of.reverse)


def lstm(
    of: Sequences,
    weights: Recurrent,
    order: str = "ifgo",
    functions: tuple[Function, Function, Function] = (UNARY["sigmoid"], UNARY["tanh"], UNARY["tanh"]),
) -> Loop:
    """c' = f*c + i*g, h' = o*h(c'); the gates are functions of the slice and h's product. States: h, c.

    Args:
        of: the sequences.
        weights: of h.
        order: of the gates: input, forget, new, output.
        functions: of the gates, of what is new, and of c'.
    """
    step = _Step(of, weights)
    h, c, pre = step.given("h", of.hidden), step.given("c", of.hidden), step.given("in", mul(4, of.hidden))
    columns = mul(4, of.hidden)
    product = step.product(h, 4, bias=True)
    every = Index.axis(Axis("i1", columns))
    both = [Read(t, (Index.axis(step.row), every)) for t in (pre, product)]
    gates = step.define("gates", op("add", *both), columns)
    gate, new, out = functions
    i, f, g, o = (step.at(gates, order.index(x)) for x in "ifgo")
    kept = op("mul", gate(f), step.at(c))
    c_after = step.define("c_after", op("add", kept, op("mul", gate(i), new(g))))
    h_after = step.define("h_after", op("mul", gate(o), out(step.at(c_after))))
    return step.loop((h, c), (h_after, c_after), pre)


def gru(
    of: Sequences,
    weights: Recurrent,
    order: str = "rzn",
    functions: tuple[Function, Function] = (UNARY["sigmoid"], UNARY["tanh"]),
    reset_after: bool = True,
) -> Loop:
    """n = f(x + r*(h's product)), h' = n + z*(h - n). State: h.

    Args:
        of: the sequences.
        weights: of h; their bias is in the product.
        order: of the gates: reset, update, new.
        functions: of the gates, and of what is new.
        reset_after: whether the product is reset, or the state before it.
    """
    step = _Step(of, weights)
    h, pre = step.given("h", of.hidden), step.given("in", mul(3, of.hidden))
    gate, new = functions
    r, z, n = (order.index(x) for x in "rzn")
    if reset_after:
        product = step.product(h, 3, bias=True)
        reset = step.define("reset", gate(op("add", step.at(pre, r), step.at(product, r))))
        update = step.define("update", gate(op("add", step.at(pre, z), step.at(product, z))))
        inner = op("mul", step.at(reset), step.at(product, n))
    else:
        products = [step.product(h, 1, g, bias=True) for g in (r, z)]
        reset = step.define("reset", gate(op("add", step.at(pre, r), step.at(products[0]))))
        update = step.define("update", gate(op("add", step.at(pre, z), step.at(products[1]))))
        kept = step.define("kept", op("mul", step.at(reset), step.at(h)))
        inner = step.at(step.product(kept, 1, n, bias=True))
    made = step.define("new", new(op("add", step.at(pre, n), inner)))
    apart = op("add", step.at(h), op("neg", step.at(made)))
    after = step.define("h_after", op("add", step.at(made), op("mul", step.at(update), apart)))
    return step.loop((h,), (after,), pre)


def rnn(of: Sequences, weights: Recurrent, function: Function = UNARY["tanh"]) -> Loop:
    """h' = f(x + h's product). State: h."""
    step = _Step(of, weights)
    h, pre = step.given("h", of.hidden), step.given("in", of.hidden)
    product = step.product(h, 1, bias=True)
    after = step.define("h_after", function(op("add", step.at(pre), step.at(product))))
    return step.loop((h,), (after,), pre)
