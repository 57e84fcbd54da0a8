"""The leaders of a study meet again: a lucky time does not win."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from test_measure import GPU, GRAPH, PROGRAM

from prism.cost.device import multicore
from prism.events import Evidence
from prism.instantiate.cache import Store
from prism.instantiate.confirm import LEADERS, rematch
from prism.instantiate.machine_load import Load, Watch
from prism.instantiate.measure import Bench, Measuring
from prism.instantiate.proposals import Point
from prism.instantiate.study import Best, Candidate, Failure, Outcome, Trial, TuneResult
from prism.platforms.cpu import CpuPlatform
from prism.process.worker import Ending, Reply, Worker
from prism.sgraph.config import Config


class Clock(Worker):
    """Every module takes what its configuration's T says, in microseconds; T = 99 fails."""

    def __init__(self) -> None:
        super().__init__([sys.executable], {})
        self.asked: list[list[int]] = []
        self.threads: list[int] = []

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        (x,) = torch.load(request["inputs"])
        tiles = [c["config"]["symbols"]["T"] for c in request["contenders"]]
        self.asked.append(tiles)
        self.threads += [c["threads"] for c in request["contenders"]]
        answers: list[dict[str, Any]] = []
        for t in tiles:
            # Quartiles apart from the median: of 4 samples, the lower ones are half as long.
            samples = [t * 0.5e-6, t * 0.5e-6, t * 1e-6, t * 1e-6, t * 1e-6, t * 1e-6, t * 1e-6, t * 1e-6]
            answers.append({"error": "killed"} if t == 99 else {"samples": samples, "calls": 1})
        torch.save([[] if t == 99 else [2 * x] for t in tiles], request["results"])
        return Reply(Ending.ANSWERED, {"contenders": answers})


class NoCompiler:
    """Compiles nothing."""

    basis = "none"

    def compile(self, points: Any) -> Any:
        raise AssertionError("nothing is to be compiled")

    def close(self) -> None:
        pass


def candidate(n: int) -> Candidate:
    return Candidate(f"c{n}", GRAPH, Path(f"good{n}.py"), (), lambda config, resources: 0.0)


def trial(n: int, tile: int, seconds: float | None) -> Trial:
    failure = None if seconds is not None else Failure.CRASH
    return Trial(Point(n, Config({"T": tile}, {}, {})), Outcome(seconds, failure))


def result(*trials: Trial) -> TuneResult:
    best: dict[int, Best] = {}
    for t in sorted((t for t in trials if t.outcome.seconds), key=lambda t: t.outcome.seconds or 0.0):
        best.setdefault(t.point.candidate, Best(t.point.candidate, t.point.config, t.outcome.seconds or 0.0, ()))
    return TuneResult(Evidence.MEASURED, trials, tuple(best.values()))


def again(found: TuneResult, *, shared: bool = False) -> tuple[TuneResult, Clock]:
    clock = Clock()
    bench = Bench(PROGRAM, GPU, {}, worker=clock)
    try:
        with Measuring(bench, compiler=NoCompiler(), shared=shared) as measuring:
            return rematch(found, [candidate(n) for n in range(3)], measuring), clock
    finally:
        bench.close()


def test_the_second_timing_decides() -> None:
    # T = 8 was lucky; T = 4 of the same sGraph and T = 2 of the other are faster.
    found, clock = again(result(trial(0, 8, 1.0e-6), trial(0, 4, 1.1e-6), trial(1, 2, 1.2e-6), trial(2, 1, 9e-6)))
    assert clock.asked == [[8, 4, 2]], "one run of those within reach, the leader first"
    assert [(b.candidate, b.config.symbols["T"]) for b in found.ranking] == [(1, 2), (0, 4), (2, 1)]
    assert [b.seconds for b in found.ranking] == pytest.approx([2e-6, 4e-6, 9e-6])


def test_a_shared_machine_ranks_by_the_lower_quartile() -> None:
    found, _ = again(result(trial(0, 8, 1.0e-6), trial(1, 4, 1.1e-6)), shared=True)
    assert [b.seconds for b in found.ranking] == pytest.approx([3.5e-6, 7e-6])


def test_what_fails_now_keeps_its_place_behind_the_others() -> None:
    found, _ = again(result(trial(0, 99, 1.0e-6), trial(1, 4, 1.1e-6)))
    assert [b.candidate for b in found.ranking] == [1, 0]


def test_few_or_failed_trials_need_no_rematch() -> None:
    for found in (result(), result(trial(0, 1, None)), result(trial(0, 1, 1e-6), trial(1, 2, None))):
        same, clock = again(found)
        assert same == found
        assert clock.asked == []


def test_no_more_than_the_leaders_meet() -> None:
    _, clock = again(result(*(trial(0, n + 1, 1e-6 + n * 1e-9) for n in range(LEADERS + 5))))
    assert [len(tiles) for tiles in clock.asked] == [LEADERS]


class Others(Watch):
    """Others keep so many of two cores busy."""

    def __init__(self, cores: float) -> None:
        self._busy = cores

    def load(self, threads: int) -> Load:
        return Load(2, threads, self._busy, None)


@pytest.mark.parametrize(("others", "threads"), [(0.1, 0), (1.7, 1)])
def test_where_others_take_cores_trials_are_timed_on_one_thread(others: float, threads: int) -> None:
    platform = CpuPlatform(multicore("A CPU, 2 cores", 2, 32, 1 << 15, 1 << 19, 1 << 23), "g++ (GCC) 12")
    clock = Clock()
    bench = Bench(PROGRAM, GPU, {}, worker=clock)
    bench.watch = Others(others)
    try:
        with platform.measuring(bench, Store()) as measuring:
            rematch(result(trial(0, 8, 1.0e-6), trial(1, 4, 1.1e-6)), [candidate(n) for n in range(2)], measuring)
            assert clock.threads == [threads, threads]
            assert ("on 1 threads" in measuring.basis) == (threads == 1), "times of another number are others"
    finally:
        bench.close()
