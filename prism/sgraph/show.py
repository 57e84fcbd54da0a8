"""sGraphs as text, as Graphviz drawings, and as canonical keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import sympy

from prism.ir.kit import sources
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Tensor
from prism.sgraph import ranges
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Gather,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Operand,
    Place,
    Pointwise,
    Position,
    Repeat,
    Role,
    Scan,
    SGraph,
    Split,
    Statistic,
    Stmt,
    Store,
    TileReduce,
    Whole,
    part_axis,
)

_INFIX: Mapping[str, str] = {"add": "+", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "and": "and", "or": "or"}
_COMBINE: Mapping[str, str] = {
    **{"sum": "+=", "prod": "*=", "max": "max=", "min": "min="},
    **dict.fromkeys(Statistic, "merges"),
}
_ROLE_ORDER = ("grid", "loop", "whole", "split")


def text(sgraph: SGraph) -> str:
    """The sGraph as readable, indented text: declarations, then for each kernel its roles and statements.

    Kernels that are launched together come after a line that says so.
    """
    inputs, outputs = (", ".join(map(_tensor, group)) for group in (sgraph.inputs, sgraph.outputs))
    lines = [f"sgraph {sgraph.name}({inputs}) -> {outputs}"]
    lines += [f"  buffer {_tensor(b)}" for b in sgraph.buffers]
    for launch in sgraph.launches:
        repeat, inset = sgraph.repeat(launch), "  "
        if repeat is not None:
            inset = "    "
            if launch.kernels[0].name == repeat.kernels[0]:
                lines += [f"  {line}" for line in _repeat(repeat)]
        if len(launch.kernels) > 1:
            lines.append(f"{inset}launch {launch.name}: {', '.join(k.name for k in launch.kernels)}")
        for kernel in launch.kernels:
            lines.append(f"{inset}kernel {kernel.name}")
            lines.append(f"{inset}  {roles(kernel)}")
            lines += [f"{inset}  {line}" for line in _body(kernel.body)]
    return "\n".join(lines) + "\n"


def _repeat(r: Repeat) -> list[str]:
    """The heading of a loop's step: how many there are, and what its windows are."""
    lines = [f"{r.trips} steps, the {'last' if r.reverse else 'first'} place first, each with"]
    for w in r.windows:
        place = "step" if w.first is None else "the step before"
        at = "" if w.place is None else f"[{w.place}]"
        first = "" if w.first is None else f", at first {w.first}{at}"
        lines.append(f"  {_tensor(w.tensor)} = {w.of}[{place}]{first}")
    return lines


def roles(kernel: Kernel) -> str:
    """The kernel's roles in one line: `grid m(T_m) n(T_n) | loop k(T_k) | whole d`."""
    groups: dict[str, list[str]] = {name: [] for name in _ROLE_ORDER}
    for axis, role in kernel.roles:
        match role:
            case Grid(tile):
                groups["grid"].append(f"{axis}({tile})")
            case LoopRole(tile):
                groups["loop"].append(f"{axis}({tile})")
            case Whole():
                groups["whole"].append(str(axis))
            case Split(parts, tile):
                groups["split"].append(f"{axis}({parts}, {tile})")
    return " | ".join(f"{name} {' '.join(axes)}" for name, axes in groups.items() if axes)


def formula(s: Stmt) -> str:
    """One statement as a formula; a loop as its heading."""
    match s:
        case Load(dst, tensor, index):
            return f"{dst} = {tensor}[{_index(index)}]"
        case Gather(dst, tensor, index, places):
            return f"{dst} = {tensor}[{', '.join(_placed(index, places))}]"
        case Position(dst, index):
            return f"{dst} = @({index})"
        case Pointwise(dst, op, args):
            return f"{dst} = {_pointwise(op, args)}"
        case TileReduce(dst, kind, axis, src, moments):
            return f"{dst} = {kind.value}_{axis} {', '.join((src, *moments))}"
        case Contract(dst, axis, lhs, rhs):
            return f"{dst} = sum_{axis} {lhs} * {rhs}"
        case Loop():
            return f"{_heading(s)}:"
        case Accumulate(dst, kind, src, shift):
            return f"{dst} {_COMBINE[kind.value]} {src}" + (f", rescaled by {shift}" if shift is not None else "")
        case Scan(dst, axis, src, growth, before):
            grown = f", times exp {_operand(growth)} a place" if growth is not None else ""
            return f"{dst} = {src} summed over {axis} {'before' if before else 'so far'}{grown}"
        case Store(tensor, index, src, moment):
            return f"{tensor}[{_index(index)}] = {_operand(src)}" + ("" if moment is None else f", {moment.value}")


def _heading(s: Loop) -> str:
    bounds = " and ".join(ranges.text(c, s.axis) for c in s.range)
    return f"for tiles of {s.axis}" + (f" with {bounds}" if bounds else "")


def _tensor(t: Tensor) -> str:
    said = f", {t.stated}" if t.stated is not None else ""
    return f"{t.name}[{', '.join(map(str, t.shape))}] {t.dtype.value}{said}"


