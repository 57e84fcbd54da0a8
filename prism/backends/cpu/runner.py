"""Runs and times emitted C++ modules in a child process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from prism.backends.cpu.build import compile_module
from prism.backends.cpu.machine import describe
from prism.backends.protocol import Config
from prism.backends.tile import identifier
from prism.errors import BackendError
from prism.program.evaluate import bind
from prism.program.extents import evaluate
from prism.program.nodes import DType, Tensor
from prism.sgraph.nodes import SGraph

START_LIMIT_S = 30.0
"""Extra time for the first request to a fresh child."""


class CpuRunner:
    """A child process that runs modules; it is started when first asked, and again after a crash or a hang.

    Args:
        threads: how many threads kernels use; by default the cores that this process may run on.
        timeout_s: for one request.
    """

    def __init__(self, *, threads: int | None = None, timeout_s: float = 120.0) -> None:
        self.threads = threads or describe().cores
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="prism-cpu-")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the runner
        self._count = 0

    def run(
        self, module: Path, sgraph: SGraph, config: Config, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The outputs, in their storage types (bfloat16 as ml_dtypes has it).

        Args:
            module: the emitted module, with its C++ beside it.
            sgraph: what it implements.
            config: the configuration.
            inputs: by name, of any numeric type; they are converted to the tensors' storage types.

        Raises:
            BackendError: it does not compile, crashes, hangs, or leaves an output unwritten.
        """
        request, outputs = self._request(module, sgraph, config, inputs)
        results = [self._path() for _ in outputs]
        self._ask({**request, "what": "run", "results": [str(p) for p in results]}, module)
        found: dict[str, np.ndarray] = {}
        for t, path in zip(sgraph.outputs, results, strict=True):
            array = np.load(path)
            found[t.name] = array.view(_numpy(t.dtype)) if t.dtype is DType.BFLOAT16 else array
            path.unlink()
        return found

    def time(
        self,
        module: Path,
        sgraph: SGraph,
        config: Config,
        inputs: Mapping[str, np.ndarray],
        repeats: int = 10,
        *,
        cold: bool = False,
    ) -> list[float]:
        """Seconds a call, `repeats` samples; each is the mean of a batch long enough for the clock.

        Args:
            module: the emitted module.
            sgraph: what it implements.
            config: the configuration.
            inputs: by name.
            repeats: how many samples.
            cold: whether calls rotate over copies of the tensors that do not fit in the last-level cache.

        Raises:
            BackendError: as for `run`.
        """
        request, _ = self._request(module, sgraph, config, inputs)
        rotate = describe().l3_bytes if cold else 0
        answer = self._ask({**request, "what": "time", "repeats": repeats, "rotate_bytes": rotate}, module)
        return [float(s) for s in answer["samples"]]

    def _request(
        self, module: Path, sgraph: SGraph, config: Config, inputs: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, Any], Sequence[Tensor]]:
        built = compile_module(module, config)
        if built.library is None:
            raise BackendError(built.error, where=module.name)
        arrays = [np.asarray(inputs[t.name]) for t in sgraph.inputs]
        binding = bind(sgraph.inputs, {t.name: a.shape for t, a in zip(sgraph.inputs, arrays, strict=True)})
        paths: list[str] = []
        for t, a in zip(sgraph.inputs, arrays, strict=True):
            path = self._path()
            np.save(path, stored(a, t.dtype))
            paths.append(str(path))
        outputs = [[t.name, [evaluate(e, binding) for e in t.shape], t.dtype.value] for t in sgraph.outputs]
        request = {
            "module": str(module.resolve()),
            "entry": identifier(sgraph.name),
            "config": {"symbols": dict(config.symbols)},
            "inputs": paths,
            "outputs": outputs,
            "threads": self.threads,
        }
        return request, sgraph.outputs

    def _path(self) -> Path:
        self._count += 1
        return Path(self._folder.name) / f"array{self._count}.npy"

    # The child.

    def _ask(self, request: Mapping[str, Any], module: Path) -> Mapping[str, Any]:
        fresh = self._process is None or self._process.poll() is not None
        if fresh:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        limit = self._timeout_s + (START_LIMIT_S if fresh else 0.0)
        try:
            process.stdin.write((json.dumps({"timeout_s": limit, **request}) + "\n").encode())
            process.stdin.flush()
            line = _read_line(process.stdout.fileno(), limit)
        except OSError:
            line = b""
        finally:
            for path in request["inputs"]:
                Path(path).unlink(missing_ok=True)
        if line is None:
            self.kill()
            raise BackendError(f"the kernels gave no answer in {limit:g} s", where=module.name)
        if not line.endswith(b"\n"):
            self.kill()
            raise BackendError(f"the kernels crashed: {self._last_words(process)}", where=module.name)
        answer: dict[str, Any] = json.loads(line)
        if answer.get("error"):
            raise BackendError(str(answer["error"]), where=module.name)
        return answer

    def _start(self) -> None:
        environment = {
            **os.environ,
            "OMP_PROC_BIND": "true",
            "OMP_NUM_THREADS": str(self.threads),
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prism.backends.cpu.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        words = f": {lines[-1][:300]}" if lines else ""
        return f"the process ended with status {process.returncode}{words}"

    def kill(self) -> None:
        """Kill the child; the next request starts a fresh one."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def close(self) -> None:
        """Kill the child and drop its files."""
        self.kill()
        self._log.close()
        self._folder.cleanup()

    def __enter__(self) -> CpuRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _numpy(dtype: DType) -> Any:
    if dtype is DType.BFLOAT16:
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype.value)


def stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """An array in a storage type; bfloat16 as its bits, because numpy has no name for it."""
    with np.errstate(all="ignore"):
        made = np.ascontiguousarray(array.astype(_numpy(dtype), copy=False))
    return made.view(np.uint16) if dtype is DType.BFLOAT16 else made


def _read_line(fd: int, limit: float) -> bytes | None:
    """One line from a pipe: None when time is up, without its newline when the pipe ended first."""
    end = time.monotonic() + limit
    data = bytearray()
    while not data.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return None
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            break
        data += chunk
    return bytes(data)
