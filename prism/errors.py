"""Every error a user can meet: what went wrong, where, why, and what to do next.

An error is data; the command line turns it into one line and an exit code. Raise the narrowest class; give `where`
as the user knows it (a file, an ONNX node's name, a rule's file:line), never as an internal object.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import sympy


class ExitCode(IntEnum):
    """The exit status of the `prism` command for each way it can end."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    UNSUPPORTED = 3
    NO_IMPROVEMENT = 4
    VERIFICATION_FAILED = 5
    INTERRUPTED = 130


LISTED = 6
"""Names that a message lists; of models of a thousand kernels nobody reads all."""


def some(names: Iterable[str], separator: str = ", ", most: int = LISTED) -> str:
    """The first few of the names, and how many more there are."""
    known = list(names)
    if len(known) <= most + 1:
        return separator.join(known)
    return f"{separator.join(known[:most])} and {len(known) - most:,} more"


class PrismError(Exception):
    """Base of all prism errors.

    Args:
        what: what went wrong, as a short clause without a full stop.
        where: the place as the user knows it: a file, a node's name, an option. Empty when there is none.
        why: the cause. Empty when `what` says it all.
        fix: what the user can do next.

    Attributes:
        in_part: whether nothing will do for one operator of several, or for all of them together: fewer may do.
    """

    exit_code: ExitCode = ExitCode.INTERNAL
    in_part: bool = False

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        super().__init__(self.one_line())

    def one_line(self) -> str:
        """The error in one line: `where: what: why; fix`."""
        head = f"{self.where}: {self.reason}" if self.where else self.reason
        text = f"{head}; {self.fix}" if self.fix else head
        return " ".join(text.split())

    @property
    def reason(self) -> str:
        """What went wrong and its cause, with a colon between them."""
        return f"{self.what}: {self.why}" if self.why else self.what

    def at(self, where: str, fix: str = "") -> Self:
        """The same of another place, with what the user can do there."""
        return type(self)(self.what, where=where, why=self.why, fix=fix or self.fix)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.why, self.fix, self.in_part))


def _rebuild(cls: type[PrismError], what: str, where: str, why: str, fix: str, in_part: bool = False) -> PrismError:
    made = cls(what, where=where, why=why, fix=fix)
    made.in_part = in_part
    return made


class UsageError(PrismError):
    """The command or call itself is off: an unknown target, an unwritable output folder, a bad option."""

    exit_code = ExitCode.USAGE


class ModelError(PrismError):
    """The model cannot be read or taken: not ONNX, truncated, external data missing."""

    exit_code = ExitCode.UNSUPPORTED


class UnsupportedError(ModelError):
    """The model is well formed and holds something prism has no translation for: an op, an attribute, a data type."""


class FaultyModelError(UnsupportedError):
    """The model holds what has no meaning: a constant that is no number, an attribute that its operator cannot have.

    No part of such a model is taken, as parts are of one that holds an operator without a translation.
    """


class ShapeError(ModelError):
    """Shapes that do not add up.

    Args:
        what, said: as for PrismError.
        differ: two extents that had to be equal, or whose quotient had to be 1; None where that is not what is wrong.
            Of symbolic ones nothing may say that they are different: see `prism.frontend.sizes.equated`.
        stretch: whether they may differ all the same: one is 1 and broadcast, or others make up for it.
    """

    def __init__(
        self,
        what: str,
        *,
        differ: tuple[int | sympy.Expr, int | sympy.Expr] | None = None,
        stretch: bool = False,
        **said: str,
    ) -> None:
        super().__init__(what, **said)
        self.differ = differ
        self.stretch = stretch


class RuleError(PrismError):
    """A rule file that does not parse, type-check or load."""

    exit_code = ExitCode.USAGE


class IllegalIRError(PrismError):
    """A program, sGraph or tile program that breaks its specification: a bug in prism, never the user's doing."""


class ConformanceError(PrismError):
    """A program does not compute what the function or model that it was read from does: a bug in prism's reader."""


class WorkerError(PrismError):
    """A worker process died, hung past its limit, or answered nonsense."""


class TooDeepError(WorkerError):
    """An expression of the model is nested deeper than can be handled."""

    exit_code = ExitCode.UNSUPPORTED


class BackendError(PrismError):
    """A kernel could not be emitted, compiled or launched."""


class CompilerError(BackendError):
    """A compiler of this machine is missing, broken or hangs: nothing is wrong with prism or the model."""

    exit_code = ExitCode.USAGE


class NoImprovementError(PrismError):
    """Nothing that was proved and checked beats what was given."""

    exit_code = ExitCode.NO_IMPROVEMENT


class VerificationError(PrismError):
    """A kernel computed something other than the oracle, or a record does not match what it records."""

    exit_code = ExitCode.VERIFICATION_FAILED


def other_kind(name: str, given: object, wanted: str) -> UsageError:
    """The error of an argument that is of another kind than is wanted."""
    return UsageError(f"{name} is {given!r}, a {type(given).__name__}", where=name, fix=f"give {wanted}")


def of_one_part(cause: PrismError, where: str) -> PrismError:
    """The error of an operator, or of a program as a whole, after which fewer operators may do (`in_part`).

    Args:
        cause: what was wrong.
        where: the operator, or the program, as the user knows it.
    """
    found = cause.at(where)
    found.in_part = True
    return found


def of_part(error: Exception) -> PrismError:
    """What ended one part of a run, as an error that others may go on after.

    It is raised again where it is not the part's own: of a call, rule files, or a machine without memory or disk space.
    """
    if isinstance(error, UsageError | RuleError | OSError | MemoryError):
        raise error
    if isinstance(error, PrismError):
        return error
    if debugging():
        raise error
    why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return PrismError("internal error, a bug in prism", why=why, fix="report it with the model")


def debugging() -> bool:
    """Whether internal errors are wanted as they are, with their tracebacks: PRISM_DEBUG is set, and not to 0."""
    return os.environ.get("PRISM_DEBUG", "") not in ("", "0")


@contextmanager
def refusing_depth(where: str) -> Iterator[None]:
    """Say that the model is nested too deeply where walking through it takes more stack than Python has.

    Raises:
        TooDeepError: it does.
    """
    try:
        yield
    except RecursionError:
        raise TooDeepError(
            "an expression is nested too deeply",
            where=where,
            why="operators stand within those that read them, some hundreds deep at most",
            fix="split the model, and take its parts one by one",
        ) from None
