"""A run that may take so long: it ends then, with what it has, and the next one goes on."""

from __future__ import annotations

import importlib
import math
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from scripted_clock import Arena
from test_cache import HEAD, WORK, Run
from test_confirm import confirmed
from test_study import large

from prism.api import choosing, composing, partitioned
from prism.api.loading import load
from prism.api.partitioned import ONE_BY_ONE, PartitionedSearch, search_regions
from prism.api.region_search import SearchBudget, SearchResult, run_search
from prism.api.results import Results
from prism.api.time_limit import (
    CLOSING_S,
    CROWDED,
    ENDING_S,
    ENDLESS,
    HARDEST,
    LEAST_SEARCHED,
    MEETING_S,
    SEARCHED,
    SLOWEST,
    TRIED,
    SearchTime,
    grace,
    here,
    regions_end,
    search_end,
    search_time,
    trials_end,
)
from prism.api.whole_models import optimize_model
from prism.api.whole_ranges import optimize_model_ranges
from prism.cli.app import main
from prism.cost.device import Device, multicore
from prism.egraph.worker import Worker as EGraphWorker
from prism.errors import ExitCode, NoImprovementError
from prism.events import Evidence, Recorder
from prism.generate.partition import RegionBounds, partition
from prism.instantiate import machine_load
from prism.instantiate.cache import Cache, Store
from prism.instantiate.confirm import confirm
from prism.instantiate.gate.check import KernelRunner, check_module
from prism.instantiate.gate.plan import Case
from prism.instantiate.study import Candidate, Outcome, TuneResult, tune
from prism.platforms import cpu
from prism.process.deadline import NEVER, SOONEST_S, Deadline, OutOfTimeError, since_start
from prism.process.worker import Ending, Pool, Reply, Worker
from prism.program.nodes import Map, Program, walk
from prism.program.region import Region
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

WAITS = """import sys, time
for line in sys.stdin:
    time.sleep(9 if 'long' in line else 0)
    print(line, end="", flush=True)
"""


def begun(*calls: Callable[[], Any], seconds: float) -> bool:
    """Whether the calls were ended at the deadline, and did not come to their end."""
    done = False
    try:
        with Deadline.after(seconds).limited():
            for call in calls:
                call()
            done = True
    except OutOfTimeError:
        return not done
    return False


def sleeps() -> None:
    time.sleep(9)


def test_what_is_under_way_ends_at_the_deadline_and_the_signal_is_as_before() -> None:
    before = signal.getsignal(signal.SIGALRM)
    start = time.monotonic()
    assert begun(sleeps, seconds=0.05)
    assert time.monotonic() - start < 9
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    assert not begun(lambda: None, seconds=9)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    ran: list[int] = []
    assert begun(lambda: ran.append(1), seconds=0)
    assert not ran, "nothing is begun after it"


def test_of_two_deadlines_the_earlier_ends_both_and_the_outer_one_goes_on_after_the_inner() -> None:
    assert begun(lambda: begun(sleeps, seconds=9), sleeps, seconds=0.05)
    inner: list[bool] = []
    assert begun(lambda: inner.append(begun(sleeps, seconds=0.05)), sleeps, seconds=0.2)
    assert inner == [True]


def test_a_deadline_is_known_whatever_an_interruption_was_turned_into() -> None:
    class OtherError(KeyboardInterrupt):
        pass

    def turns() -> None:
        try:
            sleeps()
        except KeyboardInterrupt as error:
            raise OtherError from error

    assert begun(turns, seconds=0.05)
    with pytest.raises(KeyboardInterrupt) as own, Deadline.after(9).limited():
        raise KeyboardInterrupt
    assert not isinstance(own.value, OutOfTimeError), "it was Ctrl-C"


def test_a_deadline_that_comes_where_nothing_may_be_raised_comes_again() -> None:
    """In a callback of the collector of garbage Python says that an error was ignored, and goes on."""

    class Thing:
        pass

    def collects() -> None:
        thing = Thing()
        seen = weakref.ref(thing, lambda _: sleeps())
        del thing
        assert seen() is None

    assert begun(collects, sleeps, seconds=0.05)
    assert not begun(lambda: None, seconds=9)


def test_a_deadline_is_one_where_what_it_interrupts_fails_in_its_own_way() -> None:
    def turns() -> None:
        try:
            sleeps()
        except KeyboardInterrupt:
            raise SystemError("AST constructor recursion depth mismatch") from None

    assert begun(turns, seconds=0.05)

    def fails() -> None:
        raise SystemError("by itself")

    with pytest.raises(SystemError, match="by itself"):
        begun(fails, seconds=9)


