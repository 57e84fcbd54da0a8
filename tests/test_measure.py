"""The measuring protocol without a GPU: statistics, rotation, interleaving, and what a lost child costs."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import prism
from prism.backends.interleave import interleave
from prism.backends.native import native
from prism.backends.triton import replay as graphs
from prism.backends.triton.device import describe_gpu, parse_gpu
from prism.backends.triton.replay import LONGEST_S, MAX_COPIES, GraphReplay, calls, copies, is_sticky, shared_calls
from prism.cost.device import device
from prism.instantiate.gate.check import Drawn
from prism.instantiate.gate.plan import Case
from prism.instantiate.measure import Bench, ClosedError, Contender, classify, summarise
from prism.instantiate.study import Failure
from prism.process.deadline import Deadline, OutOfTimeError
from prism.process.worker import Background, Ending, Reply, Worker
from prism.program import build
from prism.program.index import Axis
from prism.program.nodes import Definition, DType, Program, Tensor
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

MIB = 1 << 20
GPU = replace(device("sm_90"), name="fake")
X = Tensor("x", (8, 16), DType.FLOAT32)
ROW, COLUMN = Axis("i", 8), Axis("j", 16)
PROGRAM = Program(
    "twice",
    (X,),
    (Definition("y", (ROW, COLUMN), build.mul(build.const(2), build.read("x", ROW, COLUMN)), DType.FLOAT32),),
    ("y",),
)
GRAPH = SGraph("twice", (X,), (), (Tensor("y", X.shape, X.dtype),), ())


def test_copies_outgrow_the_l2_cache_and_fit_in_memory() -> None:
    n = copies(MIB, 60 * MIB, 1 << 33)
    assert (n - 1) * MIB >= 2 * 60 * MIB, "when a copy comes again, the others have filled the cache twice"
    assert copies(200 * MIB, 60 * MIB, 1 << 33) == 2
    assert copies(100 * MIB, 60 * MIB, 150 * MIB) == 1
    assert copies(16, 60 * MIB, 1 << 33) == MAX_COPIES
    assert copies(0, 0, 0) == 1


def test_a_graph_holds_whole_rotations() -> None:
    for seconds in (1e-6, 1e-4, 1.0):
        for rotation in (1, 7, 61):
            n = calls(seconds, rotation)
            assert n % rotation == 0
            assert n >= rotation
    assert calls(1e-5, 7) * 1e-5 >= 2e-3
    assert calls(10.0, 1) == 1


def test_all_contenders_make_as_many_calls() -> None:
    assert shared_calls([1e-5, 3e-5], 7) == calls(1e-5, 7)
    # Neither does a slow one take seconds, nor has one less than a rotation.
    assert shared_calls([1e-5, 3e-3], 7) == 28 <= LONGEST_S / 3e-3
    assert shared_calls([1e-5, 1.0], 7) == 7


class Cuda:
    """The part of torch.cuda that graphs use, with a clock that launches move on: by 1 ms where Python makes them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.capturing: list[Callable[[], None]] | None = None
        self.current_stream = self.Stream = lambda: self

    def wait_stream(self, other: Cuda) -> None: ...

    def synchronize(self) -> None: ...

    @contextmanager
    def stream(self, stream: Cuda) -> Iterator[None]:
        yield

    @contextmanager
    def graph(self, graph: Graph, stream: Cuda | None) -> Iterator[None]:
        self.capturing = graph.calls
        yield
        self.capturing = None

    def launch(self, call: Callable[[], None], seconds: float) -> None:
        def run() -> None:
            self.now += seconds
            call()

        if self.capturing is not None:
            self.capturing.append(run)
        else:
            self.now += 1e-3
            run()


class Graph:
    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


