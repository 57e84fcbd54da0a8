"""What an expression computes, by itself: its matrix products, its other operations, each once."""

from __future__ import annotations

from dataclasses import dataclass

from prism.program.index import Axis
from prism.program.nodes import Expr, Map, Reduce, ReduceKind, free_axes, walk
from prism.program.ops import OPS
from prism.program.prefix import stepwise
from prism.program.products import Product, product_of


@dataclass(frozen=True, slots=True)
class Work:
    """The operations of an expression.

    Attributes:
        products: its sums of products, those of a matrix and a vector included.
        reductions: how many reductions there are, products included.
        operators: how many pointwise operations, products' own not included.
        others: what reductions and pointwise operations cost an element, by the axes that they are computed over.
    """

    products: tuple[Product, ...]
    reductions: int
    operators: int
    others: tuple[tuple[int, frozenset[Axis]], ...]


def work(expr: Expr) -> Work:
    """The operations of an expression, equal parts once, prefix sums as a running sum takes them."""
    inside: set[Expr] = set()
    products: list[Product] = []
    others: list[tuple[int, frozenset[Axis]]] = []
    reductions = operators = 0
    for e in reversed(list(dict.fromkeys(walk(stepwise(expr))))):
        if isinstance(e, Reduce):
            if e in inside:
                continue  # part of a reduction over several axes
            reductions += 1
            body, bound = e.body, {e.axis}
            while isinstance(body, Reduce) and body.kind is e.kind:
                inside.add(body)
                bound.add(body.axis)
                body = body.body
            found = product_of(body, bound) if e.kind is ReduceKind.SUM else None
            if found is None:
                others.append((1, free_axes(body)))
            else:
                inside.add(body)
                products.append(found)
        elif isinstance(e, Map) and e not in inside:
            operators += 1
            others.append((OPS[e.op].flops, free_axes(e)))
    return Work(tuple(products), reductions, operators, tuple(others))
