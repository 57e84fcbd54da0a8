"""ONNX's recurrent layers as loops: LSTM, GRU and RNN, forwards, backwards, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from prism.frontend import recurrent
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Translator, known_elements
from prism.frontend.recurrent import Function, Recurrent, Sequences
from prism.program import build
from prism.program.extents import Extent, mul
from prism.program.fold import op
from prism.program.formulas import UNARY
from prism.program.index import Axis, Index
from prism.program.loops import defined_as, steps_of
from prism.program.nodes import Const, Expr, Loop, Read, ReduceKind, Tensor, walk
from prism.program.views import axes_of, same_extent

_FUNCTIONS: Mapping[str, Function] = MappingProxyType({name: UNARY[name] for name in ("sigmoid", "tanh", "relu")})
_GATES: Mapping[str, int] = MappingProxyType({"LSTM": 4, "GRU": 3, "RNN": 1})
_USUAL: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
)
_DIRECTIONS: Mapping[str, tuple[bool, ...]] = MappingProxyType(
    {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
)
_STATES = ("h", "c")


def _layer(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    return _Layer.of(graph, node).made()


@dataclass(slots=True)
class _Layer:
    """One node."""

    graph: Graph  # it and the node say where it is
    node: Node
    x: OnnxValue  # the sequences
    directions: tuple[bool, ...]  # whether each begins at the last place
    batch_first: bool  # how sequences lie (the attribute layout)
    hidden: Extent  # elements of a state
    functions: list[tuple[Function, ...]]  # of the gates, by direction

    @staticmethod
    def of(graph: Graph, node: Node) -> _Layer:
        """The node's layer; what has no translation is refused."""
        x, named = node.input(0), str(node.attributes.get("direction", "forward"))
        if named not in _DIRECTIONS:
            raise node.faulty(f"the attribute direction is {named}", fix="it is one of forward, reverse, bidirectional")
        directions, hidden = _DIRECTIONS[named], node.input(2).shape[-1]
        if "hidden_size" in node.attributes:
            node.agree([(node.integer("hidden_size"), hidden)], "the attribute hidden_size is another one")
        made = _Layer(graph, node, x, directions, node.flag("layout"), hidden, _functions(node, len(directions)))
        gates = _GATES[node.op]
        rows = mul(gates, hidden)
        for place, shape in ((1, (rows, x.shape[2])), (2, (rows, hidden)), (3, (mul(2, rows),))):
            value = node.optional(place)
            if value is None:
                continue
            wanted = (len(directions), *shape)
            if value.rank != len(wanted):
                raise node.shape_error(f"operand {place} has {value.rank} dimensions, not {len(wanted)}")
            node.agree(zip(value.shape, wanted, strict=True), f"operand {place} has the shape {list(value.shape)}")
        made._refuse_lengths()
        return made

    @property
    def trips(self) -> Extent:
        """Steps."""
        return self.x.shape[1 if self.batch_first else 0]

    @property
    def batch(self) -> Extent:
        """Sequences."""
        return self.x.shape[0 if self.batch_first else 1]

    def _refuse_lengths(self) -> None:
        """Sequences of several lengths have no translation."""
        lengths = self.node.optional(4)
        if lengths is None:
            return
        known = known_elements(lengths)
        if known is None or not all(same_extent(e, self.trips) for e in known.ravel()):
            raise self.node.unsupported("sequences of several lengths have no translation", fix="pad them, and mask")

    def made(self) -> list[OnnxValue]:
        """The results that are wanted, and those before them."""
        node, states = self.node, _STATES[: 2 if self.node.op == "LSTM" else 1]
        stacks = [self._direction(place, reverse, states) for place, reverse in enumerate(self.directions)]
        found = [self._all([s[0] for s in stacks])]
        for n in range(len(states)):
            if not any(node.wanted(m) for m in range(n + 1, 3)):
                break
            found.append(self._last(n + 1, [s[n] for s in stacks]))
        return found

    def _direction(self, place: int, reverse: bool, states: Sequence[str]) -> list[OnnxValue]:
        """The states of all steps in one direction."""
        graph, node, x = self.graph, self.node, self.x
        weight, state_weight, bias = node.input(1), node.input(2), node.optional(3)
        rows = state_weight.shape[1]
        inside = node.op == "GRU"  # where a bias of the state is reset with its product
        t, b, g = axes_of((self.trips, self.batch, rows))
        k, first = Axis("k", x.shape[2]), Index.const(place)
        read = [Index.axis(a) for a in ((b, t, k) if self.batch_first else (t, b, k))]
        product = op("mul", graph.at(x, read), graph.at(weight, [first, Index.axis(g), Index.axis(k)]))
        pre = build.reduce(ReduceKind.SUM, k, product)
        if bias is not None:
            for start in (0,) if inside else (0, rows):
                pre = op("add", pre, graph.at(bias, [first, Index.axis(g) + Index.const(start)]))
        label = node.outputs[0] or node.label
        made = graph.define_tensor(f"{label}_{place}_pre", (t, b, g), pre, x.dtype, origin=node.label)

        def element(index: Sequence[Index]) -> Expr:
            return graph.at(state_weight, [first, *index])

        def step_bias(index: Sequence[Index]) -> Expr:
            assert bias is not None
            return graph.at(bias, [first, index[0] + Index.const(rows)])

        biased = step_bias if inside and bias is not None else None
        some = [Index.const(0)]
        exprs = [element([*some, *some]), *([biased(some)] if biased is not None else [])]
        tensors = dict.fromkeys(e.tensor for x in exprs for e in walk(x) if isinstance(e, Read))
        weights = Recurrent(element, biased, [self._declared(name) for name in tensors])
        name = graph.fresh(f"{label}_{place}")
        of = Sequences(
            name,
            self.trips,
            self.batch,
            self.hidden,
            x.dtype,
            made.tensor,
            [self._first(n, place) for n in range(len(states))],
            reverse,
            graph.fresh,
            graph.ranges,
        )
        loop = self._loop(of, weights, self.functions[place])
        found = []
        for s, state in zip(loop.states, states, strict=True):
            d = steps_of(loop, s.after, "", node.label)
            found.append(graph.define_tensor(f"{name}_all_{state}", d.axes, d.expr, x.dtype, origin=node.label))
        return found

    def _loop(self, of: Sequences, weights: Recurrent, functions: tuple[Function, ...]) -> Loop:
        match self.node.op:
            case "LSTM":
                gate, new, out = functions
                return recurrent.lstm(of, weights, "iofg", (gate, new, out))
            case "GRU":
                gate, new = functions
                return recurrent.gru(of, weights, "zrn", (gate, new), self.node.flag("linear_before_reset"))
            case _:
                return recurrent.rnn(of, weights, functions[0])

    def _declared(self, name: str) -> Tensor:
        for t in self.graph.inputs:
            if t.name == name:
                return t
        return next(d.tensor for d in self.graph.definitions if d.name == name)

    def _first(self, state: int, place: int) -> tuple[str, int | None]:
        """The tensor that a state is before the first step, and its place there; constant ones are defined once."""
        graph, node, value = self.graph, self.node, self.node.optional(5 + state)
        axes = axes_of((self.batch, self.hidden))
        expr: Expr = Const(0.0)
        if value is not None:
            directions, batch = Index.const(place), Index.axis(axes[0])
            shape = (len(self.directions), self.batch, self.hidden)
            index = [batch, directions] if self.batch_first else [directions, batch]
            wanted = (shape[1], shape[0], shape[2]) if self.batch_first else shape
            if value.rank != len(wanted):
                raise node.shape_error(f"operand {5 + state} has {value.rank} dimensions, not 3")
            node.agree(zip(value.shape, wanted, strict=True), f"operand {5 + state} has the shape {list(value.shape)}")
            expr = graph.at(value, [*index, Index.axis(axes[1])])
        if isinstance(expr, Read) and not self.batch_first:
            return expr.tensor, place
        known = defined_as(graph.definitions, axes, expr, self.x.dtype)
        if known is not None:
            return known, None
        label = f"{node.outputs[0] or node.label}_first"
        made = graph.define_tensor(label, axes, expr, self.x.dtype, origin=node.label, view=isinstance(expr, Read))
        return made.tensor, None

    def _all(self, stacks: Sequence[OnnxValue]) -> OnnxValue:
        """Y: the states of all steps, the directions side by side."""
        shape = (self.trips, len(stacks), self.batch, self.hidden)
        t, d, b, h = axes_of(shape)
        expr = _chosen(d, [self.graph.at(s, [Index.axis(a) for a in (t, b, h)]) for s in stacks])
        over = (b, t, d, h) if self.batch_first else (t, d, b, h)
        return self.graph.define(self.node, over, expr, self.x.dtype, view=len(stacks) == 1)

    def _last(self, output: int, stacks: Sequence[OnnxValue]) -> OnnxValue:
        """Y_h, Y_c: the states after the last step of each direction."""
        d, b, h = axes_of((len(stacks), self.batch, self.hidden))
        finals = []
        for s, reverse in zip(stacks, self.directions, strict=True):
            last = Index.const(0) if reverse else Index.const(self.trips) + Index.const(-1)
            finals.append(self.graph.at(s, [last, Index.axis(b), Index.axis(h)]))
        over = (b, d, h) if self.batch_first else (d, b, h)
        expr = _chosen(d, finals)
        return self.graph.define(self.node, over, expr, self.x.dtype, view=len(stacks) == 1, output=output)


def _chosen(axis: Axis, choices: Sequence[Expr]) -> Expr:
    """One of the directions, by the place along their axis."""
    if len(choices) == 1:
        return choices[0]
    return op("where", op("lt", build.position(axis), Const(1.0)), choices[0], choices[1])


def _functions(node: Node, directions: int) -> list[tuple[Function, ...]]:
    """The functions of the gates, for each direction."""
    usual = _USUAL[node.op]
    found = node.attributes["activations"] if "activations" in node.attributes else usual * directions
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in found]
    if node.op == "RNN":
        names = names[:directions]  # by default there are two, also of one direction
    if len(names) != len(usual) * directions:
        raise node.faulty(
            f"{len(names)} activations", why=f"there are {len(usual)} for each direction", fix="export again"
        )
    unknown = [n for n in names if n.lower() not in _FUNCTIONS]
    if unknown:
        raise node.unsupported(f"the activation {unknown[0]} of {node.op} is not supported")
    every = [_FUNCTIONS[n.lower()] for n in names]
    return [tuple(every[n * len(usual) : (n + 1) * len(usual)]) for n in range(directions)]


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(dict.fromkeys(_GATES, _layer))
