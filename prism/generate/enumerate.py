"""Generation: walk the saturated e-graph and list the sGraphs in it.

    forms   an option for each e-class: how it is computed (options.py, forms.py)
    cuts    which e-classes are materialised, so which kernels there are (materialise.py); what windows that slide see
            is one over places (places.py); one after another where the operators one by one are more launches
    roles   what each axis of each kernel is (roles.py), scheduled into loops (schedule.py, families.py)
    written the form as the model has it has a place, whatever the bounds leave out (forms.py)
    launch  independent kernels that read a common tensor are one launch (launches.py)

Every value is an e-class and every op an e-node, so nothing is generated that could not be part of an equivalent
program; that it *is* one is for the prover to say. Pruners remove what cannot be best and lose nothing
(pruning.PRUNERS); bounds limit the space (`Bounds`, pruning.BOUNDS). Both count what they left out. Up to the bounds
the result holds, for every sGraph of the space and every feasible assignment of its symbols, an sGraph and an
assignment with no more bytes, work, launches and estimated seconds.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import sympy

from prism.cost.constraints import RoleBounds
from prism.cost.device import Device
from prism.cost.roofline import seconds
from prism.generate.families import Family, Space, Target, families
from prism.generate.forms import Form, distinct_forms, one_pass, shared_once, written
from prism.generate.materialise import PREPARED, Choices, Plan, Planner
from prism.generate.memory_order import copies, laid_out
from prism.generate.options import ONE_PASS, Weights, Within, below, fixed_classes, options
from prism.generate.places import Places, Window
from prism.generate.plan_estimate import PlanEstimate
from prism.generate.pruning import SLACK, Array, Reach, keep, reach
from prism.generate.values import Builder
from prism.ir.kit import Holds, parts, statements
from prism.process.deadline import NEVER, Deadline
from prism.program.classes import EClasses
from prism.program.index import Axis, Index
from prism.program.lookup import lookup
from prism.program.nodes import DType, Formula, Reduce, Tensor, walk
from prism.program.ops import OPS
from prism.sgraph import nodes as sg
from prism.sgraph.launches import fusable, fuse
from prism.sgraph.library import library_call
from prism.sgraph.ranges import Ranged

# So many sGraphs of one way to cut the program are ranked together before other ways get their turn.
PER_CUT = 4
# While nothing that was built can run, so many times as many families are built.
PATIENCE = 8
# Each further form with the same cuts is looked at as if it took so much longer: others get their turn.
ALIKE = 0.05
# A round gains something where it takes this share off the best estimate.
GAIN = 0.02
# No further round where the best estimate is at most so many times a bound below it: estimates are off by as much.
NEAR = 1.2
# Of the time that is left a round lists plans for this share, at most.
LISTED = 0.5
# What wider cuts add has so many kernels, and about as many launches.
CUT_TWICE = 3
# Later rounds visit plans that look as if they took less than so many times the best estimate: looks are rough.
HOPE = 1.2
# Plans of the form as written that are built until one can run.
WRITTEN_PLANS = 16
# So many of these that can run are built while they look faster than what the fastest one takes.
WRITTEN_BUILT = 3
# So many of the fastest plans get a further cut.
DEEPENED = 4
# A family of so many statements takes as long to look at as one of those that bounds count; a longer one as several.
LONG = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds the space.

    Attributes:
        max_kernels: launches in one sGraph; neither second stages of splits are counted, nor what outputs over other
            axes take besides the first. Further rounds go on to `Task.launches`.
        max_ops: operators (pointwise, reductions, products) in one kernel; of a form that reduces nothing, all.
        max_loops: loops in one kernel, nested or one after another.
        max_forms: forms that are walked.
        max_families: families of kernels that the first round builds, plans that look fastest first; each further
            round builds twice as many as the one before, and PATIENCE times as many are built in all while none of
            them makes a plan that can run.
        max_cuts: how many e-classes of a form the first round considers for materialisation together, of those with
            an axis, or sums that have none, that are neither leaves nor outputs; each of them is considered alone. Each
            further round considers twice as many.
        max_rounds: rounds; see `_rounds`.
        per_kernel: families kept for one kernel, best first.
        spares: families kept beside although others do no worse by every measure, best first.
        per_plan: combinations of its kernels' families that are looked at for one plan, best first.
        max_sgraphs: sGraphs handed to the prover, best first.
        below: seconds that something else takes which does the same: what looks slower is not built, and what is
            slower is not handed on.
        off: names of pruners (pruning.PRUNERS) that are switched off.
        roles: see RoleBounds.
    """

    max_kernels: int = 3
    max_ops: int = 64
    max_loops: int = 6
    max_forms: int = 16
    max_families: int = 80
    max_cuts: int = 6
    max_rounds: int = 3
    per_kernel: int = 8
    spares: int = 1
    per_plan: int = 16
    max_sgraphs: int = 48
    below: float = math.inf
    off: frozenset[str] = frozenset()
    roles: RoleBounds = field(default_factory=RoleBounds)


