"""Neighbouring regions as one: which pairs are worth a search together, and what the program is cut into then.

The partitioner cuts by an estimate of regions that are one kernel each (partition.py). Once the regions have been
searched it is known what they take. Two of which one reads what the other makes can save what goes through memory
between them, and a launch; where that is a considerable share of what they take, they are worth a search as one. A
pair must be able to run as one: nothing else may need the first and be needed by the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prism.cost.device import Device
from prism.cost.regions import bytes_of
from prism.cost.roofline import traffic
from prism.generate.partition import affine, ordered, searchable
from prism.program.nodes import Program
from prism.program.region import Canonical, Region, subprogram

WORTH = 0.1
"""Neighbours are worth a search as one where what is between them is this share of the time that they take."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two regions as one."""

    first: int  # place of the region that the other reads
    second: int  # place of the other
    region: Region  # both
    canonical: Canonical  # it without names
    saved: float  # seconds that the traffic between them and a launch take


def pairs(program: Program, regions: Sequence[Region], taken: Sequence[float], device: Device) -> list[Pair]:
    """The pairs of neighbours that are worth a search as one, in the order of their places.

    The program has no loops, and the regions are in an order in which they can run; each takes so many seconds.
    """
    maker = {t: n for n, r in enumerate(regions) for t in r.outputs}
    needs = [{maker[t] for t in r.inputs if t in maker} for r in regions]
    readers: dict[str, set[int]] = {}
    for n, r in enumerate(regions):
        for t in r.inputs:
            readers.setdefault(t, set()).add(n)
    found = []
    for second, region in enumerate(regions):
        for first in sorted(needs[second]):
            made = (*regions[first].outputs, *region.outputs)
            kept = {t for t in made if t in program.outputs or readers.get(t, set()) - {first, second}}
            saved = device.launch_overhead_s
            for t in regions[first].outputs:
                times = (t in region.inputs) + (t not in kept)
                saved += times * traffic(device, bytes_of(program.tensor(t), program.hints))
            if saved < WORTH * (taken[first] + taken[second]) or _through(first, second, needs):
                continue
            part = subprogram(program, region.program.name, [t for t in made if t in kept], maker.keys() - set(made))
            both = Region(part, tuple(dict.fromkeys((*regions[first].roots, *region.roots))), region.loop)
            if searchable(part, device) and len(affine(both)) == 1:
                found.append(Pair(first, second, both, both.canonical(), saved))
    return found


def merged(program: Program, regions: Sequence[Region], chosen: Sequence[Pair]) -> tuple[Region, ...]:
    """The regions with these pairs as one region each, but for those that could not run beside the ones before."""
    found, taken = tuple(regions), list[Pair]()
    for pair in chosen:
        those = [*taken, pair]
        gone = [n for p in those for n in (p.first, p.second)]
        left = (r for n, r in enumerate(regions) if n not in gone)
        now = ordered([*left, *(p.region for p in those)], program)
        if len(set(gone)) == len(gone) and len(now) == len(regions) - len(those):
            found, taken = now, those
    return found


def _through(first: int, second: int, needs: Sequence[set[int]]) -> bool:
    """Whether something else needs the first and is needed by the second."""
    seen: set[int] = set()
    stack = [n for n in needs[second] if n != first]
    while stack:
        n = stack.pop()
        if n == first:
            return True
        # What comes before the first does not need it.
        if n > first and n not in seen:
            seen.add(n)
            stack += needs[n]
    return False
