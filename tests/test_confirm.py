"""What is printed as measured: matches of interleaved rounds, the least gain of several, stored for the next run."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_clock import Arena, scripted
from test_measure import GPU, GRAPH, PROGRAM

import prism
from prism.api import optimize
from prism.api.records import not_timed
from prism.errors import NoImprovementError, UsageError
from prism.events import Argument, ContenderReport, MeasurementReport, RunReport
from prism.instantiate import machine_load
from prism.instantiate.cache import Cache, Store
from prism.instantiate.confirm import (
    AGREE,
    MATCHES,
    SHARES,
    Confirmation,
    Standing,
    confirm,
    installed,
    usual,
)
from prism.instantiate.machine_load import Load, Watch, busy_seconds, family_seconds, load_now, process_seconds
from prism.instantiate.measure import KERNEL, Bench, Contender, Timed, summarise
from prism.instantiate.rounds import (
    AGAIN,
    BLOCK,
    FIRST_HEATS,
    HEATS,
    HOPELESS,
    LONGER,
    NEAR,
    NEAR_QUIET,
    ROUNDS_S,
    Prepared,
    contest,
)
from prism.instantiate.study import Failure
from prism.platforms import contenders, cpu_worker
from prism.platforms.contenders import Contenders, why_not_compiled
from prism.platforms.cpu_worker import hopeless, made_in, patience, prepare_contenders, time_contenders, trial
from prism.process.child import run_tool
from prism.process.deadline import NEVER, Deadline
from prism.process.worker import Ending, Reply
from prism.report.units import load_line, measured_line, speedup, times_line
from prism.report.usage import example_call
from prism.sgraph.config import Config

pytestmark = pytest.mark.usefixtures("unoptimised", "small_gate")

# Rounds, on a clock that only the contenders move.


class Clock:
    """Seconds that pass when something is called or waited for."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def contender(self, seconds: float, stalls: Callable[[int], float] = lambda n: 1.0) -> Prepared:
        """One whose n-th call takes `stalls(n)` times as long."""
        calls = [0]

        def call() -> Sequence[Any]:
            self.now += seconds * stalls(calls[0])
            calls[0] += 1
            return ()

        return Prepared(call, clock=self, sleep=self.sleep)


def gain(samples: Sequence[Sequence[float]]) -> float:
    """Of the second contender over the first."""
    baseline, kernel = (summarise(s) for s in samples)
    return baseline.lower / kernel.lower


