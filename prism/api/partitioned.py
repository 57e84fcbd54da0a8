"""Programs of several regions: each region is searched, equal ones once, and the results are put together.

    partition      program -> regions                        (prism.generate.partition)
    search         distinct regions -> proved sGraphs        here, by `run_search`
    compose        a proved sGraph a region -> one sGraph    (prism.sgraph.compose)

A region in which nothing is proved is cut into smaller ones, in the end operator by operator, so that one hard operator
does not take the others with it. `optimize` does the same where a region's kernels round worse than what was given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from queue import SimpleQueue

from prism.api.proofs import ProvedSGraph
from prism.api.records import Choice
from prism.api.region_search import Search, SearchBudget, SearchResult, run_search
from prism.api.results import Results
from prism.api.second_opinion import merged as merged_opinions
from prism.api.time_limit import CROWDED, ENDLESS, SearchTime, here
from prism.api.trivial import nothing_to_gain
from prism.cost.cpu import CpuModel
from prism.cost.device import Device
from prism.cost.model import CostModel, Model, baseline_estimate
from prism.cost.regions import moved
from prism.cost.roofline import full
from prism.egraph.rules import FpClass
from prism.egraph.worker import Worker
from prism.errors import VerificationError, of_part
from prism.events import CheckSummary, Recorder
from prism.generate.enumerate import Candidate, Generated
from prism.generate.memory_order import arranged
from prism.generate.neighbours import Pair, merged, pairs
from prism.generate.partition import RegionBounds, partition, searchable, size_of, unrepeated, whole
from prism.instantiate.options import OPTIONS
from prism.instantiate.point_tables import MAX_POINTS
from prism.instantiate.space import Space
from prism.instantiate.study import Best, Trial, TuneResult
from prism.process.deadline import NEVER, Deadline, OutOfTimeError
from prism.program.assumptions import stated_texts
from prism.program.extents import evaluate
from prism.program.loops import stacks
from prism.program.nodes import Expr, Formula, Program, Steps, Tensor
from prism.program.region import Canonical, Region, subprogram
from prism.program.transform import with_tensors
from prism.program.verdict import Status, Verdict
from prism.report.units import duration
from prism.sgraph.compose import Composed, Part, compose
from prism.sgraph.config import Config, Resources
from prism.sgraph.denote import Denotation
from prism.sgraph.nodes import SGraph
from prism.sgraph.resident import launched

ONE_BY_ONE = RegionBounds(products=0, reductions=0, operators=0, outputs=1)
"""Bounds that nothing is within, so every operator is a region of its own."""
FINER = (RegionBounds(2, 4, 24, 2), RegionBounds(1, 2, 16, 1), ONE_BY_ONE)
"""How a region is cut in which nothing was proved: by the first bounds that it is not within."""


NARROW = 4
"""Neighbours' search as one has so many times less e-nodes and forms than a region's may have,"""
GROWTH = 2
"""and at most so many times the e-nodes that both have."""
FREE = 500
"""E-nodes of searches for nothing that no program is too small for: half a second to one, of a CPU (measured)."""
START_S = 0.4
"""What a worker that is ended in the midst of something takes until another is ready, seconds (0.34 measured): a proof
that is under way when the slice of a region ends is given as long, as those of the next ones would wait for it."""
HURRIED, HURRIED_ITERATIONS = 8, 4
"""Where the time of searches is over, so many times less e-nodes and so many rounds of the rules do for a proof of the
form as written: 16 regions of a Swin take 2.4 CPU seconds to their first proofs, and 6.5 otherwise (measured)."""
PARTS_S = 1e3
"""What the parts of a program that is searched as one, too, take at most, seconds (a guess, any large one does): as
they do the same, its search as one does not go on where its first round built nothing that can run. A CAME step listed
25,000 plans for nothing, three quarters of its search."""
BEFORE_WHOLE = 0.5
"""Of the time of searches parts have so much until what they come to is known, where the program as one comes last."""
NEAR = 1.35
"""Parts whose bounds are less than so many times that of the program as one may be faster: the bounds of 15 gradients
are 1.1 to 2 times below estimates, and the parts of an attention with a pair bias, at 1.33, are the faster by these."""
ESTIMATED, AT_POINTS = 3, 20_000
"""Of so many of each, with the least bounds, it is estimated then what they take at the best of so many configurations,
0.01 to 0.3 CPU seconds each; and 1.5 of one with 400,000 (measured)."""
APART = 0.1
"""Of what differs by more than this share the estimates of a few tell which is faster."""
NOTHING = SearchResult((), (), Generated((), 0, {}, complete=False), 0, 0, 0, "it failed")
"""The result of a search that failed."""
GAINED = 0.02
"""Neighbours are one region where that takes this share off their time."""


@dataclass(frozen=True, slots=True)
class RegionSearch:
    """A region and what its search found."""

    region: Region
    canonical: Canonical  # the region without names: what was searched
    result: SearchResult  # the search of `canonical.program`; equal regions share it


@dataclass(frozen=True, slots=True)
class Joined:
    """Neighbouring regions that are one, as that is faster by the cost model."""

    made: tuple[tuple[str, ...], tuple[str, ...]]  # what each of them makes
    before: float  # seconds that they took one after the other
    after: float  # seconds that they take as one
    times: int  # how many such pairs there are

    def __str__(self) -> str:
        one, other = (", ".join(m) for m in self.made)
        often = f", {self.times} times" if self.times > 1 else ""
        seconds = f"{duration(self.after)} instead of {duration(self.before)}"
        return f"{one} and {other} are one region, estimated at {seconds}{often}"


@dataclass(frozen=True, slots=True)
class PartitionedSearch:
    """The searches of a program's regions."""

    program: Program  # the whole program
    regions: tuple[RegionSearch, ...]  # in an order in which they can run
    joined: tuple[Joined, ...] = ()  # those of them that were several
    # Steps of loops, by the key of their canonical form, that are launches even where they could be one.
    waiting: frozenset[str] = frozenset()

    def __str__(self) -> str:
        said = [f"{len(self.regions)} regions, {len(self.distinct)} of them different", *map(str, self.joined)]
        return "; ".join(said)

    @property
    def distinct(self) -> dict[str, RegionSearch]:
        """One region of each kind, by the key of its canonical form, in order."""
        found: dict[str, RegionSearch] = {}
        for r in self.regions:
            found.setdefault(r.canonical.key, r)
        return found

    def compose(self, picks: Sequence[SGraph]) -> Composed:
        """One sGraph for the whole program, of an sGraph of each region's canonical program."""
        parts = [self._part(r, g) for r, g in zip(self.regions, picks, strict=True)]
        outputs = [self.program.definition(n).tensor for n in self.program.outputs]
        return compose(self.program.name, self.program.inputs, outputs, parts, stacks(self.program))

    def _part(self, r: RegionSearch, sgraph: SGraph) -> Part:
        return Part(sgraph, r.canonical.names, r.region.loop, r.canonical.key in self.waiting, r.canonical.key)

    def through_steps(self, r: RegionSearch) -> ThroughSteps | None:
        """All steps of a loop as a program, where one launch may be all of them; None elsewhere."""
        loop = r.region.loop
        of_loop = [x for x in self.regions if x.region.loop is not None and loop is not None]
        if loop is None or sum(x.region.loop == loop for x in of_loop) != 1:
            return None
        made = [d for d in self.program.definitions if isinstance(d.expr, Steps) and d.expr.loop.name == loop.name]
        names = [d.name for d in made]
        program = subprogram(self.program, f"{r.region.program.name}_all", names, set(self.program.order) - {*names})
        outputs = [d.tensor for d in made]
        found: list[tuple[ProvedSGraph, Composed]] = []
        for p in r.result.proved:
            parts = [self._part(r, p.sgraph)]
            composed = compose(program.name, program.inputs, outputs, parts, stacks(self.program))
            if composed.sgraph.repeats[0].resident:
                found.append((p, composed))
        return ThroughSteps(program, tuple(found)) if found else None

    def whole(self, picks: Sequence[ProvedSGraph], composed: Composed) -> ProvedSGraph:
        """The composed sGraph with the regions' proofs as its own.

        Its denotation is the regions', one after the other, each over the tensors at its boundary.
        """
        outputs: list[Expr] = []
        for r, p in zip(self.regions, picks, strict=True):
            outputs += with_tensors(p.denotation.outputs, r.canonical.names.__getitem__)
        rules = dict.fromkeys(name for p in picks for name in p.verdict.rules)
        classes = {c for p in picks for c in p.verdict.classes}
        how, _, _ = picks[0].verdict.reason.partition(", assuming ")
        loops = self.program.loops
        joined = "".join(f"; {j}" for j in self.joined)
        steps = "; a loop's step is proved for all states, so all steps are, by induction" if loops else ""
        verdict = Verdict(
            Status.PROVED,
            f"region by region, {len(picks)} of them ({len(self.distinct)} different): {how}{steps}{joined}",
            enodes=max(p.verdict.enodes for p in picks),
            iterations=max(p.verdict.iterations for p in picks),
            rules=tuple(rules),
            classes=tuple(c for c in FpClass if c in classes),
        )
        # What is stated is said of the whole's inputs, which regions call otherwise.
        own = [set(stated_texts(r.canonical.program.inputs)) for r in self.regions]
        granted = (c for p, said in zip(picks, own, strict=True) for c in p.verdict.assumptions if c not in said)
        verdict = verdict.assuming(tuple(dict.fromkeys((*granted, *stated_texts(self.program.inputs)))))
        splits = dict.fromkeys(e for p in picks for e in p.denotation.split)
        seconds = sum(p.seconds for p in picks)
        opinion = merged_opinions(p.opinion for p in picks)
        return ProvedSGraph(composed.sgraph, verdict, Denotation(tuple(outputs), tuple(splits)), seconds, opinion)

    def result(self, whole: ProvedSGraph) -> SearchResult:
        """The searches as one: counts added up, the formulas of all regions, the composed sGraph proved.

        Equal regions are counted once, as they were searched.
        """
        found = [r.result for r in self.distinct.values()]
        pruned: Counter[str] = Counter()
        seconds: Counter[str] = Counter()
        for r in found:
            pruned.update(r.generated.pruned)
            seconds.update(r.seconds)
        generated = Generated(
            (),
            sum(r.generated.generated for r in found),
            dict(sorted(pruned.items())),
            all(r.generated.complete for r in found),
        )
        return SearchResult(
            tuple(_formula(f, r) for r in self.regions for f in r.result.formulas),
            (whole,),
            generated,
            sum(r.refuted for r in found),
            sum(r.unknown for r in found),
            sum(r.enodes for r in found),
            ", ".join(dict.fromkeys(r.stopped for r in found)),
            dict(seconds),
            any(r.interrupted for r in found),
        )


