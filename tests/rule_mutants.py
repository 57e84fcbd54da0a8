"""Rules that are a shipped rule made wrong in one place: without a guard, with two operands or two axes swapped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from prism.egraph.rules import Rule
from prism.egraph.sexpr import Form, definitions, parse, parts_of, show, subterms, variables
from prism.egraph.soundness.plan import RELATIONS

GUARDS = (*RELATIONS, "set-contains", "set-not-contains", "!=", "<", "<=", ">", ">=")
"""Heads of facts that only restrict: they give no variable a value."""

ORDERED = {"Where": (2, 3), "Lt": (1, 2), "Le": (1, 2), "Pow": (1, 2)}
"""Constructors that do not commute, and the operands to swap."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule that is wrong in one place, unless that place does not matter; `what` was done to it."""

    rule: Rule
    what: str


def without_guards(rule: Rule) -> Iterator[Mutant]:
    """The rule without each of its guards; a shape that a variable of the pattern must have is one, too."""
    form = parse(rule.text)
    assert isinstance(form, list)
    if form[0] != "rule":
        return
    facts = form[1]
    assert isinstance(facts, list)
    for n, fact in enumerate(facts):
        others = [f for m, f in enumerate(facts) if m != n]
        if fact[0] in GUARDS or _restricts(fact, others):
            yield _mutant(rule, [form[0], others, *form[2:]], f"without {show(fact)}")


def _restricts(fact: Form, others: list[Form]) -> bool:
    """Whether `(= v (F x ...))` asks something of a v and an x that other facts bind."""
    match fact:
        case ["=", str(v), [str(head), *_]] if head[0].isupper():
            bound = {x for f in others if f[0] == "=" for side in f[1:] for x in _in_terms(side)}
            return v in bound and v not in definitions(parts_of(["rule", others, []]))
    return False


def _in_terms(form: Form) -> set[str]:
    return variables(form) if isinstance(form, list) else set()


def swapped(rule: Rule) -> Iterator[Mutant]:
    """The rule with the operands of an operation on its right-hand side swapped, or another axis in a reduction."""
    form = parse(rule.text)
    assert isinstance(form, list)
    rewrite = form[0] != "rule"
    right = form[2]
    axes = sorted({str(s[1]) for _, s in subterms([form[0], *form[1:3]]) if _reduction(s)} if rewrite else _axes(form))
    start = (2,)
    for path, part in subterms(right, start) if rewrite else _terms(right, start):
        if isinstance(part, list) and part[0] in ORDERED:
            a, b = ORDERED[part[0]]
            new = list(part)
            new[a], new[b] = part[b], part[a]
            if new != part:
                yield _mutant(rule, _at(form, path, new), f"with {show(part)} as {show(new)}")
        if _reduction(part):
            for axis in axes:
                if axis != part[1]:
                    new = [part[0], axis, *part[2:]]
                    yield _mutant(rule, _at(form, path, new), f"with {show(part)} as {show(new)}")


def _terms(actions: Form, start: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Form]]:
    """The terms of the unions among a rule's actions."""
    for n, action in enumerate(actions):
        if isinstance(action, list) and action[0] == "union":
            yield from subterms(action[2], (*start, n, 2))


def _axes(form: list[Form]) -> set[str]:
    facts = [s for fact in form[1] for _, s in subterms(fact)]
    return {str(s[1]) for s in facts if _reduction(s)}


def _reduction(form: Form) -> bool:
    return isinstance(form, list) and form[0] in ("Sum", "Max", "Min", "Prod")


def _at(form: Form, path: tuple[int, ...], new: Form) -> Form:
    if not path:
        return new
    assert isinstance(form, list)
    return [_at(part, path[1:], new) if n == path[0] else part for n, part in enumerate(form)]


def _mutant(rule: Rule, form: Form, what: str) -> Mutant:
    return Mutant(replace(rule, text=show(form)), what)