@pytest.mark.parametrize("every", [2, 3])
def test_a_baseline_that_stalls_in_half_of_its_rounds_makes_no_speed_up(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism.instantiate.rounds.SHARE", 0.0)  # samples of the script are single calls
    clock = Clock()
    # Five milliseconds a call, so that each call is a sample; a stall takes a hundred times as long.
    stalling = clock.contender(5e-3, lambda n: 100.0 if n > 8 and n // 2 % every else 1.0)
    samples = contest([stalling, clock.contender(5e-3)], ["baseline", "kernel"], 24, 60.0)
    assert summarise(samples[0]).upper > 50 * summarise(samples[0]).lower, "it did stall, and the spread tells"
    assert 1 / AGREE < gain(samples) < AGREE


def test_a_match_that_may_take_little_time_has_shorter_turns_and_no_rounds_after_heats_that_took_it() -> None:
    def played(limit_s: float, call_s: float) -> tuple[int, int]:
        clock = Clock()
        made = [clock.contender(call_s) for _ in range(2)]
        made[0].lasting = 5
        several, one = contest(made, ["baseline", "kernel"], 16, limit_s, crowded=True)
        return len(several), len(one)

    assert played(ROUNDS_S, 1.0) == (6 * 5, 6), "three heats and three rounds, whatever they take"
    assert played(5.9, 1.0) == (3 * 2, 3), "heats alone"
    assert played(5.9, 0.4) == (3 * 3, 3)
    assert played(5.9, 0.1) == (7 * 5, 7), "four heats, and as many rounds as are left time"


def test_of_eager_on_one_thread_and_on_all_the_one_that_does_not_stall_counts() -> None:
    clock = Clock()
    everything, one, kernel = clock.contender(4e-3, lambda n: 50.0), clock.contender(5e-3), clock.contender(5e-3)
    samples = contest([everything, one, kernel], ["baseline", "baseline", "kernel"], 20, 60.0)
    assert len(samples[0]) < len(samples[1]) == len(samples[2]), "what has no chance leaves after the heats"
    best = min(summarise(s).lower for s in samples[:2])
    assert best / summarise(samples[2]).lower == pytest.approx(1.0)


def test_heats_keep_who_is_near_the_best_of_its_side() -> None:
    clock = Clock()
    times = [5e-3, 6e-3, 9e-3, 11e-3, 3.0]
    for crowded, left in ((False, [HEATS, FIRST_HEATS]), (True, [HEATS + 10, HEATS])):
        samples = contest([clock.contender(t) for t in times], ["a"] * 5, 10, 60.0, crowded=crowded)
        assert [len(s) for s in samples] == [HEATS + 10, HEATS + 10, *left, 1]
        assert [min(s) for s in samples] == pytest.approx(times)
    other_sides = contest([clock.contender(t) for t in (5e-3, 3.0)], ["a", "b"], 3, 60.0)
    assert [len(s) for s in other_sides] == [HEATS + 3, HEATS + 3], "the best of a side stays whatever it takes"


def test_a_gain_that_is_clear_and_steady_takes_no_more_rounds() -> None:
    def rounds(seconds: float, noise: float = 0.0, crowded: bool = False, own: float = 5e-3) -> int:
        clock = Clock()
        made = [clock.contender(own), clock.contender(seconds, lambda n: 1.0 + noise * (n * 7 % 5))]
        return len(contest(made, ["kernel", "baseline"], 3 * BLOCK, 60.0, crowded=crowded)[0])

    assert rounds(20e-3) == BLOCK
    assert rounds(2e-3) == BLOCK, "a loss, too"
    assert rounds(5.1e-3) == HEATS + 3 * BLOCK, "what is so near may be another process's luck"
    assert rounds(40e-3, noise=0.3, own=30e-3) == HEATS + 3 * BLOCK, "it varies by more than matters"
    assert rounds(20e-3, crowded=True) == HEATS + 3 * BLOCK


def test_what_is_compiled_for_all_threads_and_has_no_chance_is_not_compiled_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    specs = [
        {"kind": kind, "side": side, "threads": n}
        for kind, side in (("eager", "baseline"), ("compiled", "baseline"), ("module", "kernel"))
        for n in (4, 1)
    ]
    assert [specs[n]["threads"] for n in made_in(specs)] == [4, 4, 4, 1, 1, 1]
    assert "9 times as long as the best" in hopeless(3, specs, {0: 1.0, 1: 1.1, 2: 9.0, 4: 0.1})
    assert not hopeless(3, specs, {0: 1.0, 1: 1.1, 2: 7.0, 4: 0.1}), "of kernels it need not be near"
    assert not hopeless(3, specs, {0: 1.0, 1: 1.1}), "the other did not run"
    assert "1.5 times as long as on 4 threads" in hopeless(3, specs, {0: 1.0, 1: 1.5, 2: 1.0}), "threads help"
    other = [{**s, "exported": "of another"} if s["kind"] == "eager" else s for s in specs]
    assert not hopeless(3, other, {0: 1.0, 1: 1.5, 2: 1.0}), "they help another model"
    assert not hopeless(5, specs, {0: 1.0, 1: 1.5, 4: 1.0}), "what prism compiles is for any number of them"
    assert not hopeless(1, specs, {0: 1.9, 2: 0.1}), "what costs nothing to make is timed"
    assert hopeless(1, specs, {0: 2.1, 2: 0.1}), "but for calls that never end"


def test_what_was_given_up_on_all_threads_is_not_tried_on_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision on some processors: eight seconds on each number of threads, to be told that it is hopeless."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    tried: list[tuple[str, int]] = []

    class Makes:
        def prepared(self, spec: Mapping[str, Any], threads: int, limit_s: float | None = None, **how: Any) -> Prepared:
            tried.append((spec["kind"], threads))
            if spec["kind"] == "eager":
                raise TimeoutError("its first calls took more than 4 s")
            return Prepared(lambda: [torch.ones(2)], **how)

    monkeypatch.setattr("prism.platforms.contenders.contenders_on", lambda _: Makes())
    monkeypatch.setattr("prism.platforms.cpu_worker._load_before", lambda *_: Load(2, 2, 0.0, 0.0))
    kinds = (("eager", "baseline"), ("onnxruntime", "baseline"), ("module", "kernel"))
    specs = [{"kind": kind, "side": side, "threads": n} for n in (2, 1) for kind, side in kinds]
    request = {
        "contenders": specs,
        "inputs": "none",
        "outputs": [],
        "repeats": 1,
        "limit_s": 0.1,
        "results": tmp_path / "r.pt",
    }
    expected = [("onnxruntime", 2), ("module", 2), ("eager", 2), ("onnxruntime", 1), ("module", 1)]
    prepare_contenders(request)
    assert tried == expected
    tried.clear()
    told = time_contenders(request)["contenders"]
    assert tried == expected
    assert "more than 4 s" in told[0]["hopeless"]
    assert "times as long as the best, or longer" in told[3]["hopeless"]


def test_a_call_that_takes_far_longer_than_another_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    specs = [{"kind": k, "threads": 4, "side": "baseline"} for k in ("eager", "compiled", "onnxruntime")]
    assert made_in(specs) == [2, 0, 1], "torch, which may take a hundred times as long, after what it is compared with"
    assert patience(2, specs, {}) is None
    assert patience(2, [*specs, {"kind": "module", "side": "kernel"}], {3: 1e-3}) is None, "of the other side"
    assert patience(0, specs, {2: 1e-3}) == 4.0
    assert patience(0, specs, {2: 1.0}) == 16.0
    makes = Contenders([torch.ones(2)])
    calls: list[int] = []

    def slow() -> list[torch.Tensor]:
        calls.append(len(calls))
        end = time.process_time() + 60
        while time.process_time() < end:
            pass
        return []

    makes.call = lambda *_: slow  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"its first calls took more than 0\.1 s"):
            makes.prepared(specs[0], 4, 0.1)
    assert calls == [0]

    def written(*_: object) -> None:
        slow()

    monkeypatch.setattr(makes, "call", written)
    with pytest.raises(TimeoutError, match=r"writing it in torch took more than 0\.1 s"):
        makes.prepared({**specs[0], "program": "another"}, 4, 0.1)


def test_a_trial_that_is_far_from_the_best_is_called_once() -> None:
    def calls(seconds: float, beat_s: float) -> tuple[int, int]:
        clock = Clock()
        made: list[int] = []

        def counted(n: int) -> float:
            made.append(n)
            return 1.0

        one = clock.contender(seconds, counted)
        before = len(made)
        (samples,) = trial([one], 10, beat_s)
        return len(samples), len(made) - before

    assert calls(0.1, 0.05) == (1, 1), "what it wrote before is poisoned"
    assert calls(0.02, 0.018) == (10, 11), "one that warms it up, and no more"
    assert calls(1e-3, 1.0)[0] == 10
    assert calls(0.2, 1.0)[0] == 3


def test_what_takes_seconds_is_not_called_again_to_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.platforms.contenders.ENDLESS_S", 0.0)
    called: list[int] = []

    def call() -> list[torch.Tensor]:
        called.append(1)
        return [torch.ones(2)]

    makes = Contenders([])
    monkeypatch.setattr(makes, "call", lambda spec, threads: call)
    spec = {"kind": "eager", "program": ""}
    first, before = makes.prepared(spec, 1), len(called)
    assert makes.prepared(spec, 1) is first
    assert len(called) == before
    assert makes.prepared(spec, 2) is not first


def test_of_a_cpp_compiler_that_failed_the_reason_is_told_and_not_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "C++ compile error\n\nCommand:\ng++ "
        + 80 * "-O3 "
        + "\n\nOutput:\nIn file x.cpp\nld: cannot find -ltorch\n\nSet A=1\n"
    )
    monkeypatch.setattr(torch, "__file__", "/models/torch/__init__.py")  # this checkout's own may have a space
    assert why_not_compiled(RuntimeError(text)) == "C++ compile error: ld: cannot find -ltorch"
    assert why_not_compiled(ValueError("no graph")) == "ValueError: no graph"
    monkeypatch.setattr(torch, "__file__", "/my models/torch/__init__.py")
    assert "'/my models/torch': its compiler fails where a path has spaces" in why_not_compiled(RuntimeError(text))


