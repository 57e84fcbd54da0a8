"""What a run is asked for, besides its program: said once, and handed on to every region, cell and island."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism.api.region_search import SearchBudget
from prism.errors import UsageError
from prism.events import Listener
from prism.process.deadline import NEVER, Deadline
from prism.report.folder import check_writable


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `prism.optimize` of these names, and `time`: when the run ends."""

    target: str | None = None
    budget: SearchBudget | None = None
    trials: int = 12
    seed: int = 0
    shapes: Mapping[str, int] = field(default_factory=dict)
    listener: Listener | None = None
    rules: Sequence[Path | str] = ()
    only_better: bool = True
    baselines: Sequence[str] | None = None
    anew: bool = False
    time: Deadline = NEVER
    inputs: Mapping[str, Any] | None = None

    def folder(self, out: Path | str | None) -> Path | None:
        """The output folder, which can be written; None when none is asked for.

        Raises:
            UsageError: it cannot be written, or what goes there may be slower than what was given.
        """
        if out is not None and not self.only_better:
            raise UsageError("kernels that may be slower are not written", where="only_better", fix="leave out away")
        return None if out is None else check_writable(Path(out))


def check_dimensions(asked: Iterable[str], known: Collection[str], values: Collection[str] = ()) -> None:
    """Make sure that a model has symbolic dimensions of these names, and that none of them has a value as well.

    Raises:
        UsageError: it has no such one, or two things are asked of one.
    """
    for name in asked:
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            raise UsageError(f"the model has no symbolic dimension {name}", where="--shape", fix=f"it has: {has}")
        if name in values:
            raise UsageError(f"{name} has a range and a value", where="--shape", fix="give one of them")
