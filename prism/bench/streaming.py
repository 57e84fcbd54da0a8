"""A child process that answers a request with a stream of JSON lines, and is killed when it falls silent.

The standard library alone: this runs on the device's machine, where nothing else need be installed.
"""

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

CHILD = (sys.executable, "-m", "prism.bench.child")
START_S = 90.0
"""Extra time until the first line of a fresh child: it imports torch and triton."""


class Child:
    """A child, started when first asked and again after it was killed.

    Args:
        environment: its whole environment.
        command: how to start it.
    """

    def __init__(self, environment: Mapping[str, str], command: Sequence[str] = CHILD) -> None:
        self._environment = dict(environment)
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._rest = b""

    def ask(self, request: Mapping[str, Any], silence_s: float, until: float | None = None) -> Iterator[dict[str, Any]]:
        """The events that answer a request; the last is `done` (with `error` if it failed) or `lost` (with `why`).

        Args:
            request: what is asked.
            silence_s: how long the child may say nothing before it is killed, seconds.
            until: `time.monotonic()` at which it is killed whatever it says.
        """
        fresh = self._process is None or self._process.poll() is not None
        if fresh:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write((json.dumps(request) + "\n").encode())
            process.stdin.flush()
        except OSError:
            yield self._lost("the process ended before it was asked")
            return
        limit = silence_s + (START_S if fresh else 0.0)
        while True:
            end = time.monotonic() + limit
            line = self._line(min(end, until) if until is not None else end)
            if line is None:
                yield self._lost("hang: killed after silence, or at the end of its time")
                return
            if not line:
                yield self._lost("crash")
                return
            limit = silence_s
            event: dict[str, Any] = json.loads(line)
            yield event
            if event["event"] == "done":
                return

    def _start(self) -> None:
        self._log.seek(0)
        self._log.truncate()
        self._rest = b""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
        )

    def _line(self, end: float) -> bytes | None:
        """The next line; None when time is up, empty when the child has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                return None
            chunk = os.read(fd, 1 << 16)
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _lost(self, why: str) -> dict[str, Any]:
        process = self._process
        self.kill()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip().splitlines()
        status = f", status {process.returncode}" if process is not None else ""
        return {"event": "lost", "why": f"{why}{status}{': ' + words[-1][:300] if words else ''}"}

    def kill(self) -> None:
        """End the child and whatever it started."""
        process, self._process = self._process, None
        if process is None:
            return
        # It leads a session of its own, so this takes ptxas along and nothing else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def close(self) -> None:
        """End it for good."""
        self.kill()
        self._log.close()


def child_environment(cache: Path, device: str) -> dict[str, str]:
    """The environment of a child: caches under `cache`, prism importable, one thread where numpy computes."""
    root = str(Path(__file__).resolve().parent.parent.parent)
    env = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "TRITON_CACHE_DIR")}
    env["TRITON_CACHE_DIR"] = str(cache / "triton")
    env["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    if device == "interpreter":
        env |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return env
