"""Rules, read from the text of their files, and their instances."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from prism.checker.operators import definitions
from prism.checker.terms import LEAVES, REDUCTIONS, CertificateError, Term, Terms

Sexp: TypeAlias = "str | float | list[Sexp]"  # a quoted string keeps its quotes


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule file says."""

    name: str  # of the rule
    file: str  # that it stands in
    left: Sexp  # the term that it takes
    right: Sexp  # the term that it gives
    facts: tuple[list[Sexp], ...]  # what must hold, `(= t left)` not among them
    # Variables that the facts define, in an order in which each needs only earlier ones.
    defined: tuple[tuple[str, Sexp], ...]
    free: tuple[frozenset[str], frozenset[str]]  # the other variables: those of terms, and those of axes
    both: bool = False  # whether the prover applies it in both directions


_TOKEN = re.compile(r'\s+|;[^\n]*|([()])|("[^"]*")|([^\s()";]+)')


def sexps(text: str) -> Iterator[Sexp]:
    """The forms of a rule file. Raises CertificateError: the parentheses do not match."""
    stack: list[list[Sexp]] = [[]]
    for match in _TOKEN.finditer(text):
        paren, quoted, atom = match.groups()
        if paren == "(":
            stack.append([])
        elif paren == ")":
            done = stack.pop()
            if not stack:
                raise CertificateError("a rule file has a closing parenthesis too many")
            stack[-1].append(done)
        elif quoted:
            stack[-1].append(quoted)
        elif atom:
            try:
                stack[-1].append(float(atom))
            except ValueError:
                stack[-1].append(atom)
    if len(stack) != 1:
        raise CertificateError("a rule file ends within a form")
    yield from stack[0]


def read_rules(text: str, file: str) -> dict[str, Rule]:
    """The rules of a file that equate two terms, by name; what declared operators are is among them."""
    found: dict[str, Rule] = {}
    for form in sexps(text):
        for d in definitions(form) if isinstance(form, list) else ():
            found[d.name] = _made(d.name, file, d.left, d.right, list(d.facts), d.both)
        if not isinstance(form, list) or not form or form[0] not in ("rule", "rewrite", "birewrite"):
            continue
        if ":name" not in form:
            continue
        name = str(form[form.index(":name") + 1]).strip('"')
        rule = _rule(form, name, file)
        if rule is not None:
            found[name] = rule
    return found


def _rule(form: list[Any], name: str, file: str) -> Rule | None:
    if form[0] != "rule":
        conditions = form[form.index(":when") + 1] if ":when" in form else []
        return _made(name, file, form[1], form[2], list(conditions), form[0] == "birewrite")
    unions = [a for a in form[2] if a[0] == "union"]
    if len(unions) != 1:
        return None
    root, right = unions[0][1:]
    facts = list(form[1])
    for n, fact in enumerate(facts):
        if fact[0] == "=" and fact[1] == root and isinstance(fact[2], list):
            return _made(name, file, fact[2], right, facts[:n] + facts[n + 1 :])
    return None


def _made(name: str, file: str, left: Sexp, right: Sexp, facts: list[Any], both: bool = False) -> Rule:
    """The rule, its variables sorted out."""
    definitions = {f[1]: f[2] for f in facts if f[0] == "=" and isinstance(f[1], str)}
    order: list[tuple[str, Sexp]] = []

    def visit(variable: str) -> None:
        if variable in definitions and variable not in [v for v, _ in order]:
            for v in variables(definitions[variable]):
                visit(v)
            order.append((variable, definitions[variable]))

    for v in definitions:
        visit(v)
    named = set(variables(left)) | set(variables(right)) | {v for _, d in order for v in variables(d)}
    axes = {v for s in (left, right, *(d for _, d in order)) for v in _axis_variables(s)}
    free = named - set(definitions)
    sorts = frozenset(free - axes), frozenset(free & axes)
    return Rule(name, file, left, right, tuple(facts), tuple(order), sorts, both)


def variables(pattern: Sexp) -> Iterator[str]:
    """The variables of a pattern."""
    if isinstance(pattern, list):
        for p in pattern[1:]:
            yield from variables(p)
    elif isinstance(pattern, str) and not pattern.startswith('"'):
        yield pattern


