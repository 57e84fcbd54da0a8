"""The `prism` command. Light to import: each command loads what it needs when it runs."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from prism.cli.interrupts import interrupted_once, to_go_on
from prism.process.memory import KEEPING, allocate_as

__all__ = ["main", "script"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `prism.cli.app.main`, which is loaded by the first call."""
    from prism.cli import app

    return app.main(argv)


def script() -> NoReturn:
    """The command as a process; what interrupts it while it ends changes nothing."""
    allocate_as(KEEPING)
    with interrupted_once():
        try:
            code = main()
        except KeyboardInterrupt:  # before the command could begin
            print(*to_go_on(), "prism: error: interrupted", sep="\n", file=sys.stderr, flush=True)
            code = 130
        if code == 130:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            # Where Ctrl-C came in an `exec`, Python 3.11 dies of SIGINT at its end, caught or not, until the next one.
            exec("")
    # The collector would go through all that was imported once more: a seventh of a short command's processor time.
    gc.freeze()
    if any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread()):
        # Inputs that nobody needs any more are still drawn, which Python would wait for, a whole `import torch` long.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
