"""Worker processes that stay alive between requests and are killed when they hang.

A child is `python -m module`, speaking one JSON line a request (see `prism.backends.triton.serve`): no fork, so that
torch's and LLVM's threads are safe, and no multiprocessing, so that the user's script is never imported a second time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any

START_LIMIT_S = 60.0
"""Extra time that the first request to a fresh child gets: it imports torch and triton."""


class Ending(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    CRASH = "crash"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request.

    Attributes:
        ending: whether the child answered, died or was killed for hanging.
        answer: its answer; empty when there was none.
        detail: for a crash or a hang, one line about it.
    """

    ending: Ending
    answer: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""


class Worker:
    """One child process, started when first asked and again after it died. Not for several threads at once.

    Args:
        command: how to start it.
        environment: its whole environment.
        start_limit_s: extra seconds for the first request to a fresh child.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], start_limit_s: float = START_LIMIT_S
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._start_limit_s = start_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._lock = threading.Lock()
        self._closed = False
        self.starts = 0

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        """Send one request and wait for its answer, `timeout_s` seconds at most; a hung child is killed."""
        fresh = self._process is None or self._process.poll() is not None
        if fresh:
            self._start()
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return Reply(Ending.CRASH, detail="the worker is closed")
        limit = timeout_s + (self._start_limit_s if fresh else 0.0)
        try:
            process.stdin.write((json.dumps({"timeout_s": limit, **request}) + "\n").encode())
            process.stdin.flush()
            line = _read_line(process.stdout.fileno(), limit)
        except (BrokenPipeError, ValueError, OSError):
            line = b""
        if line is None:
            self.kill()
            return Reply(Ending.HANG, detail=f"no answer in {limit:g} s")
        if not line.endswith(b"\n"):
            self.kill()
            return Reply(Ending.CRASH, detail=self._last_words(process))
        return Reply(Ending.ANSWERED, json.loads(line))

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                self._process = None
                return
            self._log.seek(0)
            self._log.truncate()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=self._environment,
                start_new_session=True,
            )
            self.starts += 1

    def _last_words(self, process: subprocess.Popen[bytes]) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        words = f": {lines[-1][:300]}" if lines else ""
        return f"the process ended with status {process.returncode}{words}"

    def kill(self) -> None:
        """Kill the child with whatever it started; the next request starts a fresh one."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        _kill_group(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def interrupt(self) -> None:
        """Kill the child from another thread and start no more; a request that is under way ends as a crash."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                _kill_group(self._process)

    def close(self) -> None:
        """Kill the child and start no more."""
        self._closed = True
        self.kill()
        self._log.close()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The child leads a session of its own, so this takes ptxas along and nothing else.
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


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


class Pool:
    """A few workers of one kind; requests run in any order, answers are handed out in the order of the requests.

    Args:
        command: how to start a worker.
        environment: the whole environment of a worker.
        size: how many workers at most; they start when first needed.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], size: int = 2) -> None:
        self._workers = [Worker(command, environment) for _ in range(size)]
        self._idle = list(self._workers)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=size, thread_name_prefix="prism-worker")

    def submit(self, request: Mapping[str, Any], timeout_s: float) -> Future[Reply]:
        """Queue a request; its time starts when a worker takes it."""
        return self._threads.submit(self._run, request, timeout_s)

    def _run(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        with self._lock:
            worker = self._idle.pop()
        try:
            return worker.ask(request, timeout_s)
        finally:
            with self._lock:
                self._idle.append(worker)

    def map(self, requests: Sequence[Mapping[str, Any]], timeout_s: float) -> Iterator[Reply]:
        """The replies, in the order of the requests; all are queued at once."""
        futures = [self.submit(r, timeout_s) for r in requests]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Kill all workers, running requests included."""
        for worker in self._workers:
            worker.interrupt()
        # The threads still hold the pipes, so these are closed after them.
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
