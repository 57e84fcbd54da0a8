"""What loops cost in shared memory: tiles that are read in two layouts, and barriers.

A tile that is loaded for a matrix product lies in shared memory permuted, so that matrix units read it without bank
conflicts. Triton permutes for one layout: where the tile is read in another one, too (a norm's sum of squares beside
the product of the same rows), copies by pointers leave it as it is, and every 8x8 matrix of it is read row by row.
Copies by descriptors are permuted by hardware, whoever reads them; tests/test_descriptors.py reads both in Triton's
intermediate code. Warps that share an operand read it once each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prism.cost.constraints import Footprint, elements
from prism.cost.device import Device
from prism.program.index import Axis, Index
from prism.sgraph.nodes import Contract, Load, Loop, Pointwise, Stmt, operands, statements
from prism.sgraph.products import dot_dims, is_dot

DESCRIPTORS = "descriptors"
"""What configurations call launches whose loads are by descriptors."""
BANKS_BYTES = 128.0
"""What a multiprocessor reads of its shared memory in a cycle, bytes: 32 banks of 4 (data sheet)."""
MATRIX_ROW_BYTES = 16.0
"""A row of the 8x8 matrices in which matrix units' operands are read, bytes (data sheet)."""
MATRIX_ROWS = 8.0
"""Their rows, and so the most that conflict (data sheet)."""
WARP_ROWS = 16.0
"""Rows or columns of a product that are one warp's at least (data sheet)."""
BARRIERS = 2.0
"""Barriers in a trip of a loop that multiplies what it loads (reported: the code of Triton 3.6 and 3.7 for sm_90 has 2
or 3)."""
BARRIER_CYCLES = 30.0
"""Cycles until the warps of a program have met (guess)."""


def described(launch: str) -> str:
    """What a table of points calls whether a launch loads by descriptors, 1 or 0."""
    return f"{DESCRIPTORS}.{launch}"


@dataclass(frozen=True, slots=True)
class Shared:
    """A tile that a loop loads for a product and reads in another layout, too.

    Attributes:
        dims: its dimensions.
        side: those of the product's result among them.
        width: bytes of an element.
        inside: the dimension along which it is contiguous in memory, where there is one.
    """

    dims: tuple[Axis, ...]
    side: tuple[Axis, ...]
    width: int
    inside: Axis | None

    def read(self, sizes: Mapping[Axis, Any], warps: Any, by_descriptors: Any) -> Any:
        """Bytes that a trip reads for the product, each as often as its banks conflict and warps have it."""
        row = MATRIX_ROW_BYTES if self.inside is None else sizes[self.inside] * self.width
        conflicts = np.where(by_descriptors, 1.0, np.clip(row / MATRIX_ROW_BYTES, 1.0, MATRIX_ROWS))
        copies = warps / np.minimum(warps, np.maximum(elements(self.side, sizes) / WARP_ROWS, 1.0))
        return elements(self.dims, sizes) * self.width * copies * conflicts


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """What a kernel's loops do in shared memory.

    Attributes:
        tiles: those that are read in two layouts.
        multiplies: whether a loop multiplies what it loads.
    """

    tiles: tuple[Shared, ...]
    multiplies: bool

    def seconds(
        self, device: Device, sizes: Mapping[Axis, Any], warps: Any, trips: Any, by_descriptors: Any
    ) -> tuple[Any, Any]:
        """Of reading and of barriers, for a multiprocessor that has so many trips to make."""
        read: Any = 0.0
        for tile in self.tiles:
            read = read + tile.read(sizes, warps, by_descriptors)
        cycles = np.where(warps > 1, BARRIERS * BARRIER_CYCLES * self.multiplies, 0.0)
        hertz = device.multiprocessor.hertz
        return read * trips / (BANKS_BYTES * hertz), cycles * trips / hertz


def shared_memory(f: Footprint) -> SharedMemory:
    """What a kernel's loops do in shared memory.

    Args:
        f: the kernel's footprint.
    """
    found: list[Shared] = []
    for loop in (s for s in f.kernel.statements() if isinstance(s, Loop)):
        body = list(statements(loop.body))
        products = [s for s in body if isinstance(s, Contract) and is_dot(f.kernel, s, f.axes)]
        for load in (s for s in loop.body if isinstance(s, Load)):
            if len(f.axes[load.dst]) < 2:
                continue
            fed = [(p, side) for p in products for side in (p.lhs, p.rhs) if load.dst in _made_of(side, body)]
            if not fed or not _read_beside(load.dst, body, products):
                continue
            product, operand = fed[0]
            rows, columns, _ = dot_dims(f.kernel, product, f.axes)
            own = rows if operand == product.lhs else columns
            dims = f.axes[load.dst]
            inside = next((a for a in dims if _is_last(load.index, a)), None)
            found.append(Shared(dims, tuple(a for a in own if a in dims), f.width[load.tensor], inside))
    return SharedMemory(tuple(found), bool(f.staged))


def _made_of(value: str, body: Sequence[Stmt]) -> frozenset[str]:
    """The values of a loop that a value is made of, element by element."""
    made = {s.dst: s for s in body if isinstance(s, Pointwise)}
    found: set[str] = set()
    left = [value]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            if name in made:
                left += operands(made[name])
    return frozenset(found)


def _read_beside(value: str, body: Sequence[Stmt], products: Sequence[Contract]) -> bool:
    """Whether something else than operands of products is made of a value."""
    feeds = frozenset(n for p in products for side in (p.lhs, p.rhs) for n in _made_of(side, body))
    made = [s for s in body if isinstance(s, Pointwise) and s.dst in feeds]
    return any(
        value in (m for n in operands(s) for m in _made_of(n, body))
        for s in body
        if s not in products and s not in made and not isinstance(s, Loop)
    )


def _is_last(index: Sequence[Index], axis: Axis) -> bool:
    return bool(index) and any(a == axis and c == 1 for a, c in index[-1].terms)
