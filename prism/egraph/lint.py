"""What is wrong with rule files, all of it at once, with file:line:column: errors, and guards that seem to be missing.

Errors keep a file from being loaded. Warnings are heuristics about a rule's text: what they miss, random interpretation
(check.py) may find, and what they flag may be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from prism.egraph.language import EXPLORE, REDUCTIONS, SIMPLIFY
from prism.egraph.operators import constructor
from prism.egraph.rules import Form as FileForm
from prism.egraph.rules import Rule, RuleSet, declarations_first, forms, install, read_form, refusal
from prism.egraph.sexpr import Form, definitions, expand, literal, parse, parts_of, places, show, subterms, variables
from prism.egraph.sexpr import Path as Position
from prism.egraph.soundness.plan import RELATIONS
from prism.errors import RuleError
from prism.program.operators import Operator


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong."""

    severity: Severity  # of it
    where: str  # file:line:column
    rule: str  # the rule's name; empty where it has none
    what: str  # in a clause
    fix: str = ""  # what to do

    def __str__(self) -> str:
        of = f" rule {self.rule!r}:" if self.rule else ""
        return f"{self.where}: {self.severity.value}:{of} {self.what}" + (f"; {self.fix}" if self.fix else "")


def lint(paths: Sequence[Path], known: RuleSet | None = None) -> tuple[tuple[Rule, ...], tuple[Issue, ...]]:
    """The rules of the files that have no errors, and what is wrong; what declarations define is not among them.

    Raises:
        RuleError: a file cannot be read.
    """
    issues: list[Issue] = []
    rules: list[Rule] = []
    operators = {constructor(op.name): op for op in known.operators} if known is not None else {}
    names = {r.name: f"{r.file}:{r.line}" for r in known.rules} if known is not None else {}
    for path in paths:
        for rule in _read(path, issues, operators):
            if rule.name in names:
                what = f"another rule has that name, at {names[rule.name]}"
                issues.append(Issue(Severity.ERROR, f"{path}:{rule.line}:1", rule.name, what, "rename one of them"))
                continue
            names[rule.name] = f"{rule.file}:{rule.line}"
            rules.append(rule)
    rules = _typed(rules, issues, tuple(operators.values()))
    for rule in rules:
        issues += warnings(rule) if not rule.definition else []
    order = {str(p): n for n, p in enumerate(paths)}

    def place(issue: Issue) -> tuple[int, int, int]:
        file, line, column = issue.where.rsplit(":", 2)
        return order.get(file, 0), int(line), int(column)

    return tuple([r for r in rules if not r.definition]), tuple(sorted(issues, key=place))


def _read(path: Path, issues: list[Issue], operators: dict[str, Operator]) -> Iterator[Rule]:
    """The rules of a file, form by form; operators that it declares join those that are known."""
    found: list[FileForm] = []
    try:
        text = path.read_bytes().decode()
        for form in forms(text, str(path)):
            found.append(form)
    except RuleError as error:
        issues.append(_of(error))
    except OSError as error:
        why = error.strerror or str(error)
        raise RuleError("the rule file cannot be read", where=str(path), why=why, fix="name a rule file") from error
    except UnicodeDecodeError as error:
        issues.append(Issue(Severity.ERROR, f"{path}:1:1", "", f"the file cannot be read: {error}"))
    for form in declarations_first(found):
        try:
            yield from read_form(form, path, operators)
        except RuleError as error:
            issues.append(_of(error))


def _of(error: RuleError) -> Issue:
    """An error of reading, which names file and line and perhaps a column, as an issue."""
    where = error.where if _PLACE.search(error.where) else f"{error.where}:1"
    return Issue(Severity.ERROR, where, "", error.reason, error.fix)


_PLACE = re.compile(r":\d+:\d+$")


