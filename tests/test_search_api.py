"""prism.search: lazy, interruptible, bounded, and quick to say that there is nothing to gain."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from quick import slow_but

import prism
import prism.generate.enumerate as enumerate_
from prism.api import ProvedSGraph, SearchBudget, load, optimize, proofs, searching
from prism.api.region_search import Search, SearchInterruptedError, SearchResult, run_search
from prism.api.trivial import nothing_to_gain
from prism.cli import main
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.errors import ExitCode, IllegalIRError, NoImprovementError, UsageError
from prism.events import Event, Recorder, StageFinished, StageStarted, Warned
from prism.generate.pruning import BOUNDS, PRUNERS
from prism.process.deadline import Deadline
from prism.program.nodes import Program
from prism.program.verdict import Status, Verdict
from prism.sgraph.nodes import SGraph
from prism.sgraph.show import key

pytestmark = pytest.mark.usefixtures("small_gate")

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"
SMALL = SearchBudget(max_kernels=2, max_forms=4, max_families=24, max_sgraphs=12)


@pytest.fixture(scope="module")
def attention() -> Program:
    """Its candidates are proved against two references."""
    return load(MODELS / "gqa_decode.onnx")


@pytest.fixture(scope="module")
def whole(attention: Program, worker: Worker) -> SearchResult:
    """The search in one go."""
    return run_search(attention, device("sm_90"), SMALL, worker, Recorder())


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Worker]:
    """The workers that `prism.search` starts."""
    made: list[Worker] = []

    def make() -> Worker:
        made.append(Worker())
        return made[-1]

    monkeypatch.setattr(searching, "Worker", make)
    return made


def begin(program: Program, worker: Worker, recorder: Recorder | None = None) -> Search:
    return Search(program, device("sm_90"), SMALL, [worker], recorder or Recorder())


def test_what_is_not_legal_is_dropped_and_counted_apart_from_what_is_not_decided(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(sgraph: SGraph) -> None:
        raise IllegalIRError("it reads beyond a tensor", where=f"sGraph {sgraph.name}")

    monkeypatch.setattr(proofs, "spec", SimpleNamespace(check=check))
    recorder = Recorder()
    program = prism.trace(lambda x: x.softmax(-1), [torch.randn(64, 128)])
    result = begin(program, worker, recorder).run()
    assert not result.proved
    assert result.funnel.pruned["illegal"] == len(result.generated.candidates) > 0
    assert result.funnel.unknown == 0
    assert any("it reads beyond a tensor" in w for w in recorder.warnings)


def test_the_first_comes_before_the_rest_is_proved(attention: Program, worker: Worker, whole: SearchResult) -> None:
    assert len({p.denotation.split for p in whole.proved}) == 2
    lazy = begin(attention, worker)
    first = next(lazy)
    assert first == whole.proved[0]
    early = lazy.result()
    assert early.interrupted
    assert 1 <= len(early.proved) < len(whole.proved)
    rest = list(lazy)
    assert (first, *rest) == whole.proved == lazy.proved
    assert not lazy.result().interrupted
    assert replace(lazy.result(), seconds={}) == replace(whole, seconds={})


def test_yields_are_in_the_order_of_the_bounds(whole: SearchResult) -> None:
    seconds = [p.seconds for p in whole.proved]
    assert seconds == sorted(seconds)


def test_where_the_time_is_limited_each_way_to_cut_the_program_has_its_turn(
    attention: Program, worker: Worker, whole: SearchResult
) -> None:
    """The same is proved where there is time enough, and it is handed on in another order."""
    time = Deadline.after(1e6)
    search = Search(attention, device("sm_90"), SMALL, [worker], Recorder(), until=time)
    order = [(c.turn, c.seconds) for c in search.outlook(time)]
    assert order == sorted(order)
    assert order != sorted(order, key=lambda turn: turn[1])
    handed_on = list(search)
    assert {p.sgraph for p in handed_on} == {p.sgraph for p in whole.proved}
    assert search.proved == tuple(sorted(handed_on, key=lambda p: p.seconds))


def test_the_first_of_all_is_proved_by_itself(
    attention: Program, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch has an answer when all of it has."""
    asked: list[int] = []
    submit = Worker.submit

    def counted(self: Worker, candidates: Sequence[Any]) -> None:
        asked.append(len(candidates))
        submit(self, candidates)

    monkeypatch.setattr(Worker, "submit", counted)
    search = begin(attention, worker)
    search.outlook()
    assert list(search)
    assert asked[0] == 1
    assert max(asked) > 1


