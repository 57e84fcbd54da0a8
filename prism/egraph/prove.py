"""Proved, refuted or unknown: is a candidate the reference, for all inputs and all values of the symbols?

Inputs that tell the two apart are looked for first. Without any, proved means, over the reals, one normal form by
arithmetic once both are cut into their common pieces (pieces.py, normal.py), or else one e-class under the rules, of
the whole or of the pieces. Normal forms that evaluation contradicts prove nothing. Inputs at which only the candidate
is infinite or NaN refute what the rules do not prove (class domain). Otherwise the answer is unknown, with what was
tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import sympy

from prism.egraph.budget import Budget
from prism.egraph.normal import Unfit, normal_form
from prism.egraph.pieces import pieces
from prism.egraph.refute import Attempt, refute
from prism.egraph.worker import Worker
from prism.errors import ShapeError, WorkerError
from prism.program.constants import Reading, readings
from prism.program.extents import Extent, is_static, normal
from prism.program.finite import Outcome, compare
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import (
    Const,
    Expr,
    Formula,
    Map,
    Position,
    Program,
    Read,
    Reduce,
    Size,
    SymbolRange,
    Tensor,
)
from prism.program.transform import canonical, substitute
from prism.sgraph.verdict import Status, Verdict

ARITHMETIC = "arithmetic"
"""Stands for the rule families in the verdict on what has one normal form."""


def prove_formulas(
    reference: Sequence[Formula],
    candidate: Sequence[Formula],
    *,
    tensors: Sequence[Tensor],
    ranges: Mapping[str, SymbolRange] | None = None,
    budget: Budget | None = None,
    worker: Worker | None = None,
) -> Verdict:
    """Whether every candidate formula is the reference formula of the same position.

    Args:
        reference: one formula per output.
        candidate: as many, over the same input names.
        tensors: the inputs that they read.
        ranges: of the symbols; those that are missing may be any positive integer.
        budget: of the reference's saturation.
        worker: a running worker; one is started, and ended, by default.

    Raises:
        WorkerError: the worker died or ran past its limit.
    """
    if len(reference) != len(candidate):
        return Verdict(Status.REFUTED, f"{len(reference)} outputs against {len(candidate)}")
    left: list[Formula] = []
    right: list[Formula] = []
    for a, b in zip(reference, candidate, strict=True):
        if a.tensor.shape != b.tensor.shape:
            shapes = " against ".join(f"[{', '.join(map(str, t.shape))}]" for t in (a.tensor, b.tensor))
            return Verdict(Status.REFUTED, f"output {a.tensor.name} has shape {shapes}")
        aligned = _align(a, b)
        if aligned is None:
            places = " against ".join(f"[{', '.join(map(str, f.index))}]" for f in (a, b))
            return Verdict(Status.UNKNOWN, f"output {a.tensor.name} is stored by indices that do not meet: {places}")
        left.append(aligned[0])
        right.append(aligned[1])
    read = readings([f.expr for f in left], [f.expr for f in right])
    one, other = list(read.left), list(read.right)
    left = [replace(f, expr=e) for f, e in zip(left, one, strict=True)]
    right = [replace(f, expr=e) for f, e in zip(right, other, strict=True)]
    attempt = refute(left, right, tensors, ranges or {})
    found = attempt.found
    if read.unclear and found is None:
        reason = f"the constants {read.unclear} are different numbers, too near each other for the prover"
        return Verdict(Status.UNKNOWN, reason)
    verdict = _decided(attempt, one, other, budget, worker)
    if attempt.slight is not None and not verdict and found is None:
        # float64 alone does not tell a small difference from rounding; residues have none.
        opinion = compare(one, other, tensors=tensors, ranges=ranges or {})
        if opinion.outcome is Outcome.DISAGREE:
            where = f"{attempt.slight.where}; the identity test finds a difference, too: {opinion.where}"
            return replace(verdict, status=Status.REFUTED, reason=where, counterexample=dict(attempt.slight.inputs))
    if verdict and read.assumed:
        verdict = replace(verdict, reason=f"{verdict.reason}, with {'; '.join(read.assumed)}")
    return verdict


def _decided(
    attempt: Attempt, one: Sequence[Expr], other: Sequence[Expr], budget: Budget | None, worker: Worker | None
) -> Verdict:
    """The verdict on expressions, after an attempt to refute them."""
    found = attempt.found
    parts = pieces(one, other)
    same = _same_forms(*parts)
    if found is not None and found.finite:
        if same:
            reason = f"the normal forms are one, but {found.where}: a bug in prism, please report it"
            return Verdict(Status.UNKNOWN, reason)
        return Verdict(Status.REFUTED, found.where, counterexample=dict(found.inputs))
    if same:
        return Verdict(Status.PROVED, "one normal form as sums of products", rules=(ARITHMETIC,))
    with nullcontext(worker) if worker is not None else Worker() as running:
        assert running is not None
        verdict = _in_one_class(running, one, other, budget)
        if verdict:
            return verdict
        if found is not None:
            return replace(verdict, status=Status.REFUTED, reason=found.where, counterexample=dict(found.inputs))
        if parts != (list(one), list(other)):
            cut = _in_one_class(running, *parts, budget)
            if cut:
                return replace(cut, reason=f"{cut.reason}, cut into {len(parts[0])} pieces")
    tried = attempt.skipped or f"they agree at {attempt.points} random points"
    return replace(verdict, reason=f"{verdict.reason}; their normal forms differ; {tried}")


def _in_one_class(
    worker: Worker, reference: Sequence[Expr], candidate: Sequence[Expr], budget: Budget | None
) -> Verdict:
    """The e-graph's verdict: proved or unknown."""
    try:
        worker.explore(reference, budget or Budget())
        return worker.prove([candidate])[0]
    except WorkerError as error:
        return Verdict(Status.UNKNOWN, error.one_line())


