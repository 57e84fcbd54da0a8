"""What a rule's text says of the variables that random interpretation has to draw for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prism.egraph.language import CONSTRUCTORS, LEAVES, REDUCTIONS
from prism.egraph.sexpr import BOUNDS, Form, Parts, literal, subterms

RELATIONS = ("finite", "nonzero", "positive", "nonneg", "boolean")
"""What may be known of a term."""
OP_OF: Mapping[str, str] = {constructor: op for op, constructor in CONSTRUCTORS.items()}
"""Constructor to pointwise op."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rule's text says of the variables that are to be drawn."""

    axes: tuple[str, ...]  # axis variables
    terms: tuple[str, ...]  # term variables that no fact defines, in the order in which they are met
    constants: frozenset[str]  # of those, the ones that facts ask to be numbers
    wanted: Mapping[str, frozenset[str]]  # term variable to the relations that it must be in
    truths: tuple[str, ...]  # variables that stand where a truth value is read, once for each such place
    # Term variable to the axis variables that it must, or must not, have.
    asked: Mapping[str, Sequence[tuple[str, bool]]]

    @staticmethod
    def of(parts: Parts) -> Plan:
        """The plan of a rule."""
        defined: set[str] = set()
        constants: set[str] = set()
        wanted: dict[str, frozenset[str]] = {}
        for fact in parts.facts:
            if not isinstance(fact, list):
                continue
            if fact[0] == "=" and any(isinstance(s, list) for s in fact[1:]):
                defined |= {s for s in fact[1:] if isinstance(s, str) and not literal(s)}
            for part in fact[1:]:
                if isinstance(part, list) and part[0] == "value" and isinstance(part[1], str):
                    constants.add(part[1])
                if isinstance(part, list) and part[0] in BOUNDS and isinstance(part[1], str):
                    wanted[part[1]] = wanted.get(part[1], frozenset()) | {"finite"}
            if fact[0] in RELATIONS and isinstance(fact[1], str):
                wanted[fact[1]] = wanted.get(fact[1], frozenset()) | {str(fact[0])}
        forms: list[Form] = [*parts.facts, *(f for u in parts.unions for f in u), *(f for _, f in parts.relations)]
        truths: list[str] = []
        for part in (sub for f in forms for _, sub in subterms(f)):
            if isinstance(part, list) and part[0] in ("Where", "And", "Or", "Not"):
                operands = part[1:2] if part[0] == "Where" else part[1:]
                truths += [operand for operand in operands if isinstance(operand, str)]
        axes = sorted({v for f in forms for v in _axis_variables(f)})
        terms: dict[str, None] = {}

        def visit(form: Form, is_term: bool) -> None:
            if isinstance(form, str):
                if is_term and not literal(form) and form not in defined and form not in axes:
                    terms.setdefault(form)
                return
            head, args = form[0], form[1:]
            if head in REDUCTIONS.values():
                visit(args[1], True)
            elif head in ("axes", "value", *BOUNDS, *RELATIONS) or head in OP_OF or head in parts.macros:
                for a in args:
                    visit(a, True)
            elif head not in LEAVES:
                for a in args:
                    visit(a, isinstance(a, list))

        for form in forms:
            visit(form, True)
        return Plan(tuple(axes), tuple(terms), frozenset(constants), wanted, tuple(truths), _asked(parts))


def _asked(parts: Parts) -> dict[str, list[tuple[str, bool]]]:
    """Term variable to the axis variables that it must, or must not, have: most draws heed these facts."""
    sets: dict[str, str] = {}
    asked: dict[str, list[tuple[str, bool]]] = {}
    for fact in parts.facts:
        match fact:
            case ["=", str(name), ["axes", str(term)]] | ["=", ["axes", str(term)], str(name)]:
                sets[name] = term
    for fact in parts.facts:
        match fact:
            case ["set-contains" | "set-not-contains" as head, str(name), str(axis)] if name in sets:
                asked.setdefault(sets[name], []).append((axis, head == "set-contains"))
    return asked


def _axis_variables(form: Form) -> set[str]:
    """The axis variables in a form."""
    if isinstance(form, str):
        return set()
    found = {v for part in form[1:] for v in _axis_variables(part)}
    if (form[0] in REDUCTIONS.values() or form[0] == "length") and isinstance(form[1], str) and not literal(form[1]):
        found.add(form[1])
    return found
