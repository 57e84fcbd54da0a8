"""Whole models: what prism reads of them is optimised island by island, and the rest runs as it did.

cut       -> islands of nodes that have a translation, and nodes that stay (prism/frontend/onnx/islands.py)
draw      inputs that the model takes, and run it part by part: the sizes at every island's boundary
optimise  each island as a program of its own, equal ones once; one that fails, or gains nothing, keeps its operators
assemble  a folder: the islands' folders, what stays as models, and a module that runs all of it
compare   what the folder computes with what onnxruntime makes of the model
time      them, with all islands and with fewer, interleaved; nothing is written that is no faster
"""

from __future__ import annotations

import hashlib
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import numpy as np

from prism.api import loading
from prism.api.comparing import no_better
from prism.api.given_inputs import check_sizes
from prism.api.in_parts import InParts
from prism.api.model_inputs import Feeds, drawn, feeds, given_feeds, neighbours, smaller
from prism.api.optimizing import Produced, check_supported, produce
from prism.api.options import ModelOptions, Options, by_keywords
from prism.api.records import measured
from prism.api.region_search import SearchBudget
from prism.api.results import CHOICES, COMPARISONS, code_digest, load_compared
from prism.api.time_limit import AGAIN, LATE, LEAST_S, MEETING_S, MORE_TIME, ending, here
from prism.api.trivial import nothing_to_gain
from prism.api.user_rules import declared
from prism.backends.assembled import TOGETHER as TOGETHER_TEXT
from prism.backends.assembled import Step, assembled_text, consecutive
from prism.backends.cpu.build import require_compiler
from prism.backends.cpu.machine import describe
from prism.backends.cpu.support import find_compiler
from prism.backends.tensors import numbers
from prism.backends.weights import weights_file
from prism.contents import Content, put, sha256
from prism.cost.constant_folding import fold_constants
from prism.errors import (
    ModelError,
    NoImprovementError,
    PrismError,
    UnsupportedError,
    UsageError,
    VerificationError,
    of_part,
    some,
)
from prism.events import IslandReport, KeptReport, ModelReport, Recorder
from prism.folders import cache_or_spare, cache_root
from prism.frontend.onnx.islands import Cut, Island, Part, cut, left
from prism.frontend.onnx.other_readers import Inference
from prism.frontend.onnx.written import RUN_SET
from prism.instantiate.cache import Cache, Store, digest, dumps, loads, version_of
from prism.instantiate.confirm import Confirmation, confirm, now_text
from prism.instantiate.lock import versions
from prism.instantiate.measure import BASELINE, KERNEL, PROTOCOL, Contender
from prism.instantiate.model_bench import ModelBench, compare, farthest
from prism.platforms.choice import meant, platform_of
from prism.platforms.cpu import CpuPlatform, multiplies_tiles
from prism.platforms.stock import NotRunError, Stock, check_installed
from prism.process.deadline import Deadline
from prism.process.files import digest_of_file
from prism.program.evaluate import evaluate
from prism.program.nodes import Program
from prism.program.returned import computed
from prism.report.folder import (
    REPORT_NAME,
    WEIGHTS_NAME,
    digest_of,
    module_name,
    read_file,
    render_folder,
    write_folder,
)
from prism.report.model_folder import MODULE, STOCK, TOGETHER, island_lines, kept_lines, render_model
from prism.report.records import from_json
from prism.report.units import duration, on_threads

Asked = TypeVar("Asked", bound=Options)

STOCK_NAME = "onnxruntime"
BOUNDARY = frozenset({"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"})
"""Types of values that pass between kernels and onnxruntime as arrays of numpy."""
MADE = 0.75
"""The share of the time that islands may take: comparing and timing the whole needs the rest,"""
WHOLE_S = 24.0
"""but no more than this, on two cores: seconds, of 12 to 20 that it takes (measured)."""
ALONE = "model_on_one.py"
"""The module, while both are timed, whose rest runs on one thread."""
ISLAND_MATCHES = 1
"""How often an island meets onnxruntime by itself: what is told in the end is how the whole model does."""
ISLAND_S = 25.0
"""What an island of some regions takes until its kernels have met onnxruntime, on two cores: seconds (measured)."""
SETS = 3
"""Sets of islands that are assembled and timed, at most."""
MEETS, CALLS = 0.6, 10
"""The part of the whole's time that the first match may take, and the calls of each contender before any leaves it."""
TURNED = 1.2
"""What the whole loses by, at most, where islands that had no time could still turn it."""
NOT_IN_THE_WHOLE = "its kernels are faster by themselves, and the whole is faster without them"
DRAWS = 3
"""Draws that the assembled model is compared on, at the sizes that it is tuned at; and one more at smaller ones."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What a run of a whole model ends in.

    Attributes:
        report: as shown to the user.
        out: the output folder; None when none was asked for.
    """

    report: ModelReport
    out: Path | None


def what_else(report: ModelReport, *, late: bool) -> str:
    """What to do with a model that lost in the whole; `late` is whether islands had no time."""
    turned = late and report.best_seconds <= TURNED * report.baseline_seconds
    said = "keep the model as it is, or tune at other shapes (--shape); --anew times again"
    return said + "; or give it more time (--budget): islands had none" * turned


@dataclass(slots=True)
class _Made:
    """What came of an island."""

    report: IslandReport  # as shown to the user
    program: Program | None = None  # it as a program; None where it is none
    kernels: Produced | None = None  # what was made, by it or by one that is equal; None where it keeps its operators
    failed: bool = False  # whether something in it was refused or went wrong, rather than that nothing was gained
    ended: bool = False  # whether nothing was made because the time ended


