"""Identity testing over finite fields: an opinion on whether two expressions are equal that owes nothing to rules.

The query model is that of Li and Wu, "Identity Testing for Circuits with Exponentiation Gates" (arXiv 2506.04529):
inputs are drawn at random modulo p, and independently modulo q with q | p - 1; sums, products and quotients are those
of the fields; exp of a number with residue v modulo q is g^v modulo p, g a random element of order q. Here q has a
prime q' | q - 1 of its own, and so on, so exponentials nest to the depth of the chain (`finite_field.PRIMES`).

What the model adds, and why no true identity is called false by it:

    order          every number has a real shadow, a float64 that is drawn and computed beside the residues. max, min,
                   abs, sign, floor, where and comparisons choose by it, and the residues follow the choice. Numbers
                   are then elements of the ring R x F_p x F_q x ..., in which rational identities, those of exp, and
                   those of an order that only looks at R hold. Where shadows are too close to choose by and the
                   residues differ, or a shadow overflowed, the number is undefined.
    -inf           masks are made of it: it is known by its shadow, has no residues, and its exponential is 0.
    sqrt           for p = 3 modulo 4 a square has exactly one root that is itself a square. It is multiplicative and
                   a root, so the identities of products of roots hold; of a number that is no square it is undefined.
                   sqrt(x^2) = |x| is right for inputs, whose residues are squares where the shadow is positive, and
                   for products of them; not for sums, hence the rule for doubts below.
    sigmoid, tanh  are rational functions of exp by their definitions.
    log            has no residue, but that of its exponential is known, and adds as a product. Two numbers of which
                   one has no residue are compared by those of their exponentials. Those are reduced to the subgroup of
                   order q where a logarithm is multiplied: exp(c*log a) is there a to the power of c modulo q.
    erf, sin, cos  are random functions of the residues (oracles), odd or even as they should be: equal arguments have
                   equal values, and nothing else is known. So are operators that users declare, and powers other
                   than half-integers.
    constants      mean the simple number that they stand for (constants.py).
    long axes      are sampled, with weights that sum to their length (sample.py).

Undefined numbers are compared with nothing: a zero denominator, a root of a non-square, an exponential too deep cost
evidence and never give a false alarm. A difference of defined residues is a disagreement, with two exceptions:

    doubts   Where the pair holds something of which the model knows too little (an oracle, a constant that had to be
             guessed, roots beside choices by sign), it is one only if the shadows differ there, too, at one of three
             scales of the inputs. Otherwise the test does not apply, and says why.
    samples  A weighted sample stands for an axis whose values only name elements. Where they are computed with (pieces
             of an axis, shifts, selected elements), a difference counts if it shows with all elements summed; where
             these are too many, the test does not apply.

What it cannot see: differences at single points that random residues miss (ties, 0, halves), where one side alone is
undefined (sqrt(x*y) against sqrt(x)*sqrt(y)), and at the edge of a window that no sampled pair of positions meets.

For rational functions of degree d the probability that two that differ modulo p agree in one round is at most
d / (p - d') with d' the degree of their denominators (Schwartz 1980, Zippel 1979), for the elements that are sampled.
With exponentials, roots or choices no bound is stated: that of the paper rests on a number-theoretic conjecture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from prism.program.extents import Extent
from prism.program.identity.constants import Meaning, meanings
from prism.program.identity.field import PRIMES, Field, Numbers
from prism.program.identity.sample import Sample, bindings, symbols_of
from prism.program.identity.values import LARGEST_POWER, ORACLES, Evaluator
from prism.program.index import Axis, Index
from prism.program.nodes import (
    Const,
    Expr,
    Map,
    Position,
    Read,
    Reduce,
    ReduceKind,
    Size,
    SymbolRange,
    Tensor,
    free_axes,
    walk,
)
from prism.program.ops import OPS
from prism.program.transform import indices

ROUNDS = 16
"""Independent draws, all together."""
_MORE_ROUNDS = (64, 256, 1024)
_ENOUGH = min(4, ROUNDS)
# Residues of the largest value.
_WORK = 1 << 21
# Evaluators that are kept for other candidates.
_KEPT = 16
# Constants are equal to some 40 bits, and exponentials may magnify that.
_SHADOW_RTOL = 1e-7
_SCALES = (None, 1.0, 1e-3)
_ALGEBRA = frozenset(
    ("add", "mul", "neg", "recip", "pow", "where", "lt", "le", "eq", "and", "or", "not", "sum", "prod")
)
_ORDER = frozenset(("abs", "maximum", "minimum", "max", "min", "sign", "lt", "le", "eq"))


class Outcome(StrEnum):
    """What the test says."""

    AGREE = "agree"
    DISAGREE = "disagree"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the identity test says of a pair, and how firmly."""

    outcome: Outcome  # agree, disagree or not applicable
    rounds: int  # independent draws in which something was compared
    compared: int  # elements that were compared, over all rounds
    # Of the probability that a round misses a difference, modulo the prime; None where none is known.
    bound: float | None = None
    outside: tuple[str, ...] = ()  # what is outside the model, or was undefined; for not applicable why
    where: str = ""  # for disagree the element and both values
    inputs: str = ""  # for disagree what was drawn for the elements that were read, as text

    def __str__(self) -> str:
        if self.outcome is Outcome.NOT_APPLICABLE:
            return f"identity test: not applicable ({'; '.join(self.outside)})"
        bound = "no bound known" if self.bound is None else f"error at most {self.bound:.1e} a round"
        said = f"identity test: {self.rounds} rounds, {bound}, {self.outcome.value}"
        said = f"{said} at {self.where}" if self.where else said
        return f"{said} ({'; '.join(self.outside)})" if self.outside else said


