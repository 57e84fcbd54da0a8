"""Source text: writers of indented lines, and integer expressions in the languages that are emitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sympy

from prism.backends.tile import GridAxis, identifier
from prism.errors import UnsupportedError
from prism.program.extents import Extent
from prism.sgraph.nodes import SGraph

WIDTH = 120


class Lines:
    """Collects lines at a depth of indentation."""

    def __init__(self, depth: int = 0) -> None:
        self._lines: list[str] = []
        self._depth = depth

    def line(self, text: str = "") -> None:
        """One line, or an empty one."""
        self._lines.append("    " * self._depth + text if text else "")

    def let(self, name: str, source: str, *, again: bool = False) -> None:
        """An integer; or another number for one that there is (`again`)."""
        self.line(f"{name} = {source}")

    def blank(self, count: int = 1) -> None:
        """Exactly `count` empty lines between what was written and what follows."""
        while self._lines and not self._lines[-1]:
            self._lines.pop()
        self._lines += [""] * count

    def lines(self, texts: Iterable[str]) -> None:
        """Several lines."""
        for text in texts:
            self.line(text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """A block, one level deeper."""
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def room(self) -> int:
        """Columns left on a line at this depth."""
        return WIDTH - 4 * self._depth

    @property
    def text(self) -> str:
        """What was written."""
        return "\n".join(self._lines).rstrip("\n") + "\n"


class Writer(Lines):
    """Python."""

    def paste(self, source: str) -> None:
        """Source that stands as it is, two lines below what is before it."""
        self.blank(2)
        self.lines(source.strip("\n").splitlines())

    def describe(self, kernels: str, formula: str, sgraph: SGraph, orderless: bool = False) -> None:
        """A module's docstring: what its kernels are, what they compute, and what they implement.

        `kernels` are how many there are, of which kind; `orderless` is whether sums in memory are added up in no fixed
        order.
        """
        self.line(f'"""{sgraph.name}: {kernels}, written by prism.')
        self.line()
        for line in formula.strip().replace("\\", "\\\\").replace('"""', "'''").splitlines():
            self.line(f"    {line}".rstrip())
        self.line()
        self.line("The sGraph that it implements, with its tile sizes unbound:")
        self.line()
        for line in str(sgraph).replace("\\", "\\\\").rstrip().splitlines():
            self.line(f"    {line}".rstrip())
        if orderless:
            self.line()
            self.line("What goes to one place (+=) is added up in no fixed order: the last digits of such sums may")
            self.line("differ from call to call.")
        self.line('"""')
        self.blank()

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
    def block(self, head: str, tail: str = "") -> Iterator[None]:
        """A compound statement, or what stands in brackets: its head, a block, and what closes it."""
        self.line(head)
        with self.indented():
            yield
        if tail:
            self.line(tail)


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


SUM, PRODUCT, ATOM = range(3)


