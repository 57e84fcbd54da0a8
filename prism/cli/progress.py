"""Progress on stderr: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from prism.events import Count, Event, Recorder, StageFinished, StageStarted, Warned
from prism.report.units import duration, number


class Progress:
    """Shows events until the `with` block ends.

    Args:
        verbose: also log the start of stages and every count.
        console: where to write; stderr by default.

    Attributes:
        recorder: for stages that the command itself runs.
    """

    def __init__(self, *, verbose: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._verbose = verbose
        self._status: Status | None = None
        self._stage = ""
        self.recorder = Recorder(self.listen)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status(Text(""))
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()  # clears the live line, so that an error line stands alone
            self._status = None

    def listen(self, event: Event) -> None:
        """Show one event."""
        match event:
            case StageStarted(stage):
                self._stage = stage
                self._live(stage)
                if self._verbose:
                    self._line(f"{stage} ...")
            case StageFinished(stage, seconds, detail):
                self._live("")
                self._line(f"{stage} {duration(seconds)}" + (f"  {detail}" if detail else ""))
            case Count(what, value, total):
                of = number(value) if total is None else f"{number(value)}/{number(total)}"
                self._live(f"{self._stage}: {of} {what}")
                if self._verbose:
                    self._line(f"{self._stage}: {of} {what}")
            case Warned(message):
                self._line(f"warning: {message}", style="yellow")

    def _live(self, text: str) -> None:
        if self._status is not None:
            self._status.update(Text(text))

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(f"prism: {text}", style=style), soft_wrap=True)