def test_what_is_not_able_to_end_goes_on_until_it_is_and_not_beyond_what_is_around_it() -> None:
    ready: list[int] = []

    def within(seconds: float) -> None:
        with Deadline.after(seconds).limited(lambda: bool(ready)):
            for _ in range(5):
                time.sleep(0.03)
            ready.append(1)
            sleeps()

    assert begun(lambda: within(0.01), seconds=60)
    assert ready == [1]
    ready.clear()
    with (
        pytest.raises(OutOfTimeError),
        Deadline.after(0.1).limited() as around,
        Deadline.after(0.01).limited(lambda: False),
    ):
        sleeps()
    assert around.rung
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_with_little_time_the_search_is_left_its_share_and_trials_leave_what_a_first_match_takes() -> None:
    for seconds in (5.0, 20.0, 30.0, 60.0, 600.0):
        time_ = Deadline.after(seconds)
        searched, tried = search_end(time_).left / seconds, trials_end(time_).left
        assert LEAST_SEARCHED - 0.01 < searched < SEARCHED + 0.01
        assert tried <= max(0.0, seconds - MEETING_S) + 0.1
        assert tried <= TRIED * seconds + 0.1
    assert search_end(Deadline.after(600.0)).left == pytest.approx(SEARCHED * 600, rel=0.01)
    assert not search_end(NEVER).finite
    assert not trials_end(NEVER).finite


def test_a_slice_of_the_searches_time_leaves_as_much_for_each_region_and_for_the_parts_of_one_that_has_no_proof() -> (
    None
):
    time_ = SearchTime(Deadline.after(40.0), Deadline.after(80.0))
    mine = time_.slice(4, 0.5)
    assert mine.until.left == pytest.approx(20.0, abs=0.5), "as much as may be gained from it"
    assert mine.last.left == pytest.approx(20.0, abs=0.5), "no sooner, or what is proved would be lost"
    assert time_.slice(4, 0.25).last.left == pytest.approx(16.0, abs=0.5)
    assert time_.slice(4, 0.01).until.left == pytest.approx(5.0, abs=0.5)
    assert time_.slice(1, 1.0).until.left == pytest.approx(40.0, abs=0.5)
    assert time_.slice(1, 1.0).last.left == pytest.approx(40.0, abs=0.5)
    assert not ENDLESS.slice(3, 0.5).last.finite
    assert time_.proofs_alone().slice(9, 0.5).last.left == pytest.approx(80.0 * HARDEST, abs=0.5)
    assert time_.proofs_alone().slice(1, 0.5).last.left == pytest.approx(40.0, abs=0.5)


def test_seconds_that_were_measured_alone_are_more_on_a_machine_that_others_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled = tmp_path / "schedstat"
    monkeypatch.setattr(machine_load, "SCHEDULED", scheduled)
    for text, times in (("100 20 7", 1.0), ("100 200 7", 2.0), ("0 0 0", 1.0), ("", 1.0), ("100 100000 7", SLOWEST)):
        scheduled.write_text(text)
        assert here(10.0) == pytest.approx(10.0 * times)
    scheduled.unlink()
    assert here(10.0) == 10.0
    scheduled.write_text("100 350 7")
    assert regions_end(Deadline.after(60.0), 2).left == pytest.approx(60.0 - ENDING_S * 3.0, abs=0.5)
    scheduled.write_text("100 1000 7")
    assert trials_end(Deadline.after(40.0)).left == pytest.approx(10.0, abs=0.5), "a quarter in any case"


def test_parts_of_what_is_left() -> None:
    assert not Deadline().finite
    assert Deadline().part(0.5).left == math.inf
    assert Deadline.after(100).part(0.25).left == pytest.approx(25, abs=1)
    assert Deadline(time.monotonic() - 1).left == 0.0
    assert 0.0 < since_start() < 86400 * 365


def test_an_import_is_not_cut_in_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_one.py").write_text("import time\nfor _ in range(20):\n    time.sleep(0.01)\nwhole = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert begun(lambda: importlib.import_module("slow_one"), sleeps, seconds=0.05)
    assert sys.modules.pop("slow_one").whole == 1


def test_an_answer_that_came_too_late_is_not_taken_for_the_next_one() -> None:
    worker = Worker([sys.executable, "-c", WAITS], {})
    try:
        with pytest.raises(OutOfTimeError), Deadline.after(0.1).limited():
            worker.ask({"what": "long"}, 60.0)
        reply = worker.ask({"what": "short"}, 60.0)
        assert (reply.ending, reply.answer["what"]) == (Ending.ANSWERED, "short")
    finally:
        worker.close()


def test_threads_that_ask_one_child_get_the_answers_to_their_own_requests() -> None:
    """A region without a trial is checked while the child still reads what trials would have been given."""
    worker = Worker([sys.executable, "-c", WAITS.replace("9", "0.3")], {})
    try:
        with ThreadPoolExecutor(1) as threads:
            other = threads.submit(worker.ask, {"what": "long"}, 60.0)
            while not worker.starts:
                time.sleep(0.01)
            own = worker.ask({"what": "short"}, 60.0)
            assert (own.answer["what"], other.result().answer["what"]) == ("short", "long")
    finally:
        worker.close()


