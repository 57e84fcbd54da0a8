"""The study: deterministic, resumable, never the same point twice, every failure counted. No compiler involved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from prism.api.finalists import finalists
from prism.api.searching import search
from prism.bench.prepare import trace_case
from prism.bench.suite import CASES
from prism.cost.device import device
from prism.errors import UsageError
from prism.events import Evidence
from prism.instantiate.study import (
    BATCH,
    RESCUE,
    SEEDS,
    TIED,
    Candidate,
    Failure,
    Outcome,
    TuneResult,
    tune,
)
from prism.platforms.gpu import AbsentGpu
from prism.program.extents import symbol
from prism.program.index import Axis
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import Kernel, SGraph, Split

EMPTY = SGraph("p", (), (), (), ())


def config(m: int, n: int, warps: int = 4) -> Config:
    return Config({"T_m": m, "T_n": n}, {"k": warps}, {"k": 2})


def cost(c: Config) -> float:
    """Lowest at T_m = 64, T_n = 32, warps = 4."""
    m, n, w = c.symbols["T_m"], c.symbols["T_n"], c.warps["k"]
    return 1e-6 * (1 + abs(math.log2(m) - 6) + abs(math.log2(n) - 5) + abs(math.log2(w) - 2))


class Table:
    """An evaluator that looks the answer up, fails where it is told to, and remembers what it was asked."""

    evidence = Evidence.ESTIMATED
    basis = "table"

    def __init__(self, fail: dict[int, Failure] | None = None) -> None:
        self.asked: list[str] = []
        self.fail = fail or {}

    def evaluate(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        assert len(points) <= max(BATCH, SEEDS)
        for candidate, c in points:
            self.asked.append(f"{candidate.key} {c.key()}")
            failure = self.fail.get(c.symbols["T_m"])
            if failure is not None:
                yield Outcome(None, failure, "told to")
            else:
                yield Outcome(cost(c) * (1 if candidate.key == "a" else 2), resources=(Resources("k", 1, 2, 3, 4),))


def candidate(key: str, points: Sequence[Config]) -> Candidate:
    # The prior is flat: it knows nothing of where the best point is.
    return Candidate(key, EMPTY, Path("/nonexistent"), tuple(points), lambda c, r: 1.0)


def small() -> list[Candidate]:
    return [candidate("a", [config(m, n) for m in (16, 32, 64) for n in (16, 32)]), candidate("b", [config(32, 32)])]


def large() -> list[Candidate]:
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    return [candidate(k, [config(m, n, w) for m in sizes for n in sizes for w in (1, 2, 4, 8)]) for k in ("a", "b")]


def shape(result: TuneResult) -> list[tuple[int, str, float | None]]:
    return [(t.point.candidate, t.point.config.key(), t.outcome.seconds) for t in result.trials]


def test_a_small_space_is_swept_and_ranked() -> None:
    table = Table()
    result = tune(small(), table, region="r", budget=64)
    assert result.swept
    assert result.feasible == 7
    assert len(set(table.asked)) == len(table.asked) == 7
    assert result.best is not None
    assert result.best.config == config(64, 32)
    assert result.best.candidate == 0
    assert [b.candidate for b in result.ranking] == [0, 1]
    assert result.compiled == 7
    assert result.evidence is Evidence.ESTIMATED


def test_the_budget_cuts_a_sweep_but_every_leader_gets_a_trial() -> None:
    table = Table()
    result = tune(small(), table, region="r", budget=3)
    assert len(table.asked) == 3
    assert not result.swept
    assert {b.candidate for b in result.ranking} == {0, 1}


def test_a_large_space_is_deterministic_and_never_repeats_a_point() -> None:
    tables = Table(), Table(), Table()
    first, second = (tune(large(), t, region="r", budget=40, seed=3) for t in tables[:2])
    assert shape(first) == shape(second)
    assert len(set(tables[0].asked)) == 40
    other = tune(large(), tables[2], region="r", budget=40, seed=4)
    assert shape(other) != shape(first)
    # TPE must use what it is told: the first 8 of a flat prior are the corner of the space.
    assert first.best is not None
    assert first.best.seconds < min(t.outcome.seconds or 9 for t in first.trials[:SEEDS])


def test_the_cost_models_best_points_come_first() -> None:
    known = [Candidate(c.key, c.sgraph, c.module, c.points, lambda p, r: cost(p)) for c in large()]
    result = tune(known, Table(), region="r", budget=SEEDS)
    assert result.best is not None
    assert result.best.seconds == pytest.approx(1e-6)


@pytest.mark.parametrize("make", [small, large])
@pytest.mark.parametrize("cut", [2, 10, 13])
def test_an_interrupted_study_resumes_as_if_it_had_not_stopped(tmp_path: Path, make: object, cut: int) -> None:
    assert callable(make)
    whole = tune(make(), Table(), region="r", budget=20, seed=1, storage_dir=tmp_path / "whole")
    tune(make(), Table(), region="r", budget=cut, seed=1, storage_dir=tmp_path / "cut")
    table = Table()
    resumed = tune(make(), table, region="r", budget=20, seed=1, storage_dir=tmp_path / "cut")
    assert shape(resumed) == shape(whole)
    assert resumed.resumed == min(cut, resumed.feasible)
    assert len(table.asked) == len(whole.trials) - resumed.resumed
    again = Table()
    assert shape(tune(make(), again, region="r", budget=20, seed=1, storage_dir=tmp_path / "cut")) == shape(whole)
    assert again.asked == []
    assert resumed.trials[0].outcome.resources == (Resources("k", 1, 2, 3, 4),)


def test_a_smaller_budget_after_a_larger_one_gives_what_it_would_have_given(tmp_path: Path) -> None:
    tune(large(), Table(), region="r", budget=30, storage_dir=tmp_path)
    small_again = tune(large(), Table(), region="r", budget=10, storage_dir=tmp_path)
    assert shape(small_again) == shape(tune(large(), Table(), region="r", budget=10))


def test_other_seeds_and_regions_are_other_studies(tmp_path: Path) -> None:
    tune(small(), Table(), region="r", budget=7, storage_dir=tmp_path)
    for region, seed in (("s", 0), ("r", 1)):
        table = Table()
        tune(small(), table, region=region, budget=7, seed=seed, storage_dir=tmp_path)
        assert len(table.asked) == 7


def test_failures_are_counted_by_reason_and_never_win(tmp_path: Path) -> None:
    table = Table({64: Failure.SHARED, 32: Failure.CRASH})
    result = tune(small(), table, region="r", budget=64, storage_dir=tmp_path)
    assert result.failures == {"out of shared memory": 2, "crash": 3}
    assert [b.candidate for b in result.ranking] == [0]
    assert result.compiled == 2
    again = tune(small(), Table(), region="r", budget=64, storage_dir=tmp_path)
    assert again.failures == result.failures
    assert shape(again) == shape(result)


def test_when_everything_fails_there_is_no_best() -> None:
    result = tune(large(), Table(dict.fromkeys((1, 2, 4, 8, 16, 32, 64, 128), Failure.HANG)), region="r", budget=14)
    assert result.best is None
    assert result.failures == {"hang": 14}


@pytest.mark.parametrize("make", [small, large])
def test_while_nothing_succeeds_the_budget_is_not_the_end(make: Callable[[], list[Candidate]], tmp_path: Path) -> None:
    # The model likes best what fails: in its order, T_m = 64 comes after all of 16 and 32 (and less).
    failing = dict.fromkeys((1, 2, 4, 8, 16, 32), Failure.SHARED)
    result = tune(make(), Table(failing), region="r", budget=2, storage_dir=tmp_path)
    assert result.best is not None
    assert result.best.config.symbols["T_m"] > 32
    assert all(t.outcome.seconds is None for t in result.trials[:2])
    again = tune(make(), Table(failing), region="r", budget=2, storage_dir=tmp_path)
    assert shape(again) == shape(result)
    assert again.resumed == len(result.trials)
    assert len(result.trials) <= 2 + RESCUE


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(UsageError):
        tune(small(), Table(), region="r", budget=0)


def bounded(given: Sequence[Candidate], least: Callable[[Config], float], budget: int = 64) -> tuple[Table, TuneResult]:
    table = Table()
    return table, tune(given, table, region="r", budget=budget, least=lambda _, c: least(c))


@pytest.mark.parametrize("make", [small, large])
def test_a_study_ends_when_nothing_left_can_be_faster(make: Callable[[], list[Candidate]]) -> None:
    whole = tune(make(), Table(), region="r", budget=64).best
    assert whole is not None
    # Every bound is the time itself: it ends with the trial that is the fastest of all points, if that is tried.
    table, found = bounded(make(), cost)
    assert found.best == whole
    times = [t.outcome.seconds for t in found.trials]
    left = [p for c in make() for p in c.points if f"{c.key} {p.key()}" not in table.asked]
    assert len(times) < 64
    assert not found.swept or not left
    # Of the last but one it was not known yet.
    assert len(times) == 2 or min(t for t in times[:-1] if t is not None) > min(map(cost, [*left, whole.config]))


def test_bounds_that_say_nothing_end_no_study() -> None:
    for least in (lambda c: 0.0, lambda c: -math.inf):
        _, found = bounded(small(), least, 5)
        assert shape(found) == shape(tune(small(), Table(), region="r", budget=5))


def test_each_leader_has_its_trial_before_a_study_ends() -> None:
    table, found = bounded(small(), lambda c: math.inf)
    assert table.asked == [f"a {config(16, 16).key()}", f"b {config(32, 32).key()}"]
    assert len(found.ranking) == 2


def test_a_study_that_ended_early_resumes_and_ends_there(tmp_path: Path) -> None:
    journal = tmp_path / "j"
    full = tune(large(), Table(), region="r", budget=40, storage_dir=journal)
    assert full.best is not None
    table = Table()
    again = tune(large(), table, region="r", budget=40, storage_dir=journal, least=lambda _, c: cost(c))
    assert not table.asked
    alone = tune(large(), Table(), region="r", budget=40, least=lambda _, c: cost(c))
    assert shape(again) == shape(alone)


def by_order(seconds: Sequence[float], budget: int, journal: Path | None = None) -> TuneResult:
    """A study whose points take so many seconds, in the order of the model; the last of them whatever is left."""
    points = [config(1 << n, 1) for n in range(48)]
    taken = {p.key(): seconds[min(n, len(seconds) - 1)] for n, p in enumerate(points)}

    class Ordered(Table):
        def evaluate(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
            yield from (Outcome(taken[c.key()]) for _, c in points)

    known = Candidate("a", EMPTY, Path("/nonexistent"), tuple(points), lambda c, r: float(c.symbols["T_m"]))
    return tune([known], Ordered(), region="r", budget=budget, storage_dir=journal)


def test_a_measured_study_ends_when_the_last_trials_gained_nothing(tmp_path: Path) -> None:
    flat = by_order([1.0, 0.98, 1.02], 12)
    assert (len(flat.trials), flat.settled) == (SEEDS, True)
    # A gain among the last third is looked into for a batch more, one that is too small to be known is not.
    assert len(by_order([1.0] * 6 + [0.5, 0.7], 12).trials) == SEEDS + BATCH
    assert len(by_order([1.0] * 6 + [0.97, 1.0], 12).trials) == SEEDS
    falling = by_order([0.9**n for n in range(16)], 16)
    assert (len(falling.trials), falling.settled) == (16, False)
    # Who asks for more trials is given more patience, and a run that was cut off ends where it would have ended.
    assert len(by_order([1.0, 1.0, 0.5, 1.0], 40).trials) > SEEDS + BATCH
    by_order([1.0, 0.98, 1.02], 5, tmp_path)
    assert shape(by_order([1.0, 0.98, 1.02], 12, tmp_path)) == shape(flat)


def test_a_study_in_which_nothing_has_run_is_not_over() -> None:
    table = Table(dict.fromkeys((1, 2, 4, 16), Failure.CRASH))
    assert len(tune(large(), table, region="r", budget=12).trials) == 12


def test_ways_to_tile_come_before_stages_and_parts_where_estimates_say_nothing() -> None:
    """A study of few trials has every tile size and number of warps that the model cannot tell from the best."""
    n, parts = Axis("n", 4096), symbol("S_n")
    kernel = Kernel("k", ((n, Split(parts, symbol("T_n"))),), ())
    g = SGraph("g", (), (), (), (kernel,))
    points = [
        Config({"T_n": tile, "S_n": split}, {"k": warps}, {"k": stages})
        for tile in (32, 64, 128)
        for split in (8, 16)
        for warps in (4, 8)
        for stages in (2, 3, 4)
    ]

    def estimate(c: Config, resources: Sequence[Resources]) -> float:
        # The smallest tile with most warps and stages looks best, by thousandths. Tiles of 128 are far behind.
        return 1.0 + 1e-3 * (c.symbols["T_n"] / 32 - c.warps["k"] - c.stages["k"]) + (c.symbols["T_n"] == 128)

    class Estimates(Table):
        def evaluate(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
            for _, c in points:
                yield Outcome(estimate(c, ()))

    found = tune([Candidate("c", g, Path("/nonexistent"), tuple(points), estimate)], Estimates(), region="r", budget=4)
    asked = [t.point.config for t in found.trials]
    assert [(c.symbols["T_n"], c.warps["k"]) for c in asked] == [(32, 8), (64, 8), (32, 4), (64, 4)]
    assert {c.stages["k"] for c in asked} == {4}


def test_tiles_of_64_and_128_keys_by_4_warps_are_points_of_decoding_that_the_model_cannot_tell_from_the_best() -> None:
    (case,) = (c for c in CASES if c.name == "GQA decode B1 4k")
    program, here = trace_case(case), device("sm_90")
    with search(program, target=here.target) as running:
        proved = running.run().proved
    found = finalists(proved, AbsentGpu(here.target, here), program.hints, lambda *_: Path("/nonexistent"))
    best = next(iter(found.values()))
    (split, _) = best.proved.sgraph.kernels
    seconds = [best.model.seconds(c) for c in best.candidate.points]
    near = [c for c, s in zip(best.candidate.points, seconds, strict=True) if s <= (1 + TIED) * min(seconds)]
    assert {(64, 4), (128, 4)} <= {(c.symbols["T_d4096"], c.warps[split.name]) for c in near}