@dataclass(frozen=True, slots=True)
class ThroughSteps:
    """All steps of a loop by one launch."""

    program: Program  # what the steps make, of what is around the loop
    made: tuple[tuple[ProvedSGraph, Composed], ...]  # the proved sGraphs of a step, each with that of all steps

    def result(self, step: SearchResult) -> SearchResult:
        """The search of a step as one of all steps."""
        return replace(step, proved=tuple(replace(p, sgraph=c.sgraph) for p, c in self.made))

    def of_step(self, choice: Choice, model: Callable[[SGraph, Mapping[str, int]], CostModel]) -> Choice:
        """What was chosen for all steps as the choice of a step, in its names and with its share of the time."""
        proved, composed = next((p, c) for p, c in self.made if c.sgraph == choice.proved.sgraph)
        (names,) = composed.names
        best = choice.best
        launches = {new: old for old, new in names.launches.items()}
        config = best.config.renamed({new: new for new in best.config.symbols}, launches)
        config = replace(config, symbols={old: best.config.symbols[new] for old, new in names.symbols.items()})
        resources = tuple(replace(r, kernel=launches[r.kernel]) for r in best.resources)
        hints = self.program.hints
        share = best.seconds / evaluate(composed.sgraph.repeats[0].trips, hints)
        own = replace(best, config=config, seconds=share, resources=resources)
        return replace(choice, proved=proved, best=own, model=model(proved.sgraph, hints))


