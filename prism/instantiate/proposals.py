"""Which points to try next: Optuna's TPE over (which sGraph, its symbols, warps, stages), kept to feasible new points.

A proposal is a pure function of the trials so far and of the seed: each call builds a study in memory from them,
asks, and moves what it is told to the nearest point that is feasible and new (TPE repeats a fifth to a third of its
points, and knows no constraint).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prism.sgraph.config import Config

if TYPE_CHECKING:
    import optuna

WHICH = "sgraph"
"""The parameter that chooses the sGraph."""


@dataclass(frozen=True, slots=True)
class Point:
    """A candidate, by its place in the sequence that was given, under one of its configurations."""

    candidate: int
    config: Config


def _dimensions(config: Config, launches: Sequence[str], options: Sequence[str]) -> dict[str, int]:
    found = {f"symbols.{k}": v for k, v in sorted(config.symbols.items())}
    chosen = {option: config.numbers(option) for option in options}
    # What is no kernel of its own has 0 of all: every point of an sGraph has the same dimensions.
    for option, numbers in {"warps": config.warps, "stages": config.stages, **chosen}.items():
        found |= {f"{option}.{k}": numbers.get(k, 0) if k in config.warps else 0 for k in launches}
    return found


class Space:
    """The configurations of one sGraph as vectors of ranks: each dimension counts its values from 0, smallest first."""

    def __init__(self, points: Sequence[Config]) -> None:
        launches = sorted({k for p in points for k in p.warps})
        options = sorted({option for p in points for option in p.options})
        rows = [_dimensions(p, launches, options) for p in points]
        self.names = tuple(rows[0]) if rows else ()
        self.values = {n: sorted({r[n] for r in rows}) for n in self.names}
        rank = {n: {v: i for i, v in enumerate(values)} for n, values in self.values.items()}
        self.vectors = np.array([[rank[n][r[n]] for n in self.names] for r in rows], dtype=np.int64)
        self.row = {p.key(): i for i, p in enumerate(points)}


class Proposer:
    """Proposes points of a fixed space.

    `points` are the feasible configurations of each sGraph; all are `ordered`, best first by the cost model. The seed
    is TPE's.
    """

    def __init__(self, points: Sequence[Sequence[Config]], ordered: Sequence[Point], seed: int) -> None:
        self._points = [tuple(p) for p in points]
        self._spaces = [Space(p) for p in points]
        self._ordered = ordered
        self._seed = seed

    def parameters(self, point: Point) -> tuple[dict[str, int], dict[str, optuna.distributions.BaseDistribution]]:
        """A point as Optuna's parameters, and their distributions."""
        from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

        space = self._spaces[point.candidate]
        ranks = space.vectors[space.row[point.config.key()]]
        values: dict[str, int] = {WHICH: point.candidate}
        kinds: dict[str, BaseDistribution] = {WHICH: CategoricalDistribution(self._choices())}
        for name, r in zip(space.names, ranks.tolist(), strict=True):
            if len(space.values[name]) > 1:
                values[f"{point.candidate}.{name}"] = r
                kinds[f"{point.candidate}.{name}"] = IntDistribution(0, len(space.values[name]) - 1)
        return values, kinds

    def _choices(self) -> list[int]:
        return [n for n, p in enumerate(self._points) if p]

    def propose(self, history: Sequence[tuple[Point, float | None]], count: int, salt: int) -> tuple[list[Point], int]:
        """New points, and how many of TPE's answers were of points tried before.

        The history's seconds are None for a failed trial; another `salt` gives other proposals from the same history.
        """
        import optuna

        quiet()
        sampler = optuna.samplers.TPESampler(seed=(self._seed * 1_000_003 + salt) % (1 << 32), n_startup_trials=4)
        study = optuna.create_study(sampler=sampler)
        for point, seconds in history:
            study.add_trial(self.frozen(point, seconds, {}))
        taken = [np.zeros(len(p), dtype=bool) for p in self._points]
        for point, _ in history:
            taken[point.candidate][self._spaces[point.candidate].row[point.config.key()]] = True
        found: list[Point] = []
        repeats = 0
        for _ in range(count):
            trial = study.ask()
            n = int(trial.suggest_categorical(WHICH, self._choices()))
            wanted = self._ask(trial, n)
            space = self._spaces[n]
            distance = np.abs(space.vectors - wanted).sum(axis=1)
            repeats += bool((taken[n] & (distance == 0)).any())
            chosen = self._nearest(n, distance, taken)
            if chosen is None:
                break
            taken[chosen.candidate][self._spaces[chosen.candidate].row[chosen.config.key()]] = True
            found.append(chosen)
        return found, repeats

    def _ask(self, trial: optuna.trial.Trial, n: int) -> np.ndarray:
        space = self._spaces[n]
        sizes: Mapping[str, int] = {name: len(space.values[name]) for name in space.names}
        return np.array(
            [trial.suggest_int(f"{n}.{k}", 0, s - 1) if s > 1 else 0 for k, s in sizes.items()], dtype=np.int64
        )

    def _nearest(self, n: int, distance: np.ndarray, taken: Sequence[np.ndarray]) -> Point | None:
        """The nearest new point of that sGraph; the model's best new one when the sGraph has none left."""
        if not taken[n].all():
            # Python's min over a stable order: equal distances keep the order of the points.
            row = int(np.argmin(np.where(taken[n], np.iinfo(np.int64).max, distance)))
            return Point(n, self._points[n][row])
        for p in self._ordered:
            if not taken[p.candidate][self._spaces[p.candidate].row[p.config.key()]]:
                return p
        return None

    def frozen(self, point: Point, seconds: float | None, attributes: Mapping[str, object]) -> optuna.trial.FrozenTrial:
        """A finished trial: Optuna never sees infinities or failures as values."""
        import optuna

        values, kinds = self.parameters(point)
        good = seconds is not None and math.isfinite(seconds)
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState.COMPLETE if good else optuna.trial.TrialState.FAIL,
            value=seconds if good else None,
            params=values,
            distributions=kinds,
            user_attrs=dict(attributes),
        )


def quiet() -> None:
    """Keep Optuna's line per study off the terminal."""
    import optuna

    optuna.logging.set_verbosity(logging.WARNING)