@dataclass(frozen=True, slots=True)
class _Whole:
    """The model with some of its islands run by kernels."""

    chosen: frozenset[str]  # these islands
    module: Path  # its module, in a folder of its own
    digests: Mapping[str, str]  # the SHA-256 of its files, by name
    alone: bool = False  # whether what stays runs on one thread

    @property
    def title(self) -> str:
        """What it is called beside others."""
        return f"prism ({', '.join(sorted(self.chosen))}{'; the rest on one thread' * self.alone})"


@by_keywords(ModelOptions)
def optimize_model(path: Path | str, options: ModelOptions) -> ModelResult:
    """Optimise what prism reads of an ONNX model, and leave the rest as it is.

    What stays runs in onnxruntime on the CPU: `target` is `cpu`, or None where that is what this machine has. Islands
    that had no time keep their operators. On `inputs` the whole is compared and timed, in place of the first drawn
    ones, and islands are tuned at the sizes that these make.

    Args:
        path: the file.
        options: each by its name.

    Raises:
        ModelError: the file is missing or damaged, or onnxruntime does not take it.
        UnsupportedError: another target is wanted.
        UsageError: onnxruntime is not installed, or as for `optimize`.
        NoImprovementError: no island gains anything, or the whole is no faster than onnxruntime.
        VerificationError: the whole computes something else than the model: a bug in prism, and nothing is written.
    """
    path = Path(path)
    options = compared_with_stock(options)
    folder = options.folder()
    recorder = Recorder(options.listener)
    ended = partial(ending, options.time, "the model was compared and timed", str(path))
    with ended():
        parts = parts_of(path, options.rules, recorder, options.empty)
    with on_cpu(path, parts, options, recorder) as (platform, cache), ended():
        report, files = Run(path, parts, options, platform, recorder, cache).made()
    if folder is not None:
        report = replace(report, output=str(options.out))
        folder = write_folder(folder, files)
    return ModelResult(report, folder)


def compared_with_stock(options: Asked) -> Asked:
    """The options of a model in parts, which is compared with onnxruntime alone.

    Raises:
        UsageError: something else is asked for.
    """
    if options.baselines is not None and set(options.baselines) != {STOCK_NAME}:
        raise UsageError(
            "a model that goes in parts is timed against onnxruntime alone",
            where="--baseline",
            why="onnxruntime runs what stays as it is",
            fix=f"leave --baseline away, or name {STOCK_NAME}",
        )
    return replace(options, baselines=(STOCK_NAME,))


def parts_of(path: Path, rules: Sequence[Path | str], recorder: Recorder, empty: Collection[str] = ()) -> Cut:
    """The model's islands and what stays, with rule files' operators; errors are as for `optimize_model`."""
    with recorder.stage("islands") as detail, kept_answers(path) as known, Inference(known) as asked:
        operators, tiles = declared(rules) if rules else (), multiplies_tiles(describe())
        parts = cut(path, operators=operators, inference=asked, empty=empty, tiles=tiles)
        detail.append(f"{len(parts.islands)} islands, {len(parts.kept)} of {parts.count} nodes stay as they are")
    return parts


@contextmanager
def kept_answers(path: Path) -> Iterator[dict[str, str]]:
    """What onnx and onnxruntime said of this file's nodes to an earlier run; what is added is kept for the next."""
    try:
        data = digest_of_file(path)
        store = Cache(COMPARISONS, cache_root())
    except (OSError, UsageError):  # what is missing is told by who reads it
        yield {}
        return
    key = digest("answers", code_digest(), versions(), version_of("onnxruntime"), data)
    before = store.get(key) or {}
    known = dict(before)
    yield known
    if known != before:
        store.put(key, known)


def better_in_parts(path: Path | str, target: str | None, baselines: Sequence[str] | None = None) -> str:
    """Why a model goes in parts though it may be read whole; empty where it does not.

    On a CPU onnxruntime's kernels for most windows are faster than what is made of them, and where it is installed it
    is what the whole has to beat.

    Raises:
        ModelError: the file is missing or damaged.
    """
    if not may_go_in_parts(target, baselines):
        return ""
    tiles = multiplies_tiles(describe())
    with kept_answers(Path(path)) as known:
        if (asked := f"left, {tiles=}") not in known:
            known[asked] = ", ".join(left(Path(path), tiles))
    return f"onnxruntime runs {known[asked]} faster" if known[asked] else ""


def left_for_types(program: Program, target: str | None, baselines: Sequence[str] | None = None) -> str:
    """Why a model that was read whole goes in parts: what is of types that kernels are not emitted for stays."""
    if may_go_in_parts(target, baselines):
        try:
            check_supported(computed(program)[0])
        except UnsupportedError as error:
            return error.reason
    return ""


def may_go_in_parts(target: str | None, baselines: Sequence[str] | None = None) -> bool:
    """Whether a model can go in parts: on a CPU, with a compiler and onnxruntime, and compared with that alone."""
    only_stock = baselines is None or set(baselines) == {STOCK_NAME}
    installed = find_spec("onnxruntime") is not None and find_compiler() is not None
    return only_stock and installed and meant(target) == "cpu"