def search_regions(
    program: Program,
    regions: Sequence[Region],
    target: Device,
    budget: SearchBudget,
    workers: Sequence[Worker],
    recorder: Recorder,
    known: dict[str, SearchResult] | None = None,
    kept: Results | None = None,
    as_one: bool = True,
    time: SearchTime = ENDLESS,
) -> PartitionedSearch:
    """Search every region of a program; what is found does not depend on the number of workers.

    Where the program is searched as one, too, that comes first: its parts are searched for as long as they may be
    faster, one after another. It comes last where it would compute products again that its parts hand over: then only
    what looks faster than these is built. With one worker it is generated of both what there is before anything is
    proved, and what loses by that is not proved; where the time is limited, only where the program comes last. Then
    neighbours are searched as one, where that may gain something (`join`).

    Where the time is limited each search has a slice of it, and ends with what is proved by then. A region of which
    nothing is goes on in parts; searches that were cut off have another turn where time is left. On a machine that
    others use a lot all have a first proof before any has more. As many are searched at a time as there are workers.
    What is `known`, by the canonical key of its region, is not searched again, and what is found is added; `kept` are
    searches of earlier runs. `as_one` is whether a program a little beyond the bounds of a region is searched as one,
    too, and neighbours are; `time` is what it may take, with one worker.

    Raises:
        UnsupportedError: an index of a region cannot be made affine.
        WorkerError: an e-graph worker ran into its time limit twice.
        OutOfTimeError: nothing is to be begun, and none of these was; or of some operator nothing was proved in time.
    """
    program = arranged(program)
    done = {} if known is None else known
    if kept is not None and kept.closing and not any(kept.search(r.canonical().program, budget, 0.0) for r in regions):
        raise OutOfTimeError
    searching = _Searching(target, budget, workers, recorder, done, kept)
    one = _AsOne.of(program, regions, searching, time) if as_one else _AsOne(searching, searching)
    one.begin(regions, time)
    if one.is_proved:
        # What there is already needs no first proofs of parts when the time is over.
        time = replace(time, last=time.until)
    # On a machine that others use slices that are long enough for a first proof elsewhere end before it.
    at_first = time.proofs_alone() if here(1.0) >= CROWDED else time
    while True:
        forms = [r.canonical() for r in regions]
        slower = partial(one.is_faster, forms)
        if one.bound < math.inf and not one.found:
            searching.outlook(regions, NEAR * one.bound, time.until)
        found = searching.search(regions, at_first, slower)
        if slower() and not one.found:
            # Of the whole the proofs are left; what of it is proved may be slower than what was generated.
            one.search(time)
            found = searching.search(regions, at_first, slower)
        if slower() or (one.is_proved and not time.until.left and len(found) < len(regions)):
            return PartitionedSearch(program, tuple(one.found))
        parts: list[Region] = []
        for region, form in zip(regions, forms, strict=True):
            result = done.get(form.key)
            parts += [region] if result is not None and result.proved else finer(region)
        if len(parts) == len(regions):
            break
        regions = unrepeated(parts)
    if len(found) < len(regions):
        if one.is_proved:
            return PartitionedSearch(program, tuple(one.found))
        raise OutOfTimeError
    if time.until.finite:
        found = searching.search_again(found, time)
        if any(r.result.interrupted and not r.result.proved for r in found):
            raise OutOfTimeError  # of one operator: a larger search may prove what a small one left undecided
    if one.is_left and time.until.left:
        one.below(regions)
        one.search(replace(time, last=time.until))
        if one.is_faster([r.canonical for r in found]):
            return PartitionedSearch(program, tuple(one.found))
    best = PartitionedSearch(program, tuple(found))
    # Where nothing was proved of one operator, nothing comes of the program.
    if as_one and all(r.result.proved for r in found):
        with suppress(OutOfTimeError), time.until.limited():
            for better in searching.join(best):
                best = better
    return best


