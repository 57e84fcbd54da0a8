"""Progress on stderr: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from prism.events import Count, Event, Recorder, StageFinished, StageStarted, Warned, Within
from prism.report.units import duration, number

SILENCE_S = 30.0
"""A log that has said nothing for so long is told what is going on, seconds."""


class Progress:
    """Shows events until the `with` block ends; in a log, also what takes long.

    Args:
        verbose: also log the start of stages and every count.
        console: where to write; stderr by default.
        silence_s: how long a log says nothing.
    """

    def __init__(self, *, verbose: bool = False, console: Console | None = None, silence_s: float = SILENCE_S) -> None:
        self._console = console or Console(stderr=True, highlight=False, emoji=False)
        self._verbose = verbose
        self._status: Status | None = None
        self._stage = ""
        self._doing = ""
        self._silence_s = silence_s
        self._began = self._spoke = time.monotonic()
        self._ended = threading.Event()
        self.recorder = Recorder(self.listen)  # for stages that the command itself runs
        self.ends: float | None = None  # `time.monotonic()` at which the run is to end; None for no limit
        # Whether something was finished that a run that is interrupted can make something of: a trial was made, or
        # found with others of an earlier run, or what that chose was found.
        self.measured = False
        self._within: dict[int, str] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status(self)
            self._status.start()
        else:
            threading.Thread(target=self._beat, name="prism-progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._status is not None:
            self._status.stop()  # clears the live line, so that an error line stands alone
            self._status = None

    def __rich__(self) -> Text:
        """The live line as it is drawn, some times a second: what is going on, and the time that is left now."""
        return Text(self._doing + self._left() if self._doing else "")

    def listen(self, event: Event) -> None:
        """Show one event."""
        match event:
            case StageStarted(stage):
                self._stage = stage
                self._doing = f"{self._place()}{stage}"
                self._began = time.monotonic()
                if self._verbose:
                    self._line(f"{self._doing} ...")
            case StageFinished(stage, seconds, detail):
                self.measured |= stage in ("stored", "tuning")
                self._stage = self._doing = ""
                self._began = time.monotonic()
                self._line(f"{self._place()}{stage} {duration(seconds)}" + (f"  {detail}" if detail else ""))
            case Within(level, what):
                self._within = {n: w for n, w in self._within.items() if n < level} | ({level: what} if what else {})
            case Count(what, value, total, best):
                self.measured |= best is not None or what == "regions stored"
                of = number(value) if total is None else f"{number(value)}/{number(total)}"
                self._doing = f"{self._place()}{self._stage}: {of} {what}"
                self._doing += "" if best is None else f", the best {duration(best)}"
                if self._verbose:
                    self._line(self._doing)
            case Warned(message):
                self._line(f"warning: {message}", style="yellow")

    def _beat(self) -> None:
        """Say what is going on where nothing has been said for long."""
        while not self._ended.wait(max(0.01, self._spoke + self._silence_s - time.monotonic())):
            now = time.monotonic()
            if now - self._spoke >= self._silence_s:
                self._line(f"{self._doing or 'working'} ... {duration(now - self._began)} so far{self._left()}")

    def _place(self) -> str:
        """What the stage is of."""
        return f"{', '.join(self._within.values())}: " if self._within else ""

    def _left(self) -> str:
        """How much time is left, where there is a limit."""
        return "" if self.ends is None else f", {duration(max(0.0, self.ends - time.monotonic()))} left"

    def _line(self, text: str, style: str = "") -> None:
        self._spoke = time.monotonic()
        self._console.print(Text(f"prism: {text}", style=style), soft_wrap=True)
