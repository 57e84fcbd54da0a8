"""A region: a part of a program that is a program itself, and the form in which equal regions are the same.

The inputs of a region are inputs of the whole program or outputs of earlier regions; names of tensors are kept, so a
region reads like the part of the program that it is. `canonical` replaces every name by its place in the region (`in0`,
`v3`, `out0`; axes by `a0`, `r0`), and two regions that compute the same from differently named tensors (the layers of a
model) then are one program, to be searched once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prism.program.extents import Extent, symbol, told
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, Expr, Loop, Program, Read, Reduce, Size, Steps, Tensor, walk
from prism.program.transform import indices, rebuilt, reindexed

CANONICAL_NAME = "region"
"""What canonical regions are called."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """A region without names."""

    program: Program  # the region with every tensor named after its place
    names: Mapping[str, str]  # each canonical tensor's name in the region
    key: str  # equal for equal regions, whatever their tensors are called


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a program."""

    program: Program  # the part as a program: the definitions that its outputs need back to its inputs
    roots: tuple[str, ...]  # the definitions that it was made for; an output may be a view of one
    loop: Loop | None = None  # the loop of whose step it is a part, whose names it has then; None around loops

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return tuple(t.name for t in self.program.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensors that it writes."""
        return self.program.outputs

    def canonical(self) -> Canonical:
        """The region without names."""
        return canonical(self.program)


def reads(expr: Expr) -> tuple[str, ...]:
    """The tensors that an expression reads, each once, in order."""
    return tuple(dict.fromkeys(e.tensor for e in walk(expr) if isinstance(e, Read)))


def subprogram(program: Program, name: str, outputs: Sequence[str], given: Container[str] = ()) -> Program:
    """The part of a program that computes `outputs` from its inputs and the tensors `given`.

    Inputs that it does not read are left out, but for those that say how long its axes are, and so are symbols that it
    does not mention. What is `given` the part reads instead of computing it; outputs are always computed.
    """
    # Nothing here looks at all of the whole program: it is asked for part after part.
    order, places = program.order, program.input_order
    needed: set[str] = set()
    read: set[str] = set()
    stack = list(outputs)
    while stack:
        tensor = stack.pop()
        if tensor in needed or tensor in read:
            continue
        if tensor in order and (tensor in outputs or tensor not in given):
            needed.add(tensor)
            stack.extend(reads(program.definition(tensor).expr))
        else:
            read.add(tensor)
    body = tuple(program.definitions[n] for n in sorted(order[t] for t in needed))
    inputs = (
        *(program.inputs[n] for n in sorted(places[t] for t in read if t in places)),
        *(program.definitions[n].tensor for n in sorted(order[t] for t in read if t in order)),
    )
    mentioned = _symbols(inputs, body)
    telling = tuple(_telling(program.inputs, mentioned, [e for t in inputs for e in t.shape]))
    inputs, mentioned = (*inputs, *telling), mentioned | _symbols(telling, ())
    return Program(
        name,
        inputs,
        body,
        tuple(outputs),
        {s: r for s, r in program.ranges.items() if s in mentioned},
        {t.name: program.weights[t.name] for t in inputs if t.name in program.weights},
    )


def _telling(inputs: Iterable[Tensor], mentioned: Iterable[str], shapes: Sequence[Extent]) -> Iterator[Tensor]:
    """Inputs that say what the symbols are that no shape says: of an `x[n*m]` neither `n` nor `m`."""
    wanted = {*map(symbol, mentioned)}
    if wanted <= {*shapes} or wanted <= told(shapes):
        return
    for t in inputs:
        also = [*shapes, *t.shape]
        if wanted & (told(also) - told(shapes)):
            shapes = also
            yield t


def _symbols(inputs: Iterable[Tensor], body: Iterable[Definition]) -> set[str]:
    found = [e for t in inputs for e in t.shape]
    ranges: set[str] = set()
    for d in body:
        found += (a.extent for a in d.axes)
        for node in walk(d.expr):
            for i in indices(node):
                found += (*i.extents(), *(a.extent for a in i.axes()))
            match node:
                case Size(extent):
                    found.append(extent)
                case Reduce(_, axis, _):
                    found.append(axis.extent)
                case Steps(loop):
                    found.append(loop.trips)
                    ranges.update(loop.body.ranges)
    return ranges.union(s.name for e in found if not isinstance(e, int) for s in e.free_symbols)


def canonical(program: Program) -> Canonical:
    """The program with every tensor named after its place, and the names that this took away.

    The values of weights are left out: a search does not look at them, and equal regions may have different ones.
    """
    # Inputs in the order in which they are first read: which of them an earlier region computes makes no difference.
    seen = dict.fromkeys(t for d in program.definitions for t in reads(d.expr))
    order = {name: n for n, name in enumerate(seen)}
    inputs = sorted(program.inputs, key=lambda t: order.get(t.name, len(order)))
    new: dict[str, str] = {t.name: f"in{n}" for n, t in enumerate(inputs)}
    inner = 0
    for d in program.definitions:
        if d.name in program.outputs:
            new[d.name] = f"out{program.outputs.index(d.name)}"
        else:
            new[d.name] = f"v{inner}"
            inner += 1
    made = Program(
        CANONICAL_NAME,
        tuple(replace(t, name=new[t.name]) for t in inputs),
        tuple(_renamed(d, new) for d in program.definitions),
        tuple(new[n] for n in program.outputs),
        dict(program.ranges),
    )
    kinds = [f"{d.name} {d.dtype.value} {d.view}" for d in made.definitions]
    ranges = [f"{s} {r.low} {r.high} {r.hint}" for s, r in sorted(made.ranges.items())]
    fixed = [t.name for t in made.inputs if t.weight]
    key = hashlib.sha256("\n".join([str(made), *kinds, *ranges, *fixed]).encode()).hexdigest()
    return Canonical(made, {v: k for k, v in new.items()}, key)


def _renamed(d: Definition, tensors: Mapping[str, str]) -> Definition:
    """The definition with tensors and axes renamed; axes by the order in which they appear."""
    axes = {a: Axis(f"a{n}", a.extent) for n, a in enumerate(d.axes)}
    bound: dict[Axis, Axis] = {}
    for e in walk(d.expr):
        if isinstance(e, Reduce) and e.axis not in axes:
            bound.setdefault(e.axis, Axis(f"r{len(bound)}", e.axis.extent))
    names = axes | bound
    mapping = {a: Index.axis(b) for a, b in names.items() if a.extent != 1}

    def renamed(e: Expr) -> Expr:
        match e:
            case Read(tensor, index):
                return Read(tensors[tensor], tuple(i.substitute(mapping) for i in index))
            case Reduce(kind, axis, body):
                return Reduce(kind, names[axis], body)
            case _:
                return reindexed(e, lambda i: i.substitute(mapping))

    (expr,) = rebuilt([d.expr], renamed)
    return Definition(tensors[d.name], tuple(axes[a] for a in d.axes), expr, d.dtype, "", d.view)