class IntegerPrinter(ABC):
    """Prints integer expressions: sums, products, quotients rounded up or down, remainders, minima and maxima.

    Not by sympy's own printers: those order operands by the age of symbols in the process, and what is emitted must be
    the same every time.
    """

    where = "emission"
    quotient, remainder = ("//", SUM), ("%", SUM)
    """Operators, and what binds as they do."""
    cdiv = "cdiv"
    least, greatest = "min", "max"

    def text(self, expression: Extent) -> str:
        """The expression as source. Raises UnsupportedError: it holds something else than those."""
        return self._print(sympy.sympify(expression))[0]

    def operand(self, expression: Extent) -> str:
        """The same, in parentheses where it is more than a name, a number or a call."""
        text, level = self._print(sympy.sympify(expression))
        return text if level == ATOM else f"({text})"

    def factor(self, expression: Extent) -> str:
        """The same, in parentheses where it must have them to be a factor."""
        return self.operand(expression)

    @abstractmethod
    def name(self, symbol: str) -> str:
        """What a symbol is called."""

    def number(self, value: int) -> str:
        """An integer."""
        return str(value)

    def order(self, e: Any) -> list[Any]:
        """The operands of a sum or a product that are no numbers, in a fixed order: long ones first."""
        return sorted((a for a in e.args if not a.is_Number), key=lambda a: (-len(str(a)), str(a)))

    def _operands(self, e: Any) -> list[Any]:
        numbers = [a for a in e.args if a.is_Number]
        return numbers + self.order(e) if isinstance(e, sympy.Mul) else self.order(e) + numbers

    def _print(self, e: Any) -> tuple[str, int]:
        match e:
            case sympy.Symbol():
                return self.name(identifier(e.name)), ATOM
            case sympy.Integer():
                return self.number(int(e)), ATOM if e >= 0 else SUM
            case sympy.Add():
                return " + ".join([self.text(a) for a in self._operands(e)]).replace("+ -", "- "), SUM
            case sympy.Mul():
                top, bottom = sympy.fraction(e)
                if bottom != 1:
                    # Extents are integers, so the quotient is exact.
                    return self._infix(self.quotient, top, bottom)
                factors = self._operands(e)
                sign = ""
                if factors and factors[0] == -1:
                    sign, factors = "-", factors[1:]
                return sign + " * ".join(self.operand(a) for a in factors), SUM if sign else PRODUCT
            case sympy.Pow() if e.exp.is_Integer and 0 < int(e.exp) <= 8:
                return " * ".join([self.operand(e.base)] * int(e.exp)), PRODUCT
            case sympy.ceiling() | sympy.floor():
                top, bottom = sympy.fraction(sympy.together(e.args[0]))
                if isinstance(e, sympy.ceiling):
                    return self.rounded_up(top, bottom)
                return self._infix(self.quotient, top, bottom)
            case sympy.Mod():
                return self._infix(self.remainder, *e.args)
            case sympy.Min() | sympy.Max():
                first, *rest = self.extremes(e)
                text = self.text(first)
                for a in rest:
                    text = f"{self.greatest if isinstance(e, sympy.Max) else self.least}({text}, {self.text(a)})"
                return text, ATOM
        raise UnsupportedError(f"cannot print the integer expression {e}", where=self.where)

    def rounded_up(self, top: Any, bottom: Any) -> tuple[str, int]:
        """The quotient, rounded up, and how tightly it binds."""
        return f"{self.cdiv}({self.text(top)}, {self.text(bottom)})", ATOM

    def extremes(self, e: Any) -> Sequence[Any]:
        """The operands of a minimum or a maximum, in a fixed order."""
        return sorted(e.args, key=str)

    def _infix(self, operator: tuple[str, int], left: Any, right: Any) -> tuple[str, int]:
        return f"{self.operand(left)} {operator[0]} {self.operand(right)}", operator[1]


class PythonIntegers(IntegerPrinter):
    """As Python.

    They are the functions for quotients that are rounded up, for minima and for maxima.
    """

    def __init__(self, cdiv: str, least: str = "min", greatest: str = "max") -> None:
        self.cdiv, self.least, self.greatest = cdiv, least, greatest

    def name(self, symbol: str) -> str:
        """As it is."""
        return symbol

    def factor(self, expression: Extent) -> str:
        """See IntegerPrinter."""
        text, level = self._print(sympy.sympify(expression))
        bare = level >= PRODUCT and "//" not in text and "%" not in text and not text.startswith("-")
        return text if bare else f"({text})"

    def order(self, e: Any) -> list[Any]:
        """Positions before sizes, which begin with a capital, in products; long terms first in sums."""
        if isinstance(e, sympy.Mul):
            return sorted((a for a in e.args if not a.is_Number), key=lambda a: (str(a)[:1].isupper(), str(a)))
        return super().order(e)

    def extremes(self, e: Any) -> Sequence[Any]:
        """As sympy has them."""
        found: Sequence[Any] = e.args
        return found


class HostIntegers(PythonIntegers):
    """As Python that runs at each call: `triton.cdiv` is one of Triton's functions there, and takes microseconds."""

    def rounded_up(self, top: Any, bottom: Any) -> tuple[str, int]:
        """By rounding the negated quotient down."""
        return f"-(-{self.operand(top)} // {self.operand(bottom)})", SUM


KERNEL = PythonIntegers("tl.cdiv", "tl.minimum", "tl.maximum")
"""In a Triton kernel."""
HOST = HostIntegers("")
"""On the host of Triton kernels."""


def fresh(name: str, taken: set[str]) -> str:
    """The name, longer by underscores where it is taken; it is taken then."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def programs_of(grid: Sequence[GridAxis], printer: PythonIntegers) -> str:
    """How many programs a grid has, as source, in a kernel or on the host."""
    return " * ".join(printer.factor(g.count) for g in grid) or "1"
