"""einsum under both readers: what its subscripts say, and the sum of products that it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from prism.program import build
from prism.program.extents import Extent
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, ReduceKind
from prism.program.views import Shape

Labels = list[str]


def subscripts(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of every operand's dimensions and of the result's; what an ellipsis stands for is labelled `e`.

    Raises:
        ValueError: operands of these ranks do not fit, or the result has a label that they have not.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    named = [text.replace("...", "") for text in texts]
    covered = [rank - len(n) for rank, n in zip(ranks, named, strict=False)]
    fits = all(c == 0 or (c > 0 and "..." in t) for c, t in zip(covered, texts, strict=False))
    if len(texts) != len(ranks) or not fits or any("." in n for n in (*named, right.replace("...", ""))):
        raise ValueError(f"the equation {equation!r} does not fit the operands")
    most = max(covered)

    def labels(text: str, many: int) -> Labels:
        before, _, after = text.partition("...")
        return [*before, *(f"e{d}" for d in range(most - many, most) if "..." in text), *after]

    if not arrow:
        letters = [c for n in named for c in n]
        right = ("..." if most else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    terms, result = [labels(t, c) for t, c in zip(texts, covered, strict=True)], labels(right, most)
    if len(set(result)) < len(result) or not set(result) <= {c for t in terms for c in t}:
        raise ValueError(f"the equation {equation!r} has no such result")
    return terms, result


def contraction(
    terms: Sequence[Labels],
    result: Labels,
    operands: Sequence[tuple[Shape, Callable[[Sequence[Index]], Expr]]],
    own: Sequence[Axis] | None = None,
) -> tuple[list[Axis], Expr]:
    """The result's axes, or those that it has, and its element; operands are shapes and how their elements are read."""
    extents: dict[str, Extent] = {}
    for labels, (shape, _) in zip(terms, operands, strict=True):
        extents |= {c: e for c, e in zip(labels, shape, strict=True) if extents.get(c, 1) == 1}
    axes = {c: Axis(c, e) for c, e in extents.items()} | dict(zip(result, own or (), strict=own is not None))
    factors = [
        at([Index.const(0) if e == 1 else Index.axis(axes[c]) for c, e in zip(labels, shape, strict=True)])
        for labels, (shape, at) in zip(terms, operands, strict=True)
    ]
    summed = tuple(a for c, a in axes.items() if c not in result)
    return [axes[c] for c in result], build.reduce(ReduceKind.SUM, summed, reduce(partial(op, "mul"), factors))