class Event:
    """A point in the clock's time."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda, self.at = cuda, 0.0

    def record(self) -> None:
        self.at = self.cuda.now

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


def test_a_graph_is_sized_by_a_replay_and_not_by_what_python_takes_to_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    fake = SimpleNamespace(cuda=cuda)
    cuda.CUDAGraph = Graph  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(graphs, "event", lambda: Event(cuda))
    made: list[int] = []

    def launch(n: int) -> list[int]:
        cuda.launch(lambda: made.append(n), 1e-5)
        return [n]

    contender = GraphReplay(launch, 3)
    assert contender.call_s == pytest.approx(1e-5)
    assert contender.calls == 3
    contender.capture(shared_calls([contender.call_s], 3))
    assert contender.calls == calls(1e-5, 3) == 201
    made.clear()
    assert contender.replay() == pytest.approx(1e-5)
    assert made == [0, 1, 2] * 67
    assert contender.outputs == [2]


def test_contenders_are_interleaved_and_take_turns_to_begin() -> None:
    order: list[int] = []

    def contender(n: int) -> Any:
        def replay() -> float:
            order.append(n)
            return n + len(order) / 100

        return replay

    samples = interleave([contender(n) for n in range(3)], 4)
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    assert [len(s) for s in samples] == [4, 4, 4]
    assert all(n < s < n + 1 for n, row in enumerate(samples) for s in row)


def test_quartiles_shrug_off_an_outlier() -> None:
    m = summarise([1.0, 1.1, 0.9, 50.0, 1.0])
    assert (m.median, m.lower, m.upper, m.samples) == (1.0, 1.0, 1.1, 5)
    assert summarise([2.0]).median == 2.0
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


def test_errors_are_told_apart() -> None:
    assert is_sticky("RuntimeError: CUDA error: an illegal memory access was encountered")
    assert not is_sticky("OutOfResources: out of resource: shared memory, Required: 300000")
    assert not is_sticky("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
    assert not is_sticky("CompilationError: at 2:17")
    assert classify("out of resource: shared memory, Required: 300000") is Failure.SHARED
    assert classify("OutOfResources: registers") is Failure.RESOURCES
    assert classify("CompilationError: at 2:17") is Failure.COMPILE
    assert classify("ValueError: x") is Failure.CRASH


def test_the_childs_description_of_the_gpu_is_read() -> None:
    text = 'warning\n{"name": "H", "target": "sm_90", "cache_bytes": 1, "shared_limit_bytes": 0}\n'
    assert parse_gpu(text) == replace(device("sm_90"), name="H", cache_bytes=1)
    # An H100's memory, and a card with a part of its multiprocessors.
    told = text.replace("}", ', "processors": 114, "memory_khz": 2619000, "memory_bits": 5120}')
    found = parse_gpu(told)
    assert found is not None
    assert found.bandwidth_bytes_s == pytest.approx(3.35e12, rel=0.001)
    assert found.half_dot_flops / found.processors == pytest.approx(device("sm_90").half_dot_flops / 132)
    other = parse_gpu(text.replace("sm_90", "sm_120"))
    assert other is not None
    assert other.target == "sm_120"
    assert parse_gpu("") is None
    assert parse_gpu("Traceback\nboom") is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_found_where_there_is_none() -> None:
    assert describe_gpu() is None


class FakeChild(Worker):
    """Answers as the timing child would: `good` modules double the input, `wrong` ones leave the poison, others die."""

    def __init__(self) -> None:
        super().__init__([sys.executable], {})
        self.requests: list[Mapping[str, Any]] = []

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        self.requests.append(request)
        (x,) = torch.load(request["inputs"])
        answers: list[dict[str, Any]] = []
        results: list[Sequence[Any]] = []
        for c in request["contenders"]:
            kind = "baseline" if c["kind"] == "eager" else Path(c["module"]).stem
            if kind == "dies":
                return Reply(Ending.CRASH, detail="the process ended with status 70")
            if kind == "hangs":
                return Reply(Ending.HANG, detail="no answer")
            if kind == "big":
                answers.append({"error": "OutOfResources: out of resource: shared memory"})
                results.append([])
                continue
            base = 10e-6 if kind == "baseline" else 5e-6
            answers.append({"samples": [base * (1 + n / 1000) for n in range(request["repeats"])], "calls": 1})
            results.append([torch.full_like(x, float("nan")) if kind == "wrong" else 2 * x])
        torch.save(results, request["results"])
        return Reply(Ending.ANSWERED, {"contenders": answers})


def test_what_overflows_in_half_precision_is_timed_on_smaller_numbers() -> None:
    """Of a decoder layer whose weights are inputs, a quarter of eager's results were not finite: none of them told a
    baseline from another function."""

    def sums(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (x @ w @ v) ** 2

    shapes = [(4, 256), (256, 256), (256, 256)]
    program = prism.trace(sums, tuple(torch.randn(s).to(torch.float16) for s in shapes))
    with closing(Bench(program, GPU, {}, worker=FakeChild())) as bench:
        ((_, given),) = bench._prepare()
        assert np.isfinite(given).all()
        tensors = torch.load(bench._path("inputs.pt"))
        assert 1e-3 < tensors[0].abs().max() < 1.0
        right = native(program, tensors).forward(*tensors)
        assert not bench._far_off(right)
        assert bench._far_off([right[0] * 1.2])
        # A baseline that overflows in places rounds as it likes; one that is finite nowhere has nothing to say for it.
        assert not bench._far_off([torch.where(right[0] >= right[0].max(), torch.inf, right[0])])
        assert bench._far_off([torch.full_like(right[0], torch.nan)])


def test_a_baseline_may_round_its_operands_to_8_bits() -> None:
    """As onnxruntime does where a MatMulNBits says so: every element is off by little, and the largest by more."""
    program = prism.trace(lambda x, w: x @ w, (torch.randn(32, 64), torch.randn(64, 32)))
    with closing(Bench(program, GPU, {}, worker=FakeChild())) as bench:
        bench._prepare()
        x, w = torch.load(bench._path("inputs.pt"))
        right = x @ w
        noise = torch.randn(32, 32, generator=torch.Generator().manual_seed(0)) * right.square().mean().sqrt()
        assert (0.02 * noise).abs().max() > 0.05 * right.square().mean().sqrt()
        assert not bench._far_off([right + 0.02 * noise])
        assert bench._far_off([right + 0.2 * noise])
        assert bench._far_off([torch.where(noise >= noise.max(), right + 0.1 * noise, right)])
        assert bench._far_off([right.abs()])


@pytest.mark.parametrize("ordered", [False, True])
def test_a_baseline_may_take_other_ones_of_equal_elements_or_in_another_order(ordered: bool) -> None:
    """torch's own topk gave what need not be sorted in another order, and was no baseline for that."""
    program = prism.trace(lambda x: x.topk(3, sorted=ordered), (torch.randn(32, 8),))
    ordinary = prism.trace(lambda x: x.sort(stable=True), (torch.randn(32, 8),))
    for p, turned in ((program, True), (ordinary, False)):
        with closing(Bench(p, GPU, {}, worker=FakeChild())) as bench:
            bench._prepare()
            right = native(p, torch.load(bench._path("inputs.pt"))).forward(*torch.load(bench._path("inputs.pt")))
            assert not bench._far_off(right)
            assert bool(bench._far_off([t.flip(-1) for t in right])) != turned
            assert bench._far_off([t[:, :-1] for t in right])