def test_a_child_that_is_interrupted_answers_the_next_request() -> None:
    """Where the time of one region ends within its checks, those of the next, and of the whole, are still to run."""
    worker = Worker([sys.executable, "-c", WAITS.replace("9", "8")], {})  # one that no test has left
    try:
        with ThreadPoolExecutor(1) as threads:
            long = threads.submit(worker.ask, {"what": "long"}, 60.0)
            while not worker.starts:
                time.sleep(0.01)
            worker.interrupt()
            assert long.result().ending is Ending.CRASH
        assert worker.ask({"what": "short"}, 60.0).answer["what"] == "short"
        worker.interrupt(last=True)
        assert worker.ask({"what": "short"}, 60.0).ending is Ending.CRASH
    finally:
        worker.close()


def test_a_case_that_waits_for_a_compiler_ends_where_its_runner_is_interrupted_and_the_next_one_runs() -> None:
    compiling: list[Future[Reply]] = []

    def begin() -> Future[Reply]:
        compiling.append(Future())
        return compiling[-1]

    asked: list[object] = []

    class Child(Worker):
        def __init__(self) -> None:
            super().__init__([sys.executable], {})

        def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
            asked.append(request)
            return Reply(Ending.ANSWERED, {"error": "for a test"})

    case, config, sgraph = SimpleNamespace(config=Config({}, {}, {})), Config({}, {}, {}), cast("SGraph", None)
    runner = KernelRunner("cpu", "a test", Child(), lambda module, sgraph, case: (0, begin))
    with closing(runner), ThreadPoolExecutor(1) as threads:
        for ends in (runner.interrupt, lambda: compiling[-1].set_result(Reply(Ending.ANSWERED))):
            runner.ahead(Path("m.py"), sgraph, [cast("Case", case)])
            running = threads.submit(runner.run, Path("m.py"), config, [], [], [])
            while runner._ahead:  # until it looks at what is compiled
                time.sleep(0.01)
            ends()
            running.result(60)
    assert len(asked) == 1, "nobody wants to know any more what the first would have given"


class Slow:
    """Two trials, and then one that takes for ever."""

    evidence = Evidence.MEASURED
    basis = "slow"

    def __init__(self) -> None:
        self.done = 0

    def evaluate(self, points: Sequence[Any]) -> Iterator[Outcome]:
        for _ in points:
            self.done += 1
            if self.done > 2:
                time.sleep(9)
            yield Outcome(1e-3 * self.done)


def test_trials_end_with_the_time_and_a_later_study_goes_on(tmp_path: Path) -> None:
    made = large()
    asked: list[tuple[int, int, float | None]] = []
    first = tune(
        made,
        Slow(),
        region="r",
        budget=6,
        storage_dir=tmp_path,
        until=Deadline.after(4.0),
        on_trial=lambda *a: asked.append(a),
    )
    assert len(first.trials) == 2
    assert asked == [(1, 6, 1e-3), (2, 6, 1e-3)]
    slow = Slow()
    slow.done = -4
    again = tune(made, slow, region="r", budget=6, storage_dir=tmp_path)
    assert again.resumed == 2
    assert [t.point for t in again.trials[:2]] == [t.point for t in first.trials]
    assert len(again.trials) == 6


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_gate: None, unoptimised: None) -> Run:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("prism.api.time_limit.slowed", lambda: 1.0)
    # Trials that were timed on all threads are no others' where it comes to be crowded.
    monkeypatch.setattr("prism.instantiate.machine_load.Load.crowded", False)
    return Run(monkeypatch, tmp_path)


REGIONS = """m (float[4, 32] x, float[32, 32] w) => (float[4, 32] y, float[4, 32] z) {
    p = MatMul(x, w)  y = Sigmoid(p)  t = Tanh(x)  z = Mul(t, x) }"""


