"""Terms of polynomials: a product of powers of atoms under sums over bound axes, all sums outermost.

An atom is an expression that arithmetic does not take apart further. Bound axes get the names, of all ways to give them
canonical ones, that come first as text; so terms that differ by names alone are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from prism.egraph.prove.exact import number
from prism.program.build import const, mul, op, recip
from prism.program.extents import is_static
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Map, Read, Reduce, ReduceKind, free_axes, walk
from prism.program.refinement import bounds, margin
from prism.program.transform import canonical, least_instance, substitute


@dataclass(frozen=True, slots=True)
class Term:
    """sum over `bound` of the product of base^power; factors are sorted by text, powers are not 0."""

    bound: tuple[Axis, ...] = ()
    factors: tuple[tuple[Expr, Fraction], ...] = ()

    @property
    def key(self) -> str:
        """Text that tells terms apart."""
        return f"{','.join(map(str, self.bound))}|{' '.join(f'{b}^{p}' for b, p in self.factors)}"

    def free(self) -> frozenset[Axis]:
        """The axes that the value depends on."""
        return frozenset(a for b, _ in self.factors for a in free_axes(b)) - frozenset(self.bound)


Poly: TypeAlias = dict[Term, Fraction]
"""Coefficients by term, exact."""
ONE = Term()
HALF = Fraction(1, 2)


def is_sum(base: Expr) -> bool:
    """Whether an atom is only one because of its power: a sum, or a product under a sum."""
    match base:
        case Map("add" | "mul", _) | Reduce(ReduceKind.SUM, _, _):
            return True
    return False


def ordered(factors: Iterable[tuple[Expr, Fraction]]) -> tuple[tuple[Expr, Fraction], ...]:
    """The factors, sorted by text."""
    return tuple(sorted(factors, key=lambda f: (str(f[0]), f[1])))


def named(bound: list[Axis], factors: list[tuple[Expr, Fraction]]) -> Term:
    """The term with canonical names for its bound axes: of the ways to name those that are alike, the first by text."""
    if not bound:
        return Term((), ordered(factors))
    inside = frozenset(bound)
    taken = list(frozenset(a for b, _ in factors for a in free_axes(b)) - inside)
    names: list[Axis] = []
    groups = _alike(bound, factors)
    for a in itertools.chain(*groups):
        names.append(least_instance(a.extent, taken))
        taken.append(names[-1])
    best: Term | None = None
    for orders in itertools.product(*(itertools.permutations(g) for g in groups)):
        mapping = {a: Index.axis(n) for a, n in zip(itertools.chain(*orders), names, strict=True)}
        renamed = [(canonical(substitute(b, mapping)), p) for b, p in factors]
        made = Term(tuple(names), ordered(renamed))
        if best is None or made.key < best.key:
            best = made
    assert best is not None
    return best


def turned(bound: list[Axis], factors: list[tuple[Expr, Fraction]]) -> list[tuple[Expr, Fraction]]:
    """The factors with each bound axis that something is read against counted from the end, if that comes first.

    Fewest dimensions are read against an axis, and their indices are first as text. What is compared may then have
    another form.
    """
    for axis in bound:
        if not is_static(axis.extent):
            continue
        reads = {i for b, _ in factors for e in walk(b) if isinstance(e, Read) for i in e.index if axis in i.axes()}
        if not any(i.slope(axis) < 0 for i in reads):
            continue
        back = Index.axis(axis).scaled(-1) + (int(axis.extent) - 1)
        others = {a: Index.axis(Axis("of", a.extent)) for a in bound if a != axis}
        ways = []
        for way in (Index.axis(axis), back):
            plain = [i.substitute({**others, axis: way}) for i in reads]
            at = Index.axis(Axis("at", axis.extent))
            named_ = sorted(str(i.substitute({axis: at})) for i in plain)
            ways.append((sum(i.slope(axis) < 0 for i in plain), named_))
        if ways[1] < ways[0]:
            factors = [(substitute(b, {axis: back}), p) for b, p in factors]
    return factors


def _alike(bound: list[Axis], factors: list[tuple[Expr, Fraction]]) -> list[list[Axis]]:
    """The axes in groups of those that the factors do not tell apart, by colour refinement, in a canonical order."""
    colours: dict[Axis, int] = dict.fromkeys(bound, 0)
    signs: dict[Axis, tuple[object, ...]] = {a: (str(a.extent),) for a in bound}
    many = 0
    while True:
        order = {s: n for n, s in enumerate(sorted(set(signs.values()), key=str))}
        colours = {a: order[signs[a]] for a in bound}
        if len(order) in (many, len(bound)):
            break
        many = len(order)
        for a in bound:
            plain = {x: Index.axis(Axis(f"{'at' if x == a else 'of'} {colours[x]}", x.extent)) for x in bound}
            seen = sorted(f"{canonical(substitute(b, plain))}^{p}" for b, p in factors if a in free_axes(b))
            signs[a] = (str(a.extent), colours[a], *seen)
    groups: dict[int, list[Axis]] = {}
    for a in sorted(bound, key=lambda a: (colours[a], a.name)):
        groups.setdefault(colours[a], []).append(a)
    return list(groups.values())


def written(t: Term, c: Fraction) -> Expr:
    """c times the term, as an expression."""
    factors: list[Expr] = [] if c == 1 and t.factors else [number(c)]
    for base, power in t.factors:
        match base:
            case Map("exp", (a,)):
                factors.append(base if power == 1 else op("exp", mul(number(power), a)))
            case _:
                factors.append(power_of(base, power))
    body = mul(*factors)
    for axis in reversed(t.bound):
        body = Reduce(ReduceKind.SUM, axis, body)
    return body


def power_of(base: Expr, power: Fraction) -> Expr:
    """base^power, by products, reciprocals and square roots where it is one."""
    if power < 0:
        return recip(power_of(base, -power))
    if power.denominator == 1 and power <= 4:
        return mul(*[base] * int(power))
    if power == HALF:
        return op("sqrt", base)
    return op("pow", base, const(float(power)))


def chosen_value(axis: Axis, factors: list[tuple[Expr, Fraction]]) -> Index | None:
    """The one value of the axis at which an eq among the factors holds, where there is always one."""
    for b, _ in factors:
        if isinstance(b, Map) and b.op == "eq":
            d = margin(b)
            c = dict(d.terms).get(axis) if d is not None else None
            if d is None or c not in (1, -1):
                continue
            rest = Index(tuple((a, x) for a, x in d.terms if a != axis), d.offset).scaled(-1 if c == 1 else 1)
            known = bounds(rest)
            if known is not None and is_static(axis.extent) and known[0] >= 0 and known[1] < int(axis.extent):
                return rest
    return None


def is_choice(b: Expr, axis: Axis, chosen: Index) -> bool:
    """Whether a factor is the eq that holds where the axis has the chosen value."""
    if not isinstance(b, Map) or b.op != "eq":
        return False
    d = margin(substitute(b, {axis: chosen}))  # type: ignore[arg-type]
    return d is not None and not d.terms and d.offset == 0