def _index(index: Sequence[Index]) -> str:
    return ", ".join(map(str, index))


def _placed(index: Sequence[Index], places: Sequence[Place]) -> Iterator[str]:
    """The index of a gather, with the names of values in it."""
    at = {p.dimension: p.value for p in places}
    for n, i in enumerate(index):
        yield str(i) if n not in at else at[n] if i == Index.const(0) else f"{i} + {at[n]}"


def _operand(a: Operand) -> str:
    return a if isinstance(a, str) else f"{a:.9g}"


def _pointwise(op: str, args: Sequence[Operand]) -> str:
    if op in _INFIX and len(args) == 2:
        return f"{_operand(args[0])} {_INFIX[op]} {_operand(args[1])}"
    return f"{op}({', '.join(map(_operand, args))})"


def _body(body: Sequence[Stmt]) -> list[str]:
    lines: list[str] = []
    for s in body:
        lines.append(formula(s))
        if isinstance(s, Loop):
            lines += [f"  {line}" for line in _body(s.body)]
    return lines


def dot(sgraph: SGraph) -> str:
    """The sGraph in Graphviz' language: tensors as boxes, kernels and loops as clusters, values as edges."""
    lines = [f"digraph {_quoted(sgraph.name)} {{", "  rankdir=TB;"]
    lines.append("  node [shape=plaintext, fontname=Helvetica, fontsize=10];")
    for group, style in ((sgraph.inputs, "filled"), (sgraph.buffers, "dashed"), (sgraph.outputs, "filled")):
        for t in group:
            lines.append(f"  {_quoted('tensor ' + t.name)} [label={_quoted(_tensor(t))}, shape=box, style={style}];")
    for launch in sgraph.launches:
        joined = len(launch.kernels) > 1
        if joined:
            lines.append(f"  subgraph {_quoted('cluster launch ' + launch.name)} {{")
            lines.append(f"    label={_quoted(launch.name)};")
        for kernel in launch.kernels:
            lines.append(f"  subgraph {_quoted('cluster ' + kernel.name)} {{")
            lines.append(f"    label={_quoted(kernel.name + ': ' + roles(kernel))};")
            lines += _Drawing(kernel).lines
            lines.append("  }")
        if joined:
            lines.append("  }")
    lines.append("}")
    return "\n".join(lines) + "\n"


