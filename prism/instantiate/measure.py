"""Measuring on the device that is here: every time is of a run whose results were checked.

Kernels are compiled ahead in other processes, then timed one after the other in a single child (on a GPU
`prism.backends.triton.timing`, on a CPU `cpu_worker`). A child that crashes, hangs or loses its CUDA context costs one
failed trial.
"""

from __future__ import annotations

import math
import os
import pickle
import statistics
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np

from prism.backends.tensors import save
from prism.cost.device import Device
from prism.events import Evidence
from prism.instantiate.cache import Store, digest, version_of
from prism.instantiate.gate.check import Drawn, inputs_key, program_samples, sgraph_samples
from prism.instantiate.gate.draws import as_stated, draw_inputs
from prism.instantiate.gate.judge import judge
from prism.instantiate.lock import program_hash
from prism.instantiate.machine_load import Load, Watch, family_seconds
from prism.instantiate.rounds import AGAIN
from prism.instantiate.study import Candidate, Failure, Outcome, over_limit, sources_of
from prism.process.child import Closing
from prism.process.files import digest_of_file
from prism.process.worker import Background, Ending, Reply, Worker
from prism.program.extents import evaluate
from prism.program.nodes import Program
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

REPEATS = 6
"""Samples of a trial; those of the fastest are timed again, in turn (`confirm.LEADERS`)."""
TIMING_LIMIT_S = 60.0
"""How long one timing request may take for each contender, seconds."""
BASELINE_CALLS = 6
"""Calls of a baseline on this processor that a request takes at most, when each takes seconds."""
SLOW_HALVES = 100.0
"""How many times as long a baseline may take in half precision as the same with products in float32: torch has no fast
half-precision product for most CPUs."""
COMPILE_S = 120.0
"""What torch.compile may take for a baseline, seconds."""
STEPS = 8
"""Steps of making ready that may wait for each other: what is drawn, read and asked, and each child's."""
LOOK_S = 0.1
"""How often it is looked whether a child has begun, or is not needed any more, seconds."""
STANDING_S = 3600.0
"""How long a child that makes contenders ready may have to stand still, seconds."""
RECENT_S = 1.0
"""How long after a match the next one takes its word for how busy the machine is, seconds."""
SCALES = (1.0, 2.0**-3, 2.0**-6)
"""What inputs are multiplied by, until what eager computes of them is finite: in half precision a few products of
hundreds of ordinary numbers overflow, and of what is not finite nothing can be compared."""
FAR_OFF = 0.05
"""By how much a baseline may be off, relative to an output's root mean square: beyond, it computes something else."""
EVENLY = 8.0
"""The largest of differences over their root mean square, where all elements are off as by rounding: operands that
onnxruntime rounds to 8 bits, as a file allows it, are off by little each, and the largest of thousands by more."""
KERNEL, BASELINE = "kernel", "baseline"
PROTOCOL = 10
"""Raise it when what is timed, or how it is stored, changes, so that old times are not taken for new ones."""


