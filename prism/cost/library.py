"""What a vendor's library takes for a matrix product or for attention: a roofline with tiles, waves and splits.

A library holds kernels for many tile sizes and ways to share the depth among programs, and picks a good one: the time
is the least over LIBRARY_TILES and SPLITS, by the same rules as that of a kernel of prism's own. A fused attention has
tiles of so many queries, and where tiles are few its keys are shared, but for queries that fill none. One of the
constants was measured on a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prism.cost.compiled_expr import value
from prism.cost.device import Device
from prism.cost.gpu import FULL_DOT_REUSE, RANGED_EFFICIENCY, Times, transfer
from prism.cost.roofline import seconds
from prism.program.index import Axis
from prism.program.nodes import DType
from prism.sgraph.library import LibraryCall, PlainAttention
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

ATTENTION_EFFICIENCY = {64: 0.41, 128: 0.61}
"""What a fused attention reaches of the data sheet's dense rate, by the width that heads are padded to: cuDNN's 408 and
609 of 989 TFLOP/s on an H100 with 4096 queries, nothing masked (reported: published with FlashAttention-3)."""
ATTENTION_ROWS = (128, 64)
"""Queries of a program, the fewest last (reported: the tiles of FlashAttention-2 and 3)."""
ATTENTION_KEYS = 256
"""The fewest keys of a program where they are shared among programs (guess)."""
ATTENTION_KEY_S = 11.5e-9
"""What a fused attention of queries that fill no tile takes for each key, seconds, while multiprocessors have one
program each: its keys are not shared (measured on an H200: torch's scaled_dot_product_attention of one query for each
of 32 heads, four to a key, 4096 and 32,768 keys)."""


@dataclass(frozen=True, slots=True)
class Extents:
    """How large a product is: batch * [rows, depth] x [depth, columns], of elements of so many bytes."""

    batch: int
    rows: int
    columns: int
    depth: int
    width: int
    addend: int = 0  # elements that are added to the result
    copies: bool = False  # whether they are copied to the result before, by a launch of their own

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


@dataclass(frozen=True, slots=True)
class AttentionExtents:
    """How large attention is: of so many heads, each of `rows` queries, which share keys among `shared` of them.

    Its result is copied to its place, or taken where it is.
    """

    heads: int
    shared: int
    rows: int
    keys: int
    columns: int
    width: int
    causal: bool
    copied: bool

    @property
    def few(self) -> bool:
        """Whether its queries do not fill the smallest tile."""
        return self.rows < ATTENTION_ROWS[-1]

    def seen(self, high: int) -> float:
        """The share of the keys that tiles of that many queries see, those on the diagonal whole."""
        return min(1.0, (self.keys + high) / (2 * self.keys)) if self.causal else 1.0

    def tiled(self, high: int) -> Iterator[tuple[int, int, int]]:
        """The ways to share the keys: the parts, the programs by tiles of that many queries, and the bytes moved.

        The result is written once by the fused kernel, and once more where it is copied.
        """
        query = self.heads * self.rows * self.columns * self.width
        once = (4 if self.copied else 2) * query + 2 * self.heads // self.shared * self.keys * self.columns * self.width
        # One query goes with those of the heads that share its keys.
        together = self.shared if self.rows == 1 else 1
        tiles = self.heads // together * math.ceil(self.rows * together / high)
        for parts in SPLITS:
            if parts == 1:
                yield 1, tiles, once
            elif not self.few and not self.causal and math.ceil(self.keys / parts) >= ATTENTION_KEYS:
                yield parts, tiles * parts, once + 8 * parts * self.heads * self.rows * self.columns

    def more_launches(self, parts: int) -> int:
        """Beside attention's own: one that combines parts, and one that copies the result."""
        return (parts > 1) + self.copied


def attention_extents(call: PlainAttention, hints: Mapping[str, int]) -> AttentionExtents:
    """How large attention is; `hints` has a value for every symbol."""
    batch, heads, rows, columns = (int(value(s, hints)) for s in call.query.sizes)
    _, few, keys, _ = (int(value(s, hints)) for s in call.key.sizes)
    shared, width = heads // max(few, 1), call.dtype.bytes
    return AttentionExtents(batch * heads, shared, rows, keys, columns, width, call.causal, call.copied)