def test_what_overflows_whatever_it_is_given_is_given_ordinary_numbers() -> None:
    program = prism.trace(lambda x: torch.exp(x * x + 20.0), (torch.randn(4, 8).to(torch.float16),))
    with closing(Bench(program, GPU, {}, worker=FakeChild())) as bench:
        bench._prepare()
        (x,) = torch.load(bench._path("inputs.pt"))
        assert x.abs().max() > 1.0


def test_inputs_are_drawn_once_the_child_has_begun_and_not_for_a_bench_that_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    class Beginning(FakeChild):
        def __init__(self, looks: float) -> None:
            super().__init__()
            self.looks = looks

        def beginning(self, wait_s: float | None = None) -> bool:
            if wait_s is None:
                return False
            self.looks -= 1
            events.append("begins")
            return self.looks > 0

    prepare = Bench._prepare

    def noted(self: Bench) -> Any:
        events.append("prepared")
        return prepare(self)

    monkeypatch.setattr(Bench, "_prepare", noted)
    with closing(Bench(PROGRAM, GPU, {}, worker=Beginning(3))) as bench:
        bench.ahead()
        assert bench._begun is not None
        bench._begun.result()
    assert events == [*["begins"] * 3, "prepared"]
    with closing(Bench(PROGRAM, GPU, {}, worker=Beginning(math.inf))) as bench:
        bench.ahead()
    assert events.count("prepared") == 1


def test_results_that_are_those_that_passed_are_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[bool] = []
    with closing(Bench(PROGRAM, GPU, {}, worker=FakeChild())) as bench:
        bench._prepare()
        inputs = torch.load(bench._path("inputs.pt"))
        judge = bench._judged

        def counted(*given: Any) -> str:
            judged.append(True)
            return judge(*given)

        monkeypatch.setattr(bench, "_judged", counted)
        right = [2 * x for x in inputs]
        assert not bench._wrong(right)
        assert not bench._wrong([x.clone() for x in right])
        assert len(judged) == 1
        assert bench._wrong([x + 1.0 for x in right])
        assert bench._wrong([torch.full_like(x, torch.nan) for x in right])
        assert not bench._wrong(right)


