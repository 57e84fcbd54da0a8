"""What a run is asked for, besides its program: stated once, for every verb that takes it by keywords.

`prism.optimize(program, trials=20)` is declared as a function of a program and `ProgramOptions`; `by_keywords` gives it
the options' names, types, defaults and descriptions as its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from numbers import Integral
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from prism.api.region_search import SearchBudget
from prism.api.time_limit import deadline
from prism.errors import UsageError, other_kind
from prism.events import Listener
from prism.instantiate.confirm import NAMES as BASELINES
from prism.platforms.begun import Begun
from prism.process.deadline import Deadline
from prism.program.assumptions import Stated
from prism.report.folder import check_writable

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
Asked = TypeVar("Asked")
R = TypeVar("R")

TAKEN = "\n        options: each by its name."
"""What a function's description says of its options, in whose place theirs come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every run takes.

    Attributes:
        target: `cuda` or `cpu` (timed on the GPU or the CPU that is here), or `sm_80`, `sm_89`, `sm_90`, `sm_100`
            (compiled for, times estimated). By default `cuda` where a GPU is found, else `cpu`; `sm_90` where there is
            no C++ compiler either.
        out: the output folder, made whole or not at all; none is written when None.
        budget: bounds of the search.
        trials: how many configurations are compiled (and timed).
        seed: of the study and the check's draws.
        shapes: values of symbolic dimensions to tune at; the emitted kernels take all values.
        listener: called with progress events.
        rules: rule files of your own, beside those that ship with prism; see docs/rules.md.
        baselines: what kernels are timed against on a device that is here, of `eager`, `compile` and `onnxruntime`:
            the best of those that are installed counts. By default all, but `compile` where onnxruntime runs the file.
        anew: whether everything is timed again; by default what an earlier run of the same program stored is used.
        seconds: after which the run ends, with the best that is proved, checked and measured by then; a run that is
            given as many, or fewer, comes to the same at once, and one that is given more goes on. Only the main
            thread's runs can be ended at any point.
        inputs: arrays or tensors by the inputs' names: the kernels are checked on these, too, and symbolic dimensions
            that `shapes` does not name are tuned at their lengths.
        begun: children that were begun before this was called, as the command does; by default they begin when they are
            needed.
    """

    target: str | None = None
    out: Path | str | None = None
    budget: SearchBudget | None = None
    trials: int = 12
    seed: int = 0
    shapes: Mapping[str, int] | None = None
    listener: Listener | None = None
    rules: Sequence[Path | str] = ()
    baselines: Sequence[str] | None = None
    anew: bool = False
    seconds: float | Deadline | None = None
    inputs: Mapping[str, Any] | None = None
    begun: Begun | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.budget, SearchBudget | None):
            raise other_kind("budget", self.budget, "a SearchBudget, which bounds the search; seconds=60 ends a run")
        numbers: tuple[tuple[str, object, int, str], ...] = (
            ("trials", self.trials, 1, "without a trial there is nothing to choose from"),
            ("seed", self.seed, 0, "generators of random numbers take no negative seed"),
        )
        for name, number, least, why in numbers:
            if not isinstance(number, Integral):
                raise other_kind(name, number, "a whole number")
            if number < least:
                raise UsageError(f"{name} is {number}", where=name, why=why, fix=f"give {least} or more")
        if isinstance(self.baselines, str):
            raise other_kind("baselines", self.baselines, f"several names: [{self.baselines!r}]")
        for name in self.baselines or ():
            if name not in BASELINES:
                raise UsageError(
                    f"no baseline is called {name}", where="baselines", fix=f"there are {', '.join(BASELINES)}"
                )
        # They are counted from now, whatever is replaced later.
        object.__setattr__(self, "seconds", deadline(self.seconds))

    @property
    def time(self) -> Deadline:
        """When the run ends."""
        return Deadline.after(self.seconds)

    @property
    def at(self) -> Mapping[str, int]:
        """The values of symbolic dimensions to tune at, but for those that are nothing."""
        return {name: n for name, n in (self.shapes or {}).items() if n}

    @property
    def empty(self) -> tuple[str, ...]:
        """The symbolic dimensions that have no elements, which a model is read for."""
        return tuple(name for name, n in (self.shapes or {}).items() if not n)

    def folder(self) -> Path | None:
        """The output folder, which can be written; None when none is asked for.

        Raises:
            UsageError: it cannot be written.
        """
        return None if self.out is None else check_writable(Path(self.out))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions(Options):
    """What a run of a program takes.

    Attributes:
        only_better: whether kernels that do not beat what was given are an error; with False, which is for benchmarks,
            they are returned, and no folder may be asked for.
        assume: what is so of the inputs, as for `trace`, besides what is stated there: the kernels are for such inputs
            alone. Their function checks its arguments where it is called with check_assumptions=True.
    """

    only_better: bool = True
    assume: Stated = ()

    def folder(self) -> Path | None:
        """The output folder, which can be written; None when none is asked for.

        Raises:
            UsageError: it cannot be written, or what goes there may be slower than what was given.
        """
        if self.out is not None and not self.only_better:
            raise UsageError("kernels that may be slower are not written", where="only_better", fix="leave out away")
        return Options.folder(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangedOptions(ProgramOptions):
    """What a run of a program over ranges of lengths takes.

    Attributes:
        original: an ONNX model that goes into the folder and runs, in onnxruntime, at lengths outside of the ranges; by
            default these are refused. Within them the program's own file runs where no kernels are faster.
    """

    original: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(Options):
    """What a run of a model in parts takes, for every island: it is on a CPU, and compared with onnxruntime alone.

    Attributes:
        check: compare every island's program with its nodes.
    """

    check: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRangesOptions(ModelOptions):
    """What a run of a model in parts over ranges of lengths takes; not `inputs`, which are of one length.

    Attributes:
        original: whether the model that was given runs at other lengths; by default these are refused.
    """

    original: bool = False


class by_keywords(Generic[P, Asked]):
    """Makes of a function whose last argument is its options one that takes each of them by its name."""

    def __init__(self, options: Callable[P, Asked]) -> None:
        self.options = options

    @overload
    def __call__(self, verb: Callable[[A, Asked], R]) -> Callable[Concatenate[A, P], R]: ...

    @overload
    def __call__(self, verb: Callable[[A, B, Asked], R]) -> Callable[Concatenate[A, B, P], R]: ...

    def __call__(self, verb: Callable[..., R]) -> Callable[..., R]:
        """The function of the same name that takes options by keywords."""
        *own, _ = inspect.signature(verb).parameters.values()
        taken = inspect.signature(self.options).parameters.values()
        signature = inspect.signature(verb).replace(parameters=[*own, *taken])

        @wraps(verb)
        def by_name(*args: Any, **given: Any) -> R:
            try:
                found = signature.bind(*args, **given).arguments
            except TypeError as error:
                raise TypeError(f"{verb.__name__}() {error}") from None
            return verb(*(found.pop(p.name) for p in own), self.options(**found))  # type: ignore[call-arg]

        by_name.__signature__ = signature  # type: ignore[attr-defined]
        by_name.__doc__ = (verb.__doc__ or "").replace(TAKEN, _described(self.options))
        return by_name


def _described(options: object) -> str:
    """The descriptions of a class's attributes, those that it inherits first."""
    docs = (kind.__doc__ or "" for kind in reversed(inspect.getmro(options)[:-1]))  # type: ignore[arg-type]
    return "".join(doc.partition("Attributes:")[2].rstrip() for doc in docs)


def check_ranges(ranges: Mapping[str, tuple[int, int]], known: Collection[str], values: Collection[str] = ()) -> None:
    """Make sure that ranges are pairs of lengths, of symbolic dimensions that a model has; see `check_dimensions`.

    Raises:
        UsageError: one is none; or as for `check_dimensions`.
    """
    if not ranges:
        raise UsageError("no ranges", where="ranges", fix='name one, as {"seq": (1, 4096)}')
    given: Mapping[str, object] = ranges
    for name, held in given.items():
        lengths = list(held) if isinstance(held, Iterable) else []
        if [isinstance(n, Integral) for n in lengths] != [True, True]:
            raise other_kind(f"the range of {name}", held, f'the least and the largest length: {{"{name}": (1, 4096)}}')
    check_dimensions(ranges, known, values)


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
