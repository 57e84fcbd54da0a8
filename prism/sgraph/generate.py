"""Generation: walk the saturated e-graph and list the sGraphs in it.

    forms   a choice of how each e-class is computed (extract.py)
    cuts    which e-classes are materialised, so which kernels there are
    roles   what each axis of each kernel is (roles.py), scheduled into loops (schedule.py)

Every value is an e-class and every op an e-node, so nothing is generated that could not be part of an equivalent
program; that it *is* one is for the prover to say. The space is bounded by `Bounds`; what is left out is counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prism.program.index import Axis, Index
from prism.program.nodes import Formula, Tensor
from prism.sgraph.classes import EClasses
from prism.sgraph.constraints import Limits
from prism.sgraph.extract import Choices, extract, fewest_passes, least_work, options
from prism.sgraph.families import Family, Target, families
from prism.sgraph.nodes import SGraph
from prism.sgraph.prune import Rates, Reach, keep, reach
from prism.sgraph.roles import RoleBounds
from prism.sgraph.values import Builder

# So many sGraphs of one way to cut the program are ranked together before other ways get their turn.
PER_CUT = 4
REDUCING = frozenset({"sum", "max", "min", "prod", "contract", "rescaled"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds the space.

    Attributes:
        max_kernels: launches in one sGraph, second stages of splits not counted.
        max_cuts: how many e-classes of a form are considered for materialisation.
        per_kernel: families kept for one kernel, best first.
        max_sgraphs: sGraphs handed to the prover, best first.
        roles: see RoleBounds.
    """

    max_kernels: int = 3
    max_cuts: int = 6
    per_kernel: int = 3
    max_sgraphs: int = 48
    roles: RoleBounds = field(default_factory=RoleBounds)


@dataclass(frozen=True, slots=True)
class Task:
    """What is searched: outputs over a saturated e-graph.

    Attributes:
        name: the program's name.
        inputs: the program's inputs.
        formulas: the outputs; `classes.roots` are their e-classes.
        classes: the saturated e-graph.
        hints: the value of every symbol at which costs are compared.
        limits: what a kernel may use on the device.
        rates: how fast the device is, for ranking.
    """

    name: str
    inputs: tuple[Tensor, ...]
    formulas: tuple[Formula, ...]
    classes: EClasses
    hints: Mapping[str, int]
    limits: Limits
    rates: Rates = field(default_factory=Rates)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sGraph, not yet proved.

    Attributes:
        sgraph: the family.
        seconds: its least estimated time over its feasible assignments, by the rates of the task; for ranking only.
    """

    sgraph: SGraph
    seconds: float


@dataclass(frozen=True, slots=True)
class Generated:
    """What generation found.

    Attributes:
        candidates: best first.
        generated: how many families of kernels and combinations of them were built.
        pruned: how many each pruner removed, by its name.
    """

    candidates: tuple[Candidate, ...]
    generated: int
    pruned: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Plan:
    """One form with its cuts: groups of targets, a kernel each, in launch order."""

    choices: Choices
    groups: tuple[tuple[Target, ...], ...]
    stored: Mapping[int, tuple[str, tuple[Axis, ...]]]
    buffers: tuple[Tensor, ...]


def forms(task: Task) -> tuple[Choices, ...]:
    """The forms that are walked, each once."""
    table = options(task.classes)
    found: list[Choices] = []
    for criterion in (fewest_passes, least_work):
        choices = extract(task.classes, table, criterion, task.hints)
        below = _below(choices, task.classes.roots)
        kept = {c: choices[c] for c in below}
        if kept not in found:
            found.append(kept)
    return tuple(found)


def _below(choices: Choices, roots: Sequence[int]) -> list[int]:
    """E-classes that a form uses, operands before results."""
    seen: set[int] = set()
    order: list[int] = []

    def visit(cls: int) -> None:
        if cls in seen:
            return
        seen.add(cls)
        for child in choices[cls].children:
            visit(child)
        order.append(cls)

    for root in roots:
        visit(root)
    return order


def cut_points(choices: Choices, roots: Sequence[int], classes: EClasses, limit: int) -> tuple[int, ...]:
    """E-classes of a form that are worth considering for materialisation.

    Results of reductions, what feeds them, and what is used more than once; roots and single numbers excepted.
    """
    order = _below(choices, roots)
    uses = Counter(child for c in order for child in choices[c].children)
    found: dict[int, None] = {}
    for cls in order:
        choice = choices[cls]
        if not choice.children or cls in roots or not classes.axes[cls]:
            continue
        if choice.op in REDUCING or uses[cls] > 1:
            found[cls] = None
    for cls in order:
        if choices[cls].op in REDUCING:
            for child in choices[cls].children:
                if choices[child].children and child not in roots and classes.axes[child]:
                    found.setdefault(child, None)
    return tuple(found)[:limit]


def plans(task: Task, choices: Choices, bounds: Bounds) -> Iterator[_Plan]:
    """A form's cuts, fewest kernels first."""
    classes = task.classes
    cuts = cut_points(choices, classes.roots, classes, bounds.max_cuts)
    for count in range(bounds.max_kernels):
        for chosen in itertools.combinations(cuts, count):
            plan = _plan(task, choices, chosen)
            if len(plan.groups) <= bounds.max_kernels:
                yield plan