@dataclass(slots=True)
class _AsOne:
    """A program that is searched as one, too, beside its parts.

    Attributes:
        parts: what searches its parts.
        searching: what searches it as one, within bounds of its own.
        region: it as one; None where it is not searched so.
        last: whether it comes after its parts: it computes products again that these hand over, so that it is dear to
            search, and seldom faster.
        ahead: whether it is generated of both what there is before anything is proved.
        found: its search, as soon as something of it was to be proved; nothing where there was no time for that.
        bound: the least bound of what is known of it, seconds; infinite where that is nothing.
    """

    parts: _Searching
    searching: _Searching
    region: Region | None = None
    last: bool = False
    ahead: bool = False
    found: Sequence[RegionSearch] = ()
    bound: float = math.inf

    @staticmethod
    def of(program: Program, regions: Sequence[Region], parts: _Searching, time: SearchTime) -> _AsOne:
        """The program as one, where it may be."""
        target, budget = parts.target, parts.budget
        # One region that stores more than the outputs is no more the program than several are.
        cut = len(regions) > 1 or any(r.outputs != program.outputs for r in regions)
        region = whole(program, target) if cut else None
        if region is None:
            return _AsOne(parts, parts)
        beyond = not searchable(program, target)
        # Where the time is limited, one within the bounds is to have a first proof soon, as a region has.
        below = math.inf if time.until.finite and not beyond else PARTS_S
        own = replace(budget, max_rounds=1 if beyond else budget.max_rounds, below=below)
        products = sum(size_of(r.program, target).products for r in regions)
        last = size_of(program, target).products > products
        ahead = len(parts.workers) == 1 and (last or not time.until.finite)
        return _AsOne(parts, replace(parts, budget=own), region, last, ahead)

    @property
    def is_proved(self) -> bool:
        """Whether something of it is proved."""
        return bool(self.found) and self.bound < math.inf

    @property
    def is_left(self) -> bool:
        """Whether nothing was generated of it yet."""
        return self.region is not None and self.last and not self.ahead

    def begin(self, regions: Sequence[Region], time: SearchTime) -> None:
        """Search it, or generate what there is of it; after what there is of its parts, where it comes last."""
        if self.region is None or self.is_left:
            return
        if self.ahead:
            if self.last:
                self.parts.outlook(regions, until=time.until.part(BEFORE_WHOLE))
                self.below(regions)
            self.searching.outlook([self.region], until=time.until)
            self.bound = self.searching.bound(self.region.canonical())
        if not self.last and self.bound == math.inf:
            self.search(time)

    def below(self, regions: Sequence[Region]) -> None:
        """Leave out from now on what is no faster than what is known of its parts."""
        took = sum(self.parts.bound(r.canonical()) for r in regions)
        own = replace(self.searching.budget, below=took)
        self.searching = replace(self.searching, budget=own, done={}, begun={})

    def search(self, time: SearchTime) -> None:
        """Prove what there is of it."""
        assert self.region is not None
        self.found = self.searching.search([self.region], time)
        self.bound = self.searching.bound(self.region.canonical())

    def is_faster(self, parts: Sequence[Canonical]) -> bool:
        """Whether what is known of these, and what is not at its least, takes longer than it."""
        if self.bound == math.inf or sum(map(self.parts.at_least, parts)) >= NEAR * self.bound:
            return self.bound < math.inf
        if self.region is None or any(self.parts.bound(p) == math.inf for p in parts):
            return False
        few = partial(self.parts.seconds, few=True)
        return sum(map(few, parts)) >= (1 - GAINED) * self.searching.seconds(self.region.canonical(), few=True)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a search of a region comes to."""

    result: SearchResult  # what it found
    warnings: Sequence[str]  # of it
    given: float  # the seconds of the run for which it is kept where it was cut off; 0 of one that was none to speak of


@dataclass(frozen=True, slots=True)
class _Searching:
    """Searches regions.

    Attributes:
        target, budget, workers, recorder, kept: as of `search_regions`.
        done: results by the canonical key of their region: those are not searched again, and what is found is added.
        settled: keys of those that an earlier run cut off which had as much time as this one, or more.
        begun: searches by the same keys of which everything is generated, and nothing proved yet.
        moved: bytes that regions load and store at least, by the same keys.
        estimates: seconds of sGraphs, by the same keys, the sGraph and how many configurations were ranked.
    """

    target: Device
    budget: SearchBudget
    workers: Sequence[Worker]
    recorder: Recorder
    done: dict[str, SearchResult]
    kept: Results | None
    settled: set[str] = field(default_factory=set)
    begun: dict[str, tuple[Search, Recorder]] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    estimates: dict[tuple[str, SGraph, int], float] = field(default_factory=dict)

    def outlook(self, regions: Sequence[Region], rival: float = math.inf, until: Deadline = NEVER) -> None:
        """Generate what there is of the regions, and prove nothing, until they take no less than a rival by that.

        It ends where a search fails, too: what failed is told where it goes on. Where the time is limited, each has an
        equal part of what is left.
        """
        forms = [r.canonical() for r in regions]
        self._recall(forms, ENDLESS)
        for n, c in enumerate(forms):
            if sum(map(self.at_least, forms)) >= rival:
                return
            if c.key not in self.done and c.key not in self.begun:
                quiet = Recorder()
                search = Search(c.program, self.target, self.budget, self.workers, quiet)
                try:
                    search.outlook(until.part(1 / (len(forms) - n)))
                except Exception:
                    return
                self.begun[c.key] = search, quiet

    def _made(self, of: Canonical) -> Sequence[ProvedSGraph | Candidate]:
        """What is proved of a region, or was generated where nothing is proved yet; best bound first."""
        found, begun = self.done.get(of.key), self.begun.get(of.key)
        if found is not None:
            return found.proved
        return () if begun is None else begun[0].outlook()

    def bound(self, of: Canonical) -> float:
        """The least bound of what is known of a region, in seconds; infinite where that is nothing."""
        return min((m.seconds for m in self._made(of)), default=math.inf)

    def seconds(self, of: Canonical, few: bool = False) -> float:
        """What a region takes by the cost model; infinite where nothing is known of it.

        Where that will do, of the `few` with the least bounds, at fewer configurations.
        """
        made, most = (self._made(of)[:ESTIMATED], AT_POINTS) if few else (self._made(of), MAX_POINTS)
        keys = [(of.key, m.sgraph, most) for m in made]
        for key in keys:
            if key not in self.estimates:
                self.estimates[key] = _estimated(of.program, key[1], self.target, most)
        return min((self.estimates[k] for k in keys), default=math.inf)

    def at_least(self, of: Canonical) -> float:
        """The same bound; where nothing is known of a region, seconds that no sGraph of it beats.

        It is launched, loads what it reads and stores what it makes; what hangs on weights alone is made before any
        call.
        """
        least, program = self.bound(of), of.program
        if least < math.inf:
            return least
        if all(t.weight for t in program.inputs):
            return 0.0
        if of.key not in self.moved:
            self.moved[of.key] = moved(program)
        return float(full(self.target, self.moved[of.key], 0.0)) + self.target.launch_overhead_s

    def search(
        self,
        regions: Sequence[Region],
        time: SearchTime = ENDLESS,
        enough: Callable[[], bool] = lambda: False,
        again: bool = False,
    ) -> list[RegionSearch]:
        """The searches of the regions, up to where it is `enough`.

        Where the time is limited, regions from which most may be gained come first, and what one does not need of its
        slice is for those after it. The results of those of which nothing was proved in time are not there. What
        earlier runs cut off counts, unless it is searched `again`.
        """
        forms = [r.canonical() for r in regions]
        self._recall(forms, time, again)
        distinct = {} if enough() else {c.key: c.program for c in forms if c.key not in self.done}
        gains: list[float] = []
        if time.until.finite:
            most = _most_first(forms, self.target)
            distinct = {k: distinct[k] for k in most if k in distinct}
            gains = [most[k] for k in distinct]
        # A worker serves one search at a time; what it served before does not matter.
        free: SimpleQueue[Worker] = SimpleQueue()
        for w in self.workers:
            free.put(w)

        def one(
            key: str, region: Program, bounds: SearchBudget, until: Deadline = NEVER, patience: float = 0.0
        ) -> _Answer:
            # Stages of searches that run side by side would overlap: the caller times them all together.
            begun, quiet = self.begun.pop(key, (None, Recorder()))
            worker = free.get()
            try:
                try:
                    result = run_search(region, self.target, bounds, worker, quiet, until, begun, patience)
                except Exception as error:
                    return _Answer(NOTHING, [unsearched(region, error)], 0.0)
                # A region of one operator is there because of the others: not worth a word.
                alone = f"there is nothing to gain: {nothing_to_gain(region)}"
                return _Answer(result, [w for w in quiet.warnings if w != alone], until.given)
            finally:
                free.put(worker)

        def in_slice(n: int, key: str, region: Program) -> _Answer | None:
            if gains:
                self.workers[0].ready()  # a child starts anew after one that was cut off, which is no region's time
            mine = time.slice(len(distinct) - n, gains[n] / (sum(gains[n:]) or 1.0)) if gains else ENDLESS
            late = not mine.until.left
            patience = START_S if n + 1 < len(distinct) else 0.0
            try:
                with mine.last.limited():
                    answer = one(key, region, hurried(self.budget) if late else self.budget, mine.until, patience)
            except OutOfTimeError:
                return None
            return replace(answer, result=replace(answer.result, interrupted=True), given=0.0) if late else answer

        if len(self.workers) == 1:
            answers = (in_slice(n, *region) for n, region in enumerate(distinct.items()))
            self._collect(distinct, answers, enough)
        else:
            with ThreadPoolExecutor(len(self.workers)) as pool:
                try:
                    every = pool.map(lambda each: one(each[0], each[1], self.budget), distinct.items())
                    self._collect(distinct, every, lambda: False)
                except BaseException:
                    # The threads wait for their workers: without those they end.
                    pool.shutdown(wait=False, cancel_futures=True)
                    for w in self.workers:
                        w.close()
                    raise
        return [RegionSearch(r, c, self.done[c.key]) for r, c in zip(regions, forms, strict=True) if c.key in self.done]

    def _collect(
        self,
        distinct: Mapping[str, Program],
        answers: Iterable[_Answer | None],
        enough: Callable[[], bool],
    ) -> None:
        for n, (key, answer) in enumerate(zip(distinct, answers, strict=True)):
            if answer is not None:
                self.done[key] = answer.result
                if self.kept is not None and not answer.warnings:
                    self.kept.keep_search(distinct[key], self.budget, answer.result, answer.given)
                for message in answer.warnings:
                    self.recorder.warn(message)
            self.recorder.count("regions", n + 1, len(distinct))
            if enough():
                break

    def _recall(self, forms: Sequence[Canonical], time: SearchTime, again: bool = False) -> None:
        """What earlier runs found of regions is done, as of `search`."""
        for c in forms:
            if self.kept is None or c.key in self.done:
                continue
            found = self.kept.search(c.program, self.budget, math.inf if again else time.until.given)
            if found is not None:
                self.settled.add(c.key)
            elif time.until.finite and not again:
                found = self.kept.search(c.program, self.budget, 0.0)
            if found is not None:
                self.done[c.key] = found

    def search_again(self, found: Sequence[RegionSearch], time: SearchTime) -> list[RegionSearch]:
        """Search again, from which most may be gained first, what was cut off, where each has more time than it had."""
        by_key = {r.canonical.key: r for r in found if r.result.interrupted and r.canonical.key not in self.settled}
        due = [by_key[k] for k in _most_first([r.canonical for r in found], self.target) if k in by_key]
        while due and time.until.left < len(due) * max(sum(r.result.seconds.values()) for r in due):
            due.pop()
        before = {r.canonical.key: self.done.pop(r.canonical.key) for r in due}
        time = replace(time, last=time.until)
        self.search([r.region for r in due], time, again=True)
        for key, cut in before.items():
            again = self.done.get(key)
            if again is None or (again.interrupted and bound(again) >= bound(cut)):
                self.done[key] = cut
                if again is not None and self.kept is not None:
                    self.kept.keep_search(by_key[key].canonical.program, self.budget, cut, time.until.given)
        return [replace(r, result=self.done[r.canonical.key]) for r in found]

    def join(self, searches: PartitionedSearch) -> Iterator[PartitionedSearch]:
        """The searches with neighbours as one where that is faster by the cost model, pair after pair.

        First come those between which there is most, counted as often as there are such pairs. Such a search is
        narrow: fewer e-nodes and forms, and one round, in which only plans are built that look faster than the two one
        after the other. What is searched for nothing has all together about as many e-nodes as the regions have.
        """
        left = max(FREE, sum(r.result.enodes for r in searches.distinct.values()))
        refused: set[tuple[str, str, str]] = set()
        runs, found = _pairs(searches, self.target)
        while True:
            many = Counter(kind for _, _, kind in found)
            may = [(n, p, k) for n, p, k in found if k not in refused]
            if not may or left <= 0:
                return
            place, pair, kind = max(may, key=lambda c: many[c[2]] * c[1].saved)
            _, run = runs[place]
            first, second = run[pair.first], run[pair.second]
            took = bound(first.result) + bound(second.result)
            tried = {k: result for k, result in self.done.items() if k == pair.canonical.key}
            most = min(-(-self.budget.enodes // NARROW), GROWTH * (first.result.enodes + second.result.enodes))
            narrow = replace(
                self.budget, below=took, max_rounds=1, max_forms=-(-self.budget.max_forms // NARROW), enodes=most
            )
            # What was searched as one already has its own bounds.
            begun = self.begun.get(pair.canonical.key)
            bounds = narrow if begun is None else begun[0].budget
            apart = replace(self, budget=bounds, recorder=Recorder(), done=tried)
            (one,) = apart.search([pair.region])
            before, after = 0.0, math.inf
            # Estimates of all that is proved are dear: a few tell where the two are far from each other.
            for few in (True, False) if one.result.proved else ():
                after = apart.seconds(one.canonical, few)
                before = self.seconds(first.canonical, few) + self.seconds(second.canonical, few)
                if after > (1 + APART) * before:
                    break
            if after > (1 - GAINED) * before:
                refused.add(kind)
                left -= one.result.enodes
                continue
            self.done[pair.canonical.key] = one.result
            now: list[RegionSearch] = []
            times = 0
            for n, (scope, run) in enumerate(runs):
                chosen = [p for m, p, k in found if m == n and k == kind]
                together = merged(scope, [r.region for r in run], chosen) if chosen else [r.region for r in run]
                times += len(run) - len(together)
                forms = [r.canonical() for r in together]
                now += [RegionSearch(r, c, self.done[c.key]) for r, c in zip(together, forms, strict=True)]
            made = first.region.outputs, second.region.outputs
            searches = replace(
                searches, regions=tuple(now), joined=(*searches.joined, Joined(made, before, after, times))
            )
            yield searches
            runs, found = _pairs(searches, self.target)


def unsearched(region: Program, error: Exception) -> str:
    """What is said of a region whose search failed, which costs the region, and not what is around it.

    Raises:
        VerificationError: the identity test contradicts a proof, so that none can be trusted.
    """
    if isinstance(error, VerificationError):
        raise error
    failed = of_part(error)
    return f"the search of {region.name} failed: {failed.what}: {failed.why}"


def hurried(budget: SearchBudget) -> SearchBudget:
    """Bounds of a small search, which is for a first proof alone."""
    return replace(budget, enodes=-(-budget.enodes // HURRIED), iterations=HURRIED_ITERATIONS, max_rounds=1)


def bound(found: SearchResult) -> float:
    """The least estimated seconds of what a search proved; infinite where that is nothing."""
    return min((p.seconds for p in found.proved), default=math.inf)


def _most_first(forms: Sequence[Canonical], target: Device) -> dict[str, float]:
    """The different regions, and what all equal ones take operator by operator, by estimate: so much may be gained."""
    many = Counter(c.key for c in forms)
    programs = {c.key: c.program for c in forms}

    def seconds(key: str) -> float:
        return many[key] * baseline_estimate(programs[key], target, programs[key].hints).seconds

    return dict(sorted(((key, seconds(key)) for key in programs), key=lambda x: -x[1]))


def gains(searches: PartitionedSearch, target: Device) -> dict[str, float]:
    """By different region, what all equal ones take less by the best that was proved than operator by operator.

    Seconds, by estimate; what may be gained most comes first.
    """
    taken = _most_first([r.canonical for r in searches.regions], target)
    many = Counter(r.canonical.key for r in searches.regions)
    found = {key: max(0.0, taken[key] - many[key] * bound(r.result)) for key, r in searches.distinct.items()}
    return dict(sorted(found.items(), key=lambda x: -x[1]))


def _pairs(
    searches: PartitionedSearch, target: Device
) -> tuple[list[tuple[Program, list[RegionSearch]]], list[tuple[int, Pair, tuple[str, str, str]]]]:
    """The runs, and the pairs that are worth a search: the place of the run, and what equal pairs share."""
    runs = _runs(searches)
    found = [
        (n, pair, (run[pair.first].canonical.key, run[pair.second].canonical.key, pair.canonical.key))
        for n, (scope, run) in enumerate(runs)
        if not scope.loops
        for pair in pairs(scope, [r.region for r in run], [bound(r.result) for r in run], target)
    ]
    return runs, found


def _runs(searches: PartitionedSearch) -> list[tuple[Program, list[RegionSearch]]]:
    """The regions that follow each other and are of one program, with that program."""
    found = []
    for _, run in groupby(searches.regions, key=lambda r: "" if r.region.loop is None else r.region.loop.name):
        members = list(run)
        loop = members[0].region.loop
        found.append((searches.program if loop is None else loop.body, members))
    return found


def _estimated(program: Program, sgraph: SGraph, target: Device, most: int) -> float:
    """Seconds at the configuration that the cost model likes best, of so many; infinite where none is feasible."""
    model = (Model if target.is_gpu else CpuModel)(sgraph, target, program.hints)
    ranked = Space(sgraph, target, program.hints, most=most).points_ranked(model, 1)
    return min((estimate.seconds for _, estimate in ranked), default=math.inf)


def finer(region: Region) -> Sequence[Region]:
    """Several regions that do the same; the region itself where it is one operator."""
    cut = (partition(region.program, bounds) for bounds in FINER)
    found = next((regions for regions in cut if len(regions) > 1), (region,))
    return [replace(r, loop=region.loop) for r in found]


def _formula(f: Formula, of: RegionSearch) -> Formula:
    """A formula of the canonical region in the whole's names."""
    names = of.canonical.names
    tensor = Tensor(names[f.tensor.name], f.tensor.shape, f.tensor.dtype)
    (expr,) = with_tensors([f.expr], names.__getitem__)
    return Formula(tensor, f.index, expr)