def call_measures(
    call: LibraryCall, hints: Mapping[str, int], device: Device, own: float
) -> list[tuple[float, float, float]]:
    """(bytes, work, seconds) of each way to share what is summed over, before anything is known of tiles.

    `own` is the work of the kernel in whose place it is. Attention is taken to be no less: exponentials are work, and
    of its forms, which are all one to the library, the one that computes least stays the best.
    """
    if not isinstance(call, PlainAttention):
        return library_measures(extents(call, hints), device)
    size = attention_extents(call, hints)
    return [
        (moved, own, float(seconds(device, moved, own, programs)) + launches * device.launch_overhead_s)
        for parts, programs, moved in size.tiled(ATTENTION_ROWS[-1])
        for launches in (size.more_launches(parts),)
    ]


def call_times(call: LibraryCall, hints: Mapping[str, int], device: Device) -> Times:
    """Seconds by cause of a call on a device, by the best tiles and shares; `total` adds the launch."""
    if not isinstance(call, PlainAttention):
        return library_times(extents(call, hints), call.dtype, device)
    return attention_times(attention_extents(call, hints), call.dtype, device)


def attention_times(size: AttentionExtents, dtype: DType, device: Device) -> Times:
    """Seconds by cause of a fused attention on a device, by the best tiles and shares; `total` adds the launch."""
    padded = next((w for w in ATTENTION_EFFICIENCY if size.columns <= w), 2 * max(ATTENTION_EFFICIENCY))
    share = ATTENTION_EFFICIENCY[min(padded, max(ATTENTION_EFFICIENCY))] * (RANGED_EFFICIENCY if size.causal else 1.0)
    rate = device.dot_flops(dtype) * share / device.processors
    found: list[Times] = []
    for high in ATTENTION_ROWS:
        seen = size.seen(high)
        for parts, programs, moved in size.tiled(high):
            waves = math.ceil(programs / device.processors)
            # Programs of a causal mask have unequal work: the longest first, they fill what waves leave.
            own = 4.0 * high * math.ceil(size.keys / parts) * padded * seen
            busy = programs / device.processors if size.causal and waves > 1 else float(waves)
            through_l2 = programs * 2 * size.keys / parts * seen * size.columns * size.width
            t = _times(device, moved, moved + through_l2, programs, busy * own / rate, size.more_launches(parts))
            alone = ATTENTION_KEY_S * size.keys * waves if size.few else 0.0
            found.append(replace(t, latency=t.latency + alone))
    return _least(found, device)


def _times(device: Device, moved: int, through_l2: float, programs: int, compute: float, launches: int) -> Times:
    """Of a call by tiles: bytes from memory and through the L2, its programs, seconds of work, and launches besides."""
    return Times(
        memory=transfer(device, moved, through_l2, programs),
        compute=compute,
        latency=2 * device.memory_latency_s * math.ceil(programs / device.processors),
        overlap=LIBRARY_OVERLAP,
        spill=launches * device.launch_overhead_s,
        fits=True,
        bytes=float(moved),
    )


def _least(found: Sequence[Times], device: Device) -> Times:
    """The first of those that take least."""
    return min(found, key=lambda t: float(t.total(device.launch_overhead_s)))


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
    found: list[Times] = []
    for high, wide in LIBRARY_TILES:
        reuse = min(1.0, 2 * high * wide / (high + wide) / FULL_DOT_REUSE)
        for parts, programs, moved in product.shared(high, wide):
            own = math.ceil(product.depth / parts)
            waves = math.ceil(programs / device.processors)
            # Two neighbours load the longer side of their tiles together.
            through_l2 = programs * own * (min(high, wide) + max(high, wide) / 2) * product.width
            compute = waves * 2.0 * high * wide * own / (rate * reuse)
            found.append(_times(device, moved, through_l2, programs, compute, product.more_launches(parts)))
    return _least(found, device)
