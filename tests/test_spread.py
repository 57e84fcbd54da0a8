"""How sure a gain is, and what is compared while a machine does other things: recorded samples and a scripted clock."""

from __future__ import annotations

import random
import statistics
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from prism.instantiate.rounds import EQUAL_S, QUIET_S, Prepared, Queue, between, contest, has_two_modes, lower_quartile


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 24, 29])
def test_the_lower_quartile_is_that_of_the_standard_library(count: int) -> None:
    samples = sorted(random.Random(count).random() for _ in range(count))
    wanted = statistics.quantiles(samples, n=4, method="inclusive")[0] if count > 1 else samples[0]
    assert lower_quartile(samples) == pytest.approx(wanted)


def noisy(seconds: float, part: float, seed: int, count: int = 28) -> list[float]:
    rng = random.Random(seed)
    return [seconds * rng.lognormvariate(0.0, part) for _ in range(count)]


def test_quiet_rounds_say_one_number_and_noisy_ones_a_range() -> None:
    spans = []
    for part in (0.003, 0.1):
        matches = [
            ({"k": noisy(1e-3, part, n)}, {"b": noisy(2e-3, part, 90 + n), "c": noisy(5e-3, part, 70 + n)})
            for n in range(2)
        ]
        low, high = between(matches)
        assert low < 2.0 < high
        assert between(matches) == (low, high), "the same samples say the same"
        spans.append(high / low)
    assert spans[0] < 1.02
    assert 1.02 < spans[1] < 1.3


def test_the_same_thing_twice_is_no_gain() -> None:
    won = [
        between([({"k": noisy(1e-3, 0.05, 4 * n)}, {"b": noisy(1e-3, 0.05, 4 * n + 1)}) for n in (2 * m, 2 * m + 1)])
        for m in range(20)
    ]
    assert sum(low > 1.02 for low, _ in won) == 0
    assert sum(low < 1.0 < high for low, high in won) >= 15


def test_a_contender_of_two_modes_makes_a_range_of_both() -> None:
    """As recorded of torch.compile on four threads while one to three cores were taken: 32 or 52 ms."""
    modes = [(32e-3 if n % 4 == 0 else 52e-3) * (1 + n / 1e4) for n in range(28)]
    low, high = between([({"k": noisy(18.7e-3, 0.01, 1)}, {"one": noisy(53e-3, 0.01, 2), "four": modes})])
    assert low < 1.8
    assert high > 2.6


def test_at_the_low_end_a_baseline_has_its_better_time_and_a_kernel_its_usual_one() -> None:
    """As recorded of torch.compile on four threads while one core was taken: 0.4 or 12 ms; on one thread 0.72."""
    seldom = [(0.4e-3 if n % 7 == 0 else 12e-3) * (1 + n / 1e4) for n in range(28)]
    steady, kernel = noisy(0.72e-3, 0.01, 1), noisy(0.25e-3, 0.01, 2)
    matches = [({"k": kernel}, {"one": steady, "four": seldom})]
    assert between(matches, {"four"}) == pytest.approx((0.4 / 0.25, 0.72 / 0.25), rel=0.03)
    assert between(matches) == pytest.approx((0.72 / 0.25, 0.72 / 0.25), rel=0.03), "where no cores are taken"
    assert has_two_modes(matches, {"four"})
    once = [0.4e-3, *seldom[1:7] * 4]
    matches = [({"k": kernel}, {"one": steady, "four": once})]
    assert between(matches, {"four"}) == pytest.approx((0.72 / 0.25, 0.72 / 0.25), rel=0.03), "once is no mode"
    assert not has_two_modes(matches, {"four"})
    matches = [({"k": kernel, "four": [s / 4 for s in seldom]}, {"one": steady})]
    low, high = between(matches, {"four"})
    assert low == pytest.approx(0.72 / 0.25, rel=0.03)
    assert high == pytest.approx(0.72 / 0.1, rel=0.03), "whoever times the kernel again may find it so"
    now_and_then = [(0.1e-3 if n % 3 == 0 else 12e-3) * (1 + n / 1e4) for n in range(28)]
    matches = [({"one": kernel, "four": now_and_then}, {"b": steady})]
    low, high = between(matches, {"four"})
    assert low == pytest.approx(0.72 / 0.25, rel=0.03), "of a kernel half of the samples have to be so"
    assert high == pytest.approx(0.72 / 0.1, rel=0.1)
    assert has_two_modes(matches, {"four"})