def _axis_variables(pattern: Sexp) -> Iterator[str]:
    if isinstance(pattern, list):
        if (pattern[0] in REDUCTIONS or pattern[0] == "length") and isinstance(pattern[1], str):
            yield pattern[1]
        for p in pattern[1:]:
            yield from _axis_variables(p)


class GuardError(CertificateError):
    """A side condition of a rule does not hold."""


def instance(rule: Rule, terms: Terms, given: Mapping[str, Any]) -> tuple[Term, Term]:
    """The two sides of a rule under a substitution, its conditions checked.

    `given` has a term for each free variable, a name for each axis variable.

    Raises:
        CertificateError: the substitution is not over the rule's variables, or a condition does not hold.
    """
    wanted, axes = rule.free
    if given.keys() != wanted | axes:
        raise CertificateError(f"rule {rule.name} has the variables {', '.join(sorted(wanted | axes))}")
    for v in sorted(axes):
        if given[v] not in terms.extents:
            raise CertificateError(f"{v} must be an axis")
    known = dict(given)
    for variable, pattern in rule.defined:
        known[variable] = _evaluate(pattern, terms, known)
    for fact in rule.facts:
        if not _holds(fact, terms, known):
            raise GuardError(f"{_written(fact)} does not hold")
    return _evaluate(rule.left, terms, known), _evaluate(rule.right, terms, known)


def _written(s: Sexp) -> str:
    return f"({' '.join(map(_written, s))})" if isinstance(s, list) else str(s)


def _holds(fact: list[Sexp], terms: Terms, known: Mapping[str, Any]) -> bool:
    head = str(fact[0])
    args = [_evaluate(f, terms, known) for f in fact[1:]]
    match head, args:
        case "=", [a, b]:
            return bool(a == b)
        case "!=", [a, b]:
            if isinstance(a, Term):
                raise GuardError("whether two terms differ cannot be seen")
            return bool(a != b)
        case "<", [a, b]:
            return bool(a < b)
        case "<=", [a, b]:
            return bool(a <= b)
        case ">", [a, b]:
            return bool(a > b)
        case ">=", [a, b]:
            return bool(a >= b)
        case "set-contains", [s, k]:
            # The axes here are those that are written; the prover's may be fewer.
            return k in s
        case "set-not-contains", [s, k]:
            return k not in s
        case (("finite" | "positive" | "nonneg" | "nonzero" | "boolean"), [Term() as t]):
            return head in t.facts
        case "told", [Term()]:
            return True  # it bounds what candidates leave out, and says nothing of a value
    raise GuardError(f"the checker does not know {_written(fact)}")


def _evaluate(s: Sexp, terms: Terms, known: Mapping[str, Any]) -> Any:
    """A pattern's instance, or what a condition's expression comes to."""
    if isinstance(s, float):
        return s
    if isinstance(s, str):
        if s not in known:
            raise CertificateError(f"the rule leaves {s} open")
        return known[s]
    head = str(s[0])
    if head == "Const":
        (value,) = s[1:]
        return terms.const(_evaluate(value, terms, known))
    args = [_evaluate(a, terms, known) for a in s[1:]]
    if head[0].isupper():
        if head in LEAVES:
            raise GuardError(f"the checker does not instantiate {head}")
        if head in REDUCTIONS:
            return terms.make(head, args[0], (args[1],))
        if not all(isinstance(a, Term) for a in args):
            raise CertificateError(f"an argument of {head} is no term")
        return terms.make(head, None, tuple(args))
    match head, args:
        case "axes", [Term() as t]:
            return t.axes
        case "value", [Term() as t]:
            if t.value is None:
                raise GuardError("a term has no constant value")
            return t.value
        case (("lower" | "upper"), [Term() as t]):
            end = t.bounds[head == "upper"]
            if math.isinf(end):
                raise GuardError("a term has no known bound")
            return end
        case "length", [str() as axis]:
            return terms.length(axis)
        case "set-union", [a, b]:
            return a | b
        case "set-intersect", [a, b]:
            return a & b
        case "set-length", [a]:
            return float(len(a))
        case "set-remove", [a, b]:
            return a - {b}
        case "abs", [a]:
            return abs(a)
        case "max", [a, b]:
            return max(a, b)
        case "min", [a, b]:
            return min(a, b)
        case "+", [a, b]:
            return a + b
        case "-", [a, b]:
            return a - b
        case "*", [a, b]:
            return a * b
        case "/", [a, b] if b:
            return a / b
    raise GuardError(f"the checker does not know {_written(s)}")
