"""A process that has imported what children import, and forks them: torch alone takes each 1 s of processor time.

    python -P -m prism.process.fork_server

It has one thread and has computed nothing, so a fork of it is what a fresh interpreter would be after these imports. On
Linux alone: elsewhere libraries are not made for it, and a child is a fresh interpreter everywhere. The same idea as
`multiprocessing.forkserver`, which would import the user's script in each child.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import mmap
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from prism.process.child import Closing, module_command, signal_session
from prism.process.imports import uncollected
from prism.process.memory import allocate_as

PATIENCE_S = 120.0
"""How long imports may take, seconds, before children are started without them."""


class Forked:
    """A child that was forked: the part of `subprocess.Popen` that `Child` asks for.

    `stdin` is where its requests go, `stdout` where its answers come from; from `ends`, a file descriptor, its status
    can be read once it has ended.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], ends: int) -> None:
        self.pid, self.stdin, self.stdout, self._ends = pid, stdin, stdout, ends
        self._lock = threading.Lock()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its status, where it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its status, once it has ended. Raises subprocess.TimeoutExpired: it has not within so many seconds."""
        with self._lock:
            if self.returncode is None:
                if not select.select([self._ends], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
                said = os.read(self._ends, 16)
                os.close(self._ends)
                if not said:  # the server is no more, and nobody would say how the child ends
                    with contextlib.suppress(OSError):
                        os.killpg(self.pid, signal.SIGKILL)
                self.returncode = int(said or b"-9")
            return self.returncode


class ForkServer(Closing):
    """Starts children by a process that forks them, which is started when the first is asked for, or begun before.

    It does nothing while nobody asks, and stands still for nobody: what is timed may ask for a child. What the
    interpreter or a library looks at in the environment when it is loaded its children have from here, but for the
    allocator.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self.closed = False

    def begin(self, modules: Sequence[str]) -> None:
        """Start it, and let it import these, while something else is done."""
        with self._turn:
            asked = self._begun()
            if asked is not None:
                with contextlib.suppress(OSError):  # it ended: the first child is told so
                    asked.sendall(_framed([[], {}, "", list(modules)]))

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: IO[Any],
        folder: Path | None = None,
        *,
        modules: Sequence[str],
    ) -> Forked | None:
        """A child, once what it needs is imported.

        Args:
            command: this Python with a module, a text or a file to run.
            environment: its whole environment.
            log: where its standard error goes.
            folder: where it runs; by default here.
            modules: what is imported before it is forked; those that there are not it misses itself.

        Returns:
            None where nothing can be forked, or no more, or not in time.
        """
        with self._turn:
            asked = self._begun()
            if asked is None or command[0] != sys.executable:
                return None
            theirs_in, stdin = os.pipe()
            stdout, theirs_out = os.pipe()
            ends, its_end = os.pipe()
            request = _framed([list(command), dict(environment), str(folder or Path.cwd()), list(modules)])
            pid = 0
            try:
                asked.sendall(request)
                socket.send_fds(asked, [b"f"], [theirs_in, theirs_out, log.fileno(), its_end])
                pid = int.from_bytes(_exactly(asked, 4), "big")
            except (OSError, EOFError):
                return None
            finally:
                if not pid:  # it ended, or this was interrupted: the next would take this one's child for its own
                    self._end()
                for fd in (theirs_in, theirs_out, its_end, *(() if pid else (stdin, stdout, ends))):
                    os.close(fd)
            return Forked(pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), ends)

    def _begun(self) -> socket.socket | None:
        """Where the process is asked, which is started now if it was not."""
        with self._lock:
            if self._process is None and not self.closed and sys.platform == "linux":
                self._socket, its = socket.socketpair()
                self._socket.settimeout(PATIENCE_S)
                with its:
                    self._process = subprocess.Popen(
                        module_command(__name__),
                        env=self._environment,
                        stdin=its.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        process_group=0,
                    )
            return None if self.closed else self._socket

    def close(self) -> None:
        """End it, also while it is asked; what it has forked is ended when it is looked at."""
        self._end()
        with self._turn:
            if self._socket is not None:
                self._socket.close()

    def _end(self) -> None:
        with self._lock:
            self.closed = True
            if self._process is not None:
                signal_session(self._process, signal.SIGKILL)
                self._process.wait()


def _framed(request: Sequence[Any]) -> bytes:
    """A request, after its length."""
    text = json.dumps(request).encode()
    return len(text).to_bytes(4, "big") + text


def _exactly(source: socket.socket, length: int) -> bytes:
    got = b""
    while len(got) < length:
        chunk = source.recv(length - len(got))
        if not chunk:
            raise EOFError
        got += chunk
    return got


def _serve(asked: socket.socket, libraries: Sequence[str]) -> None:
    """Fork until nobody asks, and say of each child how it ended."""
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ends: dict[int, int] = {}
    while True:
        ready = select.select([asked.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            while ends:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                with contextlib.suppress(OSError), os.fdopen(ends.pop(pid), "wb", buffering=0) as end:
                    end.write(str(os.waitstatus_to_exitcode(status)).encode())
        if asked.fileno() not in ready:
            continue
        try:
            command, environment, folder, modules = json.loads(
                _exactly(asked, int.from_bytes(_exactly(asked, 4), "big"))
            )
        except (EOFError, OSError):
            return
        streams: list[int] = []
        if command:  # else it is asked for no child
            _, (*streams, its_end), _, _ = socket.recv_fds(asked, 1, 4)
        with uncollected():
            for name in modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
        if not command:
            continue
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            asked.close()
            for fd in (woken, wakes, its_end, *ends.values()):
                os.close(fd)
            _become(command, environment, folder, streams, libraries)
        with contextlib.suppress(OSError):  # who kills it kills its group, and it may have ended
            os.setpgid(pid, pid)
        for fd in streams:
            os.close(fd)
        ends[pid] = its_end
        asked.sendall(pid.to_bytes(4, "big"))


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    streams: Sequence[int],
    libraries: Sequence[str],
) -> None:
    """What a fresh interpreter does with a command, to its end."""
    for to, fd in enumerate(streams):
        os.dup2(fd, to)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    allocate_as(environment)
    # Addresses differ from child to child, as of fresh processes: what is timed may hang on them.
    _apart = mmap.mmap(-1, mmap.PAGESIZE * (1 + int.from_bytes(os.urandom(2), "big")))
    os.chdir(folder)
    _, *arguments = command
    safe = arguments[0] == "-P"
    kind, *rest = arguments[safe:]
    what, *rest = rest if kind in ("-c", "-m") else (kind, *rest)
    first = {"-c": "", "-m": os.getcwd()}.get(kind, str(Path(kind).parent))
    sys.path[:] = [*([] if safe else [first]), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path += libraries
    sys.argv = [kind, *rest]
    status: object = 1
    try:
        if kind == "-c":
            exec(what, {"__name__": "__main__"})
        elif kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(what, run_name="__main__")
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


def _main() -> None:
    named = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    libraries = [place for place in sys.path if place not in named]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = socket.socket(fileno=os.dup(0))
    _serve(asked, libraries)


if __name__ == "__main__":
    _main()