class _Drawing:
    """The nodes and edges of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel.name
        self.lines: list[str] = []
        self.count = 0
        self.block(kernel.body, "    ")

    def node(self, value: str) -> str:
        return _quoted(f"{self.kernel} {value}")

    def edge(self, source: str, target: str, indent: str, style: str = "") -> None:
        self.lines.append(f"{indent}{source} -> {target}{style};")

    def block(self, body: Sequence[Stmt], indent: str) -> None:
        for s in body:
            match s:
                case Loop(_, inner):
                    self.count += 1
                    self.lines.append(f"{indent}subgraph {_quoted(f'cluster {self.kernel} loop {self.count}')} {{")
                    self.lines.append(f"{indent}  label={_quoted(_heading(s))};")
                    self.block(inner, indent + "  ")
                    self.lines.append(f"{indent}}}")
                case Store(tensor, _, src):
                    self.count += 1
                    me = self.node(f"store {self.count}")
                    self.lines.append(f"{indent}{me} [label={_quoted(formula(s))}];")
                    if isinstance(src, str):
                        self.edge(self.node(src), me, indent)
                    self.edge(me, _quoted("tensor " + tensor), indent)
                case _:
                    me = self.node(s.dst)
                    shape = ", shape=box, style=rounded" if isinstance(s, Accumulate | Scan) else ""
                    self.lines.append(f"{indent}{me} [label={_quoted(formula(s))}{shape}];")
                    if isinstance(s, Load | Gather):
                        self.edge(_quoted("tensor " + s.tensor), me, indent)
                    scales = s.shift if isinstance(s, Accumulate) else s.growth if isinstance(s, Scan) else None
                    for operand in dict.fromkeys(sources(s)):
                        style = ' [style=dashed, label="rescales"]' if operand == scales else ""
                        self.edge(self.node(operand), me, indent, style)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def key(sgraph: SGraph) -> str:
    """The canonical hash of the sGraph: equal for sGraphs that differ only by names that do not matter.

    Names of values, axes, symbols, buffers and kernels are replaced by numbers in order of appearance; the names of
    inputs and outputs, and the symbols of the program's extents, are the caller's and stay.
    """
    return hashlib.sha256(_Serialiser(sgraph).text().encode()).hexdigest()


class _Serialiser:
    """Writes an sGraph down with numbers for names."""

    def __init__(self, sgraph: SGraph) -> None:
        self.sgraph = sgraph
        self.symbols: dict[sympy.Symbol, sympy.Symbol] = {}
        for n, s in enumerate(sgraph.symbols):
            self.symbols[s] = sympy.Symbol(f"${n}")
        self.buffers = {b.name: f"%{n}" for n, b in enumerate(sgraph.buffers)}
        self.axes: dict[Axis, str] = {}
        self.values: dict[str, str] = {}

    def text(self) -> str:
        g = self.sgraph
        parts = [";".join(self.tensor(t) for t in group) for group in (g.inputs, g.buffers, g.outputs)]
        parts += [self.kernel(k) for k in g.kernels]
        place = {k.name: n for n, k in enumerate(g.kernels)}
        parts += [f"together {','.join(str(place[name]) for name in group)}" for group in g.together]
        for r in g.repeats:
            kernels = ",".join(str(place[name]) for name in r.kernels)
            parts.append(f"repeat {kernels} {self.extent(r.trips)} {r.reverse}")
            for w in r.windows:
                outer = [self.buffers.get(t, t) for t in (w.of, w.first or "")]
                parts.append(f"window {self.tensor(w.tensor)} {' '.join(outer)} {w.place}")
        return "\n".join(parts)

    def extent(self, e: Extent) -> str:
        return str(e) if isinstance(e, int) else str(e.xreplace(self.symbols))

    def symbol(self, s: sympy.Symbol | int) -> str:
        return str(s) if isinstance(s, int) else str(self.symbols[s])

    def tensor(self, t: Tensor) -> str:
        said = f" {t.stated}" if t.stated is not None else ""
        return f"{self.buffers.get(t.name, t.name)}[{','.join(map(self.extent, t.shape))}]{t.dtype.value}{said}"

    def role(self, role: Role) -> str:
        match role:
            case Grid(tile):
                return f"grid {self.symbol(tile)}"
            case LoopRole(tile):
                return f"loop {self.symbol(tile)}"
            case Whole():
                return "whole"
            case Split(s, tile):
                return f"split {self.symbol(s)} {self.symbol(tile)}"

    def kernel(self, kernel: Kernel) -> str:
        self.axes, self.values = {}, {}
        lines: list[str] = []
        for axis, role in kernel.roles:
            self.axes[axis] = f"a{len(self.axes)}"
            lines.append(f"{self.axes[axis]}:{self.extent(axis.extent)} {self.role(role)}")
        for axis, role in kernel.roles:
            if isinstance(role, Split):
                self.axes.setdefault(part_axis(axis, role.parts), f"{self.axes[axis]}.part")
        return "\n".join(["kernel", *lines, *self.body(kernel.body)])

    def axis(self, axis: Axis) -> str:
        return self.axes.setdefault(axis, f"a{len(self.axes)}")

    def index(self, index: Index) -> str:
        terms = sorted(f"{self.extent(c)}*{self.axis(a)}" for a, c in index.terms if isinstance(a, Axis))
        return "+".join([*terms, self.extent(index.offset)])

    def element(self, tensor: str, index: Sequence[Index]) -> str:
        return f"{self.buffers.get(tensor, tensor)}[{','.join(map(self.index, index))}]"

    def define(self, name: str) -> str:
        self.values[name] = f"v{len(self.values)}"
        return self.values[name]

    def operand(self, a: Operand) -> str:
        return self.values[a] if isinstance(a, str) else repr(float(a))

    def body(self, body: Sequence[Stmt]) -> list[str]:
        lines: list[str] = []
        for s in body:
            match s:
                case Load(dst, tensor, index):
                    lines.append(f"{self.define(dst)}=load {self.element(tensor, index)}")
                case Gather(dst, tensor, index, places):
                    at = ",".join(f"{p.dimension}:{self.operand(p.value)}<{self.extent(p.extent)}" for p in places)
                    lines.append(f"{self.define(dst)}=gather {self.element(tensor, index)} {at}")
                case Position(dst, i):
                    lines.append(f"{self.define(dst)}=position {self.index(i)}")
                case Pointwise(dst, op, args):
                    operands = ",".join(map(self.operand, args))
                    lines.append(f"{self.define(dst)}={op}({operands})")
                case TileReduce(dst, kind, axis, src, moments):
                    operands = " ".join(map(self.operand, (src, *moments)))
                    lines.append(f"{self.define(dst)}={kind.value} {self.axis(axis)} {operands}")
                case Contract(dst, axis, lhs, rhs):
                    operands = f"{self.operand(lhs)} {self.operand(rhs)}"
                    lines.append(f"{self.define(dst)}=contract {self.axis(axis)} {operands}")
                case Accumulate(dst, kind, src, shift):
                    operands = self.operand(src) + ("" if shift is None else f" shift {self.operand(shift)}")
                    lines.append(f"{self.define(dst)}<-{kind.value} {operands}")
                case Scan(dst, axis, src, growth, before):
                    operands = self.operand(src) + ("" if growth is None else f" growth {self.operand(growth)}")
                    lines.append(f"{self.define(dst)}=scan {self.axis(axis)} {operands}{' before' * before}")
                case Store(tensor, index, src, moment):
                    of = "" if moment is None else f" {moment.value}"
                    lines.append(f"{self.element(tensor, index)}={self.operand(src)}{of}")
                case Loop(axis, inner, conditions):
                    head = " ".join([f"loop {self.axis(axis)}", *map(self.index, conditions)])
                    lines += [head, *self.body(inner), "end"]
        return lines