def _plan(task: Task, choices: Choices, cuts: Sequence[int]) -> _Plan:
    classes = task.classes
    dtype = task.formulas[0].tensor.dtype
    stored: dict[int, tuple[str, tuple[Axis, ...]]] = {}
    buffers: list[Tensor] = []
    targets: list[Target] = []
    # A buffer's dimensions follow the outputs', the innermost last.
    outer = {a: n for n, a in enumerate(dict.fromkeys(a for f in task.formulas for a in Target("", f.index, 0).axes))}
    for cls in cuts:
        # Named after its e-class, so that a kernel is the same kernel in every plan that has it.
        axes = tuple(sorted(classes.axes[cls], key=lambda a: (outer.get(a, len(outer)), a.name)))
        stored[cls] = (f"t{cls}", axes)
        buffers.append(Tensor(f"t{cls}", tuple(a.extent for a in axes), dtype))
        targets.append(Target(f"t{cls}", tuple(map(Index.axis, axes)), cls))
    targets += [Target(f.tensor.name, f.index, root) for f, root in zip(task.formulas, classes.roots, strict=True)]
    depth: dict[int, int] = {}

    def rank(cls: int, top: bool) -> int:
        """How many kernels must have ended before the e-class can be computed (top) or read."""
        if not top and cls in stored:
            return rank(cls, True) + 1
        known = depth.get(cls)
        if known is None:
            known = max((rank(c, False) for c in choices[cls].children), default=0)
            depth[cls] = known
        return known

    groups: dict[tuple[int, frozenset[Axis]], list[Target]] = {}
    for t in targets:
        groups.setdefault((rank(t.cls, True), frozenset(t.axes)), []).append(t)
    ordered = sorted(groups.items(), key=lambda g: g[0][0])
    return _Plan(choices, tuple(tuple(g) for _, g in ordered), stored, tuple(buffers))


def generate(task: Task, bounds: Bounds) -> Generated:
    """The sGraphs in the bounds that no pruner removes, best first, in an order that depends on the task alone."""
    walk = _Walk(task, bounds)
    for choices in forms(task):
        for plan in plans(task, choices, bounds):
            walk.visit(plan)
    return walk.result()


