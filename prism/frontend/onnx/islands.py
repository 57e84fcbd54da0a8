"""A model with nodes that have no translation, cut into islands of nodes that have one.

The reader is asked node by node, with what it knows of the operands. What it refuses stays as it is, and its results
are inputs to what follows, of the types and shapes that onnx infers. Nodes between two that stay are an island. A
node's depth is how often a path to it enters a node that stays from one that does not; no path between two nodes of one
depth leaves that depth, and so every connected group of them can be run at once.

What hangs on no data is in no island: shapes, constants and formulas of positions are copied to wherever they are
needed, known numbers as constants, and sizes as they follow from the part's own inputs.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import sympy
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from prism.errors import FaultyModelError, ModelError, PrismError, UnsupportedError
from prism.frontend.onnx import contrib, reader, written
from prism.frontend.onnx.dtypes import element_type
from prism.frontend.onnx.functions import defined_within, names_read, nodes_within
from prism.frontend.onnx.graph import MAIN_DOMAINS, OnnxValue, UntranslatedError, identifier
from prism.frontend.onnx.other_readers import Inference
from prism.program.arrays import numpy_type
from prism.program.extents import Extent, at_most, is_static, most_elements, symbol
from prism.program.nodes import DType, Reduce, walk
from prism.program.operators import Operator

DOMAIN = "ai.prism"
"""The domain of the functions that islands are in the model that comes out."""
FUNCTIONS_IR = 8
"""The first version of ONNX's format that has functions."""
MOST_WORDS = 64
"""The most strings that an input is drawn from."""
MAX_BYTES = 2**31 - 2**16
"""The largest model that is written as one file."""


LEFT = frozenset({"Conv", "ConvInteger", "ConvTranspose", "QLinearConv", "AveragePool", "LpPool", "MaxPool"})
"""Operators that stay although they are read: parts run on a CPU, where kernels made of windows were many times slower
than onnxruntime's, and one in an island would lose what the rest of it gains."""
CHANNELS = 16
"""The least channels, of a group, that a convolution reads and makes which tiles multiply faster than onnxruntime's
kernels do (measured): with fewer, vectors do it, which are no faster than those."""

LEFT_BY_DATA = frozenset({"Scatter", "ScatterElements", "ScatterND"})
"""Operators that stay where data say which elements are written: what is made of them goes through everything that is
written for each element, and onnxruntime through it once."""


NOT_IN_FUNCTIONS = frozenset({"QLinearConcat"})
"""Operators that onnxruntime does not take in the body of a function, which islands are in the model for it alone: it
takes the result for float32 there."""


def left(path: Path, tiles: bool = False) -> tuple[str, ...]:
    """The operators of a model that stay although they are read, each once, or may; `tiles` as of `cut`."""
    graph = reader.parse(path).graph
    tiled = shapes_of_weights(graph) if tiles else {}
    return tuple(
        dict.fromkeys(
            n.op_type
            for n in graph.node
            if windowed(n, tiled) or (n.domain in MAIN_DOMAINS and n.op_type in LEFT_BY_DATA)
        )
    )


