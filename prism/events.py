"""What flows out of a run: progress events while it goes, a report and two records when it ends.

Plain frozen data of numbers and text, so that whatever shows it (terminal, HTML, JSON, a test) needs no sympy, torch or
egglog, and nothing that produces it needs to know who is looking. Files are written from these in `prism.report`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from prism.contents import Content


class Evidence(StrEnum):
    """Where a time comes from. Never show one as the other."""

    MEASURED = "measured"
    ESTIMATED = "estimated"


# --- while it runs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A stage of the run begins; stages do not overlap."""

    stage: str


@dataclass(frozen=True, slots=True)
class StageFinished:
    """The stage ended well after that many seconds; `detail` is one short clause, as `8,452 e-nodes`."""

    stage: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """How far the running stage is: `value` of `what` (sGraphs, trials), of `total` where that is known."""

    what: str
    value: int
    total: int | None = None
    best: float | None = None  # the best time so far, seconds; None where there is none


@dataclass(frozen=True, slots=True)
class Within:
    """What the stages that follow are of: `cell 1 of 2`, `island_0 of 3`, `region 5 of 8`; empty for the whole."""

    # 0 for a part of a range of lengths, 1 for an island, 2 for a region; to be within another ends what is within the
    # former.
    level: int
    what: str  # which one


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know that did not stop the run."""

    message: str


Event: TypeAlias = StageStarted | StageFinished | Count | Within | Warned
Listener: TypeAlias = Callable[[Event], None]


class Recorder:
    """Times stages, collects warnings, and passes every event on to a listener."""

    def __init__(self, listener: Listener | None = None) -> None:
        # Wall time by stage, in the order in which they first ran; a stage that runs twice adds up.
        self.seconds: dict[str, float] = {}
        self.warnings: list[str] = []  # the messages, in order, each once
        self._listener = listener
        self._parts: dict[str, float] = {}

    def emit(self, event: Event) -> None:
        """Pass an event on."""
        if self._listener is not None:
            self._listener(event)

    @contextmanager
    def stage(self, name: str) -> Iterator[list[str]]:
        """Time a stage. The block may append clauses to the list: they become the stage's detail."""
        detail: list[str] = []
        self.emit(StageStarted(name))
        start = time.perf_counter()
        try:
            yield detail
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed
        self.emit(StageFinished(name, elapsed, ", ".join(detail)))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part of a stage that runs in pieces, as its results are asked for; `finish` ends it."""
        if name not in self._parts:
            self._parts[name] = 0.0
            self.emit(StageStarted(name))
        start = self.clock()
        try:
            yield
        finally:
            elapsed = self.clock() - start
            self._parts[name] += elapsed
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed

    def finish(self, name: str, detail: str = "") -> None:
        """End a stage that ran in pieces; its time is that of the pieces."""
        if name not in self._parts:
            self.emit(StageStarted(name))
            self.seconds.setdefault(name, 0.0)
        self.emit(StageFinished(name, self._parts.pop(name, 0.0), detail))

    def passed(self, name: str, seconds: float, detail: str = "") -> None:
        """A stage that took so long, of which it was not known before that it would be one."""
        self.emit(StageStarted(name))
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.emit(StageFinished(name, seconds, detail))

    @staticmethod
    def clock() -> float:
        """Seconds from some fixed point."""
        return time.perf_counter()

    def count(self, what: str, value: int, total: int | None = None, best: float | None = None) -> None:
        """Say how far the running stage is."""
        self.emit(Count(what, value, total, best))

    @contextmanager
    def within(self, level: int, what: str) -> Iterator[None]:
        """Say what the stages of the block are of."""
        self.emit(Within(level, what))
        try:
            yield
        finally:
            self.emit(Within(level, ""))

    def warn(self, message: str) -> None:
        """Tell the user, once."""
        if message not in self.warnings:
            self.warnings.append(message)
            self.emit(Warned(message))


# --- when it ends --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Funnel:
    """How many sGraphs there were at each station."""

    generated: int  # sGraphs that the generator made, before any pruning
    # How many of them each pruner or constraint removed, by its name.
    pruned: Mapping[str, int] = field(default_factory=dict)
    proved: int = 0  # candidates proved equal to the reference
    refuted: int = 0  # candidates shown to differ from it
    unknown: int = 0  # candidates on which the prover stopped at its budget
    timed_or_estimated: int = 0  # proved sGraphs that were tuned; the report's evidence says which of the two it was


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel of the chosen sGraph."""

    name: str  # as in the emitted module
    roles: str  # each axis with its role, as text: `m:grid(T_m) k:loop(T_k)`
    config: str  # the chosen values, as text: `T_m=64 T_k=32 warps=4 stages=3`
    shared: int  # shared memory, bytes per block; what else it counts, the report's `memory` says
    registers: int  # per thread; 0 when not known
    spills: int  # bytes of register spills per thread
    seconds: float  # per launch, by the report's evidence
    limiter: str = ""  # what bounds it: `memory`, `compute`, `launch`, ...; empty when not known
    # Whether it runs once for weights that stay, and no call waits for it; `seconds` are a call's share then.
    once: bool = False


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """What running the emitted kernels against the float64 oracle gave."""

    runner: str  # where they ran: `Triton's interpreter`, or the device's name
    cases: int  # how many (draw, shape) cases ran; all of them passed, or there would be no report
    # By kind of draw (`ordinary`, `large`, ...), the largest error as a multiple of what is allowed (<= 1).
    worst: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContenderReport:
    """What was timed against others: a kernel or a baseline, on a number of threads. Seconds of one call."""

    name: str  # of what runs it: `torch eager`, `onnxruntime`, `prism`
    threads: int  # that it ran on; 0 where that is not for the host to say
    lower: float  # the lower quartile, which is what counts: other processes only ever make a call slower
    median: float
    upper: float  # the upper quartile
    samples: int  # how many samples these are of
    chosen: bool = False  # whether the report's times are this one's


