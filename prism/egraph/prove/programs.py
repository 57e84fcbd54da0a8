"""Are two programs one function? As whole formulas where they are small, and part by part where they are deep."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from prism.egraph.language import Budget
from prism.egraph.prove.cutpoints import Cuts
from prism.egraph.prove.equality import Examined, examine
from prism.egraph.prove.matching import Names, named, over_names, whole
from prism.egraph.prove.whole_runs import Runs
from prism.egraph.worker import Worker
from prism.errors import UnsupportedError
from prism.program.index import Index
from prism.program.loops import written_out
from prism.program.nodes import Const, Definition, Expr, Map, Program, Read, Reduce, free_axes, walk
from prism.program.ops import OPS
from prism.program.transform import with_children
from prism.program.verdict import Status, Verdict
from prism.program.views import same_extent

# Reductions of a program up to which its formulas are compared as a whole first, and up to which they are at all.
_SMALL = 10
_LARGE = 24
_DEEP = 500
"""Definitions of both programs, up to which an output without a formula is looked at in parts: 40 s for 1,600."""


def examine_programs(a: Program, b: Program, *, budget: Budget | None = None, worker: Worker | None = None) -> Examined:
    """Whether `b` computes what `a` does, output by output, with the weights that each holds.

    Loops are compared step by step, as they need not be alike. Inputs are matched by name where the names agree, else
    by position; outputs by position. Symbols of `b` are matched to those of `a` by the inputs' shapes.

    Raises:
        ShapeError: the programs take different numbers of inputs, or inputs of different shapes or kinds.
        UnsupportedError: a program has an output whose indices cannot be made affine, or loops of too many steps.
        WorkerError: the worker died or ran past its limit.
    """
    a, b = written_out(a), written_out(b)
    names = named(a, b)
    if len(a.outputs) != len(b.outputs):
        return Examined(Verdict(Status.REFUTED, f"{len(a.outputs)} outputs against {len(b.outputs)}"))
    for x, y in zip(a.outputs, names.b.outputs, strict=True):
        one, other = a.tensor(x).shape, names.b.tensor(y).shape
        if len(one) != len(other) or not all(map(same_extent, one, other)):
            shapes = " against ".join(f"[{', '.join(map(str, s))}]" for s in (one, other))
            return Examined(Verdict(Status.REFUTED, f"output {x} has shape {shapes}"))
    if _same(names):
        return Examined(Verdict(Status.PROVED, "the two are one program, operator by operator"))
    with nullcontext(worker) if worker is not None else Worker() as running:
        assert running is not None
        return _examined(names, budget, running)


def _same(names: Names) -> bool:
    """Whether the two differ by nothing but what inputs, weights and values between are called.

    Then there is nothing to prove, however large they are.
    """
    if len(names.a.definitions) != len(names.b.definitions):
        return False
    ours = {t.name: t.name for t in names.a.inputs} | dict(names.ours)
    theirs = dict(names.theirs)
    if not all(isinstance(called, str | Const) for called in (*ours.values(), *theirs.values())):
        return False
    if any(np.isnan(w.array).any() for w in names.weights.values()):  # of which nothing is proved
        return False
    for n, (d, e) in enumerate(zip(names.a.definitions, names.b.definitions, strict=True)):
        if (d.axes, d.dtype) != (e.axes, e.dtype) or over_names(d.expr, ours) != over_names(e.expr, theirs):
            return False
        ours[d.name] = theirs[e.name] = f"\0{n}"  # what no tensor is called
    return [ours[x] for x in names.a.outputs] == [theirs[y] for y in names.b.outputs]


def _examined(names: Names, budget: Budget | None, worker: Worker) -> Examined:
    many = max(sum(isinstance(e, Reduce) for d in p.definitions for e in walk(d.expr)) for p in (names.a, names.b))
    unlike = any(not all(w.sides) for w in names.weights.values())
    first: Examined | None = None
    untold: UnsupportedError | None = None
    if many <= _SMALL and not unlike:
        try:
            first = _whole(names, budget, worker)
        except UnsupportedError as error:  # no formula of a whole output has affine indices: those of its parts may
            if len(names.a.definitions) + len(names.b.definitions) > _DEEP:
                raise
            untold = error
        if first is not None and first.verdict.status is not Status.UNKNOWN:
            return first
    fine = replace(names, a=finer(names.a), b=finer(names.b))
    runs = Runs.of(fine)
    if runs is None or any(np.isnan(w.array).any() for w in names.weights.values()):
        return first or _whole(names, budget, worker)
    if many > _SMALL or untold is not None:
        found = runs.attempt().found
        if found is not None:
            return Examined(Verdict(Status.REFUTED, found.where, counterexample=dict(found.inputs)))
    cuts = Cuts(fine, worker)
    by_cuts = cuts.examine(runs)
    if untold is not None:
        if not by_cuts.verdict:
            raise untold
        return by_cuts
    if first is None and many <= _LARGE and (not by_cuts.verdict or many <= _SMALL):
        try:
            first = _whole(names, budget, worker, sharp=not cuts.sound)
        except UnsupportedError:
            if not by_cuts.verdict:
                raise
    if first is None or (by_cuts.verdict and first.verdict.status is Status.UNKNOWN):
        return by_cuts
    if first.verdict.status is Status.UNKNOWN:
        reason = f"{first.verdict.reason}; by cuts: {by_cuts.verdict.reason}"
        first = replace(first, verdict=replace(first.verdict, reason=reason))
    return first


def _whole(names: Names, budget: Budget | None, worker: Worker, sharp: bool = False) -> Examined:
    """The verdict on the outputs as one formula each; see `Matched` for `sharp`."""
    both = replace(whole(names), sharp=sharp)
    examined = examine(both, budget=budget, worker=worker)
    return replace(examined, parts=((examined, both),))


def finer(program: Program) -> Program:
    """The same program with a definition for each operation on floats and each reduction.

    What stands below a choice stays there, as it may read outside of a tensor where it is not chosen, and what depends
    on the axis of a reduction stays in it.

    A layer normalisation is one operator and one definition; with its mean, its variance and what it multiplies by the
    gain defined one by one, another program that has these, and no gain, has them in common with it.
    """
    made: list[Definition] = []
    taken = {d.name for d in program.definitions} | {t.name for t in program.inputs}
    for d in program.definitions:
        bound = {e.axis for e in walk(d.expr) if isinstance(e, Reduce)}
        if d.view or not d.dtype.is_float or not bound.isdisjoint(d.axes):
            made.append(d)
            continue
        parts: dict[Expr, Definition] = {}
        made_expr = _named(d, d.expr, parts, taken, {})
        # The last one is the definition itself.
        made += [p for p in parts.values() if p.expr is not made_expr]
        made.append(replace(d, expr=made_expr))
    return replace(program, definitions=tuple(made))


def _named(d: Definition, root: Expr, parts: dict[Expr, Definition], taken: set[str], done: dict[int, Expr]) -> Expr:
    """The expression over names for what it is computed from."""

    def visit(e: Expr) -> Expr:
        known = done.get(id(e))
        if known is not None:
            return known
        match e:
            case Map("where", (p, a, b)):
                new: Expr = Map("where", (visit(p), a, b))
            case _:
                new = with_children(e, map(visit, e.children))
        if e is not root and _stands_alone(d, e):
            new = name(new)
        done[id(e)] = new
        return new

    def name(e: Expr) -> Expr:
        if e not in parts:
            number = len(parts)
            called = f"{d.name}.{number}"
            while called in taken:
                called += "'"
            taken.add(called)
            axes = tuple([a for a in d.axes if a in free_axes(e)])
            parts[e] = Definition(called, axes, e, d.dtype, d.origin)
        part = parts[e]
        return Read(part.name, tuple(map(Index.axis, part.axes)))

    return visit(root)


def _stands_alone(d: Definition, e: Expr) -> bool:
    """Whether an expression has a value for each element of the definition, and more to it than a read."""
    match e:
        case Map(op, _) if OPS[op].boolean:
            return False
        case Map() | Reduce():
            return free_axes(e).issubset(d.axes) and any(isinstance(x, Read) for x in walk(e))
    return False
