"""The numeric gate: emitted kernels, run on many inputs at many shapes, against the float64 oracle and eager's error.

A proof over the reals says nothing of rounding, nor of the emitter; this does. `plan` says which inputs, shapes
and programs; `draws` makes the inputs; `gate` judges the results.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from prism.backends.tensors import save
from prism.errors import IllegalIRError, VerificationError
from prism.events import CheckSummary
from prism.instantiate.gate.draws import PATTERN_ONLY, draw_inputs
from prism.instantiate.gate.judge import Judgement, judge
from prism.instantiate.gate.plan import GIVEN, Case, Sample, interpretable, plan_cases, plan_samples, spread_out
from prism.process.child import Closing
from prism.process.deadline import NEVER, Deadline
from prism.process.memory import give_back
from prism.process.worker import Ending, Pool, Reply, Worker
from prism.program.arrays import ANNIHILATING, NUMPY, NumpyArrays
from prism.program.evaluate import bind
from prism.program.extents import evaluate
from prism.program.nodes import Program
from prism.sgraph.config import Config
from prism.sgraph.denote import as_program
from prism.sgraph.nodes import SGraph

if TYPE_CHECKING:
    from prism.backends.eager import Order


CASE_LIMIT_S = 120.0
"""A case that takes longer is hung,"""
LAUNCH_LIMIT_S = 2.0
"""but for what each launch may take besides: of a module of a thousand kernels, the compiler alone takes minutes."""
LOOK_S = 0.1
"""How often a case that waits for a compiler looks whether it is still wanted, seconds."""
KEPT_ELEMENTS = 1 << 22
"""Inputs that have more are not kept from one case to the next, but for the ordinary ones: they fill the memory."""
TOGETHER_ELEMENTS = 1 << 25
"""Cases whose inputs have more together do not run at the same time: 10 bytes each and more."""
LARGE_ELEMENTS = 1 << 26
"""Inputs that have more take seconds to draw and minutes in float64, so only LARGE_CASES run."""
LARGE_CASES = 6
LEAST_CASES = 2
"""Cases that run however little time is left: ordinary inputs, under the chosen configuration and under another."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output as a runner found it: values as float64, and which elements were written."""

    values: np.ndarray
    written: np.ndarray


class Runner(Protocol):
    """Runs the kernels of an emitted module."""

    name: str
    sampling: bool
    bounded: bool
    width: int

    def run(
        self,
        module: Path,
        config: Config,
        inputs: Sequence[Any],
        outputs: Sequence[tuple[tuple[int, ...], str]],
        samples: Sequence[Sample],
    ) -> list[Output] | str:
        """The outputs, or one line about why there are none.

        The inputs are torch tensors on the CPU, the outputs shapes and types; `samples` are for each launch which of
        its programs to run, None for all.
        """

    def forget(self, but: Iterable[Any] = ()) -> None:
        """Let go of the inputs that were passed, but for these."""

    def interrupt(self) -> None:
        """End what runs, of which nothing is wanted any more."""


class Late(str):
    """Why there are no outputs: they did not come in time, which says nothing of whether they would be right."""

    __slots__ = ()


class Unfit(str):
    """Why there are no outputs: the device has no room for the configuration, which says nothing of its results."""

    __slots__ = ()


Begun: TypeAlias = Callable[[Path, SGraph, Case], "tuple[object, Callable[[], Future[Reply]]] | None"]
"""How a case's kernels are compiled: what the compiler's result is the same for, and what begins it."""


