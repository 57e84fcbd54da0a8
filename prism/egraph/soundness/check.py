"""Rules tested by random interpretation, independently of egglog.

Where a rule's facts hold, both sides of every union must agree, and what it derives of a term must be so: over the
extended reals, in float64 with error bounds, and exactly over a prime field where the rule is polynomial or rational.
A draw that shows otherwise is shrunk before it is printed.

Three things can be wrong of two values:

- Both are finite and differ: an error.
- One alone is finite, which a chain of rules can turn into two different numbers: an error, too, unless the rule is of
  class `domain`, its comment says where one side is undefined ("NaN where ...", "undefined where ..."), and the other
  is 0 there, as where a mask of -inf hides everything.
- Neither is finite, and they differ (inf - inf against inf): a remark. Programs are over finite inputs, and infinities
  come from masks alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from prism.egraph.operators import macros
from prism.egraph.rules import FpClass, Rule
from prism.egraph.sexpr import Parts, parse, parts_of, show
from prism.egraph.soundness.finite_field import NotRational
from prism.egraph.soundness.interpretation import SIZES, Arithmetic, Field, Floats, Interpretation, Undefined
from prism.egraph.soundness.plan import Plan
from prism.egraph.soundness.shrink import LIMIT, shrunk, simplest

__all__ = ["DRAWS", "Finding", "check_rule", "parse"]

DRAWS = 200
"""Draws that satisfy a rule's facts, by default."""
BATCH = 8
"""The fewest draws of one structure (extents, axes, which variable has which) that are evaluated at once."""
STRUCTURES = 32
"""Structures that are drawn, whatever the number of draws: more draws are more numbers, evaluated at once."""
PATIENCE = 150
"""Structures that are drawn for each one that is wanted, before the facts are given up on."""
FIELD_SHARE = 2
"""The field gets this fraction as many draws: it is slower, and one draw there says more."""

_SAID = re.compile(r"\b(NaN|undefined)\b.* where\b")

