"""What kernels hold of rescaled values where what these denote is undefined, and which predicates can tell.

exp(a - m), below a maximum m of a, has no value where m is -inf, as -inf - -inf has none. Kernels subtract 0 there, so
that a rescaled sum is 0, or no number where a factor is none. An output that is made of it by arithmetic alone has no
value either where it has none, and may be anything; a predicate makes a value of it. So what a predicate hangs on is
written as kernels compute it, unless its answer is the same: 0 < s is false for s = 0 and for NaN.

While a kernel is read, such a shift is `shift(m)`; of a program's part of a split axis, which may be masked as a whole
where its row is not, it is what kernels subtract everywhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from prism.errors import IllegalIRError
from prism.program.arrays import NumpyArrays
from prism.program.index import Axis
from prism.program.nodes import Const, Expr, Map, Reduce, ReduceKind, free_axes, walk
from prism.program.ops import BOOLEAN
from prism.program.sign_analysis import Facts
from prism.program.transform import rebuilt, with_children

# No operators: nobody else has nodes of these names.
_SHIFT, _LOSING = "the shift", "the shift of a scan"
_SHIFTS = frozenset({_SHIFT, _LOSING})
# Shifts of one predicate of which each may be -inf or not, and values that an operand is taken to have at most.
_MANY, _VALUES = 4, 8
# Results of these may be numbers though an operand is none.
_FORGETS = BOOLEAN | {"pow", "bitand"}


class LostError(IllegalIRError):
    """What is rescaled loses what it should not, so that nothing says what its kernels compute."""


def shift(m: Expr) -> Expr:
    """What is subtracted, where a proof may take it for the maximum m."""
    return Map(_SHIFT, (m,))


def scan_shift(m: Expr, finite: bool) -> Expr:
    """The same in a scan, which leaves out what comes while m is -inf, be it 0 or, unless it is `finite`, no number."""
    return Map(_SHIFT if finite else _LOSING, (m,))


def guarded(m: Expr) -> Expr:
    """What kernels subtract: 0 where the maximum is -inf."""
    return Map("where", (Map("eq", (m, Const(-math.inf))), Const(0.0), m))


def plain(e: Expr) -> Expr:
    """The expression with maxima for what is subtracted."""
    return _with(e, lambda m: m)


def computed(e: Expr) -> Expr:
    """The expression as kernels compute it."""
    return _with(e, guarded) if _shifts(e) else e


def told(e: Expr) -> Expr:
    """The expression with maxima for what is subtracted, but as kernels compute it where a predicate can tell.

    Where that has a value, the kernels' is the same; see above.

    Raises:
        LostError: a predicate hangs on a scan that leaves out what may be no number.
    """

    def change(node: Expr) -> Expr:
        match node:
            case Map("where", (p, a, b)):
                # What is no predicate itself is one here: a number is true.
                return with_children(node, (_judged(Map("not", (p,)), [p])[0], a, b))
            case Map(op, args) if op in _FORGETS:
                return with_children(node, _judged(node, args))
        return node

    return plain(rebuilt([e], change)[0]) if _shifts(e) else e


def falls_with(a: Expr, b: Expr, facts: Facts) -> bool:
    """Whether a is -inf, or no number, wherever b is: then nothing is lost that came while b's maximum was -inf."""
    if facts.finite(b) or a == b:
        return True
    match a, b:
        case Map("where", (p, *ours)), Map("where", (q, *theirs)) if p == q:
            return all(falls_with(x, y, facts) for x, y in zip(ours, theirs, strict=True))
    match a:
        case Const(value) if value == -math.inf:
            return True
        case Map("where", (_, x, y)) if falls_with(x, b, facts) and falls_with(y, b, facts):
            return True
        case Map("add", args) if any(falls_with(x, b, facts) for x in args):
            return True
        case Map("mul", args) if any(facts.positive(c) and falls_with(x, b, facts) for c, x in (args, args[::-1])):
            return True
    match b:
        case Reduce(ReduceKind.MAX, axis, x):
            return axis in free_axes(a) and falls_with(a, x, facts)
        case Map("maximum", args):
            return any(falls_with(a, x, facts) for x in args)
        case Map("add" | "mul" as op, args):
            for c, x in (args, args[::-1]):
                if facts.finite(c) and (op == "add" or facts.positive(c)) and falls_with(a, x, facts):
                    return True
    return False