@dataclass(frozen=True, slots=True)
class MeasurementReport:
    """How the report's times were measured."""

    # Of the measurement that counts, the one with the least gain; then what was out of reach before.
    contenders: tuple[ContenderReport, ...]
    # Of the best kernel over the best baseline, in each measurement, each in a process of its own.
    gains: tuple[float, ...]
    date: str  # when it was measured, UTC
    stored: bool = False  # whether an earlier run of the same command measured it
    cores: int = 0  # that this process may use; 0 where it was not looked at
    threads: int = 0  # the most that a contender ran on
    # How many cores other processes kept busy meanwhile, at most; None where that is not known.
    others: float | None = None
    load_average: float | None = None  # of the last minute, at most; None where that is not known
    missing: Mapping[str, str] = field(default_factory=dict)  # baselines that were not timed, and why
    # What the gain lies between, as far as all rounds tell; None where that is not known.
    between: tuple[float, float] | None = None
    faster: bool = True  # whether that is a gain beyond what may be noise
    # Of a stored measurement, how many cores they keep busy now; None where that is not known.
    others_now: float | None = None


@dataclass(frozen=True, slots=True)
class ProofRecord:
    """What it takes to prove the chosen sGraph again (the *replay* rung)."""

    status: str  # `proved`, `refuted` or `unknown`
    reason: str  # how it was shown, or why it stopped
    rules: tuple[str, ...]  # the rule families that were loaded
    rule_hashes: Mapping[str, str]  # rule file name to SHA-256 of its bytes
    egglog: str  # the version of egglog
    enodes: int  # size of the e-graph when the verdict fell
    iterations: int  # rounds that the rules ran
    program: str  # the reference, in index notation
    sgraph: str  # the candidate, as text
    denotation: str  # what the candidate computes, in index notation, as the prover read it off
    rung: str = "replay"  # the kind of certificate: `replay`, `derivation`
    why_not_derived: str = ""  # on rung `replay`, why there is no derivation
    # The extents of the axes over whose parts the reference was written, as the candidate is.
    split: tuple[str, ...] = ()
    identity: str = ""  # what the identity test over finite fields says, as text
    # Floating-point classes of the rules that matched on the way to the proof, which used at most these.
    classes: tuple[str, ...] = ()
    # What the proof rests on besides finite inputs, a clause each; the reason names them, too.
    assumptions: tuple[str, ...] = ()
    stated: Mapping[str, str] = field(default_factory=dict)  # of these what the user states of inputs, by their names


