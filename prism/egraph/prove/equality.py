"""Proved, refuted or unknown: is a candidate the reference, for all inputs and all values of the symbols?

Inputs that tell the two apart are looked for first. Without any, proved means, over the reals, one normal form by
arithmetic once both are cut into their common pieces (refinement.py, normal_form.py), or else one e-class under the
rules, of the whole or of the pieces. Normal forms that evaluation contradicts prove nothing. Inputs at which the
reference has a value and the candidate is infinite or undefined refute it like any others. What is equal only where
each row of a mask keeps an element is proved under that assumption, which the verdict names, as it names that the
candidate has a value where the reference has none. Otherwise the answer is unknown, with what was tried.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from prism.egraph.language import Budget
from prism.egraph.prove.cases import Case, cases, defined_alike
from prism.egraph.prove.coefficients import read_alike, stored_alike
from prism.egraph.prove.hidden import without_numbers
from prism.egraph.prove.matching import Matched
from prism.egraph.prove.normal_form import Unfit, normal_form, same_quotient
from prism.egraph.prove.places import alike_by_places
from prism.egraph.prove.refutation import WHOLE_WORK, Attempt, Counterexample, draws, refute, sides_text, work
from prism.egraph.prove.segments import alike_in_pieces
from prism.egraph.worker import Worker
from prism.errors import WorkerError
from prism.program.build import const, op
from prism.program.constants import Reading, readings
from prism.program.evaluate import evaluate_expr
from prism.program.extents import is_static
from prism.program.identity.testing import Outcome, compare
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, Formula, Read
from prism.program.refinement import common_refinement
from prism.program.sign_analysis import Facts, kept, masked
from prism.program.transform import canonical, rebuilt, substitute
from prism.program.verdict import Status, Verdict

ARITHMETIC = "arithmetic"
"""Stands for the rule families in the verdict on what has one normal form."""
MAX_CASES = 3
"""Comparisons by which two expressions are taken apart, each into two cases."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A verdict, and what was compared for it."""

    verdict: Verdict  # the prover's
    # The outputs of both over the same inputs, axes and symbols, weights and constants read alike; None where the
    # outputs do not meet.
    read: Reading | None = None
    # Where it was proved part by part, those that are not the same formula, and what was compared of each.
    parts: tuple[tuple[Examined, Matched], ...] = ()


def examine(both: Matched, *, budget: Budget | None = None, worker: Worker | None = None) -> Examined:
    """The verdict on two lists of formulas. Raises WorkerError: the worker died or ran past its limit."""
    if len(both.reference) != len(both.candidate):
        return Examined(Verdict(Status.REFUTED, f"{len(both.reference)} outputs against {len(both.candidate)}"))
    left: list[Formula] = []
    right: list[Formula] = []
    for a, b in zip(both.reference, both.candidate, strict=True):
        if a.tensor.shape != b.tensor.shape:
            shapes = " against ".join(f"[{', '.join(map(str, t.shape))}]" for t in (a.tensor, b.tensor))
            return Examined(Verdict(Status.REFUTED, f"output {a.tensor.name} has shape {shapes}"))
        aligned = align(a, b)
        if aligned is None:
            found = _refuted_apart(a, b, both)
            if found is not None:
                return Examined(Verdict(Status.REFUTED, found.where, counterexample=dict(found.inputs)))
            places = " against ".join(f"[{', '.join(map(str, f.index))}]" for f in (a, b))
            reason = f"output {a.tensor.name} is stored by indices that do not meet: {places}"
            return Examined(Verdict(Status.UNKNOWN, reason))
        left.append(aligned[0])
        right.append(aligned[1])
    read = readings([f.expr for f in left], [f.expr for f in right])
    left = [replace(f, expr=e) for f, e in zip(left, read.left, strict=True)]
    right = [replace(f, expr=e) for f, e in zip(right, read.right, strict=True)]
    return _judged(left, right, read, both, budget, worker)


