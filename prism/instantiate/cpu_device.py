"""A CPU as the search, the constraints and the cost model see it: numbers derived from what the machine says of itself.

Nothing here is measured, so that the same machine always gives the same search. Rates that no CPU reports (how many
bytes a core draws from memory, how many multiply-adds it starts a cycle) are those of server cores of the last ten
years; what a kernel really takes is timed.
"""

from __future__ import annotations

from dataclasses import dataclass

from prism.program.nodes import DType
from prism.program.region_cost import Machine
from prism.sgraph.constraints import TileBounds
from prism.sgraph.prune import Rates

# Cycles a second where the machine does not tell.
DEFAULT_HZ = 2.5e9
# Multiply-add instructions that a core starts in a cycle.
FMA_PIPES = 2
# Bytes a second that one core draws from memory, and that all can draw together.
CORE_BANDWIDTH = 14e9
SOCKET_BANDWIDTH = 200e9
# Bytes in a cycle and a core from the caches.
LLC_BYTES_PER_CYCLE = 12.0
L2_BYTES_PER_CYCLE = 32.0
# From the end of one parallel region to the start of the next, and the call from Python.
REGION_S = 4e-6
# Elements that a processor's caches need at least for tiles to be worth anything.
LEAST_LIVE = 4096


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """A CPU as data; also the `Limits` of the constraints.

    Attributes:
        name: the product, with its cores and vector unit.
        cores: threads that kernels run on.
        vector_bytes: of a vector register.
        l1_bytes: data cache of a core.
        l2_bytes: second-level cache of a core.
        llc_bytes: the last-level cache, of all cores.
        hz: cycles a second.
        bf16_dot: whether the vector unit multiplies bfloat16 pairs into float32.
    """

    name: str
    cores: int
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    llc_bytes: int
    hz: float = DEFAULT_HZ
    bf16_dot: bool = False

    @property
    def key(self) -> str:
        """What configurations that are tuned for it are called by."""
        return "cpu"

    @property
    def lanes(self) -> int:
        """float32 elements of a vector register."""
        return max(1, self.vector_bytes // 4)

    @property
    def bandwidth_bytes_s(self) -> float:
        """Memory bandwidth, bytes a second."""
        return min(self.cores * CORE_BANDWIDTH, SOCKET_BANDWIDTH)

    @property
    def llc_bandwidth_bytes_s(self) -> float:
        """Bandwidth of the last-level cache, bytes a second."""
        return self.cores * self.hz * LLC_BYTES_PER_CYCLE

    @property
    def l2_bandwidth_bytes_s(self) -> float:
        """Bandwidth of all second-level caches, bytes a second."""
        return self.cores * self.hz * L2_BYTES_PER_CYCLE

    @property
    def multiply_adds_s(self) -> float:
        """float32 multiply-adds a second of all cores."""
        return self.cores * self.hz * self.lanes * FMA_PIPES

    @property
    def launch_overhead_s(self) -> float:
        """Seconds of a launch."""
        return REGION_S

    @property
    def shared_limit_bytes(self) -> int:
        """What the operands of a loop's products may take: the second-level cache."""
        return self.l2_bytes

    @property
    def registers_per_sm(self) -> int:
        """Elements that are live together at most; see `tile_bounds`."""
        return self._live

    @property
    def _live(self) -> int:
        return max(LEAST_LIVE, self.l2_bytes // 4)

    @property
    def tile_bounds(self) -> TileBounds:
        """Tiles are cache blocks: one may be as short as one element, and all that live together fit in L2.

        A loop's tile is at least a vector long, where its axis is.
        """
        parts = 4
        while parts < 2 * self.cores:
            parts *= 2
        return TileBounds(
            dot=1,
            tile=1 << 14,
            loop_tile=self.lanes,
            elements=self._live,
            live=self._live,
            parts=parts,
            unrolled=False,
            scans=False,
            held="cache",
            memory="second-level cache",
        )

    @property
    def rates(self) -> Rates:
        """As the generator ranks by it: there is no matrix unit, so two operations are one multiply-add."""
        return Rates(self.bandwidth_bytes_s, self.multiply_adds_s, self.launch_overhead_s, self.cores, 0.5)

    def machine(self, dtype: DType) -> Machine:
        """As the partitioner sees it; products of all types run at the same rate."""
        return Machine(
            self.bandwidth_bytes_s,
            self.llc_bandwidth_bytes_s,
            2 * self.multiply_adds_s,
            self.multiply_adds_s,
            self.launch_overhead_s,
            self.cores,
        )