def test_what_fails_alike_on_all_threads_is_said_once() -> None:
    def standing(threads: int, why: str) -> Standing:
        return Standing("torch.compile", "baseline", threads, Timed("", None, Failure.CRASH, why))

    alike = [standing(4, "no graph"), standing(1, "no graph")]
    assert not_timed(alike) == {"torch.compile on 4 threads and on 1": "no graph"}
    assert len(not_timed([standing(4, "no graph"), standing(1, "no time")])) == 2
    assert not not_timed(alike, but=Failure.CRASH)


def test_a_first_call_that_stalls_does_not_decide() -> None:
    clock = Clock()
    late = clock.contender(5e-3, lambda n: 100.0 if n < 3 else 1.0)
    samples = contest([late, clock.contender(5e-3)], ["baseline", "baseline"], 10, 60.0)
    assert [len(s) for s in samples] == [HEATS + 10, HEATS + 10]
    assert gain(samples) == pytest.approx(1.0)


def test_one_lucky_sample_sends_nobody_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """As recorded of torch on four threads beside others: 0.7 ms once, and 20 to 60 otherwise; on one thread 2.5."""
    monkeypatch.setattr("prism.instantiate.rounds.SHARE", 0.0)  # as samples were then
    clock = Clock()
    steady = clock.contender(2.5e-3)
    lucky = clock.contender(0.7e-3, lambda n: 1.0 if 4 <= n < 16 else 60.0)
    samples = contest([lucky, steady], ["baseline", "baseline"], 20, 60.0)
    assert min(samples[0]) < 1.5e-3, "it was lucky"
    assert len(samples[1]) == HEATS + 20


def test_a_sample_is_as_long_as_it_should_be_whatever_a_call_takes_now() -> None:
    """As recorded of torch.compile on four threads while a core was taken: 0.4 ms, or three slices of a scheduler."""
    clock = Clock()
    stalled = [True]
    call = clock.contender(0.4e-3, lambda _: 30.0 if stalled[0] else 1.0)
    call.lengthen(0.05)
    before = clock.now
    assert call.sample() == pytest.approx(12e-3)
    assert clock.now - before < 0.1, "it was known to stall"
    stalled[0] = False
    before = clock.now
    assert call.sample() == pytest.approx(0.4e-3)
    assert clock.now - before > 0.05, "calls that stalled before do not make the sample short"
    stalled[0] = True
    before = clock.now
    assert call.sample() == pytest.approx(12e-3)
    assert clock.now - before < 0.1, "calls that were short before do not make it long"


def test_where_cores_are_taken_what_is_near_on_one_thread_stays_on_all() -> None:
    def lengths(crowded: bool) -> list[int]:
        clock = Clock()
        one, everything, far = clock.contender(5e-3), clock.contender(4e-3, lambda n: 50.0), clock.contender(20e-3)
        code = ["eager", "eager", "compiled"]
        samples = contest([one, everything, far], ["baseline"] * 3, 20, 60.0, code, crowded)
        return [len(s) for s in samples]

    assert lengths(False) == [HEATS + 20, FIRST_HEATS, FIRST_HEATS]
    assert lengths(True) == [HEATS + 20, HEATS + 20, HEATS]