def compare(
    reference: Sequence[Expr],
    candidate: Sequence[Expr],
    *,
    tensors: Sequence[Tensor] = (),
    ranges: Mapping[str, SymbolRange] | None = None,
    parts: Mapping[Extent, tuple[Extent, Extent]] | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
    kept: dict[Hashable, Evaluator] | None = None,
    told: bool = True,
) -> Opinion:
    """Test whether the expressions of both lists are equal, pair by pair. Free axes of one name are one axis.

    Args:
        reference: one expression per output, over inputs.
        candidate: as many.
        tensors: the inputs, for their data types; float32 where one is missing.
        ranges: of the symbols; those that are missing may be any positive integer.
        parts: extents whose axes the candidate writes as rest*part + rest, with the extents (symbols) of both.
        rounds: independent draws, all together.
        seed: of everything that is drawn.
        kept: what was evaluated for other candidates with the same tensors, kept to be used again; it does not change
            what is said.
        told: whether a disagreement comes with what was drawn, which takes longer than to find it.
    """
    pair = _Pair(reference, candidate, tensors, ranges or {}, parts or {}, seed, kept, told)
    opinion = pair.judge(rounds, 3)
    for more in _MORE_ROUNDS:
        # Every row needs a square of its own: more draws find some.
        if not pair.roots or opinion.rounds >= _ENOUGH or opinion.compared < 0 or opinion.outcome is Outcome.DISAGREE:
            break
        again = pair.judge(more, 2)
        opinion = opinion if again.outcome is Outcome.NOT_APPLICABLE else again
    if opinion.outcome is Outcome.DISAGREE and pair.coupled:
        whole = pair.judge(4, None)
        if whole.outcome is Outcome.NOT_APPLICABLE:
            return replace(whole, outside=(pair.coupled, *whole.outside))
        return whole
    return opinion


