"""Children that the command begins before it imports what it runs, which takes nearly a second on one core."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from prism import __version__
from prism.egraph.worker import Worker
from prism.errors import UsageError
from prism.folders import cache_root
from prism.platforms.cpu_children import COMPARES, fork_server
from prism.process.child import Closing
from prism.process.fork_server import ForkServer
from prism.process.gpu_driver import has_driver

ENDED = "ended"
"""What the folder of the cache is called that holds a mark for each model that a run ended for."""


class Begun(Closing):
    """What was begun; nothing, by default.

    `fp` is of the prover that was, which has the rules that ship with prism; `forks` forks a CPU's children.
    """

    def __init__(self, fp: str = "", prover: Worker | None = None, forks: ForkServer | None = None) -> None:
        self.forks = forks
        self._fp = fp
        self._provers = [prover] if prover is not None else []

    def prover(self, rules: Sequence[Path] | None, fp: str) -> Worker:
        """The prover that was begun, for the first that asks for one like it; else another, which is not begun.

        The rules and the floating-point class are as for `Worker`.
        """
        if rules is None and fp == self._fp and self._provers:
            return self._provers.pop()
        return Worker(rules, fp=fp, at_once=False)

    def close(self) -> None:
        """End what nobody asked for, and what was asked for it."""
        for child in (self.forks, *self._provers):
            if child is not None:
                child.close()


def has_ended(model: Path, asked: str) -> bool:
    """Whether a run ended for the file as it is now that was asked the same: what it found is stored, most likely."""
    mark = _mark(model, asked)
    return mark is not None and mark.exists()


def note_ended(model: Path, asked: str) -> None:
    """Remember that such a run ended."""
    mark = _mark(model, asked)
    if mark is not None:
        with suppress(OSError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _mark(model: Path, asked: str) -> Path | None:
    """The file that says so; None where there is no cache, or no model."""
    with suppress(OSError, UsageError):
        now = model.stat()
        said = f"{__version__} {model.resolve()} {now.st_size} {now.st_mtime_ns} {asked}"
        return cache_root() / f"{ENDED}-1" / hashlib.sha256(said.encode()).hexdigest()
    return None


def begin(target: str | None, fp: str) -> Begun:
    """Begin what a run for this target, with the rules that ship with prism, will ask for.

    The target is as for `platform_of`, the floating-point class as for `Worker`.
    """
    forks = fork_server() if target == "cpu" or (target is None and not has_driver()) else None
    begun = Begun(fp, Worker(fp=fp), forks)
    if forks is not None:
        forks.begin(COMPARES)
    return begun
