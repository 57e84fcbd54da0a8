"""The `prism` command. Light to import: each command loads what it needs when it runs."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from prism.cli.interrupts import interrupted_once

__all__ = ["main", "script"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `prism.cli.app.main`, which is loaded by the first call."""
    from prism.cli import app

    return app.main(argv)


def script() -> NoReturn:
    """The command as a process; what interrupts it while it ends changes nothing."""
    with interrupted_once():
        try:
            code = main()
        except KeyboardInterrupt:  # before the command could begin
            print("prism: error: interrupted", file=sys.stderr, flush=True)
            code = 130
        if code == 130:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            # Where Ctrl-C came in an `exec`, Python 3.11 dies of SIGINT at its end, caught or not, until the next one.
            exec("")
    # The collector would go through all that was imported once more: a seventh of a short command's processor time.
    gc.freeze()
    sys.exit(code)