@dataclass(slots=True)
class _Walk:
    """The state of one generation."""

    task: Task
    bounds: Bounds
    pruned: Counter[str] = field(default_factory=Counter)
    generated: int = 0
    kernels: dict[object, list[tuple[Family, Reach]]] = field(default_factory=dict)
    found: dict[SGraph, float] = field(default_factory=dict)

    def visit(self, plan: _Plan) -> None:
        """Combine the families of the plan's kernels."""
        per_group: list[list[tuple[Family, Reach]]] = []
        for group in plan.groups:
            mine = self._families(plan, group)
            if not mine:
                return
            per_group.append(mine)
        outputs = tuple(f.tensor for f in self.task.formulas)
        for picks in itertools.product(*per_group):
            buffers = (*plan.buffers, *(b for f, _ in picks for b in f.buffers))
            kernels = tuple(k for f, _ in picks for k in f.kernels)
            sgraph = SGraph(self.task.name, self.task.inputs, buffers, outputs, kernels)
            if len(picks) > 1:
                self.generated += 1
            if sgraph in self.found:
                self.pruned["duplicate"] += 1
            else:
                self.found[sgraph] = sum(r.seconds for _, r in picks)

    def _families(self, plan: _Plan, group: tuple[Target, ...]) -> list[tuple[Family, Reach]]:
        """The families of one kernel, pruned; the same kernel in another plan is looked up."""
        mine = {t.cls for t in group}
        below = _below_cut(plan.choices, [t.cls for t in group], plan.stored)
        stored = {c: s for c, s in plan.stored.items() if c in below and c not in mine}
        key = (group, tuple(sorted(stored)), tuple((c, plan.choices[c]) for c in below))
        known = self.kernels.get(key)
        if known is None:
            known = self._build(plan, group, stored)
            self.kernels[key] = known
        return known

    def _build(
        self, plan: _Plan, group: tuple[Target, ...], stored: Mapping[int, tuple[str, tuple[Axis, ...]]]
    ) -> list[tuple[Family, Reach]]:
        task = self.task
        outputs = tuple(f.tensor for f in task.formulas)
        final = any(t.tensor == o.name for t in group for o in outputs)
        suffix = "" if final and len(plan.groups) == 1 else f"_{group[0].tensor}"
        builder = Builder(plan.choices, task.classes.axes, stored, {})
        reached: list[tuple[Family, Reach]] = []
        seen: set[Family] = set()
        for family in families(group, builder, f"{task.name}{suffix}_kernel", suffix, self.bounds.roles):
            self.generated += 1
            if family is None:
                self.pruned["schedule"] += 1
                continue
            if family in seen:
                self.pruned["duplicate"] += 1
                continue
            seen.add(family)
            whole = SGraph(task.name, task.inputs, (*plan.buffers, *family.buffers), outputs, family.kernels)
            answer = reach(family.kernels, whole, task.limits, task.rates, task.hints)
            if isinstance(answer, str):
                self.pruned[answer] += 1
            else:
                reached.append((family, answer))
        return keep(reached, self.bounds.per_kernel, self.pruned)

    def result(self) -> Generated:
        """The best sGraphs, best first."""
        ordered = sorted(enumerate(self.found.items()), key=lambda t: (t[1][1], t[0]))
        # The best few of each way to cut the program come before more of another.
        seen: Counter[tuple[str, ...]] = Counter()
        turns: list[tuple[int, int, Candidate]] = []
        for place, (_, (sgraph, seconds)) in enumerate(ordered):
            cut = tuple(k.name for k in sgraph.kernels if not k.name.endswith("_combine"))
            turns.append((seen[cut] // PER_CUT, place, Candidate(sgraph, seconds)))
            seen[cut] += 1
        kept = sorted(turns, key=lambda t: t[:2])[: self.bounds.max_sgraphs]
        self.pruned["rank"] += len(turns) - len(kept)
        best_first = sorted(kept, key=lambda t: t[1])
        return Generated(
            tuple(c for _, _, c in best_first), self.generated, {k: n for k, n in sorted(self.pruned.items()) if n}
        )


def _below_cut(choices: Choices, roots: Sequence[int], stored: Mapping[int, object]) -> tuple[int, ...]:
    """E-classes that a kernel for the roots computes or reads back."""
    seen: dict[int, None] = {}
    stack = [c for r in roots for c in choices[r].children]
    while stack:
        c = stack.pop()
        if c not in seen:
            seen[c] = None
            if c not in stored:
                stack.extend(choices[c].children)
    return tuple(sorted({*seen, *roots}))
