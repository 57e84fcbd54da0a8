"""What kernels run on, as data: its rates and memories, how it holds tiles, and what it can do.

Everything that ranks, prunes, cuts or tunes asks a `Device`; nothing else in prism knows a rate. Where a number is
from, it says:

    data sheet    the vendor's, dense (without sparsity); what a kernel reaches of it is the model's business
    reported      no data sheet states it: the order of magnitude that microbenchmarks report
    measured      on the machines named beside it
    guess         nobody has measured it

Nothing here is read from a clock, so that the same device always gives the same search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from prism.errors import UsageError
from prism.program.nodes import DType

KIB = 1024
"""Bytes (by definition)."""
MIB = 1024 * KIB
"""Bytes (by definition)."""

MATRIX_OPERATION = 1 / 32
"""An operation of a matrix product on matrix units, of which a multiply-add is two, in vector multiply-adds.

Matrix units are about 16 times as fast (data sheet, roughly: A100 16, L40S 4, H200 15, B200 30).
"""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a device computes on tiles; the defaults are a GPU's."""

    # The least elements of a matrix product's operand in each dimension. Matrix units take 16 (data sheet).
    dot: int = 16
    tile: int = 8_192  # the longest useful tile dimension: a longer one only costs registers (guess)
    loop_tile: int = 16  # the shortest useful tile of a loop: below, its trips cost more than its work (guess)
    # The most elements of one tile: so many of four bytes fill a multiprocessor's registers (data sheet).
    elements: int = 65_536
    live: int | None = None  # the most elements that may be live together; None for what a block's registers hold
    parts: int = 128  # the most parts of a split (guess)
    unrolled: bool = True  # whether products in full precision are unrolled, operands in registers
    scans: bool = True  # whether the elements of a tile can be summed up along one of its dimensions
    held: str = "registers"  # what holds live values, as constraints are named
    memory: str = "register file"  # the same in full


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """A GPU's processor; data sheet."""

    shared_bytes: int  # shared memory
    hertz: float  # its clock, boosted, cycles a second
    registers: int = 65_536  # 32-bit registers
    registers_per_thread: int = 255  # the most of one thread
    threads: int = 2048  # resident threads
    blocks: int = 32  # resident blocks
    # Whether groups of warps multiply matrices that lie in shared memory, and boxes of tensors are copied by
    # descriptors: NVIDIA's GPUs from Hopper on.
    warp_groups: bool = False

    @property
    def warps(self) -> int:
        """Resident warps."""
        return self.threads // 32


