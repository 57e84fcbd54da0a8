"""A process that has imported what children import, and forks them: torch alone takes a child 2 s of processor time.

    python -P tests/zygote.py SOCKET

It has one thread and has computed nothing, so that a fork of it is what a fresh interpreter would be after its imports;
prism and Triton, which look at the environment, a child imports itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

IMPORTED = ("numpy", "sympy", "torch")
LIBRARIES = sys.path[:]
"""Where modules are found but for a child's own places."""
READ_AT_START = ("PYTHON", "OMP_", "OPENBLAS_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "LD_", "ATEN_", "TORCH_")
"""How variables begin that the interpreter, or what is imported, looks at before a child has its own."""
KNOWN = ("-P", "-c", "-m")
"""How a command may begin after the interpreter, if not by a file."""
MOST = 3
"""Processes that fork, each for children that are alike in these variables."""


class Forked:
    """What the tests' side knows of a child: the part of `subprocess.Popen` that `Child` asks for."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], ends: int) -> None:
        self.pid, self.stdin, self.stdout, self._ends = pid, stdin, stdout, ends
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its status, where it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its status, once it has ended."""
        if self.returncode is None:
            if not select.select([self._ends], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
            # Nothing: whoever waited for it was killed, too.
            self.returncode = int(os.read(self._ends, 16) or b"-9")
            os.close(self._ends)
        return self.returncode


class Zygotes:
    """Starts children by processes that fork them, one for each of the environments that are read at start."""

    def __init__(self, most: int = MOST) -> None:
        self._started: dict[frozenset[tuple[str, str]], Zygote] = {}
        self._most = most

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[Any], folder: Path | None = None
    ) -> Forked | None:
        """A child of this command, whose standard error goes to `log`; None where there is nothing to fork it from."""
        if command[0] != sys.executable or (command[1].startswith("-") and command[1] not in KNOWN):
            return None
        read = frozenset((k, v) for k, v in environment.items() if k.startswith(READ_AT_START) and k != "PYTHONPATH")
        if read not in self._started and len(self._started) < self._most:
            self._started[read] = Zygote({k: v for k, v in environment.items() if k != "PYTHONPATH"})
        zygote = self._started.get(read)
        return None if zygote is None or zygote.out_of_step else zygote.start(command, environment, log, folder)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, limit_s: float) -> str:
        """What a Python of these arguments prints.

        Raises:
            AssertionError: it fails.
        """
        command = [sys.executable, *arguments]
        with tempfile.TemporaryFile() as log:
            child = self.start(command, environment, log, folder)
            if child is None:
                made = subprocess.run(command, env=environment, cwd=folder, capture_output=True, timeout=limit_s)
                assert made.returncode == 0, made.stderr.decode()[-2000:]
                return made.stdout.decode()
            with child.stdin, child.stdout:
                printed = child.stdout.read().decode()
            status = child.wait(limit_s)
            log.seek(0)
            assert status == 0, log.read().decode()[-2000:]
            return printed

    def close(self) -> None:
        """End them; what they have forked lives on."""
        for zygote in self._started.values():
            zygote.close()


class Zygote:
    """Starts children by a process of this environment that forks them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        ours, its = socket.socketpair()
        command = [sys.executable, "-P", __file__, str(its.fileno())]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()], start_new_session=True)
        its.close()
        self._socket = ours
        self._turn = threading.Lock()  # a pool starts its children from threads of its own
        self.out_of_step = False

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[Any], folder: Path | None = None
    ) -> Forked:
        """A child of this command, whose standard error goes to `log`."""
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        ends, its_end = os.pipe()
        passed = [theirs_in, theirs_out, log.fileno(), its_end]
        request = json.dumps([list(command), dict(environment), str(folder or Path.cwd())]).encode()
        with self._turn:
            if self.out_of_step:
                raise BrokenPipeError("a request to the zygote was interrupted")
            try:
                self._socket.sendall(len(request).to_bytes(4, "big"))
                self._socket.sendall(request)
                socket.send_fds(self._socket, [b"f"], passed)
                pid = int.from_bytes(_exactly(self._socket, 4), "big")
            except BaseException:  # tests interrupt anywhere: the next would take this one's child for its own
                self.out_of_step = True
                raise
        for fd in (theirs_in, theirs_out, its_end):
            os.close(fd)
        return Forked(pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), ends)

    def close(self) -> None:
        """End it; what it has forked lives on."""
        self._socket.close()
        self._process.wait()


def _exactly(source: socket.socket, length: int) -> bytes:
    got = b""
    while len(got) < length:
        chunk = source.recv(length - len(got))
        if not chunk:
            raise EOFError
        got += chunk
    return got


def _serve(asked: socket.socket) -> None:
    """Fork until nobody asks."""
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        try:
            command, environment, folder = json.loads(_exactly(asked, int.from_bytes(_exactly(asked, 4), "big")))
        except EOFError:
            return
        _, fds, _, _ = socket.recv_fds(asked, 1, 4)
        if os.fork() == 0:
            _watch(asked, fds, command, environment, folder)
        for fd in fds:
            os.close(fd)


def _reap(_signal: int, _frame: object) -> None:
    """Wait for the watchers that have ended, which counts their time and their children's as this process's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _watch(
    asked: socket.socket, fds: Sequence[int], command: list[str], environment: dict[str, str], folder: str
) -> None:
    """Fork the child, and say how it ended: a process of its own, because the zygote waits for nobody."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stdin, stdout, stderr, ends = fds
    leads, says_so = os.pipe()
    pid = os.fork()
    if pid == 0:
        asked.close()
        os.close(ends)
        os.close(leads)
        os.setsid()
        os.close(says_so)
        for to, fd in enumerate((stdin, stdout, stderr)):
            os.dup2(fd, to)
            os.close(fd)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        _run(command[1:])
    os.close(says_so)
    os.read(leads, 1)  # who kills it kills its session
    asked.sendall(pid.to_bytes(4, "big"))
    asked.close()
    for fd in (stdin, stdout, stderr):
        os.close(fd)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        os.write(ends, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run(arguments: list[str]) -> None:
    """What the interpreter does with these arguments of its own, to its end."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    safe = arguments[0] == "-P"
    kind, *rest = arguments[safe:]
    if kind in ("-c", "-m"):
        what, *rest = rest
    first = str(Path(kind).parent) if not kind.startswith("-") else os.getcwd() if kind == "-m" else ""
    sys.path[:] = [*([] if safe else [first]), *filter(None, named), *LIBRARIES]
    sys.argv = [kind, *rest]
    status: object = 1
    try:
        if kind == "-c":
            exec(what, {"__name__": "__main__"})
        elif kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(kind, run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    _serve(socket.socket(fileno=int(sys.argv[1])))
