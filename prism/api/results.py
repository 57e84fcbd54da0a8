"""What earlier runs found, kept by all that it depends on: searches, and what was chosen of them.

A search with its proofs depends on the program, the device that it is for, the search's bounds, the rules, prism's own
code and the packages' versions; a choice (trials, checks, confirmation) on the machine, too, and on what it was timed
against. Each is kept under a hash of all of that, so an entry is never stale: what changes has another name. Entries
are written whole or not at all, so processes may share them; one that cannot be read is as good as none.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from pickle import PicklingError
from typing import Any, TypeVar

import numpy as np

import prism
from prism.api import loading
from prism.api.records import Choice, Request
from prism.api.region_search import SearchBudget, SearchResult
from prism.api.time_limit import FINISHED
from prism.backends.protocol import ModuleSource
from prism.cost.model import CostModel
from prism.egraph.derivation.certificate import Derivation
from prism.egraph.rules import rule_files
from prism.errors import NoImprovementError, PrismError
from prism.events import CheckSummary
from prism.folders import cache_root
from prism.generate.cells import Cell, plain, predicate_of
from prism.instantiate.cache import Cache, digest, dumps, loads, version_of
from prism.instantiate.confirm import now_text
from prism.instantiate.gate.check import CheckReport
from prism.instantiate.gate.plan import Case
from prism.instantiate.lock import program_hash, versions
from prism.platforms.platform import Platform
from prism.process.files import digest_of_file
from prism.program.assumptions import Stated
from prism.program.nodes import Conformance, Program
from prism.program.returned import Returned
from prism.sgraph import show
from prism.sgraph.nodes import SGraph

SEARCHES, CHOICES, CERTIFICATES, COMPARISONS = "searches", "choices", "certificates", "comparisons"
MODULES = "modules"
"""Kinds of entries."""
MUCH_MORE = 2.0
"""Of so many times the time in which a run came to nothing, a part is for making better what it finished."""
_ELSEWHERE = b"location"
"""What the bytes of a model hold that keeps data in other files."""
_CODE = (".py", ".egg", ".hpp", ".cpp", ".h")
"""Files of the package that decide what a run finds."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """That nothing of what was found is better, as the error said it."""

    what: str
    where: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What a search and all that followed came to."""

    date: str  # when, UTC
    search: SearchResult | None  # what was proved; of a program of several regions, of all of them
    choice: _Chosen | None  # what was chosen of it, but for the cost model, which is made again
    refusal: Refusal | None  # why nothing was; one of the two
    warnings: tuple[str, ...]  # what the run warned of on the way
    # The most seconds for which that is what a run comes to; infinite where it does not hang on them.
    given: float = math.inf

    def error(self) -> NoImprovementError | None:
        """The refusal as it was raised."""
        r = self.refusal
        return None if r is None else NoImprovementError(r.what, where=r.where, why=r.why, fix=r.fix)

    def found(self, model: Callable[[SGraph], CostModel]) -> tuple[SearchResult, Choice]:
        """The search and the choice, by the cost model of an sGraph."""
        assert self.search is not None
        assert self.choice is not None
        c = self.choice.by(model)
        confirmation = None if c.confirmation is None else replace(c.confirmation, stored=True)
        return self.search, replace(c, confirmation=confirmation)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A choice without its cost model: that one holds compiled expressions, which stay in their process."""

    fields: tuple[object, ...]

    def by(self, model: Callable[[SGraph], CostModel]) -> Choice:
        """The choice, by the cost model of an sGraph."""
        proved, best, tuned, checked, *rest = self.fields
        return Choice(proved, best, model(proved.sgraph), tuned, checked, *rest)  # type: ignore[arg-type, attr-defined]


@dataclass(frozen=True, slots=True)
class _Timely:
    """What a run came to: a search that was cut off, a certificate, a check, or cells; `given` as in `Kept`."""

    value: Any
    given: float


@dataclass(frozen=True, slots=True)
class _Text:
    """A text that is kept."""

    text: str


def _without_model(c: Choice) -> _Chosen:
    rest = (c.baseline_seconds, c.baseline, c.opinion, c.confirmation, dict(c.missing))
    return _Chosen((c.proved, c.best, c.tuned, c.checked, *rest))


@dataclass(frozen=True, slots=True)
class Results:
    """The results of earlier runs of what a request asks for."""

    root: Path | None  # the cache folder; nothing is kept when None
    basis: str  # what all entries depend on
    machine: str  # what choices depend on besides
    anew: bool  # whether choices are made again, as everything is timed again; searches are not
    # Whether what was finished is put together for a run that was interrupted: what no earlier run searched is not
    # searched now.
    closing: bool = False

    def search(self, program: Program, budget: SearchBudget, given: float = math.inf) -> SearchResult | None:
        """What an earlier search of the program found; one that was cut off, in a run of so many seconds or more."""
        key = self._searched(program, budget)
        found = self._get(SEARCHES, key, SearchResult)
        if found is not None or given == math.inf:
            return found
        cut = self._get(SEARCHES, f"{key} cut off", _Timely)
        return None if cut is None or given > cut.given else cut.value

    def keep_search(self, program: Program, budget: SearchBudget, found: SearchResult, given: float = math.inf) -> None:
        """Keep what a search found; where it was cut off, that it was in a run of so many seconds."""
        key = self._searched(program, budget)
        if found.interrupted:
            self._put(SEARCHES, f"{key} cut off", _Timely(found, given))
        else:
            self._put(SEARCHES, key, found)

    def choice(self, request: Request, given: float = math.inf) -> Kept | None:
        """What an earlier run chose that was given so many seconds, or more, or needed no more."""
        key = self._chosen(request)
        kept = None if self.anew or not key else self._get(CHOICES, key, Kept)
        # The run that is closed came further with the whole than one that its time ended.
        least = FINISHED if self.closing and request.baselines else given
        return kept if kept is not None and least <= kept.given else None

    def keep_choice(
        self,
        request: Request,
        search: SearchResult,
        choice: Choice,
        warnings: Sequence[str],
        given: float = math.inf,
    ) -> None:
        """Keep what was chosen; `given` as in `Kept`: none is of a run that was closed, which is for no other."""
        kept = Kept(now_text(), search, _without_model(choice), None, tuple(warnings), given)
        if given and (not search.interrupted or math.isfinite(given)):
            self._put(CHOICES, self._chosen(request), kept)

    def keep_refusal(
        self, request: Request, error: NoImprovementError, warnings: Sequence[str], given: float = math.inf
    ) -> None:
        """Keep that nothing of what was found is better; `given` as in `keep_choice`."""
        refusal = Refusal(error.what, error.where, error.why, error.fix)
        if given:
            self._put(CHOICES, self._chosen(request), Kept(now_text(), None, None, refusal, tuple(warnings), given))

    def estimated(
        self, request: Request, search: SearchResult, model: Callable[[SGraph], CostModel], make: Callable[[], Choice]
    ) -> Choice:
        """What the cost model alone chooses of what a search proved: what `make` does, where no earlier run did.

        It can be emitted: that is tried then.
        """
        of = [show.key(p.sgraph) for p in search.proved]
        key = digest("estimated", self._searched(request.program, request.budget), self.machine, of)
        return self._kept(CHOICES, key, _Chosen, lambda: _without_model(make())).by(model)

    def unfinished(self, request: Request, given: float) -> bool | None:
        """Whether an earlier run that ended with nothing came to its first match; None where there was none.

        It counts for runs that have not much more time than that one and time nothing again, until one comes to its
        end: one with more time makes that better.
        """
        key = self._chosen(request)
        found = None if self.anew or not key else self._get(CHOICES, f"{key} unfinished", _Timely)
        if found is None or given >= MUCH_MORE * found.given:
            return None
        return None if self.choice(request, found.given) is not None else bool(found.value)

    def keep_unfinished(self, request: Request, given: float, matched: bool) -> None:
        """Keep that a run ended with nothing, and whether it came to its first match."""
        key = self._chosen(request)
        if key and given:
            self._put(CHOICES, f"{key} unfinished", _Timely(matched, given))

    def certificate(self, request: Request, sgraph: str, given: float, make: Callable[[], Derivation]) -> Derivation:
        """The certificate of an sGraph of the request's program.

        What did not end in as much time as is `given` is tried once more where everything is timed again.
        """
        key = f"{self._searched(request.program, request.budget)} {sgraph}"
        found = self._get(CERTIFICATES, key, _Timely)
        derived: Derivation | None = None if found is None or given > found.given else found.value
        if derived is None or (self.anew and derived.reason):
            derived = make()
            self._put(CERTIFICATES, key, _Timely(derived, given if derived.reason else math.inf))
        return derived

    def module(
        self, request: Request, of: str, returned: Sequence[Returned], make: Callable[[], ModuleSource]
    ) -> ModuleSource:
        """The emitted module of what was chosen.

        `of` is from `of_choice`, `returned` where a program's outputs are among what the kernels store.
        """
        key = f"{of} {request.program.ranges} {returned}"
        return self._kept(MODULES, key, ModuleSource, make)

    def conditions(self, of: str, make: Callable[[], str]) -> str:
        """What the symbols of what was chosen must satisfy, as text that `make` writes where no earlier run did."""
        return self._kept(CHOICES, f"conditions {of}", _Text, lambda: _Text(make())).text

    def of_choice(self, request: Request, choice: Choice, sgraph: str) -> str:
        """What tells a chosen sGraph, as its file has it, and its configuration from others, names included."""
        searched = self._searched(request.program, request.budget)
        return digest(searched, self.machine, sgraph, choice.best.config.flat())

    def checked(
        self, request: Request, config: str, given: Mapping[str, np.ndarray], make: Callable[[], CheckSummary]
    ) -> CheckSummary:
        """What a check on the user's own inputs gave.

        `config` is the sGraph's key and its configuration's. What `make` raises is not kept.
        """
        drawn = [(n, x.dtype.str, x.shape, hashlib.sha256(x.tobytes()).hexdigest()) for n, x in sorted(given.items())]
        key = digest(self._searched(request.program, request.budget), self.machine, config, drawn)
        return self._kept(COMPARISONS, key, CheckSummary, make, anew=self.anew)

    def gate(self, request: Request, config: str, cases: Sequence[Case], given: float) -> CheckReport | None:
        """What the numeric gate said of kernels, all of which passed, in an earlier run of as much time.

        `config` is the sGraph's key and its configuration's; a run that is given fewer seconds may have left some cases
        out.
        """
        found = None if self.anew else self._get(COMPARISONS, self._gate(request, config, cases), _Timely)
        return None if found is None or given > found.given else found.value

    def keep_gate(
        self, request: Request, config: str, cases: Sequence[Case], given: float, report: CheckReport
    ) -> None:
        """Keep what the numeric gate says of kernels, where they pass; the rest as for `gate`."""
        if report.passed:
            kept = _Timely(report, given if report.left else math.inf)
            self._put(COMPARISONS, self._gate(request, config, cases), kept)

    def _gate(self, request: Request, config: str, cases: Sequence[Case]) -> str:
        on = [(c.draw, sorted(c.binding.items()), c.config.key(), c.seed, c.struck) for c in cases]
        return digest("gate", self._searched(request.program, request.budget), self.machine, config, on)

    def _searched(self, program: Program, budget: SearchBudget) -> str:
        return digest(self.basis, _identity(program), budget.as_dict(), budget.seconds)

    def _chosen(self, request: Request) -> str:
        """What names a choice; nothing where the baseline is a function, of which only a run can tell what it is."""
        p = request.program
        source = ""
        if request.baselines:
            if isinstance(p.source, Path):
                source = digest_of_file(p.source) if p.source.is_file() else ""
            elif p.source is not None:
                return ""
        asked = (request.trials, request.seed, request.baselines, request.matches, source)
        return digest(self._searched(p, request.budget), self.machine, asked)

    def _kept(self, kind: str, key: str, of: type[T], make: Callable[[], T], *, anew: bool = False) -> T:
        """What an earlier run kept, or what is made, which is kept then."""
        found = None if anew else self._get(kind, key, of)
        if found is None:
            found = make()
            self._put(kind, key, found)
        return found

    def _get(self, kind: str, key: str, of: type[T]) -> T | None:
        if self.root is None:
            return None
        data = Cache(kind, self.root).get_bytes(digest(key))
        found = None if data is None else loads(data)
        return found if isinstance(found, of) else None

    def _put(self, kind: str, key: str, value: object) -> None:
        if self.root is not None and key:
            with suppress(PicklingError):  # what is not kept is made again
                Cache(kind, self.root).put_bytes(digest(key), dumps(value))


def load_compared(
    path: Path,
    *,
    assume: Stated = (),
    rules: Sequence[Path | str] = (),
    check: bool = True,
    empty: Collection[str] = (),
    root: Path | None = None,
) -> tuple[Program, bool]:
    """A model as `load` reads it, and whether an earlier run compared it: that is not done again.

    Args:
        path: the file; where data of it lie in others, these are the same while the file system says so.
        assume: as for `load`.
        rules: rule files of the user's own.
        check: whether the program is compared with the model.
        empty: as for `load`.
        root: the cache folder; the user's by default.
    """
    load = partial(loading.load, path, assume=assume, rules=rules, empty=empty)
    key = ""
    if check:
        from prism.frontend.onnx.reader import files_beside

        with suppress(OSError, ValueError, PrismError):  # what is missing is told by who reads it
            data, root = path.read_bytes(), root or cache_root()
            own = [digest_of_file(Path(p)) for p in rules]
            beside = files_beside(data, path.parent) if _ELSEWHERE in data else ()
            key = digest(code_digest(), versions(), own, digest_of_file(path), beside, sorted(empty))
    if root is None or not key:
        return load(check=check), False
    cache = Cache(COMPARISONS, root)
    stored = cache.get_bytes(key)
    known = None if stored is None else loads(stored)
    if isinstance(known, Conformance):
        return replace(load(check=False), conformance=known), True
    program = load()
    if program.conformance is not None:
        cache.put_bytes(key, dumps(program.conformance))
    return program, False


def cells_of(
    program: Program,
    asked: Sequence[object],
    rules: Sequence[Path | str],
    given: float,
    make: Callable[[], tuple[Cell, ...] | None],
) -> tuple[Cell, ...]:
    """The cells of ranges, as an earlier run of as much time found them, or `make` does; it says None of no time.

    They depend on what is `asked`, too: the ranges, what is searched for, and its bounds.
    """
    own = [digest_of_file(Path(p)) for p in (*rule_files(), *rules)]
    key = digest("cells", code_digest(), versions(), own, _identity(program), *asked)
    try:
        cache = Cache(SEARCHES, cache_root())
    except PrismError:
        return make() or ()
    data = cache.get_bytes(key)
    kept = None if data is None else loads(data)
    if isinstance(kept, _Timely) and given <= kept.given:
        return tuple(Cell(predicate_of(said), text, at) for said, text, at in kept.value)
    found = make()
    said = tuple((plain(c.predicate), c.text, dict(c.at)) for c in found or ())
    with suppress(PicklingError):
        cache.put_bytes(key, dumps(_Timely(said, given if found is None else math.inf)))
    return found or ()


def results_of(request: Request, platform: Platform, cache: Path, *, anew: bool, closing: bool = False) -> Results:
    """The results of earlier runs that hold for a request; with `anew`, everything is timed again."""
    rules = [(p.name, digest_of_file(p)) for p in request.rules or rule_files()]
    basis = digest(code_digest(), versions(), rules, request.target, repr(request.device))
    threads = platform.thread_counts() if platform.timed else ()  # type: ignore[union-attr]
    machine = digest(platform.device_name, platform.compiler, platform.backend.name, threads, version_of("onnxruntime"))
    return Results(cache, basis, machine, anew, closing)


@cache
def code_digest() -> str:
    """A hash of prism's own code."""
    package = Path(prism.__file__).parent
    found = hashlib.sha256()
    for path in sorted(p for p in package.rglob("*") if p.suffix in _CODE):
        found.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _identity(program: Program) -> str:
    """What tells a program from others, by what a search and a choice look at."""
    weights = sorted(program.weights)
    return digest(program.name, program_hash(program), [repr(t) for t in program.inputs], weights, program.places)