def _judged(
    left: Sequence[Formula],
    right: Sequence[Formula],
    read: Reading,
    both: Matched,
    budget: Budget | None,
    worker: Worker | None,
) -> Examined:
    """The verdict on formulas with equal indices."""
    one, other = list(read.left), list(read.right)
    types = {t.name: t.dtype for t in both.tensors if not t.dtype.is_float}
    fixed = both.fixed([*one, *other], sharp=both.unlike(one, other))
    attempt = refute(left, right, both.tensors, both.ranges, fixed=fixed, furthest=both.furthest)
    found = attempt.found
    if read.unclear and found is None:
        reason = f"the constants {read.unclear} are different numbers, too near each other for the prover"
        return Examined(Verdict(Status.UNKNOWN, reason), read)
    undefined = [n for n, values in fixed.arrays.items() if np.isnan(values).any()]
    if undefined and found is None:
        return Examined(Verdict(Status.UNKNOWN, f"weights hold NaN: {', '.join(undefined)}"), read)
    rounded = both.unlike(one, other)
    if rounded:
        stored = stored_alike(one, other, both.weights)
        one, other = list(stored.left), list(stored.right)
        read = replace(read, left=stored.left, right=stored.right, weights=stored.said)
    parts = common_refinement(one, other)
    same = _same_forms(*parts, types) is not None
    if not same and found is None and both.computed(*parts):
        alike = read_alike(*parts, both.weights, both.fixed([*one, *other]).rounded, both.sharp)
        if alike is not None:
            parts = list(alike.left), list(alike.right)
            read = replace(read, left=alike.left, right=alike.right, weights=(*read.weights, *alike.said))
            one, other = parts
            same = _same_forms(*parts, types) is not None
    verdict = _decided(attempt, same, (one, other), parts, both.apart(*parts), types, budget, worker)
    hidden = None if verdict or found is not None or rounded else without_numbers(one, other)
    if hidden is not None:
        sides = hidden.left, hidden.right
        pieces = common_refinement(*sides)
        one_form = _same_forms(*pieces, types) is not None
        as_masked = _decided(attempt, one_form, sides, pieces, both.apart(*pieces), types, budget, worker)
        if as_masked and hidden.sure:
            read = replace(read, left=hidden.left, right=hidden.right)
            return Examined(as_masked.assuming((*read.assumed, *hidden.said)), read)
        if as_masked:
            missing = f"{' and '.join(hidden.said)}, by the ranges of inputs"
            verdict = replace(verdict, reason=f"{verdict.reason}; they are equal where it is stated {missing}")
    if attempt.slight is not None and not verdict and found is None and not rounded:
        # float64 alone does not tell a small difference from rounding; residues have none.
        opinion = compare(one, other, tensors=both.tensors, ranges=both.ranges)
        if opinion.outcome is Outcome.DISAGREE:
            where = f"{attempt.slight.where}; the identity test finds a difference, too: {opinion.where}"
            inputs = dict(attempt.slight.inputs)
            return Examined(replace(verdict, status=Status.REFUTED, reason=where, counterexample=inputs), read)
    if not verdict:
        return Examined(verdict, read)
    if read.weights:
        many = "1 weight" if len(read.weights) == 1 else f"{len(read.weights)} weights"
        verdict = replace(verdict, reason=f"{verdict.reason}, with {many} read alike", weights=read.weights)
    infinite = [n for n, values in fixed.arrays.items() if np.isinf(values).any()]
    large = [f"the infinities that {n} holds are taken for large numbers" for n in infinite]
    unlike = [f"the reference has a value, unlike {attempt.undefined.where}"] if attempt.undefined else []
    return Examined(verdict.assuming((*read.assumed, *large, *unlike)), read)


def _decided(
    attempt: Attempt,
    same: bool,
    whole: tuple[Sequence[Expr], Sequence[Expr]],
    parts: tuple[Sequence[Expr], Sequence[Expr]],
    apart: Sequence[str],
    types: Mapping[str, DType],
    budget: Budget | None,
    worker: Worker | None,
) -> Verdict:
    """The verdict on expressions, after an attempt to refute them; `same` says that their normal forms are one."""
    found = attempt.found
    if found is not None:
        if same and found.finite:
            reason = f"the normal forms are one, but {found.where}: a bug in prism, please report it"
            return Verdict(Status.UNKNOWN, reason)
        return Verdict(Status.REFUTED, found.where, counterexample=dict(found.inputs))
    if same:
        return Verdict(Status.PROVED, "one normal form as sums of products", rules=(ARITHMETIC,))
    verdict = Verdict(Status.UNKNOWN, f"nothing relates the weights {', '.join(apart)}")
    if not apart:
        with nullcontext(worker) if worker is not None else Worker() as running:
            assert running is not None
            verdict = _with_values(_in_one_class(running, *whole, budget), *whole)
            if not verdict and parts != whole:
                cut = _with_values(_in_one_class(running, *parts, budget), *parts)
                if cut:
                    verdict = replace(cut, reason=f"{cut.reason}, cut into {len(parts[0])} pieces")
    if verdict:
        return verdict
    assumed = _same_forms(*parts, types, assume=True)
    if assumed is not None:
        proved = Verdict(Status.PROVED, "one normal form as sums of products", rules=(ARITHMETIC,))
        return proved.assuming([kept(e) for e in assumed])
    if all(alike_by_places(a, b) for a, b in zip(*(_typed(side, types) for side in whole), strict=True)):
        return Verdict(Status.PROVED, "one normal form as sums of products at each place", rules=(ARITHMETIC,))
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


