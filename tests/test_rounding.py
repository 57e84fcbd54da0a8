"""Rounding alone is no bug: orders of sums, the form as written, and what is told apart when the gate refuses."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quick import slow_but
from sgraph_samples import SAMPLES, Sample, at, sym

import prism
from prism.api import choosing
from prism.api.finalists import emitting, finalists
from prism.api.optimizing import optimize
from prism.api.region_search import SearchBudget, SearchResult, run_search
from prism.backends.eager import Order, reordered
from prism.egraph.worker import Worker
from prism.errors import ExitCode, IllegalIRError, NoImprovementError, VerificationError
from prism.events import Recorder
from prism.instantiate.gate.check import LEAST_CASES, CheckReport, Drawn, KernelRunner, Output, check_module
from prism.instantiate.gate.judge import judge
from prism.instantiate.gate.plan import Sample as Programs
from prism.platforms.choice import platform_of
from prism.process.child import child_environment
from prism.process.deadline import NEVER, Deadline, OutOfTimeError
from prism.process.worker import Ending, Reply
from prism.process.worker import Worker as Process
from prism.program.arrays import NUMPY
from prism.program.evaluate import evaluate as oracle_of
from prism.program.evaluate import run
from prism.program.extents import evaluate
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import DType, Program, ReduceKind, Tensor
from prism.sgraph.config import Config
from prism.sgraph.denote import as_program, denote
from prism.sgraph.nodes import Grid, Kernel, Load, Pointwise, SGraph, Store, TileReduce, Whole
from prism.sgraph.value_bounds import shape

pytestmark = pytest.mark.usefixtures("small_gate")

F32 = DType.FLOAT32
i, j = Axis("i", 8), Axis("j", 32)


def traced(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    return prism.trace(fn, tuple(torch.randn(*s) for s in shapes))


# The yardstick.


def test_one_lucky_order_is_no_measure() -> None:
    exact, lucky, ours, other = (np.array([1.0, 1.0 + e]) for e in (0.0, 0.0, 4e-6, 2e-6))
    assert not judge(ours, exact, lucky, F32)
    assert judge(ours, exact, lucky, F32, others=[lucky, other])
    assert not judge(exact + 1e-3, exact, lucky, F32, others=[other]), "no order explains that"
    infinite = np.array([1.0, np.inf])
    assert not judge(infinite, exact, lucky, F32, others=[other])
    assert judge(infinite, exact, lucky, F32, others=[infinite]), "a sum that overflows in another order"


@pytest.mark.parametrize("order", Order)
def test_a_program_in_other_orders_is_the_program(order: Order) -> None:
    program = traced(lambda x, w: torch.softmax((x / x.sum(-1, keepdim=True)) @ w, -1).prod(-1), (5, 40), (40, 6))
    generator = torch.Generator().manual_seed(1)
    shapes = [tuple(int(str(e)) for e in t.shape) for t in program.inputs]
    drawn = [1 + torch.rand(shape, generator=generator) for shape in shapes]
    halves = {t.name: x.to(torch.bfloat16) for t, x in zip(program.inputs, drawn, strict=True)}
    wide = {name: t.to(torch.float64).numpy() for name, t in halves.items()}
    exact = oracle_of(program, wide)[program.outputs[0]]
    inputs = halves if order is Order.HALVES else {name: t.float() for name, t in halves.items()}
    found = [next(iter(o.values())) for o in reordered(program, inputs, {}, (order, order))]
    for result in found:
        np.testing.assert_allclose(result.double().numpy(), exact, rtol=5e-2 if order is Order.HALVES else 2e-5)
    if order is Order.SHUFFLED:
        assert not torch.equal(*found), "each is another order"


@pytest.mark.parametrize("base", [None, 3.0])
def test_powers_of_large_numbers_are_off_by_their_rounded_exponents(base: float | None) -> None:
    """Hardware has powers of two: of x * log2 e, which is rounded. Errors beyond what that makes are no rounding."""
    program = traced((lambda x: torch.exp(x)) if base is None else (lambda x: torch.pow(base, x)), (4, 8))
    x = torch.linspace(20, 70, 32).reshape(4, 8)
    (name,) = (t.name for t in program.inputs)
    exact = oracle_of(program, {name: x.double().numpy()})[program.outputs[0]]
    eager = (torch.exp(x) if base is None else torch.pow(base, x)).double().numpy()
    others = [next(iter(o.values())).double().numpy() for o in reordered(program, {name: x}, {}, (Order.SHUFFLED,) * 3)]
    ours = torch.exp2(x * math.log2(math.e if base is None else base)).double().numpy()
    assert not judge(ours, exact, eager, F32)
    assert judge(ours, exact, eager, F32, others=others)
    assert not judge(ours * (1 + 1e-4), exact, eager, F32, others=others)


# An sGraph by itself.


@pytest.mark.parametrize("build", SAMPLES)
def test_an_sgraph_is_a_program(build: Callable[..., Sample]) -> None:
    sample = build()
    if sample.sgraph.name in ("split_attention", "shared_axis_attention"):
        with pytest.raises(IllegalIRError, match="it has no denotation"):
            as_program(sample.sgraph)  # written by hand, with negations that the generator has not
        return
    made = as_program(sample.sgraph)
    assert made is not None
    program, parts = made
    binding = dict(sample.bindings[0])
    inputs = sample.inputs(binding)
    names = [t.name for t in program.inputs]
    values = binding | {name: evaluate(e, binding) for name, e in parts.items()}
    with np.errstate(all="ignore"):
        found = run(program, dict(zip(names, inputs, strict=True)), values, NUMPY)
    for t, wanted in zip(sample.sgraph.outputs, (sample.denoted or sample.reference)(*inputs), strict=True):
        np.testing.assert_allclose(found[t.name], wanted, rtol=1e-4, atol=1e-4)


def test_an_sgraph_that_stores_by_digits_is_a_program() -> None:
    def heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ((q @ k.mT).softmax(-1) @ v).transpose(0, 1).reshape(6, 32)

    inputs = [torch.randn(4, 6, 8) for _ in range(3)]
    with prism.search(prism.trace(heads, inputs), target="cpu") as found:
        sgraph = next(found).sgraph
    (store,) = (s for k in sgraph.kernels for s in k.statements() if isinstance(s, Store) and s.tensor == "reshape")
    assert any(len(i.terms) > 1 for i in store.index)
    made = as_program(sgraph)
    assert made is not None
    program, parts = made
    given = {t.name: np.asarray(x) for t, x in zip(program.inputs, inputs, strict=True)}
    computed = run(program, given, {name: evaluate(e, {}) for name, e in parts.items()}, NUMPY)
    np.testing.assert_allclose(computed["reshape"], heads(*inputs), rtol=1e-4, atol=1e-5)


def cancelling(x: str, y: str) -> SGraph:
    """y = (sum(x) - sum(x + 1000) + 32000) + sum(x): what cancels, rounds badly."""
    body = (
        Load("x1", x, at(i, j)),
        TileReduce("s", ReduceKind.SUM, j, "x1"),
        Pointwise("x2", "add", ("x1", 1000.0)),
        TileReduce("t", ReduceKind.SUM, j, "x2"),
        Pointwise("u", "mul", ("t", -1.0)),
        Pointwise("v", "add", ("s", "u")),
        Pointwise("w", "add", ("v", 32000.0)),
        Pointwise("z", "add", ("w", "s")),
        Store(y, at(i), "z"),
    )
    roles = ((i, Grid(sym("T_i"))), (j, Whole()))
    return SGraph("g", (Tensor(x, (8, 32), F32),), (), (Tensor(y, (8,), F32),), (Kernel("k", roles, body),))


class Told:
    """A runner that returns what a function makes of the inputs."""

    name = "told"
    sampling = bounded = False
    width = 1

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.fn = fn

    def run(
        self,
        module: Path,
        config: Config,
        inputs: Sequence[Any],
        outputs: Sequence[tuple[tuple[int, ...], str]],
        samples: Sequence[Programs],
    ) -> list[Output] | str:
        made = self.fn(inputs[0]).double().numpy()
        return [Output(made, np.ones(made.shape, bool))]

    def forget(self, but: Iterable[Any] = ()) -> None:
        """Nothing is kept."""

    def interrupt(self) -> None:
        """Nothing takes long."""


class Together(Told):
    """One that answers once so many cases run at the same time, and says what became of that."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor], width: int) -> None:
        super().__init__(fn)
        self.width, self.interrupted = width, 0
        self.barrier = threading.Barrier(width)

    def run(self, *args: Any) -> list[Output] | str:
        with suppress(threading.BrokenBarrierError):
            self.barrier.wait(20)
        return super().run(*args)

    def interrupt(self) -> None:
        self.interrupted += 1
        self.barrier.abort()