def _typed(rules: Sequence[Rule], issues: list[Issue], operators: tuple[Operator, ...]) -> list[Rule]:
    """The rules that have a type."""
    good: list[Rule] = []
    graph = install(RuleSet((), (), (), operators))
    for rule in rules:
        invented = _invented(rule)
        if invented:
            issues += invented
            continue
        refused = refusal(graph, rule)
        if refused is None:
            good.append(rule)
            continue
        where = f"{rule.file}:{refused.line}:{refused.column}"
        issues.append(Issue(Severity.ERROR, where, rule.name, refused.message))
        graph = install(RuleSet(tuple(good), (), (), operators))
    return good


def _invented(rule: Rule) -> list[Issue]:
    """Variables on the right-hand side that the left-hand side does not give a value."""
    form = parse(rule.text)
    assert isinstance(form, list)
    at = places(rule.text, rule.line)
    found: list[Issue] = []

    def compare(bound: set[str], position: Position, part: Form) -> None:
        for path, sub in subterms(part, position):
            if isinstance(sub, str) and not literal(sub) and sub not in bound:
                line, column = at[path]
                what = f"the right-hand side invents the variable {sub}"
                fix = "bind it on the left-hand side, or write a constant as (Const 1.0)"
                found.append(Issue(Severity.ERROR, f"{rule.file}:{line}:{column}", rule.name, what, fix))

    if form[0] == "rule" and len(form) > 2 and all(isinstance(part, list) for part in form[1:3]):
        bound = {v for fact in form[1] for v in variables(fact)}
        for n, action in enumerate(form[2]):
            if isinstance(action, list) and action and action[0] != "let":
                for m, part in enumerate(action[1:], 1):
                    compare(bound, (2, n, m), part)
    elif form[0] in ("rewrite", "birewrite") and len(form) > 2:
        when = {v for fact in parts_of(form).facts for v in variables(fact)}
        compare(variables(form[1]) | when, (2,), form[2])
        if form[0] == "birewrite":
            compare(variables(form[2]) | when, (1,), form[1])
    return found


def warnings(rule: Rule) -> list[Issue]:
    """Guards that seem to be missing, and growth."""
    form = parse(rule.text)
    assert isinstance(form, list)
    parts = parts_of(form)
    known = definitions(parts)
    known = {
        name: what
        for name, what in known.items()
        if show(what[:1]) not in ("(axes)", "(value)", "(length)", "(lower)", "(upper)")
    }
    facts = [expand(f, known) for f in parts.facts]
    sides = [(expand(a, known), expand(b, known)) for a, b in parts.unions if form[0] != "rule" or _is_union(form, a)]
    sides += [(b, a) for a, b in sides if form[0] == "birewrite"]
    found: list[str] = []
    for left, right in sides:
        for lint_ in (_unguarded_axes, _unguarded_division, _unguarded_roots, _lost):
            found += lint_(left, right, facts)
        if rule.ruleset in (EXPLORE, SIMPLIFY):
            found += _grows(left, right, rule.ruleset)
    where = f"{rule.file}:{rule.line}:1"
    return [Issue(Severity.WARNING, where, rule.name, what) for what in dict.fromkeys(found)]


def _is_union(form: list[Form], left: Form) -> bool:
    return any(isinstance(a, list) and a[0] == "union" and a[1] == left for a in form[2])