def test_what_is_slow_on_every_number_of_threads_is_not_sampled() -> None:
    clock = Clock()
    made = [clock.contender(s) for s in (1e-3, 0.1, 0.11, 1.2e-3, 0.12)]
    code = ["quick", "slow", "slow", "mixed", "mixed"]
    samples = contest(made, ["baseline"] * 5, 20, 60.0, code)
    assert [len(s) for s in samples] == [HEATS + 20, 1, 1, HEATS + 20, FIRST_HEATS]
    assert samples[1] == [pytest.approx(0.1)]
    alone = contest([clock.contender(s) for s in (1e-3, 0.1)], ["baseline"] * 2, 20, 60.0, ["quick", "slow"])
    assert len(alone[1]) == FIRST_HEATS, "one call may have stalled"


def test_children_compete_for_cores_as_what_the_user_starts_does() -> None:
    """Linux shares cores between sessions first: in one of its own a child has other shares than a loop by hand."""
    said = run_tool([sys.executable, "-c", "import os; print(os.getsid(0), os.getpgid(0) == os.getpid())"], 60.0)
    assert said.output.split() == [str(os.getsid(0)), "True"]


def test_a_turn_begins_with_its_threads() -> None:
    said: list[str] = []
    clock = Clock()

    def call() -> Sequence[Any]:
        clock.sleep(1.0)
        return ()

    made = [Prepared(call, ready=partial(said.append, n), clock=clock, sleep=clock.sleep) for n in ("one", "all")]
    said.clear()
    contest(made, ["a", "b"], 1, 1.0)
    assert said[:4] == ["one", "all", "all", "one"]


# The machine's load.


def test_what_the_process_that_waits_still_does_is_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.1)
    assert process_seconds(2**22 + 1) == 0.0, "there is none"
    busy, waits = iter((10.0, 12.0, 20.0, 22.0)), iter((5.0, 7.0))
    monkeypatch.setattr(machine_load, "busy_seconds", lambda *_: next(busy))
    monkeypatch.setattr(machine_load, "process_seconds", lambda _: next(waits))
    assert load_now(1, waits=7).others == 0.0, "two seconds of it, which the other took"
    assert load_now(1).others != 0.0


def test_a_match_takes_the_word_of_the_one_just_before_for_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena({}, others=2.5)
    with closing(Bench(PROGRAM, GPU, {}, worker=arena)) as bench:
        for _ in range(2):
            bench.contest(EAGER, 5, 1.0)
    first, second = arena.requests
    monkeypatch.setattr(cpu_worker, "load_now", lambda threads, waits: Load(4, threads, 0.0, 0.0))
    before = cpu_worker._load_before
    assert not before(first, 4).crowded
    assert before(second, 4).crowded
    assert not before(second, 1).crowded, "there is room for one thread beside the others"


STAT = """cpu  100 0 100 1000 0 0 0 0 0 0
cpu0 {0} 0 50 500 7 0 0 {1} 0 0
cpu1 10 0 50 500 7 0 0 0 0 0
cpu11 99999 0 0 0 0 0 0 0 0 0
intr 5
"""


def test_what_children_and_theirs_take_is_none_of_others() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}]); input()"
    before = family_seconds()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert family_seconds() - before > 0.25  # a child's child, that lives
        child.stdin.close()
    assert family_seconds() - before > 0.25  # both have ended


def test_busy_time_is_counted_without_idle_time_and_of_our_cores_alone() -> None:
    hz = 100
    assert busy_seconds(STAT.format(20, 30), frozenset({0, 1})) == pytest.approx((100 + 60) / hz)
    assert busy_seconds(STAT.format(20, 30), frozenset({1})) == pytest.approx(60 / hz)
    assert busy_seconds("", frozenset({0})) is None


def test_what_this_process_did_is_not_others_load() -> None:
    clock, own, counts = Clock(), [0.0], [100]
    watch = Watch(frozenset({0, 1}), lambda: STAT.format(counts[0], 0), clock, lambda: own[0])
    clock.now, own[0], counts[0] = 10.0, 4.0, 100 + 1400
    load = watch.load(2)
    assert load.others == pytest.approx(1.0), "14 seconds of processor time in 10, 4 of them ours"
    assert (load.cores, load.threads) == (2, 2)


def test_a_load_beyond_the_cores_is_told() -> None:
    assert Load(4, 4, 1.0, 0.0).crowded
    assert not Load(4, 4, 0.2, 9.0).crowded, "the average lags"
    assert not Load(4, 1, 2.0, 0.0).crowded, "there is room for one thread"
    assert Load(4, 4, None, 9.0).crowded
    assert not Load(4, 4, None, None).crowded


# Matches.


def kernel(name: str, threads: int = 4) -> Contender:
    return Contender(name, Path(f"{name}.py"), GRAPH, Config({}, {}, {}), threads=threads)


EAGER = [Contender("torch eager", threads=n) for n in (4, 1)]


