"""The devices that kernels are estimated and compiled for: their limits and peak rates.

Peak rates are the vendor's data sheets', dense (without sparsity); L2 bandwidth, latency and launch overhead, which no
data sheet states, are orders of magnitude as microbenchmarks report them. What a kernel reaches of all this is the
model's business (`model.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from prism.errors import UsageError
from prism.program.nodes import DType
from prism.program.region_cost import Machine
from prism.sgraph.prune import Rates

KIB = 1024
MIB = 1024 * KIB


class Target(Protocol):
    """What search and report need to know of a device, whatever kind it is of; `Limits` of the constraints, too."""

    @property
    def name(self) -> str:
        """The product."""
        ...

    @property
    def key(self) -> str:
        """What configurations that are tuned for it are called by in emitted modules."""
        ...

    @property
    def shared_limit_bytes(self) -> int:
        """The most memory that the operands of a loop's products may take."""
        ...

    @property
    def registers_per_sm(self) -> int:
        """32-bit registers that programs share."""
        ...

    @property
    def rates(self) -> Rates:
        """As the generator ranks by it."""
        ...

    def machine(self, dtype: DType) -> Machine:
        """As the partitioner sees it, for matrix products of that type."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as data.

    Attributes:
        name: the product.
        sm: the compilation target, as `sm_90`.
        sms: multiprocessors.
        shared_limit_bytes: the most shared memory of one block.
        shared_per_sm_bytes: shared memory of a multiprocessor.
        registers_per_sm: 32-bit registers of a multiprocessor.
        registers_per_thread: the most of one thread.
        threads_per_sm: resident threads of a multiprocessor.
        blocks_per_sm: resident blocks of a multiprocessor.
        bandwidth_bytes_s: DRAM bandwidth, bytes a second.
        l2_bytes: L2 cache.
        l2_bandwidth_bytes_s: L2 bandwidth, bytes a second.
        fp32_flops: vector units, floating-point operations a second (two a multiply-add).
        fp16_dot_flops: matrix units, float16 and bfloat16 with float32 accumulation.
        tf32_dot_flops: matrix units, TF32.
        fp64_flops: vector units, float64.
        memory_latency_s: a load from DRAM, unloaded.
        launch_overhead_s: from the end of one kernel to the start of the next in one stream.
    """

    name: str
    sm: str
    sms: int
    shared_limit_bytes: int
    shared_per_sm_bytes: int
    registers_per_sm: int
    registers_per_thread: int
    threads_per_sm: int
    blocks_per_sm: int
    bandwidth_bytes_s: float
    l2_bytes: int
    l2_bandwidth_bytes_s: float
    fp32_flops: float
    fp16_dot_flops: float
    tf32_dot_flops: float
    fp64_flops: float
    memory_latency_s: float
    launch_overhead_s: float

    @property
    def key(self) -> str:
        """The compilation target."""
        return self.sm

    @property
    def rates(self) -> Rates:
        """As the generator ranks by it."""
        return Rates(self.bandwidth_bytes_s, self.fp32_flops / 2, self.launch_overhead_s, self.sms, library=True)

    def machine(self, dtype: DType) -> Machine:
        """As the partitioner sees it, for matrix products of that type."""
        return Machine(
            self.bandwidth_bytes_s,
            self.l2_bandwidth_bytes_s,
            self.dot_flops(dtype),
            self.fp32_flops / 2,
            self.launch_overhead_s,
            self.sms,
        )

    @property
    def descriptors(self) -> bool:
        """Whether it copies boxes of tensors by descriptors: NVIDIA's GPUs from Hopper on."""
        return self.warp_groups

    @property
    def warp_groups(self) -> bool:
        """Whether groups of warps multiply matrices that lie in shared memory: NVIDIA's GPUs from Hopper on."""
        return self.sm.startswith("sm_") and int(self.sm.removeprefix("sm_")) >= 90

    @property
    def warps_per_sm(self) -> int:
        """Resident warps of a multiprocessor."""
        return self.threads_per_sm // 32

    def dot_flops(self, dtype: DType) -> float:
        """The rate of matrix products of that operand type, operations a second.

        float32 products are computed in full precision, which the matrix units do not have.
        """
        match dtype:
            case DType.FLOAT16 | DType.BFLOAT16:
                return self.fp16_dot_flops
            case DType.FLOAT64:
                return self.fp64_flops
            case _:
                return self.fp32_flops