_DIFFER, _ONE_FINITE, _INFINITE = "differ", "one side alone is finite", "neither side is finite, and they differ"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the test of one rule came to."""

    rule: str  # its name
    agreed: int  # draws at which the facts held and both sides agreed
    counterexample: str = ""  # text of a shrunk draw at which they did not; empty when there was none
    exact: int = 0  # of `agreed`, those over the prime field; 0 where the rule is not rational
    # Text of a shrunk draw at which the sides differ where neither is finite, or where the rule says so.
    remark: str = ""

    def __bool__(self) -> bool:
        return not self.counterexample and self.agreed > 0


def check_rule(rule: Rule, seed: int = 0, draws: int = DRAWS, *, shrink: bool = True) -> Finding:
    """Test one rule.

    So many draws that satisfy the facts are wanted, equal ones for equal seeds; `shrink` is whether a counterexample is
    made small before it is told.
    """
    parts = parts_of(parse(rule.text), macros(rule.operators))
    declared = rule.fp_class is FpClass.DOMAIN and bool(_SAID.search(rule.formula))
    agreed, remark = 0, ""
    for model, holds in _interpretations(parts, Floats(), seed, draws):
        found = _problem(model, holds)
        if found is not None and (
            found.kind == _DIFFER or (found.kind == _ONE_FINITE and not (declared and found.masked))
        ):
            return Finding(rule.name, agreed, _told(found, shrink), 0, remark)
        if found is not None:
            remark = remark or _told(found, shrink, error=False)
        agreed += _agreed(model, holds)
    exact = 0
    try:
        for model, holds in _interpretations(parts, Field(), seed + 1, exact_draws(draws)):
            found = _problem(model, holds)
            if found is not None:
                return Finding(rule.name, agreed + exact, f"modulo 2^61 - 1, {_told(found, shrink)}", exact, remark)
            exact += _agreed(model, holds)
    except NotRational:
        exact = 0
    return Finding(rule.name, agreed + exact, "", exact, remark)


def exact_draws(draws: int) -> int:
    """How many draws the field gets besides."""
    return max(BATCH, draws // FIELD_SHARE)


def _interpretations(
    parts: Parts, arithmetic: Arithmetic, seed: int, draws: int
) -> Iterator[tuple[Interpretation, np.ndarray]]:
    """Settled interpretations, and which of their draws satisfy the facts; until there were `draws` of them."""
    batch = max(BATCH, -(-draws // STRUCTURES))
    found, wanted, plan = 0, -(-draws // batch), Plan.of(parts)
    for number in range(wanted * PATIENCE):
        model = Interpretation(parts, arithmetic, SIZES[number % len(SIZES)])
        with np.errstate(all="ignore"):
            model.draw(np.random.default_rng([seed, number]), batch, plan)
            holds = model.settle()
            if holds.any():
                yield model, np.broadcast_to(holds, (batch,))
                found += batch if holds.size == 1 else int(holds.sum())
        if found >= draws:
            return


@dataclass(frozen=True, slots=True)
class _Problem:
    """What does not follow, and in which draw."""

    model: Interpretation
    draw: int
    kind: str
    text: str
    masked: bool = False  # one side is 0, or a variable is +inf or undefined somewhere, which no mask is


def _problem(model: Interpretation, holds: np.ndarray) -> _Problem | None:
    """The worst thing that does not follow."""
    found: list[_Problem] = []
    for left, right in model.parts.unions:
        try:
            a, b = model.number(left), model.number(right)
        except Undefined:
            continue
        _, *wrong = model.arithmetic.agreement(a, b)
        for kind, mask in zip((_DIFFER, _ONE_FINITE, _INFINITE), wrong, strict=True):
            at = np.argwhere(mask & (holds & model.defined).reshape(-1, 1, 1, 1, 1))
            if len(at):
                pairs = [(_element(a.v, tuple(p)), _element(b.v, tuple(p))) for p in at]
                # The worst: where the finite side is not even 0.
                masked = [0 in pair or _unbounded(model, int(p[0])) for pair, p in zip(pairs, at, strict=True)]
                worst = masked.index(False) if kind == _ONE_FINITE and not all(masked) else 0
                x, y = pairs[worst]
                digits = 6 if _short(x) != _short(y) else 17
                text = f"{show(left)} is {_short(x, digits)} and {show(right)} is {_short(y, digits)}"
                found.append(_Problem(model, int(at[worst][0]), kind, text, masked[worst]))
                break
    for name, form in model.parts.relations:
        no = np.broadcast_to(model.arithmetic.relation(name, model.number(form))[1], holds.shape)
        at = np.argwhere(no & holds)
        if len(at):
            found.append(_Problem(model, int(at[0][0]), _DIFFER, f"{show(form)} is not {name}"))
    order = (_DIFFER, _ONE_FINITE, _INFINITE)
    return min(found, key=lambda p: order.index(p.kind)) if found else None


def _unbounded(model: Interpretation, draw: int) -> bool:
    """Whether a variable of the draw is +inf or undefined somewhere."""
    drawn = [a[min(draw, len(a) - 1)] for a in model.raw.values() if a.dtype == np.float64]
    return any(bool((np.isnan(a) | (a == np.inf)).any()) for a in drawn)


def _agreed(model: Interpretation, holds: np.ndarray) -> int:
    """Draws that satisfy the facts and say something: a value that is known and not NaN."""
    says = np.zeros(holds.shape, dtype=bool) if model.parts.unions else np.ones(holds.shape, dtype=bool)
    for left, right in model.parts.unions:
        try:
            same = model.arithmetic.agreement(model.number(left), model.number(right))[0]
        except Undefined:
            continue
        says = says | np.broadcast_to(same.any(axis=(1, 2, 3, 4)), holds.shape)
    return int((says & holds & model.defined).sum())


def _element(v: np.ndarray, place: tuple[int, ...]) -> float | int:
    value = v[tuple(0 if n == 1 else int(p) for p, n in zip(place, v.shape, strict=True))]
    return value if isinstance(value, int) else float(value)


def _short(value: float | int, digits: int = 6) -> str:
    return str(value) if isinstance(value, int) else f"{value + 0.0:.{digits}g}"  # no -0


def _told(problem: _Problem, shrink: bool, error: bool = True) -> str:
    """The problem as text, at the smallest draw that was found to have it."""

    def still(model: Interpretation) -> _Problem | None:
        holds = model.settle()
        found = _problem(model, np.broadcast_to(holds, (1,))) if holds.any() else None
        if found is None or found.kind != problem.kind:
            return None
        return found if found.kind == _DIFFER or found.masked == problem.masked else None

    def bad(model: Interpretation) -> bool:
        return still(model) is not None

    with np.errstate(all="ignore"):
        small = problem
        if shrink:
            least = shrunk(problem.model, problem.draw, bad, LIMIT if error else LIMIT // 4)
            small = still(simplest(least, bad) if error else least) or problem
    why = "" if small.kind == _DIFFER else f" ({small.kind})"
    return f"{small.text}{why}, with {_given(small.model, small.draw)}"


def _given(model: Interpretation, draw: int) -> str:
    """The draw as text: axes with their extents, then the variables."""
    found = [f"{name} = {axis}" for name, axis in model.axis.items()]
    used = sorted({*model.axis.values(), *(a for o in model.owned.values() for a in o)})
    for name, raw in model.raw.items():
        axes = ", ".join(sorted(model.owned[name]))
        mine = np.squeeze(raw[min(draw, len(raw) - 1)])
        shown = np.array2string(mine, precision=6, threshold=24, separator=", ", formatter={"object": str})
        found.append(f"{name}[{axes}] = {' '.join(shown.split())}" if axes else f"{name} = {shown}")
    extents = ", ".join(f"{a} < {n}" for a, n in zip("ijkl", model.sizes, strict=True) if a in used)
    return "; ".join([*found, extents] if extents else found)
