"""Extraction: choose, for each e-class, one way to compute it.

A *choice* is an e-node, or one of two forms that an e-node of a sum implies:

    contract   sum_k (a*b), both a and b with axis k: a matrix product, whose product is never a tile of its own
    rescaled   sum_k exp(a + -1*M)*f with M = max_k ...: one pass with a rescaled accumulator, where the plain form
               needs M's pass to end first

Choices are optimal for an order of (sequential reductions, work) or (work, sequential reductions), found by Knuth's
generalisation of Dijkstra's algorithm (Knuth 1977): both orders only grow from operands to results. Choosing once per
e-class means that what is shared in the e-graph is shared in the form.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from prism.program.extents import evaluate
from prism.program.index import Axis
from prism.program.nodes import Const
from prism.program.ops import OPS
from prism.sgraph.classes import EClasses, Payload

Cost: TypeAlias = tuple[float, float]
Criterion: TypeAlias = Callable[[Cost], Cost]

# One multiply-add of a matrix unit against one of the vector units.
MATRIX_UNIT = 1 / 16
REDUCTIONS = frozenset({"sum", "max", "min", "prod"})


@dataclass(frozen=True, slots=True)
class Choice:
    """How an e-class is computed.

    Attributes:
        op: an e-node's op, "contract" with children (a, b), or "rescaled" with children (a, b) or (a, b, f), where
            the shift is M = max_axis(b).
        payload: the e-node's payload; the reduced axis for contract and rescaled.
        children: e-class ids.
    """

    op: str
    payload: Payload
    children: tuple[int, ...]


Choices: TypeAlias = Mapping[int, Choice]


def fewest_passes(cost: Cost) -> Cost:
    """Prefer fewer sequential reductions, then less work."""
    return cost


def least_work(cost: Cost) -> Cost:
    """Prefer less work, then fewer sequential reductions."""
    return (cost[1], cost[0])


def options(classes: EClasses) -> dict[int, tuple[Choice, ...]]:
    """Every choice for every e-class, each once, in the e-graph's order."""
    shifts = _shifted_exponents(classes)
    found: dict[int, tuple[Choice, ...]] = {}
    for cls, nodes in classes.nodes.items():
        mine: dict[Choice, None] = {}
        for node in nodes:
            if node.domain or cls in node.children:
                continue
            if node.op in REDUCTIONS and node.payload not in classes.axes[node.children[0]]:
                continue  # as many equal values as the axis is long: the rules write it without the axis
            mine[Choice(node.op, node.payload, node.children)] = None
            if node.op == "sum":
                assert isinstance(node.payload, Axis)
                for extra in _sum_forms(classes, node.payload, node.children[0], shifts):
                    mine[extra] = None
        found[cls] = tuple(mine)
    return found


def _sum_forms(
    classes: EClasses, axis: Axis, body: int, shifts: Mapping[int, tuple[tuple[int, int], ...]]
) -> list[Choice]:
    """The contract and rescaled forms of sum_axis(body)."""
    forms: list[Choice] = []
    for a, m in shifts.get(body, ()):
        forms += [Choice("rescaled", axis, (a, b)) for b in _maxima(classes, m, axis)]
    for node in classes.nodes[body]:
        if node.op != "mul" or node.domain:
            continue
        lhs, rhs = node.children
        if axis in classes.axes[lhs] and axis in classes.axes[rhs] and lhs <= rhs:
            forms.append(Choice("contract", axis, (lhs, rhs)))
        for p, f in ((lhs, rhs), (rhs, lhs)):
            for a, m in shifts.get(p, ()):
                if axis in classes.axes[f] and axis in classes.axes[a]:
                    forms += [Choice("rescaled", axis, (a, b, f)) for b in _maxima(classes, m, axis)]
    return forms


def _maxima(classes: EClasses, cls: int, axis: Axis) -> list[int]:
    """The e-classes b with cls = max_axis(b), for a cls that does not depend on the axis."""
    if axis in classes.axes[cls]:
        return []
    return [
        n.children[0]
        for n in classes.nodes[cls]
        if n.op == "max" and n.payload == axis and not n.domain and axis in classes.axes[n.children[0]]
    ]