_A100 = Device(
    name="NVIDIA A100 80GB",
    sm="sm_80",
    sms=108,
    shared_limit_bytes=163 * KIB,
    shared_per_sm_bytes=164 * KIB,
    registers_per_sm=65_536,
    registers_per_thread=255,
    threads_per_sm=2048,
    blocks_per_sm=32,
    bandwidth_bytes_s=2.04e12,
    l2_bytes=40 * MIB,
    l2_bandwidth_bytes_s=5.1e12,
    fp32_flops=19.5e12,
    fp16_dot_flops=312e12,
    tf32_dot_flops=156e12,
    fp64_flops=9.7e12,
    memory_latency_s=0.55e-6,
    launch_overhead_s=2.5e-6,
)

_L40S = Device(
    name="NVIDIA L40S",
    sm="sm_89",
    sms=142,
    shared_limit_bytes=99 * KIB,
    shared_per_sm_bytes=100 * KIB,
    registers_per_sm=65_536,
    registers_per_thread=255,
    threads_per_sm=1536,
    blocks_per_sm=24,
    bandwidth_bytes_s=0.864e12,
    l2_bytes=96 * MIB,
    l2_bandwidth_bytes_s=5.0e12,
    fp32_flops=91.6e12,
    fp16_dot_flops=362e12,
    tf32_dot_flops=183e12,
    fp64_flops=1.4e12,
    memory_latency_s=0.6e-6,
    launch_overhead_s=2.5e-6,
)

_H200 = Device(
    name="NVIDIA H200",
    sm="sm_90",
    sms=132,
    shared_limit_bytes=227 * KIB,
    shared_per_sm_bytes=228 * KIB,
    registers_per_sm=65_536,
    registers_per_thread=255,
    threads_per_sm=2048,
    blocks_per_sm=32,
    bandwidth_bytes_s=4.8e12,
    l2_bytes=60 * MIB,
    l2_bandwidth_bytes_s=9.0e12,
    fp32_flops=67e12,
    fp16_dot_flops=989e12,
    tf32_dot_flops=495e12,
    fp64_flops=34e12,
    memory_latency_s=0.65e-6,
    launch_overhead_s=2.0e-6,
)

_B200 = Device(
    name="NVIDIA B200",
    sm="sm_100",
    sms=148,
    shared_limit_bytes=227 * KIB,
    shared_per_sm_bytes=228 * KIB,
    registers_per_sm=65_536,
    registers_per_thread=255,
    threads_per_sm=2048,
    blocks_per_sm=32,
    bandwidth_bytes_s=8.0e12,
    l2_bytes=126 * MIB,
    l2_bandwidth_bytes_s=20.0e12,
    fp32_flops=75e12,
    fp16_dot_flops=2250e12,
    tf32_dot_flops=1125e12,
    fp64_flops=37e12,
    memory_latency_s=0.7e-6,
    launch_overhead_s=2.0e-6,
)

DEVICES: Mapping[str, Device] = MappingProxyType({d.sm: d for d in (_A100, _L40S, _H200, _B200)})


def device(target: str) -> Device:
    """The device description of a compilation target such as `sm_90`.

    Raises:
        UsageError: the target is not known.
    """
    known = DEVICES.get(target)
    if known is None:
        raise UsageError(
            f"unknown target {target!r}",
            where="--target",
            why="no device is described for it",
            fix=f"use one of {', '.join(DEVICES)}, or cuda or cpu for what is here",
        )
    return known
