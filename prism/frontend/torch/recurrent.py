"""ATen's recurrent layers as loops: LSTM, GRU and RNN, of several layers, in one direction or both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from prism.frontend import recurrent
from prism.frontend.recurrent import Recurrent, Sequences
from prism.frontend.torch.values import Handler, Node, Result, TorchValue
from prism.program import build
from prism.program.extents import Extent
from prism.program.fold import op
from prism.program.formulas import UNARY
from prism.program.index import Axis, Index
from prism.program.loops import defined_as, steps_of
from prism.program.nodes import Expr, Loop, ReduceKind, Tensor
from prism.program.views import axes_of


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of layer."""

    gates: int  # how many there are
    loop: Callable[[Sequences, Recurrent], Loop]  # the loop of one direction
    inside: bool = False  # whether the state's bias is added in the step, and not before


_KINDS: Mapping[str, _Kind] = {
    "lstm": _Kind(4, recurrent.lstm),
    "gru": _Kind(3, recurrent.gru, inside=True),
    "rnn_tanh": _Kind(1, recurrent.rnn),
    "rnn_relu": _Kind(1, lambda of, weights: recurrent.rnn(of, weights, UNARY["relu"])),
}


def left(node: torch.fx.Node) -> bool:
    """Whether it is a layer that torch has to decompose: packed sequences, projections, dropout between layers."""
    target: Any = node.target
    name = str(target._schema.name).removeprefix("aten::")
    if name not in _KINDS:
        return False
    if target._overloadname != "input":
        return True
    bound = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | node.kwargs
    weights = (4 if bound["has_biases"] else 2) * bound["num_layers"] * (2 if bound["bidirectional"] else 1)
    return len(bound["params"]) != weights or bool(bound["train"] and bound["dropout"])


def _layers(kind: _Kind, n: Node) -> Result:
    n.settled("dropout", "train")  # see `left`
    return _Layers(n, kind).made()


