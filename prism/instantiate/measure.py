"""Measuring on the device that is here: every time is of a run whose results were checked.

Kernels are compiled ahead in other processes, then timed one after the other in a single child (on a GPU
`prism.backends.triton.timing`, on a CPU `cpu_worker`). A child that crashes, hangs or loses its CUDA context costs one
failed trial.
"""

from __future__ import annotations

import pickle
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from prism.backends.protocol import Config, plain
from prism.backends.triton.crosscompile import worker_command, worker_environment
from prism.backends.triton.timing import WORKER
from prism.errors import BackendError
from prism.events import Evidence
from prism.instantiate.cache import cache_root, version_of
from prism.instantiate.draws import draw_inputs
from prism.instantiate.estimating import Compiler, over_limit
from prism.instantiate.gate import judge
from prism.instantiate.study import Candidate, Failure, Outcome
from prism.instantiate.workers import Ending, Worker
from prism.program.extents import evaluate
from prism.program.nodes import Program
from prism.sgraph.nodes import SGraph

REPEATS = 10
"""Timed replays of a trial's graph."""
CONFIRMATIONS = 30
"""Timed replays of each contender when winners meet the baseline."""
TIMING_LIMIT_S = 60.0
"""How long one timing request may take for each contender, seconds."""
BASELINE_CALLS = 6
"""Calls of a baseline on this processor that a request takes at most, when each takes seconds."""
PROTOCOL = 1
"""Raise it when what is timed changes, so that old times are not taken for new ones."""


class TimedDevice(Protocol):
    """What is timed on: a `Gpu`, or a CPU in its place."""

    @property
    def name(self) -> str:
        """The product."""
        ...

    @property
    def target(self) -> str:
        """What is compiled for."""
        ...

    @property
    def l2_bytes(self) -> int:
        """The cache that is to be found cold; 0 when not known."""
        ...

    @property
    def shared_limit_bytes(self) -> int:
        """The most shared memory of one block; 0 when there is no limit."""
        ...