class Compiling(Protocol):
    """Compiles points ahead."""

    @property
    def basis(self) -> str:
        """What the compiler's word depends on."""

    def compile(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        """For each point, in order, its resources, or its failure."""

    def close(self) -> None:
        """Stop."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of one call, by its samples."""

    taken: tuple[float, ...]  # one sample a round, in the order of the rounds; at least one

    def _quartile(self, n: int) -> float:
        return statistics.quantiles(self.taken, n=4, method="inclusive")[n] if len(self.taken) > 1 else self.taken[0]

    @property
    def lower(self) -> float:
        """The lower quartile."""
        return self._quartile(0)

    @property
    def median(self) -> float:
        """The median."""
        return self._quartile(1)

    @property
    def upper(self) -> float:
        """The upper quartile."""
        return self._quartile(2)

    @property
    def samples(self) -> int:
        """How many samples were taken."""
        return len(self.taken)

    def __str__(self) -> str:
        return f"{self.median * 1e6:.2f} us [{self.lower * 1e6:.2f}, {self.upper * 1e6:.2f}]"


def summarise(samples: Sequence[float]) -> Measurement:
    """A measurement of these samples. Raises ValueError: there is none."""
    if not samples:
        raise ValueError("no samples")
    return Measurement(tuple(samples))


@dataclass(frozen=True, slots=True)
class Contender:
    """What is timed: a module under a configuration, or (without a module) the program itself."""

    name: str  # as shown
    module: Path | None = None  # the emitted module, or None for the baseline
    sgraph: SGraph | None = None
    config: Config | None = None  # its configuration
    # What runs it where it is no sGraph's module: of a baseline `eager` and `compiled` (torch's) or `onnxruntime`, of a
    # whole model `assembled`.
    kind: str = "eager"
    threads: int = 0  # that it runs on; 0 for what it takes by itself

    @property
    def side(self) -> str:
        """Whom it is compared with."""
        return KERNEL if self.module is not None else BASELINE


@dataclass(frozen=True, slots=True)
class Timed:
    """A contender's measurement, or why there is none."""

    name: str
    measurement: Measurement | None
    failure: Failure | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """What a contest gave: each contender's measurement, in order, and how busy the machine was meanwhile."""

    timed: tuple[Timed, ...]
    load: Load | None = None


class ClosedError(Exception):
    """What was to be timed is no longer asked for: nothing comes of what was begun for it."""


_Lost: TypeAlias = tuple[Failure, str]
"""Why a child was lost, and its last words."""


class Arena(ABC):
    """Where kernels meet baselines: one child a contest.

    Args:
        device: what is timed on.
        worker: the child.
        arena: makes a child for a contest; by default it is `worker`'s, started again.
        lent: whether the child goes on when this is closed.
        background: the children that make contenders ready are among them.
        prepares: whether children make contenders ready; those of a GPU, of which trials need all, import alone.
    """

    def __init__(
        self,
        device: Device,
        worker: Worker,
        arena: Callable[[], Worker] | None = None,
        lent: bool = False,
        background: Background | None = None,
        prepares: bool = True,
    ) -> None:
        self.device = device
        self._worker = worker
        self._arena = arena
        self._lent = lent
        self._folder = tempfile.TemporaryDirectory(prefix="prism-bench-")
        self._prepares = prepares and arena is not None
        self._background = background or Background()
        self._eager_s = 0.0
        self._children: deque[tuple[Worker, Future[Any]]] = deque()
        self._beginning = threading.Lock()
        self._preparing = ThreadPoolExecutor(max_workers=STEPS, thread_name_prefix="prism-arena")
        self._begun: Future[object] | None = None
        self._closing = False
        self.load: Load | None = None
        """How busy the machine was when kernels were last timed; None where nobody told."""
        self.watch = Watch(own=family_seconds)
        """What others do since it is there: while candidates are written, before any is timed."""
        self._met: tuple[float, Load | None] = (-math.inf, None)

    @property
    @abstractmethod
    def program_key(self) -> str:
        """What tells what is computed, at these extents, from others."""

    @property
    @abstractmethod
    def source_key(self) -> str:
        """What tells what was given from others."""

    @abstractmethod
    def _prepare(self) -> object:
        """Write what the child reads, once."""

    @abstractmethod
    def _spec(self, c: Contender) -> dict[str, Any]:
        """What the child is told of a contender, besides whose side it is on."""

    def _outputs(self) -> list[Any]:
        """Shape and type of each output that the child is to make room for."""
        return []

    def _request(self, contenders: Sequence[Contender], repeats: int) -> dict[str, Any]:
        """What the child is asked."""
        return {
            "contenders": [{"side": c.side, "threads": c.threads, **self._spec(c)} for c in contenders],
            "inputs": str(self._path("inputs.pt")),
            "results": str(self._path("results.pt")),
            "outputs": self._outputs(),
            "l2_bytes": self.device.cache_bytes,
            "repeats": repeats,
        }

    def _path(self, name: str) -> Path:
        """A file that the child reads or writes."""
        return Path(self._folder.name) / name

    @abstractmethod
    def _failed(self, c: Contender, tensors: Sequence[Any]) -> tuple[Failure, str] | None:
        """What is wrong with what a contender computed, and what kind of failure that is."""

    def _checked(self, contenders: Sequence[Contender], answers: Sequence[Mapping[str, Any]]) -> list[Timed]:
        """The measurements of those whose results are right."""
        import torch

        results = torch.load(self._path("results.pt"))
        found = []
        for c, answer, tensors in zip(contenders, answers, results, strict=True):
            if answer.get("error"):
                found.append(Timed(c.name, None, classify(str(answer["error"])), str(answer["error"])))
                continue
            if answer.get("hopeless"):
                found.append(Timed(c.name, None, Failure.HOPELESS, str(answer["hopeless"])))
                continue
            failed = self._failed(c, tensors)
            found.append(Timed(c.name, None, *failed) if failed else Timed(c.name, summarise(answer["samples"])))
        return found

    def contest(self, contenders: Sequence[Contender], rounds: int, limit_s: float) -> Match:
        """Time kernels and baselines against each other in a fresh child, called as their users call them.

        Where one of them takes the child with it, those that can be timed alone meet without it. At most `limit_s`
        seconds should be taken by so many rounds.
        """
        self.ready()
        found = self._contest(contenders, rounds, limit_s)
        if isinstance(found, Match):
            return found
        if len(contenders) == 1:
            return Match((Timed(contenders[0].name, None, *found),))
        timed = [self._alone(c) for c in contenders]
        able = [n for n, t in enumerate(timed) if t.measurement is not None]
        again = self._contest([contenders[n] for n in able], rounds, limit_s) if 0 < len(able) < len(timed) else found
        for place, n in enumerate(able):
            name = contenders[n].name
            timed[n] = again.timed[place] if isinstance(again, Match) else Timed(name, None, *again)
        return Match(tuple(timed), again.load if isinstance(again, Match) else None)

    def begin(self, contenders: Sequence[Contender], contests: int = 1) -> None:
        """Start the next contests' children, and let them make these contenders ready while something else is done.

        That takes longer than what is timed: torch's compiler alone takes many seconds. They do so one after the other:
        the second finds what the first compiled, and leaves out what, by what the first
        found, will not meet again.
        """
        self.ready()
        if self._prepares:
            self._start(contenders, contests)
        elif self._arena is not None:
            self._open(self._arena, contests - len(self._children))

    def _open(self, arena: Callable[[], Worker], contests: int) -> None:
        """Let contests' children import what they need."""
        with self._beginning:
            for _ in range(0 if self._closing else contests):
                child = arena()
                child.begin()
                self._children.append((child, self._preparing.submit(child.beginning)))

    def _start(self, contenders: Sequence[Contender], contests: int, drawn: Future[object] | None = None) -> None:
        """Start contests' children; where inputs are still being drawn, they import what they will need meanwhile."""
        if self._arena is None or self._children or not contenders:
            return
        asked = self._preparing.submit(self._asked, contenders, drawn)
        with self._beginning:
            for _ in range(0 if self._closing else contests):
                before = self._children[-1][1] if self._children else None
                # Beside another one there is nothing to do meanwhile.
                kinds = sorted({c.kind for c in contenders}) if drawn is not None and before is None else ()
                child = self._arena()
                self._background.add(child)
                self._children.append((child, self._preparing.submit(_prepared, child, kinds, asked, before)))

    def _asked(self, contenders: Sequence[Contender], drawn: Future[object] | None) -> tuple[dict[str, Any], float]:
        """What children are asked that make these ready, and how long that may take, seconds."""
        if drawn is not None:
            drawn.result()
            if self._closing:
                raise ClosedError
        return self._request(contenders, 0) | {"prepare": True}, self._limit_s(contenders)

    def ahead(
        self,
        contenders: Sequence[Contender] = (),
        contests: int = 1,
        trials: bool = True,
        after: threading.Event | None = None,
    ) -> None:
        """Begin to draw the inputs, and to work out what is right for them, and let the trials' child read them.

        A search takes seconds, and one core.

        Args:
            contenders: those that are made ready after that, as `begin` does: they stand still during trials.
            contests: how many.
            trials: whether there will be any.
            after: is set when what this process does meanwhile is over, which is not to wait while torch is imported.
        """
        self._begun = drawn = self._preparing.submit(self._first, after)
        if trials and self._prepares:
            self._preparing.submit(self._read, drawn)
        if self._prepares:
            self._start(contenders, contests, drawn)

    def _first(self, after: threading.Event | None) -> object:
        """Prepare, once the trials' child has imported torch, where that was begun.

        All threads of a process wait while one of them loads a library, for as long as the disk takes: a search would
        stand still that goes on meanwhile. What the child has loaded is in memory; but an import has a core for
        itself as little as any thread has, so that one that this process has not done yet comes `after` the search.
        """
        while self._worker.beginning(LOOK_S):
            if self._closing:
                return None
        while after is not None and "torch" not in sys.modules and not after.wait(LOOK_S):
            if self._closing:
                return None
        return self._prepare()

    def _read(self, drawn: Future[object]) -> None:
        """Let the trials' child read the inputs."""
        self._worker.ask({"wake": []}, TIMING_LIMIT_S)
        drawn.result()
        if not self._closing:
            self._worker.ask(self._request((), 0) | {"prepare": True}, TIMING_LIMIT_S)

    def ready(self) -> None:
        """What `_prepare` does, be it begun or not."""
        if self._begun is not None:
            wait([self._begun])  # whatever came of it: what is not there is made now, and fails here
            self._begun = None
        self._prepare()

    def close(self) -> None:
        """Kill a child that was begun for a contest which is not to be, and its own; remove the files.

        What still draws inputs, or works out what is right for them, goes on to its end and is not waited for: it may
        be within `import torch`, or within a product that takes seconds. It writes nothing any more.
        """
        with self._beginning:
            self._closing = True
        self._preparing.shutdown(wait=False, cancel_futures=True)
        for child, _ in self._children:
            child.close()
        if not self._lent:
            self._worker.close()
        self._folder.cleanup()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Write files of the contests' within, which are removed when this is closed.

        Raises:
            ClosedError: that is so already.
        """
        with self._beginning:
            if self._closing:
                raise ClosedError
            yield

    def _limit_s(self, contenders: Sequence[Contender]) -> float:
        """How long a child may take to make these ready, and to time them shortly."""
        slow = sum(c.kind == "compiled" for c in contenders) * COMPILE_S
        baselines = sum(c.module is None for c in contenders)
        return TIMING_LIMIT_S * len(contenders) + slow + BASELINE_CALLS * self._eager_s * baselines

    def _alone(self, c: Contender) -> Timed:
        """Whether a contender can be timed by itself, of several that lost the child together."""
        found = self._contest([c], 1, 0.0)
        return found.timed[0] if isinstance(found, Match) else Timed(c.name, None, *found)

    def _contest(self, contenders: Sequence[Contender], rounds: int, limit_s: float) -> Match | _Lost:
        """The match, or why the child was lost."""
        limit = self._limit_s(contenders) + limit_s
        request = self._request(contenders, rounds) | {"limit_s": limit_s, "waits": os.getpid()}
        ended, before = self._met
        if before is not None and time.monotonic() - ended < RECENT_S:
            request["load"] = asdict(before)
        if not self._prepares:
            self._worker.kill()  # what it holds of the device's memory
        if self._arena is None:
            reply = self._worker.ask(request, limit)
        else:
            # Of all of them, as nothing else may run; whatever came of it: what is not ready is made so again.
            wait([prepared for _, prepared in self._children])
            with closing(self._children.popleft()[0] if self._children else self._arena()) as worker:
                reply = worker.ask(request, limit)
        if reply.ending is not Ending.ANSWERED or reply.answer.get("error"):
            return _lost(reply)
        load = reply.answer.get("load")
        timed = self._checked(contenders, reply.answer["contenders"])
        self._met = time.monotonic(), Load(**load) if load else None
        return Match(tuple(timed), self._met[1])


def _lost(reply: Reply) -> _Lost:
    """Why nothing came of a request; an error that ended it is as good as a crash."""
    lost = Failure.HANG if reply.ending is Ending.HANG else Failure.CRASH
    return lost, reply.detail or str(reply.answer.get("error", ""))


def _prepared(
    child: Worker,
    kinds: Sequence[str],
    asked: Future[tuple[dict[str, Any], float]],
    before: Future[Reply] | None,
) -> Reply:
    """What a child says that is asked to prepare contenders, but for those that the one before found far from the best.

    Before it is known what is asked it imports what contenders of these kinds need.
    """
    if kinds:
        child.ask({"wake": kinds}, TIMING_LIMIT_S)
    request, limit_s = asked.result()
    specs = request["contenders"]
    if before is not None and (found := before.result().answer.get("seconds")):
        # What the first did not make fails, or is hopeless beside others, which may not be among these to tell so.
        longest = AGAIN * min(found.values())
        specs = [spec for n, spec in enumerate(specs) if found.get(str(n), math.inf) <= longest]
    # It stands still during trials, and its own alarm would ring meanwhile.
    return child.ask({**request, "contenders": specs, "timeout_s": limit_s + STANDING_S}, limit_s)


class Bench(Arena):
    """The program, its inputs on disk, the oracle's answers, and the child that times.

    Args:
        program: the program; its inputs are drawn at `hints`.
        device: what is timed on.
        hints: the value of every symbol.
        seed: of the draws.
        worker, arena, lent, background, prepares: see Arena.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        hints: Mapping[str, int],
        *,
        worker: Worker,
        seed: int = 0,
        arena: Callable[[], Worker] | None = None,
        lent: bool = False,
        background: Background | None = None,
        prepares: bool = True,
    ) -> None:
        super().__init__(device, worker, arena, lent, background, prepares)
        self.program = program
        self.hints = dict(hints)
        self._seed = seed
        self._references: list[tuple[np.ndarray, np.ndarray]] | None = None
        self._exported: bool | None = None
        self._exporting = threading.Lock()
        self._graph = ""
        self._others: list[dict[str, np.ndarray]] | None = None
        self._passed: tuple[Any, ...] = ()
        self._scale = 1.0
        self._oracle_s = 0.0

    def _prepare(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(oracle, eager) per output; inputs and program are written to disk on the way, once."""
        if self._references is not None:
            return self._references

        # What is not finite may have to be so; what overflows whatever it is given is given ordinary numbers.
        for self._scale, ordinary in (*((s, True) for s in SCALES), *((s, False) for s in (*SCALES, 1.0))):
            tensors = self._drawn()
            given = self._eager(tensors)
            if ordinary and not all(np.isfinite(x).all() for x in given):
                continue
            found = list(zip(self._oracle(tensors), given, strict=True))
            if ordinary or not any((np.isfinite(exact) & ~np.isfinite(x)).any() for exact, x in found):
                break
        with self._writing():
            save([tensors[t.name] for t in self.program.inputs], self._path("inputs.pt"))
            self._path("program.pickle").write_bytes(pickle.dumps(replace(self.program, source=None)))
        self._references = found
        return found

    def tell(self, drawn: Drawn) -> None:
        """Tell the gate what is right for ordinary inputs at these extents, which it need not compute again."""
        if self._references is not None and self._scale == 1.0:
            key = inputs_key("normal", self.hints, self._seed)
            drawn.results[key] = dict(zip(self.program.outputs, self._references, strict=True))
            drawn.oracle_s = self._oracle_s

    def _eager(self, tensors: Mapping[str, Any]) -> list[np.ndarray]:
        """What eager torch says of each output."""
        import torch

        from prism.backends.eager import eager

        start = time.perf_counter()
        given = eager(self.program, plain=True)(*(tensors[t.name] for t in self.program.inputs))
        half = any(t.dtype.is_half for t in self.program.inputs)
        self._eager_s = (time.perf_counter() - start) * (SLOW_HALVES if half else 1.0)
        return [np.asarray(g.to(torch.float64).numpy()) for g in given]

    def _oracle(self, tensors: Mapping[str, Any]) -> list[np.ndarray]:
        """What is right for each output."""
        import torch

        from prism.program.evaluate import evaluate as oracle_of

        start = time.perf_counter()
        exact = oracle_of(self.program, {n: t.to(torch.float64).numpy() for n, t in tensors.items()})
        self._oracle_s = time.perf_counter() - start
        return [exact[n] for n in self.program.outputs]

    @property
    def program_key(self) -> str:
        """What tells the program, at these extents, from others."""
        return digest(program_hash(self.program), sorted(self.hints.items()), self._seed)

    @property
    def source_key(self) -> str:
        """What tells the model or function that the program was read from from others."""
        source = self.program.source
        if isinstance(source, Path):
            return digest_of_file(source) if source.is_file() else ""
        self.ready()
        return self._graph if self._export() else ""

    def time(self, contenders: Sequence[Contender], repeats: int, beat_s: float = math.inf) -> list[Timed]:
        """Time contenders interleaved; a time is given only to results that pass the numeric gate.

        A request that loses its child is tried again contender by contender, so that one bad kernel costs one trial.
        One contender alone is timed shortly where it is far from the time `beat_s`, seconds.
        """
        self.ready()
        limit = TIMING_LIMIT_S * len(contenders)
        if not self.device.is_gpu:
            limit += BASELINE_CALLS * self._eager_s * sum(c.module is None for c in contenders)
        request = self._request(contenders, repeats)
        if beat_s < math.inf:
            request["beat_s"] = beat_s
        with self._background.halted():
            reply = self._worker.ask(request, limit)
        if reply.ending is Ending.ANSWERED and not reply.answer.get("error"):
            self.load = Load(**found) if (found := reply.answer.get("load")) else None
            return self._checked(contenders, reply.answer["contenders"])
        if len(contenders) > 1:
            return [t for c in contenders for t in self.time([c], repeats)]
        return [Timed(contenders[0].name, None, *_lost(reply))]

    def _outputs(self) -> list[Any]:
        outputs = [self.program.tensor(n) for n in self.program.outputs]
        return [[[evaluate(e, self.hints) for e in t.shape], t.dtype.value] for t in outputs]

    def _spec(self, c: Contender) -> dict[str, Any]:
        places = {t.name: n for n, t in enumerate(self.program.inputs)}
        if c.module is not None and c.sgraph is not None and c.config is not None:
            takes = [places[t.name] for t in c.sgraph.inputs]
            weights = [n for n, t in enumerate(c.sgraph.inputs) if t.weight]
            module = {"kind": "module", "module": str(c.module), "config": c.config.encode()}
            return {**module, "inputs": takes, "weights": weights}
        given = [n for t, n in places.items() if t not in self.program.weights]
        places_of = self.program.places
        if c.kind == "onnxruntime":
            return {"kind": c.kind, "model": str(self.program.source), "inputs": given, "places": places_of}
        spec: dict[str, Any] = {"kind": c.kind, "program": str(self._path("program.pickle"))}
        spec |= {"compile_s": COMPILE_S} if c.kind == "compiled" else {}
        exported = {"exported": str(self._path("exported.pt2")), "inputs": given, "places": places_of}
        return spec | (exported if self._export() else {})

    def _export(self) -> bool:
        """Write the function that was traced, at these shapes; whether there is one that can be written."""
        with self._exporting:
            if self._exported is None:
                function = self.program.source
                self._exported = callable(function) and self._written(function)
            return self._exported

    def _written(self, function: Callable[..., object]) -> bool:
        import torch

        from prism.frontend.torch.reader import Positional

        tensors = torch.load(self._path("inputs.pt"))
        given = [x for t, x in zip(self.program.inputs, tensors, strict=True) if t.name not in self.program.weights]
        try:
            with torch.no_grad():
                exported = torch.export.export(Positional(function), tuple(given))
                with self._writing():
                    torch.export.save(exported, self._path("exported.pt2"))
            self._graph = str(exported.graph)
        except Exception:  # as torch.export does; the program itself is then what torch runs
            return False
        return True

    def _failed(self, c: Contender, tensors: Sequence[Any]) -> tuple[Failure, str] | None:
        reason = self._wrong(tensors) if c.module is not None else self._far_off(tensors)
        return (self._why(tensors, c), reason) if reason else None

    def _wrong(self, tensors: Sequence[Any]) -> str:
        """Why the outputs of a timed run do not pass; they were poisoned before it.

        Those that are what passed already pass: configurations that add in one order give the same, bit by bit.
        """
        import torch

        def same(a: Any, b: Any) -> bool:
            return bool(a.dtype == b.dtype and torch.equal(a, b))  # never of what holds NaN

        if self._passed and all(map(same, tensors, self._passed)):
            return ""
        if not self._judged(tensors, ()):
            self._passed = tuple(tensors)
            return ""
        if self._others is None:
            self._others = program_samples(self.program, self._drawn(), self.hints)
        return self._judged(tensors, self._others)

    def _why(self, tensors: Sequence[Any], c: Contender) -> Failure:
        """What kind of failure it is: whether the contender's sGraph rounds so, or it computes something else."""
        if c.sgraph is None or self._others is None:
            return Failure.WRONG
        own = sgraph_samples(c.sgraph, self.program, self._drawn(), self.hints)
        return Failure.WRONG if self._judged(tensors, [*self._others, *own]) else Failure.ROUNDING

    def _drawn(self) -> dict[str, Any]:
        """The inputs: normal numbers, times what keeps the program's results within its types."""
        drawn = draw_inputs(self.program, "normal", self.hints, self._seed)
        if self._scale == 1.0:
            return drawn
        tensors = {t.name: t for t in self.program.inputs}
        return {
            n: as_stated(tensors[n], x * self._scale) if x.is_floating_point() and n not in self.program.weights else x
            for n, x in drawn.items()
        }

    def _judged(self, tensors: Sequence[Any], others: Sequence[Mapping[str, np.ndarray]]) -> str:
        """The first output that does not pass, and why; nothing where all do."""
        import torch

        for name, t, (exact, given) in zip(self.program.outputs, tensors, self._prepare(), strict=True):
            result, dtype = t.to(torch.float64).numpy(), self.program.tensor(name).dtype
            verdict = judge(result, exact, given, dtype, others=[x[name] for x in others])
            if not verdict:
                return f"{name}: {verdict.reason}"
        return ""

    def _far_off(self, tensors: Sequence[Any]) -> str:
        """Why the outputs of a baseline are not those of the program; how they round is its own affair."""
        import torch

        for name, t, (exact, given) in zip(self.program.outputs, tensors, self._prepare(), strict=True):
            found = t.to(torch.float64).numpy()
            if found.shape != exact.shape:
                return f"{name} has shape {list(found.shape)}"
            if self.program.granted:
                continue  # which of equal elements it takes, and in which order what has none, is its own affair, too
            finite = np.isfinite(exact) & np.isfinite(given)
            # Where its own order of operations overflows, in places, there is nothing to compare.
            own = finite & np.isfinite(found)
            finite = own if 2 * own.sum() > finite.sum() else finite
            scale = float(np.sqrt(np.mean(exact[finite] ** 2))) if finite.any() else 0.0
            allowed = max(FAR_OFF * scale, 8.0 * float(np.abs(given - exact)[finite].max(initial=0.0)))
            off = np.abs(found - exact)[finite]
            spread = float(np.sqrt(np.mean(off**2))) if off.size else 0.0
            if not (off.max(initial=0.0) <= allowed or off.max() <= EVENLY * spread <= EVENLY * FAR_OFF * scale):
                return f"{name} is another function's"
        return ""


def identity(c: Contender) -> list[object]:
    """What tells a contender from others, in every run."""
    if c.module is None or c.config is None:
        return [c.name, c.kind, c.threads]
    return [sources_of(c.module), c.config.key(), c.threads]


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


@dataclass(slots=True, eq=False)
class Measuring(Closing):
    """The evaluator on a device that is here: its seconds are measured."""

    evidence = Evidence.MEASURED
    bench: Bench  # times; it is not closed with the evaluator
    compiler: Compiling  # compiles ahead
    _: KW_ONLY
    # Whether others use the device, too: they only ever slow it down, so trials are ranked by the lower quartile and
    # not by the median.
    shared: bool = False
    store: Store = field(default_factory=Store)  # where meetings of leaders are stored; nowhere by default
    threads: int = 0  # that trials run on; 0 for what they take by themselves
    _least_s: float = field(default=math.inf, init=False)

    @property
    def basis(self) -> str:
        """What a measurement depends on besides the point."""
        own = f"on {self.threads} threads" if self.threads else ""
        return f"{self.bench.device.name} {self.compiler.basis} torch {version_of('torch')} protocol {PROTOCOL} {own}"

    def evaluate(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        """The measurements, in the order of the points."""
        device = self.bench.device
        # What a CPU's programs hold at a time has no limit.
        limit = device.shared_limit_bytes if device.is_gpu else sys.maxsize
        for (candidate, config), outcome in zip(points, self.compiler.compile(points), strict=True):
            if outcome.failure is not None:
                yield outcome
                continue
            over = over_limit(outcome.resources, limit)
            if over:
                yield Outcome(None, Failure.SHARED, over, outcome.resources)
                continue
            contender = Contender(candidate.key, candidate.module, candidate.sgraph, config, threads=self.threads)
            (timed,) = self.bench.time([contender], REPEATS, self._least_s)
            seconds = None if timed.measurement is None else self.rank(timed.measurement)
            self._least_s = min(self._least_s, seconds or math.inf)
            yield Outcome(seconds, timed.failure, timed.detail, outcome.resources)

    def remembered(self, points: Sequence[tuple[Candidate, Config]]) -> list[Outcome]:
        """The measurements of points that are in no study's journal, or what an earlier run found."""
        key = digest("points", self.basis, [[sources_of(c.module), config.key()] for c, config in points])
        known = self.store.get(key) if points else None
        if known is not None:
            return msgspec.convert(known["outcomes"], list[Outcome])
        found = list(self.evaluate(points))
        self.store.put(key, {"outcomes": msgspec.to_builtins(found)})
        return found

    def meet(self, contenders: Sequence[Contender], repeats: int) -> list[Timed]:
        """Modules timed against each other, interleaved, or what an earlier run found."""
        key = digest("meeting", self.basis, self.bench.program_key, [identity(c) for c in contenders], repeats)
        known = self.store.get(key)
        if known is not None:
            return msgspec.convert(known["timed"], list[Timed])
        found = self.bench.time(contenders, repeats)
        self.store.put(key, {"timed": msgspec.to_builtins(found)})
        return found

    def rank(self, measurement: Measurement) -> float:
        """The seconds that trials are ranked by."""
        return measurement.lower if self.shared else measurement.median

    def close(self) -> None:
        """Stop the compiler; the bench is its owner's, who confirms the winners on it."""
        self.compiler.close()