@dataclass(slots=True)
class _Layers:
    """The layers of one node."""

    n: Node
    kind: _Kind

    def made(self) -> tuple[TorchValue, ...]:
        n = self.n
        x: TorchValue = n["input"]
        hx = n["hx"]
        given: list[TorchValue] = list(hx) if isinstance(hx, list) else [hx]
        both, first = bool(n["bidirectional"]), bool(n["batch_first"])
        params: list[TorchValue] = list(n["params"])
        each = 4 if n["has_biases"] else 2
        order = (1, 0) if first else (0, 1)
        trips, batch = x.shape[order[0]], x.shape[order[1]]

        def element(t: Axis, b: Axis, k: Index) -> Expr:
            return x.at([Index.axis(b), Index.axis(t), k] if first else [Index.axis(t), Index.axis(b), k])

        read, width = element, x.shape[2]
        finals: list[list[tuple[TorchValue, Index]]] = [[] for _ in given]
        for layer in range(n["num_layers"]):
            sides: list[TorchValue] = []
            for direction in range(2 if both else 1):
                place = layer * (2 if both else 1) + direction
                own = params[place * each : (place + 1) * each]
                stacks = self._direction(place, own, given, read, (trips, batch, width), direction == 1)
                sides.append(stacks[0])
                last = Index.const(0) if direction else Index.const(trips) + Index.const(-1)
                for found, stack in zip(finals, stacks, strict=True):
                    found.append((stack, last))
            hidden = sides[0].shape[2]

            def of_sides(t: Axis, b: Axis, k: Index, sides: list[TorchValue] = sides, hidden: Extent = hidden) -> Expr:
                return _side_by_side(sides, hidden, [Index.axis(t), Index.axis(b), k])

            read, width = of_sides, n.shapes[0][2]
        output = self._output(sides, read, first)
        return (output, *(self._final(1 + i, found) for i, found in enumerate(finals)))

    def _direction(
        self,
        place: int,
        params: list[TorchValue],
        given: list[TorchValue],
        read: Callable[[Axis, Axis, Index], Expr],
        shape: tuple[Extent, Extent, Extent],
        reverse: bool,
    ) -> list[TorchValue]:
        """The states of all steps, of one layer in one direction."""
        n, builder = self.n, self.n.builder
        trips, batch, width = shape
        weight, state_weight, *biases = params
        t, b, g = axes_of((trips, batch, weight.shape[0]))
        k = Axis("k", width)
        index = Index.axis(g)
        pre = build.reduce(ReduceKind.SUM, k, op("mul", read(t, b, Index.axis(k)), weight.at([index, Index.axis(k)])))
        for bias in biases[:1] if self.kind.inside else biases:
            pre = op("add", pre, bias.at([index]))
        made = builder.materialise(f"{n.name}_{place}_pre", (t, b, g), pre, n.dtype, n.origin)
        held = [self._tensor(state_weight, "weight"), *([self._tensor(biases[1], "bias")] if biases else [])]
        step_bias = held[1].at if self.kind.inside and biases else None
        weights = Recurrent(
            held[0].at, step_bias, [Tensor(v.tensor, v.shape, v.dtype) for v in held[: 1 + (step_bias is not None)]]
        )
        firsts = [self._first(v, place) for v in given]
        hidden = state_weight.shape[1]
        name = builder.unique(f"{n.name}_{place}")
        sequences = Sequences(
            name, trips, batch, hidden, n.dtype, made.tensor, firsts, reverse, builder.unique, builder.ranges
        )
        loop = self.kind.loop(sequences, weights)
        found = []
        for s, label in zip(loop.states, ("h", "c"), strict=False):
            d = steps_of(loop, s.after, "", n.origin)
            found.append(builder.materialise(f"{name}_all_{label}", d.axes, d.expr, n.dtype, n.origin))
        return found

    def _tensor(self, value: TorchValue, name: str) -> TorchValue:
        """The value as a tensor, which a loop can read."""
        if value.tensor:
            return value
        axes = axes_of(value.shape)
        expr = value.at([Index.axis(a) for a in axes])
        return self.n.builder.materialise(f"{self.n.name}_{name}", axes, expr, value.dtype, self.n.origin)

    def _first(self, value: TorchValue, place: int) -> tuple[str, int | None]:
        """The tensor that a state is before the first step; constant ones are defined once."""
        if value.tensor:
            return value.tensor, place
        axes = axes_of(value.shape[1:])
        expr = value.at([Index.const(place), *map(Index.axis, axes)])
        known = defined_as(self.n.builder.definitions, axes, expr, value.dtype)
        if known is not None:
            return known, None
        made = self.n.builder.materialise(f"{self.n.name}_first", axes, expr, value.dtype, self.n.origin)
        return made.tensor, None

    def _output(
        self, sides: list[TorchValue], read: Callable[[Axis, Axis, Index], Expr], batch_first: bool
    ) -> TorchValue:
        if len(sides) == 1 and not batch_first:
            return sides[0]
        axes = self.n.axes
        t, b = (axes[1], axes[0]) if batch_first else (axes[0], axes[1])
        return self.n.define(read(t, b, Index.axis(axes[2])), view=len(sides) == 1)

    def _final(self, result: int, found: list[tuple[TorchValue, Index]]) -> TorchValue:
        """The states after the last steps, one beside the other."""
        axes = axes_of(self.n.shapes[result])
        rest = [Index.axis(a) for a in axes[1:]]

        def choose(place: int, before: Expr, after: Expr) -> Expr:
            inside = op("lt", build.position(axes[0]), build.position(Index.const(place)))
            return op("where", inside, before, after)

        def piece(place: int) -> Expr:
            stack, last = found[place]
            return stack.at([last, *rest])

        expr = build.balanced_select(len(found), piece, choose)
        return self.n.define(expr, axes, result=result, view=len(found) == 1)


def _side_by_side(sides: list[TorchValue], hidden: Extent, index: list[Index]) -> Expr:
    """An element of what the directions gave, one beside the other."""
    one, *others = sides
    if not others:
        return one.at(index)
    *before, k = index
    second = others[0].at([*before, k + Index.const(-hidden)])
    return op("where", op("lt", build.position(k), build.size(hidden)), one.at(index), second)


HANDLERS: Mapping[str, Handler] = {name: partial(_layers, kind) for name, kind in _KINDS.items()}