@dataclass(frozen=True, slots=True)
class Task:
    """What is searched: outputs over a saturated e-graph."""

    name: str
    inputs: tuple[Tensor, ...]
    formulas: tuple[Formula, ...]  # the outputs, or pieces of them; `classes.roots` are their e-classes
    classes: EClasses  # the saturated e-graph
    hints: Mapping[str, int]  # the value of every symbol at which costs are compared first
    device: Device  # what the sGraphs are for
    # Further values of the symbols: a family is kept that is best at any of them.
    points: tuple[Mapping[str, int], ...] = ()
    launches: int = 0  # those of the program's operators one by one; plans may have as many
    operands: DType | None = None  # of the program's products, see `Kernel`

    @property
    def reduces(self) -> bool:
        """Whether anything of it is a reduction; an element that is looked up is none."""
        return any(isinstance(e, Reduce) and lookup(e) is None for f in self.formulas for e in walk(f.expr))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sGraph, not yet proved."""

    sgraph: sg.SGraph  # the family
    # Its least estimated time over its feasible assignments, on the device of the task; for ranking only.
    seconds: float
    written: bool = False  # whether it computes every value as the model does (`forms.written`); at most one does
    spare: bool = False  # whether others do no worse by every measure
    turn: int = 0  # how many others cut the program alike and are faster by this estimate


@dataclass(frozen=True, slots=True)
class Generated:
    """What generation found."""

    candidates: tuple[Candidate, ...]  # best first
    generated: int  # how many families of kernels and combinations of them were built
    pruned: Mapping[str, int]  # how many each pruner removed, and each bound and constraint left out, by its name
    complete: bool = True  # whether every form of the e-graph was walked
    ended: bool = False  # whether its time was over before it was done


@dataclass(frozen=True, slots=True)
class _Pick:
    """A plan with a family for each of its kernels."""

    plan: Plan
    families: tuple[_Kept, ...]  # one a group
    fused: tuple[tuple[int, ...], ...]  # places of families whose kernels are one launch, for each such launch
    device: Device  # what runs them
    launches: int  # kernels launched
    seconds: float  # the least time, by the first shape point

    @staticmethod
    def of(plan: Plan, families: tuple[_Kept, ...], fused: tuple[tuple[int, ...], ...], device: Device) -> _Pick:
        """With the number of launches and the least time."""
        launches = sum(k.reach.launches for k in families) - sum(len(places) - 1 for places in fused)
        least = [k.reach.ideal[0] for k in families]
        return _Pick(plan, families, fused, device, launches, _one_by_one(least, fused, device))

    @property
    def key(self) -> object:
        """What equal picks share."""
        return tuple(k.number for k in self.families), self.plan.buffers, bool(self.fused)

    @property
    def spare(self) -> bool:
        return any(k.spare for k in self.families)

    @property
    def cut(self) -> tuple[str, ...]:
        """What tells the ways to cut the program apart."""
        return tuple(t.tensor for _, group in self.plan.groups for t in group)

    def ideals(self) -> list[Array]:
        """The least of each measure on its own, for each shape point: bytes, work, seconds, launches."""
        return [self._row([k.reach.ideal[n] for k in self.families]) for n in range(len(self.families[0].reach.points))]

    def attained(self, point: int) -> list[Array]:
        """Vectors that are reached at once: with the least bytes, the least work and the least time."""
        return [self._row([k.reach.corners[point][column] for k in self.families]) for column in range(3)]

    def _row(self, rows: Sequence[Array]) -> Array:
        total = np.empty(4)
        total[:3] = rows[0] if len(rows) == 1 else np.sum(rows, axis=0)
        if self.fused:
            total[2] = _one_by_one(rows, self.fused, self.device)
        total[3] = self.launches
        return total


@dataclass(frozen=True, slots=True)
class _Kept:
    """A family that is left, with a number that equal families share."""

    family: Family
    reach: Reach
    number: int
    spare: bool
    tensors: frozenset[str]  # what its first kernel touches


def generate(
    task: Task,
    bounds: Bounds,
    soon: Callable[[Candidate], None] | None = None,
    until: Callable[[], Deadline] = lambda: NEVER,
) -> Generated:
    """The sGraphs in the bounds that no pruner removes, best first, in an order that depends on the task alone.

    Plans that look fastest are visited first, so what there is at any moment is the best of what was looked at.

    Args:
        task: what is searched.
        bounds: of the space.
        soon: is told of one sGraph, of the form as written, before the e-graph is walked; what is found does not
            depend on it.
        until: when its time is over: asked between one plan and the next; what was found by then is handed on, as
            soon as it is anything.
    """
    scans = bounds.roles.scans and task.device.tiles.scans
    bounds = replace(bounds, roles=replace(bounds.roles, scans=scans))
    places = Places(task.classes, task.inputs)
    task = replace(task, classes=places.classes)
    walk = _Walk(task, bounds, until)
    table = options(task.classes, bounds.off, walk.pruned)
    fixed = fixed_classes(task.classes, table, task.inputs)
    dot = task.device.tiles.dot
    weights = Weights(task.classes, task.hints, dot)
    own = written(task.classes, [f.expr for f in task.formulas], table)
    if not task.reduces:
        # One kernel is what there is to find, however long, and the first round has what is better stored.
        walk.bounds = bounds = replace(bounds, max_ops=max(bounds.max_ops, len(table)), max_rounds=1)
    as_written = None if own is None else walk.looking(own, weights)
    if as_written is not None:
        # Whatever rounds find, nothing that is worse than what it takes as written ranks before that.
        walk.build_written(as_written)
        walk.given = set(walk.found)
        if walk.written is not None and soon is not None and bounds.below == math.inf:
            soon(walk.candidate(walk.written))
        if walk.is_over():
            return walk.result(False)
    found: dict[tuple[tuple[int, int], ...], Form] = {}
    complete = True
    shapes = (Weights(task.classes, hints, dot, fixed) for hints in walk.points)
    for mine in distinct_forms(task.classes, table, shapes, bounds.max_forms):
        complete = complete and mine.complete
        walk.pruned["max_forms"] = max(walk.pruned["max_forms"], mine.left_out)
        for form in mine.found:
            key = tuple((c, table[c].index(o)) for c, o in sorted(form.choices.items()))
            found.setdefault(key, form)
    ways = [form.choices for form in found.values()]
    once = None if own is None or complete else shared_once(task.classes, table, weights, own)
    if once is not None and once not in ways:
        ways.append(once)
    if not complete:
        # Those that have such passes were chosen with them.
        plain = [all(c.op not in ONE_PASS for c in choices.values()) for choices in ways]
        passing = [one_pass(table, w, task.classes.roots) if p else w for w, p in zip(ways, plain, strict=True)]
        ways = [choices for n, choices in enumerate(passing) if choices not in passing[:n]]
    shared: dict[object, float] = {}
    looked = [
        (
            Planner(task.formulas, task.inputs, within, weights, task.device, bounds.off, windows),
            PlanEstimate(weights, within, task.formulas, task.inputs, task.device, shared),
        )
        for within, windows in ((Within(choices), w) for choices, w in (places.added(c, weights) for c in ways))
    ]
    least = min((estimate.least() for _, estimate in looked), default=0.0)
    if as_written is not None:
        walk.keep_products(as_written[0])
        walk.keep_calls(as_written[0].choices, weights)
    agenda = _Agenda(looked)
    _rounds(walk, agenda, least)
    walk.pruned["max_families"] += agenda.left
    walk.pruned["max_cuts"] += agenda.cuts_left
    complete = complete and not agenda.left and not walk.ended
    if bounds.below < math.inf and (walk.best is None or walk.best.seconds >= bounds.below):
        return walk.result(complete)
    if as_written is not None:
        looked.append(as_written)
    _deepen(walk, looked, least)
    _separate(walk)
    if as_written is not None:
        choices, windows = places.added(as_written[0].choices, weights)
        found_so = [p for k, p in walk.found.items() if p.plan.choices == choices and k not in walk.given]
        if found_so:
            walk.written = min(found_so, key=lambda p: p.seconds)
        elif windows:
            walk.build_written(walk.looking(choices, weights, windows))
    return walk.result(complete)


def _rounds(walk: _Walk, agenda: _Agenda, least: float) -> None:
    """Visit plans, round after round, each with twice the cuts and families of the one before.

    The first round visits what looks best. A further one takes place only if it may gain something: if the best
    estimate is not near the least that there can be, and if some plan that was not visited looks faster. It visits
    those that look about as fast, and is the last one where it gains nothing. The best is also what was built before,
    the products as written. All of this is by estimates and counts, so a result does not depend on the machine. While
    nothing can run, the next round follows in any case; but for where something else does the same (`Bounds.below`):
    then the first is the last.

    Args:
        walk: what is built.
        agenda: the plans.
        least: seconds that no plan beats, launches apart.
    """
    bounds, overhead = walk.bounds, walk.task.device.launch_overhead_s
    # Kernels of outputs over other axes look like launches of their own, and may be one.
    apart = len({frozenset(Target("", f.index, 0).axes) for f in walk.task.formulas})
    rival = bounds.below + (apart - 1) * overhead
    for n in range(bounds.max_rounds):
        # The first goes through all that it may: looks are rough, and others choose from what is about as fast. So do
        # those after it while of what rounds visit nothing can run.
        before = walk.least if walk.can_run else math.inf
        if walk.is_over():
            break
        if n and not walk.can_run and bounds.below < math.inf:
            break
        goal = min(before, rival)
        if n and goal < math.inf and walk.is_near(least, goal):
            break
        below = HOPE * goal
        agenda.widen(walk, bounds.max_cuts << n, below)
        if goal < math.inf and not agenda.promises((1 - GAIN) * goal):
            break
        agenda.visit(walk, walk.built + (bounds.max_families << n), below, least if n else None)
        if n and before < math.inf and walk.least > (1 - GAIN) * before:
            break
    if not walk.can_run and bounds.below == math.inf and not walk.is_over():
        agenda.visit(walk, bounds.max_families * PATIENCE, math.inf, impatient=True)


def _deepen(walk: _Walk, forms: Sequence[tuple[Planner, PlanEstimate]], least: float) -> None:
    """Visit plans of more kernels than rounds list, up to the launches of the program's operators one by one.

    Sets of so many cuts are too many to list: the fastest plans get one cut more, as long as some plan that this makes
    looks faster and is.

    Args:
        walk: what is built.
        forms: what lists each form's plans, and what looks at them.
        least: seconds that no plan beats, launches apart.
    """
    bounds = walk.bounds
    levels = walk.task.launches - bounds.max_kernels if min(bounds.max_kernels, bounds.max_rounds) > 1 else 0
    for _ in range(levels):
        # Not what leaves products to the library: one cut more may be no match for it, and several are.
        before = walk.best
        if before is None or walk.is_near(least) or walk.is_over():
            break
        # Of forms that cut the program alike and take as long, one.
        alike: dict[object, Plan] = {}
        for pick in sorted(walk.found.values(), key=lambda p: p.seconds):
            alike.setdefault((pick.seconds, pick.plan.cut_signature()), pick.plan)
        fastest = {id(plan): plan for plan in alike.values()}
        agenda, below = _Agenda(()), HOPE * before.seconds
        for plan in [*fastest.values()][:DEEPENED]:
            agenda.deepen(plan, forms, walk.task.launches, below)
        if not agenda.promises((1 - GAIN) * before.seconds):
            break
        agenda.visit(walk, walk.built + bounds.max_families, below, least)
        after = walk.best
        if after is None or after.seconds > (1 - GAIN) * before.seconds:
            break


def _separate(walk: _Walk) -> None:
    """Visit the fastest plan with the targets of a kernel apart, where a loop for all of them goes past their masks.

    What targets share is seen in looks, and not that such a loop leaves out only what masks hide of each.

    Args:
        walk: what is built.
    """
    best = walk.best
    if best is None or walk.is_over():
        return
    groups = best.plan.groups
    for n, ((rank, group), kept) in enumerate(zip(groups, best.families, strict=True)):
        if rank == PREPARED or len(group) < 2 or not any(map(_goes_past, kept.family.kernels)):
            continue
        ways = [((t,), tuple(o for o in group if o is not t)) for t in group if len(group) > 2]
        for way in (*ways, tuple((t,) for t in group)):
            apart = _apart(best.plan, n, way)
            if apart is not None:
                walk.visit(apart, looping=False)


def _apart(plan: Plan, place: int, parts: Sequence[tuple[Target, ...]]) -> Plan | None:
    """The plan with parts of a kernel in its place, those that others read first; None where two read each other."""
    made = {t.tensor: n for n, part in enumerate(parts) for t in part}
    read = [{made[tensor] for tensor, _ in _kernel(plan, part)[1].values() if tensor in made} for part in parts]
    levels: list[list[int]] = []
    done: set[int] = set()
    while len(done) < len(parts):
        ready = [n for n, needed in enumerate(read) if n not in done and needed <= done | {n}]
        if not ready:
            return None
        levels.append(ready)
        done.update(ready)
    rank, _ = plan.groups[place]
    own = [(rank + level, parts[n]) for level, ready in enumerate(levels) for n in ready]
    later = [(r + len(levels) - 1 if r > rank else r, group) for r, group in plan.groups[place + 1 :]]
    return replace(plan, groups=(*plan.groups[:place], *own, *later))


def _goes_past(kernel: sg.Kernel) -> bool:
    """Whether a loop visits all tiles of an axis on whose places something hangs."""
    loops = [s for s in kernel.statements() if isinstance(s, sg.Loop) and not s.range]
    return any(
        isinstance(s, sg.Position) and loop.axis in s.index.axes() for loop in loops for s in statements(loop.body)
    )


@dataclass(slots=True, eq=False)
class _Listed:
    """A plan that is to be visited."""

    place: int  # in the order in which plans were listed
    plan: Plan
    estimate: PlanEstimate  # what looks at it
    kind: object  # its signature
    seconds: float  # what it looks as if it took, or at least takes while it was not looked at
    looked: bool = False  # whether it was looked at

    def __lt__(self, other: _Listed) -> bool:
        return (self.seconds, self.looked, self.place) < (other.seconds, other.looked, other.place)

    def look(self, below: float = math.inf) -> None:
        """Look at it as far as it takes to know whether it is below so many seconds: later on no more are of use."""
        self.seconds, self.looked = self.estimate.seconds(self.plan, below), True


@dataclass(slots=True)
class _Agenda:
    """The plans that are to be visited.

    What a plan looks as if it took is worked out only where its turn may come: of most it is enough what they take at
    least.
    """

    forms: Sequence[tuple[Planner, PlanEstimate]]  # what lists each form's plans, and what looks at them
    cuts_left: int = 0  # cuts that have not been considered together
    hopeless: int = 0  # plans that were left out as they take longer than what is visited
    _plans: list[_Listed] = field(default_factory=list)
    _visited: set[tuple[int, bool]] = field(default_factory=set)
    _cuts: int = 0

    @property
    def left(self) -> int:
        """Visits that are left; a plan is visited with loops over output axes and without."""
        return 2 * (len(self._plans) + self.hopeless) - len(self._visited)

    def promises(self, most: float) -> bool:
        """Whether a plan that was not visited looks as if it took no more than so many seconds."""
        left = [p for p in self._plans if p.seconds <= most and (p.place, False) not in self._visited]
        if any(p.looked for p in left):
            return True
        for listed in sorted(left):
            listed.look()
            if listed.seconds <= most:
                return True
        return False

    def widen(self, walk: _Walk, max_cuts: int, below: float) -> None:
        """Add the plans that so many cuts together make and that may take less."""
        self.cuts_left = 0
        listed = walk.until().part(LISTED)
        for planner, estimate in self.forms:
            if walk.is_over() or (self._plans and not listed.left):
                break
            self._add(planner.plans(walk.bounds.max_kernels, max_cuts, walk.pruned, self._cuts), estimate, below)
            self.cuts_left += max(0, len(planner.cuts or ()) - max_cuts)
        self._cuts = max_cuts

    def deepen(self, plan: Plan, forms: Sequence[tuple[Planner, PlanEstimate]], most: int, below: float) -> None:
        """The same of the plans that have one cut more than this one of one of these forms."""
        planner, estimate = next((p, e) for p, e in forms if p.choices is plan.choices)
        self._add(planner.deeper(plan, most), estimate, below)

    def _add(self, plans: Iterable[Plan], estimate: PlanEstimate, below: float) -> None:
        for plan in plans:
            least = estimate.at_least(plan)
            if least < below:
                self._plans.append(_Listed(len(self._plans), plan, estimate, plan.cut_signature(), least))
            else:
                self.hopeless += 1

    def _in_order(self, below: float) -> Iterator[_Listed]:
        """The plans that look as if they took less than so many seconds, in the order in which they are visited.

        The best of each signature comes first: the n-th of one kind, by its cost, waits for the others' n-th.
        """
        kinds: dict[object, list[_Listed]] = {}
        for listed in self._plans:
            if listed.seconds < below:
                kinds.setdefault(listed.kind, []).append(listed)
        for alike in kinds.values():
            heapq.heapify(alike)
        # Of equals those that were not looked at are first, so that they are before it is their turn.
        waiting = [(alike[0].seconds, alike[0].looked, alike[0].place, 0, alike) for alike in kinds.values()]
        heapq.heapify(waiting)
        while waiting:
            *_, turn, alike = heapq.heappop(waiting)
            first = heapq.heappop(alike)
            if first.looked:
                yield first
                turn += 1
            else:
                first.look(below)
                if first.seconds < below:
                    heapq.heappush(alike, first)
            if alike:
                due, following = alike[0].seconds * (1 + ALIKE * turn), alike[0]
                heapq.heappush(waiting, (due, following.looked, following.place, turn, alike))

    def visit(
        self, walk: _Walk, families: int, below: float, least: float | None = None, impatient: bool = False
    ) -> None:
        """Visit plans until so many families have been built in all; where `impatient`, until one can run.

        Loops over output axes seldom pay: they come when everything without them has been seen.

        Args:
            walk: what is built.
            families: how many.
            below: plans that look as if they took longer are left out.
            least: seconds that no plan beats, launches apart: where given, it ends when none of wider cuts can gain.
            impatient: see above.
        """
        ordered: list[_Listed] = []
        for looping in (False, True):
            for listed in ordered if looping else self._in_order(below):
                if walk.built >= families or (impatient and walk.can_run):
                    return
                if least is not None and walk.is_near(least, near=1 / (1 - GAIN)):
                    return
                if walk.is_over():
                    return
                if not looping:
                    ordered.append(listed)
                if (listed.place, looping) not in self._visited:
                    self._visited.add((listed.place, looping))
                    walk.visit(listed.plan, looping)


@dataclass(frozen=True, slots=True)
class _Made:
    """The families of one kernel that can run, with what they reach; and what was counted on the way."""

    found: tuple[tuple[Family, Reach], ...]
    generated: int
    built: int
    pruned: Counter[str]


@dataclass(slots=True)
class _Walk:
    """The state of one generation."""

    task: Task
    bounds: Bounds
    until: Callable[[], Deadline]  # as of `generate`
    # Whether it was over, so that something was left out that another time would not be.
    ended: bool = False
    pruned: Counter[str] = field(default_factory=Counter)
    generated: int = 0
    built: int = 0
    reaches: dict[object, Reach | str] = field(default_factory=dict)
    ranged: Ranged = field(default_factory=dict)
    reached: dict[object, list[tuple[Family, Reach]]] = field(default_factory=dict)
    kernels: dict[object, list[_Kept]] = field(default_factory=dict)
    numbers: dict[Family, int] = field(default_factory=dict)
    # What can run, by its key, in the order in which it was found.
    found: dict[object, _Pick] = field(default_factory=dict)
    fastest: _Pick | None = None  # of these, the first of equals; None where it is to be looked for
    written: _Pick | None = None
    products: _Pick | None = None  # the fastest of the plan of the model's own products, where that is another one
    calls: _Pick | None = None
    # Keys of what was built of the form as written before the rounds, and not found by these.
    given: set[object] = field(default_factory=set)

    @property
    def points(self) -> tuple[Mapping[str, int], ...]:
        """The shape points, each once."""
        every = [self.task.hints, *self.task.points]
        return tuple({tuple(sorted(p.items())): p for p in every}.values())

    @property
    def best(self) -> _Pick | None:
        """The fastest pick so far, by its estimate."""
        if self.fastest is None:
            self.fastest = min(self.found.values(), key=lambda p: p.seconds, default=None)
        return self.fastest

    @property
    def can_run(self) -> bool:
        """Whether something of what rounds visited can run, be it what was built before them."""
        return len(self.found) > len(self.given)

    def is_over(self) -> bool:
        """Whether the time is over, and something can run: then nothing more is built."""
        self.ended = self.ended or (bool(self.found) and not self.until().left)
        return self.ended

    @property
    def least(self) -> float:
        """The least estimate so far, also of what leaves products to the library; infinite where there is none."""
        return min((p.seconds for p in (self.best, self.calls) if p is not None), default=math.inf)

    def is_near(self, least: float, rival: float = math.inf, near: float = NEAR) -> bool:
        """Whether the best, or what does the same, takes at most so many times what no plan of wider cuts beats.

        Args:
            least: that, in seconds, launches apart.
            rival: seconds that something else takes which does the same.
            near: so many times.
        """
        best = self.best
        if best is None:
            return False
        launches = max(best.launches, CUT_TWICE) * self.task.device.launch_overhead_s
        return min(best.seconds, rival) <= near * (least + launches)

    def looking(
        self, choices: Choices, weights: Weights, windows: Sequence[Window] = ()
    ) -> tuple[Planner, PlanEstimate]:
        """What lists the plans of a form, and what looks at them."""
        task, within = self.task, Within(choices)
        planner = Planner(task.formulas, task.inputs, within, weights, task.device, self.bounds.off, windows)
        return planner, PlanEstimate(weights, within, task.formulas, task.inputs, task.device)

    def keep_products(self, planner: Planner) -> None:
        """Visit the form's plan of products with what follows them.

        Bounds are a budget: a plan that is known to be good may take a kernel more for each further round, or as many
        as the operators take.
        """
        bounds = self.bounds
        rounds = bounds.max_rounds - 1
        more = max(rounds, self.task.launches - bounds.max_kernels) if rounds else 0
        plan = planner.products(bounds.max_kernels, more)
        if plan is not None:
            before = set(self.found)
            self.visit(plan, False)
            self.given |= self.found.keys()
            made = [p for k, p in self.found.items() if k not in before]
            self.products = min(made, key=lambda p: p.seconds, default=None)

    def keep_calls(self, choices: Choices, weights: Weights) -> None:
        """Keep a pick of the form that leaves its products to the library, in as many launches as the operators take.

        In the pruners' eyes it only moves more, and a family that no library computes may dominate one that a library
        does: what that gains they do not see.
        """
        task, bounds = self.task, self.bounds
        if not task.device.library or min(bounds.max_kernels, bounds.max_rounds) < 2:
            return
        planner, _ = self.looking(choices, weights)
        # What ends a product may be what "chain" would not store.
        plan = replace(planner, off=bounds.off | {"chain"}).calls(max(task.launches, bounds.max_kernels))
        if plan is None:
            return
        families: list[_Kept] = []
        called = 0
        for rank, group in plan.groups:
            kept = self._prepared(plan, group) if rank == PREPARED else self._families(plan, group, False)
            if not kept:
                return
            built = [] if rank == PREPARED else self.reached[_kernel(plan, group)[0]]
            calls = [(f, r) for f, r in built if library_call(f.kernels[0], self._whole(plan, f)) is not None]
            if calls:
                family, reached = min(calls, key=lambda c: c[1].seconds)
                kept = [self._kept(family, reached, False)]
            called += bool(calls)
            families.append(kept[0])
        if called:
            self.calls = _Pick.of(plan, tuple(families), (), task.device)

    def build_written(self, looked: tuple[Planner, PlanEstimate]) -> None:
        """Build the fastest pick of the form as written."""
        planner, estimate = looked
        bounds = self.bounds
        every = [*planner.plans(bounds.max_kernels, bounds.max_cuts, Counter())]
        plans = _fastest(every, estimate, WRITTEN_PLANS)
        # A look is rough: that of the fewest kernels, which reads least, is among those that are built.
        fewest = min((len(p.groups) for p in every), default=0)
        for plan in _fastest([p for p in every if len(p.groups) == fewest], estimate, 1):
            if all(p is not plan for p in plans[:WRITTEN_BUILT]):
                plans = [p for p in plans if p is not plan]
                plans.insert(WRITTEN_BUILT - 1, plan)
        picks: list[_Pick] = []
        built = 0
        for plan in plans[:WRITTEN_PLANS]:
            if picks and (built == WRITTEN_BUILT or estimate.seconds(plan) >= min(p.seconds for p in picks)):
                break
            mine: list[_Pick] = []
            for looping in (False, True):
                self.visit(plan, looping)
                mine = [p for p in self.found.values() if p.plan is plan]
                if mine:
                    break
            built += bool(mine)
            picks += mine
        self.written = min(picks, key=lambda p: p.seconds, default=self.written)

    def visit(self, plan: Plan, looping: bool) -> None:
        """Combine the families of the plan's kernels: those without loops over output axes first, then all."""
        per_group: list[list[_Kept]] = []
        for rank, group in plan.groups:
            mine = self._prepared(plan, group) if rank == PREPARED else self._families(plan, group, looping)
            if not mine:
                return
            per_group.append(mine)
        # How many are spares, and the seconds, kernel by kernel: there may be hundreds of picks.
        picks: list[tuple[int, float, tuple[_Kept, ...]]] = [(0, 0.0, ())]
        for mine in per_group:
            picks = [(n + k.spare, s + k.reach.seconds, (*before, k)) for n, s, before in picks for k in mine]
        if not looping:
            self.pruned["rank"] += max(0, len(picks) - self.bounds.per_plan)
        for _, _, pick in heapq.nsmallest(self.bounds.per_plan, picks, key=lambda p: p[:2]):
            self._add(plan, pick, looping)

    def _prepared(self, plan: Plan, group: tuple[Target, ...]) -> list[_Kept]:
        """The best family of what runs once, when the weights are there: no call takes its time."""
        return [replace(k, reach=k.reach.prepared()) for k in self._families(plan, group, False)[:1]]

    def _add(self, plan: Plan, pick: tuple[_Kept, ...], looping: bool) -> None:
        fused = _joinable(plan, pick)
        for places in (fused, ()) if fused else ((),):
            made = _Pick.of(plan, pick, places, self.task.device)
            key = made.key
            if key in self.given:
                # It counts, and stands, where rounds find it.
                self.given.discard(key)
                self.found[key] = self.found.pop(key)
                self.fastest = None
                continue
            if key in self.found and looping:
                continue  # seen when the plan was visited first
            if len(pick) > 1:
                self.generated += 1
            if key in self.found:
                self.pruned["duplicate"] += 1
            if key not in self.found or "duplicate" in self.bounds.off:
                self.found[key if "duplicate" not in self.bounds.off else len(self.found)] = made
                if self.fastest is not None and made.seconds < self.fastest.seconds:
                    self.fastest = made

    def _families(self, plan: Plan, group: tuple[Target, ...], looping: bool) -> list[_Kept]:
        """The families of one kernel, pruned; the same kernel in another plan is looked up."""
        key, stored, suffix = _kernel(plan, group)
        known = self.kernels.get((key, looping))
        if known is not None:
            return known
        bounds = self.bounds
        before = self.reached.get(key, [])
        made = self._build(plan, group, stored, suffix, looping)
        self.generated += made.generated
        self.built += made.built
        self.pruned.update(made.pruned)
        found = made.found
        self.reached[key] = both = [*before, *found]
        if not found and looping and (key, False) in self.kernels:
            kept = self.kernels[key, False]
        else:
            counts = self.pruned if not before else Counter[str]()
            left = keep(both, bounds.per_kernel, bounds.spares, bounds.off, counts)
            kept = [self._kept(f, r, spare) for f, r, spare in left]
            if before:
                self.pruned["dominated"] += max(0, len(found) - sum(f in [g for g, _ in found] for f, _, _ in left))
        self.kernels[key, looping] = kept
        return kept

    def _kept(self, family: Family, reached: Reach, spare: bool) -> _Kept:
        number = self.numbers.setdefault(family, len(self.numbers))
        return _Kept(family, reached, number, spare, family.kernels[0].tensors)

    def _whole(self, plan: Plan, family: Family) -> sg.SGraph:
        """The family with all tensors of the plan."""
        task = self.task
        outputs = tuple(dict.fromkeys(f.tensor for f in task.formulas))
        return sg.SGraph(task.name, task.inputs, (*plan.buffers, *family.buffers), outputs, family.kernels)

    def _build(
        self,
        plan: Plan,
        group: tuple[Target, ...],
        stored: Mapping[int, tuple[str, tuple[Index, ...]]],
        suffix: str,
        looping: bool,
    ) -> _Made:
        """The families of one kernel that can run, with what they reach."""
        task, bounds = self.task, self.bounds
        builder = Builder(plan.choices, task.classes.axes, stored, {})
        given = bounds.roles, bounds.max_ops, bounds.max_loops, task.device, self.points
        space = Space(*given, looping, bounds.off, task.operands, self.ranged)
        reached: list[tuple[Family, Reach]] = []
        pruned = Counter[str]()
        generated = built = 0
        seen: set[Family] = set()
        tensors = {t.name: t for t in (*plan.buffers, *(f.tensor for f in task.formulas))}
        for family in families(group, builder, f"{task.name}{suffix}_kernel", suffix, space, pruned, tensors):
            generated += 1
            if isinstance(family, str):
                built += 1
                pruned[family] += 1
                continue
            built += max(1, sum(len(k.statements()) for k in family.kernels) // LONG)
            distinct = len(seen)
            seen.add(family)
            if len(seen) == distinct and "duplicate" not in bounds.off:
                pruned["duplicate"] += 1
                continue
            whole = self._whole(plan, family)
            # A library has something for a product, and nothing for what costs the same.
            found = [library_call(k, whole) if task.device.library else None for k in family.kernels]
            kinds = tuple(None if c is None else c.kind for c in found)
            like = kinds, isomorphism_key(family.kernels, whole)
            answer = self.reaches.get(like)
            if answer is None:
                answer = reach(family.kernels, whole, task.device, self.points, found)
                self.reaches[like] = answer
            if isinstance(answer, str):
                pruned[answer] += 1
            else:
                reached.append((family, answer))
        return _Made(tuple(reached), generated, built, pruned)

    def result(self, complete: bool) -> Generated:
        """The best sGraphs, best first."""
        # Of equals the form with the least work is first, which rounds begin with, and not the one as written.
        every = sorted(self.found.items(), key=lambda found: (found[1].seconds, found[0] in self.given))
        ordered = [p for _, p in every if p.seconds < self.bounds.below]
        if "worse" not in self.bounds.off:
            left = self._not_worse(ordered)
            self.pruned["worse"] += len(ordered) - len(left)
            ordered = left
        # The best few of each way to cut the program come before more of another.
        seen: Counter[tuple[str, ...]] = Counter()
        turns: list[tuple[int, int, _Pick]] = []
        for place, pick in enumerate(ordered):
            turns.append((seen[pick.cut], place, pick))
            seen[pick.cut] += 1
        kept = sorted(turns, key=lambda t: (t[0] // PER_CUT, t[1]))[: self.bounds.max_sgraphs]
        self.pruned["rank"] += len(turns) - len(kept)
        best_first = sorted(kept, key=lambda t: t[1])
        for own in (self.written, self.products):
            if own is not None and own.seconds < self.bounds.below and all(p is not own for _, _, p in best_first):
                best_first.append((0, len(ordered), own))
        best_first.sort(key=lambda t: t[2].seconds)
        if self.calls is not None and all(p.key != self.calls.key for _, _, p in best_first):
            # Its estimate is not of the same kind.
            best_first.append((0, len(ordered), self.calls))
        counts = {k: n for k, n in sorted(self.pruned.items()) if n}
        made: list[Candidate] = []
        for turn, _, p in best_first:
            made.append(replace(self.candidate(p), turn=turn))
            made += [replace(made[-1], sgraph=g, written=False, spare=True) for g in copies(made[-1].sgraph)]
        return Generated(tuple(made), self.generated, counts, complete, self.ended)

    def _not_worse(self, ordered: Sequence[_Pick]) -> list[_Pick]:
        """Those of which some assignment may be better than all assignments of those before; a spare for each cut."""
        count = sum(not p.spare for p in ordered)
        reached = [np.empty((3 * count, 4)) for _ in self.points]
        filled = 0
        left: list[int] = []
        spares: dict[tuple[str, ...], list[int]] = defaultdict(list)
        alone: list[Reach] = []
        same: set[tuple[int, ...]] = set()
        for place, pick in sorted(enumerate(ordered), key=lambda t: (t[1].spare, t[0])):
            # What differs by names alone has one and the same reach.
            reaches = (pick.launches, *(id(k.reach) for k in pick.families))
            worse = pick.spare or reaches in same
            if not worse and len(pick.families) == 1:
                worse = pick.families[0].reach.covered(alone)
                alone += [] if worse else [pick.families[0].reach]
            if not worse:
                worse = all(
                    bool(np.all(reached[n][:filled] <= ideal * (1 + SLACK), axis=1).any())
                    for n, ideal in enumerate(pick.ideals())
                )
            if worse:
                spares[pick.cut].append(place)
                continue
            same.add(reaches)
            left.append(place)
            for n, rows in enumerate(reached):
                rows[filled : filled + 3] = pick.attained(n)
            filled += 3
        cuts = {ordered[n].cut for n in left}
        for cut in sorted(cuts):
            left += spares[cut][: self.bounds.spares]
        return [ordered[n] for n in sorted(left)]

    def candidate(self, pick: _Pick) -> Candidate:
        """The pick as an sGraph."""
        task = self.task
        outputs = tuple(dict.fromkeys(f.tensor for f in task.formulas))
        buffers = (*pick.plan.buffers, *(b for k in pick.families for b in k.family.buffers))
        kernels = tuple(k for f in pick.families for k in f.family.kernels)
        sgraph = sg.SGraph(task.name, task.inputs, buffers, outputs, kernels)
        if pick.fused:
            for names in fusable(sgraph):
                sgraph = fuse(sgraph, names)
        return Candidate(laid_out(sgraph), pick.seconds, pick is self.written, pick.spare)


def _kernel(plan: Plan, group: tuple[Target, ...]) -> tuple[object, dict[int, tuple[str, tuple[Index, ...]]], str]:
    """One kernel of a plan: what tells it from others, what it reads back, and the end of its name."""
    mine = [t.cls for t in group]
    used = below(plan.choices, mine, plan.stored)
    stored = {c: plan.stored[c] for c in used if c in plan.stored and c not in mine}
    # Kernels that store pieces of one tensor are told apart by where these begin.
    begins = [str(i.offset) for i in group[0].index if i.offset != 0]
    suffix = "" if len(plan.groups) == 1 else "_".join(["", group[0].tensor, *begins])
    form = tuple((c, plan.choices[c]) for c in sorted(used) if c not in stored)
    types = {b.name: b.dtype for b in plan.buffers}
    touched = tuple(
        types.get(name) for name in (*(t.tensor for t in group), *(s for _, (s, _) in sorted(stored.items())))
    )
    return (group, tuple(sorted(stored.items())), form, suffix, touched), stored, suffix


def _fastest(plans: Sequence[Plan], estimate: PlanEstimate, many: int) -> list[Plan]:
    """So many of the plans that look fastest, in that order; of the others it is enough what they take at least."""
    found: list[tuple[float, int]] = []
    most = math.inf
    for least, n in sorted((estimate.at_least(plan), n) for n, plan in enumerate(plans)):
        if least > most:
            break
        bisect.insort(found, (estimate.seconds(plans[n], math.nextafter(most, math.inf)), n))
        if len(found) >= many:
            del found[many:]
            most = found[-1][0]
    return [plans[n] for _, n in found]


def _one_by_one(rows: Sequence[Array], fused: Iterable[tuple[int, ...]], device: Device) -> float:
    """Seconds of launches: of rows of (bytes, work, seconds), those at the fused places as one launch each.

    Kernels that are launched together fill the device together; none of them is faster than by itself.
    """
    total = sum(float(row[2]) for row in rows)
    for places in fused:
        mine = np.array([rows[n] for n in places])
        moved, work, alone = mine.sum(axis=0)
        if np.isfinite(total):
            total += max(float(mine[:, 2].max()), float(seconds(device, moved, work, device.processors))) - float(alone)
    return total


def _joinable(plan: Plan, pick: Sequence[_Kept]) -> tuple[tuple[int, ...], ...]:
    """Places of kernels of one rank that each read or store to a tensor of one before it, a launch each."""
    by_rank: dict[int, list[int]] = defaultdict(list)
    for place, ((rank, _), kept) in enumerate(zip(plan.groups, pick, strict=True)):
        if len(kept.family.kernels) == 1 and rank != PREPARED:
            by_rank[rank].append(place)
    launches: list[tuple[int, ...]] = []
    for places in by_rank.values():
        shared = set(pick[places[0]].tensors)
        fused = [places[0]]
        for place in places[1:]:
            mine = pick[place].tensors
            if not shared.isdisjoint(mine):
                fused.append(place)
                shared.update(mine)
        if len(fused) > 1:
            launches.append(tuple(fused))
    return tuple(launches)


def isomorphism_key(kernels: Sequence[sg.Kernel], sgraph: sg.SGraph) -> tuple[object, ...]:
    """What the cost and the constraints of the kernels depend on; equal for kernels that differ by names alone.

    Forms that associate a product differently, cuts that store under another name and outputs that swap give such.
    """
    numbers: dict[sympy.Symbol, int] = {}
    return tuple(_kernel_rows(k, sgraph, numbers) for k in kernels)


def _kernel_rows(kernel: sg.Kernel, sgraph: sg.SGraph, numbers: dict[sympy.Symbol, int]) -> object:
    def symbol(s: object) -> object:
        return numbers.setdefault(s, len(numbers)) if isinstance(s, sympy.Symbol) else s

    axes: dict[Axis, int] = {}
    roles: list[object] = []
    for axis, r in kernel.roles:
        axes[axis] = len(axes)
        own = tuple(symbol(getattr(r, name)) for name in r.__match_args__)
        roles.append((numbers.get(axis.extent, axis.extent), axis.name.endswith(".part"), type(r), own))

    @cache
    def tensor(name: str) -> object:
        declared = sgraph.tensor(name)
        return declared.dtype, tuple([numbers.get(e, e) for e in declared.shape])

    def kind(s: sg.Stmt) -> object:
        match s:
            case sg.Pointwise():
                return OPS[s.op].flops
            case sg.TileReduce():
                return isinstance(s.kind, sg.Statistic)
            case sg.Scan():
                return s.how
            case sg.Gather() | sg.Store():
                return tuple((p.dimension, p.extent) for p in s.places)
            case sg.Loop():
                return str(s.range), str(s.gap), body(s.body)
            case _:
                return None

    def place(index: Index) -> object:
        return tuple([(axes.get(a, a) if isinstance(a, Axis) else a, c) for a, c in index.terms])

    def body(statements: Sequence[sg.Stmt]) -> tuple[object, ...]:
        return tuple(
            [
                (
                    type(s),
                    kind(s),
                    *[v if isinstance(v, str) else None for v in parts(s, Holds.DEFINES, Holds.CHANGES, Holds.USES)],
                    *map(tensor, parts(s, Holds.TENSOR)),
                    *map(axes.get, parts(s, Holds.AXIS)),
                    *map(place, parts(s, Holds.INDEX)),
                )
                for s in statements
            ]
        )

    return tuple(roles), body(kernel.body)