def shapes_of_weights(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes of what a graph stores: tensors, nodes that are one, and nodes that fill a shape that is stored."""
    stored = {t.name: t for t in graph.initializer}
    found = {name: tuple(t.dims) for name, t in stored.items()}
    for n in graph.node:
        match n.op_type, [a.t for a in n.attribute if a.name == "value"]:
            case "Constant", [value]:
                stored[n.output[0]], found[n.output[0]] = value, tuple(value.dims)
            case "ConstantOfShape", _ if n.input[0] in stored and not external_data_helper.uses_external_data(
                stored[n.input[0]]
            ):
                found[n.output[0]] = tuple(int(e) for e in numpy_helper.to_array(stored[n.input[0]]).ravel())
    return found


def windowed(proto: onnx.NodeProto, tiled: Mapping[str, Sequence[int]] = MappingProxyType({})) -> bool:
    """Whether a node stays for its windows.

    A convolution by patches that do not overlap, as where a vision transformer begins, is a product of matrices: it
    takes what onnxruntime takes (306 µs, and torch 314, measured), and what stays cuts a model in parts. One of single
    points stays: it comes between others, which onnxruntime runs in a layout of its own. Where tiles multiply, those of
    many channels are faster than onnxruntime's, and so single points come between what does not stay. `tiled` are the
    shapes of weights that tiles multiply.
    """
    if proto.domain not in MAIN_DOMAINS or proto.op_type not in LEFT:
        return False
    if proto.op_type != "Conv":
        return True
    given = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    group = given.get("group", 1)
    made, read, *_ = (*tiled.get(proto.input[1], ()), 0, 0)
    if min(made // max(group, 1), read) >= CHANNELS:
        return False
    kernel, strides = given.get("kernel_shape", ()), given.get("strides", ())
    patches = len(kernel) == len(strides) > 0 and all(s >= k > 1 for k, s in zip(kernel, strides, strict=True))
    plain = group == 1 and not any(given.get("pads", ())) and not given.get("auto_pad", b"").startswith(b"SAME")
    return not (patches and plain)


class _UnknownSizeError(Exception):
    """A size that no input's shape says."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A node that stays as it is."""

    node: str  # its label
    op: str  # its operator
    why: str  # what the reader says of it


@dataclass(frozen=True, slots=True)
class Island:
    """Nodes that are translated, and connected with one another."""

    name: str  # `island_0` and so on, in the order in which they can run
    depth: int  # how many runs of nodes that stay are before it
    nodes: tuple[int, ...]  # their places in the graph


@dataclass(frozen=True, slots=True)
class Port:
    """A value that goes into a model or comes out of it."""

    name: str  # the value's
    dtype: str  # its type as numpy has it, `str` for strings; empty where it is no tensor or numpy has no such type
    shape: tuple[Extent, ...] | None  # its extents; None where not even the rank is known
    words: tuple[str, ...] = ()  # of an input of strings, some that may be meant: those that the model itself holds


@dataclass(frozen=True, slots=True)
class Part:
    """A model that stands alone."""

    name: str  # the island's, or `rest_0` and so on
    island: bool  # whether its nodes are an island's
    data: bytes  # the model
    inputs: tuple[Port, ...]  # what it takes
    outputs: tuple[Port, ...]  # what it gives
    nodes: int  # how many nodes of the model are in it
    # What it computes, without the names of its values and the values of its larger weights: islands of one key are
    # equal but for these.
    key: str


@dataclass(slots=True)
class _Draft:
    """The content of a part, while it is put together."""

    inputs: dict[str, None] = field(default_factory=dict)  # data that it takes
    outputs: tuple[str, ...] = ()  # data that it gives
    sizes: list[onnx.NodeProto] = field(default_factory=list)  # nodes that compute sizes from the inputs' shapes
    nodes: dict[int, onnx.NodeProto] = field(default_factory=dict)  # the model's own, by place
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)  # what is known of values that others computed
    weights: dict[str, onnx.TensorProto] = field(default_factory=dict)  # initialisers of the model

    @property
    def body(self) -> list[onnx.NodeProto]:
        """Its nodes, each after those that it reads: sizes may be of what is made in it."""
        sizes = {node.output[0]: node for node in self.sizes}
        found: list[onnx.NodeProto] = []

        def put(node: onnx.NodeProto) -> None:
            for name in names_read(node):
                if name in sizes:
                    put(sizes.pop(name))
            found.append(node)

        for place in sorted(self.nodes):
            put(self.nodes[place])
        while sizes:
            put(sizes.pop(next(iter(sizes))))
        return found


def cut(
    path: Path,
    *,
    operators: Sequence[Operator] = (),
    inference: Inference | None = None,
    empty: Collection[str] = (),
    tiles: bool = False,
) -> Cut:
    """Read a file as islands, and nodes that stay as they are.

    Args:
        path: the ONNX file; tensors that it keeps in other files are looked for beside it.
        operators: what nodes of the domain `prism` mean, by their names.
        inference: what onnx is asked by about nodes that stay; one of its own, if none is given.
        empty: symbolic dimensions that have no elements.
        tiles: whether the processor multiplies tiles, by which convolutions of many channels are faster than in
            onnxruntime.

    Raises:
        ModelError: the file is missing, damaged, or not ONNX.
        UnsupportedError: it is of an operator set, or holds functions, that cannot be read at all.
    """
    name = str(path)
    given = reader.parse(path)
    model = reader.written_out(given, name)
    newer = reader.is_newer(given, model, name)
    _refuse_nobodys(model, name)
    model = written.live(model)
    declared = {op.name: op for op in operators}
    with nullcontext(inference) if inference is not None else Inference() as asked:
        found = reader.settled(
            model,
            lambda m, equal: Cut(m, name, path.parent, declared, asked, equal, tiles),
            reader.nothing(empty, model),
        )
    found.newer = newer
    return found


def _refuse_nobodys(model: onnx.ModelProto, name: str) -> None:
    """Refuse operators that ONNX does not have: nothing could run them. What other domains have is not known here."""
    versions = {o.domain or "ai.onnx": o.version for o in model.opset_import}
    for node in nodes_within(model.graph.node):
        domain = node.domain or "ai.onnx"
        if contrib.has(node, versions.get("ai.onnx", 1)):
            continue
        if domain in ("ai.onnx", "ai.onnx.ml") and not onnx.defs.has(
            node.op_type,
            max_inclusive_version=versions.get(domain, 1),
            domain=domain.removeprefix("ai.onnx") and domain,
        ):
            raise UnsupportedError(
                f"no translation for the operator {node.op_type}",
                where=f"{name}, node {reader.label_of(node)!r}",
                why=f"{domain} has no operator of that name in version {versions.get(domain, 1)}",
                fix="check the model with onnx.checker",
            )