FINER_ONCE = RegionBounds(products=1, reductions=1, operators=2, outputs=1)
"""By these bounds regions of `REGIONS` are of two operators."""


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every definition is a region of its own from now on, and stays one."""
    monkeypatch.setattr(composing, "partition", lambda p, device: partition(p, ONE_BY_ONE))
    monkeypatch.setattr("prism.api.partitioned.whole", lambda program, device: None)
    monkeypatch.setattr("prism.api.partitioned.pairs", lambda *given: [])


def test_regions_without_time_are_taken_by_the_cost_model_until_a_run_has_more(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(monkeypatch)
    leasts: list[float] = []
    in_time = composing._in_time

    def noted(*args: Any) -> Any:
        leasts.append(args[-1])
        return in_time(*args)

    with pytest.MonkeyPatch.context() as short:
        short.setattr(composing, "_region_chosen", lambda *_: time.sleep(60))
        short.setattr("prism.api.time_limit.TUNED", 0.02)
        short.setattr(composing, "LEAST_S", 0.01)
        short.setattr(composing, "_in_time", noted)
        made = run(REGIONS, seconds=120.0)
    # A region that came to nothing in its share, of the 2.4 s for all, is a reason to give the next one more.
    assert leasts[0] == 0.01
    assert len(leasts) > 2
    assert all(least > 2 * 0.3 for least in leasts[1:])
    assert made.report.check.cases > 0, "they are checked with the whole"
    assert made.report.measurement is not None
    (told,) = (w for w in run.warnings if "tuned by the cost model alone" in w)
    assert "with more time (--budget)" in told
    with pytest.MonkeyPatch.context() as again:
        for name in WORK:
            again.setattr(name, done_again)
        for seconds in (120.0, 60.0):
            run.warnings.clear()
            same = run(REGIONS, seconds=seconds)
            assert run.stages == ["stored"]
            assert told in run.warnings
            assert same.module == made.module
            assert same.report.measurement is not None
            assert same.report.measurement.date == made.report.measurement.date
    tuned: list[str] = []

    def counted(*args: Any, **options: Any) -> Any:
        tuned.append(options["region"])
        return tune(*args, **options)

    monkeypatch.setattr(choosing, "tune", counted)
    monkeypatch.setattr("prism.api.partitioned.run_search", done_again)  # all regions were searched before
    run.warnings.clear()
    run(REGIONS, seconds=500.0)
    assert len(tuned) > 1
    assert "stored" not in run.stages
    assert not [w for w in run.warnings if "the time ended" in w]
    run.forbid(*WORK)
    for longer in (120.0, 500.0, 1e6):  # it is finished, whatever the limit
        run(REGIONS, seconds=longer)
        assert run.stages == ["stored"]


def test_a_region_of_which_nothing_is_proved_is_no_matter_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut into parts, as without a limit; the run ended, and said that its time had."""

    def refused(*_: object) -> None:
        raise NoImprovementError("no implementation was proved")

    monkeypatch.setattr(composing, "_region_chosen", refused)
    tools = cast("Any", SimpleNamespace(time=Deadline.after(0.01), cut=[]))
    with pytest.raises(NoImprovementError, match="no implementation"):
        composing._in_time(cast("Any", None), cast("Any", SimpleNamespace(proved=())), tools, tmp_path, 1.0, 9.0)
    assert not tools.cut


