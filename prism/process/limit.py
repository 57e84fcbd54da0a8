"""A limit on the processor time of this thread's own Python code, for what reads things that were made by others."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
