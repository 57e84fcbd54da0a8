"""Nominal types: the widest storage type of what a value was computed from.

Operators run one by one would have stored the value in that type. Integers, positions and numbers have none: what is
computed from them and floats is as the floats are. A buffer is as good as what it was computed from: partial results
of half-precision values are float32 in memory and half precision by this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from prism.program.nodes import DType
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Gather,
    Kernel,
    Load,
    Loop,
    Pointwise,
    Position,
    Scan,
    SGraph,
    Stmt,
    Store,
    TileReduce,
)

Nominal: TypeAlias = "Mapping[str, DType | None]"
"""By name of a value of one kernel, or of a tensor; None where only positions and numbers went in."""


def join(dtypes: Sequence[DType | None]) -> DType | None:
    """The nominal type of what is computed from values of these."""
    floats = {d for d in dtypes if d is not None and d.is_float}
    if not floats:
        return None
    return floats.pop() if len(floats) == 1 else DType.FLOAT32


def nominal_types(sgraph: SGraph) -> dict[str, Nominal]:
    """Those of every kernel's values, by the kernel's name; of what is loaded, the tensor's."""
    tensors: dict[str, DType | None] = {t.name: t.dtype for t in sgraph.inputs}
    stored = {t for k in sgraph.kernels for t in k.writes}
    for w in (w for r in sgraph.repeats for w in r.windows):
        tensors[w.tensor.name] = w.tensor.dtype
        if w.tensor.name in stored:
            tensors[w.of] = w.tensor.dtype
    found: dict[str, Nominal] = {}
    for k in sgraph.kernels:
        found[k.name] = values = of_values(k, tensors)
        for s in k.statements():
            if isinstance(s, Store):
                own = values[s.src] if isinstance(s.src, str) else None
                tensors[s.tensor] = join((own, tensors.get(s.tensor))) or sgraph.tensor(s.tensor).dtype
    return found


def of_values(kernel: Kernel, tensors: Nominal) -> dict[str, DType | None]:
    """Those of the kernel's values, given those of every tensor that it loads."""
    found: dict[str, DType | None] = {}

    def visit(body: Sequence[Stmt]) -> None:
        for s in body:
            match s:
                case Loop():
                    visit(s.body)
                case Load(dst, tensor) | Gather(dst, tensor):
                    found[dst] = tensors[tensor]
                case Position(dst):
                    found[dst] = None
                case Pointwise(dst, _, args):
                    found[dst] = join([found[a] for a in args if isinstance(a, str)])
                case TileReduce(dst, _, _, src) | Scan(dst, _, src) | Accumulate(dst, _, src):
                    found[dst] = found[src]
                case Contract(dst, _, lhs, rhs):
                    found[dst] = join((found[lhs], found[rhs]))
                case Store():
                    pass

    visit(kernel.body)
    return found