def contender(name: str) -> Contender:
    return Contender(name, Path(f"{name}.py"), GRAPH, Config({}, {}, {}))


def test_only_checked_results_get_a_time_and_a_lost_child_costs_one_contender() -> None:
    child = FakeChild()
    bench = Bench(PROGRAM, GPU, {}, worker=child)
    try:
        timed = bench.time([contender(n) for n in ("good", "dies", "wrong", "hangs", "big")], 10)
    finally:
        bench.close()
    assert [t.failure for t in timed] == [None, Failure.CRASH, Failure.WRONG, Failure.HANG, Failure.SHARED]
    assert timed[0].measurement is not None
    assert timed[0].measurement.samples == 10
    assert all(t.measurement is None for t in timed[1:])
    assert len(child.requests) == 6, "all at once, then one by one"
    assert child.requests[0]["outputs"] == [[[8, 16], "float32"]]


def test_a_worker_of_the_background_stands_still_meanwhile_and_that_is_not_its_time() -> None:
    echo = "import sys\nfor line in sys.stdin: print('{}', flush=True)"
    background = Background()
    with closing(Worker([sys.executable, "-S", "-c", echo], {}, start_limit_s=0.5)) as worker:
        background.add(worker)
        with ThreadPoolExecutor(1) as one:
            with background.halted(), background.halted():
                asked = one.submit(worker.ask, {}, 0.5)
                with pytest.raises(TimeoutError):
                    asked.result(2.0)  # twice what it may take
                assert worker.starts == 1
            assert asked.result().ending is Ending.ANSWERED
        with background.halted():
            worker.close()  # what stands still is ended as well
        assert worker.closed


def test_a_bench_is_closed_while_its_inputs_are_still_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What draws them may be within `import torch`, or within an oracle that takes seconds: nobody waits for it."""
    begun, go_on = threading.Event(), threading.Event()
    drawn = Bench._drawn

    def slowly(bench: Bench) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(60)
        return drawn(bench)

    monkeypatch.setattr(Bench, "_drawn", slowly)
    mute = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    bench = Bench(PROGRAM, GPU, {}, worker=Worker(mute, {}), arena=lambda: Worker(mute, {}))
    bench.ahead([Contender("eager")], trials=True)
    prepared, begun_by = bench._children[0][1], bench._begun
    assert begun_by is not None
    assert begun.wait(60)
    bench.close()
    assert not begun_by.done()
    go_on.set()
    assert isinstance(begun_by.exception(60), ClosedError), "it writes nothing any more"
    assert not Path(bench._folder.name).exists()
    wait([prepared], 60)
    assert prepared.cancelled() or isinstance(prepared.exception(), ClosedError)


def test_what_is_drawn_is_waited_for_again_where_the_time_ended_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, computed = threading.Event(), []
    compute = Bench._oracle

    def slowly(bench: Bench, tensors: Mapping[str, Any]) -> Any:
        computed.append(1)
        assert go_on.wait(60)
        return compute(bench, tensors)

    monkeypatch.setattr(Bench, "_oracle", slowly)
    with closing(Bench(PROGRAM, GPU, {}, worker=Worker([], {}))) as bench:
        bench.ahead()
        with pytest.raises(OutOfTimeError), Deadline.after(0.05).limited():
            bench.ready()
        go_on.set()
        bench.ready()
    assert computed == [1]


def test_what_timed_runs_are_compared_with_is_not_computed_again_for_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(PROGRAM)
    case = Case("normal", {}, Config({}, {}, {}), 0)
    with closing(Bench(PROGRAM, GPU, {}, worker=Worker([], {}))) as bench:
        bench.tell(drawn)
        assert not drawn.results, "nothing is known yet"
        bench.ready()
        bench.tell(drawn)
    inputs = drawn.of(case)
    own = Drawn(PROGRAM).answer(case, inputs)
    monkeypatch.setattr("prism.program.evaluate.evaluate", None)
    told = drawn.answer(case, inputs)
    for known, made in ((told.exact, own.exact), (told.given, own.given)):
        assert known.keys() == made.keys() == {"y"}
        assert np.array_equal(known["y"], made["y"])
    other = replace(case, seed=1)
    with pytest.raises(TypeError):
        drawn.answer(other, drawn.of(other))
