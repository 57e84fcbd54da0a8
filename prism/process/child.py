"""A child process: started, fed requests, listened to for so long and no longer, and killed with all that it started.

A child is a fresh interpreter, or forked by one that has done no more than import (see `fork_server`), and leads a
process group of its own. This process is never forked, so that torch's and LLVM's threads are safe; no multiprocessing,
so that the user's script is never imported a second time; and a terminal's Ctrl-C is for the parent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, Self, TypeAlias

START_LIMIT_S = 60.0
"""Extra time that the first request to a fresh child gets: it imports torch and triton, or egglog and the rules."""

_LAST_MOMENT_S = 0.5


def module_command(module: str) -> list[str]:
    """The command that runs a module as a child; -P, so that no file of the current directory shadows a library."""
    return [sys.executable, "-P", "-m", module]


def child_environment(**changes: str | None) -> dict[str, str]:
    """This process's environment with these variables (None: without them), in which prism can be imported."""
    root = str(Path(__file__).resolve().parents[2])
    env = {k: v for k, v in os.environ.items() if k not in changes}
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    return env | {k: v for k, v in changes.items() if v is not None}


class Closing(ABC):
    """What a `with` block closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """End what runs, for good."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Process(Protocol):
    """What is asked of a process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """Its id, and that of its process group."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Where its requests go."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Where its answers come from."""

    def poll(self) -> int | None:
        """Its status, where it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Its status, once it has ended. Raises subprocess.TimeoutExpired: it has not within so many seconds."""


Fork: TypeAlias = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Process | None]
"""Starts a process of a command and an environment, with its standard error; None where it cannot."""


class Child:
    """One child process, started when it is needed and again after it died. One thread feeds it; any may interrupt.

    The environment is its whole one, None for this process's. `fork` starts it, where it can; otherwise, or by default,
    it is a fresh process.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, fork: Fork | None = None
    ) -> None:
        self._command = list(command)
        self._environment = dict(environment) if environment is not None else None
        self._fork = fork
        self._process: Process | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._rest = b""
        self._lock = threading.Lock()
        self._closed = False
        self._interrupts = 0
        self._halted_at: float | None = None
        self.stood_s = 0.0  # how long processes were halted, seconds, but for the halt that lasts
        self.starts = 0  # how many processes were started
        self.status: int | None = None  # of the last one that `end` found ended by itself

    @property
    def closed(self) -> bool:
        """Whether no more will be started."""
        return self._closed

    @property
    def alive(self) -> bool:
        """Whether a process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process's id, where there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> bool:
        """See to it that a process runs; whether that took a fresh one. Does nothing once closed."""
        if self.alive:
            return False
        self.kill()
        with self._lock:
            if self._closed:
                return False
            self._log.seek(0)
            self._log.truncate()
            self._rest = b""
            interrupts = self._interrupts
        process = self._spawn()  # what forks it may have to import first: whoever halts or interrupts it does not wait
        with self._lock:
            self._process = process
            self.starts += 1
            if self._interrupts > interrupts:
                signal_session(process, signal.SIGKILL)
            elif self._halted_at is not None:
                signal_session(process, signal.SIGSTOP)
            return True

    def _spawn(self) -> Process:
        environment = os.environ if self._environment is None else self._environment
        forked = None if self._fork is None else self._fork(self._command, environment, self._log)
        return forked or subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
            process_group=0,  # and no session of its own: Linux gives each of these a share of the cores
        )

    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Where requests go and where answers come from. Raises BrokenPipeError: no process was started."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise BrokenPipeError("no child was started")
        return process.stdin, process.stdout

    def feed(self, line: str) -> None:
        """Send one line. Raises OSError: the child has ended, or none was started."""
        requests, _ = self.pipes()
        try:
            requests.write(line.encode() + b"\n")
            requests.flush()
        except ValueError as error:  # closed from another thread
            raise BrokenPipeError(str(error)) from error

    def line(self, end: float) -> bytes | None:
        """The next line of the child's; None when `time.monotonic()` has come to `end`, empty when the child has ended.

        Raises:
            OSError: no child was started.
        """
        _, answers = self.pipes()
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([answers], [], [], left)[0]:
                return None
            chunk = os.read(answers.fileno(), 1 << 16)
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def kill(self) -> int | None:
        """End the process with whatever it started; its status, where there was one. A `start` starts a fresh one."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return None
        signal_session(process, signal.SIGKILL)
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return status

    def end(self, how: str) -> str:
        """Kill it: `how` it came to that, with its status where it ended by itself, and the last line that it said."""
        process = self._process
        if process is not None:
            # Its pipe ends a moment before it does.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LAST_MOMENT_S)
        ended = not self.alive
        status = self.kill()
        self.status = status if ended else None
        if self._log.closed:
            return how
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        how += f" with status {status}" if ended and status is not None else ""
        return f"{how}: {lines[-1].strip()[:300]}" if lines else how

    @property
    def halted(self) -> bool:
        """Whether it stands still."""
        return self._halted_at is not None

    def halt(self) -> None:
        """Let it stand still with whatever it started, from another thread; one that starts, too."""
        with self._lock:
            if self._halted_at is None:
                self._halted_at = time.monotonic()
                if self._process is not None:
                    signal_session(self._process, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        with self._lock:
            if self._halted_at is not None:
                self.stood_s += time.monotonic() - self._halted_at
                self._halted_at = None
                if self._process is not None:
                    signal_session(self._process, signal.SIGCONT)

    def interrupt(self, *, last: bool = False) -> None:
        """Kill it from another thread; the one that waits for an answer sees the child end.

        After the `last` one no more is started.
        """
        with self._lock:
            self._closed |= last
            self._interrupts += 1
            if self._process is not None:
                signal_session(self._process, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and start no more."""
        self._closed = True
        self.kill()
        self._log.close()


def signal_session(process: Process, number: signal.Signals) -> None:
    """Signal a process that leads a group of its own: so this takes a compiler that it runs along, and nothing else."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int  # its status; negative for the signal that ended it
    output: str  # what it wrote to standard output and standard error

    def __str__(self) -> str:
        """That in one line."""
        end = f"it was ended by signal {-self.code}" if self.code < 0 else f"it ended with status {self.code}"
        said = " ".join(self.output[:4096].split())[:300]
        return f"{end} and said: {said}" if said else f"{end} and said nothing"


def run_tool(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a command to its end; it is ended in time, with all that it started.

    Raises:
        subprocess.TimeoutExpired: it took longer.
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=0,
        )
        try:
            code = process.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return Ended(code, said.read().decode(errors="replace"))