def _under(form: Form, axis: str, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Each occurrence of a term variable, and whether a reduction over the axis is around it."""
    if isinstance(form, str):
        if not literal(form):
            yield form, inside
        return
    reduces = form[0] in REDUCTIONS.values()
    for part in form[2:] if reduces else form[1:]:
        yield from _under(part, axis, inside or (reduces and form[1] == axis))


def _unguarded_axes(left: Form, right: Form, facts: Sequence[Form]) -> Iterator[str]:
    """What crosses a reduction without a look at its axes."""
    sets: dict[str, set[str]] = {}
    for fact in facts:
        match fact:
            case ["=", str(name), ["axes", term]] | ["=", ["axes", term], str(name)]:
                sets[name] = variables(term)
    guarded = {
        (v, axis)
        for fact in facts
        if isinstance(fact, list) and fact[0] == "set-not-contains" and isinstance(fact[1], str)
        for v in sets.get(fact[1], ())
        for axis in [show(fact[2])]
    }
    axes = {show(s[1]) for side in (left, right) for _, s in subterms(side) if _reduces(s) and isinstance(s, list)}
    for axis in sorted(axes):
        before, after = list(_under(left, axis)), list(_under(right, axis))
        for v in sorted({name for name, _ in before}):
            was = {inside for name, inside in before if name == v}
            now = {inside for name, inside in after if name == v}
            if (v, axis) not in guarded and ((was == {True} and False in now) or (was == {False} and True in now)):
                way = "out of" if True in was else "into"
                yield (
                    f"{v} is moved {way} a reduction over {axis} whether or not {axis} is an axis of it: "
                    f"add (= s (axes {v})) (set-not-contains s {axis})"
                )


def _reduces(form: Form) -> bool:
    return isinstance(form, list) and form[0] in REDUCTIONS.values()


def _signs(facts: Sequence[Form]) -> Signs:
    return Signs({(str(f[0]), show(f[1])) for f in facts if isinstance(f, list) and f[0] in RELATIONS})


def _arguments(form: Form, match: Callable[[Form], Form | None]) -> dict[str, Form]:
    """The terms that `match` gives for parts of the form, by their text."""
    found = (match(part) for _, part in subterms(form))
    return {show(f): f for f in found if f is not None}


def _denominator(form: Form) -> Form | None:
    match form:
        case ["Recip", a]:
            return a
        case ["Pow", a, ["Const", str(c)]] if float(c) < 0:
            return a
    return None


def _unguarded_division(left: Form, right: Form, facts: Sequence[Form]) -> Iterator[str]:
    """A division that only one side has."""
    before, after = _arguments(left, _denominator), _arguments(right, _denominator)
    signs = _signs(facts)
    if bool(before) != bool(after):
        for text, term in (before or after).items():
            if not signs.nonzero(term):
                way = "cancels the division by" if before else "divides by"
                yield f"it {way} {text}, which may be 0: add (nonzero {text}) or (positive {text})"


def _unguarded_roots(left: Form, right: Form, facts: Sequence[Form]) -> Iterator[str]:
    """A square root or a logarithm of something that the other side takes none of."""
    signs = _signs(facts)

    def root(form: Form) -> Form | None:
        match form:
            case ["Sqrt", a]:
                return a
            case ["Pow", a, ["Const", str(c)]] if float(c) != int(float(c)):
                return a
        return None

    def log(form: Form) -> Form | None:
        return form[1] if isinstance(form, list) and form[0] in ("Log", "Log2") else None

    for name, match, fine, guard in (
        ("square root", root, signs.nonneg, "nonneg"),
        ("logarithm", log, signs.positive, "positive"),
    ):
        before, after = _arguments(left, match), _arguments(right, match)
        for text in sorted(before.keys() ^ after.keys()):
            if not fine((before | after)[text]):
                yield f"one side alone takes the {name} of {text}, whose sign is not known: add ({guard} {text})"


_KNOWN = re.compile(r"\((value|lower|upper) ")
"""What only a term that is a finite number has."""


def _lost(left: Form, right: Form, facts: Sequence[Form]) -> Iterator[str]:
    """A variable that vanishes, and with it an infinity or NaN that it may hold."""
    chosen: set[str] = set()
    used: set[str] = set()

    def visit(form: Form, branch: bool) -> None:
        if isinstance(form, str):
            if not literal(form):
                (chosen if branch else used).add(form)
            return
        reduces = form[0] in REDUCTIONS.values()
        for n, part in enumerate(form[2:] if reduces else form[1:]):
            visit(part, branch or (form[0] == "Where" and n > 0))

    visit(left, False)
    told = {
        v for f in facts for v in variables(f) if isinstance(f, list) and (f[0] in RELATIONS or _KNOWN.search(show(f)))
    }
    for v in sorted(used - variables(right) - told):
        if not (isinstance(left, list) and left[0] == "Where" and v not in used - chosen):
            if isinstance(left, list) and left[0] == "Where" and left[1] == v:
                continue  # a predicate that does not matter
            yield f"{v} vanishes, and with it inf or NaN: add (finite {v})"


def _matches(pattern: Form, subject: Form, bound: dict[str, Form]) -> bool:
    """Whether the subject is an instance of the pattern."""
    if isinstance(pattern, str):
        if literal(pattern):
            return pattern == subject
        return bound.setdefault(pattern, subject) == subject
    if isinstance(subject, str) or len(pattern) != len(subject) or pattern[0] != subject[0]:
        return False
    return all(_matches(p, s, bound) for p, s in zip(pattern[1:], subject[1:], strict=True))


def _grows(left: Form, right: Form, ruleset: str) -> Iterator[str]:
    """A rule that makes something larger to which it applies again."""
    if isinstance(left, str):
        yield f"it matches every term: in ruleset {ruleset} the e-graph grows without bound"
        return
    if len(list(subterms(right))) > len(list(subterms(left))):
        for _, part in subterms(right):
            if isinstance(part, list) and _matches(left, part, {}):
                yield (
                    f"its right-hand side is larger and holds {show(part)}, to which it applies again: in "
                    f"ruleset {ruleset} the e-graph grows without bound; move it to expand or distribute"
                )
                return


# What a rule's text alone says of the sign of a term: enough to tell a guard that is missing from one that is not.


@dataclass(frozen=True, slots=True)
class Signs:
    """Answers about terms."""

    facts: Collection[tuple[str, str]]  # (relation, term as text) that the rule demands

    def _demands(self, name: str, term: Form) -> bool:
        return (name, show(term)) in self.facts

    def positive(self, term: Form) -> bool:
        """Whether it is surely above 0."""
        if self._demands("positive", term):
            return True
        match term:
            case ["Const", str(c)]:
                return float(c) > 0
            case ["Exp" | "Sigmoid" | "Size" | "length", *_]:
                return True
            case ["Add", a, b]:
                return (self.positive(a) and self.nonneg(b)) or (self.nonneg(a) and self.positive(b))
            case ["Mul", a, b] | ["Min2", a, b]:
                return self.positive(a) and self.positive(b)
            case ["Recip" | "Sqrt", a] | ["Sum" | "Max" | "Min" | "Prod", _, a]:
                return self.positive(a)
        return False

    def nonneg(self, term: Form) -> bool:
        """Whether it is surely not below 0."""
        if self._demands("nonneg", term) or self._demands("boolean", term) or self.positive(term):
            return True
        match term:
            case ["Const", str(c)]:
                return float(c) >= 0
            case ["Abs" | "Sqrt" | "Lt" | "Le" | "Eq" | "And" | "Or" | "Not" | "IsNan", *_]:
                return True
            case ["Mul", a, b]:
                return a == b or (self.nonneg(a) and self.nonneg(b))
            case ["Add", a, b]:
                return self.nonneg(a) and self.nonneg(b)
            case ["Max2", a, b]:
                return self.nonneg(a) or self.nonneg(b)
            case ["Recip", a] | ["Sum" | "Max" | "Min" | "Prod", _, a]:
                return self.nonneg(a)
        return False

    def nonzero(self, term: Form) -> bool:
        """Whether it is surely not 0."""
        if self._demands("nonzero", term) or self.positive(term):
            return True
        match term:
            case ["Const", str(c)]:
                return float(c) != 0
            case ["Mul", a, b]:
                return self.nonzero(a) and self.nonzero(b)
            case ["Recip" | "Abs", a]:
                return self.nonzero(a)
        return False