def summed(x: torch.Tensor) -> torch.Tensor:
    return ((x.sum(-1) - (x + 1000.0).sum(-1)) + 32000.0) + x.sum(-1)


def told(fn: Callable[[torch.Tensor], torch.Tensor]) -> CheckReport:
    program = traced(lambda x: x.sum(-1), (8, 32))
    graph = cancelling(program.inputs[0].name, program.outputs[0])
    return check_module(program, Path("none"), graph, Config({"T_i": 4}, {}, {}), runner=Told(fn), limit=3)


def test_several_cases_run_at_a_time_and_are_judged_in_order() -> None:
    program = traced(lambda x: x.sum(-1), (8, 32))
    graph, config = cancelling(program.inputs[0].name, program.outputs[0]), Config({"T_i": 4}, {}, {})

    def checked(fn: Callable[[torch.Tensor], torch.Tensor], width: int) -> tuple[CheckReport, Together]:
        runner = Together(fn, width)
        return check_module(program, Path("none"), graph, config, runner=runner, limit=3), runner

    for fn in (lambda x: x.sum(-1), lambda x: x.sum(-1) + 1):
        (one, _), (three, runner) = checked(fn, 1), checked(fn, 3)
        assert one == three
        assert not runner.barrier.broken
        assert not runner.interrupted