def test_rounds_are_drawn_whole() -> None:
    """A load that slows both sides alike, in half of the rounds, does not widen the range."""
    load = [1.0 if n % 2 else 3.0 for n in range(28)]
    low, high = between([({"k": load}, {"b": [2.0 * x for x in load]})])
    assert (low, high) == pytest.approx((2.0, 2.0))


# A scheduler that lets a thread that has slept run for a slice, and then every fourth one.

SLICE_S = 4e-3


class Crowded:
    """Seconds on a core with three others on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited = 0.0
        self.left = SLICE_S

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.left = SLICE_S

    def run(self, seconds: float) -> None:
        while seconds > 0:
            part = min(seconds, self.left)
            self.now, self.left, seconds = self.now + part, self.left - part, seconds - part
            if self.left <= 0:
                self.now, self.waited, self.left = self.now + 3 * SLICE_S, self.waited + 3 * SLICE_S, SLICE_S

    def contender(self, seconds: float, account: bool) -> Prepared:
        def call() -> Sequence[Any]:
            self.run(seconds)
            return ()

        waited = (lambda: self.waited) if account else None
        return Prepared(call, 4e-3, 1e-3, waited=waited, clock=lambda: self.now, sleep=self.sleep)


def gain(make: Callable[[float], Prepared]) -> float:
    kernel, baseline = contest([make(1e-3), make(10e-3)], ["kernel", "baseline"], 24, 60.0, crowded=True)
    return lower_quartile(sorted(baseline)) / lower_quartile(sorted(kernel))


def test_a_short_call_that_is_over_before_its_slice_is_no_better_for_it() -> None:
    core = Crowded()
    assert gain(lambda s: core.contender(s, account=True)) == pytest.approx(10.0), "what waits for a core takes no time"
    core = Crowded()
    assert 9.0 < gain(lambda s: core.contender(s, account=False)) < 12.0, "samples are as long as each other"
    core = Crowded()
    short, long = core.contender(1e-3, account=False), core.contender(10e-3, account=False)
    assert long.sample() / short.sample() > 25.0, "as single calls they were not"


def test_samples_of_a_contest_are_as_long_as_each_other_up_to_a_bound() -> None:
    core = Crowded()
    made = [core.contender(s, account=True) for s in (1e-5, 1e-3, 3e-2, 8.0)]
    contest(made, ["a", "a", "b", "c"], 1, 1.0, crowded=True)
    assert [p.calls for p in made] == [2000, 50, 2, 1]
    assert made[2].calls * 3e-2 > EQUAL_S > 3e-2


def test_samples_of_a_contest_are_loops_and_results_are_let_go() -> None:
    core = Crowded()
    made = [core.contender(s, account=True) for s in (1e-3, 2e-3)]
    for crowded, wanted in ((False, QUIET_S), (True, EQUAL_S)):
        contest(made, ["a", "b"], 1, 6.0, crowded=crowded)
        assert [p.calls * s for p, s in zip(made, (1e-3, 2e-3), strict=True)] == pytest.approx([wanted, wanted])
    alive: list[int] = []

    class Result:
        pass

    def call() -> list[Result]:
        alive.append(len([r for r in kept if r() is not None]))
        result = Result()
        kept.append(weakref.ref(result))
        return [result]

    kept: list[weakref.ref[Result]] = []
    prepared = Prepared(call, 0.0, 0.0)
    prepared.calls = 5
    prepared.sample()
    assert set(alive[-4:]) == {0}
    assert len(prepared.results) == 1


def test_the_queue_is_the_schedulers_account_and_nothing_where_there_is_none(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("2500000000 1500000000 17\n")
    queue = Queue(file)
    assert queue() == pytest.approx(1.5)
    file.write_text("2600000000 1750000000 18\n")
    assert queue() == pytest.approx(1.75)
    queue.close()
    assert queue() == 0.0
    assert Queue(tmp_path / "none")() == 0.0
    file.write_text("no account\n")
    assert Queue(file)() == 0.0