@dataclass(slots=True)
class _Pair:
    """Two lists of expressions under test."""

    reference: Sequence[Expr]
    candidate: Sequence[Expr]
    tensors: Sequence[Tensor]
    ranges: Mapping[str, SymbolRange]
    parts: Mapping[Extent, tuple[Extent, Extent]]
    seed: int
    kept: dict[Hashable, Evaluator] | None
    told: bool
    # What does not depend on draws.
    nodes: Sequence[Expr] = field(init=False)
    ops: frozenset[str] = field(init=False)
    roots: bool = field(init=False)
    extents: frozenset[Extent] = field(init=False)
    symbols: list[str] = field(init=False)
    levels: int = field(init=False)
    too_deep: bool = field(init=False)
    constants: Mapping[float, Meaning] = field(init=False)
    doubts: tuple[str, ...] = field(init=False)
    coupled: str = field(init=False)

    def __post_init__(self) -> None:
        sides = self.reference, self.candidate
        every = self.nodes = _nodes([e for side in sides for e in side])
        self.ops = frozenset(e.op if isinstance(e, Map) else e.kind.value for e in every if isinstance(e, Map | Reduce))
        self.roots = "sqrt" in self.ops or any(_halved(e) for e in every)
        self.extents = frozenset(
            [a.extent for e in every for a in _axes(e)] + [x for p in self.parts.values() for x in p]
        )
        self.symbols = symbols_of(self.extents | {x for e in every for x in _mentioned(e)})
        needed = 1 + max((_depth(e) for side in sides for e in side), default=0) + ("log" in self.ops)
        self.levels, self.too_deep = min(needed, len(PRIMES)), needed > len(PRIMES)
        self.constants = meanings(*[[e.value for e in _nodes(side) if isinstance(e, Const)] for side in sides])
        self.doubts = _doubts(self.ops, self.roots, self.constants, every)
        self.coupled = _coupled(every, self.parts)

    def judge(self, rounds: int, points: int | None) -> Opinion:
        """The opinion from so many rounds, with so many points of a long axis; where None, all of those summed over."""
        assignments = bindings(self.symbols, self.ranges, self.parts)
        assignments = assignments * 2 if len(assignments) == 1 else assignments
        total = Opinion(Outcome.NOT_APPLICABLE, 0, 0, 0.0)
        missing = False
        for n, binding in enumerate(assignments):
            only = self._outer() if points is None else None
            sample = Sample(binding, self.parts, points or 3, self.seed + n, only)
            draws = -(-rounds // len(assignments))
            work = self._work(sample) * self.levels
            if work * draws > _WORK and sample.points == 3:
                sample = Sample(binding, self.parts, 2, self.seed + n, only)
                work = self._work(sample) * self.levels
            draws = min(draws, max(_WORK // work, 2))
            if work * draws > 4 * _WORK:
                return replace(total, outside=("the expressions are too large to evaluate",), compared=-1)
            found = self._round(sample, draws, n)
            missing = missing or found.outcome is Outcome.NOT_APPLICABLE
            if found.outcome is Outcome.DISAGREE or found.compared < 0:
                return found
            bound = None if None in (found.bound, total.bound) else max(found.bound or 0.0, total.bound or 0.0)
            outside = tuple(dict.fromkeys((*total.outside, *found.outside)))
            total = Opinion(Outcome.AGREE, total.rounds + found.rounds, total.compared + found.compared, bound, outside)
        return replace(total, outcome=Outcome.NOT_APPLICABLE) if missing else total

    def _outer(self) -> frozenset[Axis]:
        """Axes of outputs that no reduction is over: of these, a few values are as good as all."""
        free = frozenset(a for e in (*self.reference, *self.candidate) for a in free_axes(e))
        return free - {e.axis for e in self.nodes if isinstance(e, Reduce)}

    def _work(self, sample: Sample) -> int:
        """Elements of the largest value, before it is reduced."""
        largest = 1
        for axes in {free_axes(e) for e in self.nodes if isinstance(e, Map | Read | Position)}:
            largest = max(largest, math.prod(len(sample.of(a).values) for a in axes))
        return largest

    def _round(self, sample: Sample, draws: int, number: int) -> Opinion:
        """Draw, evaluate and compare; in doubt, at other scales of the shadows, too."""
        opinion = self._at(sample, draws, number, None)
        if opinion.outcome is Outcome.DISAGREE and self.doubts:
            for scale in _SCALES:
                at = self._at(sample, draws, number, scale, both=True)
                if at.outcome is Outcome.DISAGREE:
                    return at
            why = "the residues differ where the real numbers agree, for which the model has no rule: "
            return Opinion(Outcome.NOT_APPLICABLE, 0, -1, None, (why + ", ".join(self.doubts),))
        return opinion

    def _at(self, sample: Sample, draws: int, number: int, scale: float | None, both: bool = False) -> Opinion:
        """One evaluation; `both` wants the shadows to differ where the residues do."""
        longest = max((sample.size(e) for e in self.extents), default=1)
        field = Field(self.levels, draws, self.seed + number, self.roots)
        machine = self._machine(field, sample, draws, number, scale or 1 / math.sqrt(longest))
        seen = np.zeros(draws, dtype=bool)
        compared, missing = 0, False
        bound = 0.0 if self.ops <= _ALGEBRA and not self.roots else None
        for output, (a, b) in enumerate(zip(self.reference, self.candidate, strict=True)):
            axes = machine.ordered(sorted(free_axes(a) | free_axes(b), key=lambda x: (x.name, str(x.extent))))
            left, right = machine.over(machine.value(a), axes), machine.over(machine.value(b), axes)
            shape = (draws, *(len(sample.of(x).values) for x in axes))
            known, wrong = _compared(field, left, right, shape)
            if both:
                wrong = wrong & _shadows_differ(left.r, right.r, shape)
            if wrong.any():
                at = tuple(int(n) for n in np.argwhere(wrong)[0])
                return self._disagreement(machine, sample, (output, axes, at), (left, right), shape)
            seen |= known.reshape(draws, -1).any(axis=1)
            compared += int(known.sum())
            missing = missing or not known.any()
            bound = _worst(bound, self._bound(a, b, sample)) if bound is not None else None
        outside = (self._undefined(),) if missing else ()
        outcome = Outcome.NOT_APPLICABLE if missing else Outcome.AGREE
        return Opinion(outcome, int(seen.sum()), compared, bound, outside)

    def _machine(self, field: Field, sample: Sample, draws: int, number: int, scale: float) -> Evaluator:
        """The evaluator; draws depend on keys alone, so one that has evaluated other expressions gives the same."""
        dtypes = {t.name: t.dtype for t in self.tensors}
        made = Evaluator(field, sample, self.constants, dtypes, scale)
        if self.kept is None:
            return made
        key = (
            (self.levels, draws, self.seed + number, self.roots, scale, sample.points, sample.seed, sample.only),
            tuple(sorted(sample.binding.items())),
            tuple(sorted(sample.parts.items(), key=str)),
            tuple(sorted((value, str(meaning)) for value, meaning in self.constants.items())),
        )
        if len(self.kept) >= _KEPT:
            self.kept.clear()
        return self.kept.setdefault(key, made)

    def _bound(self, a: Expr, b: Expr, sample: Sample) -> float | None:
        if any(not t.dtype.is_float for t in self.tensors):
            return None
        degrees = [degree(e, lambda x: len(sample.of(x).values), sample.length) for e in (a, b)]
        if degrees[0] is None or degrees[1] is None:
            return None
        (n, d), (m, c) = degrees[0], degrees[1]
        # Drawn residues are never 0, so a variable has p - 1 values.
        return min(1.0, max(n + c, m + d) / max(PRIMES[0] - 1 - d - c, 1))

    def _undefined(self) -> str:
        """Why nothing of an output could be compared."""
        reasons = []
        if self.too_deep:
            reasons.append(f"exponentials nested deeper than {len(PRIMES) - 1}")
        reasons += [f"{op} of what has no residue" for op in (*ORACLES, "log", "log2", "pow") if op in self.ops]
        if self.roots:
            reasons.append("roots of numbers that are no squares")
        return "undefined in every draw: " + (", ".join(reasons) or "values that are infinite or cannot be ordered")

    def _disagreement(
        self,
        machine: Evaluator,
        sample: Sample,
        place: tuple[int, tuple[Axis, ...], tuple[int, ...]],
        sides: tuple[Numbers, Numbers],
        shape: tuple[int, ...],
    ) -> Opinion:
        output, axes, at = place
        where = ", ".join(f"{a}={sample.of(a).values[n]}" for a, n in zip(axes, at[1:], strict=True))
        residues = [int(np.broadcast_to(x.f[0], shape)[at]) for x in sides]
        reals = [float(np.broadcast_to(x.r[0], shape)[at]) for x in sides]
        values = [f"{f} modulo {PRIMES[0]} (real {r:.6g})" for f, r in zip(residues, reals, strict=True)]
        given = f", with {', '.join(f'{k}={v}' for k, v in sorted(sample.binding.items()))}" if sample.binding else ""
        text = f"output {output} at [{where}]: {values[0]} against {values[1]}{given}"
        return Opinion(Outcome.DISAGREE, 1, 1, None, (), text, _inputs(machine, at[0]) if self.told else "")


def _worst(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)


def _compared(field: Field, a: Numbers, b: Numbers, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Where both are defined, and where they then differ; by their exponentials where one has no residue."""
    known = np.broadcast_to(a.d[0] & b.d[0], shape)
    wrong = known & (a.f[0] != b.f[0])
    if field.levels > 1 and (a.e is not None or b.e is not None):
        x, y = field.exponential(a), field.exponential(b)
        if x.reduced or y.reduced:
            x, y = field.reduced(x), field.reduced(y)
        instead = np.broadcast_to(x.d[0] & y.d[0], shape) & ~known
        return known | instead, wrong | (instead & (x.f[0] != y.f[0]))
    return known, wrong


def _shadows_differ(a: np.ndarray, b: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    x, y = np.broadcast_to(a[0], shape), np.broadcast_to(b[0], shape)
    with np.errstate(all="ignore"):
        known = np.isfinite(x) & np.isfinite(y)
        largest = np.abs(x[known]).max(initial=0.0)
        return np.asarray(known & ~(np.abs(x - y) <= _SHADOW_RTOL * (np.abs(x) + np.abs(y) + 1e-3 * largest)))


def _nodes(exprs: Sequence[Expr]) -> list[Expr]:
    """Every node once."""
    found: dict[int, Expr] = {}
    for e in exprs:
        found.update((id(n), n) for n in walk(e))
    return list(found.values())


def _mentioned(e: Expr) -> Iterator[Extent]:
    """The extents that a node mentions beside those of axes: sizes, and places counted from the end."""
    if isinstance(e, Size):
        yield e.extent
    for i in indices(e):
        yield from i.extents()


def _axes(e: Expr) -> tuple[Axis, ...]:
    match e:
        case Read() | Position():
            return tuple(free_axes(e))
        case Reduce(_, axis, _):
            return (axis,)
        case _:
            return ()


def _depth(expr: Expr) -> int:
    """How deep exponentials are nested; those of logarithms do not count."""
    memo: dict[int, int] = {}
    for e in walk(expr):
        below = max((memo[id(c)] for c in e.children), default=0)
        memo[id(e)] = below + (isinstance(e, Map) and e.op in ("exp", "sigmoid", "tanh"))
    return memo[id(expr)]


def _halved(e: Expr) -> bool:
    """Whether it is a root, written as a power."""
    match e:
        case Map("pow", (_, Const(c))):
            return (2 * c).is_integer() and not c.is_integer()
        case _:
            return False


def _general(e: Expr) -> bool:
    """Whether it is a power that is neither of the kind of a root nor whole."""
    match e:
        case Map("pow", (_, Const(c))):
            return not (2 * c).is_integer() or abs(c) > LARGEST_POWER
        case Map("pow", _):
            return True
        case _:
            return False


def _doubts(
    ops: frozenset[str], roots: bool, constants: Mapping[float, Meaning], nodes: Sequence[Expr]
) -> tuple[str, ...]:
    """What the model knows too little of to trust a difference of residues alone."""
    unknown = sorted(ops - OPS.keys() - {kind.value for kind in ReduceKind})
    found = [f"{op} is a random function" for op in (*ORACLES, *unknown) if op in ops]
    if any(_general(e) for e in nodes):
        found.append("general powers are random functions")
    found += [f"the constant {c:g} was guessed" for c, m in sorted(constants.items()) if m.guessed]
    if roots and ops & _ORDER:
        found.append("roots stand beside choices by sign")
    return tuple(found)


def _coupled(nodes: Sequence[Expr], parts: Mapping[Extent, tuple[Extent, Extent]]) -> str:
    """Why sampled axes may not stand for whole ones, in sums; empty where they may.

    A weighted sample is like repeated inputs for expressions that use an axis as a name for elements, and no longer
    for those that compute with its values: pieces of an axis, shifts, selected elements.
    """
    cut = {(part, rest): whole for whole, (part, rest) in parts.items()}

    def pattern(index: Index) -> tuple[tuple[Extent, Extent], ...]:
        terms = [(atom.extent, c) for atom, c in index.terms if isinstance(atom, Axis)]
        if len(terms) == 2 and index.offset == 0:
            for one, two in (terms, terms[::-1]):
                whole = cut.get((one[0], two[0]))
                if whole is not None and one[1] == two[0] and two[1] == 1:
                    return ((whole, 1),)
        return (*sorted(terms, key=str), *([(0, index.offset)] if index.offset != 0 else []))

    seen: dict[tuple[str, int], tuple[tuple[Extent, Extent], ...]] = {}
    over: dict[tuple[str, int], set[Axis]] = {}
    ordered: list[tuple[Axis | None, Axis | None]] = []
    single: set[tuple[str, int]] = set()
    for e in nodes:
        match e:
            case Read(tensor, indices):
                for d, index in enumerate(indices):
                    mine = pattern(index)
                    over.setdefault((tensor, d), set()).update(index.axes())
                    if not index.terms:
                        single.add((tensor, d))
                    elif seen.setdefault((tensor, d), mine) != mine:
                        return f"dimension {d} of {tensor} is read over axes of different lengths"
            case Map("eq", args) if any(isinstance(a, Position) for a in args):
                return "positions select elements"
            case Map("lt" | "le", (Position(), Const())) | Map("lt" | "le", (Const(), Position())):
                return "positions are compared with constants"
            case Map("lt" | "le", args) if {Position, Read} <= {type(x) for a in args for x in walk(a)}:
                # How many places are below a number is no number of repeated elements.
                return "positions are compared with data"
            case Map("lt" | "le", (Position(one), Position(two))) if one.as_axis() and two.as_axis():
                ordered.append((one.as_axis(), two.as_axis()))
            case Position(index) if index.terms and [c for _, c in pattern(index)] != [1]:
                return "positions are computed with"
    for (tensor, d), axes in sorted(over.items()):
        if any(set(pair) <= axes for pair in ordered):
            # A place's own element counts once there, and as often as it is repeated in what comes up to it.
            return f"dimension {d} of {tensor} is read at places and up to them"
    for tensor, d in sorted(single & seen.keys()):
        return f"dimension {d} of {tensor} is read over an axis, and at single places"
    return ""


def _inputs(machine: Evaluator, draw: int) -> str:
    """What was drawn for every element that was read."""
    lines: dict[str, None] = {}
    for tensor in sorted(machine.read):
        for drawn in machine.read[tensor]:
            shape = drawn.numbers.f.shape[2:]
            places = [np.broadcast_to(p, shape) for p in drawn.places]
            for at in np.ndindex(*shape):
                place = ", ".join(str(int(p[at])) for p in places)
                f, r = drawn.numbers.f, drawn.numbers.r
                residues = [int(f[level, min(draw, f.shape[1] - 1)][at]) for level in range(f.shape[0])]
                real = float(r[0, min(draw, r.shape[1] - 1)][at])
                lines[f"{tensor}[{place}] = {', '.join(map(str, residues))}; {real!r}"] = None
    primes = ", ".join(map(str, PRIMES))
    return "\n".join([f"residues modulo {primes} (as many as are used); real number", *lines])


# Degrees of expressions that are rational functions of the inputs, for the Schwartz-Zippel bound.

Degree: TypeAlias = tuple[int, int]
"""Bounds on the total degrees of numerator and denominator."""

_LARGEST = 1 << 40


def degree(expr: Expr, points: Callable[[Axis], int], length: Callable[[Axis], int]) -> Degree | None:
    """Bounds on the degrees of an expression; None where it is no rational function of real inputs.

    So many `points` of an axis are summed over, and the expression is of that `length`.
    """
    memo: dict[int, Degree | None] = {}
    for e in walk(expr):
        memo[id(e)] = _of(e, [memo[id(c)] for c in e.children], points, length)
    found = memo[id(expr)]
    return found if found is not None and max(found) <= _LARGEST else None


def _of(
    e: Expr, parts: list[Degree | None], points: Callable[[Axis], int], length: Callable[[Axis], int]
) -> Degree | None:
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    match e:
        case Const() | Size() | Position():
            return 0, 0
        case Read():
            return 1, 0
        case Map("add", _):
            return _sum(known[0], known[1])
        case Map("mul", _):
            return known[0][0] + known[1][0], known[0][1] + known[1][1]
        case Map("neg", _):
            return known[0]
        case Map("recip", _):
            return known[0][1], known[0][0]
        case Map("pow", (_, Const(c))) if c.is_integer() and abs(c) <= 64:
            n, d = known[0] if c >= 0 else known[0][::-1]
            return n * int(abs(c)), d * int(abs(c))
        case Map("where", _) if known[0] == (0, 0):
            # An element takes one of the two, by its position alone.
            return max(known[1][0], known[2][0]), max(known[1][1], known[2][1])
        case Map("le" | "lt" | "eq" | "and" | "or" | "not", _) if all(k == (0, 0) for k in known):
            return 0, 0
        case Reduce(ReduceKind.SUM, axis, _):
            (n, d), k = known[0], points(axis)
            return n + (k - 1) * d, k * d
        case Reduce(ReduceKind.PROD, axis, _):
            return known[0][0] * length(axis), known[0][1] * length(axis)
        case _:
            return None


def _sum(a: Degree, b: Degree) -> Degree:
    if a[1] == b[1] == 0:
        return max(a[0], b[0]), 0
    return max(a[0] + b[1], b[0] + a[1]), a[1] + b[1]