def _with_values(verdict: Verdict, reference: Sequence[Expr], candidate: Sequence[Expr]) -> Verdict:
    """A proof by rules, if infinities leave the candidate without a value only where the reference has none.

    Rules hold where both of their sides have a value, and an infinite factor or addend that meets a sum or a maximum
    may leave one of them without. So a candidate in which infinities may meet is proved only where the reference's
    own masks keep them apart, which the verdict names unless the reference is as undefined in the rows they empty.
    """
    if not verdict:
        return verdict
    assumed: dict[str, None] = {}
    for a, b in zip(reference, candidate, strict=True):
        if Facts(trust=True).infinities(b) is not None:
            continue
        theirs = Facts(assume=True, trust=True)
        defined = theirs.infinities(b) is not None
        if not defined or not set(masked([a])).issuperset(theirs.assumed):
            reason = (
                f"{verdict.reason}, but infinities may leave the candidate without a value where the reference has one"
            )
            return replace(verdict, status=Status.UNKNOWN, reason=reason, classes=(), assumptions=())
        if not defined_alike(a, b, tuple(theirs.assumed)):
            assumed |= dict.fromkeys(map(kept, theirs.assumed))
    return verdict.assuming([c for c in assumed if c not in verdict.assumptions])


def _typed(exprs: Sequence[Expr], types: Mapping[str, DType]) -> list[Expr]:
    """The expressions with whole numbers and truth values in the place of inputs of such types.

    The whole numbers are the floors of all numbers, and 0 and 1 are whether one is more than 0: whatever holds for all
    numbers that are read holds for all elements of the type, which are their own floors.
    """

    def one(e: Expr) -> Expr:
        if not isinstance(e, Read) or e.tensor not in types:
            return e
        return op("lt", const(0.0), e) if types[e.tensor] is DType.BOOL else op("floor", e)

    return rebuilt(exprs, one) if types else list(exprs)


def _same_forms(
    reference: Sequence[Expr],
    candidate: Sequence[Expr],
    types: Mapping[str, DType] = MappingProxyType({}),
    *,
    assume: bool = False,
) -> tuple[Expr, ...] | None:
    """Whether both have the same normal forms, expression by expression: None where not, else what that rests on.

    Both have canonical axes; `types` are those of what is read, but for floats. `assume` is whether the maxima of the
    reference are assumed to be numbers where a mask may hide all of a row; those are what it rests on. Of the
    candidate's own nothing is assumed.
    """
    assumed: dict[Expr, None] = {}
    try:
        for a, b in zip(_typed(reference, types), _typed(candidate, types), strict=True):
            found = _same_form(a, b, assume, MAX_CASES)
            if found is None:
                return None
            assumed |= found
    except Unfit:
        return None
    return tuple(assumed)


def _same_form(a: Expr, b: Expr, assume: bool, depth: int, within: Case | None = None) -> dict[Expr, None] | None:
    """What the equality of two normal forms rests on, in each of the cases that comparisons leave; None where not so.

    Raises:
        Unfit: one has none.
    """
    fit = True
    for strict in (False, True):
        ours, theirs = Facts(assume), Facts(assume)
        try:
            if normal_form(a, ours, strict=strict) == normal_form(b, theirs, strict=strict):
                break
        except Unfit:
            fit = False  # as what is 0 times a quotient; quotients may have one form all the same
    else:
        if (depth == MAX_CASES and alike_in_pieces(a, b)) or same_quotient(a, b):
            return {}
        split = cases(a, b, within) if depth and fit else None
        if split is None or not all(Facts().finite(x) for x in (split[0].less, split[0].more)):
            return None
        assumed: dict[Expr, None] = {}
        for case in split:
            one, other = case.of([a, b])
            found = _same_form(one, other, assume, depth - 1, case)
            if found is None:
                return None
            assumed |= found
        return assumed
    known = {normal_form(e, Facts(assume)) for e in ours.assumed}
    if not known.issuperset(normal_form(e, Facts(assume)) for e in theirs.assumed):
        return None
    return ours.assumed