def merged_checks(checks: Sequence[CheckSummary]) -> CheckSummary:
    """The numeric checks of all regions as one: cases add up, the worst is the worst of any."""
    worst: dict[str, float] = {}
    for c in checks:
        for draw, ratio in c.worst.items():
            worst[draw] = max(worst.get(draw, 0.0), ratio)
    return CheckSummary(checks[0].runner, sum(c.cases for c in checks), worst)


def composed_choice(
    searches: PartitionedSearch, picks: Sequence[Choice], model: Callable[[SGraph], CostModel]
) -> Choice:
    """The regions' choices as one of the whole program; what it is compared with is left to the caller.

    `picks` are what was chosen for the canonical program of each region, in order.
    """
    composed = searches.compose([p.proved.sgraph for p in picks])
    hints = searches.program.hints
    many = [1 if r.region.loop is None else evaluate(r.region.loop.trips, hints) for r in searches.regions]
    left = {x.name for x in launched(composed.sgraph)}
    configs: list[Config] = []
    resources: list[Resources] = []
    for p, names in zip(picks, composed.names, strict=True):
        # What is about all launches is chosen for the whole.
        own = p.best.config.having(**{o.name: () for o in OPTIONS if o.common})
        configs.append(own.renamed(names.symbols, names.launches))
        named = (replace(r, kernel=names.launches[r.kernel]) for r in p.best.resources)
        resources += [r for r in named if r.kernel in left]
    # What a launch of all steps does as well takes next to nothing: it stores nothing, and that launch reads instead.
    there = [not left.isdisjoint(names.launches.values()) for names in composed.names]
    taken = sum(n * p.best.seconds for n, p, t in zip(many, picks, there, strict=True) if t)
    best = Best(0, Config.together(configs).of(left), taken, tuple(resources))
    return Choice(
        proved=searches.whole([p.proved for p in picks], composed),
        best=best,
        model=model(composed.sgraph),
        tuned=_merged_studies(list({id(p.tuned): p.tuned for p in picks}.values()), best),
        checked=merged_checks([p.checked for p in picks]),
        baseline_seconds=sum(p.baseline_seconds for p in picks),
        baseline=picks[0].baseline,
    )


def _merged_studies(studies: Sequence[TuneResult], best: Best) -> TuneResult:
    """The studies as one that ended in `best`; candidates are numbered on from one study to the next."""
    trials: list[Trial] = []
    failures: Counter[str] = Counter()
    start = 0
    for s in studies:
        trials += [replace(t, point=replace(t.point, candidate=start + t.point.candidate)) for t in s.trials]
        start = max([start, *(t.point.candidate + 1 for t in trials)])
        failures.update(s.failures)
    return TuneResult(
        evidence=studies[0].evidence,
        trials=tuple(trials),
        ranking=(best,),
        failures=dict(sorted(failures.items())),
        compiled=sum(s.compiled for s in studies),
        deduplicated=sum(s.deduplicated for s in studies),
        resumed=sum(s.resumed for s in studies),
        feasible=sum(s.feasible for s in studies),
        swept=all(s.swept for s in studies),
    )
