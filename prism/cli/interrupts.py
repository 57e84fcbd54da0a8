"""Ctrl-C and SIGTERM, from the first import on: one line, the exit code 130, and all that was begun is tidied up."""

from __future__ import annotations

import math
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

UNWINDING_S = 10.0
"""What tidying up may take, seconds, before the next signal interrupts it."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: whoever sends it does not wait for long."""


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Let SIGTERM unwind as Ctrl-C does, so that temporary files go and workers are ended.

    A second signal while that is under way would leave the rest of it undone: it changes nothing. Where a library has
    swallowed the first, the second counts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    since = -math.inf

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        nonlocal since
        now = time.monotonic()
        if not _unwinding() or now - since > UNWINDING_S:
            since = now
            raise TerminatedError if signum == signal.SIGTERM else KeyboardInterrupt

    # Where Ctrl-C is another's to handle, or is ignored, as of a job in the background, it stays so.
    numbers = [signal.SIGTERM, *[signal.SIGINT] * (signal.getsignal(signal.SIGINT) is signal.default_int_handler)]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)


def is_kept(error: KeyboardInterrupt) -> bool:
    """Whether what the run finished that this interrupted is kept."""
    from prism.folders import NOT_KEPT

    return NOT_KEPT not in getattr(error, "__notes__", ())


def to_be_closed(error: KeyboardInterrupt) -> bool:
    """Whether the run that this interrupted is to write what it finished."""
    return is_kept(error) and not isinstance(error, TerminatedError)


def to_go_on(argv: Sequence[str] | None = None, kept: bool = True) -> list[str]:
    """What to say of a command that was interrupted: the line that goes on with it, of one that keeps what it finishes.

    Args:
        argv: the arguments; those of the process by default.
        kept: whether what it finished is.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given[:1] != ["optimize"]:
        return []
    as_module = argv is None and Path(sys.argv[0]).name == "__main__.py"
    command = [sys.executable, "-m", "prism"] if as_module else ["prism"]
    what = "what was finished is kept; to go on" if kept else "to begin again"
    return [f"prism: {what}: {shlex.join([*command, *given])}"]


def _unwinding() -> bool:
    """Whether a KeyboardInterrupt is what an `except`, a `finally` or a `with` handles now."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False
