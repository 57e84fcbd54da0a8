"""A model run part by part: the sizes at the borders of its islands, and the least that what stays takes by itself.

onnxruntime runs a model as one: pointwise operators within the convolutions before them, convolutions in a layout of
their own. An island that is run by kernels cuts it in two, and both that and the layout are lost. So what stays may
take as long without the islands as the model does with them: then no kernels gain anything, however fast they are, and
none are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic, thread_time
from typing import Any

import numpy as np

from prism.cost.device import Device
from prism.cost.roofline import passed
from prism.errors import VerificationError
from prism.frontend.onnx.islands import Cut, Part
from prism.platforms.stock import NotRunError, Stock
from prism.process.deadline import Deadline
from prism.program.extents import is_static
from prism.report.units import duration

CALLS = 3
"""Calls of a part; the fastest counts."""
GAIN = 0.05
"""What islands of the same operators have to be able to gain by themselves, a share of the model's time: as far apart
are two measurements of one thing on a machine that others use (measured)."""
ASKED = 0.25
"""The share of the time which asking islands by their operators may take, where all together gain nothing."""


@dataclass(slots=True)
class InParts:
    """A model on one draw of its inputs."""

    parts: Cut
    whole: Callable[[], Stock]  # opens the model, to run on one thread
    device: Device
    where: str  # the model, for errors
    values: dict[str, Any]  # what passes between parts, by name; at first the inputs
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)  # by island, the values of its symbols

    def least(self, chosen: Iterable[str]) -> float:
        """The least that the model takes with kernels of these islands, seconds of a processor, on one thread.

        That is what stays takes, and what a core takes to read and to write what kernels do, weights left out.

        Raises:
            VerificationError: a part does not run.
        """
        seconds = 0.0
        for part in self.parts.parts(frozenset(chosen)):
            if part.island:
                self._made(part)
                values = (self.values[p.name] for p in (*part.inputs, *part.outputs))
                seconds += passed(self.device, sum(v.nbytes for v in values if isinstance(v, np.ndarray)))
            else:
                seconds += self._timed(part)
        return seconds

    def gainless(self, time: Deadline) -> dict[str, str]:
        """Why nothing is gained, for each island of which that is so however fast its kernels are, by name.

        All islands are run, once at least. Those of the same operators are asked together; where asking takes long,
        what was not asked may gain.
        """
        begun = monotonic()
        least = self.least(i.name for i in self.parts.islands)
        if not self.parts.kept:
            return {}
        each = monotonic() - begun
        stock, takes = self.whole(), [p.name for p in self.parts.inputs]
        whole = fastest(lambda: stock.run(self.values, takes))
        if least < whole:
            return {}
        alike: dict[tuple[str, ...], list[str]] = {}
        for island in self.parts.islands:
            alike.setdefault(tuple(self.parts.operators(island)), []).append(island.name)
        found: dict[str, str] = {}
        until = time.part(ASKED)
        for names in sorted(alike.values(), key=len, reverse=True):
            if until.left < each:
                break
            one = self.least(names) if len(names) < len(self.parts.islands) else least
            if one >= (1 - GAIN) * whole:
                why = f"what is left takes {duration(one)} without it, and the model {duration(whole)}, on one thread"
                found |= dict.fromkeys(names, why)
        return found

    def _made(self, part: Part) -> None:
        """Run an island for what it makes, unless that is known."""
        if part.name not in self.sizes:
            shapes = [(p.shape or (), self.values[p.name].shape) for p in part.inputs if p.shape is not None]
            self.sizes[part.name] = {
                str(e): int(n) for s, known in shapes for e, n in zip(s, known, strict=True) if not is_static(e)
            }
        if not all(p.name in self.values for p in part.outputs):
            self._run(part, Stock(part.data, f"{self.where}, {part.name}", optimised=False))

    def _timed(self, part: Part) -> float:
        stock = Stock(part.data, f"{self.where}, {part.name}", threads=1)
        return fastest(lambda: self._run(part, stock))

    def _run(self, part: Part, stock: Stock) -> None:
        try:
            self.values |= stock.run(self.values, [p.name for p in part.inputs])
        except NotRunError as error:
            raise VerificationError(
                "the model cannot be run in parts",
                where=f"{self.where}, {part.name}",
                why=str(error),
                fix="report it with the model: this is a bug in prism",
            ) from None


def fastest(call: Callable[[], object]) -> float:
    """What a call takes of this thread's processor, seconds: the least of some, as others' work slows it down."""
    taken = []
    for _ in range(CALLS):
        start = thread_time()
        call()
        taken.append(thread_time() - start)
    return min(taken)