def confirmed(
    arena: Arena, store: Store | None = None, baselines: Sequence[Contender] = EAGER, until: Deadline = NEVER
) -> Confirmation:
    with closing(Bench(PROGRAM, GPU, {}, worker=arena)) as bench:
        return confirm(bench, [kernel("k"), kernel("k", 1)], baselines, store=store or Store(), until=until)


@pytest.mark.parametrize(("slow", "part"), [(1.0, 0.5), (2.5, 0.2)])
def test_a_match_is_as_short_as_what_time_is_left_on_a_slow_machine(
    slow: float, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism.instantiate.confirm.slowed", lambda: slow)
    monkeypatch.setattr("prism.instantiate.confirm.ROUNDS_S", ROUNDS_S)  # tests have shorter ones
    arena = Arena({"eager4": 2.0, "eager1": 2.0})
    confirmed(arena, until=Deadline.after(0.5 * SHARES * ROUNDS_S))
    assert arena.requests[0]["limit_s"] == pytest.approx(part * ROUNDS_S, rel=0.2)
    free = Arena({"eager4": 2.0, "eager1": 2.0})
    confirmed(free)
    assert free.requests[0]["limit_s"] == ROUNDS_S


def test_the_best_of_each_side_over_threads_is_compared() -> None:
    arena = Arena({"eager4": 8.0, "eager1": 2.0, "k4": 9.0, "k1": 1.0})
    found = confirmed(arena)
    assert found.ratios == pytest.approx([2.0, 2.0])
    assert found.won
    best = found.deciding.best(KERNEL)
    assert best is not None
    assert (best.name, best.threads) == ("k", 1)
    assert best.seconds == pytest.approx(1.0, rel=0.01)
    assert len(arena.requests[0]["contenders"]) == 4
    assert len(arena.requests[1]["contenders"]) == 2, "those that had no chance stay away"


@pytest.mark.parametrize(("others", "times"), [(3.0, LONGER), (0.0, 1)])
def test_a_gain_above_three_is_measured_again_and_the_lesser_counts_for_longer_beside_others(
    others: float, times: int
) -> None:
    script = ({"eager4": s, "eager1": s} for s in (171.0, 1.05, 1.1))
    arena = Arena(*script, others=others)
    found = confirmed(arena)
    assert arena.requests[1]["repeats"] == times * arena.requests[0]["repeats"]
    assert found.deciding.ratio == pytest.approx(1.05)
    assert max(found.ratios) == pytest.approx(171.0), "what was seen is told"


def test_what_is_told_of_the_whole_meets_its_baseline_once() -> None:
    arena = Arena({"eager4": 2.0, "eager1": 2.0})
    with closing(Bench(PROGRAM, GPU, {}, worker=arena)) as bench:
        found = confirm(bench, [kernel("k")], EAGER, store=Store(), most=1)
    assert len(arena.requests) == len(found.matches) == 1
    assert found.won


def test_matches_that_disagree_are_repeated_up_to_a_bound() -> None:
    differing = [{"eager4": s, "eager1": s} for s in (1.8, 1.4, 1.8, 1.4, 1.8, 1.4)]
    arena = Arena(*differing)
    found = confirmed(arena)
    assert len(arena.requests) == MATCHES
    assert found.deciding.ratio == pytest.approx(1.4)
    far = [{name: 3 * s for name, s in match.items()} for match in differing]
    assert len(confirmed(Arena(*far)).matches) == 2, "won by far, the least is told whatever others say"
    assert len(confirmed(Arena(*far, others=3.0)).matches) == MATCHES, "others may have made it"
    agreeing = Arena({"eager4": 2.0, "eager1": 2.0}, {"eager4": 1.9, "eager1": 1.9})
    assert len(confirmed(agreeing).matches) == 2
    hardly = [{"eager4": g, "eager1": 9.0, "k4": 1.0, "k1": 9.0} for g in (1.5, 1.01, 1.5, 1.5)]
    assert len(confirmed(Arena(*hardly)).matches) == 2, "the least is none, and stays the least"


def test_a_win_is_a_win_in_every_match_and_a_loss_is_told_as_a_range() -> None:
    arena = Arena({"eager4": 1.15, "eager1": 1.15}, {"eager4": 0.97, "eager1": 0.97})
    assert not confirmed(arena).won
    lost = Arena({"eager4": 0.5, "eager1": 0.9}, {"eager4": 0.8, "eager1": 0.9})
    found = confirmed(lost)
    assert not found.won
    assert len(lost.requests) == 2, "what a baseline of several threads takes differs from process to process"
    assert found.between == pytest.approx((0.5, 0.8))
    best = found.deciding.best(KERNEL)
    assert best is not None
    assert best.seconds == pytest.approx(1.0, rel=0.01), "its own time, whatever the baseline takes"


def test_a_gain_within_the_noise_is_none_and_is_looked_at_more_often() -> None:
    noise = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
    arena = Arena({"eager4": 1.05, "eager1": 1.05}, noise=noise)
    found = confirmed(arena)
    assert min(found.ratios) > 1.0, "in every match it was faster"
    assert found.between[0] < 1.0 < found.between[1]
    assert not found.won
    assert len(found.matches) == MATCHES
    clear = Arena({"eager4": 1.5, "eager1": 1.5}, noise=noise)
    won = confirmed(clear)
    assert won.won
    assert len(won.matches) == 2
    assert won.between[0] < 1.5 < won.between[1]
    assert won.between[1] / won.between[0] > 1.1
    # What is a hair faster, and surely so, may be another process's luck.
    assert not confirmed(Arena({"eager4": 1.012, "eager1": 1.012})).won
    assert confirmed(Arena({"eager4": 1.03, "eager1": 1.03})).won


def test_a_stored_confirmation_is_the_same_and_a_new_one_replaces_it(tmp_path: Path) -> None:
    cache = Cache("timings", tmp_path)
    first = confirmed(Arena({"eager4": 2.0, "eager1": 2.0}), Store(cache))
    assert not first.stored
    other = Arena({"eager4": 0.5, "eager1": 0.5})
    again = confirmed(other, Store(cache))
    assert not other.requests
    assert again.stored
    assert (again.matches, again.between, again.date) == (first.matches, first.between, first.date)
    anew = confirmed(other, Store(cache, anew=True))
    assert not anew.won
    assert not anew.stored
    assert confirmed(Arena({}), Store(cache)).matches == anew.matches, "what was measured last is what is stored"
    assert confirmed(Arena({}), Store(cache)) == replace(anew, stored=True)
    for path in (tmp_path / "timings-1").rglob("*.json"):
        path.write_text('{"matches": [{"standings": [1]}]}')
    assert not confirmed(other, Store(cache)).stored, "what is damaged is measured again"


def test_what_takes_the_child_with_it_is_left_out_and_the_others_meet() -> None:
    arena = Arena({"eager4": 2.0, "eager1": 2.0, "k4": 1.0})
    with closing(Bench(PROGRAM, GPU, {}, worker=arena)) as bench:
        match = bench.contest([*EAGER, kernel("dies"), kernel("k")], 5, 1.0)
    assert [t.failure for t in match.timed] == [None, None, Failure.CRASH, None]
    assert len(arena.requests[-1]["contenders"]) == 3


def test_the_child_of_a_contest_is_begun_while_something_else_is_done() -> None:
    children: list[Arena] = []

    def child() -> Arena:
        children.append(Arena({"eager4": 2.0, "eager1": 2.0}))
        return children[-1]

    with closing(Bench(PROGRAM, GPU, {}, worker=Arena({}), arena=child)) as bench:
        bench.begin(EAGER)
        bench.begin(EAGER)
        assert len(children) == 1
        match = bench.contest([*EAGER, kernel("k")], 5, 1.0)
        assert [t.failure for t in match.timed] == [None] * 3
        (asked,), (met,) = children[0].prepared, children[0].requests
        assert asked["contenders"] == met["contenders"][:2]
        bench.contest([*EAGER, kernel("k")], 5, 1.0)
        assert len(children) == 2, "a contest has a child of its own"
        bench.begin(EAGER, contests=2)
        bench.contest([*EAGER, kernel("k")], 5, 1.0)
        assert len(children) == 4, "the next two have theirs"
    assert [c._child.closed for c in children] == [True] * 4, "also that of a contest that is not to be"


def test_children_that_make_contenders_ready_stand_still_while_trials_are_timed() -> None:
    seen: list[bool] = []

    class Timing(Arena):
        def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
            if request.get("contenders"):
                seen.append(child._child.halted)
            return super().ask(request, timeout_s)

    child = Arena({"eager4": 2.0, "eager1": 2.0})
    with closing(Bench(PROGRAM, GPU, {}, worker=Timing({"k4": 1.0}), arena=lambda: child)) as bench:
        bench.ahead(EAGER)
        bench.time([kernel("k")], 5)
        assert not child._child.halted
        bench.contest([*EAGER, kernel("k")], 5, 1.0)
        (asked,) = child.prepared
    assert seen == [True]
    assert [c["kind"] for c in asked["contenders"]] == ["eager", "eager"]


@pytest.mark.parametrize(("slow", "again"), [(4.0, True), (7.0, False), (100.0, False)])
def test_what_will_not_meet_again_is_not_made_ready_in_the_second_child(slow: float, again: bool) -> None:
    children: list[Arena] = []

    def child() -> Arena:
        children.append(Arena({"eager4": 2.0, "eager1": slow}))
        return children[-1]

    with closing(Bench(PROGRAM, GPU, {}, worker=Arena({}), arena=child)) as bench:
        bench.begin(EAGER, contests=2)
        bench.contest([*EAGER, kernel("k")], 5, 1.0)
        asked = [[(c["kind"], c["threads"]) for c in child.prepared[0]["contenders"]] for child in children]
    assert asked == [[("eager", 4), ("eager", 1)], [("eager", 4), *[("eager", 1)] * again]]


def test_what_the_first_child_did_not_make_is_not_made_ready_in_the_second() -> None:
    children: list[Arena] = []

    class Choosy(Arena):
        def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
            reply = super().ask(request, timeout_s)
            reply.answer.get("seconds", {}).pop("1", None)
            return reply

    def child() -> Arena:
        children.append(Choosy({"eager4": 2.0}))
        return children[-1]

    with closing(Bench(PROGRAM, GPU, {}, worker=Arena({}), arena=child)) as bench:
        bench.begin(EAGER, contests=2)
        bench.contest([*EAGER, kernel("k")], 5, 1.0)
    assert [len(child.prepared[0]["contenders"]) for child in children] == [2, 1]


def test_what_may_be_among_the_near_is_made_ready_for_the_second_contest() -> None:
    assert max(NEAR, NEAR_QUIET) < AGAIN < HOPELESS


def test_a_child_imports_all_that_it_needs_without_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Sequence[str], bool]] = []
    monkeypatch.setattr(contenders, "wake", lambda kinds: seen.append((kinds, gc.isenabled())))
    monkeypatch.setattr(contenders, "contenders_on", lambda path: pytest.skip("nothing is imported any more"))
    kept = gc.get_freeze_count()
    cpu_worker.wake(["onnxruntime"])
    for asked in ({"prepare": True}, {"limit_s": 1.0, "repeats": 1}):
        with pytest.raises(pytest.skip.Exception):
            cpu_worker.answer({"contenders": [{"kind": "eager", "threads": 1}], "inputs": "", **asked})
    assert seen == [(["onnxruntime"], False), (["eager"], False), (["eager"], False)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > kept


def test_without_any_baseline_that_can_be_timed_there_is_an_error() -> None:
    class Dead(Arena):
        def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
            return Reply(Ending.CRASH, detail="no CUDA")

    with pytest.raises(UsageError, match="no CUDA"):
        confirmed(Dead({}))


def test_the_baselines_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    model = replace(PROGRAM, source=Path("m.onnx"))
    monkeypatch.setattr(util, "find_spec", lambda name: object())
    found, missing = installed(model, "cpu", ("eager", "compile", "onnxruntime"), (4, 1))
    assert [(c.name, c.threads) for c in found] == [
        (n, k) for n in ("torch eager", "torch.compile", "onnxruntime") for k in (4, 1)
    ]
    assert not missing
    assert usual(model, "cpu") == ("eager", "onnxruntime"), "a model's file is run by onnxruntime"
    assert usual(model, "cuda") == usual(PROGRAM, "cpu") == ("eager", "compile", "onnxruntime")
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    assert usual(model, "cpu") == ("eager", "compile", "onnxruntime")
    assert installed(model, "cpu", ("onnxruntime",), (1,)) == ([], {"onnxruntime": "it is not installed"})
    assert "ONNX file" in installed(PROGRAM, "cpu", ("onnxruntime",), (1,))[1]["onnxruntime"]
    assert "CPUs" in installed(model, "cuda", ("onnxruntime",), (0,))[1]["onnxruntime"]
    cell = torch.nn.GRU(4, 4, batch_first=True)
    looped = replace(prism.trace(lambda x: cell(x)[0], (torch.ones(1, 40, 4),)), source=Path("m.onnx"))
    assert looped.loops
    every = ("eager", "compile", "onnxruntime")
    monkeypatch.setattr(util, "find_spec", lambda name: object())
    kept, why = installed(looped, "cpu", every, (1,))
    assert ([c.name for c in kept], list(why)) == (["torch.compile", "onnxruntime"], ["torch eager"])
    assert not installed(looped, "cpu", ("eager",), (1,))[1], "nothing else was asked for"
    assert list(installed(replace(looped, source=None), "cpu", every, (1,))[1]) == ["onnxruntime"]
    with pytest.raises(UsageError, match="tvm"):
        optimize(PROGRAM, target="cpu", baselines=["tvm"])
    with pytest.raises(UsageError, match="nothing to compare with"):
        optimize(PROGRAM, target="cpu", baselines=[])


# What a run ends in: an optimized function, timed by a script.


def function(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * g, -1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Optimizes `function`, its kernels timed by a script, with the measurements of earlier calls stored."""
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path))
    program = prism.trace(function, (torch.randn(4, 32), torch.randn(32)))

    def optimized(
        eager: float, kernels: float, others: float = 0.0, noise: Sequence[float] = (0.0,) * 8, **options: Any
    ) -> Any:
        scripted(monkeypatch, {"eager": eager, "kernels": kernels}, others=others, noise=noise)
        budget = prism.api.SearchBudget(max_sgraphs=1)
        return optimize(program, target="cpu", trials=1, budget=budget, baselines=["eager"], **options)

    return optimized


def test_a_run_ends_as_before_with_the_kernels_own_time(run: Callable[..., Any]) -> None:
    with pytest.raises(NoImprovementError) as lost:
        run(eager=2e-3, kernels=5e-3)
    assert "the best takes 5.0" in lost.value.why, "not the baseline's time"
    assert "torch eager" in lost.value.why
    assert " 2.0" in lost.value.why
    assert "timed anew" in lost.value.why
    # Faster now; but what was measured was stored.
    with pytest.raises(NoImprovementError) as again:
        run(eager=2e-3, kernels=1e-3)
    assert again.value.why.split(" (")[0] == lost.value.why.split(" (")[0]
    assert "stored, of 20" in again.value.why
    assert "--anew" in again.value.fix
    report: RunReport = run(eager=2e-3, kernels=1e-3, others=3.0, anew=True).report
    assert report.speedup == pytest.approx(2.0)
    assert report.measurement is not None
    assert not report.measurement.stored
    holds_quartiles_and_the_load_and_warns_of_too_much(report)
    stored: RunReport = run(eager=9e-3, kernels=8e-3).report
    assert stored.measurement is not None
    assert stored.measurement.stored
    assert times_line(stored) == times_line(report)
    # The load is another one now: it is said, and changes nothing else.
    (warning,) = [w for w in stored.warnings if "busy" in w]
    assert f"stored, of {stored.measurement.date}, when other processes kept 3.0 of 4 cores busy; now" in warning
    assert "now they keep 0.0" in warning
    assert load_line(stored.measurement).endswith(", 0.0 now")
    assert stored.measurement.between == report.measurement.between
    same: RunReport = run(eager=9e-3, kernels=8e-3, others=3.1).report
    assert not [w for w in same.warnings if "stored" in w]
    assert stored.baseline.startswith("torch eager on ")
    assert "--anew" in measured_line(stored.measurement)


def test_a_faster_call_within_the_noise_is_not_sold(run: Callable[..., Any]) -> None:
    noise = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
    with pytest.raises(NoImprovementError) as lost:
        run(eager=1.04e-3, kernels=1e-3, others=3.0, noise=noise)
    assert "with what these vary by, 0." in lost.value.why
    assert "other processes kept 3.0 of 4 cores busy" in lost.value.why
    assert "--anew" in lost.value.fix, "on an idle machine it may end in another way"
    made = run(eager=1.04e-3, kernels=1e-3, noise=noise, only_better=False)
    assert "no faster: 0." in speedup(made.report)
    assert "no more than noise" in speedup(made.report)
    # What is made is called as the function is.
    x, g = torch.randn(4, 32), torch.randn(32)
    for out in (made(x, g), made(x, g=g, threads=1)):
        torch.testing.assert_close(out, function(x, g))
    with pytest.raises(ValueError, match="x must have the shape"):
        made(x[:3], g)


def holds_quartiles_and_the_load_and_warns_of_too_much(report: RunReport) -> None:
    m = report.measurement
    assert m is not None
    assert {(c.name, c.chosen) for c in m.contenders} >= {("torch eager", True), ("prism", True)}
    assert all(0 < c.lower <= c.median <= c.upper for c in m.contenders)
    assert (m.cores, m.others) == (4, 3.0)
    assert "3.0 of 4 cores" in load_line(m)
    (warning,) = [w for w in report.warnings if "busy" in w]
    assert "3.0 of 4 cores" in warning


def test_gains_that_disagree_are_printed_as_a_range() -> None:
    from report_samples import report

    contenders = (
        ContenderReport("torch eager", 1, 2e-3, 2e-3, 3e-3, 20, True),
        ContenderReport("prism", 4, 1e-3, 2e-3, 3e-3, 20, True),
    )
    m = MeasurementReport(contenders, (2.0, 3.1, 2.9), "2026-01-01 00:00 UTC")
    made = report(baseline_seconds=2e-3, best_seconds=1e-3, measurement=m, baseline="torch eager on 1 thread")
    assert speedup(made) == "2.00x to 3.10x as fast: measurements disagree"
    assert times_line(made).startswith("2.00 ms torch eager on 1 thread → 1.00 ms on 4 threads, 2.00x to 3.10x")
    assert speedup(report(measurement=MeasurementReport(contenders, (1.85, 1.9), ""))) == "1.85x as fast"
    known = MeasurementReport(contenders, (1.85, 1.9), "", between=(1.82, 1.95))
    assert speedup(report(measurement=known)) == "1.85x as fast"
    assert measured_line(known).endswith("1.85x, 1.90x; with what these vary by, 1.82x to 1.95x")
    noisy = MeasurementReport(contenders, (1.85, 1.9), "", between=(1.6, 2.1))
    assert speedup(report(measurement=noisy)) == "1.60x to 2.10x as fast"
    none = MeasurementReport(contenders, (1.03, 1.01), "", between=(0.97, 1.06), faster=False)
    assert speedup(report(measurement=none)) == "no faster: 0.97x to 1.06x is no more than noise"


def test_the_lines_to_type_call_it_on_the_threads_that_were_fastest() -> None:
    from report_samples import report

    contenders = [ContenderReport("prism", n, 1e-3, 1e-3, 1e-3, 20, n == 1) for n in (4, 1)]
    m = MeasurementReport(tuple(contenders), (2.0, 2.0), "", threads=4)
    assert "y = sample(threads=1)" in example_call(report(measurement=m), "sample.py")
    every = replace(m, contenders=tuple(replace(c, chosen=c.threads == 4) for c in contenders))
    assert "y = sample()" in example_call(report(measurement=every), "sample.py")
    assert "y = sample()" in example_call(report(), "sample.py")


@pytest.mark.parametrize("function", ["sample", "torch", "print"])
def test_lines_to_type_run_whatever_arguments_are_called(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from report_samples import report

    named = tuple(Argument(n, "float32", (2,)) for n in ("torch", "y", "print", "torch_", "sample"))
    (tmp_path / f"{function}_module.py").write_text(f"def {function}(*args): return sum(t.numel() for t in args)")
    monkeypatch.syspath_prepend(tmp_path)
    lines = example_call(report(arguments=named, name=function, backend="C++"), f"{function}_module.py")
    known: dict[str, object] = {}
    exec("\n".join(lines), known)
    assert known[lines[-1].partition(" ")[0]] == 10
