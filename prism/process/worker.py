"""Workers: children that answer a JSON line with one line (see `serve`), alone or as a pool, or with several."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from prism.process.child import START_LIMIT_S, Child, Closing, Fork
from prism.process.serve import BEGIN


class Ending(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    CRASH = "crash"
    HANG = "hang"


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request."""

    ending: Ending  # whether the child answered, died or was killed for hanging
    answer: Mapping[str, Any] = field(default_factory=dict)  # its answer; empty when there was none
    detail: str = ""  # for a crash or a hang, one line about it


class Worker:
    """One child, started when first asked and again after it died. Requests of several threads wait for each other.

    A fresh child has `start_limit_s` extra seconds for its first request; `fork` is as Child has it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        start_limit_s: float = START_LIMIT_S,
        fork: Fork | None = None,
    ) -> None:
        self._child = Child(command, environment, fork)
        self._start_limit_s = start_limit_s
        self._turn = threading.Lock()
        self._beginning: threading.Thread | None = None

    @property
    def starts(self) -> int:
        """How many processes were started."""
        return self._child.starts

    @property
    def closed(self) -> bool:
        """Whether it starts no more."""
        return self._child.closed

    def begin(self) -> None:
        """Start the child, and let it import what requests need while something else is done; they wait for that."""
        if self._beginning is None and not self.starts:
            self._beginning = threading.Thread(target=self._begin, name="prism-begin", daemon=True)
            self._beginning.start()

    def _begin(self) -> None:
        with suppress(OSError):  # the first request says so
            self.ask(BEGIN, START_LIMIT_S)

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        """Send one request and wait for its answer, `timeout_s` seconds at most; a hung child is killed.

        What another thread asks before is waited for, which takes none of these seconds.

        Raises:
            OSError: the machine refused the child what it needs, as a full disk does.
        """
        with self._turn:
            return self._asked(request, timeout_s)

    def _asked(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        child = self._child
        limit = timeout_s + (self._start_limit_s if child.start() else 0.0)
        if child.closed:
            return Reply(Ending.CRASH, detail="the worker is closed")
        try:
            child.feed(json.dumps({"timeout_s": limit, **request}))
            stood_s, end = child.stood_s, time.monotonic() + limit
            while (line := child.line(end)) is None and (child.halted or child.stood_s > stood_s):
                # Its time begins again while it is halted, and goes on afterwards for as long as it stood.
                end = time.monotonic() + (child.stood_s - stood_s or limit)
                stood_s = child.stood_s
        except OSError:
            line = b""
        except BaseException:
            child.kill()  # its answer would be taken for that to the next request
            raise
        if line is None:
            child.kill()
            return Reply(Ending.HANG, detail=f"no answer in {limit:g} s")
        if not line:
            how = child.end("the process ended")
            if child.status == -signal.SIGALRM:  # its own alarm, which is set for the same time
                return Reply(Ending.HANG, detail=f"no answer in {limit:g} s")
            return Reply(Ending.CRASH, detail=how)
        answer = json.loads(line)
        if "refused" in answer:
            raise OSError(*answer["refused"])
        return Reply(Ending.ANSWERED, answer)

    def kill(self) -> None:
        """Kill the child with whatever it started; the next request starts a fresh one."""
        self.beginning()  # its thread holds the child's pipes
        self._child.kill()

    def beginning(self, wait_s: float | None = None) -> bool:
        """Whether what was begun still goes on, after so many seconds of waiting for it; None for all that it takes."""
        if self._beginning is not None:
            self._beginning.join(wait_s)
        return self._beginning is not None and self._beginning.is_alive()

    def halt(self) -> None:
        """Let the child stand still, from another thread; that does not count as its time."""
        self._child.halt()

    def go_on(self) -> None:
        """Let it go on."""
        self._child.go_on()

    def interrupt(self, *, last: bool = False) -> None:
        """Kill the child from another thread, which ends the request that is under way as a crash.

        After the `last` one no more is started; otherwise the next request starts a fresh one.
        """
        self._child.interrupt(last=last)

    def close(self) -> None:
        """Kill the child and start no more; a thread that waits for an answer sees it end before."""
        self._child.interrupt(last=True)
        self.beginning()
        with self._turn:
            self._child.close()


class Background:
    """Workers that do something beside the rest, and stand still while something is timed."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._lock = threading.Lock()
        self._halts = 0

    def add(self, worker: Worker) -> None:
        """Let it be one of them, until it is closed."""
        with self._lock:
            self._workers = [w for w in self._workers if not w.closed] + [worker]
            if self._halts:
                worker.halt()

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Let them stand still meanwhile."""
        with self._lock:
            self._halts += 1
            for worker in self._workers:
                worker.halt()
        try:
            yield
        finally:
            with self._lock:
                self._halts -= 1
                for worker in self._workers if not self._halts else ():
                    worker.go_on()


class EventWorker:
    """One child that answers a request by events, a JSON line each, and is killed when it falls silent.

    A fresh child has `start_limit_s` extra seconds until its first event.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], start_limit_s: float = 90.0) -> None:
        self._child = Child(command, environment)
        self._start_limit_s = start_limit_s

    def ask(self, request: Mapping[str, Any], silence_s: float, until: float | None = None) -> Iterator[dict[str, Any]]:
        """The events that answer a request; the last is `done` (with `error` if it failed) or `lost` (with `why`).

        It is killed when it says nothing for `silence_s` seconds, and at `until` (`time.monotonic()`) whatever it says.
        """
        child = self._child
        limit = silence_s + (self._start_limit_s if child.start() else 0.0)
        lost = ""
        try:
            child.feed(json.dumps(request))
        except OSError:
            lost = "the process ended before it was asked"
        while not lost:
            end = time.monotonic() + limit
            line = child.line(min(end, until) if until is not None else end)
            if line:
                limit = silence_s
                event: dict[str, Any] = json.loads(line)
                yield event
                if event["event"] == "done":
                    return
            else:
                lost = "crash" if line is not None else "hang: killed after silence, or at the end of its time"
        yield {"event": "lost", "why": child.end(lost)}

    def kill(self) -> None:
        """End the child and whatever it started; the next request starts a fresh one."""
        self._child.kill()

    def close(self) -> None:
        """End it for good."""
        self._child.close()


class Pool(Closing):
    """A few workers of one kind; requests run in any order, answers are handed out in the order of the requests.

    There are `size` workers at most; they start when first needed.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], size: int = 2) -> None:
        self.size = size
        self._workers = [Worker(command, environment) for _ in range(size)]
        self._idle = list(self._workers)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=size, thread_name_prefix="prism-worker")

    def begin(self, many: int) -> None:
        """Start so many of the workers, as `Worker.begin` does: those that are asked first."""
        with self._lock:
            for worker in self._idle[-many:]:
                worker.begin()

    def submit(self, request: Mapping[str, Any], timeout_s: float) -> Future[Reply]:
        """Queue a request; its time starts when a worker takes it."""
        return self._threads.submit(self._run, request, timeout_s)

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        """Queue a request and wait for its answer, as `Worker.ask` does."""
        return self.submit(request, timeout_s).result()

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

    def interrupt(self, *, last: bool = False) -> None:
        """End the children, running requests included, as `Worker.interrupt` does."""
        for worker in self._workers:
            worker.interrupt(last=last)

    def close(self) -> None:
        """Kill all workers, running requests included."""
        self.interrupt(last=True)
        # The threads still hold the pipes, so these are closed after them.
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()