def test_what_still_runs_is_ended_where_nothing_more_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = traced(lambda x: x.sum(-1), (8, 32))
    graph, config = cancelling(program.inputs[0].name, program.outputs[0]), Config({"T_i": 4}, {}, {})
    runner = Together(lambda x: x.sum(-1), 1)
    runner.barrier = threading.Barrier(2)  # which nothing else comes to

    def ended(*_: object) -> Any:
        raise OutOfTimeError

    monkeypatch.setattr(Drawn, "answer", ended)
    with pytest.raises(OutOfTimeError):
        check_module(program, Path("none"), graph, config, runner=runner)
    assert runner.interrupted == 1


def test_cases_for_which_there_is_no_time_are_left_but_for_the_first() -> None:
    program = traced(lambda x: x.sum(-1), (8, 32))
    graph = cancelling(program.inputs[0].name, program.outputs[0])

    def checked(until: Deadline, oracle_s: float) -> CheckReport:
        drawn = Drawn(program, oracle_s=oracle_s)
        runner, config = Told(lambda x: x.sum(-1)), Config({"T_i": 4}, {}, {})
        return check_module(program, Path("none"), graph, config, runner=runner, limit=6, drawn=drawn, until=until)

    assert [checked(u, 30.0).cases for u in (NEVER, Deadline.after(600), Deadline.after(20))] == [6, 6, LEAST_CASES]
    assert [checked(u, 30.0).left for u in (NEVER, Deadline.after(20))] == [0, 6 - LEAST_CASES]


