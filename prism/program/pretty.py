"""Expressions as a person writes them: infix, quotients and differences, and names for what is used more than once.

out[m, n] = sum_k(x[m, k]*g[k]*w[k, n])/s1[m]
    s1[m] = sqrt(sum_k(x[m, k]*x[m, k])/512 + 1e-06)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prism.program.index import Axis
from prism.program.nodes import Const, Expr, Formula, Map, Position, Read, Reduce, free_axes, walk
from prism.program.stated import shortest

# How tightly an operation binds: the higher, the fewer parentheses.
_CHOICE, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _SIGN, _ATOM = range(9)
_COMPARISONS = {"lt": "<", "le": "<=", "eq": "=="}
_WORDS = {"and": (" and ", _AND), "or": (" or ", _OR)}
# An expression with fewer operations than this is repeated rather than named.
_WORTH_A_NAME = 2


def formula_lines(formula: Formula) -> list[str]:
    """The formula, then the definitions that it uses, indented, each after what uses it."""
    order = {a.name: n for n, a in enumerate(a for i in formula.index for a, _ in i.terms if isinstance(a, Axis))}
    printer = _Printer(_shared(formula.expr), order)
    index = ", ".join(map(str, formula.index))
    place = f"{formula.tensor.name}[{index}]" if formula.index else formula.tensor.name
    lines = [f"{place} = {printer.text(formula.expr)}"]
    return [*lines, *printer.definitions()]


def _rounded(value: float) -> str:
    """A number, of whose fraction six digits are enough for a reader."""
    return shortest(value) if value.is_integer() else f"{value:.6g}"


def formula_text(formula: Formula) -> str:
    """The same as one text."""
    return "\n".join(formula_lines(formula))


def expr_text(expr: Expr) -> str:
    """An expression in one line."""
    return _Printer({}, {}).text(expr)


def _shared(expr: Expr) -> dict[Expr, str]:
    """What is used more than once and is worth a name, the outermost first."""
    uses: Counter[Expr] = Counter()
    nodes = list(dict.fromkeys(walk(expr)))
    for e in nodes:
        uses.update(e.children)
    named = [e for e in reversed(nodes) if uses[e] > 1 and _operations(e) >= _WORTH_A_NAME and e != expr]
    return {e: f"t{n + 1}" for n, e in enumerate(named)}


def _operations(expr: Expr) -> int:
    return sum(isinstance(e, Map | Reduce) and not (isinstance(e, Map) and e.op == "neg") for e in walk(expr))


@dataclass(slots=True)
class _Printer:
    names: Mapping[Expr, str]
    order: Mapping[str, int]
    used: dict[Expr, None] = field(default_factory=dict)

    def definitions(self) -> Iterator[str]:
        """Lines for the names that were used, and for those that their definitions use."""
        done: set[Expr] = set()
        while len(done) < len(self.used):
            for e in [e for e in self.used if e not in done]:
                done.add(e)
                yield f"    {self._name(e)} = {self._body(e, _CHOICE)}"

    def text(self, e: Expr, within: int = _CHOICE) -> str:
        """The expression, in parentheses where it binds less tightly than what it stands in."""
        if e in self.names:
            self.used[e] = None
            return self._name(e)
        return self._body(e, within)

    def _name(self, e: Expr) -> str:
        axes = sorted((a.name for a in free_axes(e)), key=lambda a: (self.order.get(a, len(self.order)), a))
        return f"{self.names[e]}[{', '.join(axes)}]" if axes else self.names[e]

    def _body(self, e: Expr, within: int) -> str:
        written, binds = self._written(e)
        return f"({written})" if binds < within else written

    def _written(self, e: Expr) -> tuple[str, int]:
        match e:
            case Const(value):
                return (_rounded(value), _ATOM if value >= 0 else _SIGN)
            case Position(index):
                return str(index), _ATOM if len(index.terms) == 1 and index.offset == 0 else _SUM
            case Reduce(kind, axis, body):
                return f"{kind.value}_{axis}({self.text(body)})", _ATOM
            case Map("add", _):
                return self._sum(e), _SUM
            case Map("mul" | "recip", _):
                return self._product(e), _PRODUCT
            case Map("neg", (a,)):
                return f"-{self.text(a, _SIGN)}", _SIGN
            case Map("not", (a,)):
                return f"not {self.text(a, _NOT)}", _NOT
            case Map("where", (p, a, b)):
                return f"{self.text(a, _OR)} if {self.text(p, _OR)} else {self.text(b, _CHOICE)}", _CHOICE
            case Map(op, (a, b)) if op in _COMPARISONS:
                return f"{self.text(a, _SUM)} {_COMPARISONS[op]} {self.text(b, _SUM)}", _COMPARE
            case Map(op, args) if op in _WORDS:
                word, binds = _WORDS[op]
                return word.join(self.text(a, binds) for a in args), binds
            case Map(op, args):
                return f"{op}({', '.join(map(self.text, args))})", _ATOM
            case Read():
                return str(e), _ATOM
            case _:
                return str(e), _ATOM

    def _terms(self, e: Expr, op: str, top: bool = True) -> Iterator[Expr]:
        """The operands of nested sums or products, left to right; a named one is not opened."""
        if isinstance(e, Map) and e.op == op and (top or e not in self.names):
            for a in e.args:
                yield from self._terms(a, op, False)
        else:
            yield e

    def _sum(self, e: Expr) -> str:
        parts: list[str] = []
        for n, term in enumerate(self._terms(e, "add")):
            minus = isinstance(term, Map) and term.op == "neg" and term not in self.names
            inner = term.args[0] if minus and isinstance(term, Map) else term
            sign = (" - " if minus else " + ") if n else ("-" if minus else "")
            parts.append(sign + self.text(inner, _PRODUCT))
        return "".join(parts)

    def _product(self, e: Expr) -> str:
        above: list[str] = []
        below: list[str] = []
        for factor in self._terms(e, "mul"):
            match factor:
                case Map("recip", (a,)) if factor not in self.names:
                    below.append(self.text(a, _SIGN))
                case Const(value) if 0 < abs(value) < 1 and (1 / value).is_integer():
                    below.append(_rounded(1 / value))
                case _:
                    above.append(self.text(factor, _SIGN))
        top = "*".join(above) or "1"
        return "/".join([top, *below])
