"""A time at which what is under way ends, whatever it is: as Ctrl-C ends it, so all that was begun is tidied up.

And a limit on processor time, for what reads things that were made by others (`processor_limit`).
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

AGAIN_S = 0.02
"""After what time it rings again where something is being imported, or is not able to end, seconds."""
SOONEST_S = 1e-3
"""A timer that is set to nothing never rings."""


class OutOfTimeError(KeyboardInterrupt):
    """The time that was given is over. Whoever tidies up after a Ctrl-C does so after this, too."""


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment; a sooner one is less."""

    end: float = math.inf  # by `time.monotonic()`; infinite for never
    # The seconds that the whole run was given, of which this may be the end of a part; infinite for never.
    given: float = math.inf
    closing: bool = False  # whether nothing is begun any more: what earlier runs finished is put together by then

    @classmethod
    def after(cls, seconds: float | Deadline | None) -> Deadline:
        """So many seconds from now; never for None; a moment is taken as it is."""
        if isinstance(seconds, Deadline):
            return seconds
        return cls() if seconds is None else cls(time.monotonic() + seconds, seconds)

    @classmethod
    def to_close(cls, seconds: float) -> Deadline:
        """So many seconds from now, to put together what is finished. What comes of it is for no other run."""
        return cls(time.monotonic() + seconds, 0.0, closing=True)

    @property
    def finite(self) -> bool:
        """Whether there is an end."""
        return math.isfinite(self.end)

    @property
    def left(self) -> float:
        """Seconds from now, not less than none; infinite for never."""
        return max(0.0, self.end - time.monotonic())

    def part(self, share: float) -> Deadline:
        """The moment when this share of what is left is over."""
        return replace(self, end=time.monotonic() + share * self.left) if self.finite else self

    def moved(self, seconds: float) -> Deadline:
        """The moment so many seconds later, or before."""
        return replace(self, end=self.end + seconds)

    @contextmanager
    def limited(self, able: Callable[[], bool] = lambda: True) -> Iterator[Limit]:
        """End what is done within at that moment, or as soon after it as it is `able` to end.

        Only the main thread can be interrupted: in others a block that has begun goes on to its end. Of blocks within
        each other, each raises the error for itself alone: who expects it of an inner one does not get an outer one's.

        Raises:
            OutOfTimeError: the moment came, or had come before.
        """
        limit = Limit()
        if not self.finite:
            yield limit
            return
        if self.left <= 0.0 and able():
            raise OutOfTimeError
        if threading.current_thread() is not threading.main_thread():
            yield limit
            return
        outer = signal.getitimer(signal.ITIMER_REAL)[0]
        if outer and outer <= self.left:
            yield limit  # what is around it ends sooner
            return

        def ring(signum: int, frame: FrameType | None) -> None:
            if limit.over:  # once: a second would interrupt what tidies up
                return
            if _importing(frame) or _at_border(frame) or not able():  # half a module would stay, or nobody catch it
                if outer and time.monotonic() - begun >= outer and callable(before):
                    before(signum, frame)
                else:
                    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
                return
            limit.over = limit.rung = True
            raise _RungError(limit)

        def ignored(seen: Any) -> None:
            """Ring again where it rang in what may not raise, as a callback of the collector of garbage."""
            if not _rung_by(seen.exc_value, limit):
                hook(seen)
            elif limit.rung:
                limit.over = limit.rung = False
                signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

        begun = time.monotonic()
        before = signal.signal(signal.SIGALRM, ring)
        hook, sys.unraisablehook = sys.unraisablehook, ignored
        signal.setitimer(signal.ITIMER_REAL, max(self.left, SOONEST_S))
        try:
            try:
                yield limit
            finally:
                limit.over = True
        except KeyboardInterrupt as error:
            if not _rung_by(error, limit):
                raise
            raise OutOfTimeError from None
        except Exception:
            # What it interrupted may say so in its own way, as `ast.parse` by a SystemError.
            if not limit.rung:
                raise
            raise OutOfTimeError from None
        finally:
            sys.unraisablehook = hook
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            if outer:
                signal.setitimer(signal.ITIMER_REAL, max(outer - (time.monotonic() - begun), SOONEST_S))


NEVER = Deadline()


class Limit:
    """A block that is to end at a moment.

    Attributes:
        over: whether it has ended.
        rung: whether the moment came before.
    """

    __slots__ = ("over", "rung")

    def __init__(self) -> None:
        self.over = self.rung = False


class _RungError(KeyboardInterrupt):
    """The moment of a block came."""

    def __init__(self, limit: Limit) -> None:
        super().__init__()
        self.limit = limit


def _rung_by(error: BaseException | None, limit: Limit) -> bool:
    """Whether it is, or was raised of, the moment of that block."""
    while error is not None:
        if isinstance(error, _RungError) and error.limit is limit:
            return True
        error = error.__cause__ or error.__context__
    return False


_BORDER = frozenset({__file__, contextmanager.__code__.co_filename})


def _at_border(frame: FrameType | None) -> bool:
    """Whether a block is being entered or left: what is raised there is within no block, or within another one."""
    return frame is not None and frame.f_code.co_filename in _BORDER


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: one that is interrupted may leave others that are half made."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def stat_fields(pid: int) -> list[str]:
    """What the system says of a process after its name, which may hold spaces: its state, and numbers.

    Raises:
        OSError: there is none, or the system does not tell.
    """
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def since_start() -> float:
    """Seconds since this process began, which is before the first line of Python; 0 where the system does not tell."""
    try:
        began = int(stat_fields(os.getpid())[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


_LOOK_S = 0.2


class _OutOfTime(Exception):
    """Raised in a thread from outside."""


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """End what is done within after so many seconds of processor time, of the whole process.

    Python code is ended, and not what a library does in one call. Waiting takes no processor time.

    Raises:
        TimeoutError: it took longer.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc
    end = time.process_time() + seconds
    done, asked = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_S):
            # Again and again: what is within may catch it.
            if time.process_time() >= end:
                asked.set()
                raised(thread, ctypes.py_object(_OutOfTime))

    watcher = threading.Thread(target=watch, name="processor limit", daemon=True)
    watcher.start()
    late = False
    try:
        yield
    except _OutOfTime:
        late = True
    finally:
        while watcher.is_alive():
            with suppress(_OutOfTime):
                done.set()
                watcher.join()
        if asked.is_set():
            # One may have been raised and not seen. Another takes its place, and is waited for: if it were taken back,
            # CPython 3.11 would go on looking for it, slower ever after, and for ever where a profiler is set.
            with suppress(_OutOfTime):
                raised(thread, ctypes.py_object(_OutOfTime))
                while True:
                    pass
    if late:
        raise TimeoutError(f"it takes more than {seconds:g} s of processor time")
