"""Which sums of products are products of matrices, in all languages, and what else an expression computes by itself."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from prism.program.index import Axis
from prism.program.nodes import DType, Expr, Map, Program, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.ops import OPS
from prism.program.prefix import stepwise
from prism.program.transform import nested


@dataclass(frozen=True, slots=True)
class Product:
    """A sum of products of two factors, which share an axis that is summed, and differ in others."""

    batch: frozenset[Axis]  # the axes of both factors that are not summed
    rows: frozenset[Axis]  # those of the first factor alone
    columns: frozenset[Axis]  # those of the second one alone
    depth: frozenset[Axis]  # those that are summed

    @property
    def axes(self) -> frozenset[Axis]:
        """All of them: as many multiply-adds as these have elements."""
        return self.batch | self.rows | self.columns | self.depth

    @property
    def is_matrix(self) -> bool:
        """Whether it is one of two matrices, and not of a matrix and a vector."""
        return bool(self.rows and self.columns)


def product(lhs: Set[Axis], rhs: Set[Axis], summed: Set[Axis]) -> Product | None:
    """What a sum of products of two factors with these axes is; None where both do not vary along what is summed."""
    rows, columns = lhs - rhs - summed, rhs - lhs - summed
    if not (summed & lhs & rhs and rows | columns):
        return None
    return Product(
        frozenset((lhs & rhs) - summed), frozenset(rows), frozenset(columns), frozenset((lhs | rhs) & summed)
    )


def matrix_product(lhs: Set[Axis], rhs: Set[Axis], summed: Set[Axis]) -> Product | None:
    """The same where it is a product of two matrices, else None."""
    found = product(lhs, rhs, summed)
    return found if found is not None and found.is_matrix else None


def product_of(body: Expr, summed: Set[Axis]) -> Product | None:
    """The product that a sum over `summed` of `body` is, a matrix and a vector's included; None where it is none."""
    if not (isinstance(body, Map) and body.op == "mul"):
        return None
    lhs, rhs = map(free_axes, body.args)
    return product(lhs, rhs, summed)


def operands_type(program: Program) -> DType | None:
    """The type of 16 bits in which all operands of the program's products are stored, as it is written.

    None where some are stored in another, as is what is computed of it and not stored, or where nothing is multiplied.
    """
    types = {t.name: t.dtype for t in (*program.inputs, *(d.tensor for d in program.definitions))}
    found: set[DType] = set()
    for e in (e for d in program.definitions for e in walk(stepwise(d.expr))):
        if not isinstance(e, Reduce) or e.kind is not ReduceKind.SUM:
            continue
        sums = nested(e)
        body = sums[-1].body
        if product_of(body, {s.axis for s in sums}) is not None:
            found |= {t for r in walk(body) if isinstance(r, Read) and (t := types[r.tensor]).is_float}
    (only,) = found if len(found) == 1 else (None,)
    return only if only is not None and only.is_half else None


@dataclass(frozen=True, slots=True)
class Work:
    """The operations of an expression."""

    products: tuple[Product, ...]  # its sums of products, those of a matrix and a vector included
    reductions: tuple[frozenset[Axis], ...]  # the axes of each reduction, products included
    operators: int  # how many pointwise operations, products' own not included
    # What reductions and pointwise operations cost an element, by the axes that they are computed over.
    others: tuple[tuple[int, frozenset[Axis]], ...]


def work(*exprs: Expr) -> Work:
    """The operations of expressions, equal parts once, prefix sums as a running sum takes them."""
    inside: set[Expr] = set()
    products: list[Product] = []
    others: list[tuple[int, frozenset[Axis]]] = []
    reductions: list[frozenset[Axis]] = []
    operators = 0
    for e in reversed(list(dict.fromkeys(e for x in exprs for e in walk(stepwise(x))))):
        if isinstance(e, Reduce):
            if e in inside:
                continue  # part of a reduction over several axes
            parts = nested(e)
            inside.update(parts[1:])
            body, bound = parts[-1].body, frozenset(p.axis for p in parts)
            reductions.append(bound)
            found = product_of(body, bound) if e.kind is ReduceKind.SUM else None
            if found is None:
                others.append((1, free_axes(body)))
            else:
                inside.add(body)
                products.append(found)
        elif isinstance(e, Map) and e not in inside:
            operators += 1
            others.append((OPS[e.op].flops, free_axes(e)))
    return Work(tuple(products), tuple(reductions), operators, tuple(others))
