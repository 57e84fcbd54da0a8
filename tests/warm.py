"""Children that outlive what started them: the next that would start one alike goes on with it.

Starting one imports torch, and Triton for some, or egglog and the rules, which takes 1 to 2 s; a run of `optimize`
starts up to six. Where one has to be started after all, it is forked by a process that has imported torch. Only for
tests in which children are not what is tested: what one run does to its child, the next one finds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from io import BufferedRandom
from typing import TypeAlias

from zygote import Zygotes

from prism.process.child import Child, Fork, Process

Alike: TypeAlias = tuple[tuple[str, ...], frozenset[tuple[str, str]]]

MOST = 10
"""Idle children that are kept; first goes one that nobody took up a second time, and then who waited longest."""

# What no test looks at in a child: pytest's own, and where caches lie, which tests move to see their own process's.
INDIFFERENT = (
    "PYTEST_CURRENT_TEST",
    "PRISM_CACHE_DIR",
    "PRISM_CPP_CACHE",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
)

# The modules of children that compile C++, whose compiler they are told by CXX.
COMPILES = ("prism.platforms.cpu_worker", "cpu")


class ForkedChild(Child):
    """A child that is forked where it can be."""

    zygotes: Zygotes | None = None

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, fork: Fork | None = None
    ) -> None:
        super().__init__(command, environment, fork if self.zygotes is None else self.zygotes.start)


class WarmChild(ForkedChild):
    """A child that is left to the next of the same command and environment when it is closed and has no work."""

    idle: list[tuple[Alike, Process, BufferedRandom, bool]] = []  # noqa: RUF012 - that they are shared is the point
    taking = threading.RLock()

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, fork: Fork | None = None
    ) -> None:
        super().__init__(command, environment, fork)
        given = os.environ if environment is None else environment
        compiles = any(part in COMPILES for part in command)
        self._alike = (
            tuple(command),
            frozenset((k, v) for k, v in given.items() if k not in INDIFFERENT and (compiles or k != "CXX")),
        )
        self._unanswered = 0
        self._again = self._stopped = False

    def start(self) -> bool:
        """As a child's, but for the process, which may be one that was left."""
        if self.alive:
            return False
        with self.taking:  # children are started, and closed, in several threads
            for place, (alike, process, log, _) in enumerate(self.idle):
                if alike == self._alike and process.poll() is None and not self.closed:
                    del self.idle[place]
                    self._log.close()
                    self._process, self._log, self._rest = process, log, b""
                    self._again = True
                    return False
        self._unanswered = 0
        return super().start()

    def feed(self, line: str) -> None:
        with self.taking:
            if self._stopped:
                raise BrokenPipeError("it was interrupted before it was asked")
            self._unanswered += 1
        super().feed(line)

    def line(self, end: float) -> bytes | None:
        answer = super().line(end)
        if answer:
            self._unanswered -= 1
        return answer

    def interrupt(self, *, last: bool = False) -> None:
        """Kill it if it is busy; the last time, let it be asked no more: who interrupts it then closes it next."""
        with self.taking:
            self._stopped |= last
            busy = bool(self._unanswered)
        if busy:
            super().interrupt(last=last)

    def close(self) -> None:
        """Leave the process to others, unless it is busy: then it is killed, as a child is."""
        if self._closed:
            return
        if self._process is not None and self.alive and not self._unanswered:
            with self.taking:
                self.idle.append((self._alike, self._process, self._log, self._again))
                self._process, self._closed = None, True
                while len(self.idle) > MOST:
                    self.end_one()
        else:
            super().close()

    @classmethod
    def end_one(cls) -> None:
        """End one process."""
        first = next((place for place, (*_, again) in enumerate(cls.idle) if not again), 0)
        _, process, log, _ = cls.idle.pop(first)
        ending = Child([])
        ending._log.close()
        ending._process, ending._log = process, log
        ending.close()