def _same_forms(reference: Sequence[Expr], candidate: Sequence[Expr]) -> bool:
    """Whether both have the same normal forms, expression by expression."""
    try:
        return all(normal_form(a) == normal_form(b) for a, b in zip(reference, candidate, strict=True))
    except Unfit:
        return False


def prove_programs(a: Program, b: Program, *, budget: Budget | None = None, worker: Worker | None = None) -> Verdict:
    """Whether `b` computes what `a` does, output by output.

    Inputs are matched by name where the names agree, else by position; outputs by position. Symbols of `b` are matched
    to those of `a` by the inputs' shapes.

    Raises:
        ShapeError: the programs take different numbers of inputs, or inputs of different shapes.
        UnsupportedError: a program has an output whose indices cannot be made affine.
        WorkerError: the worker died or ran past its limit.
    """
    pairs = _match(a, b)
    reference, candidate = _formulas(pairs, a, b)
    verdict = prove_formulas(
        reference, candidate, tensors=a.inputs, ranges={**b.ranges, **a.ranges}, budget=budget, worker=worker
    )
    differing = [ours.name for ours, theirs in pairs if _weights_differ(a, ours.name, b, theirs.name)]
    if verdict and differing:
        # Proofs are for all weights; the models themselves fix other ones.
        reason = f"equal as functions of their weights, but the models hold other values in {', '.join(differing)}"
        return replace(verdict, status=Status.UNKNOWN, reason=reason)
    return verdict


def _formulas(
    pairs: Sequence[tuple[Tensor, Tensor]], a: Program, b: Program
) -> tuple[tuple[Formula, ...], tuple[Formula, ...]]:
    """The outputs of both, inlined, with the names of `a` for inputs and symbols."""
    symbols = _symbols(pairs, a, b)
    names = {theirs.name: ours.name for ours, theirs in pairs}
    return tuple(inline(a)), tuple(_rename(f, names, symbols) for f in inline(b))


def aligned(a: Program, b: Program) -> Reading | None:
    """What is compared of two programs: their outputs over the same inputs, axes and symbols, constants read alike.

    None where outputs are stored by indices that do not meet.

    Raises:
        ShapeError: the programs take different numbers of inputs, or inputs of different shapes.
        UnsupportedError: a program has an output whose indices cannot be made affine.
    """
    sides = [_align(x, y) for x, y in zip(*_formulas(_match(a, b), a, b), strict=False)]
    if any(s is None for s in sides):
        return None
    both = [s for s in sides if s is not None]
    return readings([x.expr for x, _ in both], [y.expr for _, y in both])


def _weights_differ(a: Program, ours: str, b: Program, theirs: str) -> bool:
    if (ours in a.weights) != (theirs in b.weights):
        return True
    return ours in a.weights and not np.array_equal(np.asarray(a.weights[ours]), np.asarray(b.weights[theirs]))


def _match(a: Program, b: Program) -> list[tuple[Tensor, Tensor]]:
    """Pairs of inputs."""
    theirs = {t.name: t for t in b.inputs}
    if len(a.inputs) != len(b.inputs):
        raise ShapeError(
            f"{a.name} takes {len(a.inputs)} inputs and {b.name} {len(b.inputs)}",
            fix="give both the same inputs, unused ones included",
        )
    if {t.name for t in a.inputs} == set(theirs):
        return [(t, theirs[t.name]) for t in a.inputs]
    return list(zip(a.inputs, b.inputs, strict=True))


def _symbols(pairs: Sequence[tuple[Tensor, Tensor]], a: Program, b: Program) -> dict[sympy.Basic, Extent]:
    """What each symbol of `b` is in terms of `a`'s, by the shapes of the inputs."""
    found: dict[sympy.Basic, Extent] = {}
    for ours, theirs in pairs:
        if len(ours.shape) == len(theirs.shape):
            for x, y in zip(ours.shape, theirs.shape, strict=True):
                if isinstance(y, sympy.Symbol):
                    found.setdefault(y, x)
    for ours, theirs in pairs:
        if ours.shape != tuple(_extent(e, found) for e in theirs.shape):
            shapes = " and ".join(f"[{', '.join(map(str, t.shape))}]" for t in (ours, theirs))
            raise ShapeError(
                f"input {ours.name} of {a.name} and {theirs.name} of {b.name} have shapes {shapes}",
                fix="inputs are matched by name where the names agree, else by position",
            )
    return found


