"""Estimates without a GPU: compile for the named target, then let the cost model judge what the compiler says."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from prism.backends.protocol import Compiled, arguments
from prism.backends.triton.crosscompile import (
    COMPILE_LIMIT_S,
    WORKER,
    CompileJob,
    capability,
    compiled,
    request,
    worker_environment,
)
from prism.events import Evidence
from prism.folders import cache_root, make_room
from prism.instantiate.cache import Cache, digest, version_of
from prism.instantiate.study import Candidate, Failure, Outcome, over_limit
from prism.process.child import Closing, module_command
from prism.process.files import digest_of_file
from prism.process.worker import Ending, Pool, Reply
from prism.sgraph.config import Config, Resources

MODEL = 7
"""Raise it when the cost model changes what it says, so that old estimates are not taken for new ones."""


def compile_pool(root: Path, size: int) -> Pool:
    """Workers that compile; their Triton cache is under `root`."""
    return Pool(module_command(WORKER), worker_environment(root), size)


@dataclass(slots=True, eq=False)
class Compiler:
    """Compiles candidates in worker processes, and remembers on disk what the compiler said.

    Raises:
        UsageError: the target is unknown.
    """

    target: str  # `sm_90` and the like
    hints: Mapping[str, int]  # the values of the extents' symbols to compile for
    _: KW_ONLY
    size: int = 2  # worker processes
    limit_s: float = COMPILE_LIMIT_S  # seconds a compilation may take
    root: Path | None = None  # the cache folder; the user's by default
    pool: Pool | None = None  # the workers, of who lends them; its own by default
    here: bool = False  # as CompileJob has it
    runs: int = field(default=0, init=False)
    _cache: Cache = field(init=False)
    _pool: Pool = field(init=False)
    _under_way: dict[str, Future[Reply]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        capability(self.target)
        base = self.root or cache_root()
        self._cache = Cache("compiled", base)
        self._pool = self.pool or compile_pool(base, self.size)

    @property
    def basis(self) -> str:
        """What the compiler's word depends on."""
        return f"{self.target} triton {version_of('triton')} at {sorted(self.hints.items())}"

    def compile(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        """For each point, in order, its resources, or its failure; `seconds` is None in all of them."""
        jobs = [
            CompileJob(c.module, self.target, config, arguments(c.sgraph, self.hints), self.here)
            for c, config in points
        ]
        keys = [self._key(job) for job in jobs]
        known = [self._cache.get(k) for k in keys]
        futures = [
            self._begun(key, j) if entry is None else None for key, j, entry in zip(keys, jobs, known, strict=True)
        ]
        for key, entry, future in zip(keys, known, futures, strict=True):
            if future is None:
                yield _judged(compiled(entry or {}))
                continue
            reply = future.result()
            self._under_way.pop(key, None)
            self.runs += 1
            # What the compiler says stays true; a crash or a hang may be the machine's, so it is tried again next time.
            if reply.ending is not Ending.ANSWERED:
                yield Outcome(None, Failure(reply.ending.value), reply.detail)
                continue
            if reply.answer.get("error"):
                make_room(Path(tempfile.gettempdir()))  # of assemblers it is not known why they failed
            self._cache.put(key, reply.answer)
            yield _judged(compiled(reply.answer))

    def _begun(self, key: str, job: CompileJob) -> Future[Reply]:
        """The compilation of a job, begun: what was not waited for, as the time ended, goes on."""
        if key not in self._under_way:
            self._under_way[key] = self._pool.submit(request(job, self.limit_s), self.limit_s)
        return self._under_way[key]

    def _key(self, job: CompileJob) -> str:
        text = digest_of_file(job.module)
        shapes = [[list(a.shape), a.dtype] for a in job.arguments]
        return digest(text, job.config.key(), job.target, shapes, version_of("triton"))

    def begin(self) -> None:
        """Let the workers import what they need while something else is done."""
        self._pool.begin(self.size)

    def close(self) -> None:
        """Kill the workers that are its own."""
        if self.pool is None:
            self._pool.close()


def _judged(found: Compiled) -> Outcome:
    if found.error:
        return Outcome(None, Failure.COMPILE, found.error)
    return Outcome(None, resources=found.resources)


@dataclass(frozen=True, slots=True, eq=False)
class Estimating(Closing):
    """The evaluator without a GPU: compiler's resources and cost model. Its seconds are estimates, and it says so."""

    evidence = Evidence.ESTIMATED
    compiler: Compiler  # of the target; ends with it
    device: str  # the name of the device that the model describes
    shared_limit: int  # bytes of shared memory that one block may use

    @property
    def basis(self) -> str:
        """What an estimate depends on besides the point."""
        return f"{self.device} {self.shared_limit} {self.compiler.basis} model {MODEL}"

    def evaluate(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
        """The estimates, in the order of the points."""
        for (candidate, config), outcome in zip(points, self.compiler.compile(points), strict=True):
            if outcome.failure is not None:
                yield outcome
                continue
            over = over_limit(outcome.resources, self.shared_limit)
            if over:
                yield Outcome(None, Failure.SHARED, over, outcome.resources)
                continue
            seconds = candidate.estimate(config, outcome.resources)
            if math.isfinite(seconds):
                yield Outcome(seconds, resources=outcome.resources)
            else:
                yield Outcome(None, Failure.RESOURCES, "the cost model says that no block fits", outcome.resources)

    def least(self, candidate: Candidate, config: Config) -> float:
        """What the estimate of a point is at least, before it is compiled.

        No compiler's word makes it less: the more programs fit on a multiprocessor, and the less is spilled, the
        faster is a launch.
        """
        best = [Resources(launch, shared=0, registers=1, spills=0, warps=n) for launch, n in config.warps.items()]
        return candidate.estimate(config, best)

    def begin(self) -> None:
        """As the compiler's."""
        self.compiler.begin()

    def close(self) -> None:
        """Kill the workers."""
        self.compiler.close()