@dataclass(frozen=True, slots=True)
class Core:
    """A CPU's processor, as the machine describes it."""

    vector_bytes: int  # of a vector register
    l1_bytes: int  # first-level data cache
    l2_bytes: int  # second-level cache
    l2_bandwidth_bytes_s: float  # of the second-level cache
    bf16_speed: float = 1.0  # how many products of bfloat16 it makes in the time of one of float32
    int8_speed: float = 1.0  # the same of bytes
    # Of float32, where tiles multiply the three bfloat16 values that one is the sum of; 1 where none do.
    parts_speed: float = 1.0

    @property
    def lanes(self) -> int:
        """float32 elements of a vector register."""
        return max(1, self.vector_bytes // 4)


@dataclass(frozen=True, slots=True)
class Device:
    """What kernels run on."""

    name: str  # the product
    target: str  # what is compiled for, `sm_90` or `cpu`, and what tuned configurations are called by in modules
    processor: Multiprocessor | Core  # what runs programs, and what it can do
    processors: int  # how many of them: multiprocessors, or cores
    bandwidth_bytes_s: float  # of the memory, bytes a second
    cache_bytes: int  # the cache that all processors share: a GPU's L2, a CPU's last level
    cache_bandwidth_bytes_s: float  # its bandwidth
    multiply_adds_s: float  # float32 multiply-adds a second of all vector units
    half_dot_flops: float  # operations a second of matrix products of float16 and bfloat16 with float32 accumulation
    double_dot_flops: float  # of those of float64
    launch_overhead_s: float  # from the end of one launch to the start of the next
    memory_latency_s: float  # a load from memory, unloaded; 0 where caches fetch ahead
    # The most memory that the operands of a loop's products may take: a block's shared memory, a core's second-level
    # cache.
    shared_limit_bytes: int
    matrix_operation: float = MATRIX_OPERATION  # what an operation of a matrix product weighs, in vector multiply-adds
    library: bool = True  # whether a vendor's library computes launches that are plain matrix products
    tiles: Tiles = Tiles()  # how it computes on tiles

    def of_size(self, processors: int, bandwidth_bytes_s: float) -> Device:
        """A device like it with so many processors, whose rates together are in proportion, and another memory.

        `bandwidth_bytes_s` is of the memory; its own where that is 0.
        """
        share = processors / self.processors
        return replace(
            self,
            processors=processors,
            bandwidth_bytes_s=bandwidth_bytes_s or self.bandwidth_bytes_s,
            multiply_adds_s=self.multiply_adds_s * share,
            half_dot_flops=self.half_dot_flops * share,
            double_dot_flops=self.double_dot_flops * share,
        )

    @property
    def multiprocessor(self) -> Multiprocessor:
        """The processor of a GPU."""
        assert isinstance(self.processor, Multiprocessor)
        return self.processor

    @property
    def core(self) -> Core:
        """The processor of a CPU."""
        assert isinstance(self.processor, Core)
        return self.processor

    @property
    def is_gpu(self) -> bool:
        """Whether launches have warps and pipeline stages."""
        return isinstance(self.processor, Multiprocessor)

    @property
    def descriptors(self) -> bool:
        """Whether it copies boxes of tensors by descriptors."""
        return self.is_gpu and self.multiprocessor.warp_groups

    def dot_flops(self, dtype: DType) -> float:
        """The rate of matrix products of that operand type, operations a second.

        float32 products are computed in full precision, which matrix units do not have.
        """
        match dtype:
            case DType.FLOAT16 | DType.BFLOAT16:
                return self.half_dot_flops
            case DType.FLOAT64:
                return self.double_dot_flops
            case _:
                return 2 * self.multiply_adds_s


# Peak rates, sizes and limits: data sheets. L2 bandwidth, latency and launch overhead: reported, but for the H200's L2,
# which is fitted to measured times (decision 199).

_A100 = Device(
    name="NVIDIA A100 80GB",
    target="sm_80",
    processor=Multiprocessor(shared_bytes=164 * KIB, hertz=1.41e9),
    processors=108,
    bandwidth_bytes_s=2.04e12,
    cache_bytes=40 * MIB,
    cache_bandwidth_bytes_s=5.1e12,
    multiply_adds_s=19.5e12 / 2,
    half_dot_flops=312e12,
    double_dot_flops=9.7e12,
    launch_overhead_s=2.5e-6,
    memory_latency_s=0.55e-6,
    shared_limit_bytes=163 * KIB,
)

_L40S = Device(
    name="NVIDIA L40S",
    target="sm_89",
    processor=Multiprocessor(shared_bytes=100 * KIB, hertz=2.52e9, threads=1536, blocks=24),
    processors=142,
    bandwidth_bytes_s=0.864e12,
    cache_bytes=96 * MIB,
    cache_bandwidth_bytes_s=5.0e12,
    multiply_adds_s=91.6e12 / 2,
    half_dot_flops=362e12,
    double_dot_flops=1.4e12,
    launch_overhead_s=2.5e-6,
    memory_latency_s=0.6e-6,
    shared_limit_bytes=99 * KIB,
)

_H200 = Device(
    name="NVIDIA H200",
    target="sm_90",
    processor=Multiprocessor(shared_bytes=228 * KIB, hertz=1.98e9, warp_groups=True),
    processors=132,
    bandwidth_bytes_s=4.8e12,
    cache_bytes=60 * MIB,
    cache_bandwidth_bytes_s=8.5e12,
    multiply_adds_s=67e12 / 2,
    half_dot_flops=989e12,
    double_dot_flops=34e12,
    launch_overhead_s=2.0e-6,
    memory_latency_s=0.65e-6,
    shared_limit_bytes=227 * KIB,
)

_B200 = Device(
    name="NVIDIA B200",
    target="sm_100",
    processor=Multiprocessor(shared_bytes=228 * KIB, hertz=1.98e9, warp_groups=True),
    processors=148,
    bandwidth_bytes_s=8.0e12,
    cache_bytes=126 * MIB,
    cache_bandwidth_bytes_s=20.0e12,
    multiply_adds_s=75e12 / 2,
    half_dot_flops=2250e12,
    double_dot_flops=37e12,
    launch_overhead_s=2.0e-6,
    memory_latency_s=0.7e-6,
    shared_limit_bytes=227 * KIB,
)

DEVICES: Mapping[str, Device] = MappingProxyType({d.target: d for d in (_A100, _L40S, _H200, _B200)})
SHARED_LIMIT_BYTES: Mapping[str, int] = MappingProxyType(
    {**{t: d.shared_limit_bytes for t, d in DEVICES.items()}, "gfx942": 64 * KIB}
)
"""Shared memory of a block on what kernels are compiled for, described here or not (data sheet)."""


def device(target: str) -> Device:
    """The GPU of a compilation target such as `sm_90`. Raises UsageError: the target is not known."""
    known = DEVICES.get(target)
    if known is None:
        raise UsageError(
            f"unknown target {target!r}",
            where="--target",
            why="no device is described for it",
            fix=f"use one of {', '.join(DEVICES)}, or cuda or cpu for what is here",
        )
    return known


# What no CPU reports: that of server cores of the last ten years.

CPU_HZ = 2.5e9
"""Cycles a second (guess)."""
FMA_PIPES = 2
"""Multiply-add instructions that a core starts in a cycle (data sheet, of most)."""
CORE_BANDWIDTH, SOCKET_BANDWIDTH = 14e9, 200e9
"""Bytes a second that one core draws from memory, and that all can draw together (reported)."""
LLC_BYTES_PER_CYCLE, L2_BYTES_PER_CYCLE = 12.0, 32.0
"""Bytes in a cycle and a core from the last-level and the second-level cache (reported)."""
BF16_PAIRS, BF16_TILES = 2.0, 16.0
"""Products of bfloat16 in the time of one of float32, where an instruction multiplies pairs, and where one multiplies
tiles (measured: AVX512-BF16 and AMX)."""
INT8_QUADS, INT8_TILES = 4.0, 16.0
"""The same of bytes, where an instruction multiplies four of them (measured: AVX512-VNNI and AMX)."""
PARTS_TILES = 2.0
"""The same of float32, where tiles of bfloat16 multiply its parts, besides what takes values apart (measured: AMX)."""
PARALLEL_REGION_S = 4e-6
"""From the end of one parallel region to the start of the next, and the call from Python (reported)."""
LEAST_LIVE = 4096
"""Elements that a processor's caches need at least for tiles to be worth anything (guess)."""


def multicore(
    name: str, cores: int, vector_bytes: int, l1_bytes: int, l2_bytes: int, llc_bytes: int, bf16_speed: float = 1.0,
    int8_speed: float = 1.0, parts_speed: float = 1.0,
) -> Device:  # fmt: skip
    """A CPU, from what the machine says of itself.

    Tiles are cache blocks: one may be as short as one element, and all that live together fit in the second-level
    cache. A loop's tile is at least a vector long, where its axis is.

    Args:
        name: the product, with its cores and vector unit.
        cores: threads that kernels run on.
        vector_bytes: of a vector register.
        l1_bytes: data cache of a core.
        l2_bytes: second-level cache of a core.
        llc_bytes: the last-level cache, of all cores.
        bf16_speed: how many products of bfloat16 a core makes in the time of one of float32.
        int8_speed: the same of bytes.
        parts_speed: of float32, by the bfloat16 values that one is the sum of.
    """
    core = Core(vector_bytes, l1_bytes, l2_bytes, CPU_HZ * L2_BYTES_PER_CYCLE, bf16_speed, int8_speed, parts_speed)
    live = max(LEAST_LIVE, l2_bytes // 4)
    parts = 4
    while parts < 2 * cores:
        parts *= 2
    multiply_adds = cores * CPU_HZ * core.lanes * FMA_PIPES
    return Device(
        name=name,
        target="cpu",
        processor=core,
        processors=cores,
        bandwidth_bytes_s=min(cores * CORE_BANDWIDTH, SOCKET_BANDWIDTH),
        cache_bytes=llc_bytes,
        cache_bandwidth_bytes_s=cores * CPU_HZ * LLC_BYTES_PER_CYCLE,
        multiply_adds_s=multiply_adds,
        half_dot_flops=2 * multiply_adds,
        double_dot_flops=2 * multiply_adds,
        launch_overhead_s=PARALLEL_REGION_S,
        memory_latency_s=0.0,
        shared_limit_bytes=l2_bytes,
        # There is no matrix unit: two operations are one multiply-add.
        matrix_operation=0.5,
        library=False,
        tiles=Tiles(
            dot=1,
            tile=1 << 14,
            loop_tile=core.lanes,
            elements=live,
            live=live,
            parts=parts,
            unrolled=False,
            scans=False,
            held="cache",
            memory="second-level cache",
        ),
    )