def _extent(extent: Extent, symbols: Mapping[sympy.Basic, Extent]) -> Extent:
    if is_static(extent) or not symbols:
        return normal(extent)
    assert not isinstance(extent, int)
    return normal(sympy.expand(extent.xreplace({s: sympy.sympify(e) for s, e in symbols.items()})))


def _rename(formula: Formula, names: Mapping[str, str], symbols: Mapping[sympy.Basic, Extent]) -> Formula:
    """The formula over the other program's input names and symbols, its axes named anew."""
    changed = {s: e for s, e in symbols.items() if s != e}

    def axis(a: Axis) -> Axis:
        return Axis(a.name, _extent(a.extent, changed))

    def index(i: Index) -> Index:
        total = Index((), _extent(i.offset, changed))
        for atom, c in i.terms:
            assert isinstance(atom, Axis)
            total = total + Index(((axis(atom), 1),)).scaled(_extent(c, changed))
        return total

    memo: dict[int, Expr] = {}

    def visit(e: Expr) -> Expr:
        if id(e) not in memo:
            match e:
                case Read(tensor, indices):
                    memo[id(e)] = Read(names.get(tensor, tensor), tuple(map(index, indices)))
                case Position(i):
                    memo[id(e)] = Position(index(i))
                case Size(extent):
                    known = _extent(extent, changed)
                    memo[id(e)] = Const(float(int(known))) if is_static(known) else Size(known)
                case Map(op, args):
                    memo[id(e)] = Map(op, tuple(map(visit, args)))
                case Reduce(kind, a, body):
                    memo[id(e)] = Reduce(kind, axis(a), visit(body))
                case _:
                    memo[id(e)] = e
        return memo[id(e)]

    t = formula.tensor
    tensor = Tensor(t.name, tuple(_extent(e, changed) for e in t.shape), t.dtype)
    return Formula(tensor, tuple(map(index, formula.index)), visit(formula.expr))


def _align(a: Formula, b: Formula) -> tuple[Formula, Formula] | None:
    """The two over one set of free axes, stored by the same indices; None where that is not simple.

    Free axes are set apart first, then each dimension whose index is a plain axis takes the other formula's index.
    """
    left = _apart(a, "<")
    right = _apart(b, ">")
    to_left: dict[Axis, Index] = {}
    to_right: dict[Axis, Index] = {}
    for i, j in zip(left.index, right.index, strict=True):
        ours, theirs = i.as_axis(), j.as_axis()
        if theirs is not None and theirs not in to_right:
            to_right[theirs] = i
        elif ours is not None and ours not in to_left:
            to_left[ours] = j
        elif i != j:
            split = _alike(i, j)
            if split is None or not split.keys().isdisjoint(to_right):
                return None
            to_right.update(split)
    # Axes go in the order of the result, so that both are named the same; the names are the left formula's where
    # it has them.
    index = tuple(i.substitute(to_left) for i in left.index)
    if index != tuple(j.substitute(to_right) for j in right.index):
        return None
    names = _plain_names(index)
    final = tuple(i.substitute(names) for i in index)
    exprs = [
        canonical(substitute(substitute(f.expr, mapping), names)) for f, mapping in ((left, to_left), (right, to_right))
    ]
    return Formula(a.tensor, final, exprs[0]), Formula(b.tensor, final, exprs[1])


def _alike(i: Index, j: Index) -> dict[Axis, Index] | None:
    """What the axes of j are in i, when both split a dimension in the same way; else None."""
    ours = {str(c): a for a, c in i.terms if isinstance(a, Axis)}
    theirs = {str(c): a for a, c in j.terms if isinstance(a, Axis)}
    if i.offset != j.offset or not len(i.terms) == len(j.terms) == len(ours) == len(theirs):
        return None
    if ours.keys() != theirs.keys() or any(ours[c].extent != theirs[c].extent for c in ours):
        return None
    return {theirs[c]: Index.axis(ours[c]) for c in ours}


def _apart(f: Formula, mark: str) -> Formula:
    axes = {a for i in f.index for a in i.axes()}
    mapping = {a: Index.axis(Axis(f"{a.name}{mark}", a.extent)) for a in axes}
    return Formula(f.tensor, tuple(i.substitute(mapping) for i in f.index), substitute(f.expr, mapping))


def _plain_names(index: Sequence[Index]) -> dict[Axis, Index]:
    """Canonical names for the axes of an output's index, in the order of its dimensions."""
    from prism.program.transform import least_instance

    taken: list[Axis] = []
    names: dict[Axis, Index] = {}
    for i in index:
        for atom, _ in i.terms:
            assert isinstance(atom, Axis)
            if atom not in names:
                taken.append(least_instance(atom.extent, taken))
                names[atom] = Index.axis(taken[-1])
    return names
