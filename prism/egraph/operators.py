"""Operators that a rule file declares, as the e-graph and the rules see them.

    (operator softcap (x c) "c * torch.tanh(x / c)")

declares the constructor `Softcap` of two terms, and two rules of ruleset `simplify`:

    softcap-definition    softcap(x, c) = c * tanh(x * 1/c), both ways
    softcap-recognition   the same from right to left where c is a number, and 1/c was computed ahead

So a term that is written out is known to be a softcap, whoever wrote it, and every softcap is written out: what walks
the e-graph need not know the constructor. Both are true by definition and are not tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prism.egraph.language import ANALYSIS, CONSTRUCTORS, LEAVES, REDUCTIONS, SIMPLIFY
from prism.egraph.sexpr import Form, Macro, parse, places, show
from prism.errors import RuleError
from prism.program.nodes import Const, Expr, Map, Read
from prism.program.operators import ExpressionError, Operator, operator
from prism.program.ops import OPS

_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*\Z")

_PARAMETER = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")  # the rules made here use names that start with _

# Constants that folding rounds in float64 are this near to what the e-graph computes.
_NEAR = 1e-11


def constructor(name: str) -> str:
    """The constructor of an operator: `quick_gelu` is `QuickGelu`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def read_operator(text: str, line: int, file: str, known: Mapping[str, Operator]) -> Operator:
    """An operator from its form. Raises RuleError: it is no legal declaration; `where` is file:line:column."""
    form, at = parse(text), places(text, line)

    def refused(what: str, path: tuple[int, ...] = (), why: str = "", fix: str = "") -> RuleError:
        row, column = at.get(path, (line, 1))
        return RuleError(what, where=f"{file}:{row}:{column}", why=why, fix=fix)

    match form:
        case ["operator", str(name), [*parameters], str(quoted)] if quoted.startswith('"'):
            pass
        case _:
            raise refused("not a declaration of an operator", fix='write (operator name (x y) "torch expression")')
    if not _IDENTIFIER.match(name):
        raise refused(f"{name!r} is no name of an operator", (1,), fix="use lower case letters, digits and _")
    made = constructor(name)
    if made in known:
        raise refused(f"two operators are called {made}", (1,), why=f"the other is at {known[made].where}")
    if name in OPS or made in (*CONSTRUCTORS.values(), *REDUCTIONS.values(), *LEAVES, "T", "Axes"):
        raise refused(f"prism has an operation {made} of its own", (1,), fix="choose another name")
    for n, p in enumerate(parameters):
        if not isinstance(p, str) or not _PARAMETER.match(p) or p in parameters[:n] or p in ("torch", "math"):
            raise refused(f"{show(p)} is no name of a parameter, or is one twice", (2, n))
    if not parameters:
        raise refused("an operator has parameters", (2,), fix="name at least one")
    row, column = at[3,]
    try:
        return operator(name, [str(p) for p in parameters], quoted[1:-1], f"{file}:{line}")
    except ExpressionError as error:
        begins = 1 + len(quoted[1:]) - len(quoted[1:].lstrip())
        before = quoted[: begins + error.place]
        across = len(before) - before.rindex("\n") if "\n" in before else column + len(before)
        where = f"{file}:{row + before.count(chr(10))}:{across}"
        raise RuleError(f"operator {name}: {error}", where=where, fix=error.fix) from None


def declaration(op: Operator) -> str:
    """What declares the constructor to egglog, with its share of the free-axes analysis."""
    name, many = constructor(op.name), len(op.parameters)
    args = [f"a{n}" for n in range(many)]
    union = "s0"
    for n in range(1, many):
        union = f"(set-union {union} s{n})"
    known = " ".join(f"(= s{n} (axes {a}))" for n, a in enumerate(args))
    return (
        f"(constructor {name} ({' '.join(['T'] * many)}) T)\n"
        f"(rule ((= t ({name} {' '.join(args)})) {known}) ((set (axes t) {union})) "
        f':ruleset {ANALYSIS} :name "axes-{name}")'
    )


def definitions(op: Operator) -> Iterator[tuple[str, str, str]]:
    """The rules that say what the operator is: name, text, and what it says in mathematics."""
    head = show([constructor(op.name), *op.parameters])
    said = f"{op.name}({', '.join(op.parameters)}) = {' '.join(op.torch.split())}"
    name = f"{op.name}-definition"
    yield name, f'(birewrite {head} {show(body_of(op))} :ruleset {SIMPLIFY} :name "{name}")', said
    recognised = _recognition(op)
    if recognised is not None:
        pattern, facts = recognised
        name = f"{op.name}-recognition"
        numbers = " and ".join(op.parameters[1:])
        text = (
            f'(rule ((= _t {show(pattern)}) {" ".join(facts)}) ((union _t {head})) :ruleset {SIMPLIFY} :name "{name}")'
        )
        yield name, text, f"{said}  where {numbers} {'is a number' if len(op.parameters) == 2 else 'are numbers'}"


def body_of(op: Operator) -> Form:
    """The definition as a term over the parameters."""
    return _form(op.body)


def macros(operators: Sequence[Operator]) -> dict[str, Macro]:
    """What the operators' constructors stand for: their parameters, and the definition as a term over them."""
    return {constructor(op.name): (op.parameters, body_of(op)) for op in operators}


def _form(e: Expr) -> Form:
    match e:
        case Read(name, ()):
            return name
        case Const(value):
            return ["Const", repr(value)]
        case Map("neg", (a,)):
            return ["Mul", ["Const", "-1.0"], _form(a)]
        case Map(op, args):
            return [CONSTRUCTORS[op], *map(_form, args)]
    raise AssertionError(f"{e} in a definition")


@dataclass(slots=True)
class _Numbers:
    """Writes a definition with variables for what is a number where some parameters are."""

    known: frozenset[str]
    facts: list[str]

    def form(self, e: Expr) -> Form:
        if isinstance(e, Map):
            value = self._value(e)
            if value is not None:
                name = f"_k{len(self.facts)}"
                self.facts.append(
                    f"(= _v{name} (value {name})) (< (abs (- _v{name} {value})) (* {_NEAR} (abs _v{name})))"
                )
                return name
            if e.op == "neg":
                return ["Mul", ["Const", "-1.0"], self.form(e.args[0])]
            return [CONSTRUCTORS[e.op], *map(self.form, e.args)]
        return _form(e)

    def _value(self, e: Expr) -> str | None:
        """The number in egglog's arithmetic; None for what is none."""
        match e:
            case Read(name, ()):
                return f"_v_{name}" if name in self.known else None
            case Const(value):
                return repr(value)
            case Map(op, args):
                values = [self._value(a) for a in args]
                if None in values:
                    return None
                match op, values:
                    case "add", [a, b]:
                        return f"(+ {a} {b})"
                    case "mul", [a, b]:
                        return f"(* {a} {b})"
                    case "neg", [a]:
                        return f"(* -1.0 {a})"
                    case "recip", [a]:
                        return f"(/ 1.0 {a})"
        return None


def _recognition(op: Operator) -> tuple[Form, list[str]] | None:
    """The definition where all parameters but the first are numbers; None where that changes nothing."""
    numbers = _Numbers(frozenset(op.parameters[1:]), [])
    pattern = numbers.form(op.body)
    if not numbers.facts or not set(op.parameters) <= _leaves(pattern):
        return None
    return pattern, [*(f"(= _v_{p} (value {p}))" for p in op.parameters[1:]), *numbers.facts]


def _leaves(form: Form) -> set[str]:
    return {form} if isinstance(form, str) else {v for part in form[1:] for v in _leaves(part)}
