"""Children that the command begins before it imports what it runs, which takes nearly a second on one core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prism.egraph.worker import Worker
from prism.platforms.cpu_children import COMPARES, fork_server
from prism.process.child import Closing
from prism.process.fork_server import ForkServer
from prism.process.gpu_driver import has_driver


class Begun(Closing):
    """What was begun; nothing, by default.

    Args:
        fp: of the prover that was.
        prover: that one, with the rules that ship with prism.
        forks: what forks a CPU's children.
    """

    def __init__(self, fp: str = "", prover: Worker | None = None, forks: ForkServer | None = None) -> None:
        self.forks = forks
        self._fp = fp
        self._provers = [prover] if prover is not None else []

    def prover(self, rules: Sequence[Path] | None, fp: str) -> Worker:
        """The prover that was begun, for the first that asks for one like it; else another, which is not begun.

        Args:
            rules: see Worker.
            fp: see Worker.
        """
        if rules is None and fp == self._fp and self._provers:
            return self._provers.pop()
        return Worker(rules, fp=fp, at_once=False)

    def close(self) -> None:
        """End what nobody asked for, and what was asked for it."""
        for child in (self.forks, *self._provers):
            if child is not None:
                child.close()


def begin(target: str | None, fp: str) -> Begun:
    """Begin what a run for this target, with the rules that ship with prism, will ask for.

    Args:
        target: as of `platform_of`.
        fp: see Worker.
    """
    forks = fork_server() if target == "cpu" or (target is None and not has_driver()) else None
    begun = Begun(fp, Worker(fp=fp), forks)
    if forks is not None:
        forks.begin(COMPARES)
    return begun
