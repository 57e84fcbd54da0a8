"""What a vendor's library takes for a matrix product: a roofline with tiles, waves and a split of the depth.

A library holds kernels for many tile sizes and ways to share the depth among programs, and picks a good one: the time
is the least over LIBRARY_TILES and SPLITS, by the same rules as that of a kernel of prism's own. The constants are to
be calibrated on a device; nothing here was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from prism.cost.compiled_expr import value
from prism.cost.device import Device
from prism.cost.gpu import DRAM_EFFICIENCY, FULL_DOT_REUSE, SM_BANDWIDTH_SHARE, Times
from prism.cost.roofline import LIBRARY_DEPTH
from prism.program.index import Axis
from prism.program.nodes import DType
from prism.sgraph.products import PlainProduct

LIBRARY_EFFICIENCY = 0.8
"""What a large product reaches of the data sheet's dense rate: 790 of 989 TFLOP/s on an H200, the suite's floor."""
LIBRARY_TILES = ((128, 256), (256, 128), (128, 128), (64, 128), (128, 64), (64, 64))
SPLITS = (1, 2, 4, 8, 16)
LIBRARY_OVERLAP = 0.95
"""The share of what does not bound a product that runs beside what does: its loads are warps of their own."""


def library_times(product: PlainProduct, device: Device, hints: Mapping[str, int]) -> Times:
    """Seconds by cause of the product on a device; `total` adds the launch.

    Args:
        product: the product.
        device: what it runs on.
        hints: a value for every symbol of the extents.
    """

    def size(axes: Sequence[Axis]) -> int:
        return math.prod(int(value(a.extent, hints)) for a in axes)

    sides = product.batch, product.rows, product.columns, (product.depth,)
    batch, rows, columns, depth = (size(a) for a in sides)
    return product_times(batch, rows, columns, depth, product.dtype, device)


def product_times(batch: int, rows: int, columns: int, depth: int, dtype: DType, device: Device) -> Times:
    """The same of a product of these extents: batch * [rows, depth] x [depth, columns]."""
    width = dtype.bytes
    once = batch * (rows * depth + depth * columns + rows * columns) * width
    rate = device.dot_flops(dtype) * LIBRARY_EFFICIENCY / device.processors
    found: list[tuple[float, int, Times]] = []
    for high, wide in LIBRARY_TILES:
        reuse = min(1.0, 2 * high * wide / (high + wide) / FULL_DOT_REUSE)
        for parts in SPLITS:
            own = math.ceil(depth / parts)
            if parts > 1 and own < LIBRARY_DEPTH:
                break
            programs = batch * math.ceil(rows / high) * math.ceil(columns / wide) * parts
            waves = math.ceil(programs / device.processors)
            # Partial results are written and read in float32.
            moved = once + (8 * parts * batch * rows * columns if parts > 1 else 0)
            # Two neighbours load the longer side of their tiles together.
            through_l2 = programs * own * (min(high, wide) + max(high, wide) / 2) * width
            reached = min(1.0, SM_BANDWIDTH_SHARE * min(programs, device.processors) / device.processors)
            memory = max(moved / device.bandwidth_bytes_s, through_l2 / device.cache_bandwidth_bytes_s)
            times = Times(
                memory=memory / (DRAM_EFFICIENCY * reached),
                compute=waves * 2.0 * high * wide * own / (rate * reuse),
                latency=2 * device.memory_latency_s * waves,
                overlap=LIBRARY_OVERLAP,
                # Combining the parts is a launch more.
                spill=device.launch_overhead_s if parts > 1 else 0.0,
                fits=True,
                bytes=float(moved),
            )
            found.append((float(times.total(device.launch_overhead_s)), len(found), times))
    return min(found)[2]