def _shifted_exponents(classes: EClasses) -> dict[int, tuple[tuple[int, int], ...]]:
    """For each e-class that is exp(a + -1*m): the pairs (a, m)."""
    minus_one = {
        c for c, nodes in classes.nodes.items() for n in nodes if isinstance(n.payload, Const) and n.payload.value == -1
    }
    negated: dict[int, list[int]] = defaultdict(list)
    for cls, nodes in classes.nodes.items():
        for n in nodes:
            if n.op == "neg":
                negated[cls].append(n.children[0])
            elif n.op == "mul":
                for sign, value in (n.children, n.children[::-1]):
                    if sign in minus_one and value not in negated[cls]:
                        negated[cls].append(value)
    differences: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for cls, nodes in classes.nodes.items():
        for n in nodes:
            if n.op == "add":
                for a, b in (n.children, n.children[::-1]):
                    for m in negated.get(b, ()):
                        if (a, m) not in differences[cls]:
                            differences[cls].append((a, m))
    return {
        cls: tuple(pair for n in nodes if n.op == "exp" for pair in differences.get(n.children[0], ()))
        for cls, nodes in classes.nodes.items()
        if any(n.op == "exp" for n in nodes)
    }


def extract(
    classes: EClasses, table: Mapping[int, tuple[Choice, ...]], criterion: Criterion, hints: Mapping[str, int]
) -> Choices:
    """The best choice for every e-class that can be computed from leaves."""

    @cache
    def size(axes: frozenset[Axis]) -> float:
        n = 1.0
        for a in axes:
            n *= evaluate(a.extent, hints)
        return n

    parents: dict[int, list[tuple[int, int]]] = defaultdict(list)
    waiting: dict[tuple[int, int], int] = {}
    best: dict[int, Choice] = {}
    cost: dict[int, Cost] = {}
    heap: list[tuple[Cost, int, int]] = []
    for cls, mine in table.items():
        for n, choice in enumerate(mine):
            distinct = set(choice.children)
            waiting[cls, n] = len(distinct)
            for child in distinct:
                parents[child].append((cls, n))
            if not distinct:
                heapq.heappush(heap, (criterion((0.0, 0.0)), cls, n))
    totals: dict[tuple[int, int], Cost] = {}
    while heap:
        _, cls, n = heapq.heappop(heap)
        if cls in best:
            continue
        best[cls] = table[cls][n]
        cost[cls] = totals.get((cls, n), (0.0, 0.0))
        for parent, m in parents[cls]:
            waiting[parent, m] -= 1
            if waiting[parent, m] == 0 and parent not in best:
                total = _cost(classes, parent, table[parent][m], cost, size)
                totals[parent, m] = total
                heapq.heappush(heap, (criterion(total), parent, m))
    return best


def _cost(
    classes: EClasses, cls: int, choice: Choice, cost: Mapping[int, Cost], size: Callable[[frozenset[Axis]], float]
) -> Cost:
    """(sequential reductions, work) of a choice whose children are settled."""
    kids = choice.children
    depth = max(cost[k][0] for k in kids)
    work = sum(cost[k][1] for k in kids)
    axes = [classes.axes[k] for k in kids]
    match choice.op:
        case "contract":
            product = axes[0] | axes[1]
            dense = bool(axes[0] - axes[1]) and bool(axes[1] - axes[0])
            return depth + 1, work + size(product) * (MATRIX_UNIT if dense else 2)
        case "rescaled":
            exponent = axes[0] | axes[1]
            depth += 1
            work += size(axes[1]) + size(exponent) * (1 + OPS["exp"].flops)
            if len(kids) == 3:
                dense = bool(exponent - axes[2]) and bool(axes[2] - exponent)
                work += size(exponent | axes[2]) * (MATRIX_UNIT if dense else 2)
            else:
                work += size(exponent)
            return depth, work
        case op if op in REDUCTIONS:
            return depth + 1, work + size(axes[0])
        case op:
            return depth, work + size(classes.axes[cls]) * OPS[op].flops