def test_nothing_is_asked_for_nothing(workers: list[Worker], attention: Program) -> None:
    events: list[Event] = []
    with prism.search(attention, listener=events.append, budget=SMALL) as found:
        assert events == []
        assert found.proved == ()
        with pytest.raises(UsageError, match="not begun"):
            found.result()
    assert list(found) == []


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("how", slow_but(["exhausted", "dropped"], ["exhausted", "closed", "dropped"]))
def test_the_processes_end_with_the_search(workers: list[Worker], attention: Program, how: str) -> None:
    found = prism.search(attention, budget=replace(SMALL, max_sgraphs=4), workers=2)
    next(found)
    pids = [w.pid for w in workers]
    assert None not in pids
    assert len(pids) == 2
    if how == "exhausted":
        list(found)
    elif how == "closed":
        found.close()
        assert found.proved
        assert list(found) == []
    else:
        del found
        gc.collect()
    assert [w.pid for w in workers] == [None, None]
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def interrupted(collect: Callable[[Worker], list[Verdict]], at: int) -> Callable[[Worker], list[Verdict]]:
    """The function, with a Ctrl-C in the middle of one call."""
    calls = 0

    def patched(self: Worker) -> list[Verdict]:
        nonlocal calls
        calls += 1
        if calls == at:
            self._kill()
            raise KeyboardInterrupt
        return collect(self)

    return patched


def test_an_interrupt_keeps_what_was_proved(
    attention: Program, worker: Worker, whole: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "collect", interrupted(Worker.collect, 2))
    with pytest.raises(SearchInterruptedError) as stop:
        run_search(attention, device("sm_90"), SMALL, worker, Recorder())
    kept = stop.value.result
    assert kept.interrupted
    assert kept.proved
    assert [p for p in whole.proved if p in kept.proved] == list(kept.proved)
    assert isinstance(stop.value, KeyboardInterrupt)