@dataclass(frozen=True, slots=True)
class LockRecord:
    """What it takes to make the same choice again. Holds no time, date or path, so equal runs give equal bytes."""

    program: str  # SHA-256 of the program's text
    sgraph: str  # canonical key of the chosen sGraph
    target: str  # the target that it was tuned for
    device: str  # the device's name, or the model of it that was used
    evidence: Evidence  # measured or estimated
    config: Mapping[str, int]  # the chosen value of every symbol and launch option
    shapes: Mapping[str, int]  # the values of the symbolic dimensions at which it was tuned
    seed: int  # of the search and the draws
    trials: int  # how many points were tried at most
    budget: Mapping[str, int]  # the search's bounds, by name
    versions: Mapping[str, str]  # of prism and the packages that the choice depends on
    compiler: str = ""  # the system's compiler that the kernels were timed with; empty where a package brings it
    baseline: str = ""  # what the kernels were found to be faster than


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the emitted function that is no weight of the model."""

    name: str
    dtype: str  # its data type, as torch and numpy call it
    shape: tuple[int, ...]  # its shape, symbolic dimensions at the values that were tuned for
    between: tuple[float, float] | None = None  # two ends of numbers that it may have, where something is stated of it
    mask: bool = False  # whether the ends are the only ones


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run of `prism optimize`, as shown to the user. Times are seconds."""

    name: str  # the program's name, and the launcher's
    formulas: Mapping[str, str]  # by output, its formula as text
    target: str  # what was tuned for: `sm_90`, `cuda`, `cpu`
    device: str  # the device that ran, or the one that the model describes
    evidence: Evidence  # whether every kernel time here was measured or estimated
    baseline_seconds: float  # the baseline's time for one call
    best_seconds: float  # the chosen sGraph's time for one call
    operator_count: int  # kernels of the operator-by-operator program
    kernel_count: int  # launches of the chosen sGraph that a call makes
    funnel: Funnel  # how many sGraphs reached each station
    stages: Mapping[str, float]  # wall time by stage, in order
    enodes: int  # size of the saturated e-graph
    peak_mb: float  # peak resident memory in MiB, workers included
    kernels: tuple[KernelReport, ...]  # in launch order
    sgraph_text: str  # the chosen sGraph, symbols unbound
    sgraph_dot: str  # the same as a DOT drawing
    verdict: str  # the status of the proof: `proved`
    reason: str  # how it was proved
    rules: tuple[str, ...]  # the rule families that were loaded
    check: CheckSummary  # the numeric check of the emitted kernels
    config: Mapping[str, int]  # the chosen value of every symbol and launch option
    seed: int  # of the search and the draws
    versions: Mapping[str, str]  # of prism and the packages that matter
    # The values of the symbolic dimensions at which times are quoted.
    shapes: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()  # what the user should know
    baseline: str = "operator by operator"  # what the baseline is: `operator by operator`, `torch eager`
    output: str = ""  # the output folder; empty when none was written
    rung: str = ""  # the kind of certificate that the kernels have, with its size: `derivation of 12 steps`, `replay`
    identity: str = ""  # what the identity test over finite fields says of the chosen sGraph, as text
    # Floating-point classes of the rules that matched on the way to the proof, which used at most these.
    classes: tuple[str, ...] = ()
    backend: str = "Triton"  # what the kernels are written in
    compiler: str = ""  # the system's compiler that they were timed with; empty where a package brings it
    memory: str = "shared"  # what the kernels' `shared` counts, in a word
    arguments: tuple[Argument, ...] = ()  # what the emitted function is called with, in order
    measurement: MeasurementReport | None = None  # how times were measured; None where they are estimated
    # What the program was compared with when it was read, as text; empty for one that was not read.
    conformance: str = ""
    # What the proof rests on besides finite inputs, a clause each; the reason names them, too.
    assumptions: tuple[str, ...] = ()
    prepared_bytes: int = 0  # what launches that are made once, on weights alone, keep beside the weights, bytes

    @property
    def speedup(self) -> float:
        """Baseline time over best time; above 1 is faster."""
        return self.baseline_seconds / self.best_seconds if self.best_seconds > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Artifacts:
    """All that an output folder is made from; `prism.report.folder` renders and writes it."""

    report: RunReport  # the run
    module: str  # the emitted module's source; it imports torch and triton alone, or where it is C++ numpy
    proof: ProofRecord  # the proof record
    lock: LockRecord  # the lock record
    program: str  # the program in index notation
    weights: Content | None = None  # the bytes of the weights file that the module loads; None when the model has none
    # The derivation, or what is to be proved again, by the proof's rung; None when there is neither.
    certificate: bytes | None = None
    extra: Mapping[str, str] = field(default_factory=dict)  # files that the module needs beside it, by name