def test_a_kernel_that_rounds_as_its_sgraph_does_is_no_bug() -> None:
    assert told(lambda x: x.sum(-1)).passed
    report = told(summed)
    assert not report.passed
    assert report.rounding
    assert "times what is allowed" in report.failures[0]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(-1) * 1.01,
        lambda x: x[:, 1:].sum(-1),
        lambda x: summed(x) + 1.0,
        lambda x: torch.full((x.shape[0],), torch.nan),
        lambda x: x.sum(-1) / 0.0,
    ],
    ids=["a factor", "an element left out", "more than its rounding", "not a number", "infinite"],
)
def test_a_kernel_that_does_not_compute_its_sgraph_is_one(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    report = told(fn)
    assert not report.passed
    assert not report.rounding


# The form as written.

SMALL = SearchBudget(max_forms=1, max_sgraphs=1, max_families=6)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "a factor of a sum": (lambda a, x: (a * x).sum(0), ((40, 24), (24,))),
    "a norm before a product": (
        lambda x, w: (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) @ w,
        ((16, 64), (64, 32)),
    ),
    "low rank": (lambda x, w, a, b: x @ w + (x @ a) @ b, ((16, 64), (64, 32), (64, 4), (4, 32))),
    "a quotient before a product": (lambda x, w: (x / x.sum(-1, keepdim=True)) @ w, ((16, 64), (64, 32))),
    "softmax": (lambda q, k, v: torch.softmax(q @ k.T * 0.125, -1) @ v, ((16, 32), (24, 32), (24, 32))),
    "a sum of squares less a square": (lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, ((8, 40),)),
}


def searched(worker: Worker, program: Program, budget: SearchBudget = SMALL) -> SearchResult:
    return run_search(program, platform_of("sm_90", lambda m: None).device, budget, worker, Recorder(None))


# A rule moves a factor, folds a norm, rescales a sum; the others repeat one of these.
@pytest.mark.parametrize("name", slow_but(["a norm before a product", "softmax", "a factor of a sum"], FUNCTIONS))
def test_the_form_as_written_is_always_proved(worker: Worker, name: str) -> None:
    fn, shapes = FUNCTIONS[name]
    program = traced(fn, *shapes)
    (own,) = [p for p in searched(worker, program).proved if p.written]
    (formula,) = inline(program)
    assert shape(denote(own.sgraph).outputs[0]) == shape(formula.expr), "with nothing moved past anything else"


def test_what_the_rules_wrote_anew_is_found_as_well(worker: Worker) -> None:
    program = traced(lambda x: (1.0 * x - x.mean(-1, keepdim=True) + 0.0) * (3.0 * -2.0), (8, 40))
    assert [p.written for p in searched(worker, program).proved].count(True) == 1


def test_the_finalists_have_it(worker: Worker, tmp_path: Path) -> None:
    fn, shapes = FUNCTIONS["a norm before a product"]
    program = traced(fn, *shapes)
    found = searched(worker, program, SearchBudget(max_sgraphs=12))
    platform = platform_of("sm_90", lambda m: None)
    emit = emitting(tmp_path, "f", platform, "")
    first = finalists(found.proved, platform, program.hints, emit)
    assert any(f.proved.written for f in first.values())
    again = emitting(tmp_path, "f", platform, "_alone")
    (own,) = finalists(found.proved, platform, program.hints, again, tried=first.keys(), alone=True).values()
    assert own.proved.written
    assert finalists(found.proved, platform, program.hints, again, tried=first.keys()).keys().isdisjoint(first)


# How a run ends.


def refusing(rounding: bool, late: bool = False) -> Callable[..., CheckReport]:
    def check(*args: Any, **named: Any) -> CheckReport:
        why = "hang: no answer in 9 s" if late else "y: 3.5 times what is allowed"
        return CheckReport("told", 1, {"normal": 3.5}, (f"normal inputs: {why}",), 0, rounding, late)

    return check


def test_rounding_alone_is_nothing_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "check_module", refusing(rounding=True))
    program = traced(lambda x: x / x.sum(-1, keepdim=True), (8, 64))
    with pytest.raises(NoImprovementError) as caught:
        optimize(program, target="sm_90", budget=SearchBudget(max_sgraphs=2), trials=1)
    assert caught.value.exit_code is ExitCode.NO_IMPROVEMENT
    assert "3.5 times what is allowed" in caught.value.why
    assert "rounding alone" in caught.value.why
    assert "bug" not in caught.value.one_line()


