"""The fastest trials of a study, timed again, interleaved: which one was really the fastest.

A study times each point by itself, seconds or minutes apart, on a machine whose clocks and neighbours change; the least
of many noisy times is more luck than merit. The leaders therefore meet once more in one run, in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from prism.instantiate.measure import Contender, Measuring
from prism.instantiate.proposals import Point
from prism.instantiate.study import Best, Candidate, Outcome, Trial, TuneResult, leading
from prism.sgraph.config import Config

LEADERS = 8
"""Trials that are timed again, at most."""
WITHIN = 1.5
"""How many times the least time a trial may have taken to be timed again."""
REPEATS = 12
"""Samples of each."""


def rematch(found: TuneResult, candidates: Sequence[Candidate], measuring: Measuring) -> TuneResult:
    """The result with its ranking by the second timing; what was not timed again comes after what was.

    Args:
        found: what a study found; its seconds are measured.
        candidates: the study's.
        measuring: what timed its trials.
    """
    leaders = _leaders(found.trials)
    if len(leaders) < 2:
        return found
    contenders = []
    for n, t in enumerate(leaders):
        c = candidates[t.point.candidate]
        contenders.append(Contender(str(n), c.module, c.sgraph, t.point.config))
    again = leading(
        Best(t.point.candidate, t.point.config, measuring.rank(timed.measurement), t.outcome.resources)
        for t, timed in zip(leaders, measuring.meet(contenders, REPEATS), strict=True)
        if timed.measurement is not None
    )
    met = {b.candidate for b in again}
    return replace(found, ranking=(*again, *(b for b in found.ranking if b.candidate not in met)))


def challenged(
    found: TuneResult,
    candidates: Sequence[Candidate],
    evaluate: Callable[[Sequence[tuple[Candidate, Config]]], Iterable[Outcome]],
    points: Sequence[Point],
) -> TuneResult:
    """The result with variants of the fastest candidates' best points as trials besides.

    Args:
        found: what a study found.
        candidates: the study's.
        evaluate: turns points into outcomes as it did for the trials.
        points: the variants, which are in no space.
    """
    outcomes = evaluate([(candidates[p.candidate], p.config) for p in points])
    trials = [Trial(p, o) for p, o in zip(points, outcomes, strict=True)]
    timed = [
        Best(t.point.candidate, t.point.config, t.outcome.seconds, t.outcome.resources)
        for t in trials
        if t.outcome.seconds is not None
    ]
    return replace(
        found,
        trials=(*found.trials, *trials),
        ranking=leading([*found.ranking, *timed]),
        compiled=found.compiled + sum(bool(t.outcome.resources) for t in trials),
    )


def _leaders(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that may be the fastest, in order, each point once."""
    timed = sorted(
        (t for t in trials if t.outcome.seconds is not None),
        key=lambda t: (t.outcome.seconds, t.point.candidate, t.point.config.key()),
    )
    limit = WITHIN * (timed[0].outcome.seconds or 0.0) if timed else 0.0
    return [t for t in timed if (t.outcome.seconds or 0.0) <= limit][:LEADERS]
