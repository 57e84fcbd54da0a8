"""Running emitted modules on a machine without a GPU: the parent's side of `runner.py`.

A child process interprets, because memory errors of a kernel are errors of the process, and because Triton decides when
it is imported whether it interprets. Starting one costs 2 s, so a pool keeps it for many runs of many modules.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np

from prism.backends.protocol import plain
from prism.errors import BackendError
from prism.sgraph.config import Config

RUNNER = Path(__file__).with_name("runner.py")
START_LIMIT_S = 60.0
"""What a run may take longer when its process has to be started first, seconds."""


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


class _Process:
    """One child process, started when first needed and again after it died."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def run(self, job: InterpretJob) -> Interpreted:
        inputs = self._folder / f"inputs{self._number}.npz"
        outputs = self._folder / f"outputs{self._number}.npz"
        outputs.unlink(missing_ok=True)
        arrays = {str(n): np.asarray(a, order="C") for n, a in enumerate(job.inputs)}
        np.savez(inputs, **arrays)  # type: ignore[arg-type]
        request = {
            "module": str(job.module),
            "entry": job.entry,
            "inputs": str(inputs),
            "outputs": str(outputs),
            "dtypes": list(job.dtypes),
            "config": plain(job.config),
        }
        limit = job.timeout_s
        if self._child is None or self._child.poll() is not None:
            self._start()
            limit += START_LIMIT_S
        child = self._child
        if child is None or child.stdin is None:
            return Interpreted(error="the interpreter's process did not start")
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            return Interpreted(error=self._ended("crash"))
        line = self._answer(child, limit)
        if line is None:
            return Interpreted(error=self._ended(f"hang: no answer in {limit:g} s"))
        if not line:
            return Interpreted(error=self._ended("crash"))
        answer = json.loads(line)
        if answer.get("error"):
            return Interpreted(error=str(answer["error"]))
        with np.load(outputs) as made:
            return Interpreted(tuple(np.array(made[str(n)]) for n in range(len(made.files))))

    def _start(self) -> None:
        self.stop()
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TRITON_INTERPRET")}
        env.update(TRITON_INTERPRET="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        # Standard error is only read after a crash, and a pipe that nobody reads would block the child.
        self._errors = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._child = subprocess.Popen(
            [sys.executable, "-P", str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=env,
        )

    @staticmethod
    def _answer(child: subprocess.Popen[bytes], limit: float) -> bytes | None:
        """One line, b"" at the end of the child, or None when the time is up."""
        assert child.stdout is not None
        # The child writes an answer in one piece, so a line is there when something is.
        ready, _, _ = select.select([child.stdout], [], [], limit)
        return child.stdout.readline() if ready else None

    def _ended(self, how: str) -> str:
        """Ends the child and says why it ended, by the last line of its standard error."""
        last = ""
        child = self._child
        if child is not None:
            child.kill()
            child.wait()
            if how == "crash":
                how = f"crash: the interpreter's process ended with status {child.returncode}"
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines()
            last = lines[-1].strip() if lines else ""
        self.stop()
        return f"{how}: {last}" if last else how

    def stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            if child.stdin is not None:
                child.stdin.close()
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None


class InterpreterPool:
    """Child processes that interpret emitted modules; a context manager.

    Args:
        processes: how many; one is enough for most uses, and a run is one at a time in each.
    """

    def __init__(self, processes: int = 1) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prism-interpret-")
        self._processes = [_Process(Path(self._folder.name), n) for n in range(processes)]

    def run_many(self, jobs: Sequence[InterpretJob]) -> list[Interpreted]:
        """The outcome of every job, in order; a failure is an outcome, too."""
        count = len(self._processes)
        results: list[Interpreted] = [Interpreted()] * len(jobs)

        def work(number: int) -> None:
            for n in range(number, len(jobs), count):
                results[n] = self._processes[number].run(jobs[n])

        if count == 1:
            work(0)
        else:
            with ThreadPoolExecutor(count) as threads:
                list(threads.map(work, range(count)))
        return results

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
        for p in self._processes:
            p.stop()
        self._folder.cleanup()

    def __enter__(self) -> InterpreterPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_interpreted(
    module_path: Path, entry: str, inputs: Sequence[np.ndarray], dtypes: Sequence[str], config: Config, timeout_s: float
) -> list[np.ndarray]:
    """The outputs of one call of an emitted launcher, in a process of its own.

    Args:
        module_path: the emitted module.
        entry: the launcher's name.
        inputs: one array per argument; bfloat16 ones as float32.
        dtypes: the arguments' data types, by torch's names.
        config: the configuration.
        timeout_s: how long it may take, seconds, not counting the start of the process.

    Raises:
        BackendError: the module failed, crashed or hung; with the last line of the process's standard error.
    """
    with InterpreterPool() as pool:
        return pool.run(InterpretJob(module_path, entry, tuple(inputs), tuple(dtypes), config, timeout_s))
