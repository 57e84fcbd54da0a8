"""Independent launches on several streams of a captured graph: when all are done, and whether it pays.

A launch that fills the device gains nothing from another one beside it. Small ones do: each takes its launch overhead
and its waiting for memory while the other runs. Every launch asks for a share of the device, that is what it would add
to a launch which fills it (`LaunchModel.demand`), over what it takes alone; what runs at a time and asks for more than
all of it is slowed down alike. Nothing of it has been timed on a GPU.

Streams are chains of the order in which launches have to wait for each other; then launches are moved, one by one,
where that makes all end earlier, or fewer are aside for it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from prism.sgraph.launches import After, behind

STREAMS = "streams"
"""What configurations call it; the number is the stream, from 1, beside the first one."""
CROSSING_S = 1e-6
"""Waiting for a launch of another stream, beyond what the next one of the same stream waits, seconds (guess)."""
WORTH = 0.02
"""What several streams have to gain, as a part of the time on one (guess)."""
MOST_STREAMS = 4
"""Streams beside one another (guess)."""
SWEEPS = 2
"""How often each launch is placed anew (guess)."""
STEPS = 100_000
"""Launches that a sweep looks at: of programs of more than 158, the first ones alone are placed anew (guess)."""
LEAST_S = 1e-12
"""What counts as a difference, seconds (guess)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a launch takes alone, without its overhead, and its share of the device meanwhile, from 0 to 1."""

    seconds: float
    share: float


def finished(after: After, demands: Mapping[str, Demand], streams: Mapping[str, int], overhead: float) -> float:
    """Seconds until all launches are done.

    The launches are in order, with what each waits for. One on stream 0 has none; a stream runs its launches in order.
    `overhead` is what a launch takes after all that it waits for, seconds.
    """
    left = {name: demands[name].seconds for name in after}
    last: dict[int, str] = {}
    needs: dict[str, set[str]] = {}
    users: dict[str, list[str]] = {}
    for name in after:
        own = streams.get(name, 0)
        needs[name] = {*after[name], *([last[own]] if own in last else [])}
        for other in needs[name]:
            users.setdefault(other, []).append(name)
        last[own] = name
    missing = {name: len(others) for name, others in needs.items()}
    begins: dict[str, float] = {}  # of those that have not ended: one a stream at most
    ends: dict[str, float] = {}
    free = [name for name in after if not missing[name]]
    now = 0.0
    while len(ends) < len(after):
        for name in free:
            own = streams.get(name, 0)
            crossed = [ends[x] + (CROSSING_S if streams.get(x, 0) != own else 0.0) for x in needs[name]]
            # A stream's first launch waits for the fork.
            begins[name] = max(crossed, default=CROSSING_S if own else 0.0) + overhead
        free = []
        running = [n for n, begin in begins.items() if begin <= now]
        pace = 1.0 / max(1.0, math.fsum(demands[n].share for n in running))
        steps = [left[n] / pace for n in running] + [begin - now for begin in begins.values() if begin > now]
        step = min(steps)
        for n in running:
            left[n] = 0.0 if left[n] / pace <= step else left[n] - step * pace
        now += step
        for n in running:
            if left[n] == 0.0:
                ends[n] = now
                del begins[n]
                for user in users.get(n, ()):
                    missing[user] -= 1
                    free += [user] * (missing[user] == 0)
    # The first stream is joined by the others.
    return max([ends[n] + (CROSSING_S if streams.get(n, 0) else 0.0) for n in after], default=0.0)


def placed(after: After, demands: Mapping[str, Demand], overhead: float) -> dict[str, int]:
    """The streams of the launches that are not on the first one, where that is worth it; else none.

    `after` and `overhead` are as for `finished`.
    """
    streams = _chains(after, demands, overhead)

    def seconds(chosen: Mapping[str, int]) -> float:
        return finished(after, demands, chosen, overhead)

    best = seconds(streams)
    moves = STEPS // len(after) if after else 0
    for _ in range(SWEEPS):
        before = streams
        for name, to in itertools.islice(itertools.product(after, range(MOST_STREAMS)), moves):
            other = {n: s for n, s in {**streams, name: to}.items() if s}
            found = seconds(other) if other != streams else math.inf
            # Fewer launches aside, where that costs nothing.
            if found < best - LEAST_S or (found <= best + LEAST_S and len(other) < len(streams)):
                streams, best = other, min(found, best)
        if streams == before:
            break
    return streams if best < (1.0 - WORTH) * seconds({}) else {}


def _chains(after: After, demands: Mapping[str, Demand], overhead: float) -> dict[str, int]:
    """The streams of chains: a launch goes on with the chain of the last launch that it waits for, if that is its end.

    Else with another one that ends in what it waits for, directly or not, or with a new one. What ends last is on the
    first stream.
    """
    chains: list[list[str]] = []
    places = {name: n for n, name in enumerate(after)}
    earlier = behind(after)
    ends: dict[str, float] = {}
    for name, direct in after.items():
        ends[name] = max((ends[x] for x in direct), default=0.0) + overhead + demands[name].seconds
        fits = [c for c in chains if places[c[-1]] in earlier[name]]
        if fits:
            max(fits, key=lambda c: (c[-1] in direct, ends[c[-1]])).append(name)
        elif len(chains) < MOST_STREAMS:
            chains.append([name])
        else:
            # It waits for nothing of that chain, but for its stream.
            chain = min(chains, key=lambda c: ends[c[-1]])
            ends[name] = max(ends[name], ends[chain[-1]] + overhead + demands[name].seconds)
            chain.append(name)
    chains.sort(key=lambda c: -ends[c[-1]])
    return {name: n for n, chain in enumerate(chains) for name in chain if n}
