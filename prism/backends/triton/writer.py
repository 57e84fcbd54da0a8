"""An indentation-aware writer of Python source, and integer expressions as Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy

from prism.backends.tile import identifier
from prism.errors import UnsupportedError
from prism.program.extents import Extent

WIDTH = 120


class Writer:
    """Collects lines at a depth of indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """One line, or an empty one."""
        self._lines.append("    " * self._depth + text if text else "")

    def blank(self, count: int = 1) -> None:
        """Exactly `count` empty lines between what was written and what follows."""
        while self._lines and not self._lines[-1]:
            self._lines.pop()
        self._lines += [""] * count

    def call(self, head: str, args: list[str], tail: str = "") -> None:
        """`head(args)tail` on one line, or with one argument a line where that is too long."""
        flat = f"{head}({', '.join(args)}){tail}"
        if 4 * self._depth + len(flat) <= WIDTH:
            self.line(flat)
            return
        self.line(f"{head}(")
        with self.indented():
            for a in args:
                self.line(f"{a},")
        self.line(f"){tail}")

    def assign(self, name: str, source: str) -> None:
        """`name = source`; a call that is too long for a line gets one argument a line."""
        flat = f"{name} = {source}"
        if 4 * self._depth + len(flat) > WIDTH:
            head, args, tail = _split_call(source)
            if args:
                self.call(f"{name} = {head}", args, tail)
                return
        self.line(flat)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """A block, one level deeper."""
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A compound statement: its head, then a block."""
        self.line(head)
        with self.indented():
            yield

    @property
    def room(self) -> int:
        """Columns left on a line at this depth."""
        return WIDTH - 4 * self._depth

    @property
    def text(self) -> str:
        """What was written."""
        return "\n".join(self._lines).rstrip("\n") + "\n"


def _split_call(source: str) -> tuple[str, list[str], str]:
    """f, [a, b] and what follows, of `f(a, b)...`; no arguments when the source does not begin so."""
    start = source.find("(")
    if start <= 0 or not source[:start].replace(".", "_").isidentifier():
        return source, [], ""
    args, depth, begin = [], 0, start + 1
    for n in range(start, len(source)):
        c = source[n]
        depth += (c in "([{") - (c in ")]}")
        if (c == "," and depth == 1) or depth == 0:
            args.append(source[begin:n].strip())
            begin = n + 1
            if depth == 0:
                tail = source[n + 1 :]
                return (source[:start], args, tail) if not tail or tail.startswith(".") else (source, [], "")
    return source, [], ""


_SUM, _PRODUCT, _ATOM = range(3)


def integer(expression: Extent, library: str) -> str:
    """An integer expression as Python source.

    Args:
        expression: over names; of sums, products, quotients rounded up or down, minima and maxima.
        library: where `cdiv`, `minimum` and `maximum` are: "tl" in a kernel, "triton" on the host.

    Raises:
        UnsupportedError: the expression holds something else.
    """
    return _print(sympy.sympify(expression), library)[0]


def factor(expression: Extent, library: str) -> str:
    """The same, in parentheses where it must have them to be a factor."""
    text, level = _print(sympy.sympify(expression), library)
    return (
        text if level >= _PRODUCT and "//" not in text and "%" not in text and not text.startswith("-") else f"({text})"
    )


def _print(e: Any, library: str) -> tuple[str, int]:
    if isinstance(e, sympy.Symbol):
        return identifier(e.name), _ATOM
    if isinstance(e, sympy.Integer):
        return str(int(e)), _ATOM if e >= 0 else _SUM
    if isinstance(e, sympy.Add):
        parts = [_print(a, library)[0] for a in _natural(e)]
        return " + ".join(parts).replace("+ -", "- "), _SUM
    if isinstance(e, sympy.Mul):
        return _product(e, library)
    if isinstance(e, sympy.Pow) and e.exp.is_Integer and 0 < int(e.exp) <= 8:
        return " * ".join([_factor(e.base, library)] * int(e.exp)), _PRODUCT
    if isinstance(e, sympy.ceiling | sympy.floor):
        top, bottom = sympy.fraction(sympy.together(e.args[0]))
        if isinstance(e, sympy.ceiling):
            return f"{library}.cdiv({_print(top, library)[0]}, {_print(bottom, library)[0]})", _ATOM
        return f"{_factor(top, library)} // {_factor(bottom, library)}", _SUM
    if isinstance(e, sympy.Mod):
        return f"{_factor(e.args[0], library)} % {_factor(e.args[1], library)}", _SUM
    if isinstance(e, sympy.Min | sympy.Max):
        names = {"tl": ("tl.minimum", "tl.maximum")}.get(library, ("min", "max"))
        name = names[isinstance(e, sympy.Max)]
        text = _print(e.args[0], library)[0]
        for a in e.args[1:]:
            text = f"{name}({text}, {_print(a, library)[0]})"
        return text, _ATOM
    raise UnsupportedError(f"cannot print the integer expression {e}", where="Triton emission")


def _product(e: Any, library: str) -> tuple[str, int]:
    top, bottom = sympy.fraction(e)
    if bottom != 1:
        # Extents are integers, so the quotient is exact.
        return f"{_factor(top, library)} // {_factor(bottom, library)}", _SUM
    sign = ""
    parts = list(_natural(e))
    if parts and parts[0] == -1:
        sign, parts = "-", parts[1:]
    if len(parts) == 1:
        return sign + _factor(parts[0], library), _SUM
    text = sign + " * ".join(_factor(a, library) for a in parts)
    return text, _PRODUCT if not sign else _SUM


def _factor(e: Any, library: str) -> str:
    text, level = _print(e, library)
    return text if level == _ATOM else f"({text})"


def _natural(e: Any) -> list[Any]:
    """The operands, names before numbers in sums, in a fixed order."""
    numbers = [a for a in e.args if a.is_Number]
    others = [a for a in e.args if not a.is_Number]
    # Positions before sizes, which begin with a capital, in products; long terms first in sums.
    if isinstance(e, sympy.Mul):
        others.sort(key=lambda a: (str(a)[:1].isupper(), str(a)))
    else:
        others.sort(key=lambda a: (-len(str(a)), str(a)))
    return numbers + others if isinstance(e, sympy.Mul) else others + numbers


def fresh(name: str, taken: set[str]) -> str:
    """The name, longer by underscores where it is taken; it is taken then."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
