"""Rules as data: s-expressions with their places in the file, and a rule as facts and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from prism.egraph.language import TOLD

Form: TypeAlias = "str | list[Form]"
Path: TypeAlias = tuple[int, ...]
Place: TypeAlias = tuple[int, int]
Macro: TypeAlias = "tuple[tuple[str, ...], Form]"  # parameters, and the term over them that is meant


BOUNDS = ("lower", "upper")
"""The functions that say what a term is surely not below, and not above."""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    line: int
    column: int


def parse(text: str) -> Form:
    """The s-expression."""
    return _read(text)[0]


def places(text: str, line: int = 1) -> dict[Path, Place]:
    """Where each part of an s-expression stands: its position in the nested lists to (line, column), from 1.

    The text begins on that line of the file, in column 1.
    """
    return {path: (line + row, column + 1) for path, (row, column) in _read(text)[1].items()}


def _read(text: str) -> tuple[Form, dict[Path, Place]]:
    tokens = list(_tokens(text))
    found: dict[Path, Place] = {}
    position = 0

    def read(path: Path) -> Form:
        nonlocal position
        token = tokens[position]
        found[path] = token.line, token.column
        position += 1
        if token.text != "(":
            return token.text
        items: list[Form] = []
        while tokens[position].text != ")":
            items.append(read((*path, len(items))))
        position += 1
        return items

    return read(()), found


def _tokens(text: str) -> Iterator[_Token]:
    position, line, start = 0, 0, 0
    while position < len(text):
        c = text[position]
        column = position - start
        if c in "()":
            yield _Token(c, line, column)
            position += 1
        elif c == '"':
            end = position + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            yield _Token(text[position : end + 1], line, column)
            position = end + 1
        elif c == ";":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif c.isspace():
            position += 1
            if c == "\n":
                line, start = line + 1, position
        else:
            end = position
            while end < len(text) and text[end] not in '()"; \n\t\r':
                end += 1
            yield _Token(text[position:end], line, column)
            position = end


def show(form: Form) -> str:
    """The form as text, on one line."""
    return form if isinstance(form, str) else f"({' '.join(map(show, form))})"


def literal(token: str) -> bool:
    """Whether a token is a string or a number, and not a variable."""
    return token.startswith('"') or token.lstrip("-") in ("inf", "NaN") or token.lstrip("-")[:1].isdigit()


def variables(form: Form) -> set[str]:
    """The variables in it."""
    if isinstance(form, str):
        return set() if literal(form) else {form}
    return {v for part in form[1:] for v in variables(part)}


def subterms(form: Form, path: Path = ()) -> Iterator[tuple[Path, Form]]:
    """The form and all parts of it, with their positions; heads are no parts."""
    yield path, form
    if isinstance(form, list):
        for n, part in enumerate(form):
            if n:
                yield from subterms(part, (*path, n))


def expand(form: Form, known: dict[str, Form]) -> Form:
    """The form with variables replaced by what they stand for, again and again."""
    if isinstance(form, str):
        return expand(known[form], {k: v for k, v in known.items() if k != form}) if form in known else form
    return [form[0], *(expand(part, known) for part in form[1:])]


@dataclass(slots=True)
class Parts:
    """A rule as facts and what must follow from them."""

    facts: list[Form]  # all must hold
    unions: list[tuple[Form, Form]] = field(default_factory=list)  # pairs that must be equal
    relations: list[tuple[str, Form]] = field(default_factory=list)  # relation and the term that must be in it
    macros: dict[str, Macro] = field(default_factory=dict)  # constructors that stand for other terms


def parts_of(form: Form, macros: dict[str, Macro] | None = None) -> Parts:
    """The parts of a rule, rewrite or birewrite."""
    assert isinstance(form, list)
    if form[0] in ("rewrite", "birewrite"):
        return Parts(_conditions(form), [(form[1], form[2])], macros=macros or {})
    facts, actions = form[1], form[2]
    assert isinstance(facts, list)
    assert isinstance(actions, list)
    parts = Parts([f for f in facts if f[:1] != [TOLD]], macros=macros or {})
    for action in actions:
        assert isinstance(action, list)
        match action[0]:
            case "set" if isinstance(action[1], list) and action[1][0] == "value":
                # What has a value is a finite constant.
                parts.unions.append((action[1][1], action[2]))
                parts.relations.append(("finite", action[1][1]))
            case "set" if isinstance(action[1], list) and action[1][0] in BOUNDS:
                # What has a bound is finite, and the difference is not negative.
                term, (less, more) = action[1][1], (action[1][1], action[2])
                if action[1][0] == "lower":
                    less, more = more, less
                parts.relations.append(("finite", term))
                parts.relations.append(("nonneg", ["Add", more, ["Mul", ["Const", "-1.0"], less]]))
            case "union" | "set":
                parts.unions.append((action[1], action[2]))
            case "subsume" | "panic":
                pass
            case str(name):
                parts.relations.append((name, action[1]))
    return parts


def _conditions(form: list[Form]) -> list[Form]:
    """The `:when` facts of a rewrite."""
    for n, part in enumerate(form[:-1]):
        if part == ":when":
            found = form[n + 1]
            assert isinstance(found, list)
            return found
    return []


def definitions(parts: Parts) -> dict[str, Form]:
    """Variables that a fact `(= variable (Constructor ...))` stands for; the first such fact of each."""
    found: dict[str, Form] = {}
    for fact in parts.facts:
        if isinstance(fact, list) and fact[0] == "=" and len(fact) == 3:
            for name, other in ((fact[1], fact[2]), (fact[2], fact[1])):
                if isinstance(name, str) and not literal(name) and isinstance(other, list):
                    found.setdefault(name, other)
    return found
