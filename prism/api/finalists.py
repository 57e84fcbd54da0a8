"""Finalists: which of the proved sGraphs are worth compiling, at which configurations, and their modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from prism.api.proofs import ProvedSGraph
from prism.api.records import formulas
from prism.api.region_search import SearchResult
from prism.backends.protocol import write_module
from prism.cost.model import CostModel
from prism.instantiate.options import Offered, Option, variants
from prism.instantiate.proposals import Point
from prism.instantiate.space import Space
from prism.instantiate.study import Best, Candidate, Estimator
from prism.platforms.platform import Platform
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph
from prism.sgraph.show import key

FINALISTS = 4
"""Proved sGraphs that are compiled, beside the one that is as written."""
CHALLENGED = 2
"""Finalists whose best points' variants are timed."""
ALIKE = 2
"""Finalists that cut the program in the same way."""
POINTS = 256
"""Configurations of a finalist that the study may choose from: the best by the cost model."""
MINOR = 0.25
"""A launch that takes less of the time than this is tuned by the cost model alone."""

Emit: TypeAlias = Callable[[int, SGraph, Sequence[Config], Sequence[Option]], Path]
"""Writes the module of the nth proved sGraph as its points and their variants need it."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """A proved sGraph with its module, its points, its cost model and its launches' options."""

    proved: ProvedSGraph
    candidate: Candidate
    model: CostModel
    options: tuple[Option, ...]

    def variants(self, offered: Offered, best: Best) -> tuple[Config, ...]:
        """What is offered then beside a point."""
        return variants(self.options, offered, best.config, self.model, best.resources)

    def beside(self, best: Best) -> list[Best]:
        """The variants of a point whose kernels are the same, so that nothing is compiled or checked anew."""
        made = self.variants(Offered.CHECKED, best)
        return [replace(best, config=c, seconds=self.model.seconds(c, best.resources)) for c in made]


def challengers(ranking: Sequence[Best], chosen: Sequence[Finalist]) -> list[Point]:
    """The variants of the fastest finalists' best points that are timed besides, once these are known."""
    best = ranking[:CHALLENGED]
    return [Point(b.candidate, config) for b in best for config in chosen[b.candidate].variants(Offered.TIMING, b)]


def finalists(
    proved: Sequence[ProvedSGraph],
    platform: Platform,
    hints: Mapping[str, int],
    emit: Emit,
    *,
    guesses: Mapping[str, int] | None = None,
    tried: Set[int] = frozenset(),
    alone: bool = False,
) -> dict[int, Finalist]:
    """The proved sGraphs that are worth compiling, by the cost model's best configuration, by their place.

    The one that computes every value as the model does is among those of the first call: rounding must not make all of
    them fail. Where hints are guesses, configurations are by what they take at `guesses`, too: each counts by what the
    best of its size takes. Those at the places `tried` are left out. `alone` is for what is as written and nothing
    else, be it tried or not.
    """
    ranked = []
    for n, p in enumerate(proved):
        if (n in tried and not alone) or (alone and not p.written):
            continue
        model = platform.model(p.sgraph, hints)
        space = Space(p.sgraph, platform.device, hints)
        best = space.points_ranked(model, 1)
        if best:
            ranked.append((best[0][1].seconds, n, p, model, space))
    ranked.sort(key=lambda t: t[:2])
    made: dict[int, Finalist] = {}
    cuts: Counter[tuple[str, ...]] = Counter()
    for least, n, p, model, space in ranked:
        # Variants of one way to cut the program are alike: others get their chance, too.
        cut = tuple(k.name for k in p.sgraph.kernels)
        cuts[cut] += 1
        if (cuts[cut] > ALIKE or len(made) >= FINALISTS) and not p.written:
            continue
        also: tuple[CostModel, float] | None = None
        estimate: Estimator = model.seconds
        if guesses is not None and guesses != hints:
            there = platform.model(p.sgraph, guesses)
            for _, other in space.points_ranked(there, 1):
                also = there, least / other.seconds
                estimate = _at_both(model, *also)
        points = space.points_ranked(model, POINTS, MINOR, also)
        most = platform.worst * min(e.seconds for _, e in points)
        configs = space.varied([c for c, e in points if e.seconds <= most], model)
        path = emit(n, p.sgraph, configs, space.options)
        made[n] = Finalist(p, Candidate(key(p.sgraph), p.sgraph, path, configs, estimate), model, space.options)
    return made


def _at_both(model: CostModel, there: CostModel, weight: float) -> Estimator:
    """Seconds by a model, and so many times those by another, halved: as if both were of the first one's size."""

    def seconds(config: Config, resources: Sequence[Resources] = ()) -> float:
        # What a compiler said of launches is so at any size.
        return (model.seconds(config, resources) + weight * there.seconds(config, resources)) / 2

    return seconds


def formula_of(found: SearchResult) -> str:
    """What was searched, as emitted modules' docstrings have it."""
    return "\n".join(formulas(found).values())


def emitting(folder: Path, formula: str, platform: Platform, suffix: str) -> Emit:
    """Writes the modules of finalists, each to a folder of its own."""

    def emit(n: int, sgraph: SGraph, points: Sequence[Config], options: Sequence[Option]) -> Path:
        return emitted(folder / f"candidate_{n}{suffix}", sgraph, formula, platform, points, options)

    return emit


def emitted(
    folder: Path,
    sgraph: SGraph,
    formula: str,
    platform: Platform,
    points: Sequence[Config],
    options: Sequence[Option],
) -> Path:
    """The sGraph's module, written to a folder of its own, as its points and their variants need it.

    What is a column of the space is in every module.
    """
    folder.mkdir()
    beside = {o.name for o in options if o.offered is not Offered.SPACE}
    forms = [c for c in points[1:] if not beside.isdisjoint(c.options)]
    for o in options if platform.timed else ():
        if o.offered in (Offered.STUDY, Offered.TIMING) and o.forms():
            forms.append(points[0].having(**{o.name: dict.fromkeys(o.forms(), 1) if o.numbered else o.forms()}))
    configs = {platform.device.target: [points[0], *forms]}
    return write_module(platform.backend.emit(sgraph, formula=formula, configs=configs), folder / "kernels.py")
