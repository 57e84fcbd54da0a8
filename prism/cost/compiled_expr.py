"""From a sympy expression to Python source, compiled once: numbers at 3-5 M evaluations a second, arrays vectorised.

`xreplace` and `lambdify` cost tens of microseconds a value and milliseconds a build; this printer covers what extents,
costs and constraints are made of, and works on ints and on numpy integer arrays alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy

from prism.errors import UnsupportedError
from prism.program.extents import Extent

_RELATIONS: Mapping[type, str] = {
    sympy.Le: "<=",
    sympy.Lt: "<",
    sympy.Ge: ">=",
    sympy.Gt: ">",
    sympy.Eq: "==",
    sympy.Ne: "!=",
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """An expression as a Python function."""

    symbols: tuple[str, ...]  # names of the symbols, in the order of the function's parameters
    source: str  # the expression's source, over canonical names v0, v1, ..
    function: Callable[..., Any]  # the compiled function

    def __call__(self, binding: Mapping[str, Any]) -> Any:
        """The value under `binding` (symbol name to int, or to an integer array).

        Raises:
            KeyError: a symbol is not bound.
        """
        return self.function(*[binding[s] for s in self.symbols])


@lru_cache(maxsize=4096)
def compiled(expr: sympy.Basic) -> Compiled:
    """The expression or relational as a function; equal expressions are compiled once.

    Raises:
        UnsupportedError: the expression holds a function that the printer does not know.
    """
    symbols = sorted(expr.free_symbols, key=lambda s: s.name)
    names = {s: f"v{n}" for n, s in enumerate(symbols)}
    source = _print(expr, names)
    return Compiled(tuple(s.name for s in symbols), source, _function(len(symbols), source))


def value(extent: Extent, binding: Mapping[str, Any]) -> Any:
    """The extent under `binding` (symbol name to int, or to an integer array).

    Raises:
        KeyError: a symbol is not bound.
    """
    if isinstance(extent, int):
        return extent
    if isinstance(extent, sympy.Symbol):
        return binding[extent.name]
    return compiled(extent)(binding)


@lru_cache(maxsize=4096)
def _function(arity: int, source: str) -> Callable[..., Any]:
    parameters = ", ".join(f"v{n}" for n in range(arity))
    scope: dict[str, Any] = {"maximum": _maximum, "minimum": _minimum, "log2_ceil": log2_ceil}
    exec(compile(f"def f({parameters}):\n    return {source}\n", "<prism expression>", "exec"), scope)
    function: Callable[..., Any] = scope["f"]
    return function


def _print(e: Any, names: Mapping[Any, str]) -> str:
    if isinstance(e, sympy.Symbol):
        return names[e]
    if isinstance(e, sympy.Integer):
        return str(int(e)) if e >= 0 else f"({int(e)})"
    if isinstance(e, sympy.Rational):
        return f"({e.p}/{e.q})"
    if isinstance(e, sympy.Float):
        return f"({float(e)!r})"
    if isinstance(e, sympy.Add):
        return "(" + " + ".join(_print(a, names) for a in e.args) + ")"
    if isinstance(e, sympy.Mul):
        top, bottom = sympy.fraction(e)
        if bottom != 1:
            return f"({_print(top, names)}/{_print(bottom, names)})"
        return "(" + "*".join(_print(a, names) for a in e.args) + ")"
    if isinstance(e, sympy.Pow):
        base, exponent = e.args
        if isinstance(exponent, sympy.ceiling) and base == 2 and isinstance(exponent.args[0], (sympy.log, sympy.Mul)):
            inside = _log2_argument(exponent.args[0])
            if inside is not None:
                return f"(1 << log2_ceil({_print(inside, names)}))"
        if exponent == -1:
            return f"(1/{_print(base, names)})"
        return f"({_print(base, names)}**{_print(exponent, names)})"
    if isinstance(e, (sympy.ceiling, sympy.floor)):
        top, bottom = sympy.fraction(sympy.together(e.args[0]))
        if not (top.is_integer and bottom.is_integer):
            raise UnsupportedError(
                f"cannot print {e}", where="symbolic expression", why="its quotient is not of integers"
            )
        if isinstance(e, sympy.ceiling):
            return f"(-((-{_print(top, names)})//{_print(bottom, names)}))"
        return f"({_print(top, names)}//{_print(bottom, names)})"
    if isinstance(e, (sympy.Max, sympy.Min)):
        name = "maximum" if isinstance(e, sympy.Max) else "minimum"
        return f"{name}(" + ", ".join(_print(a, names) for a in e.args) + ")"
    if isinstance(e, sympy.Mod):
        return f"({_print(e.args[0], names)} % {_print(e.args[1], names)})"
    if isinstance(e, sympy.And):
        return "(" + " & ".join(_print(a, names) for a in e.args) + ")"
    if e is sympy.true or e is sympy.false:
        return str(bool(e))
    relation = _RELATIONS.get(type(e))
    if relation is not None:
        return f"({_print(e.args[0], names)} {relation} {_print(e.args[1], names)})"
    raise UnsupportedError(f"cannot print {e}", where="symbolic expression", why=f"{type(e).__name__} is not known")


def _log2_argument(e: Any) -> Any | None:
    """x, when e is log(x)/log(2)."""
    top, bottom = sympy.fraction(e)
    if isinstance(top, sympy.log) and bottom == sympy.log(2):
        return top.args[0]
    return None


def _maximum(*values: Any) -> Any:
    best = values[0]
    for v in values[1:]:
        best = max(best, v) if isinstance(best, int) and isinstance(v, int) else _numpy().maximum(best, v)
    return best


def _minimum(*values: Any) -> Any:
    best = values[0]
    for v in values[1:]:
        best = min(best, v) if isinstance(best, int) and isinstance(v, int) else _numpy().minimum(best, v)
    return best


def log2_ceil(n: Any) -> Any:
    """The least k with 2**k >= n, for positive integers or an array of them."""
    if isinstance(n, int):
        return max(n - 1, 0).bit_length()
    # frexp is exact below 2**53: n - 1 = mantissa * 2**k with mantissa in [1/2, 1), so k is the bit length.
    return _numpy().frexp((n - 1).astype(float))[1].astype("int64")


def _numpy() -> Any:
    # Extents rarely need numpy, and plain sGraph printing should not pay for its import.
    import numpy

    return numpy
