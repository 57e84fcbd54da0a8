"""What no assignment of an sGraph's tiles and splits goes below or above: yardsticks for tests of the counts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from prism.cost.compiled_expr import value
from prism.cost.constraints import first_unsatisfiable, footprint
from prism.cost.counts import KernelCost, Monomial, Polynomial, SGraphCost, sgraph_cost
from prism.cost.device import MATRIX_OPERATION, Device, Tiles
from prism.cost.trip_counts import Visited
from prism.sgraph.nodes import Grid, LoopRole, SGraph, Split


@dataclass(frozen=True, slots=True, order=True)
class Bound:
    """A bound of an sGraph's cost over its assignments, in the order in which costs usually matter.

    Attributes:
        bytes: bytes read and written.
        flops: pointwise work plus weighted matrix work, in vector multiply-adds.
        launches: number of kernels.
    """

    bytes: float
    flops: float
    launches: float

    def as_tuple(self) -> tuple[float, float, float]:
        """The three numbers, in the order of the attributes."""
        return (self.bytes, self.flops, self.launches)


def first_unfit(sgraph: SGraph, device: Device, hints: Mapping[str, int]) -> tuple[str, str] | None:
    """(kernel name, constraint name) of the first kernel that cannot run under any assignment, or None."""
    for kernel in sgraph.kernels:
        name = first_unsatisfiable(footprint(kernel, sgraph), sgraph, device, hints)
        if name is not None:
            return kernel.name, name
    return None


def lower_bound(sgraph: SGraph, hints: Mapping[str, int], cost: SGraphCost | None = None) -> Bound:
    """What no assignment of tiles and splits can go below: each launch moves each distinct element at least once.

    Args:
        sgraph: the family.
        hints: a value for every symbol of the extents; a split counts as one part.
        cost: its cost, where it is already at hand.
    """
    known = cost or sgraph_cost(sgraph)
    env = {**dict.fromkeys((s.name for s in sgraph.symbols), 1), **hints}
    moved = 0
    work = 0.0
    left = iter(known.kernels)
    for many in known.together or (1,) * len(known.kernels):
        kernels = tuple(itertools.islice(left, many))
        loads: dict[str, int] = {}
        for k in kernels:
            for (tensor, store), touched in compulsory_bytes(k, sgraph, env).items():
                # Kernels of one launch may load the same elements; they never store the same.
                if store:
                    moved += touched
                else:
                    loads[tensor] = max(loads.get(tensor, 0), touched)
        moved += sum(loads.values())
    for k in known.kernels:
        work += k.flops.lower(env) + MATRIX_OPERATION * k.dot_flops.lower(env)
    return Bound(moved, work, known.launches)


def compulsory_bytes(cost: KernelCost, sgraph: SGraph, hints: Mapping[str, int]) -> dict[tuple[str, bool], int]:
    """For each tensor, and whether it is stored: bytes that must move, each distinct element once."""
    found: dict[tuple[str, bool], int] = {}
    for a in cost.accesses:
        declared = sgraph.tensor(a.tensor)
        whole: Any = declared.dtype.bytes
        for extent in declared.shape:
            whole = whole * value(extent, hints)
        touched = min(a.own.lower(hints), whole)
        key = (a.tensor, a.store)
        found[key] = max(found.get(key, 0), touched)
    return found


def upper_bound(sgraph: SGraph, hints: Mapping[str, int], cost: SGraphCost | None = None) -> Bound:
    """What no assignment exceeds: every tile one element long, every split as wide as it gets, no tile skipped."""
    env: dict[str, Any] = dict(hints)
    for k in sgraph.kernels:
        for _, role in k.roles:
            if isinstance(role, Grid | LoopRole | Split) and isinstance(role.tile, sympy.Symbol):
                env[role.tile.name] = 1
            if isinstance(role, Split):
                env[role.parts.name] = Tiles().parts
    known = cost or sgraph_cost(sgraph)
    names = ("bytes_read", "bytes_written", "flops", "dot_flops")
    read, written, flops, dots = (_without_ranges(known.total(n)).evaluate(env) for n in names)
    return Bound(read + written, flops + MATRIX_OPERATION * dots, known.launches)


def _without_ranges(p: Polynomial) -> Polynomial:
    """The sum were all tiles visited."""
    terms = ((m.coefficient, tuple(f for f in m.factors if not isinstance(f, Visited))) for m in p.terms)
    return Polynomial(tuple(Monomial(c, factors) for c, factors in terms))


def attained(sgraph: SGraph, binding: Mapping[str, int], cost: SGraphCost | None = None) -> Bound:
    """The cost at one assignment: what a family surely reaches, sharper than its upper bound."""
    known = cost or sgraph_cost(sgraph)
    at = known.evaluate(binding)
    return Bound(
        at["bytes_read"] + at["bytes_written"], at["flops"] + MATRIX_OPERATION * at["dot_flops"], known.launches
    )


def dominates(reached: Bound, best: Bound) -> bool:
    """Whether what one family surely reaches is nowhere above, and somewhere below, another family's lower bound."""
    pairs = tuple(zip(reached.as_tuple(), best.as_tuple(), strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