class Compiling(Protocol):
    """Compiles points ahead."""

    @property
    def basis(self) -> str:
        """What the compiler's word depends on."""
        ...

    def compile(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        """For each point, in order, its resources, or its failure."""
        ...

    def close(self) -> None:
        """Stop."""
        ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of one call: the median of the samples and their quartiles."""

    median: float
    lower: float
    upper: float
    samples: int

    def __str__(self) -> str:
        return f"{self.median * 1e6:.2f} us [{self.lower * 1e6:.2f}, {self.upper * 1e6:.2f}]"


def summarise(samples: Sequence[float]) -> Measurement:
    """Median and quartiles.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError("no samples")
    if len(samples) == 1:
        return Measurement(samples[0], samples[0], samples[0], 1)
    lower, median, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Measurement(median, lower, upper, len(samples))


def beats(challenger: Measurement, baseline: Measurement) -> bool:
    """Whether the challenger is faster beyond the spread of both: the quartiles do not overlap."""
    return challenger.upper < baseline.lower


@dataclass(frozen=True, slots=True)
class Contender:
    """What is timed: a module under a configuration, or (without a module) the program itself.

    Attributes:
        name: as shown.
        module: the emitted module, or None for the baseline.
        sgraph: its sGraph.
        config: its configuration.
        compiled: for the baseline, whether torch.compile runs it, or eager.
    """

    name: str
    module: Path | None = None
    sgraph: SGraph | None = None
    config: Config | None = None
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class Timed:
    """A contender's measurement, or why there is none."""

    name: str
    measurement: Measurement | None
    failure: Failure | None = None
    detail: str = ""


class Bench:
    """The program, its inputs on disk, the oracle's answers, and the child that times.

    Args:
        program: the program; its inputs are drawn at `hints`.
        gpu: what is timed on.
        hints: the value of every symbol.
        seed: of the draws.
        worker: the child; a fresh one by default.
        root: the cache folder; the user's by default.
    """

    def __init__(
        self,
        program: Program,
        gpu: TimedDevice,
        hints: Mapping[str, int],
        *,
        seed: int = 0,
        worker: Worker | None = None,
        root: Path | None = None,
    ) -> None:
        self.program = program
        self.gpu = gpu
        self.hints = dict(hints)
        environment = worker_environment((root or cache_root()) / "triton")
        self._worker = worker or Worker(worker_command(WORKER), environment)
        self._folder = tempfile.TemporaryDirectory(prefix="prism-bench-")
        self._seed = seed
        self._references: list[tuple[np.ndarray, np.ndarray]] | None = None
        self._eager_s = 0.0

    def _prepare(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(oracle, eager) per output; inputs and program are written to disk on the way, once."""
        if self._references is not None:
            return self._references
        import torch

        from prism.backends.eager import eager
        from prism.program.evaluate import evaluate as oracle_of

        tensors = draw_inputs(self.program, "normal", self.hints, self._seed)
        ordered = [tensors[t.name] for t in self.program.inputs]
        torch.save(ordered, self._path("inputs.pt"))
        self._path("program.pickle").write_bytes(pickle.dumps(self.program))
        exact = oracle_of(self.program, {n: t.to(torch.float64).numpy() for n, t in tensors.items()})
        start = time.perf_counter()
        given = eager(self.program)(*ordered)
        self._eager_s = time.perf_counter() - start
        names = self.program.outputs
        self._references = [(exact[n], g.to(torch.float64).numpy()) for n, g in zip(names, given, strict=True)]
        return self._references

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def time(self, contenders: Sequence[Contender], repeats: int) -> list[Timed]:
        """Time contenders interleaved; a time is given only to results that pass the numeric gate.

        A request that loses its child is tried again contender by contender, so that one bad kernel costs one trial.
        """
        self._prepare()
        limit = TIMING_LIMIT_S * len(contenders)
        if self.gpu.target == "cpu":
            # torch has no fast half-precision product for most CPUs: a layer can take it a minute.
            limit += BASELINE_CALLS * self._eager_s * sum(c.module is None for c in contenders)
        reply = self._worker.ask(self._request(contenders, repeats), limit)
        if reply.ending is Ending.ANSWERED and not reply.answer.get("error"):
            return self._checked(contenders, reply.answer["contenders"])
        if len(contenders) > 1:
            return [t for c in contenders for t in self.time([c], repeats)]
        failure = {Ending.HANG: Failure.HANG}.get(reply.ending, Failure.CRASH)
        return [Timed(contenders[0].name, None, failure, reply.detail or str(reply.answer.get("error", "")))]

    def _request(self, contenders: Sequence[Contender], repeats: int) -> dict[str, Any]:
        outputs = [self.program.tensor(n) for n in self.program.outputs]
        return {
            "contenders": [self._spec(c) for c in contenders],
            "inputs": str(self._path("inputs.pt")),
            "results": str(self._path("results.pt")),
            "outputs": [[[evaluate(e, self.hints) for e in t.shape], t.dtype.value] for t in outputs],
            "l2_bytes": self.gpu.l2_bytes or 64 << 20,
            "repeats": repeats,
        }

    def _spec(self, c: Contender) -> dict[str, Any]:
        if c.module is None or c.sgraph is None or c.config is None:
            return {"kind": "compiled" if c.compiled else "eager", "program": str(self._path("program.pickle"))}
        places = {t.name: n for n, t in enumerate(self.program.inputs)}
        takes = [places[t.name] for t in c.sgraph.inputs]
        return {"kind": "module", "module": str(c.module), "config": plain(c.config), "inputs": takes}

    def _checked(self, contenders: Sequence[Contender], answers: Sequence[Mapping[str, Any]]) -> list[Timed]:
        import torch

        results = torch.load(self._path("results.pt"))
        found = []
        for c, answer, tensors in zip(contenders, answers, results, strict=True):
            if answer.get("error"):
                found.append(Timed(c.name, None, classify(str(answer["error"])), str(answer["error"])))
                continue
            reason = self._wrong(tensors) if c.module is not None else ""
            if reason:
                found.append(Timed(c.name, None, Failure.WRONG, reason))
            else:
                found.append(Timed(c.name, summarise(answer["samples"])))
        return found

    def _wrong(self, tensors: Sequence[Any]) -> str:
        """Why the outputs of a timed run do not pass; they were poisoned before it."""
        import torch

        for name, t, (exact, given) in zip(self.program.outputs, tensors, self._prepare(), strict=True):
            verdict = judge(t.to(torch.float64).numpy(), exact, given, self.program.tensor(name).dtype)
            if not verdict:
                return f"{name}: {verdict.reason}"
        return ""

    def close(self) -> None:
        """Kill the child and remove the files."""
        self._worker.close()
        self._folder.cleanup()


def classify(error: str) -> Failure:
    """The kind of failure behind an exception's text."""
    lowered = error.lower()
    if "shared memory" in lowered:
        return Failure.SHARED
    if "out of resource" in lowered or "outofresources" in lowered or "too many resources" in lowered:
        return Failure.RESOURCES
    if "compilationerror" in lowered or "ptxas" in lowered:
        return Failure.COMPILE
    return Failure.CRASH


class Measuring:
    """The evaluator on a device that is here: its seconds are measured.

    Args:
        bench: times; it is not closed with the evaluator.
        root: the cache folder; the user's by default.
        size: worker processes that compile ahead.
        compiler: compiles ahead; Triton's for the bench's GPU by default.
        shared: whether others use the device, too: they only ever slow it down, so trials are ranked by the lower
            quartile and not by the median.
    """

    evidence = Evidence.MEASURED

    def __init__(
        self,
        bench: Bench,
        *,
        root: Path | None = None,
        size: int = 2,
        compiler: Compiling | None = None,
        shared: bool = False,
    ) -> None:
        self.bench = bench
        self._shared = shared
        # The same Triton cache as the timing child's: it finds the kernels compiled.
        self.compiler: Compiling = compiler or Compiler(bench.gpu.target, bench.hints, size=size, root=root)

    @property
    def basis(self) -> str:
        """What a measurement depends on besides the point."""
        return f"{self.bench.gpu.name} {self.compiler.basis} torch {version_of('torch')} protocol {PROTOCOL}"

    def evaluate(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        """The measurements, in the order of the points."""
        limit = self.bench.gpu.shared_limit_bytes or (1 << 30)
        for (candidate, config), outcome in zip(points, self.compiler.compile(points), strict=True):
            if outcome.failure is not None:
                yield outcome
                continue
            over = over_limit(outcome.resources, limit)
            if over:
                yield Outcome(None, Failure.SHARED, over, outcome.resources)
                continue
            contender = Contender(candidate.key, candidate.module, candidate.sgraph, config)
            (timed,) = self.bench.time([contender], REPEATS)
            seconds = None if timed.measurement is None else self.rank(timed.measurement)
            yield Outcome(seconds, timed.failure, timed.detail, outcome.resources)

    def rank(self, measurement: Measurement) -> float:
        """The seconds that trials are ranked by."""
        return measurement.lower if self._shared else measurement.median

    def close(self) -> None:
        """Stop the compiler; the bench is its owner's, who confirms the winners on it."""
        self.compiler.close()

    def __enter__(self) -> Measuring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The winners against the baseline, interleaved in one process.

    Attributes:
        baseline: torch's measurement.
        winner: the fastest contender that beats the baseline beyond the spread, or None: then the baseline stays.
        measured: every contender, in the order given.
    """

    baseline: Measurement
    winner: Timed | None
    measured: tuple[Timed, ...]


def confirm(bench: Bench, contenders: Sequence[Contender], *, repeats: int = CONFIRMATIONS) -> Confirmation:
    """Let the best contenders meet the baseline.

    Raises:
        BackendError: the baseline itself cannot be timed.
    """
    timed = bench.time([Contender("torch eager"), *contenders], repeats)
    baseline, others = timed[0], timed[1:]
    if baseline.measurement is None:
        raise BackendError(
            "the baseline cannot be timed", why=baseline.detail, fix=f"check that torch can use {bench.gpu.name}"
        )
    faster = [t for t in others if t.measurement is not None and beats(t.measurement, baseline.measurement)]
    winner = min(faster, key=lambda t: t.measurement.median if t.measurement else 0.0, default=None)
    return Confirmation(baseline.measurement, winner, tuple(others))