def test_one_is_proved_before_the_others_are_generated(
    attention: Program, worker: Worker, whole: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept where what follows is interrupted, and what follows does not depend on it."""
    rounds, asked = enumerate_._rounds, []

    def stopped(*given: Any) -> None:
        asked.append(found.proved)
        if len(asked) == 1:
            raise KeyboardInterrupt
        rounds(*given)

    monkeypatch.setattr(enumerate_, "_rounds", stopped)
    found = begin(attention, worker)
    with pytest.raises(SearchInterruptedError) as stop:
        found.run()
    kept = stop.value.result
    assert kept.interrupted
    assert len(kept.proved) == 1
    assert kept.proved == asked[0]
    assert kept.first is not None
    assert kept.proved[0].written
    assert found.run().proved == whole.proved


def test_an_interrupt_before_the_first_proof_is_just_that(
    attention: Program, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "collect", interrupted(Worker.collect, 1))
    with pytest.raises(KeyboardInterrupt) as stop:
        run_search(attention, device("sm_90"), SMALL, worker, Recorder())
    assert not isinstance(stop.value, SearchInterruptedError)


def test_the_iteration_goes_on_after_an_interrupt(
    attention: Program, worker: Worker, whole: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "collect", interrupted(Worker.collect, 2))
    found = begin(attention, worker)
    seen = []
    interrupts = 0
    while True:
        try:
            seen.append(next(found))
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break
    assert interrupts == 1
    assert tuple(seen) == whole.proved


CTRL_C = """
import signal, sys, time
import prism
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
found = prism.search(prism.load_onnx(sys.argv[1]))
try:
    for proved in found:
        print(found._workers[0].pid, flush=True)
        while True:  # until the signal comes; one that comes just before a call that blocks is seen after it
            time.sleep(0.01)
except KeyboardInterrupt:
    found.close()
    print(len(found.proved), found.result().interrupted, flush=True)
"""


def test_ctrl_c_leaves_no_process_behind() -> None:
    command = [sys.executable, "-c", CTRL_C, str(MODELS / "lora.onnx")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pid = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGINT)
        kept, flag = process.stdout.readline().split()
        assert process.stderr.read() == ""
        assert process.wait(30) == 0
    assert int(kept) >= 1
    assert flag in ("True", "False")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_verdict_that_is_no_proof_yields_nothing(
    attention: Program, worker: Worker, whole: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = Worker.collect

    def first_unknown(self: Worker) -> list[Verdict]:
        verdicts = collect(self)
        return [Verdict(Status.UNKNOWN, "made up"), *verdicts[1:]]

    monkeypatch.setattr(Worker, "collect", first_unknown)
    found = run_search(attention, device("sm_90"), SMALL, worker, Recorder())
    assert found.unknown >= 1
    assert len(found.proved) + found.unknown == len(found.generated.candidates)
    assert {key(p.sgraph) for p in found.proved} < {key(p.sgraph) for p in whole.proved}


# Stages


def test_a_stage_in_pieces_takes_the_time_of_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(Recorder, "clock", staticmethod(lambda: now))
    events: list[Event] = []
    recorder = Recorder(events.append)
    for piece in (1.0, 2.0):
        with recorder.part("proof"):
            now += piece
        now += 100.0  # the caller's own
    recorder.finish("proof", "2 proved")
    assert recorder.seconds == {"proof": 3.0}
    assert events == [StageStarted("proof"), StageFinished("proof", 3.0, "2 proved")]


def test_a_search_knows_its_own_seconds(attention: Program, worker: Worker) -> None:
    recorder = Recorder()
    twice = [run_search(attention, device("sm_90"), SMALL, worker, recorder) for _ in range(2)]
    # What is proved before the others are generated is within the recorder's stage of generation.
    for stages in (("saturation",), ("generation", "proof")):
        total = sum(found.seconds[stage] for found in twice for stage in stages)
        assert total == pytest.approx(sum(recorder.seconds[stage] for stage in stages), rel=0.2, abs=2e-3)


# Bounds


def test_bounds_are_checked() -> None:
    with pytest.raises(UsageError, match="max_ops"):
        SearchBudget(max_ops=0)
    with pytest.raises(UsageError, match="seconds"):
        SearchBudget(seconds=0)
    with pytest.raises(UsageError, match="there are: "):
        SearchBudget(off=frozenset({"nonsense"}))
    with pytest.raises(UsageError, match="workers"):
        prism.search(load(MODELS / "lora.onnx"), workers=0)
    with pytest.raises(UsageError, match="sm_90"):
        prism.search(load(MODELS / "lora.onnx"), target="sm_1")


def test_bounds_reach_the_generator_and_the_record() -> None:
    name = next(iter(PRUNERS))
    budget = SearchBudget(2, 9, 3, 5, 4, 8, 7, off=frozenset({name}), max_rounds=2)
    bounds = budget.bounds()
    assert (bounds.max_kernels, bounds.max_ops, bounds.max_loops, bounds.max_forms) == (2, 9, 3, 5)
    assert (bounds.max_cuts, bounds.max_families, bounds.max_sgraphs, bounds.max_rounds) == (4, 8, 7, 2)
    assert bounds.off == {name}
    assert budget.as_dict() == {
        "max_kernels": 2,
        "max_ops": 9,
        "max_loops": 3,
        "max_forms": 5,
        "max_cuts": 4,
        "max_families": 8,
        "max_sgraphs": 7,
        "enodes": 8000,
        "iterations": 16,
        "max_rounds": 2,
        f"off.{name}": 1,
    }


def test_the_documentation_has_every_pruner_and_bound() -> None:
    root = MODELS.parent.parent
    text = (root / "docs" / "search.md").read_text()
    assert [name for name in (*PRUNERS, *BOUNDS) if f"`{name}`" not in text] == []
    for file, mark in (("docs/search.md", "`{}`"), ("README.md", "`--{}`")):
        rows = [[c.strip() for c in r.split("|")] for r in (root / file).read_text().splitlines()]
        stated = {r[1]: r[2] for r in rows if len(r) > 3}
        for name, value in SearchBudget().as_dict().items():
            option = mark.format(name if file.startswith("docs") else name.replace("_", "-"))
            assert stated.get(option) == str(value), f"{file}: the default of {option}"


def test_bounds_bind(attention: Program, worker: Worker) -> None:
    budget = replace(SMALL, max_kernels=1, max_loops=1, max_sgraphs=3)
    found = run_search(attention, device("sm_90"), budget, worker, Recorder())
    assert 1 <= len(found.generated.candidates) <= 3
    assert {len(p.sgraph.launches) - has_split(p) for p in found.proved} == {1}


def has_split(p: ProvedSGraph) -> int:
    """How many second stages there are."""
    return sum(k.name.endswith("_combine") for k in p.sgraph.kernels)


# Symbolic extents


def test_one_search_serves_a_range_of_shapes() -> None:
    def fn(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x @ a @ b

    rows = torch.export.Dim("m", min=2, max=32768)
    shapes = ((64, 512), (512, 32), (32, 4096))
    program = prism.trace(fn, [torch.empty(s) for s in shapes], dynamic_shapes=({0: rows}, None, None))
    with prism.search(program) as found:
        list(found)
    regions = found.winners()
    assert 1 <= len(regions) <= 8
    for m in (2, 17, 100, 1000, 4096, 32768):
        assert sum(w.holds({"m": m}) for w in regions) == 1
    proved = [p.sgraph for p in found.proved]
    assert all(w.sgraph in proved for w in regions)
    # Rank 32 is far below both sides: a b is never materialised.
    assert all(b.shape != (512, 4096) for w in regions for b in w.sgraph.buffers)


# Nothing to gain


def trace(fn: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Program:
    return prism.trace(fn, [torch.empty(s, device="meta") for s in shapes], name="given")


ALONE: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], str]] = {
    "add": (lambda x, y: x + y, ((64, 256), (64, 256)), "pointwise"),
    "exp": (torch.exp, ((64, 256),), "pointwise"),
    "bias": (lambda x, b: x + b, ((64, 256), (256,)), "pointwise"),
    "product": (lambda x, w: x @ w, ((64, 256), (256, 128)), "library"),
    "transposed product": (lambda x, w: x @ w.t(), ((64, 256), (128, 256)), "library"),
    "batched product": (lambda x, w: x @ w, ((4, 64, 256), (4, 256, 128)), "library"),
    "sum": (lambda x: x.sum(-1), ((64, 256),), "one reduction"),
    "identity": (lambda x: x, ((64, 256),), "re-indexes"),
    "transposition": (lambda x: x.t(), ((64, 256),), "re-indexes"),
}


@pytest.mark.parametrize("name", ALONE)
def test_an_operator_alone_has_nothing_to_gain(name: str, tmp_path: Path) -> None:
    fn, shapes, why = ALONE[name]
    program = trace(fn, *shapes)
    events: list[Event] = []
    with pytest.raises(NoImprovementError) as refused:
        optimize(program, target="sm_90", out=tmp_path / "out", listener=events.append)
    assert events == []  # no stage was begun
    line = refused.value.one_line()
    assert line.startswith("given: there is nothing to gain: ")
    assert why in line
    assert refused.value.fix
    assert not (tmp_path / "out").exists()


SOMETHING: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "two operators": (lambda x, y: torch.exp(x + y), ((64, 256), (64, 256))),
    "softmax": (lambda x: torch.softmax(x, -1), ((64, 256),)),
    "norm": (lambda x: torch.nn.functional.rms_norm(x, (256,)), ((64, 256),)),
    "two products": (lambda x, y, z: x @ y @ z, ((64, 64), (64, 64), (64, 64))),
}


@pytest.mark.parametrize("name", SOMETHING)
def test_more_than_that_is_searched(name: str) -> None:
    fn, shapes = SOMETHING[name]
    assert nothing_to_gain(trace(fn, *shapes)) == ""


def test_search_says_so_and_still_gives_the_kernel() -> None:
    events: list[Event] = []
    fn, shapes, _ = ALONE["add"]
    found = list(prism.search(trace(fn, *shapes), listener=events.append))
    assert [len(p.sgraph.kernels) for p in found[:1]] == [1]
    assert any(isinstance(e, Warned) and "nothing to gain" in e.message for e in events)


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnx
    from onnx import TensorProto, helper

    def tensor(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 256])

    add = helper.make_node("Add", ["x", "y"], ["z"])
    graph = helper.make_graph([add], "sum", [tensor("x"), tensor("y")], [tensor("z")])
    path = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), str(path))
    assert main(["optimize", str(path), "--target", "sm_90", "--out", str(tmp_path / "out")]) == ExitCode.NO_IMPROVEMENT
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("prism: error: sum: there is nothing to gain: it is one pointwise operator")
    assert "keep it as it is" in last
    assert not (tmp_path / "out").exists()


def test_what_stands_behind_a_length_is_proved_to_be_there(tmp_path: Path, worker: Worker) -> None:
    """As the keys of this step behind those before: where they begin is a length."""
    text = (
        "m (float[b, past, 8] k, float[b, s, 8] x) => (float[b, t, 8] y) { c = Concat <axis = 1> (k, x) y = Tanh(c) }"
    )
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}'), path)
    found = run_search(load(path), device("sm_90"), SMALL, worker, Recorder())
    assert found.proved
    assert not found.unknown


class Embedded(torch.nn.Module):
    """An FNet's first island: embeddings, a norm, a projection, and a transform of what that gives."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types = torch.nn.Embedding(200, 64), torch.nn.Embedding(4, 64)
        self.norm, self.project = torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)
        self.register_buffer("matrix", torch.randn(64, 2, 64, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.project(self.norm(self.words(x) + self.types.weight[0]))
        return h, torch.einsum("bsnp,npkq->bskq", torch.stack([h, torch.zeros_like(h)], -1), self.matrix)


def test_kernels_are_not_joined_of_which_one_reads_what_another_stores(worker: Worker) -> None:
    """Each of two might have been in a third; both were, and one read rows that the other was storing."""
    program = prism.trace(Embedded(), (torch.zeros(256, 256, dtype=torch.int64),))
    result = run_search(program, device("sm_90"), SearchBudget(), worker, Recorder())
    assert result.proved
    assert "illegal" not in result.funnel.pruned
