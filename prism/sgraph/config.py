"""Configurations: an sGraph's symbols and its launches' options, assigned; and what a compiler says of the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Config:
    """One assignment of an sGraph's symbols and of the options of its launches.

    A launch is called as its kernel, or where it is of several kernels as `SGraph.launches` says.

    Attributes:
        symbols: symbol name to value, for every symbol of the sGraph.
        warps: launch name to number of warps.
        stages: launch name to number of software-pipelining stages.
        library: names of the launches that the vendor's library computes (`prism.sgraph.products`); they have
            neither warps nor stages, and their symbols count for nothing.
        folded: names of the second stages that their splits' own programs do, the last of each tile
            (`prism.sgraph.folding`); they are no launches then, have neither warps nor stages, and their tiles are
            the splits'.
        descriptors: names of the launches whose loads are by tensor descriptors, where these and the tensors at hand
            allow it (`prism.backends.triton.tensor_descriptors`).
        streams: launch name to the stream, from 1, of those that a captured graph has beside the first stream
            (`prism.cost.streams`).
        persistent: launch name to programs on a multiprocessor, of those whose programs take tile after tile
            (`prism.cost.persistent`).
    """

    symbols: Mapping[str, int]
    warps: Mapping[str, int]
    stages: Mapping[str, int]
    library: frozenset[str] = frozenset()
    folded: frozenset[str] = frozenset()
    descriptors: frozenset[str] = frozenset()
    streams: Mapping[str, int] = field(default_factory=dict)
    persistent: Mapping[str, int] = field(default_factory=dict)

    def key(self) -> str:
        """A canonical text: equal for equal configurations."""
        parts = [f"{k}={v}" for k, v in sorted(self.symbols.items())]
        parts += [f"warps.{k}={v}" for k, v in sorted(self.warps.items())]
        parts += [f"stages.{k}={v}" for k, v in sorted(self.stages.items())]
        parts += [f"library.{k}" for k in sorted(self.library)]
        parts += [f"folded.{k}" for k in sorted(self.folded)]
        parts += [f"descriptors.{k}" for k in sorted(self.descriptors)]
        parts += [f"streams.{k}={v}" for k, v in sorted(self.streams.items())]
        parts += [f"persistent.{k}={v}" for k, v in sorted(self.persistent.items())]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one launch takes under one configuration; on a CPU its working set and threads, and zeros.

    Of a library's product nothing is known: all are 0.

    Attributes:
        kernel: its name.
        shared: shared memory, bytes per block; on a CPU the bytes of a program's tiles that are live together.
        registers: registers per thread; 0 when not known.
        spills: bytes of register spills per thread (stores plus loads).
        warps: warps per block; on a CPU threads.
    """

    kernel: str
    shared: int
    registers: int
    spills: int
    warps: int