class KernelRunner(Closing):
    """Runs kernels in child processes: in Triton's interpreter, on the GPU, or wherever a given worker does.

    Args:
        device: `interpreter`, `cuda`, or what the worker takes.
        name: what reports call it.
        worker: the child, or several that run as many cases at a time.
        compiled: how kernels are compiled beside the child, if they are.
        lent: whether the child is another's, who ends it.
    """

    def __init__(
        self,
        device: str,
        name: str,
        worker: Worker | Pool,
        compiled: Begun = lambda module, sgraph, case: None,
        lent: bool = False,
    ) -> None:
        self._device = device
        self._compiled = compiled
        self._lent = lent
        self._ahead: dict[tuple[Path, str], dict[object, Future[Reply]]] = {}
        self.sampling = device == "interpreter"  # whether only samples of a launch's programs are run
        self.bounded = device == "cuda"  # whether the device has room for some configurations alone
        self.width = worker.size if isinstance(worker, Pool) else 1  # how many cases it runs at a time
        self.name = name
        self._worker = worker
        # Inputs that are passed again, as the same objects, are neither written nor read again.
        self._folder = tempfile.TemporaryDirectory(prefix="prism-check-")
        self._passed: dict[int, tuple[Any, Path]] = {}
        self._passing = threading.Lock()
        self._counts = itertools.count()
        self._interrupts = 0

    def begin(self) -> None:
        """Start the child, where it is its own, while something else is done; of several, half of them."""
        if isinstance(self._worker, Pool):
            self._worker.begin((self.width + 1) // 2)
        elif not self._lent:
            self._worker.begin()

    def ahead(self, module: Path, sgraph: SGraph, cases: Iterable[Case]) -> None:
        """Begin to compile a module for the cases that it will be run in, where that is done."""
        for case in cases:
            compiled = self._compiled(module, sgraph, case)
            if compiled is not None:
                key, begin = compiled
                begun = self._ahead.setdefault((module, case.config.key()), {})
                if key not in begun:
                    begun[key] = begin()

    def run(
        self,
        module: Path,
        config: Config,
        inputs: Sequence[Any],
        outputs: Sequence[tuple[tuple[int, ...], str]],
        samples: Sequence[Sample],
    ) -> list[Output] | str:
        """See Runner."""
        import torch

        interrupts = self._interrupts
        for begun in self._ahead.pop((module, config.key()), {}).values():
            while not wait([begun], LOOK_S).done and interrupts == self._interrupts:
                pass  # whatever comes of it: the child compiles what is not there
        if interrupts != self._interrupts:
            return "it was interrupted"

        folder = Path(self._folder.name)
        results = folder / f"results{next(self._counts)}.pt"
        request = {
            "module": str(module),
            "config": config.encode(),
            "device": self._device,
            "inputs": [str(self._file(folder, t)) for t in inputs],
            "results": str(results),
            "outputs": [[list(shape), dtype] for shape, dtype in outputs],
            "samples": list(samples),
        }
        reply = self._worker.ask(request, CASE_LIMIT_S + len(samples) * LAUNCH_LIMIT_S)
        if reply.ending is not Ending.ANSWERED:
            why = f"{reply.ending.value}: {reply.detail}"
            return Late(why) if reply.ending is Ending.HANG else why
        if reply.answer.get("unfit"):
            return Unfit(reply.answer["unfit"])
        if reply.answer.get("error"):
            return str(reply.answer["error"])
        found = [Output(t.to(torch.float64).numpy(), w.numpy()) for t, w in torch.load(results)]
        results.unlink()
        return found

    def interrupt(self) -> None:
        """See Runner: a child that is asked again begins anew, and compilers are not waited for any more."""
        self._interrupts += 1
        self._worker.interrupt()

    def forget(self, but: Iterable[Any] = ()) -> None:
        """See Runner."""
        kept = {id(t) for t in but}
        with self._passing:
            for n in self._passed.keys() - kept:
                self._passed.pop(n)[1].unlink(missing_ok=True)

    def _file(self, folder: Path, tensor: Any) -> Path:
        with self._passing:
            if id(tensor) not in self._passed:
                # Files are never written twice: the child remembers them by name.
                path = folder / f"input{next(self._counts)}.pt"
                save(tensor, path)
                self._passed[id(tensor)] = tensor, path
            return self._passed[id(tensor)][1]

    def close(self) -> None:
        """Kill the child, if it is its own."""
        if not self._lent:
            self._worker.close()
        self._passed.clear()
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the gate found."""

    runner: str  # where the kernels ran
    cases: int  # how many cases ran
    worst: Mapping[str, float]  # by draw, the largest error as a multiple of what is allowed
    failures: tuple[str, ...]  # one line for each case that did not pass
    sampled: int = 0  # how many cases ran only a sample of some kernel's programs
    # Whether rounding explains all failures: the sGraph itself, evaluated in torch, is as far from the oracle as its
    # kernels.
    rounding: bool = False
    late: bool = False  # whether all failures are cases that did not end in time
    left: int = 0  # how many cases there was no time for

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return not self.failures

    def summary(self) -> CheckSummary:
        """The report as the run's report shows it. Raises VerificationError: a case did not pass."""
        if self.failures:
            raise VerificationError(
                "an emitted kernel computes something else than the model",
                why=self.failures[0],
                fix="report it: the sGraph was proved, so the emitter or the rounding is at fault",
            )
        return CheckSummary(self.runner, self.cases, self.worst)


def check_module(
    program: Program,
    module: Path,
    sgraph: SGraph,
    config: Config,
    *,
    seed: int = 0,
    runner: Runner,
    alternatives: Sequence[Config] = (),
    limit: int | None = None,
    drawn: Drawn | None = None,
    until: Deadline = NEVER,
) -> CheckReport:
    """Check an emitted module.

    Args:
        program: the program that it implements.
        module: the emitted module.
        sgraph: its sGraph.
        config: the chosen configuration: checked on ordinary inputs at every shape.
        seed: of the draws.
        runner: where the kernels run.
        alternatives: other feasible configurations; the cheapest to interpret is used for the adversarial draws.
        limit: run the first so many cases (ordinary inputs, other shapes first); all when None.
        drawn: of the same program, where several modules are checked: what they have in common is drawn, and computed
            in float64, once.
        until: no case is begun that would probably end later, but for the first `LEAST_CASES`.
    """
    if drawn is None:
        runner.forget()
        drawn = Drawn(program)
    cases = plan_cases(program, sgraph, config, alternatives, seed, bounded=runner.bounded)[:limit]
    return _checked(drawn, module, sgraph, config, cases, runner, until)


def check_given(
    program: Program,
    module: Path,
    sgraph: SGraph,
    config: Config,
    given: Mapping[str, np.ndarray],
    *,
    runner: Runner,
) -> CheckReport:
    """Check an emitted module on inputs that somebody gave.

    What is given is arrays for the inputs that the program does not hold, of the shapes that it takes.
    """
    import torch

    declared = [t for t in program.inputs if t.name in given]
    binding = bind(declared, {name: a.shape for name, a in given.items()})
    tensors = draw_inputs(program, "normal", binding, 0)
    for t in declared:
        array = np.require(given[t.name], requirements=["C", "W"])
        tensors[t.name] = torch.as_tensor(array).to(getattr(torch, t.dtype.value))
    runner.forget()
    drawn = Drawn(program, given=tensors)
    return _checked(drawn, module, sgraph, config, [Case(GIVEN, binding, config, 0)], runner)


def _checked(
    drawn: Drawn,
    module: Path,
    sgraph: SGraph,
    chosen: Config,
    cases: Sequence[Case],
    runner: Runner,
    until: Deadline = NEVER,
) -> CheckReport:
    """Judge the cases in order; as many as the runner takes, and one more, are under way while others are judged.

    Those whose own configuration the device has no room for run under the chosen one.
    """
    worst: dict[str, float] = {}
    failures: list[str] = []
    done = sampled = unexplained = wrong = left = 0
    waiting, under_way = deque(cases), deque[_Running]()
    unwanted = threading.Event()
    with (
        # Threads of one product wait for each other, and kernels and draws take processors from them.
        threadpool_limits(1, user_api="blas"),
        ThreadPoolExecutor(1, thread_name_prefix="prism-oracle") as oracle,
        ThreadPoolExecutor(runner.width, thread_name_prefix="prism-check") as threads,
    ):
        gate = _Gate(module, sgraph, runner, drawn, threads, oracle, unwanted)
        try:
            while (waiting or under_way) and not failures:
                while waiting and len(under_way) <= runner.width:
                    case = waiting[0]
                    elements = sum(math.prod(evaluate(e, case.binding) for e in t.shape) for t in drawn.program.inputs)
                    if under_way and elements + sum(r.elements for r in under_way) > TOGETHER_ELEMENTS:
                        break
                    if elements > KEPT_ELEMENTS:
                        drawn.drop()
                        runner.forget([t for r in under_way for t in r.inputs.tensors.values()])
                        give_back()
                    begun = done + len(under_way)
                    if begun >= LEAST_CASES and until.left < drawn.oracle_s:
                        left = len(waiting)
                        waiting.clear()
                    elif elements > LARGE_ELEMENTS and begun == LARGE_CASES:
                        waiting.clear()
                    else:
                        under_way.append(gate.begin(waiting.popleft()))
                if not under_way:
                    break
                r = under_way[0]
                found = _judged(drawn, sgraph, r)
                if isinstance(found, Unfit) and r.case.config != chosen:
                    r = gate.begin(replace(r.case, config=chosen))
                    found = _judged(drawn, sgraph, r)
                under_way.popleft()
                ratio, reasons, rounding = (math.inf, [found], False) if isinstance(found, str) else found
                unexplained += bool(reasons) and not rounding
                wrong += any(not isinstance(reason, Late) for reason in reasons)
                done += 1
                sampled += any(s is not None for s in r.samples)
                worst[r.case.draw] = max(worst.get(r.case.draw, 0.0), ratio)
                failures += [f"{r.case}: {reason}" for reason in reasons]
            threads.shutdown(wait=True, cancel_futures=True)
        except BaseException:  # the time has ended, say: what still runs would be waited for
            threads.shutdown(wait=False, cancel_futures=True)
            runner.interrupt()
            raise
        finally:
            unwanted.set()
            oracle.shutdown(wait=False, cancel_futures=True)
    return CheckReport(
        runner.name,
        done,
        worst,
        tuple(failures),
        sampled,
        bool(failures) and not unexplained,
        bool(failures) and not wrong,
        left,
    )


@dataclass(frozen=True, slots=True)
class _Running:
    """A case whose kernels run: its inputs, what is run of it, what will come of it and what is right."""

    case: Case
    elements: int
    inputs: Inputs
    samples: Sequence[Sample]
    outputs: Future[list[Output] | str]
    answers: Future[Answers]


@dataclass(frozen=True, slots=True)
class _Gate:
    """What the cases of one module share."""

    module: Path  # see `check_module`, also for sgraph, runner and drawn
    sgraph: SGraph
    runner: Runner
    drawn: Drawn
    threads: ThreadPoolExecutor  # run the kernels
    oracle: ThreadPoolExecutor  # works out what is right
    unwanted: threading.Event  # set once nothing more is wanted of it

    def begin(self, case: Case) -> _Running:
        """Draw the inputs of a case, and begin to run it and to work out what is right for it, in a thread each."""
        sgraph = self.sgraph
        samples: list[Sample] = [None] * len(sgraph.launches)
        if self.runner.sampling:
            if case.draw != "normal":
                case = replace(case, config=spread_out(sgraph, case.config, case.binding))
            case = replace(case, config=interpretable(sgraph, case.config, case.binding))
            # A loop's launches are more than the sGraph has.
            samples = samples if sgraph.repeats else plan_samples(sgraph, case.config, case.binding)
        given = self.drawn.of(case)
        shapes = [(tuple(evaluate(e, case.binding) for e in t.shape), t.dtype.value) for t in sgraph.outputs]
        inputs = [given.tensors[t.name] for t in sgraph.inputs]
        outputs = self.threads.submit(self.runner.run, self.module, case.config, inputs, shapes, samples)
        answers = self.oracle.submit(self.drawn.answer, case, given, self.unwanted)
        return _Running(case, sum(map(np.size, given.wide.values())), given, samples, outputs, answers)


@dataclass(frozen=True, slots=True)
class Inputs:
    """A case's inputs, by name."""

    tensors: Mapping[str, Any]  # as kernels take them
    wide: Mapping[str, np.ndarray]  # as float64
    finite: Set[str]  # those that are finite


@dataclass(frozen=True, slots=True)
class Answers:
    """What is right for a case, by output; see `judge`."""

    exact: Mapping[str, np.ndarray]  # the oracle's results
    given: Mapping[str, np.ndarray]  # eager's
    # The oracle's where what is not finite does not matter, several by output.
    clean: Mapping[str, Sequence[np.ndarray]]


Results: TypeAlias = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""The oracle's results and eager's, by output."""


@dataclass(slots=True)
class Drawn:
    """The inputs of a program's cases, and what is right for them: what several have in common is made once."""

    program: Program
    # The inputs of the case of inputs that are given, if there is one.
    given: Mapping[str, Any] = field(default_factory=dict)
    # What was made, as `shuffled` and `tensors` are.
    answers: dict[tuple[object, ...], Answers] = field(default_factory=dict)
    shuffled: dict[tuple[object, ...], list[dict[str, np.ndarray]]] = field(default_factory=dict)
    tensors: dict[tuple[object, ...], Any] = field(default_factory=dict)
    # Of tensors, by their `id`, the same as float64, and whether all of it is finite.
    wide: dict[int, tuple[np.ndarray, bool]] = field(default_factory=dict)
    # What others made: of inputs, by what draws them, the oracle's results and eager's, by output.
    results: dict[tuple[object, ...], Results] = field(default_factory=dict)
    oracle_s: float = 0.0  # what the oracle took for a case, at most, seconds

    def of(self, case: Case) -> Inputs:
        """The case's inputs."""
        given = dict(self.given)
        if case.draw != GIVEN:
            given = draw_inputs(self.program, case.draw, case.binding, case.seed, case.struck, self.tensors)
        for t in given.values():
            if id(t) not in self.wide:
                wide = _float64(t)
                self.wide[id(t)] = wide, NUMPY.all_finite(wide)
        made = {name: self.wide[id(t)] for name, t in given.items()}
        wides = {name: wide for name, (wide, _) in made.items()}
        return Inputs(given, wides, {name for name, (_, finite) in made.items() if finite})

    def answer(self, case: Case, inputs: Inputs, unwanted: threading.Event | None = None) -> Answers:
        """What the oracle and eager say of the case's inputs.

        Raises:
            CancelledError: it is `unwanted`, which is looked at between definitions.
        """
        from prism.backends.eager import eager
        from prism.program.evaluate import evaluate as oracle_of

        key = _case_key(case)
        known = self.answers.get(key)
        if known is None:
            arrays = _Known(inputs.wide[name] for name in inputs.finite)
            made = self.results.get(key)
            if made is None:
                start = time.monotonic()
                exact = oracle_of(self.program, inputs.wide, arrays, partial(_go_on, unwanted))
                self.oracle_s = max(self.oracle_s, time.monotonic() - start)
                given = eager(self.program, plain=True)(*(inputs.tensors[t.name] for t in self.program.inputs))
                made = {n: (exact[n], _float64(g)) for n, g in zip(self.program.outputs, given, strict=True)}
            known = Answers(
                {name: exact for name, (exact, _) in made.items()},
                {name: given for name, (_, given) in made.items()},
                _without_non_finite(
                    self.program, inputs.wide, inputs.wide.keys() - inputs.finite, arrays, partial(_go_on, unwanted)
                ),
            )
            if sum(x.size for x in known.exact.values()) <= KEPT_ELEMENTS:
                self.answers[key] = known
        return known

    def others(self, case: Case, tensors: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
        """What eager might as well have made of the case's inputs: the program in other orders."""
        key = _case_key(case)
        if key not in self.shuffled:
            self.shuffled[key] = program_samples(self.program, tensors, case.binding)
        return self.shuffled[key]

    def drop(self) -> None:
        """Let go of all inputs but the ordinary ones."""
        self.shuffled.clear()
        self.tensors = {key: t for key, t in self.tensors.items() if key[1] == "normal"}
        kept = {id(t) for t in self.tensors.values()}
        self.wide = {n: w for n, w in self.wide.items() if n in kept}


class _Known(NumpyArrays):
    """numpy's operations where some arrays, which live as long, are known to be finite."""

    def __init__(self, finite: Iterable[np.ndarray]) -> None:
        self._finite = frozenset(map(_address, finite))

    def all_finite(self, array: Any) -> bool:
        """See Arrays; a view that begins where an array does has no elements but that one's."""
        return _address(array) in self._finite or super().all_finite(array)


def _address(array: np.ndarray) -> int:
    """Where its first element lies."""
    return int(array.__array_interface__["data"][0])


def _case_key(case: Case) -> tuple[object, ...]:
    return inputs_key(case.draw, case.binding, case.seed, case.struck)


def inputs_key(
    draw: str, binding: Mapping[str, int], seed: int, struck: tuple[str, ...] | None = None
) -> tuple[object, ...]:
    """What tells drawn inputs from others; see `draw_inputs`."""
    return draw, tuple(sorted(binding.items())), seed, struck


def _judged(drawn: Drawn, sgraph: SGraph, running: _Running) -> tuple[float, list[str], bool] | str:
    """The largest error as a multiple of what is allowed, what did not pass, and whether that is rounding alone.

    Or why nothing was run.
    """
    case, tensors = running.case, running.inputs.tensors
    answers = running.answers.result()
    found = running.outputs.result()
    if isinstance(found, str):
        return found
    everything = all(s is None for s in running.samples)

    def verdicts(others: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Judgement]:
        return {
            t.name: judge(
                output.values,
                answers.exact[t.name],
                answers.given[t.name],
                t.dtype,
                output.written,
                everything,
                answers.clean.get(t.name, ()),
                case.draw not in PATTERN_ONLY,
                [x[t.name] for x in others],
            )
            for t, output in zip(sgraph.outputs, found, strict=True)
        }

    made = verdicts(())
    rounding = False
    if not all(made.values()):
        others = drawn.others(case, tensors)
        made = verdicts(others)
        if not all(made.values()):
            own = sgraph_samples(sgraph, drawn.program, tensors, case.binding)
            rounding = all(verdicts([*others, *own]).values())
    reasons = [f"{name}: {verdict.reason}" for name, verdict in made.items() if not verdict]
    return max((v.ratio for v in made.values()), default=0.0), reasons, rounding


def _go_on(unwanted: threading.Event | None, *_: object) -> None:
    if unwanted is not None and unwanted.is_set():
        raise CancelledError


def _without_non_finite(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    odd: Set[str],
    arrays: NumpyArrays = NUMPY,
    seen: Callable[..., None] | None = None,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The results where infinities and NaN of the `odd` inputs are read only if they have to be; none if none is odd.

    Two other numbers are put in their place: what those leave as it is does not depend on them, or goes by a guard
    where they are not finite. Elsewhere, and beside it, what comes of it where 0 times anything is 0, as masks and
    paddings are not read.
    """
    from prism.program.evaluate import evaluate as oracle_of

    if not odd:
        return {}
    one, other = (
        oracle_of(
            program,
            {**inputs, **{name: np.where(np.isfinite(inputs[name]), inputs[name], n) for name in odd}},
            arrays,
            seen,
        )
        for n in (1.0, -2.0)
    )
    skipped = oracle_of(program, inputs, ANNIHILATING, seen)
    return {
        name: (np.where(one[name] == other[name], one[name], skipped[name]), skipped[name]) for name in program.outputs
    }


def _float64(tensor: Any) -> np.ndarray:
    import torch

    return np.asarray(tensor.detach().to(torch.float64).cpu().numpy())


def program_samples(
    program: Program, tensors: Mapping[str, Any], binding: Mapping[str, int]
) -> list[dict[str, np.ndarray]]:
    """The program's outputs as eager might as well have computed them, as float64; the tensors are on the CPU."""
    from prism.backends.eager import ORDERS, Order

    return _in_orders(program, tensors, binding, (Order.SHUFFLED,) * ORDERS)


def sgraph_samples(
    sgraph: SGraph, program: Program, tensors: Mapping[str, Any], binding: Mapping[str, int]
) -> list[dict[str, np.ndarray]]:
    """What the sGraph computes by itself, in several orders, as float64; nothing where only kernels can run it."""
    from prism.backends.eager import ORDERS, Order

    try:
        made = as_program(sgraph, program.ranges)
    except IllegalIRError:
        made = None
    if made is None:
        return []
    own, parts = made
    given = {t.name: tensors[t.name] for t in sgraph.inputs}
    values = {**binding, **{name: evaluate(e, binding) for name, e in parts.items()}}
    orders = (Order.PLAIN, *(Order.SHUFFLED,) * ORDERS, Order.SEQUENTIAL, Order.HALVES)
    return _in_orders(own, given, values, orders)


def _in_orders(
    program: Program, tensors: Mapping[str, Any], binding: Mapping[str, int], orders: Sequence[Order]
) -> list[dict[str, np.ndarray]]:
    import torch

    from prism.backends.eager import reordered

    with np.errstate(all="ignore"):
        found = list(reordered(program, tensors, binding, orders))
    return [{name: np.asarray(t.to(torch.float64).numpy()) for name, t in outputs.items()} for outputs in found]
