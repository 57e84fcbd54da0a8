"""Random small legal programs, for property tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from prism.program import build
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Definition, DType, Expr, Map, Position, Program, Read, ReduceKind, Tensor
from prism.program.views import axes_of, reshape_index

F64 = DType.FLOAT64
# Shapes of equal number of elements, with equal extents among them, so that reshapes and name clashes happen.
SHAPES = ((2, 6), (6, 2), (3, 4), (12,), (2, 2, 3), (4, 3), (2, 3, 2))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program of up to 7 definitions: views, concatenations, pointwise operations, masks, reductions, products."""
    tensors = [Tensor(f"x{n}", draw(st.sampled_from(SHAPES)), F64) for n in range(draw(st.integers(1, 3)))]
    definitions: list[Definition] = []
    for n in range(draw(st.integers(1, 7))):
        kind = draw(
            st.sampled_from(("reshape", "permute", "flip", "concat", "map", "mask", "normalise", "reduce", "matmul"))
        )
        source = draw(st.sampled_from(tensors[-4:] if len(tensors) > 4 else tensors))
        axes, expr = draw(_definition(kind, source, tensors))
        d = Definition(f"y{n}", axes, expr, F64, view=isinstance(expr, Read))
        definitions.append(d)
        tensors.append(d.tensor)
    return Program("p", tuple(t for t in tensors if t.name[0] == "x"), tuple(definitions), (definitions[-1].name,))


@st.composite
def _definition(draw: st.DrawFn, kind: str, t: Tensor, tensors: list[Tensor]) -> tuple[tuple[Axis, ...], Expr]:
    axes = axes_of(t.shape)
    own = Read(t.name, tuple(map(Index.axis, axes)))
    many = int(np.prod([int(e) for e in t.shape]))
    match kind:
        case "reshape":
            fitting = [s for s in SHAPES if int(np.prod(s)) == many]
            if fitting:
                axes = axes_of(draw(st.sampled_from(fitting)))
                return axes, Read(t.name, reshape_index(t.shape, axes))
        case "permute":
            order = draw(st.permutations(range(len(axes))))
            moved = axes_of([t.shape[d] for d in order])
            index = [Index.const(0)] * len(axes)
            for a, d in zip(moved, order, strict=True):
                index[d] = Index.axis(a)
            return moved, Read(t.name, tuple(index))
        case "flip" if axes:
            return axes, Read(t.name, (Index.axis(axes[0]).scaled(-1) + (int(t.shape[0]) - 1), *own.index[1:]))
        case "concat" if axes and many <= 24:
            same = [u for u in tensors if u.shape == t.shape]
            parts = [t, draw(st.sampled_from(same))]
            joined = axes_of(joined_shape(parts, 0))
            return joined, concat(parts, joined, 0)
        case "mask" if len(axes) >= 2:
            seen = build.op("le", build.position(axes[0]), build.position(axes[1]))
            return axes, build.op("where", seen, own, build.const(draw(st.sampled_from((0.0, -1.0)))))
        case "normalise" if axes:
            bound = Axis("r", axes[-1].extent)
            inner = Read(t.name, (*own.index[:-1], Index.axis(bound)))
            total = build.reduce(ReduceKind.SUM, bound, build.mul(inner, inner))
            return axes, build.div(own, build.add(total, build.const(1.0)))
        case "reduce" if axes:
            d = draw(st.integers(0, len(axes) - 1))
            bound = Axis("r", axes[d].extent)
            kept = axes_of([e for k, e in enumerate(t.shape) if k != d])
            index = list(map(Index.axis, kept))
            index.insert(d, Index.axis(bound))
            reduction = draw(st.sampled_from((ReduceKind.SUM, ReduceKind.MAX, ReduceKind.MIN)))
            return kept, build.reduce(reduction, bound, Read(t.name, tuple(index)))
        case "matmul" if len(axes) == 2:
            # x @ x^T: one tensor in two roles, with two axes of one extent
            i, j, k = Axis("i", t.shape[0]), Axis("j", t.shape[0]), Axis("k", t.shape[1])
            return (i, j), build.reduce(
                ReduceKind.SUM, k, build.mul(build.read(t.name, i, k), build.read(t.name, j, k))
            )
    return axes, build.op("tanh", build.add(own, build.const(0.25)))


def arrays(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Signed inputs for a program."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal([int(e) for e in t.shape]) for t in program.inputs}


def joined_shape(parts: Sequence[Tensor], dimension: int) -> tuple[int, ...]:
    """The shape of the concatenation."""
    shape = [int(e) for e in parts[0].shape]
    shape[dimension] = sum(int(p.shape[dimension]) for p in parts)
    return tuple(shape)


def concat(parts: Sequence[Tensor], axes: Sequence[Axis], dimension: int) -> Expr:
    """The element of the concatenation: `where` over the position along the dimension, with shifted reads.

    A part that is not selected is read outside its bounds, which `where` makes harmless.
    """
    starts = list(itertools.accumulate((int(p.shape[dimension]) for p in parts), initial=0))

    def element(place: int) -> Read:
        index = [Index.axis(a) for a in axes]
        index[dimension] = index[dimension] + Index.const(-starts[place])
        return Read(parts[place].name, tuple(index))

    def choose(place: int, before: Expr, after: Expr) -> Expr:
        here = Position(Index.axis(axes[dimension]))
        return Map("where", (Map("lt", (here, Const(float(starts[place])))), before, after))

    return build.balanced_select(len(parts), element, choose)
