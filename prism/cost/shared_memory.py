"""What loops cost in shared memory: tiles that are read in two layouts, and barriers.

A tile that is loaded for a matrix product lies in shared memory permuted, so that matrix units read it without bank
conflicts. Triton permutes for one layout: where the tile is read in another one, too (a norm's sum of squares beside
the product of the same rows), copies by pointers leave it as it is, and every 8x8 matrix of it is read row by row.
Copies by descriptors are permuted by hardware, whoever reads them; tests/test_descriptors.py reads both in Triton's
intermediate code. Warps that share an operand read it once each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from prism.cost.constraints import Footprint, elements
from prism.cost.device import Device
from prism.ir.kit import defined, sources, statements
from prism.program.index import Axis, Index
from prism.sgraph.nodes import Contract, Load, Loop, Pointwise, Stmt
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
class Step:
    """A statement of a loop, of sGraphs or of tile programs, as far as layouts go."""

    made: str | None  # the value that it makes, if any
    of: tuple[str, ...]  # those that it reads; of a product, its operands
    # Whether it multiplies matrices, goes element by element, or is anything else.
    how: Literal["product", "elements", "other"]


def in_two_layouts(loop: Sequence[Step]) -> dict[str, str]:
    """The values of which both an operand of a matrix product and something else is made, with the first such product.

    Statements of inner loops are among the loop's.
    """
    made = {s.made: s.of for s in loop if s.made is not None and s.how == "elements"}
    fed: dict[str, str] = {}
    for s in loop:
        for name in made_of(s.of, made) if s.how == "product" else ():
            fed.setdefault(name, s.made or "")
    others = (s for s in loop if s.how == "other" or (s.how == "elements" and s.made not in fed))
    beside = made_of([n for s in others for n in s.of], made)
    return {name: product for name, product in fed.items() if name in beside}


def made_of(values: Iterable[str], made: Mapping[str, Sequence[str]]) -> set[str]:
    """The values that these are made of, and these; `made` says of what."""
    left, found = list(values), set[str]()
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += made.get(name, ())
    return found


@dataclass(frozen=True, slots=True)
class Shared:
    """A tile that a loop loads for a product and reads in another layout, too."""

    tensor: str  # what it is a tile of
    dims: tuple[Axis, ...]  # its dimensions
    side: tuple[Axis, ...]  # those of the product's result among them
    width: int  # bytes of an element
    inside: Axis | None  # the dimension along which it is contiguous in memory, where there is one

    def read(self, sizes: Mapping[Axis, Any], warps: Any, by_descriptors: Any) -> Any:
        """Bytes that a trip reads for the product, each as often as its banks conflict and warps have it."""
        row = MATRIX_ROW_BYTES if self.inside is None else sizes[self.inside] * self.width
        conflicts = np.where(by_descriptors, 1.0, np.clip(row / MATRIX_ROW_BYTES, 1.0, MATRIX_ROWS))
        copies = warps / np.minimum(warps, np.maximum(elements(self.side, sizes) / WARP_ROWS, 1.0))
        return elements(self.dims, sizes) * self.width * copies * conflicts


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """What a kernel's loops do in shared memory."""

    tiles: tuple[Shared, ...]  # those that are read in two layouts
    multiplies: bool  # whether a loop multiplies what it loads

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
    """What a kernel's loops do in shared memory."""
    found: list[Shared] = []
    for loop in (s for s in f.kernel.statements() if isinstance(s, Loop)):
        body = statements(loop.body)
        products = {s.dst: s for s in body if isinstance(s, Contract) and is_dot(f.kernel, s, f.axes)}
        twice = in_two_layouts([_step(s, products) for s in body if not isinstance(s, Loop)])
        made = {s.dst: sources(s) for s in body if isinstance(s, Pointwise)}
        for load in (s for s in loop.body if isinstance(s, Load)):
            product = products.get(twice.get(load.dst, ""))
            if product is None or len(f.axes[load.dst]) < 2:
                continue
            rows, columns, _ = dot_dims(f.kernel, product, f.axes)
            own = rows if load.dst in made_of([product.lhs], made) else columns
            dims = f.axes[load.dst]
            inside = next((a for a in dims if _is_last(load.index, a)), None)
            found.append(Shared(load.tensor, dims, tuple(a for a in own if a in dims), f.width[load.tensor], inside))
    return SharedMemory(tuple(found), bool(f.staged))


def _step(s: Stmt, products: Mapping[str, Contract]) -> Step:
    dst = defined(s)
    product = products.get(dst or "")
    if product is not None:
        return Step(dst, (product.lhs, product.rhs), "product")
    return Step(dst, sources(s), "elements" if isinstance(s, Pointwise) else "other")


def _is_last(index: Sequence[Index], axis: Axis) -> bool:
    return bool(index) and any(a == axis and c == 1 for a, c in index[-1].terms)