class Cut:
    """A model whose nodes are sorted into islands and nodes that stay.

    Args:
        model: the model, without functions of its own.
        name: its file, for errors.
        directory: where its external data lie.
        declared: what nodes of the domain `prism` mean.
        inference: what onnx is asked by, while this is made.
        equal: what some of the model's symbols are, from `reader.settled`.
        tiles: as of `cut`.

    Attributes:
        opset: the operator set that the model is declared of.
        inputs, outputs: what the caller passes and gets.
        islands: in the order in which they can run.
        kept: nodes that have no translation, by place.
        count: how many nodes the model has that compute with data.
        newer: whether the file is of a newer operator set or format than runtimes take, and what is written is not.
    """

    newer = False

    def __init__(
        self,
        model: onnx.ModelProto,
        name: str,
        directory: Path | None,
        declared: Mapping[str, Operator],
        inference: Inference,
        equal: Mapping[str, Extent] = MappingProxyType({}),
        tiles: bool = False,
    ) -> None:
        self._model = model
        self._name = name
        self._nodes = list(model.graph.node)
        self._walk = reader.Walk(model, name, directory, declared, equal)
        self.opset = self._walk.opset
        self._initial = {t.name: t for t in model.graph.initializer}
        self._tiled = shapes_of_weights(model.graph) if tiles else {}
        self._passed = {i.name: i for i in self._walk.passed}
        self._producer = {o: n for n, p in enumerate(self._nodes) for o in p.output if o}
        self._infos = dict(self._passed)
        self._stated = {v.name: v for v in (*model.graph.output, *model.graph.value_info)}
        self._sources: dict[sympy.Symbol, tuple[str, int]] = {}
        self._closures: dict[str, frozenset[str]] = {}
        self._free = [False] * len(self._nodes)
        self.kept: dict[int, Kept] = {}
        self._read(declared, inference)
        self._keep_at_borders()
        self._reads = [self._read_by(n) for n in range(len(self._nodes))]
        self._wanted, self._readers = self._asked()
        self._depth = self._depths()
        self.islands = self._grouped()
        ports = (self._port(i.name) for i in self._walk.passed)
        self.inputs = tuple(replace(p, words=self._words()) if p.dtype == "str" else p for p in ports)
        self.outputs = tuple(self._port(o.name) for o in model.graph.output)
        self.count = sum(not f for f in self._free)

    # Which nodes are translated, and which hang on no data.

    def _read(self, declared: Mapping[str, Operator], inference: Inference) -> None:
        walk = self._walk
        for tensor in self._initial.values():
            reader.load_external(tensor, self._name, walk.directory)
            try:
                walk.hold(tensor)
            except UnsupportedError:
                continue  # of a type that only nodes that stay can read
        for info in walk.passed:
            self._take(info)
        for place, proto in enumerate(self._nodes):
            if any(o in self._passed or o in self._initial or self._producer[o] != place for o in proto.output if o):
                raise ModelError(
                    f"the result {next(o for o in proto.output if o)!r} is defined twice",
                    where=f"{self._name}, node {reader.label_of(proto)!r}",
                    fix="check the model with onnx.checker",
                )
            self._refuse_undefined(proto, place)
            why = self._refused(proto, declared)
            if not why:
                self._free[place] = self._is_free(proto)
                try:
                    for o in proto.output if self._free[place] else ():
                        self._closure(o)
                except _UnknownSizeError as error:
                    why = str(error)
                    self._free[place] = False
            if why:
                self.kept[place] = Kept(reader.label_of(proto), _operator(proto), why)
                self._results_of_kept(place, inference)

    def _keep_at_borders(self) -> None:
        """Keep what would take a value in bfloat16 from nodes that stay, or give them one: numpy has no such type."""

        def in_bfloat16(name: str) -> bool:
            value = self._walk.values.get(name)
            return value is not None and value.dtype is DType.BFLOAT16 and self._is_data(name)

        crossing = {n for n in self._passed if in_bfloat16(n)} | {o.name for o in self._model.graph.output}
        crossing |= {n for k in self.kept for n in (*names_read(self._nodes[k]), *self._nodes[k].output)}
        todo = True
        while todo:
            todo = False
            for place, proto in enumerate(self._nodes):
                names = {*names_read(proto), *proto.output}
                if place not in self.kept and any(in_bfloat16(n) for n in names & crossing):
                    why = "values in bfloat16 do not pass between numpy and onnxruntime"
                    self.kept[place] = Kept(reader.label_of(proto), _operator(proto), why)
                    self._free[place] = False
                    crossing |= names
                    todo = True

    def _refuse_undefined(self, proto: onnx.NodeProto, place: int) -> None:
        within = defined_within(proto)
        for o in names_read(proto):
            at = self._producer.get(o, -1 if o in self._passed or o in self._initial or o in within else None)
            if at is None or at >= place:
                later = None if at is None else reader.label_of(self._nodes[at])
                raise reader.undefined(o, f"{self._name}, node {reader.label_of(proto)!r}", later)

    def _refused(self, proto: onnx.NodeProto, declared: Mapping[str, Operator]) -> str:
        """Why the node stays; empty where it is translated. Of one that stays although it is read results are known."""
        walk, values = self._walk, self._walk.values
        why = "onnxruntime's kernels for windows are faster than what is made of them on a CPU" * windowed(
            proto, self._tiled
        )
        try:
            walk.settle(proto)
            reader.refuse_unknown([proto], self._name, declared, walk.opset)
            for o in proto.input:
                if o and o not in values:
                    return why or f"the type or the shape of its operand {o!r} is not known, or not supported"
            self._walk.step(proto)
            if proto.op_type in LEFT_BY_DATA and self._summed(proto):
                why = "data say which elements are written, which onnxruntime does faster on a CPU"
            if proto.op_type in NOT_IN_FUNCTIONS:
                why = "onnxruntime does not take it in the body of a function"
            known = (values[v] for v in (*proto.input, *proto.output) if v in values)
            if any(v.dtype is DType.FLOAT64 and v.tensor and v.tensor not in walk.graph.weights for v in known):
                raise UnsupportedError("kernels in float64 are not emitted")
        except FaultyModelError:
            raise
        except PrismError as error:
            for o in proto.output:
                values.pop(o, None)
            made = error.results if isinstance(error, UntranslatedError) else ()
            for o, of in zip(proto.output, made, strict=False):
                values[o] = walk.graph.declare(o, tuple(of[0]), of[1])
            return why or error.reason
        return why

    def _summed(self, proto: onnx.NodeProto) -> bool:
        """Whether the result of a node is a sum or an extreme, as it was read."""
        name = self._walk.values[proto.output[0]].tensor
        made = next((d for d in reversed(self._walk.graph.definitions) if d.name == name), None)
        return made is not None and any(isinstance(e, Reduce) for e in walk(made.expr))

    def _take(self, info: onnx.ValueInfoProto) -> None:
        """Let what follows read a value of this type and shape; where either is missing, nothing can."""
        try:
            self._walk.take(info)
        except UnsupportedError:
            return
        for axis, extent in enumerate(self._walk.values[info.name].shape):
            if isinstance(extent, sympy.Symbol):
                self._sources.setdefault(extent, (info.name, axis))

    def _results_of_kept(self, place: int, inference: Inference) -> None:
        """See to it that types and shapes of results are known, as far as anyone knows them."""
        results = [o for o in self._nodes[place].output if o]
        if all(o in self._walk.values and self._walk.values[o].tensor for o in results):
            return
        for o in results:
            self._walk.values.pop(o, None)
        inferred = {info.name: info for info in self._inferred(place, inference)}
        for o in results:
            info = inferred.get(o, onnx.ValueInfoProto(name=o))
            if not info.type.WhichOneof("value") or (
                info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape")
            ):
                info = self._stated.get(o, info)  # of operators that onnx does not know the file may say more
            self._infos[o] = info
            if info.type.WhichOneof("value"):
                self._take(info)
                self._walk.made_up |= {str(s) for s, (value, _) in self._sources.items() if value == o}

    def _inferred(self, place: int, inference: Inference) -> list[onnx.ValueInfoProto]:
        """The results of a node as onnx infers them from what is known of its operands.

        Sizes that onnx makes up lose their names: it calls them alike in every model that it is asked about.
        """
        try:
            draft = self._draft((place,), tuple(o for o in self._nodes[place].output if o), "shape", copied=False)
            model = self._as_model(draft, "one node")
        except Exception:  # of a node that is damaged there may be no model
            return []
        found = inference.outputs(model)
        said = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
        for info in found:
            for d in info.type.tensor_type.shape.dim:
                if d.dim_param and d.dim_param not in said:
                    d.Clear()
        return found

    def _is_free(self, proto: onnx.NodeProto) -> bool:
        """Whether the results hang on no data: formulas of positions and sizes, or made of constants alone."""
        values = self._walk.values
        if all(not values[o].tensor for o in proto.output if o and o in values):
            return True
        return not any(self._is_data(i) for i in proto.input if i)

    def _is_data(self, name: str) -> bool:
        if name in self._initial:
            return False
        return name in self._passed or not self._free[self._producer[name]]

    def _closure(self, name: str) -> frozenset[str]:
        """The data that a part has to take to have this value.

        Raises:
            _UnknownSizeError: it is, or is made of, a size that no input's shape says.
        """
        if name in self._initial:
            return frozenset()
        if self._is_data(name):
            return frozenset((name,))
        if name not in self._closures:
            value = self._walk.values[name]
            if value.elements is not None:
                sources = {self._source(s)[0] for e in value.elements.ravel() for s in _symbols(e)}
                self._sizes(_Draft(), name).define(name)
                self._closures[name] = frozenset(sources)
            else:
                operands = [i for i in self._nodes[self._producer[name]].input if i]
                self._closures[name] = frozenset().union(*(self._closure(i) for i in operands))
        return self._closures[name]

    def _source(self, s: sympy.Symbol) -> tuple[str, int]:
        """A value and the place in its shape that say how large the symbol is."""
        if s not in self._sources:
            raise _UnknownSizeError(f"no input's shape says what {s} is")
        return self._sources[s]

    def _read_by(self, place: int) -> frozenset[str]:
        """The data that the node reads, itself or through what hangs on no data."""
        found: set[str] = set()
        for name in names_read(self._nodes[place]):
            if name in self._initial or not (name in self._passed or name in self._producer):
                continue
            found |= self._closure(name)
        return frozenset(found)

    def _asked(self) -> tuple[frozenset[str], dict[str, set[int]]]:
        """The data that the outputs are, or are made of; and for other data, the nodes that read it.

        What computes none of these, as where only the shape of a result is asked for, is taken for what hangs on no
        data, and no part has it.
        """
        wanted = {o.name for o in self._model.graph.output}
        for name in list(wanted):
            if name in self._producer and not self._is_data(name):
                wanted |= self._closure(name)
        computed = set(wanted)
        for place in reversed(range(len(self._nodes))):
            if computed.isdisjoint(self._nodes[place].output):
                self._free[place] = True
                self.kept.pop(place, None)
            elif not self._free[place]:
                computed |= self._reads[place]
        readers: dict[str, set[int]] = {}
        for place, reads in enumerate(self._reads):
            # What hangs on no data is copied: it reads nothing by itself.
            for name in reads if not self._free[place] else ():
                readers.setdefault(name, set()).add(place)
        return frozenset(wanted), readers

    # Groups.

    def _translated(self, place: int) -> bool:
        return place not in self.kept

    def _depths(self) -> list[int]:
        depths: list[int] = []
        for place, reads in enumerate(self._reads):
            late = next((r for r in reads if self._producer.get(r, -1) >= place), None)
            if late is not None:
                labels = [reader.label_of(self._nodes[n]) for n in (place, self._producer[late])]
                raise reader.undefined(late, f"{self._name}, node {labels[0]!r}", labels[1])
            before = [self._producer[name] for name in reads if name in self._producer]
            stays = not self._translated(place)
            depths.append(max((depths[p] + (stays and self._translated(p)) for p in before), default=0))
        return depths

    def _grouped(self) -> tuple[Island, ...]:
        """Connected nodes of one depth."""
        leader = list(range(len(self._nodes)))

        def find(n: int) -> int:
            while leader[n] != n:
                leader[n] = n = leader[leader[n]]
            return n

        own = [self._translated(n) and not self._free[n] for n in range(len(self._nodes))]
        for place, reads in enumerate(self._reads):
            for name in reads if own[place] else ():
                other = self._producer.get(name)
                if other is not None and own[other] and self._depth[other] == self._depth[place]:
                    leader[find(place)] = find(other)
        groups: dict[int, list[int]] = {}
        for place in range(len(self._nodes)):
            if own[place]:
                groups.setdefault(find(place), []).append(place)
        order = sorted(groups.values(), key=lambda g: (self._depth[g[0]], g[0]))
        return tuple(Island(f"island_{n}", self._depth[g[0]], tuple(g)) for n, g in enumerate(order))

    def halve(self, island: Island) -> tuple[Island, Island]:
        """Put two halves in the place of an island, the second of which may read what the first makes."""
        middle = len(island.nodes) // 2
        parts = (island.nodes[:middle], island.nodes[middle:])
        one, two = (replace(island, name=f"{island.name}{c}", nodes=n) for c, n in zip("ab", parts, strict=True))
        place = self.islands.index(island)
        self.islands = (*self.islands[:place], one, two, *self.islands[place + 1 :])
        return one, two

    def halve_for(self, names: AbstractSet[str]) -> None:
        """Halve islands as it was done where these names come from."""
        todo = list(self.islands)
        while todo:
            island = todo.pop()
            if any(re.fullmatch(f"{re.escape(island.name)}[ab]+", name) for name in names):
                todo += self.halve(island)

    def most_elements(self, sizes: Mapping[str, int]) -> int:
        """How many elements the largest value has, of those whose shapes follow from these sizes."""
        return most_elements({tuple(v.shape) for v in self._walk.values.values()}, sizes)

    def operators(self, island: Island) -> list[str]:
        """The operators of the island's nodes."""
        return [_operator(self._nodes[n]) for n in island.nodes]

    # Parts.

    def part(self, island: Island) -> Part:
        """The island as a model that stands alone."""
        draft = self._draft(island.nodes, self._given(island.nodes), island.name)
        return self._part(draft, island.name, True, len(island.nodes))

    def parts(self, chosen: AbstractSet[str]) -> tuple[Part, ...]:
        """The model as islands and what stays, in an order in which they can run.

        `chosen` are the names of the islands that are to be parts of their own.
        """
        return tuple(self._part(d, name, island, many) for name, island, many, d in self._drafts(chosen))

    def _drafts(self, chosen: AbstractSet[str]) -> Iterator[tuple[str, bool, int, _Draft]]:
        """By part its name, whether it is an island, how many nodes it has, and its content."""
        pending: list[int] = []
        rests = 0
        stay: dict[int, list[int]] = {}
        for n in self.kept:
            stay.setdefault(self._depth[n], []).append(n)
        at: dict[int, list[Island]] = {}
        for i in self.islands:
            at.setdefault(i.depth, []).append(i)
        for depth in range(max(self._depth, default=0) + 1):
            pending += stay.get(depth, [])
            for island in at.get(depth, []):  # halves of one in their order, others in any
                if island.name not in chosen:
                    pending += island.nodes
                    continue
                if pending:
                    yield self._rest(rests, pending)
                    rests, pending = rests + 1, []
                draft = self._draft(island.nodes, self._given(island.nodes), island.name)
                yield island.name, True, len(island.nodes), draft
        free = [o.name for o in self._model.graph.output if o.name not in self._passed and not self._is_data(o.name)]
        if pending or free:
            yield self._rest(rests, pending, free)

    def _rest(self, n: int, pending: Iterable[int], also: Iterable[str] = ()) -> tuple[str, bool, int, _Draft]:
        nodes = tuple(sorted(pending))
        name = f"rest_{n}"
        return name, False, len(nodes), self._draft(nodes, (*self._given(nodes), *also), name)

    def _given(self, nodes: Sequence[int]) -> tuple[str, ...]:
        """Of what the nodes make, what others read."""
        inside = frozenset(nodes)
        made = [o for n in nodes for o in self._nodes[n].output]
        return tuple(o for o in made if o in self._wanted or not self._readers.get(o, inside) <= inside)

    def _draft(self, nodes: Sequence[int], outputs: tuple[str, ...], name: str, *, copied: bool = True) -> _Draft:
        """The nodes with everything that they need.

        Args:
            nodes: their places.
            outputs: what of their results is asked for.
            name: of what sizes are called after.
            copied: whether formulas that hang on no data are copied; otherwise they are inputs, too.
        """
        draft = _Draft(outputs=outputs, nodes={n: self._nodes[n] for n in nodes})
        known = {o for n in nodes for o in self._nodes[n].output}
        sized: list[str] = []
        todo = [i for n in nodes for i in names_read(self._nodes[n])] + list(outputs)
        for value in todo:
            if value in known:
                continue
            known.add(value)
            if value in self._initial:
                draft.weights[value] = self._initial[value]
            elif value not in self._producer and value not in self._passed:
                continue  # a name of a sub-graph's own
            elif self._is_data(value):
                draft.inputs[value] = None
            else:
                elements = self._walk.values[value].elements
                if elements is None and not copied:
                    draft.inputs[value] = None
                elif elements is None:
                    place = self._producer[value]
                    draft.nodes[place] = self._nodes[place]
                    known |= set(self._nodes[place].output)
                    todo += [i for i in self._nodes[place].input if i]
                elif all(is_static(e) for e in elements.ravel()):
                    array = elements.astype(numpy_type(self._walk.values[value].dtype))
                    draft.constants[value] = numpy_helper.from_array(array, value)
                else:
                    sized.append(value)
        sizes = self._sizes(draft, name)
        for value in sized:
            sizes.define(value)
        return draft

    def _sizes(self, draft: _Draft, name: str) -> _Sizes:
        return _Sizes(draft, name, self._walk.values, self._source)

    def _part(self, draft: _Draft, name: str, island: bool, many: int) -> Part:
        model = self._as_model(draft, name)
        if model.ByteSize() > MAX_BYTES:
            raise UnsupportedError(
                f"a part of the model has {model.ByteSize():,} bytes",
                where=self._name,
                why=f"it is written as one file, which has {MAX_BYTES:,} at most",
                fix="split the model",
            )
        inputs, outputs = (tuple(self._port(n) for n in names) for names in (draft.inputs, draft.outputs))
        data = model.SerializeToString(deterministic=True)
        return Part(name, island, data, inputs, outputs, many, self._key(model) if island else "")

    def _key(self, model: onnx.ModelProto) -> str:
        """What the model computes: names by the order in which they come up, of large weights types and shapes."""
        graph = model.graph
        named: dict[str, str] = {"": ""}
        short: dict[str, str] = {}
        said: list[object] = [[(o.domain, o.version) for o in model.opset_import]]
        for info in graph.input:
            value = self._walk.values[info.name]
            shape = [sympy.sympify(e).xreplace({s: _renamed(s, short) for s in _symbols(e)}) for e in value.shape]
            named[info.name] = f"x{len(named)}"
            said.append((named[info.name], value.dtype.value, str(shape)))
        held = {t.name: t for t in graph.initializer}
        for node in graph.node:
            for i in node.input:
                if i in held and i not in named:
                    known, named[i] = self._walk.values.get(i), f"w{len(named)}"
                    large = known is not None and known.dtype.is_float and known.formula is None
                    tensor = onnx.TensorProto()
                    tensor.CopyFrom(held[i])
                    tensor.name = named[i]
                    whole = tensor.SerializeToString(deterministic=True)
                    said.append((named[i], tensor.data_type, list(tensor.dims), None if large else whole))
            for o in node.output:
                named.setdefault(o, f"v{len(named)}")
            attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
            operands, results = [named[i] for i in node.input], [named[o] for o in node.output]
            said.append((node.domain, node.op_type, operands, results, attributes))
        said.append([named[o.name] for o in graph.output])
        return hashlib.sha256(repr(said).encode()).hexdigest()

    def _as_model(self, draft: _Draft, name: str) -> onnx.ModelProto:
        given = [self._info(n) for n in draft.inputs]
        made = [self._info(n, shape=False) for n in draft.outputs]
        held = [*draft.weights.values(), *draft.constants.values()]
        graph = helper.make_graph(draft.body, name, given, made, held)
        model = onnx.ModelProto(ir_version=max(4, self._model.ir_version), producer_name="prism", graph=graph)
        model.opset_import.extend(self._model.opset_import)
        return model

    def _info(self, name: str, *, shape: bool = True) -> onnx.ValueInfoProto:
        """A value's declaration, as far as it is known."""
        value = self._walk.values.get(name)
        if value is not None:
            extents = [int(e) if is_static(e) else str(e) for e in value.shape] if shape else None
            return helper.make_tensor_value_info(name, element_type(value.dtype), extents)
        info = self._infos.get(name)
        if info is None or not info.type.WhichOneof("value"):
            info = onnx.ValueInfoProto(name=name)
        return info

    def _words(self) -> tuple[str, ...]:
        """The strings that the model holds: keys, categories, pieces of a vocabulary."""
        held = [a.strings for n in nodes_within(self._nodes) for a in n.attribute]
        held += [t.string_data for t in self._initial.values()]
        found = dict.fromkeys(word for words in held for word in words)
        return tuple(word.decode(errors="replace") for word in itertools.islice(found, MOST_WORDS))

    def _port(self, name: str) -> Port:
        value = self._walk.values.get(name)
        if value is not None:
            return Port(name, _numpy_name(element_type(value.dtype)), value.shape)
        info = self._infos.get(name, onnx.ValueInfoProto(name=name))
        kind = info.type.tensor_type
        dtype = _numpy_name(kind.elem_type) if info.type.HasField("tensor_type") else ""
        if not kind.HasField("shape"):
            return Port(name, dtype, None)
        named = (symbol(identifier(reader.name_of(d) or f"{name}_d{n}")) for n, d in enumerate(kind.shape.dim))
        shape = (int(d.dim_value) if d.HasField("dim_value") else s for d, s in zip(kind.shape.dim, named, strict=True))
        return Port(name, dtype, tuple(shape))

    # The model with its islands as functions.

    def with_functions(self, chosen: AbstractSet[str]) -> bytes:
        """The model, each of the chosen islands a function of its own nodes in the domain `ai.prism`."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        model.ir_version = max(FUNCTIONS_IR, model.ir_version)
        del model.graph.node[:]
        del model.graph.value_info[:]
        held = set(self._initial)
        defined: set[str] = set()
        for name, island, _, draft in self._drafts(chosen):
            if not island:
                new = [t for n, t in draft.constants.items() if n not in held]
                model.graph.initializer.extend(new)
                held |= set(draft.constants)
                for node in draft.body:
                    if not defined.intersection(node.output):
                        model.graph.node.append(node)
                        defined |= {o for o in node.output if o}
                continue
            inputs = [*draft.inputs, *draft.weights]
            constants = [
                helper.make_node("Constant", [], [n], value=t, name=f"{n}_constant") for n, t in draft.constants.items()
            ]
            function = helper.make_function(
                DOMAIN, name, inputs, list(draft.outputs), [*constants, *draft.body], list(self._model.opset_import)
            )
            model.functions.append(function)
            model.graph.node.append(helper.make_node(name, inputs, list(draft.outputs), name=name, domain=DOMAIN))
            defined |= set(draft.outputs)
        if any(f.domain == DOMAIN for f in model.functions):
            model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        if model.ByteSize() > MAX_BYTES:
            raise UnsupportedError(
                f"the model has {model.ByteSize():,} bytes",
                where=self._name,
                why=f"it is written as one file, which has {MAX_BYTES:,} at most",
                fix="split the model",
            )
        return bytes(model.SerializeToString(deterministic=True))


@dataclass(slots=True)
class _Sizes:
    """Nodes that compute what follows from the shapes of a part's inputs."""

    draft: _Draft
    name: str
    values: Mapping[str, OnnxValue]
    source: Callable[[sympy.Symbol], tuple[str, int]]
    _made: dict[object, str] = field(default_factory=dict)

    def define(self, value: str) -> None:
        """Define a value by its known elements.

        Raises:
            _UnknownSizeError: one is not computed of sizes, or no input's shape says them.
        """
        known = self.values[value]
        assert known.elements is not None
        parts = [self._number(e) for e in known.elements.ravel()]
        steps: list[tuple[str, list[str], dict[str, Any]]] = [("Concat", parts, {"axis": 0})]
        if known.elements.ndim == 0:
            steps.append(("Squeeze", [], {}))  # of one element: whatever its version, to a scalar
        elif known.elements.ndim > 1:
            steps.append(("Reshape", [self._constant(np.array(known.elements.shape, np.int64))], {}))
        if known.dtype is not DType.INT64:
            steps.append(("Cast", [], {"to": element_type(known.dtype)}))
        before: list[str] = []
        for n, (op, also, attributes) in enumerate(steps):
            made = value if n == len(steps) - 1 else self._fresh()
            node = helper.make_node(op, [*before, *also], [made], name=f"{self.name}/{made}", **attributes)
            self.draft.sizes.append(node)
            before = [made]

    def _number(self, extent: Extent) -> str:
        """A tensor of one int64 element."""
        if is_static(extent):
            return self._constant(np.array([int(extent)], np.int64))
        assert isinstance(extent, sympy.Expr)
        if extent not in self._made:
            self._made[extent] = self._computed(extent)
        return self._made[extent]

    def _computed(self, extent: sympy.Expr) -> str:
        if isinstance(extent, sympy.Symbol):
            tensor, axis = self._place(extent)
            shape = self._node("Shape", [tensor])
            return self._node("Gather", [shape, self._constant(np.array([axis], np.int64))], axis=0)
        operator = {sympy.Add: "Add", sympy.Mul: "Mul"}.get(extent.func)
        if operator is not None:
            first, *rest = (self._number(_whole(a)) for a in extent.args)
            for r in rest:
                first = self._node(operator, [first, r])
            return first
        if isinstance(extent, sympy.Pow) and extent.exp.is_Integer and int(extent.exp) > 0:
            base = made = self._number(_whole(extent.base))
            for _ in range(int(extent.exp) - 1):
                made = self._node("Mul", [made, base])
            return made
        if isinstance(extent, sympy.floor | sympy.ceiling):
            top, bottom = sympy.fraction(sympy.together(extent.args[0]))
            rounded = sympy.expand(top + bottom - 1 if isinstance(extent, sympy.ceiling) else top)
            if bottom.is_Integer and at_most(0, rounded):  # ONNX rounds towards 0
                return self._node("Div", [self._number(_whole(rounded)), self._number(int(bottom))])
        raise _UnknownSizeError(f"{extent} is not computed of sizes")

    def _place(self, s: sympy.Symbol) -> tuple[str, int]:
        for name in self.draft.inputs:
            value = self.values.get(name)
            for axis, extent in enumerate(value.shape if value is not None else ()):
                if extent == s:
                    return name, axis
        name, axis = self.source(s)
        if not any(name in node.output for node in self.draft.nodes.values()):
            self.draft.inputs[name] = None
        return name, axis

    def _constant(self, array: np.ndarray[Any, Any]) -> str:
        key = (array.shape, array.tobytes())
        if key not in self._made:
            name = self._made[key] = self._fresh()
            self.draft.constants[name] = numpy_helper.from_array(array, name)
        return self._made[key]

    def _node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = self._fresh()
        self.draft.sizes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _fresh(self) -> str:
        return f"{self.name}/size_{len(self._made) + len(self.draft.sizes)}"


def _renamed(s: sympy.Symbol, short: dict[str, str]) -> sympy.Symbol:
    """The symbol under a name by its order among those that came up."""
    return symbol(short.setdefault(s.name, f"s{len(short)}"))


def _whole(e: sympy.Basic) -> Extent:
    if not e.is_Integer and not isinstance(e, sympy.Expr):
        raise _UnknownSizeError(f"{e} is no size")
    if e.is_Integer:
        return int(e)
    return e


def _symbols(extent: Extent) -> Iterable[sympy.Symbol]:
    return () if is_static(extent) else extent.free_symbols  # type: ignore[union-attr]


def _operator(proto: onnx.NodeProto) -> str:
    return f"{proto.domain}.{proto.op_type}" if proto.domain else str(proto.op_type)


def _numpy_name(element: int) -> str:
    if element == TensorProto.STRING:
        return "str"
    try:
        return str(np.dtype(helper.tensor_dtype_to_np_dtype(element)).name)
    except KeyError:
        return ""
