"""What is known of an expression's sign and finiteness, for finite inputs; as rules/analysis.egg has it for e-classes.

Maxima count as finite although a row whose every element is masked has none (-inf): there, both sides of what is shown
are undefined, or one is (class domain).
"""

from __future__ import annotations

import math

from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size


def positive(e: Expr) -> bool:
    """Whether the value is known to be more than 0."""
    match e:
        case Const(c):
            return c > 0
        case Size() | Map("sigmoid", _):
            return True
        case Map("exp", (a,)):
            return finite(a)
        case Map("add", (a, b)):
            return (positive(a) and nonneg(b)) or (nonneg(a) and positive(b))
        case Map("mul", (a, b)):
            return (positive(a) and positive(b)) or (a == b and nonzero(a))
        case Map("sqrt" | "recip", (a,)):
            return positive(a)
        case Map("maximum", (a, b)):
            return positive(a) or positive(b)
        case Map("minimum" | "where", (*_, a, b)):
            return positive(a) and positive(b)
        case Map("pow", (a, Const())):
            return positive(a)
        case Reduce(_, _, body):
            return positive(body)
    return False


def nonzero(e: Expr) -> bool:
    """Whether the value is known not to be 0."""
    match e:
        case Const(c):
            return c != 0
        case Map("neg" | "recip", (a,)):
            return nonzero(a)
        case Map("mul", (a, b)):
            return nonzero(a) and nonzero(b)
    return positive(e)


def nonneg(e: Expr) -> bool:
    """Whether the value is known to be at least 0."""
    match e:
        case Const(c):
            return c >= 0
        case Map("exp" | "abs" | "sqrt" | "lt" | "le" | "eq" | "and" | "or" | "not" | "isnan", _):
            return True
        case Map("add", (a, b)):
            return nonneg(a) and nonneg(b)
        case Map("mul", (a, b)):
            return a == b or (nonneg(a) and nonneg(b))
        case Map("recip", (a,)):
            return nonneg(a)
        case Map("maximum", (a, b)):
            return nonneg(a) or nonneg(b)
        case Map("minimum" | "where", (*_, a, b)):
            return nonneg(a) and nonneg(b)
        case Map("pow", (a, Const(c))):
            return nonneg(a) or c == 2.0
        case Reduce(_, _, body):
            return nonneg(body)
    return positive(e)


def finite(e: Expr) -> bool:
    """Whether the value is known to be a number at all finite inputs."""
    match e:
        case Const(c):
            return math.isfinite(c)
        case Read() | Size() | Position():
            return True
        case Map("exp", (a,)):
            return _below(a)
        case Map("recip", (a,)):
            return finite(a) and nonzero(a)
        case Map("log", (a,)):
            return finite(a) and positive(a)
        case Map("sqrt", (a,)):
            return finite(a) and nonneg(a)
        case Map("pow", (a, Const(c))):
            return finite(a) and (positive(a) or (c >= 0 and c.is_integer()))
        case Map("pow", _):
            return False
        case Map("lt" | "le" | "eq" | "and" | "or" | "not" | "isnan", _):
            return True
        case Map(_, args):
            return all(finite(a) for a in args)
        case Reduce(ReduceKind.MAX, _, body):
            return _below(body)
        case Reduce(_, _, body):
            return finite(body)
    return False


def _below(e: Expr) -> bool:
    """Whether the value is known to be a number or -inf."""
    match e:
        case Const(c):
            return c < math.inf
        case Map("where", (_, a, b)):
            return _below(a) and _below(b)
        case Map("add", (a, b)):
            return _below(a) and _below(b)
        case Map("mul", (Const(c), a)) | Map("mul", (a, Const(c))) if c > 0:
            return _below(a)
    return finite(e)
