"""C++ source: a writer of braces and integer expressions over 64-bit integers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sympy

from prism.backends.tile import identifier
from prism.errors import UnsupportedError
from prism.program.extents import Extent

WIDTH = 120
_TAKEN = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr continue
decltype default delete do double else enum explicit export extern false float for friend goto if inline int long
mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register return short
signed sizeof static struct switch template this throw true try typedef typeid typename union unsigned using
virtual void volatile wchar_t while xor xor_eq
prism full lanes part body packed_a packed_b room pid threads total main linux unix at tensors lengths end own sizes
past soon run VL MR NR FEW STREAMED TERMS COLUMNS PANEL BLOCK LINE SOON AHEAD PAGE STREAMS Single Pair vf vi vu vl vh vs
vb vub v4 v8 bf16 f16 Whole Part Count Sum Prod Max Min Scratch scratch multiply multiply_halves
INFINITY NAN exp log sin cos tan tanh erf sqrt floor round pow abs
"""
_KEYWORDS = frozenset(_TAKEN.split())
_PREFIXES = ("v_", "i_", "n_", "t_", "b_", "h_", "p_", "s_", "pack_", "mul_", "PRISM", "_", "INT", "UINT")


class Names:
    """C++ identifiers for the names of a tile program, each its own."""

    def __init__(self, names: Iterable[str]) -> None:
        given = sorted(set(names))
        self._map: dict[str, str] = {}
        taken = set(given)
        for name in given:
            made = name
            if made in _KEYWORDS or made.startswith(_PREFIXES):
                made = "x" + made
                while made in taken:
                    made += "x"
                taken.add(made)
            self._map[name] = made
        self._used = set(self._map.values())

    def fresh(self, base: str) -> str:
        """An identifier that is no name's and was not given out before: the base with a number."""
        count = 1
        while f"{base}_{count}" in self._used:
            count += 1
        self._used.add(f"{base}_{count}")
        return f"{base}_{count}"

    def __call__(self, name: str) -> str:
        """The identifier; a name that was not announced stays as it is."""
        return self._map.get(name, name)


class Writer:
    """Collects lines at a depth of indentation."""

    def __init__(self, depth: int = 0) -> None:
        self._lines: list[str] = []
        self._depth = depth

    def line(self, text: str = "") -> None:
        """One line, or an empty one."""
        self._lines.append("    " * self._depth + text if text else "")

    def lines(self, texts: Iterable[str]) -> None:
        """Several lines."""
        for text in texts:
            self.line(text)

    @contextmanager
    def block(self, head: str = "", tail: str = "") -> Iterator[None]:
        """A block in braces after its head."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}" + tail)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """One level deeper."""
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def text(self) -> str:
        """What was written."""
        return "\n".join(self._lines).rstrip("\n") + "\n"


_SUM, _PRODUCT, _ATOM = range(3)


def integer(expression: Extent, names: Names) -> str:
    """An integer expression as C++ source.

    Raises:
        UnsupportedError: it holds something else than sums, products, quotients, remainders, minima and maxima.
    """
    return _print(sympy.sympify(expression), names)[0]


def factor(expression: Extent, names: Names) -> str:
    """The same, in parentheses where it must have them to be a factor."""
    text, level = _print(sympy.sympify(expression), names)
    return text if level == _ATOM else f"({text})"


def _print(e: Any, names: Names) -> tuple[str, int]:
    if isinstance(e, sympy.Symbol):
        return names(identifier(e.name)), _ATOM
    if isinstance(e, sympy.Integer):
        text = str(int(e)) if abs(int(e)) < 2**31 else f"INT64_C({int(e)})"
        return text, _ATOM if e >= 0 else _SUM
    if isinstance(e, sympy.Add):
        parts = [_print(a, names)[0] for a in _ordered(e)]
        return " + ".join(parts).replace("+ -", "- "), _SUM
    if isinstance(e, sympy.Mul):
        top, bottom = sympy.fraction(e)
        if bottom != 1:
            # Extents are integers, so the quotient is exact.
            return f"{factor(top, names)} / {factor(bottom, names)}", _PRODUCT
        factors: list[Any] = _ordered(e)
        sign = ""
        if factors and factors[0] == -1:
            sign, factors = "-", factors[1:]
        text = sign + " * ".join(factor(a, names) for a in factors)
        return text, _SUM if sign else (_PRODUCT if len(factors) > 1 else _ATOM)
    if isinstance(e, sympy.Pow) and e.exp.is_Integer and 0 < int(e.exp) <= 8:
        return " * ".join([factor(e.base, names)] * int(e.exp)), _PRODUCT
    if isinstance(e, sympy.ceiling | sympy.floor):
        top, bottom = sympy.fraction(sympy.together(e.args[0]))
        if isinstance(e, sympy.ceiling):
            return f"v_cdiv({integer(top, names)}, {integer(bottom, names)})", _ATOM
        return f"{factor(top, names)} / {factor(bottom, names)}", _PRODUCT
    if isinstance(e, sympy.Mod):
        return f"{factor(e.args[0], names)} % {factor(e.args[1], names)}", _PRODUCT
    if isinstance(e, sympy.Min | sympy.Max):
        name = "v_maxi" if isinstance(e, sympy.Max) else "v_mini"
        args = sorted(e.args, key=str)
        text = integer(args[0], names)
        for a in args[1:]:
            text = f"{name}({text}, {integer(a, names)})"
        return text, _ATOM
    raise UnsupportedError(f"cannot print the integer expression {e}", where="C++ emission")


def _ordered(e: Any) -> list[Any]:
    numbers = [a for a in e.args if a.is_Number]
    others = sorted((a for a in e.args if not a.is_Number), key=lambda a: (-len(str(a)), str(a)))
    return numbers + others if isinstance(e, sympy.Mul) else others + numbers


def number(value: float) -> str:
    """A number as a float literal: the nearest float32."""
    try:
        value = struct.unpack("f", struct.pack("f", float(value)))[0]
    except OverflowError:
        value = float("inf") if value > 0 else float("-inf")
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = repr(value)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"
