"""Loads in loops: which of them pipelining hides, and what shared memory that takes without matrix products.

Pipelined loads are asynchronous copies into buffers. A loop without matrix products has one buffer less than the
stages that it is told (prism.backends.triton.emit_kernel). A copy moves 4 bytes at least for a thread: tiles whose
neighbours in memory are not neighbours in the tile, and tiles of few elements, are loaded as without pipelining, and
the loop waits for them. Vectors among them are loaded one trip ahead (prism.backends.triton.ahead).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from prism.cost.compiled_expr import value
from prism.cost.constraints import Footprint, elements
from prism.cost.counts import SECTOR_BYTES
from prism.ir.kit import statements
from prism.program.index import Axis, Index
from prism.sgraph.nodes import Contract, Grid, Load, Loop, value_axes
from prism.sgraph.products import is_dot

COPY_BYTES = 4
"""The least that an asynchronous copy moves, bytes (data sheet)."""
L2_TRIP = 0.4
"""How long a trip to L2 takes, in trips to memory (guess)."""
TRIPS_AHEAD = 2
"""Trips of a loop that a load overlaps with which goes one ahead (by definition: that one and its own)."""

# An axis, and the bytes from one of its elements to the next.
_Step: TypeAlias = "tuple[Axis, int]"


def goes_ahead(dimensions: int, unit: bool, width: int, multiplies: bool) -> bool:
    """Whether a load in a loop is done one trip ahead, in registers: a vector that is surely no asynchronous copy.

    `unit` is whether neighbours in the tile are neighbours in memory, `width` an element's bytes. `multiplies` is
    whether the loop holds a matrix product, or another loop: then few vectors or none are copied.
    """
    return dimensions <= 1 and (multiplies or (not unit and width < COPY_BYTES))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A load in an innermost loop."""

    dims: tuple[Axis, ...]  # the dimensions of its tile
    width: int  # bytes of an element
    paired: bool  # whether it is one half of a load of pairs
    # The dimension along which it is contiguous in memory, and the bytes from one to the next; None where it is along
    # none.
    inside: _Step | None
    along: _Step | None  # the same of the loop's axis
    product: bool  # whether the loop holds a matrix product, so that its buffers are counted there
    unmentioned: tuple[Axis, ...]  # axes of the grid whose programs load the same

    @property
    def ahead(self) -> bool:
        """Whether it is loaded one trip ahead."""
        unit = self.inside is not None and self.inside[1] == self.width
        return not self.paired and goes_ahead(len(self.dims), unit, self.width, self.product)

    def copied(self, sizes: Mapping[Axis, Any], warps: Any) -> Any:
        """Whether a thread's share of it is at least what an asynchronous copy moves."""
        if self.inside is None or self.ahead:
            return False
        share = elements(self.dims, sizes) * self.width * (2 if self.paired else 1) / (32 * warps)
        return (sizes[self.inside[0]] * self.inside[1] >= COPY_BYTES) & (share >= COPY_BYTES)


@dataclass(frozen=True, slots=True)
class PipelinedLoads:
    """What is loaded in a kernel's innermost loops."""

    loads: tuple[Loaded, ...]

    def buffer_bytes(self, sizes: Mapping[Axis, Any], stages: Any) -> Any:
        """Shared memory of the buffers of loops without matrix products."""
        total: Any = sum(elements(s.dims, sizes) * s.width for s in self.loads if not s.product)
        return total * np.maximum(stages - 1, 0)

    def hidden(self, sizes: Mapping[Axis, Any], warps: Any, overlapping: Any) -> Any:
        """How many trips overlap: so many where most of what is loaded is copied."""
        copied: Any = 0
        total: Any = 0
        for s in self.loads:
            own = elements(s.dims, sizes) * s.width
            copied, total = copied + np.where(s.copied(sizes, warps), own, 0), total + own
        return np.where(2 * copied >= total, np.maximum(overlapping, 1), 1)

    def waiting(self, sizes: Mapping[Axis, Any], warps: Any, overlapping: Any, env: Mapping[str, Any]) -> Any:
        """How long each trip of a loop waits, in trips to memory, for copies and for what is no copy.

        The latter is shorter where another program has brought it to L2, or a trip before to the first cache.
        """
        copied = 1 / np.maximum(overlapping, 1)
        found: Any = 0.0 if self.loads else copied
        for s in self.loads:
            others: Any = math.prod(-(-value(axis.extent, env) // sizes[axis]) for axis in s.unmentioned)
            own = np.where(others > 1, L2_TRIP, 1.0)
            if s.along is not None:
                own = own * np.minimum(sizes[s.along[0]] * s.along[1] / SECTOR_BYTES, 1)
            own = own / TRIPS_AHEAD if s.ahead else own
            found = np.maximum(found, np.where(s.copied(sizes, warps), copied, own))
        return found


def pipelined_loads(f: Footprint) -> PipelinedLoads:
    """What a kernel's innermost loops load."""
    axes = value_axes(f.kernel)
    grid = [a for a, r in f.kernel.roles if isinstance(r, Grid)]
    found: list[Loaded] = []
    for loop in (s for s in f.kernel.statements() if isinstance(s, Loop)):
        inner = statements(loop.body)
        if any(isinstance(s, Loop) for s in inner):
            continue
        product = any(isinstance(s, Contract) and is_dot(f.kernel, s, axes) for s in inner)
        loads = [s for s in inner if isinstance(s, Load) and f.axes[s.dst] and s.dst in f.tensor_of]
        for s in loads:
            width = f.width[s.tensor]
            pair = any(x.tensor == s.tensor and x.index in (_moved(s, 1), _moved(s, -1)) for x in loads)
            inside = _step(s, f.axes[s.dst], width, (1, 2) if pair else (1,))
            paired = pair and inside is not None and inside[1] == 2 * width
            along = _step(s, (loop.axis,), width)
            unmentioned = tuple(a for a in grid if all(a not in i.axes() for i in s.index))
            found.append(Loaded(f.axes[s.dst], width, paired, inside, along, product, unmentioned))
    return PipelinedLoads(tuple(found))


def _step(load: Load, among: Sequence[Axis], width: int, only: Sequence[int] = ()) -> _Step | None:
    """The first of the axes along which the load moves by one of these steps, by any if there are none."""
    steps = [(a, c) for a, c in load.index[-1].terms if isinstance(a, Axis) and isinstance(c, int) and a in among]
    for wanted in only or sorted({c for _, c in steps if c > 0}):
        for axis, c in steps:
            if c == wanted:
                return axis, c * width
    return None


def _moved(load: Load, by: int) -> tuple[Index, ...]:
    return (*load.index[:-1], load.index[-1] + by)
