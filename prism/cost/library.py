"""What a vendor's library takes for a matrix product: a roofline with tiles, waves and a split of the depth.

A library holds kernels for many tile sizes and ways to share the depth among programs, and picks a good one: the time
is the least over LIBRARY_TILES and SPLITS, by the same rules as that of a kernel of prism's own. The constants are to
be calibrated on a device; nothing here was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prism.cost.compiled_expr import value
from prism.cost.device import Device
from prism.cost.gpu import FULL_DOT_REUSE, Times, reached
from prism.cost.roofline import memory, seconds
from prism.program.index import Axis
from prism.program.nodes import DType
from prism.sgraph.products import PlainProduct

LIBRARY_EFFICIENCY = 0.8
"""What a large product reaches of the data sheet's dense rate: 790 of 989 TFLOP/s on an H200 (reported)."""
LIBRARY_TILES = ((128, 256), (256, 128), (128, 128), (64, 128), (128, 64), (64, 64))
"""Rows and columns of a program's part of the result, elements, the smallest last (guess)."""
SPLITS = (1, 2, 4, 8, 16)
"""Among how many programs a library shares the depth (guess)."""
LIBRARY_DEPTH = 256
"""The least part of its depth for which a library shares a product among programs, elements (guess)."""
LIBRARY_OVERLAP = 0.95
"""The share of what does not bound a product that runs beside what does: its loads are warps of their own (guess)."""


@dataclass(frozen=True, slots=True)
class Extents:
    """How large a product is: batch * [rows, depth] x [depth, columns], of elements of so many bytes.

    Attributes:
        addend: elements that are added to the result.
        copies: whether they are copied to the result before, by a launch of their own.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    width: int
    addend: int = 0
    copies: bool = False

    @property
    def operations(self) -> float:
        """Of the matrix units, two a multiply-add."""
        return 2.0 * self.batch * self.rows * self.columns * self.depth

    def more_launches(self, parts: int) -> int:
        """Beside the product's own: one that combines the parts of its depth, and one that copies what is added."""
        return (parts > 1) + self.copies

    def shared(self, high: int, wide: int) -> Iterator[tuple[int, int, int]]:
        """The ways to share the depth: the parts, the programs by tiles of that size, and the bytes moved.

        Every element is moved once, and partial results are written and read in float32.
        """
        depth, result = self.depth, self.rows * self.columns
        once = self.batch * (self.rows * depth + depth * self.columns + result) * self.width
        # What is copied is read, written, and read again.
        once += self.addend * self.width * (3 if self.copies else 1)
        tiles = self.batch * math.ceil(self.rows / high) * math.ceil(self.columns / wide)
        for parts in SPLITS:
            if parts == 1:
                yield 1, tiles, once
            elif math.ceil(depth / parts) >= LIBRARY_DEPTH:
                yield parts, tiles * parts, once + 8 * parts * self.batch * result


def extents(product: PlainProduct, hints: Mapping[str, int]) -> Extents:
    """How large a product is; `hints` has a value for every symbol."""

    def size(axes: Sequence[Axis]) -> int:
        return math.prod(int(value(a.extent, hints)) for a in axes)

    batch, rows, columns = size(product.batch), size(product.rows), size(product.columns)
    addend = 0 if product.addend is None else batch * rows * columns if product.copies_addend else columns
    depth, width = size((product.depth,)), product.dtype.bytes
    return Extents(batch, rows, columns, depth, width, addend, product.copies_addend)


def library_measures(product: Extents, device: Device) -> list[tuple[float, float, float]]:
    """(bytes, work, seconds) of each way to share the depth, before anything is known of tiles: by the smallest."""
    work = device.matrix_operation * product.operations
    return [
        (moved, work, float(seconds(device, moved, work, programs)) + launches * device.launch_overhead_s)
        for parts, programs, moved in product.shared(*LIBRARY_TILES[-1])
        for launches in (product.more_launches(parts),)
    ]


def library_times(product: Extents, dtype: DType, device: Device) -> Times:
    """Seconds by cause of a product on a device, by the best tile and share of the depth; `total` adds the launch."""
    rate = device.dot_flops(dtype) * LIBRARY_EFFICIENCY / device.processors
    found: list[tuple[float, int, Times]] = []
    for high, wide in LIBRARY_TILES:
        reuse = min(1.0, 2 * high * wide / (high + wide) / FULL_DOT_REUSE)
        for parts, programs, moved in product.shared(high, wide):
            own = math.ceil(product.depth / parts)
            waves = math.ceil(programs / device.processors)
            # Two neighbours load the longer side of their tiles together.
            through_l2 = programs * own * (min(high, wide) + max(high, wide) / 2) * product.width
            times = Times(
                memory=memory(device, moved, through_l2, reached(device, programs)),
                compute=waves * 2.0 * high * wide * own / (rate * reuse),
                latency=2 * device.memory_latency_s * waves,
                overlap=LIBRARY_OVERLAP,
                spill=product.more_launches(parts) * device.launch_overhead_s,
                fits=True,
                bytes=float(moved),
            )
            found.append((float(times.total(device.launch_overhead_s)), len(found), times))
    return min(found)[2]
