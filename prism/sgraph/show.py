"""sGraphs as text, as Graphviz drawings, and as canonical keys."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields

import sympy

from prism.ir.kit import Holds, mapped, sources
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import Tensor
from prism.sgraph import nodes as sg


def text(sgraph: sg.SGraph) -> str:
    """The sGraph as readable, indented text with a line feed at its end, as a file has it."""
    return f"{sgraph}\n"


def dot(sgraph: sg.SGraph) -> str:
    """The sGraph in Graphviz' language: tensors as boxes, kernels and loops as clusters, values as edges."""
    lines = [f"digraph {_quoted(sgraph.name)} {{", "  rankdir=TB;"]
    lines.append("  node [shape=plaintext, fontname=Helvetica, fontsize=10];")
    for group, style in ((sgraph.inputs, "filled"), (sgraph.buffers, "dashed"), (sgraph.outputs, "filled")):
        for t in group:
            lines.append(f"  {_quoted('tensor ' + t.name)} [label={_quoted(t.declared)}, shape=box, style={style}];")
    for launch in sgraph.launches:
        joined = len(launch.kernels) > 1
        if joined:
            lines.append(f"  subgraph {_quoted('cluster launch ' + launch.name)} {{")
            lines.append(f"    label={_quoted(launch.name)};")
        for kernel in launch.kernels:
            lines.append(f"  subgraph {_quoted('cluster ' + kernel.name)} {{")
            lines.append(f"    label={_quoted(kernel.name + ': ' + kernel.layout)};")
            lines += _Drawing(kernel).lines
            lines.append("  }")
        if joined:
            lines.append("  }")
    lines.append("}")
    return "\n".join(lines) + "\n"


class _Drawing:
    """The nodes and edges of one kernel."""

    def __init__(self, kernel: sg.Kernel) -> None:
        self.kernel = kernel.name
        self.lines: list[str] = []
        self.count = 0
        self.block(kernel.body, "    ")

    def node(self, value: str) -> str:
        return _quoted(f"{self.kernel} {value}")

    def edge(self, source: str, target: str, indent: str, style: str = "") -> None:
        self.lines.append(f"{indent}{source} -> {target}{style};")

    def block(self, body: Sequence[sg.Stmt], indent: str) -> None:
        for s in body:
            match s:
                case sg.Loop(_, inner):
                    self.count += 1
                    self.lines.append(f"{indent}subgraph {_quoted(f'cluster {self.kernel} loop {self.count}')} {{")
                    self.lines.append(f"{indent}  label={_quoted(s.heading)};")
                    self.block(inner, indent + "  ")
                    self.lines.append(f"{indent}}}")
                case sg.Store():
                    self.count += 1
                    me = self.node(f"store {self.count}")
                    self.lines.append(f"{indent}{me} [label={_quoted(str(s))}];")
                    for operand in dict.fromkeys(sources(s)):
                        self.edge(self.node(operand), me, indent)
                    self.edge(me, _quoted("tensor " + s.tensor), indent)
                case _:
                    me = self.node(s.dst)
                    shape = ", shape=box, style=rounded" if isinstance(s, sg.Accumulate | sg.Scan) else ""
                    self.lines.append(f"{indent}{me} [label={_quoted(str(s))}{shape}];")
                    if isinstance(s, sg.Load | sg.Gather):
                        self.edge(_quoted("tensor " + s.tensor), me, indent)
                    scales = s.shift if isinstance(s, sg.Accumulate) else s.growth if isinstance(s, sg.Scan) else None
                    for operand in dict.fromkeys(sources(s)):
                        style = ' [style=dashed, label="rescales"]' if operand == scales else ""
                        self.edge(self.node(operand), me, indent, style)


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def key(sgraph: sg.SGraph) -> str:
    """The canonical hash of the sGraph: equal for sGraphs that differ only by names that do not matter.

    Names of values, axes, symbols, buffers and kernels are replaced by numbers in order of appearance; the names of
    inputs and outputs, and the symbols of the program's extents, are the caller's and stay.
    """
    return hashlib.sha256(_Serialiser(sgraph).text().encode()).hexdigest()


class _Serialiser:
    """Writes an sGraph down with numbers for names."""

    def __init__(self, sgraph: sg.SGraph) -> None:
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
            parts.append(f"repeat {kernels} {self.extent(r.trips)} {r.reverse}{' resident' * r.resident}")
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

    def role(self, role: sg.Role) -> str:
        return " ".join([type(role).__name__, *(self.symbol(getattr(role, f.name)) for f in fields(role))])

    def kernel(self, kernel: sg.Kernel) -> str:
        self.axes, self.values = {}, {}
        lines: list[str] = []
        for axis, role in kernel.roles:
            self.axes[axis] = f"a{len(self.axes)}"
            lines.append(f"{self.axes[axis]}:{self.extent(axis.extent)} {self.role(role)}")
        for axis, role in kernel.roles:
            if isinstance(role, sg.Split):
                self.axes.setdefault(sg.part_axis(axis, role.parts), f"{self.axes[axis]}.part")
        return "\n".join(["kernel", *lines, *(repr(self.statement(s)) for s in kernel.body)])

    def axis(self, axis: Axis) -> str:
        return self.axes.setdefault(axis, f"a{len(self.axes)}")

    def index(self, index: Index) -> str:
        terms = sorted(f"{self.extent(c)}*{self.axis(a)}" for a, c in index.terms if isinstance(a, Axis))
        return "+".join([*terms, self.extent(index.offset)])

    def define(self, name: str) -> str:
        self.values[name] = f"v{len(self.values)}"
        return self.values[name]

    def operand(self, a: sg.Operand) -> str:
        return self.values[a] if isinstance(a, str) else repr(float(a))

    def statement(self, s: sg.Stmt) -> sg.Stmt:
        """The statement with what it would be written as in the place of whatever has a name."""
        return mapped(
            s,
            {
                Holds.DEFINES: self.define,
                Holds.CHANGES: self.define,
                Holds.USES: self.operand,
                Holds.TENSOR: lambda name: self.buffers.get(name, name),
                Holds.AXIS: self.axis,
                Holds.INDEX: self.index,
                Holds.INTEGER: self.extent,
                Holds.BODY: self.statement,
            },
        )