def _shifts(e: Expr) -> tuple[Map, ...]:
    return tuple(dict.fromkeys(x for x in walk(e) if isinstance(x, Map) and x.op in _SHIFTS))


def _with(e: Expr, shifted: Callable[[Expr], Expr]) -> Expr:
    def change(node: Expr) -> Expr:
        match node:
            case Map(op, (m,)) if op in _SHIFTS:
                return shifted(m)
        return node

    return rebuilt([e], change)[0]


def _judged(p: Expr, args: Sequence[Expr]) -> list[Expr]:
    """The operands of what hangs on them: with maxima where it is the same as with what is subtracted."""
    found = dict.fromkeys(s for a in args for s in _shifts(a))
    if not found:
        return list(args)
    if any(s.op == _LOSING for s in found):
        raise LostError(
            "a predicate hangs on a rescaled scan, of which some factor may be infinite",
            where="sGraph",
            why="it has no denotation",
        )
    shifts = [s.args[0] for s in found]
    empty = (frozenset(c) for n in range(1, len(shifts) + 1) for c in itertools.combinations(shifts, n))
    same = len(shifts) <= _MANY and all(len(_Rows(e).values(p) or (0, 1)) == 1 for e in empty)
    return [plain(a) if same else computed(a) for a in args]


@dataclass(slots=True)
class _Rows:
    """Rows in which some maxima are -inf: what is shifted by one is 0 in kernels and denotes no number."""

    empty: frozenset[Expr]  # the maxima
    # By identity; the expression is kept, so that its identity is not used again.
    _known: dict[int, tuple[Expr, tuple[float, ...] | None]] = field(default_factory=dict)

    def values(self, e: Expr) -> tuple[float, ...] | None:
        """What the value may be, in kernels or as it is denoted; None where that is not known."""
        for x in walk(e, self._known):
            found = self._found(x)
            if found is not None:
                # By their text, as NaN is not itself and -0 is 0.
                found = tuple({str(v): v for v in found}.values())
                found = found if len(found) <= _VALUES else None
            self._known[id(x)] = x, found
        return self._known[id(e)][1]

    def _found(self, e: Expr) -> Sequence[float] | None:
        if e in self.empty or any(isinstance(m, Reduce) and e == m.body for m in self.empty):
            return (-math.inf,)
        match e:
            case Const(value):
                return (value,)
            case Reduce(ReduceKind.SUM, axis, body) if self._is_shifted(axis, body):
                return (0.0, -0.0, math.nan)
            case Reduce(kind, axis, body) if not any(axis in free_axes(m) for m in self.empty):
                of = self._of(body)
                return of if kind.is_extreme or (of and all(map(math.isnan, of))) else None
            case Map("where", (p, *args)):
                truth = self._of(p)
                chosen = args if truth is None else [args[0 if t else 1] for t in {v != 0 for v in truth}]
                found = [self._of(a) for a in chosen]
                return None if None in found else [v for f in found if f is not None for v in f]
            case Map(op, args) if op not in _SHIFTS:
                found = [self._of(a) for a in args]
                if op not in _FORGETS and any(f and all(map(math.isnan, f)) for f in found):
                    return (math.nan,)
                if None in found or op == "bitand":
                    return None
                with np.errstate(all="ignore"):
                    return [float(_NUMPY.pointwise(op, of)) for of in itertools.product(*(f or () for f in found))]
        return None

    def _of(self, e: Expr) -> tuple[float, ...] | None:
        return self._known[id(e)][1]

    def _is_shifted(self, axis: Axis, body: Expr) -> bool:
        """Whether a sum is of exponentials that are shifted by one of the maxima, times a factor, under a mask."""
        if isinstance(body, Map) and body.op == "where" and body.args[2] == Const(0.0):
            body = body.args[1]
        match body:
            case Map("mul", (Map("exp", (Map("add", (_, Map("mul", (_, s)))),)), _)) | Map(
                "exp", (Map("add", (_, Map("mul", (_, s)))),)
            ):
                return isinstance(s, Map) and s.op == _SHIFT and s.args[0] in self.empty and axis not in free_axes(s)
        return False


_NUMPY = NumpyArrays()
