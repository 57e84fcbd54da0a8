"""Running emitted modules on a machine without a GPU: the parent's side of `interpreter_child.py`.

Starting a child costs 2 s, so a pool keeps it for many runs of many modules.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from prism.errors import BackendError
from prism.process.child import START_LIMIT_S, child_environment
from prism.process.worker import Ending, Worker
from prism.sgraph.config import Config

CHILD = Path(__file__).with_name("interpreter_child.py")


@dataclass(frozen=True, slots=True)
class InterpretJob:
    """One call of an emitted launcher.

    Attributes:
        module: the emitted module.
        entry: the launcher's name.
        inputs: one array per argument; bfloat16 ones as float32.
        dtypes: the arguments' data types, by torch's names.
        config: the configuration.
        timeout_s: how long it may take, seconds.
    """

    module: Path
    entry: str
    inputs: tuple[np.ndarray, ...]
    dtypes: tuple[str, ...]
    config: Config
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Interpreted:
    """The outcome of a job: the outputs (bfloat16 as float32), or why there are none, in one line."""

    outputs: tuple[np.ndarray, ...] = ()
    error: str = ""


class InterpreterPool:
    """Child processes that interpret emitted modules; a context manager.

    Args:
        processes: how many; one is enough for most uses, and a run is one at a time in each.
        start_limit_s: what a run may take longer when its process has to be started first, seconds.
    """

    def __init__(self, processes: int = 1, start_limit_s: float = START_LIMIT_S) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prism-interpret-")
        environment = child_environment(TRITON_INTERPRET="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        command = [sys.executable, str(CHILD)]
        self._workers = [Worker(command, environment, start_limit_s) for _ in range(processes)]

    def run_many(self, jobs: Sequence[InterpretJob]) -> list[Interpreted]:
        """The outcome of every job, in order; a failure is an outcome, too."""
        count = len(self._workers)
        results: list[Interpreted] = [Interpreted()] * len(jobs)

        def work(number: int) -> None:
            for n in range(number, len(jobs), count):
                results[n] = self._run(number, jobs[n])

        with ThreadPoolExecutor(count) as threads:
            list(threads.map(work, range(count)))
        return results

    def _run(self, number: int, job: InterpretJob) -> Interpreted:
        inputs, outputs = (Path(self._folder.name) / f"{what}{number}.npz" for what in ("inputs", "outputs"))
        outputs.unlink(missing_ok=True)
        arrays = {str(n): np.asarray(a, order="C") for n, a in enumerate(job.inputs)}
        np.savez(inputs, **arrays)  # type: ignore[arg-type]
        request = {
            "module": str(job.module),
            "entry": job.entry,
            "inputs": str(inputs),
            "outputs": str(outputs),
            "dtypes": list(job.dtypes),
            "config": job.config.encode(),
        }
        reply = self._workers[number].ask(request, job.timeout_s)
        if reply.ending is not Ending.ANSWERED:
            return Interpreted(error=f"{reply.ending}: {reply.detail}")
        if reply.answer.get("error"):
            return Interpreted(error=str(reply.answer["error"]))
        with np.load(outputs) as made:
            return Interpreted(tuple(np.array(made[str(n)]) for n in range(len(made.files))))

    def run(self, job: InterpretJob) -> list[np.ndarray]:
        """The outputs of one job.

        Raises:
            BackendError: the module or the process failed.
        """
        result = self.run_many([job])[0]
        if result.error:
            raise BackendError("an emitted module failed in the interpreter", where=job.module.name, why=result.error)
        return list(result.outputs)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()
        self._folder.cleanup()

    def __enter__(self) -> InterpreterPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
