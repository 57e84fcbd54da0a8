"""What a trip of a loop takes besides its loads and its arithmetic: products' results, and bytes made numbers.

A small product on matrix units answers long after its operands are there, and what stands behind it in the trip, or
adds to the same result in the next one, waits: programs that run beside one another hide that, and nothing else does.
Bytes become numbers by operations of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism.cost.constraints import WARP_GROUP_ROWS, Footprint, elements
from prism.ir.kit import sources
from prism.program.index import Axis
from prism.sgraph.nodes import Contract, Load, Loop, Stmt
from prism.sgraph.products import dot_dims, is_dot

PRODUCT_CYCLES = 450.0
"""Cycles that the result of a product of fewer rows or columns is waited for in a trip; larger ones take longer
themselves (measured on an H200, of all configurations of the suite)."""
BYTE_WORK = 4.0
"""Multiply-adds in the time that a byte takes to become a number (measured there, of int4 and int8)."""


@dataclass(frozen=True, slots=True)
class Trip:
    """What is done in a trip of one loop, or once, outside of all."""

    # The rows and the columns of matrix products' results.
    products: tuple[tuple[tuple[Axis, ...], tuple[Axis, ...]], ...]
    unpacked: tuple[tuple[Axis, ...], ...]  # the dimensions of tiles of bytes that are computed with

    def waited_cycles(self, sizes: Mapping[Axis, Any]) -> Any:
        """For results of its products."""
        total: Any = 0.0
        for rows, columns in self.products:
            small = np.minimum(elements(rows, sizes), elements(columns, sizes)) < WARP_GROUP_ROWS
            total = total + np.where(small, PRODUCT_CYCLES, 0.0)
        return total

    def conversions(self, sizes: Mapping[Axis, Any]) -> Any:
        """Multiply-adds in whose time its bytes become numbers."""
        total: Any = 0.0
        for dims in self.unpacked:
            total = total + BYTE_WORK * elements(dims, sizes)
        return total


def trips(f: Footprint) -> tuple[Trip, ...]:
    """What is done outside of loops, and in a trip of each loop, in the order of `KernelCost.loop_trips`."""
    statements = [s for s in f.kernel.statements() if not isinstance(s, Loop)]
    products = {s.dst: s for s in statements if isinstance(s, Contract) and is_dot(f.kernel, s, f.axes)}
    computed = {name for s in statements if s not in products.values() for name in sources(s)}

    def trip(body: Sequence[Stmt]) -> Trip:
        own = [s for s in body if isinstance(s, Contract) and s.dst in products]
        loads = [s for s in body if isinstance(s, Load) and f.width[s.tensor] == 1 and s.dst in computed]
        results = [dot_dims(f.kernel, s, f.axes) for s in own]
        return Trip(tuple((rows, columns) for rows, columns, _ in results), tuple(f.axes[s.dst] for s in loads))

    loops = (s for s in f.kernel.statements() if isinstance(s, Loop))
    return (trip(f.kernel.body), *(trip(s.body) for s in loops))
