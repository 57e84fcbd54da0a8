"""Search: a program's regions, often one, and the proved sGraphs of the whole, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from prism.api.partitioned import PartitionedSearch, search_regions
from prism.api.proofs import ProvedSGraph
from prism.api.region_search import Search, SearchBudget, SearchResult
from prism.api.user_rules import rule_paths
from prism.cost.constant_folding import fold_constants
from prism.cost.device import Device
from prism.egraph.rules import FpClass
from prism.egraph.worker import Worker
from prism.errors import UsageError, other_kind, refusing_depth
from prism.events import Listener, Recorder
from prism.generate.partition import partition
from prism.platforms.choice import platform_of
from prism.program.assumptions import Stated, under
from prism.program.nodes import Program
from prism.program.region import Region
from prism.program.returned import computed


def search(
    program: Program,
    *,
    target: str = "sm_90",
    budget: SearchBudget | None = None,
    listener: Listener | None = None,
    workers: int = 1,
    rules: Sequence[Path | str] = (),
    assume: Stated = (),
) -> Search:
    """Proved sGraphs of a program, best bound first, each as soon as it is proved.

    Outputs that need no kernel (constants, inputs as they are) are left out, unless there are no others.
    A program of several regions (`prism.generate.partition`) is searched region by region; what is yielded then are
    sGraphs of the whole program: the best of each region first, later with other ones in place of one of them.

        for found in prism.search(program):        # stop whenever you have seen enough
            print(found.sgraph)

    Args:
        program: from `load` or `trace`.
        target: the device that it is for: sm_80, sm_89, sm_90, sm_100, or cpu or cuda for the
            one that is here.
        budget: bounds of the search.
        listener: called with progress events.
        workers: processes that prove. The sGraphs and their order do not depend on it.
        rules: rule files of your own, beside those that ship with prism; see docs/rules.md.
        assume: what is so of the inputs, as for `trace`, besides what is stated there.

    Returns:
        An iterator that is also a context manager; `.proved` and `.result()` keep what was found when it is
        interrupted. Its processes end with the iteration, `close()`, or when nobody holds it any more.

    Raises:
        UsageError: the target is unknown, the budget is none, there are no workers, or what is assumed is no statement
            of an input.
        RuleError: a rule file is not right, or one of its rules is wrong.
    """
    if not isinstance(budget, SearchBudget | None):
        raise other_kind("budget", budget, "a SearchBudget")
    if workers < 1:
        raise UsageError(f"{workers} workers", where="search", fix="give 1 or more")
    program, _ = computed(under(program, assume))
    program = fold_constants(program)
    recorder = Recorder(listener)
    chosen = platform_of(target, recorder.warn).device
    with refusing_depth(program.name):
        regions = partition(program, device=chosen)
    files = rule_paths(rules)
    bounds = budget or SearchBudget()
    running = [
        Worker(files, fp=bounds.fp) if files or bounds.fp != FpClass.DOMAIN else Worker() for _ in range(workers)
    ]
    if len(regions) > 1 or regions[0].loop is not None:
        return RegionalSearch(program, regions, chosen, bounds, running, recorder)

    def in_regions(nothing: SearchResult) -> Search:
        known = {regions[0].canonical().key: nothing}
        return RegionalSearch(program, regions, chosen, bounds, running, recorder, known)

    return Search(program, chosen, bounds, running, recorder, owned=True, otherwise=in_regions)


class RegionalSearch(Search):
    """The search of a program of several regions, as an iterator over sGraphs of the whole program.

    The regions are searched when the first is asked for; after an interrupt, those that were searched stay. The first
    sGraph is the best of each region; the others have another one in place of one region's, least time first. What is
    `known`, by the canonical key of its region, is not searched again. The workers end with the search.
    """

    def __init__(
        self,
        program: Program,
        regions: Sequence[Region],
        target: Device,
        budget: SearchBudget,
        workers: Sequence[Worker],
        recorder: Recorder,
        known: Mapping[str, SearchResult] | None = None,
    ) -> None:
        super().__init__(program, target, budget, workers, recorder, owned=True)
        self._regions = tuple(regions)
        self._known: dict[str, SearchResult] = dict(known or {})
        self._found: PartitionedSearch | None = None
        self._picks: list[tuple[ProvedSGraph, ...]] = []
        self._made: list[ProvedSGraph] = []

    def __next__(self) -> ProvedSGraph:
        """The next best sGraph of the whole program; raises what `Search.__next__` raises."""
        if self._closed:
            raise StopIteration
        if self._found is None:
            self._found = search_regions(
                self._program, self._regions, self._target, self._budget, self._workers[:1], self._recorder, self._known
            )
            self._picks = _picks(self._found, self._budget.max_sgraphs)
        if len(self._made) == len(self._picks):
            self._closed = True
            self._end()
            raise StopIteration
        picks = self._picks[len(self._made)]
        composed = self._found.compose([p.sgraph for p in picks])
        self._made.append(self._found.whole(picks, composed))
        return self._made[-1]

    @property
    def proved(self) -> tuple[ProvedSGraph, ...]:
        """The sGraphs of the whole program that were asked for, best first."""
        return tuple(self._made)

    def result(self) -> SearchResult:
        """The regions' searches as one.

        Raises:
            UsageError: not all regions have been searched yet.
        """
        if self._found is None or not self._made:
            raise UsageError("the search has not begun", fix="ask for the first sGraph: next(search)")
        return replace(self._found.result(self._made[0]), proved=self.proved)

    def close(self) -> None:
        """End the search; its workers are killed, what was proved stays."""
        self._closed = True
        self._end()


def _picks(found: PartitionedSearch, limit: int) -> list[tuple[ProvedSGraph, ...]]:
    """A proved sGraph for each region: the best of each, then with one of them replaced, least time first."""
    best = [r.result.proved[0] for r in found.regions if r.result.proved]
    if len(best) < len(found.regions):
        return []
    others = [
        (other.seconds - best[n].seconds, n, place, (*best[:n], other, *best[n + 1 :]))
        for n, r in enumerate(found.regions)
        for place, other in enumerate(r.result.proved[1:])
    ]
    others.sort(key=lambda t: t[:3])
    return [tuple(best), *(picks for _, _, _, picks in others[: limit - 1])]