def test_a_run_that_was_interrupted_is_closed_with_what_it_finished_and_the_next_one_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(monkeypatch)
    in_time, begun = composing._in_time, [0]

    def interrupted(*args: Any) -> Any:
        begun[0] += 1
        if begun[0] == 3:
            raise KeyboardInterrupt
        return in_time(*args)

    with pytest.MonkeyPatch.context() as by_hand:
        by_hand.setattr(composing, "_in_time", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(REGIONS)
    tuned: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        found = tune(*args, **options)
        tuned.append(len(found.trials) - found.resumed)
        return found

    monkeypatch.setattr(choosing, "tune", counted)
    with pytest.MonkeyPatch.context() as closing:
        closing.setattr("prism.api.partitioned.run_search", done_again)
        closing.setattr(composing, "run_search", done_again)
        closes = Deadline.to_close(120.0)
        made = run(REGIONS, seconds=closes)
    assert not tuned, "nothing is begun"
    assert made.report.measurement is not None
    (told,) = (w for w in run.warnings if "tuned by the cost model alone" in w)
    assert told.startswith("interrupted: ")
    run(REGIONS, seconds=closes)
    assert "stored" not in run.stages, "what was finished since would be left out"
    with pytest.raises(NoImprovementError, match="the time ended before"):
        run("m (float[4, 48] x) => (float[4, 48] y) { t = Tanh(x)  r = Mul(t, x)  y = Exp(r) }", seconds=closes)
    run.warnings.clear()
    run(REGIONS, seconds=1.0e4)
    assert tuned
    assert "stored" not in run.stages
    assert told not in run.warnings


SEVERAL = """m (float[4, 32] x, float[32, 32] w) => (float[4, 32] y, float[4, 32] z) {
    p = MatMul(x, w)  y = Sigmoid(p)  t = Tanh(x)  s = Mul(t, x)  z = Exp(s) }"""


@pytest.fixture
def regions(tmp_path: Path) -> tuple[Program, list[Region]]:
    """A program and two regions of it, with two and three operators."""
    onnx.save(onnx.parser.parse_model(HEAD + SEVERAL), tmp_path / "several.onnx")
    program = load(tmp_path / "several.onnx")
    first, second = partition(program, RegionBounds(products=1, reductions=1, operators=3, outputs=1))
    assert [r.program.operator_count for r in (first, second)] == [2, 3]
    return program, [second, first]


class Searches:
    """Searches of regions, some of which come to the end of their time.

    Args:
        unproved: of a region of so many operators, or more, nothing is proved by then.
        cut: so many searches are cut off with something proved,
        spent: after so many seconds.
    """

    def __init__(self, *, unproved: int = 99, cut: int = 0, spent: float = 1.0) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.unproved = unproved
        self.cut, self.spent = cut, spent
        self.budgets: list[SearchBudget] = []
        self.ends: list[Deadline] = []
        self.patience: list[float] = []

    def __call__(self, program: Program, *args: Any) -> SearchResult:
        self.asked.append(
            tuple(sorted({e.op for d in program.definitions for e in walk(d.expr) if isinstance(e, Map)}))
        )
        target, budget, worker, recorder, until, begun, patience = args
        self.patience.append(patience)
        self.budgets.append(budget)
        self.ends.append(until)
        if program.operator_count >= self.unproved:
            raise OutOfTimeError
        found = run_search(program, target, budget, worker, recorder, begun=begun)
        if len(self.asked) <= self.cut:
            return replace(found, proved=found.proved[-1:], interrupted=True, seconds={"generation": self.spent})
        return found


def searched(
    regions: tuple[Program, list[Region]],
    fake: Searches,
    monkeypatch: pytest.MonkeyPatch,
    within: SearchTime | None = None,
    kept: Results | None = None,
) -> PartitionedSearch:
    monkeypatch.setattr(partitioned, "run_search", fake)
    program, parts = regions
    device = multicore("a CPU", 2, 32, 1 << 15, 1 << 19, 1 << 23)
    with closing(EGraphWorker()) as one:
        return search_regions(
            program,
            parts,
            device,
            SearchBudget(max_sgraphs=4, max_families=8),
            [one],
            Recorder(),
            kept=kept,
            as_one=False,
            time=within or search_time(Deadline.after(1000.0)),
        )


def test_a_region_of_which_nothing_is_proved_in_its_slice_goes_on_in_parts_and_others_stay(
    regions: tuple[Program, list[Region]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Searches(unproved=3)
    found = searched(regions, fake, monkeypatch)
    assert fake.asked[0] == ("mul", "sigmoid"), "most operations first"
    assert len(found.regions) == 4
    assert all(r.result.proved for r in found.regions)
    assert all(e.finite for e in fake.ends)
    assert fake.patience[:2] == [partitioned.START_S, 0.0], "none comes after the last"
    nothing = Searches(unproved=1)
    with pytest.raises(OutOfTimeError):
        searched(regions, nothing, monkeypatch)
    assert len(nothing.asked) == 2 + 5, "both, and then their operators"


def test_a_search_that_was_cut_off_has_another_turn_where_there_is_more_time_than_it_had(
    regions: tuple[Program, list[Region]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Searches(cut=2)
    found = searched(regions, fake, monkeypatch)
    assert fake.asked == [*fake.asked[:2], *fake.asked[:2]]
    assert not any(r.result.interrupted for r in found.regions)
    short = Searches(cut=99, spent=300.0)
    found = searched(regions, short, monkeypatch)
    assert all(r.result.interrupted for r in found.regions)
    assert short.asked == [*fake.asked[:2], fake.asked[0]], "400 s are enough for one, from which most may be gained"


def test_what_was_cut_off_is_searched_again_by_runs_that_have_more_time_and_by_no_other(
    regions: tuple[Program, list[Region]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = Results(tmp_path, "", "", anew=False)
    first = searched(regions, Searches(cut=99, spent=1000.0), monkeypatch, kept=kept)
    assert all(r.result.interrupted for r in first.regions)
    nothing = Searches()
    for seconds in (1000.0, 600.0):
        again = searched(regions, nothing, monkeypatch, search_time(Deadline.after(seconds)), kept)
        assert [r.result for r in again.regions] == [r.result for r in first.regions]
    assert not nothing.asked
    closing = searched(regions, nothing, monkeypatch, search_time(Deadline.to_close(45.0)), kept)
    assert [r.result for r in closing.regions] == [r.result for r in first.regions]
    assert not nothing.asked
    busy = Searches(unproved=1)  # what more time does not prove anything of has what less did
    longer = searched(regions, busy, monkeypatch, search_time(Deadline.after(6000.0)), kept)
    assert len(busy.asked) == 2
    assert [r.result for r in longer.regions] == [r.result for r in first.regions]
    endless = Searches()
    found = searched(regions, endless, monkeypatch, ENDLESS, kept)
    assert len(endless.asked) == 2
    assert not any(r.result.interrupted for r in found.regions)
    assert [r.result for r in searched(regions, nothing, monkeypatch, kept=kept).regions] == [
        r.result for r in found.regions
    ]
    assert not nothing.asked


def test_regions_whose_turn_comes_late_have_a_small_search_that_is_kept_where_there_is_no_other(
    regions: tuple[Program, list[Region]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake, kept = Searches(), Results(tmp_path, "", "", anew=False)
    late = SearchTime(Deadline.after(0.0), Deadline.after(1000.0))
    found = searched(regions, fake, monkeypatch, late, kept)
    assert all(r.result.proved and r.result.interrupted for r in found.regions)
    assert {b.enodes for b in fake.budgets} == {SearchBudget().enodes // partitioned.HURRIED}
    assert len(fake.asked) == 2, "and no other turn"
    searched(regions, fake, monkeypatch, late, kept)
    assert len(fake.asked) == 2
    found = searched(regions, fake, monkeypatch, kept=kept)
    assert len(fake.asked) == 4
    assert not any(r.result.interrupted for r in found.regions)


def test_on_a_crowded_machine_all_regions_have_a_first_proof_before_any_has_more(
    regions: tuple[Program, list[Region]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioned, "here", lambda seconds: CROWDED * seconds)
    fake = Searches()
    found = searched(regions, fake, monkeypatch)
    enodes = SearchBudget().enodes
    assert [b.enodes for b in fake.budgets] == [enodes // partitioned.HURRIED] * 2 + [enodes] * 2
    assert not any(r.result.interrupted for r in found.regions)
    fake = Searches()
    searched(regions, fake, monkeypatch, ENDLESS)
    assert [b.enodes for b in fake.budgets] == [enodes] * 2


@pytest.mark.parametrize("cut", [False, True])
def test_that_nothing_was_proved_of_one_operator_is_told(run: Run, monkeypatch: pytest.MonkeyPatch, cut: bool) -> None:
    """Of a search that the time cut off, as what more of it may change."""

    def unproved(program: Program, *args: Any) -> SearchResult:
        found = run_search(program, *args)
        return replace(found, proved=(), interrupted=cut) if "tanh" in str(program) else found

    monkeypatch.setattr(composing, "partition", lambda p, device: partition(p, ONE_BY_ONE))
    monkeypatch.setattr(partitioned, "whole", lambda program, device: None)
    monkeypatch.setattr(partitioned, "run_search", unproved)
    said = "the time ended before" if cut else r"\(t\): no implementation was proved"
    with pytest.raises(NoImprovementError, match=said) as found:
        run(REGIONS, seconds=60.0 if cut else None)
    assert found.value.in_part is not cut


def done_again(*_: object, **__: object) -> Any:
    raise AssertionError("done again")


def test_without_a_limit_a_run_goes_on_from_one_that_had_time_enough_and_trials_are_known(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit fewer finalists meet, on fewer cases, and not all of the baselines."""
    resumed: list[tuple[int, int]] = []

    def counted(*args: Any, **options: Any) -> Any:
        found = tune(*args, **options)
        resumed.append((found.resumed, len(found.trials)))
        return found

    monkeypatch.setattr(choosing, "tune", counted)
    text = "m (float[4, 48] x) => (float[4, 48] y) { t = Tanh(x)  r = Mul(t, x)  y = Exp(r) }"
    run(text, seconds=500.0)
    assert "stored" not in run.stages
    monkeypatch.setattr(composing, "run_search", done_again)
    run(text)
    assert "stored" not in run.stages
    assert "confirmation" in run.stages
    assert [again for again, _ in resumed] == [0, resumed[0][1]]
    run.forbid(*WORK)
    for limit in ({}, {"seconds": 500.0}):
        run(text, **limit)
        assert run.stages == ["stored"]


def test_where_no_trial_was_made_in_time_the_same_finalists_have_another_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def late(candidates: Sequence[Candidate], *args: Any, **options: Any) -> Any:
        asked.append([c.key for c in candidates])
        if len(asked) == 1:
            return TuneResult(Evidence.MEASURED, (), (), feasible=9)
        return tune(candidates, *args, **options)

    monkeypatch.setattr(choosing, "tune", late)
    monkeypatch.setattr(choosing, "by_model", lambda *_: ())
    run(seconds=120.0)
    assert len(asked) == 2
    assert asked[0] == asked[1]
    assert run.stages.count("emission") == 1


def test_where_time_is_short_the_region_of_which_most_is_gained_is_tuned(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(monkeypatch)
    chosen, tuned, asked = composing._region_chosen, [], []
    gains = partitioned.gains

    def ordered(searches: PartitionedSearch, target: Device) -> dict[str, float]:
        asked.append((searches, gains(searches, target)))
        return asked[-1][1]

    monkeypatch.setattr(composing, "gains", ordered)

    def once(request: Any, found: Any, tools: Any, place: Path) -> Any:
        tuned.append(found)
        monkeypatch.setattr(composing, "LEAST_S", 1000.0)
        return chosen(request, found, tools, place)

    monkeypatch.setattr(composing, "_region_chosen", once)
    made = run(REGIONS, seconds=120.0)
    assert made.report.measurement is not None
    ((searches, gained),) = asked
    (first,) = tuned
    assert len({*gained.values()}) > 2
    assert first is searches.distinct[max(gained, key=lambda key: gained[key])].result


def test_contenders_leave_time_to_write_what_they_came_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    meet, given = confirm, []

    def watched(*args: Any, until: Deadline, **options: Any) -> Any:
        given.append(until.left)
        return meet(*args, until=until, **options)

    monkeypatch.setattr(choosing, "confirm", watched)
    run(seconds=60.0)
    (left,) = given
    assert 0 < left <= 60.0 - CLOSING_S


def test_what_was_measured_is_written_though_the_machine_is_slow() -> None:
    """A run of 60 s ends within 66; short ones have a second."""
    for seconds, more in ((10.0, 1.2), (60.0, 3.6), (200.0, 12.0)):
        given = Deadline.after(seconds)
        assert grace(given.part(0.5)).left == pytest.approx(0.5 * seconds + more, rel=0.01)
    assert not grace(NEVER).finite


def test_a_run_whose_time_is_over_says_so_and_the_next_one_goes_on(run: Run) -> None:
    with pytest.raises(NoImprovementError, match="the time ended") as over:
        run(seconds=1e-6)
    assert "what was finished is kept" in over.value.fix
    run()
    run.forbid("prism.api.composing.run_search", "prism.api.choosing.tune")
    run(seconds=30.0)
    assert run.stages == ["stored"]


OVER = "the time ended before"


def late(*_: object, **__: object) -> Any:
    raise OutOfTimeError


def test_a_run_that_ended_with_nothing_goes_on_from_what_it_finished_and_makes_nothing_better(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Searches, what the model chooses, and what is checked are kept; so the match has the time that they took."""
    one_by_one(monkeypatch)
    monkeypatch.setattr(composing, "LEAST_S", 1000.0)
    again: list[bool] = []
    search_again = partitioned._Searching.search_again

    def noted(searching: Any, found: Any, time: SearchTime) -> Any:
        again.append(bool(time.until.left))
        return search_again(searching, found, time)

    monkeypatch.setattr("prism.api.partitioned._Searching.search_again", noted)
    with pytest.MonkeyPatch.context() as first:
        first.setattr(composing, "composed_choice", late)
        with pytest.raises(NoImprovementError, match=OVER) as over:
            run(REGIONS, seconds=120.0)
    assert "what was finished is kept" in over.value.fix
    monkeypatch.setattr(partitioned, "run_search", done_again)
    monkeypatch.setattr(composing, "_estimated", done_again)
    monkeypatch.setattr(choosing, "tune", done_again)
    checked: list[Path] = []
    with pytest.MonkeyPatch.context() as second:

        def counted(program: Program, module: Path, *args: Any, **options: Any) -> Any:
            checked.append(module)
            return check_module(program, module, *args, **options)

        second.setattr(choosing, "check_module", counted)
        second.setattr(choosing, "confirm", late)
        with pytest.raises(NoImprovementError, match=OVER) as over:
            run(REGIONS, seconds=120.0)
    assert len(checked) == 1
    assert again == [True, False]
    assert "what was finished is kept" in over.value.fix
    with pytest.MonkeyPatch.context() as third:
        third.setattr(choosing, "check_module", done_again)
        third.setattr(choosing, "confirm", late)
        with pytest.raises(NoImprovementError, match=OVER) as over:
            run(REGIONS, seconds=120.0)
        assert over.value.fix.startswith("give it more time"), "there is nothing left that would be kept"
        with pytest.raises(NoImprovementError, match=OVER):
            run(REGIONS, seconds=200.0)
        third.setattr(choosing, "confirm", confirm)
        made = run(REGIONS, seconds=60.0)
    assert made.report.measurement is not None
    assert made.report.check.cases > 0
    monkeypatch.setattr(choosing, "tune", tune)
    again.clear()
    run(REGIONS, seconds=1.0e5)
    assert again == [True], "one with more time makes it better"


def test_trials_of_a_program_that_is_one_region_are_put_to_use_where_the_match_had_no_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned: list[TuneResult] = []

    def counted(*args: Any, **options: Any) -> Any:
        tuned.append(tune(*args, **options))
        return tuned[-1]

    monkeypatch.setattr(choosing, "tune", counted)
    text = "m (float[4, 48] x) => (float[4, 48] y) { t = Tanh(x)  r = Mul(t, x)  y = Exp(r) }"
    with pytest.MonkeyPatch.context() as first:
        first.setattr(choosing, "confirm", late)
        with pytest.raises(NoImprovementError, match=OVER):
            run(text, seconds=120.0)
    monkeypatch.setattr(composing, "run_search", done_again)
    monkeypatch.setattr(choosing, "check_module", done_again)
    made = run(text, seconds=120.0)
    assert [t.point for t in tuned[1].trials] == [t.point for t in tuned[0].trials]
    assert tuned[1].resumed == len(tuned[1].trials) > 0
    assert made.report.measurement is not None


def test_a_region_for_which_nothing_will_do_has_parts_though_the_time_of_regions_is_over(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composing, "partition", lambda p, device: partition(p, FINER_ONCE))
    monkeypatch.setattr("prism.api.partitioned.whole", lambda program, device: None)
    monkeypatch.setattr("prism.api.partitioned.pairs", lambda *given: [])
    monkeypatch.setattr("prism.api.composing.regions_end", lambda time, matches: time.part(0.0))
    estimated = composing._estimated

    def refused(request: Any, *args: Any) -> Any:
        if request.program.operator_count > 1:
            raise NoImprovementError("no kernel could be compiled")
        return estimated(request, *args)

    monkeypatch.setattr(composing, "_estimated", refused)
    made = run(REGIONS, seconds=240.0)
    assert [w for w in run.warnings if "is kept as 2 parts" in w]
    assert made.report.measurement is not None


class Hanging(Arena):
    """A machine whose second match never ends."""

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        if self.requests:
            time.sleep(9)
        return super().ask(request, timeout_s)


def test_a_match_that_is_cut_off_does_not_count_and_is_made_up_for_where_there_is_more_time(tmp_path: Path) -> None:
    store = Store(Cache("timings", tmp_path))
    found_in = 2.0
    found = confirmed(Hanging({"eager4": 2.0, "eager1": 2.0}), store, until=Deadline.after(found_in))
    assert len(found.matches) == 1
    assert found.ratios == pytest.approx((2.0,), rel=0.1)
    same = confirmed(Arena({}), store, until=Deadline(time.monotonic() + 500.0, found_in))
    assert same.stored
    assert same.ratios == found.ratios
    again = Arena({"eager4": 2.0, "eager1": 2.0})
    assert len(confirmed(again, store).matches) == 2
    assert confirmed(Arena({}), store).matches != found.matches


@pytest.mark.parametrize("given", ["", "soon", "-5s", "0", "60x", "s"])
def test_what_is_no_time_is_told(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.onnx").touch()
    assert main(["optimize", str(tmp_path / "m.onnx"), f"--budget={given}"]) == ExitCode.USAGE
    assert "--budget 60s" in capsys.readouterr().err


def test_the_regions_of_a_run_share_the_children_that_compile_and_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(monkeypatch)
    worked: list[int] = []

    def counted(threads: int, *rest: Any) -> Worker:
        worked.append(threads)
        return worker(threads, *rest)

    worker = cpu.trial_worker
    monkeypatch.setattr(cpu, "trial_worker", counted)
    made: list[object] = []
    pool = cpu.compile_pool

    def counted_pool(threads: int, cache: Path | None) -> Pool:
        made.append(threads)
        return pool(threads, cache)

    monkeypatch.setattr(cpu, "compile_pool", counted_pool)
    run("m (float[4, 32] x) => (float[4, 32] y) { t = Tanh(x)  r = Mul(t, x)  y = Exp(r) }")
    assert run.stages.count("tuning") == 3
    assert len(made) == 1
    assert len(worked) == 1, "one for the clock and the gate"


def test_a_moment_that_comes_as_a_block_is_entered_or_left_ends_it_or_does_not() -> None:
    """Of a hundred such blocks one left a KeyboardInterrupt behind, which ended the run as if by Ctrl-C."""
    ended = 0
    for n in range(1200):
        until = time.perf_counter() + SOONEST_S * (0.97 + 0.06 * (n % 120) / 120)
        try:
            with Deadline.after(0.8 * SOONEST_S).limited():
                while time.perf_counter() < until:
                    pass
        except OutOfTimeError:
            ended += 1
    assert ended > 0


@pytest.mark.parametrize("proves", [True, False])
def test_on_a_crowded_machine_a_program_of_one_region_has_a_first_proof_before_it_has_more(
    run: Run, monkeypatch: pytest.MonkeyPatch, proves: bool
) -> None:
    """What the small search proved is taken where the other one comes to nothing in time."""
    asked: list[int] = []

    def cut(program: Program, device: Device, budget: SearchBudget, *others: Any) -> SearchResult:
        asked.append(budget.enodes)
        if len(asked) == 2:
            raise OutOfTimeError
        found = run_search(program, device, budget, *others)
        return found if proves else replace(found, proved=())

    monkeypatch.setattr(composing, "here", lambda seconds: CROWDED * seconds)
    monkeypatch.setattr(composing, "run_search", cut)
    text = "m (float[4, 48] x) => (float[4, 48] y) { t = Tanh(x)  r = Mul(t, x)  y = Exp(r) }"
    made = run(text, seconds=240.0)
    enodes = SearchBudget().enodes
    assert asked == [enodes // partitioned.HURRIED, enodes]
    assert ("composition" in run.stages) != proves
    assert made.report.check.cases > 0


def test_the_time_ends_while_a_model_is_cut_into_islands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a model goes in parts late in a run."""
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("prism.api.whole_models.cut", done_late)
    model = onnx.parser.parse_model(HEAD + "m (float[4] x) => (float[4] y) { y = Tanh(x) }")
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(NoImprovementError, match="the time ended before the model was compared"):
        optimize_model(tmp_path / "m.onnx", target="cpu", seconds=0.5)
    with pytest.raises(NoImprovementError, match="the time ended before the model was cut"):
        optimize_model_ranges(tmp_path / "m.onnx", {"s": (1, 8)}, target="cpu", seconds=0.5)


def test_the_time_of_a_cell_ends_whatever_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("prism.api.whole_models.Run.made", done_late)
    text = "m (float[s, 4] x) => (float[s, 4] y) <int64[1] k = {2}> { t = Tanh(x)  y, at = TopK <sorted = 0> (t, k) }"
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    with pytest.raises(NoImprovementError, match=r"at any length: .*the time ended before") as error:
        optimize_model_ranges(tmp_path / "m.onnx", {"s": (1, 8)}, target="cpu", seconds=3.0)
    assert "more time" in error.value.one_line()


def done_late(*_: object, **__: object) -> Any:
    time.sleep(60)
    raise AssertionError("the time had ended")