@dataclass(frozen=True, slots=True)
class CellReport:
    """A part of a range of shapes, and the kernels that it has."""

    where: str  # the lengths that are in it, as text
    at: Mapping[str, int]  # the lengths that it was tuned at
    folder: str  # where its kernels are, in the output folder; cells may share them
    kernels: int  # how many there are
    rung: str  # the kind of certificate that they have
    best_seconds: float = 0.0  # of them, at these lengths; 0 where the cell has none of its own
    baseline_seconds: float = 0.0  # of what they are compared with, likewise
    baseline: str = ""  # what that is
    between: tuple[float, float] | None = None  # what the measured gain lies between; None where it is not known
    why: str = ""  # why it has none of its own, and takes another one's; empty where it has


@dataclass(frozen=True, slots=True)
class RangedReport:
    """A run over ranges of shapes."""

    name: str  # the program's name, and the function's
    target: str  # it and the next three are as in a `RunReport`
    device: str
    evidence: Evidence
    backend: str
    ranges: Mapping[str, tuple[int, int]]  # the least and the largest length by symbolic dimension
    cells: tuple[CellReport, ...]  # the parts of the ranges
    # What the function is called with, in order; shapes are those that the first cell was tuned at.
    arguments: tuple[Argument, ...]
    stages: Mapping[str, float]  # seconds by stage
    seed: int  # of all draws
    versions: Mapping[str, str]  # of Python, prism and the packages below
    outside: bool = False  # whether the model that was given runs at other lengths; they are refused where it does not
    # Whether it is a whole model that goes in parts, of which cells count islands in place of kernels; a cell without a
    # folder runs the model that was given.
    parts: bool = False
    warnings: tuple[str, ...] = ()  # what the user should know
    output: str = ""  # the output folder; empty when none was written


@dataclass(frozen=True, slots=True)
class IslandReport:
    """A part of a model that was looked at for kernels."""

    name: str  # the island's
    nodes: int  # how many nodes of the model it has
    operators: Mapping[str, int]  # how many of each of its operators
    same_as: str = ""  # the island whose kernels it shares, with weights of its own; empty where it was searched itself
    why: str = ""  # why it keeps its operators; empty where it runs by kernels
    folder: str = ""  # where its kernels are, in the output folder
    verdict: str = ""  # of the proof
    rung: str = ""  # of its certificate
    best_seconds: float = 0.0  # of the kernels
    baseline_seconds: float = 0.0  # of the same nodes in onnxruntime


@dataclass(frozen=True, slots=True)
class KeptReport:
    """Nodes of one operator that stay as they are, for one reason."""

    operator: str
    nodes: int  # how many
    example: str  # the label of one of them
    why: str  # what the reader says


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The run of a model that goes in parts."""

    name: str  # the model's
    target: str  # what was tuned for
    device: str  # its name
    nodes: int  # how many of the model's nodes compute with data
    islands: tuple[IslandReport, ...]  # in the order in which they run
    kept: tuple[KeptReport, ...]  # what stays as it is, and why
    # The values of symbolic dimensions that were tuned, compared and timed at.
    sizes: Mapping[str, int] = field(default_factory=dict)
    best_seconds: float = 0.0  # of the assembled model
    baseline_seconds: float = 0.0  # of onnxruntime on the model that was given
    baseline: str = ""  # what the latter ran on
    check: str = ""  # what the assembled model was compared on
    measurement: MeasurementReport | None = None  # how both were timed
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds by stage
    seed: int = 0  # of all draws
    versions: Mapping[str, str] = field(default_factory=dict)  # of Python, prism and the packages below
    warnings: tuple[str, ...] = ()  # what the user should know
    output: str = ""  # the output folder

    @property
    def chosen(self) -> tuple[IslandReport, ...]:
        """The islands that run by kernels."""
        return tuple(i for i in self.islands if not i.why)

    @property
    def share(self) -> float:
        """The share of the model's nodes that run by kernels."""
        return sum(i.nodes for i in self.chosen) / self.nodes if self.nodes else 0.0