def kept_of(parts: Cut) -> tuple[KeptReport, ...]:
    """What stays as it is, by operator and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for k in parts.kept.values():
        found.setdefault((k.op, k.why), []).append(k.node)
    return tuple(KeptReport(op, len(nodes), nodes[0], why) for (op, why), nodes in found.items())


def made_of(out: Path | str, model: Path | str, empty: Collection[str] = ()) -> str:
    """Whether an output folder (verified) of a model in parts is of this ONNX model: how it is not, or nothing.

    Which convolutions are in islands was a matter of the processor that it was made on, which may be another one.
    """
    report = from_json(read_file(Path(out), REPORT_NAME), ModelReport, where=str(Path(out) / REPORT_NAME))
    for tiles in (False, True):
        parts = cut(Path(model), empty=empty, tiles=tiles)
        parts.halve_for({i.name for i in report.islands})
        if {i.name for i in report.chosen} <= {i.name for i in parts.islands}:
            expected = parts.with_functions({i.name for i in report.chosen})
            if hashlib.sha256(expected).hexdigest() == digest_of(Path(out), STOCK):
                return ""
    return f"{STOCK} is not {model} with its islands as functions"


def shown_in_parts(path: Path | str, error: UnsupportedError) -> list[str]:
    """Lines that say how a model would go in parts; the error says why it is not read whole."""
    parts = cut(Path(path), tiles=multiplies_tiles(describe()))
    reports = []
    for island in parts.islands:
        part, why = parts.part(island), ""
        try:
            program = loading.load_bytes(part.data, island.name)
            why = nothing_to_gain(program)
        except PrismError as refused:
            why = refused.reason
        report = IslandReport(island.name, len(island.nodes), dict(Counter(parts.operators(island))), why=why)
        reports.append((report, [] if why else str(program).splitlines()))
    many = sum(r.nodes for r, _ in reports if not r.why)
    lines = [f"in parts: {error.reason}", f"{many} of {parts.count} nodes are in islands that may be optimised"]
    for report, program_lines in reports:
        lines += [*island_lines((report,)), *(f"    {line}" for line in program_lines)]
    return lines + kept_lines(kept_of(parts))


@contextmanager
def on_cpu(path: Path, parts: Cut, options: Options, recorder: Recorder) -> Iterator[tuple[CpuPlatform, Path]]:
    """The CPU that a model in parts runs on, whose children all islands share, and the cache.

    Raises:
        UnsupportedError: another target is wanted, whose kernels would wait for onnxruntime's tensors.
        CompilerError: there is no compiler for its kernels.
        UsageError: onnxruntime is not installed.
    """
    if meant(options.target) == "cpu":
        require_compiler()  # an estimate for a GPU, which a whole model ends in, is none of a model in parts
    with cache_or_spare(recorder.warn) as cache:
        platform = platform_of(options.target, recorder.warn, cache, options.begun)
        if not isinstance(platform, CpuPlatform):
            named = ", ".join(dict.fromkeys(k.op for k in parts.kept.values()))
            raise UnsupportedError(
                f"no translation for {named}",
                where=str(path),
                why=f"what has none runs in onnxruntime on the CPU, and kernels for {platform.target} do not",
                fix="take the model in parts with --target cpu",
            )
        check_installed(str(path))
        with platform.lending() as lent:
            yield lent, cache


@dataclass(slots=True)
class Run:
    """One run."""

    path: Path
    parts: Cut
    options: ModelOptions
    platform: CpuPlatform
    recorder: Recorder
    cache: Path
    stocks: dict[bool, Stock] = field(default_factory=dict, init=False)
    # What onnxruntime reads: the file, or where that is newer than it takes, one that says the same.
    stock_path: Path = field(init=False)
    opening_s: float = field(default=0.0, init=False)  # what it takes to open an assembled model and call it as often

    def __post_init__(self) -> None:
        self.stock_path = self.path

    def made(self) -> tuple[ModelReport, dict[str, Content]]:
        """The report, and the files of the output folder."""
        with tempfile.TemporaryDirectory(prefix="prism-whole-") as place:
            if self.parts.newer:
                self.stock_path = Path(place) / STOCK
                self.stock_path.write_bytes(self.parts.with_functions(frozenset()))
            with self.recorder.stage("inputs") as detail:
                given, sizes, gainless = self._given()
                detail.append(", ".join(f"{n}={v}" for n, v in given.sizes.items()) or "of fixed sizes")
                detail += [f"{len(gainless)} islands can gain nothing"] if gainless else []
            late = Late(Cache(CHOICES, self.cache), self._late_key(given), self.options)
            before = late.lost()
            if before is not None:
                raise self._no_faster(before)
            islands = self._islands(sizes, Path(place), late, gainless)
            sets = candidates(islands)
            if not sets:
                raise self._nothing(islands)
            wholes = [w for n, s in enumerate(sets) for w in self._wholes(islands, s, Path(place) / f"whole_{n}")]
            programs = {m.report.name: m.program for m in islands if m.program is not None}
            sensitive = self._compared(given, wholes[0], programs)
            found, best = self._timed(given, wholes, programs if sensitive else None)
            if best:
                self._compared(given, wholes[best], programs)
        ended = [m.report for m in islands if m.ended]
        late.keep(ended)
        for made in islands:
            if made.kernels is not None and made.report.name not in wholes[best].chosen:
                made.report = replace(made.report, folder="", same_as="", why=NOT_IN_THE_WHOLE)
        report = self._report(islands, given, found)
        if not found.won:
            ours, theirs, fix = report.best_seconds, report.baseline_seconds, what_else(report, late=bool(ended))
            lost = Lost(ours, theirs, report.baseline, found, fix, self.options.time.given)
            late.keep_lost(lost)
            raise self._no_faster(lost)
        files, steps = self._laid_out(islands, wholes[best].chosen)
        files[MODULE] = self._module(steps, wholes[best].alone)
        return report, files | render_model(report, files)

    def _no_faster(self, lost: Lost) -> NoImprovementError:
        return NoImprovementError(
            "the assembled model is no faster than onnxruntime",
            where=str(self.path),
            why=no_better(lost.ours, lost.theirs, lost.baseline, lost.found),
            fix=lost.fix,
        )

    def _given(self) -> tuple[Feeds, dict[str, dict[str, int]], dict[str, str]]:
        """Inputs that the model takes, for every island the values of its symbols on them, and which gain nothing, why.

        All of this is found by running the model, unless an earlier run did.
        """
        ports, o, where = self.parts.inputs, self.options, str(self.path)
        basis: tuple[object, ...] = (sorted(o.at.items()), o.seed)
        given = None
        if o.inputs is not None:
            self._stock()
            given = given_feeds(ports, o.inputs, self._run, where)
            check_sizes(given.sizes, o.at)
            basis = (sorted(given.sizes.items()), _digests(given.arrays))
        store, key = Cache(COMPARISONS, self.cache), digest("inputs", *self._basis(), *basis)
        found = None if o.anew else store.get(key)
        if found is None:
            self._stock()  # that it is not taken is told before what cannot be drawn
            given = given or feeds(ports, o.at, o.seed, self._run, where, self.parts.most_elements)
            self._comparable(given)
            asked = InParts(self.parts, self._on_one_thread, self.platform.device, where, dict(given.arrays))
            gainless = asked.gainless(o.time)
            found = {"sizes": given.sizes, "highs": given.highs, "islands": asked.sizes, "gainless": gainless}
            store.put(key, found)
        given = given or Feeds(found["sizes"], found["highs"], drawn(ports, found["sizes"], found["highs"], o.seed))
        return given, found["islands"], found["gainless"]

    def _on_one_thread(self) -> Stock:
        return Stock(self.stock_path, str(self.path), threads=1)

    def _run(self, arrays: Mapping[str, np.ndarray], *, optimised: bool = True) -> dict[str, Any]:
        """What the model gives, in onnxruntime; raises NotRunError: it does not take these inputs."""
        return self._stock(optimised=optimised).run(arrays, [p.name for p in self.parts.inputs])

    def _stock(self, *, optimised: bool = True) -> Stock:
        """The model in onnxruntime, opened once.

        Raises:
            ModelError: onnxruntime does not take it; a node of a domain that is not ONNX's is named.
        """
        if optimised not in self.stocks:
            try:
                self.stocks[optimised] = Stock(self.stock_path, str(self.path), optimised=optimised)
            except ModelError as error:
                foreign = next((k for k in self.parts.kept.values() if "." in k.op), None)
                where = error.where if foreign is None else f"{error.where}, node {foreign.node!r}"
                newer = f"convert it to operator set {RUN_SET} (onnx.version_converter), or install a newer onnxruntime"
                fix = newer if self.parts.opset > RUN_SET else error.fix
                if foreign is not None and "is not a registered" in error.why:
                    fix = (
                        f"what stays runs in onnxruntime alone: give the model a function for {foreign.op}, or give "
                        "prism the model without it (onnx.utils.extract_model)"
                    )
                raise error.at(where, fix) from error
        return self.stocks[optimised]

    def _comparable(self, given: Feeds) -> None:
        """Make sure that the model's results can be compared.

        Raises:
            NoImprovementError: they are no numbers or strings, or others every time.
        """
        one, other = self._run(given.arrays), self._run(given.arrays)
        for name, x in one.items():
            why = ""
            try:
                parts, again = numbers(x), numbers(other[name])
                alike = (
                    np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(parts, again, strict=False)
                )
                if len(parts) != len(again) or not all(alike):
                    why = "it is drawn at random: two runs give two results"
            except TypeError as error:
                why = f"it is {error}"
            if why:
                raise NoImprovementError(
                    "an output of the model cannot be compared",
                    where=f"{self.path}, output {name!r}",
                    why=why,
                    fix="keep the model as it is, or take the part without it",
                )

    def _islands(
        self, sizes: Mapping[str, Mapping[str, int]], place: Path, late: Late, gainless: Mapping[str, str]
    ) -> list[_Made]:
        """What comes of each island; none is searched of those that are `gainless`."""
        todo = [(i, sizes.get(i.name, {})) for i in reversed(self.parts.islands) if i.name not in gainless]
        known = late.known()
        if known:
            self.recorder.warn(f"stored: {some(known)} had no time; {AGAIN}")
        whole = min(here(1 - MADE), 0.5)
        time = max(self.options.time.part(1 - whole), self.options.time.moved(-here(WHOLE_S)))
        first: dict[str, _Made] = {}
        found = self._turn(todo, first, place, time, known)
        if time.finite and not known:
            nothing = not any(m.kernels for m in found.values())
            if nothing:  # what is left for the whole is of no use without
                time = max(self.options.time.part(MADE), self.options.time.moved(-here(MEETING_S)))
            again = [i for i in self.parts.islands if i.name in found and found[i.name].ended]
            if again and time.left >= (LEAST_S if nothing else here(LEAST_S)):
                for key in [k for k, m in first.items() if m.ended]:
                    del first[key]
                found |= self._turn([(i, sizes.get(i.name, {})) for i in reversed(again)], first, place, time, known)
        for i in self.parts.islands:
            if i.name in gainless:
                found[i.name] = _Made(replace(self._listed(i), why=gainless[i.name]))
        return [found[i.name] for i in self.parts.islands if i.name in found]

    def _listed(self, island: Island) -> IslandReport:
        return IslandReport(island.name, len(island.nodes), dict(Counter(self.parts.operators(island))))

    def _turn(
        self,
        todo: list[tuple[Island, Mapping[str, int]]],
        first: dict[str, _Made],
        place: Path,
        time: Deadline,
        known: Mapping[str, str],
    ) -> dict[str, _Made]:
        """What comes of these islands, or of their halves, by name.

        Args:
            todo: each with the values of its symbols, the first one last.
            first: what came of the first of those that are equal, by what they have in common; what comes is added.
            place: for files.
            time: when they end.
            known: why an earlier run had no time for some, by name.
        """
        found: dict[str, _Made] = {}
        if time.finite:
            todo.sort(key=lambda x: len(x[0].nodes))
        while todo:
            # Islands share the time by their nodes, the largest first: in less than ISLAND_S nothing comes of one.
            share = len(todo[-1][0].nodes) / sum(len(i.nodes) for i, _ in todo)
            if time.finite and time.left:
                share = min(1.0, max(share, here(ISLAND_S) / time.left))
            island, own = todo.pop()
            part = self.parts.part(island)
            place_in = f"{island.name} of {len(self.parts.islands)}"
            with self.recorder.stage(island.name) as detail, self.recorder.within(1, place_in):
                again = known.get(island.name, "")
                made = self._island(island, part, first.get(part.key), own, place, time.part(share), again)
                detail += [f"{len(island.nodes)} nodes", _outcome(made.report)]
            if made.failed and len(island.nodes) > 1:
                # What fails is in one of its halves, and the other may do without.
                self.recorder.warn(f"{island.name} is halved: {made.report.why}")
                todo += [(half, own) for half in reversed(self.parts.halve(island))]
                first.setdefault(part.key, made)
                continue
            first.setdefault(part.key, made)
            found[made.report.name] = made
        return found

    def _island(
        self,
        island: Island,
        part: Part,
        like: _Made | None,
        sizes: Mapping[str, int],
        place: Path,
        time: Deadline,
        again: str,
    ) -> _Made:
        """What comes of an island; `again` is why an earlier run had no time for it, which nothing has changed."""
        report = self._listed(island)
        if again:
            return _Made(replace(report, why=again), ended=True)
        foreign = next((p for p in (*part.inputs, *part.outputs) if p.dtype not in BOUNDARY), None)
        if foreign is not None:
            why = f"{foreign.name} is of type {foreign.dtype}, which does not pass between numpy and onnxruntime"
            return _Made(replace(report, why=why))
        if not part.inputs:
            return _Made(replace(report, why="it hangs on no input"))
        if like is not None and like.report.why:
            same = replace(report, why=like.report.why, same_as=like.report.name)
            return _Made(same, failed=like.failed, ended=like.ended)
        file = place / f"{island.name}.onnx"
        file.write_bytes(part.data)
        try:
            check = self.options.check and like is None
            read, _ = load_compared(file, rules=self.options.rules, check=check, root=self.cache)
            program = fold_constants(read)
        except PrismError as error:
            return _Made(replace(report, why=error.reason), failed=True)
        if like is not None and like.kernels is not None:
            same = replace(like.report, name=report.name, nodes=report.nodes, operators=report.operators)
            return _Made(replace(same, same_as=like.report.same_as or like.report.name), program, like.kernels)
        trivial = nothing_to_gain(program)
        if trivial:
            return _Made(replace(report, why=trivial), program)
        # What comes up may be empty, and kernels are for lengths from the least on.
        shapes = {n: max(v, program.ranges[n].low) for n, v in sizes.items() if n in program.ranges}
        # What is given of the model's inputs is in the sizes; the island's are other tensors.
        options = replace(self.options, shapes=shapes, seconds=time, inputs=None)
        try:
            made = produce(program, options, matches=ISLAND_MATCHES, platform=self.platform)
        except Exception as error:  # which costs this island its kernels, and not the model
            refused = of_part(error)
            failed = refused.in_part or not isinstance(refused, NoImprovementError)
            return _Made(replace(report, why=refused.reason), program, failed=failed, ended=refused.fix in LATE)
        own = made.artifacts.report
        report = replace(
            report,
            folder=island.name,
            verdict=own.verdict,
            rung=own.rung,
            best_seconds=own.best_seconds,
            baseline_seconds=own.baseline_seconds,
        )
        return _Made(report, program, made)

    def _nothing(self, islands: Sequence[_Made]) -> NoImprovementError:
        stays = Counter(k.op for k in self.parts.kept.values())
        reasons = {k.op: k.why for k in reversed(self.parts.kept.values())}
        same: dict[str, list[str]] = {}
        for m in islands:
            same.setdefault(m.report.why, []).append(f"{m.report.name} ({m.report.nodes} nodes)")
        said = [f"{some(names)}: {why}" for why, names in list(same.items())[:4]]
        said += [f"and {len(same) - 4} more reasons"] if len(same) > 4 else []
        kept = "; ".join(f"{op} stays{f' ({n} times)' * (n > 1)}: {reasons[op]}" for op, n in stays.most_common(4))
        kept += f"; and {len(stays) - 4} more operators" * (len(stays) > 4)
        return NoImprovementError(
            "no part of the model gains anything",
            where=str(self.path),
            why="; ".join([*said, *([kept] if kept else [])]) or "it holds nothing",
            fix=MORE_TIME
            if any(m.ended for m in islands)
            else "keep the model as it is; prism show says what every part holds",
        )

    def _wholes(self, islands: Sequence[_Made], chosen: frozenset[str], folder: Path) -> list[_Whole]:
        """The model with the chosen islands, in a folder, with what stays on all threads, and on one where both may be.

        Where threads of two runtimes take turns, each finds processors taken by those of the other, which still spin.
        Only one set's files are held at a time.
        """
        files, steps = self._laid_out(islands, chosen)
        mixed = not all(s.function for s in steps) and max(self.platform.thread_counts()) > 1
        modules = {alone: self._module(steps, alone) for alone in ((False, True) if mixed else (False,))}
        for name, data in (files | {ALONE if alone else MODULE: text for alone, text in modules.items()}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            put(folder / name, data)
        digests = {name: sha256(data) for name, data in files.items()}
        return [
            _Whole(
                chosen,
                folder / (ALONE if alone else MODULE),
                digests | {MODULE: hashlib.sha256(text).hexdigest()},
                alone,
            )
            for alone, text in modules.items()
        ]

    def _module(self, steps: Sequence[Step], alone: bool) -> bytes:
        """The model's module; `alone` says whether what stays runs on one thread."""
        inputs, outputs = ([p.name for p in ports] for ports in (self.parts.inputs, self.parts.outputs))
        steps = [s if s.function else replace(s, threads=int(alone)) for s in steps]
        return assembled_text(self.path.stem, inputs, outputs, steps).encode()

    def _laid_out(self, islands: Sequence[_Made], chosen: frozenset[str]) -> tuple[dict[str, Content], list[Step]]:
        """The files of the folder, but for its module and those that tell of it; and the module's steps."""
        files: dict[str, Content] = {STOCK: self.parts.with_functions(chosen)}
        by_name = {m.report.name: m for m in islands}
        steps: list[Step] = []
        for part in self.parts.parts(chosen):
            takes, gives = (tuple(p.name for p in ports) for ports in (part.inputs, part.outputs))
            if not part.island:
                files[f"{part.name}.onnx"] = part.data
                steps.append(Step(f"{part.name}.onnx", takes, gives))
                continue
            made = by_name[part.name]
            assert made.kernels is not None
            assert made.program is not None
            inside = made.report.folder
            if not made.report.same_as:
                files |= {f"{inside}/{name}": data for name, data in render_folder(made.kernels.artifacts).items()}
            file = f"{inside}/{WEIGHTS_NAME}"
            own = weights_file(made.program)
            if made.report.same_as and own is not None:
                file = f"{part.name}.{WEIGHTS_NAME}"
                files[file] = own
            steps.append(_step(made, by_name[made.report.same_as or part.name], takes, gives, file))
        if consecutive(steps):
            files[TOGETHER] = TOGETHER_TEXT.encode()
        return files, steps

    def _bench(self, arrays: Mapping[str, np.ndarray], key: str, programs: Mapping[str, Program] | None) -> ModelBench:
        return ModelBench(
            self.stock_path,
            [arrays[p.name] for p in self.parts.inputs],
            lambda: self._expected(arrays, programs),
            key,
            device=self.platform.device,
            worker=self.platform.arena(),
            arena=self.platform.arena,
        )

    def _compared(self, given: Feeds, whole: _Whole, programs: Mapping[str, Program]) -> bool:
        """Compare the assembled model with what was given, on several draws.

        `programs` are what islands compute, by their names.

        Returns:
            Whether it took more than two ways to run the model to say how far apart the two may be.
        """
        ports, seed = self.parts.inputs, self.options.seed
        with self.recorder.stage("comparison") as detail:
            store, key = Cache(COMPARISONS, self.cache), self._compared_key(given, whole)
            before = store.get(key)
            if before is not None:
                self.opening_s = float(before.get("seconds", 0.0))
                detail.append(f"stored, of {before.get('date')}: {before.get('draws')} draws")
                return bool(before.get("sensitive"))
            cases = [replace(given, arrays=drawn(ports, given.sizes, given.highs, seed + n)) for n in range(DRAWS)]
            if self.options.inputs is not None:
                cases.insert(0, given)
            if given.sizes:
                cases.append(smaller(given, ports, self.options.at, seed))
            taken, expected = [], []
            for case in cases:
                with suppress(NotRunError):  # the smaller sizes may be none that the model takes
                    expected.append(self._expected(case.arrays))
                    taken.append(case)
            arrays = [[case.arrays[p.name] for p in ports] for case in taken]
            with closing(self.platform.arena()) as worker:
                begun = monotonic()
                found = compare(whole.module, arrays, expected, worker)
                self.opening_s, sensitive = monotonic() - begun, any(found)
                if sensitive:
                    expected = [self._expected(case.arrays, programs) for case in taken]
                    found = compare(whole.module, arrays, expected, worker)
            if not any(found):
                told = {"draws": len(taken), "sensitive": sensitive, "seconds": self.opening_s}
                store.put(key, {"date": now_text(), **told})
            detail.append(f"{len(taken)} draws")
        for case, why in zip(taken, found, strict=True):
            if why:
                raise VerificationError(
                    "the assembled model does not compute what was given",
                    where=f"{self.path}, {', '.join(f'{n}={v}' for n, v in case.sizes.items()) or 'its sizes'}",
                    why=why,
                    fix="report it with the model: this is a bug in prism",
                )
        return sensitive

    def _compared_key(self, given: Feeds, whole: _Whole) -> str:
        """What a comparison depends on."""
        made = sorted((n, d) for n, d in whole.digests.items() if _counts(n) or n.endswith(WEIGHTS_NAME))
        drawn_of: tuple[object, ...]
        drawn_of = (sorted(given.sizes.items()), sorted(self.options.at.items()), self.options.seed, DRAWS)
        if self.options.inputs is not None:
            drawn_of = (*drawn_of, *_digests(given.arrays))
        return digest(*self._basis(), made, drawn_of)

    def _late_key(self, given: Feeds) -> str:
        """What it depends on which islands there was time for."""
        o = self.options
        bounds = (o.budget or SearchBudget()).as_dict()
        drawn_of = () if o.inputs is None else tuple(_digests(given.arrays))
        return digest("late", *self._basis(), sorted(given.sizes.items()), drawn_of, bounds, o.trials, o.seed)

    def _basis(self) -> tuple[object, ...]:
        """The model, rules of the user's own, the machine, and what is installed there."""
        machine = (self.platform.device_name, self.platform.compiler, versions(), version_of("onnxruntime"))
        files = [digest_of_file(Path(p)) for p in (self.path, *self.options.rules)]
        return code_digest(), files, sorted(self.options.empty), machine

    def _expected(
        self, arrays: Mapping[str, np.ndarray], programs: Mapping[str, Program] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """What the model gives, output by output, with its runtime's optimisations and rounded in another way.

        Args:
            arrays: inputs.
            programs: of islands. Of None, the other way is as its runtime runs all of it as it is written. Else it is,
                for each output, the farthest of this, of what inputs that are next to these give, which loops and steps
                may take far apart, and, where islands round to narrower types, which kernels need not, of what these
                give without.
        """
        one = self._run(arrays)
        others = [self._run(arrays, optimised=False)]
        if programs is not None:
            with suppress(NotRunError):
                others.append(self._run(neighbours(arrays)))
            if any(d.dtype.is_half for p in programs.values() for d in p.definitions):
                others.append(self._in_parts(arrays, programs))
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for p in self.parts.outputs:
            ways = [numbers(x[p.name]) for x in (one, *others)]
            for n, own in enumerate(ways[0]):
                found.append((own, farthest(own, [way[n] for way in ways[1:] if len(way) == len(ways[0])])))
        return found

    def _in_parts(self, arrays: Mapping[str, np.ndarray], programs: Mapping[str, Program]) -> dict[str, Any]:
        """What the model gives where these islands are computed in float64, and what stays in onnxruntime."""
        values: dict[str, Any] = dict(arrays)
        for part in self.parts.parts(programs.keys()):
            if not part.island:
                plain = Stock(part.data, part.name, optimised=False)
                values |= plain.run(values, [p.name for p in part.inputs])
                continue
            program = programs[part.name]
            taken = zip(program.arguments, part.inputs, strict=True)
            made = evaluate(program, {t.name: np.asarray(values[p.name]) for t, p in taken})
            pairs = zip(part.outputs, program.outputs, strict=True)
            values |= {p.name: np.asarray(made[o]).astype(p.dtype) for p, o in pairs}
        return values

    def _timed(
        self, given: Feeds, wholes: Sequence[_Whole], programs: Mapping[str, Program] | None
    ) -> tuple[Confirmation, int]:
        """The assembled models against onnxruntime on what was given, and which of them is the fastest."""
        text = "".join(f"{n} {d}\n" for w in wholes for n, d in sorted(w.digests.items()) if _counts(n))
        threads = self.platform.thread_counts()
        names = ["prism", *(w.title for w in wholes[1:])]
        kernels = [
            Contender(name, module=whole.module, kind="assembled", threads=k)
            for k in threads
            for name, whole in zip(names, wholes, strict=True)
        ]
        baselines = [Contender(STOCK_NAME, kind="onnxruntime", threads=k) for k in threads]
        kernels = kernels[: max(1, self._meet(given.arrays, text) - len(baselines))]
        with self.recorder.stage("confirmation of the whole") as detail:
            bench = self._bench(given.arrays, text, programs)
            basis = f"{self.platform.device_name} {self.platform.compiler} {versions()} {version_of('onnxruntime')}"
            store, until = Store(Cache("timings", root=self.cache), anew=self.options.anew), self.options.time
            try:
                found = confirm(
                    bench, kernels, baselines, store=store, basis=f"{basis} protocol {PROTOCOL}", until=until
                )
            finally:
                bench.close()
            detail.append(f"stored, of {found.date}" if found.stored else "timed anew")
        if found.deciding.best(KERNEL) is None:
            why = "; ".join(dict.fromkeys(s.timed.detail for s in found.deciding.standings if s.timed.detail))
            raise VerificationError(
                "the assembled model could not be timed",
                where=str(self.path),
                why=why,
                fix="report it with the model: this is a bug in prism",
            )
        # The first match chooses; those after it are of the chosen one and the baselines.
        first = found.matches[0].best(KERNEL)
        return found, 0 if first is None else names.index(first.name)

    def _meet(self, arrays: Mapping[str, np.ndarray], text: str) -> int:
        """How many contenders a first match has time for; to open one of 50 parts takes a second.

        The first ones: all that gained, on all threads. A run whose match is stored has the same ones again.
        """
        given = self.options.time.given
        store, key = Cache(COMPARISONS, self.cache), digest("met", *self._basis(), text, given)
        if given == math.inf:
            return sys.maxsize
        known = None if self.options.anew else store.get(key)
        if known is None:
            start = monotonic()
            self._run(arrays)
            each = self.opening_s + CALLS * (monotonic() - start)
            known = {"most": int(MEETS * (1 - MADE) * given / each)}
            store.put(key, known)
        return int(known["most"])

    def _report(self, islands: Sequence[_Made], given: Feeds, found: Confirmation) -> ModelReport:
        ours, theirs = found.deciding.best(KERNEL), found.deciding.best(BASELINE)
        assert ours is not None
        assert theirs is not None
        return ModelReport(
            name=self.path.stem,
            target=self.platform.target,
            device=self.platform.device_name,
            nodes=self.parts.count,
            islands=tuple(m.report for m in islands),
            kept=kept_of(self.parts),
            sizes=dict(given.sizes),
            best_seconds=ours.seconds,
            baseline_seconds=theirs.seconds,
            baseline=on_threads(theirs.name, theirs.threads),
            check=f"{DRAWS} draws against onnxruntime, and one at smaller sizes" if given.sizes else f"{DRAWS} draws",
            measurement=measured(found),
            stages=dict(self.recorder.seconds),
            seed=self.options.seed,
            versions=versions(),
            warnings=tuple(self.recorder.warnings),
        )


@dataclass(frozen=True, slots=True)
class Lost:
    """How an assembled model was no faster than what was given."""

    ours: float  # seconds, as `theirs`
    theirs: float
    baseline: str
    found: Confirmation
    fix: str  # what else may be done
    given: float  # the time that the run was given, seconds


@dataclass(frozen=True, slots=True)
class Late:
    """What an earlier run ended with that one which is given no more time ends with, too.

    These are islands that it had no time for, and that what it assembled was no faster than what was given.
    """

    cache: Cache  # where that is kept
    key: str  # all that it depends on, but for the time
    options: Options  # of this run

    def known(self) -> dict[str, str]:
        """Why an earlier run kept them, by name."""
        entry = None if self.options.anew else self.cache.get(self.key)
        if entry is None or self.options.time.given > entry["given"]:
            return {}
        return {str(name): str(why) for name, why in entry["islands"].items()}

    def keep(self, islands: Sequence[IslandReport]) -> None:
        """Keep which they were, of a run that came to its end."""
        if islands and not self.options.time.closing:
            known = {i.name: i.why for i in islands}
            self.cache.put(self.key, {"given": self.options.time.given, "islands": known})

    def lost(self) -> Lost | None:
        """How an earlier run lost."""
        data = None if self.options.anew else self.cache.get_bytes(self.key)
        found = None if data is None else loads(data)
        if not isinstance(found, Lost) or self.options.time.given > found.given:
            return None
        return replace(found, found=replace(found.found, stored=True))

    def keep_lost(self, lost: Lost) -> None:
        """Keep how a run lost that came to its end."""
        if not self.options.time.closing:
            self.cache.put_bytes(self.key, dumps(lost))


def candidates(islands: Sequence[_Made]) -> list[frozenset[str]]:
    """Islands to run by kernels, as sets that are tried: all that gained by themselves, then fewer of them.

    Alone an island pays for no border: in the whole its values leave onnxruntime and come back, and what stays is cut
    in more parts. So what gains little by itself may lose there. Islands that share kernels stay together, those that
    save the most time stay the longest.

    Returns:
        The sets, the first of all; none where no island has kernels.
    """
    groups: dict[str, set[str]] = {}
    saved: dict[str, float] = {}
    for m in islands:
        if m.kernels is not None:
            owner = m.report.same_as or m.report.name
            groups.setdefault(owner, set()).add(m.report.name)
            saved[owner] = saved.get(owner, 0.0) + m.report.baseline_seconds - m.report.best_seconds
    ordered = sorted(saved, key=lambda owner: -saved[owner])
    sizes = sorted({len(ordered), *((len(ordered) + 1) >> n for n in range(1, SETS))} - {0}, reverse=True)[:SETS]
    return [frozenset(name for owner in ordered[:n] for name in groups[owner]) for n in sizes]


def _step(made: _Made, first: _Made, takes: Sequence[str], gives: tuple[str, ...], weights_file: str) -> Step:
    """The call of an island's kernels, which were made for it or for the first one that is equal."""
    assert made.kernels is not None
    assert made.program is not None
    assert first.program is not None
    called = made.kernels.artifacts.report.name
    # What the function takes, in order, is what the program that was searched does: by the places of both programs'.
    places = {t.name: n for n, t in enumerate(first.program.inputs)}
    own = [made.program.inputs[places[t.name]].name for t in made.kernels.program.inputs]
    data = dict(zip((t.name for t in made.program.arguments), takes, strict=True))
    weights = tuple(n for n in own if n in made.program.weights)
    module = f"{made.report.folder}/{module_name(called)}"
    return Step(
        module, tuple(data[n] for n in own if n in data), gives, called, weights, weights_file if weights else ""
    )


def _digests(arrays: Mapping[str, np.ndarray]) -> list[str]:
    return [hashlib.sha256(x.tobytes()).hexdigest() for _, x in sorted(arrays.items())]


def _counts(name: str) -> bool:
    """Whether the file decides how fast the model is."""
    return name.endswith((".py", ".cpp", ".onnx"))


def _outcome(report: IslandReport) -> str:
    if report.why:
        return f"stay as they are: {report.why}"
    if report.same_as:
        return f"by the kernels of {report.same_as}"
    return f"{duration(report.baseline_seconds)} in onnxruntime, {duration(report.best_seconds)} by kernels"