def align(a: Formula, b: Formula) -> tuple[Formula, Formula] | None:
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
            digits = _common_digits(i, j) if split is None else ({}, split)
            if digits is None or not (digits[0].keys().isdisjoint(to_left) and digits[1].keys().isdisjoint(to_right)):
                return None
            to_left.update(digits[0])
            to_right.update(digits[1])
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


def _refuted_apart(a: Formula, b: Formula, both: Matched) -> Counterexample | None:
    """Inputs at which two formulas differ that cut a dimension in two ways, where both are small enough to evaluate."""
    if not all(is_static(e) for t in (a.tensor, *both.tensors) for e in t.shape):
        return None
    if any(work(f.expr, {}) > WHOLE_WORK for f in (a, b)):
        return None
    fixed = both.fixed([a.expr, b.expr])
    shapes = {t.name: tuple(map(int, t.shape)) for t in both.tensors if t.name not in fixed.arrays}
    dtypes = {t.name: t.dtype for t in both.tensors}
    for _, inputs in draws(np.random.default_rng(0), shapes, dtypes, ("normal", "ties")):
        left, right = (_elements(f, {**fixed.arrays, **inputs}) for f in (a, b))
        if np.isfinite(left).all() and np.isfinite(right).all() and not np.allclose(left, right, 1e-3, 1e-3):
            at = tuple(int(n) for n in np.unravel_index(int(np.abs(left - right).argmax()), left.shape))
            sides = sides_text(float(left[at]), float(right[at]))
            return Counterexample(inputs, f"{a.tensor.name} at [{', '.join(map(str, at))}]: {sides}")
    return None


def _elements(f: Formula, given: Mapping[str, np.ndarray]) -> np.ndarray:
    """The elements of what a formula with lengths that are numbers computes."""
    axes = tuple(sorted({x for i in f.index for x in i.axes()}, key=lambda x: x.name))
    values = evaluate_expr(f.expr, given, {}, axes)
    places = np.indices(values.shape)
    found = np.full(tuple(map(int, f.tensor.shape)), np.nan)
    at = [sum(int(c) * places[axes.index(x)] for x, c in i.terms) + int(i.offset) for i in f.index]
    found[tuple(np.broadcast_to(n, values.shape) for n in at)] = values
    return found


def _alike(i: Index, j: Index) -> dict[Axis, Index] | None:
    """What the axes of j are in i, when both split a dimension in the same way; else None."""
    ours = {str(c): a for a, c in i.terms if isinstance(a, Axis)}
    theirs = {str(c): a for a, c in j.terms if isinstance(a, Axis)}
    if i.offset != j.offset or not len(i.terms) == len(j.terms) == len(ours) == len(theirs):
        return None
    if ours.keys() != theirs.keys() or any(ours[c].extent != theirs[c].extent for c in ours):
        return None
    return {theirs[c]: Index.axis(ours[c]) for c in ours}


def _common_digits(i: Index, j: Index) -> tuple[dict[Axis, Index], dict[Axis, Index]] | None:
    """What the axes of i and of j are in the digits of both, where each splits the dimension into digits; else None."""
    ours, theirs = i.digits(), j.digits()
    if not ours or not theirs or i.offset != j.offset:
        return None
    units = sorted({c for c, _ in (*ours, *theirs)} | {c * int(a.extent) for c, a in (*ours, *theirs)})
    if units[-1] != ours[-1][0] * int(ours[-1][1].extent) or any(b % a for a, b in itertools.pairwise(units)):
        return None
    digits = {a: Axis(f"{ours[0][1].name}:{a}", b // a) for a, b in itertools.pairwise(units)}

    def of(unit: int, axis: Axis) -> Index:
        inside = [Index.axis(d).scaled(c // unit) for c, d in digits.items() if unit <= c < unit * int(axis.extent)]
        return functools.reduce(operator.add, inside)

    mine, other = ({a: of(c, a) for c, a in axes} for axes in (ours, theirs))
    return mine, other


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
