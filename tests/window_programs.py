"""Programs whose windows see what is computed at places."""

from __future__ import annotations

from sgraph_programs import program

from prism.program.build import const, mul, op, position, read, reduce
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Program
from prism.sgraph.nodes import Load, SGraph

C, K, N, D = Axis("c", 4), Axis("k", 8), Axis("n", 12), Axis("d", 3)


def seen(at: Index) -> Expr:
    """What a window sees at a place: dear enough to be computed once."""
    return op("sigmoid", reduce("sum", K, mul(read("u", C, K), read("x", K, at))))


def windowed(also: Expr | None = None) -> Program:
    """A depthwise convolution of what is computed at each place, whose windows go over both ends."""
    at = Index.axis(N) + Index.axis(D) + Index.const(-1)
    value = seen(at) if also is None else mul(seen(at), also)
    inside = mul(op("le", const(0.0), position(at)), op("lt", position(at), const(12.0)))
    out = op("sigmoid", reduce("sum", D, mul(read("w", C, D), op("where", inside, value, const(0.0)))))
    return program("p", {"x": (8, 12), "u": (4, 8), "w": (4, 3), "z": (12, 12)}, {"y": ((C, N), out)})


def reads_windows(g: SGraph) -> bool:
    """Whether a buffer is read at a sum."""
    buffers = {b.name for b in g.buffers}
    loads = [s for k in g.kernels for s in k.statements() if isinstance(s, Load)]
    return any(s.tensor in buffers and any(len(i.axes()) > 1 for i in s.index) for s in loads)