def test_kernels_that_take_too_long_to_check_are_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "check_module", refusing(rounding=False, late=True))
    program = traced(lambda x: x / x.sum(-1, keepdim=True), (8, 64))
    with pytest.raises(NoImprovementError, match="no answer in 9 s") as caught:
        optimize(program, target="sm_90", budget=SearchBudget(max_sgraphs=1), trials=1)
    assert "bug" not in caught.value.one_line()


def test_a_case_that_does_not_end_in_time_is_late(tmp_path: Path) -> None:
    class Asked:
        def __init__(self, ending: Ending) -> None:
            self.ending = ending

        def ask(self, request: object, timeout_s: float) -> Reply:
            return Reply(self.ending, detail="told")

        def interrupt(self) -> None:
            """It is over."""

    program = traced(lambda x: x.exp(), (8, 32))
    (d,) = program.definitions
    index = tuple(map(Index.axis, d.axes))
    body = (Load("a", "x", index), Pointwise("b", "exp", ("a",)), Store(d.name, index, "b"))
    kernel = Kernel("k", tuple((a, Grid(sym(f"T_{a.name}"))) for a in d.axes), body)
    sgraph = SGraph("s", program.inputs, (), (d.tensor,), (kernel,))
    config = Config({s.name: 4 for s in sgraph.symbols}, {}, {})
    for ending in (Ending.HANG, Ending.CRASH):
        runner = KernelRunner("interpreter", "a runner", Asked(ending))  # type: ignore[arg-type]
        report = check_module(program, tmp_path / "m.py", sgraph, config, runner=runner)
        assert (report.passed, report.rounding, report.late) == (False, False, ending is Ending.HANG)


def test_a_child_that_its_own_alarm_ends_hangs() -> None:
    program = "import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.{})"
    endings = []
    for name in ("SIGALRM", "SIGKILL"):
        worker = Process([sys.executable, "-c", program.format(name)], child_environment())
        endings.append(worker.ask({}, 60).ending)
        worker.close()
    assert endings == [Ending.HANG, Ending.CRASH]


def test_what_rounding_does_not_explain_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "check_module", refusing(rounding=False))
    program = traced(lambda x: x / x.sum(-1, keepdim=True), (8, 64))
    with pytest.raises(VerificationError, match="a bug in prism"):
        optimize(program, target="sm_90", budget=SearchBudget(max_sgraphs=2), trials=1)


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        ({"crash": 2, "hang": 1}, "while the machine is idle"),
        ({"out of shared memory": 3}, "another device (--target)"),
        ({"crash": 3}, "memory and disk space"),
    ],
)
def test_where_nothing_runs_the_model_is_kept_and_prism_not_blamed(
    failures: dict[str, int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is out of time or memory proves nothing wrong: exit 4, where it had been 5 and a bug."""
    tuned = choosing._tuned

    def dead(*args: Any) -> Any:
        return replace(tuned(*args), ranking=(), trials=(), failures=failures)

    monkeypatch.setattr(choosing, "_tuned", dead)
    program = traced(lambda x: x / x.sum(-1, keepdim=True), (8, 64))
    with pytest.raises(NoImprovementError) as caught:
        optimize(program, target="sm_90", budget=SearchBudget(max_sgraphs=1), trials=1)
    assert caught.value.exit_code is ExitCode.NO_IMPROVEMENT
    line = caught.value.one_line()
    assert "no configuration could be compiled and run" in line
    assert all(f"{n} times {reason}" in line for reason, n in failures.items())
    assert said in caught.value.fix
    assert "bug" not in line


def test_quotients_by_sums_pass() -> None:
    """Issue 13: subnormal rows, whose reciprocals are infinite, and rows that cancel, where eager is right by luck."""
    program = traced(lambda x: x / x.sum(-1, keepdim=True), (8, 64))
    found = optimize(program, target="sm_90", budget=SearchBudget(max_sgraphs=1), trials=1, only_better=False)
    assert found.report.check is not None
    assert {"subnormals", "large"} <= found.report.check.worst.keys()
