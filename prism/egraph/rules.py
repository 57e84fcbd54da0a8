"""Rule files: finding, reading and checking them. Rules are data that other people write, so errors name file:line.

A rule is one top-level form (`rule`, `rewrite`, `birewrite`) with a `:name` and a `:ruleset`, and directly above it a
comment with its mathematics and its floating-point class:

    ;; reassociates: sum_k(f*g) = f * sum_k g  when k is not an axis of f
    (rule ... :ruleset explore :name "sum-pull")

A file may also declare pointwise operators, which its rules, and those of later files, may speak of:

    (operator softcap (x c) "c * torch.tanh(x / c)")

Forms are parsed one at a time, because egglog's syntax tree carries the whole source text in every node.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from prism.egraph.language import EXPLORE, PRELUDE, RULESETS, SIMPLIFY
from prism.egraph.operators import constructor, declaration, definitions, read_operator
from prism.errors import RuleError
from prism.program.operators import Operator

if TYPE_CHECKING:
    from prism.egraph.bindings import EGraph


_ONE_SIDED = re.compile(r"\bNaN\b.* where\b")


class FpClass(StrEnum):
    """What a rule does to floating-point results."""

    EXACT = "exact"
    REASSOCIATES = "reassociates"
    DOMAIN = "domain"  # changes where overflow or NaN happens

    @property
    def within(self) -> frozenset[FpClass]:
        """What may be used where this much may change: each class includes those before it."""
        order = list(FpClass)
        return frozenset(order[: order.index(self) + 1])


@dataclass(frozen=True, slots=True)
class Rule:
    """One named rule."""

    name: str  # unique among the loaded rules
    ruleset: str  # the stage of the schedule that it belongs to
    fp_class: FpClass  # its floating-point class
    formula: str  # its mathematics, from the comment
    file: str  # the file's name; `line` its first line there
    line: int  # counted from 1
    text: str  # the form, as written
    sha256: str  # of `text`
    operators: tuple[Operator, ...] = ()  # the declared operators that it speaks of
    definition: bool = False  # whether it is what a declaration says; nobody need test it

    @property
    def partial(self) -> bool:
        """Whether, as its formula says, one side alone is undefined somewhere: what it proves is so elsewhere."""
        return self.fp_class is FpClass.DOMAIN and bool(_ONE_SIDED.search(self.formula))


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules that were read and type-checked together."""

    rules: tuple[Rule, ...]  # in the order of files and lines
    families: tuple[str, ...]  # the files' stems, in order
    hashes: tuple[tuple[str, str], ...]  # file name to the sha256 of its bytes
    operators: tuple[Operator, ...] = ()  # declared in the files, in order

    def allowed(self, fp: FpClass) -> RuleSet:
        """The rules of the class and those that change less."""
        return replace(self, rules=tuple(r for r in self.rules if r.fp_class in fp.within))

    def partial(self, names: Collection[str]) -> bool:
        """Whether one of the rules of those names is partial."""
        return any(r.partial for r in self.rules if r.name in names)

    def classes(self, names: Collection[str]) -> tuple[str, ...]:
        """The floating-point classes of the rules of those names, in the order of FpClass."""
        found = {r.fp_class for r in self.rules if r.name in names}
        return tuple(c.value for c in FpClass if c in found)

    def by_name(self, name: str) -> Rule:
        """The rule of that name. Raises KeyError: there is none."""
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Form:
    """A top-level form of a file: its text, its first line, and the comment lines directly above it."""

    text: str
    line: int
    comment: tuple[str, ...]


def rule_files() -> tuple[Path, ...]:
    """The rule files that ship with prism, sorted by name: beside the package when installed, else the checkout's.

    Raises:
        RuleError: there are none.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "rules", package.parent / "rules"):
        found = tuple(sorted(folder.glob("*.egg")))
        if found:
            return found
    raise RuleError("the rule files are missing", where=str(package / "rules"), fix="install prism again")


def load_rules(paths: Sequence[Path]) -> RuleSet:
    """Read rule files and type-check them together.

    Raises:
        RuleError: a file cannot be read, two have one name, or a rule does not parse, type-check or say what it must.
    """
    loaded = read_rule_files(paths)
    # A scratch e-graph type-checks; it is thrown away, because a failed command leaves it half changed.
    install(loaded)
    return loaded


def read_rule_files(paths: Sequence[Path]) -> RuleSet:
    """Read rule files, for who installs them at once, which type-checks them.

    Raises:
        RuleError: a file cannot be read, two have one name, or a rule does not parse or say what it must.
    """
    rules: dict[str, Rule] = {}
    operators: dict[str, Operator] = {}
    hashes: list[tuple[str, str]] = []
    for path in paths:
        data, text = _text(path)
        if any(name == path.name for name, _ in hashes):
            raise RuleError(
                f"two rule files are called {path.name}",
                where=str(path),
                why="records name them",
                fix="rename one of them",
            )
        hashes.append((path.name, hashlib.sha256(data).hexdigest()))
        for form in declarations_first(forms(text, str(path))):
            for rule in read_form(form, path, operators):
                if rule.name in rules:
                    first = rules[rule.name]
                    raise RuleError(
                        f"two rules are called {rule.name!r}",
                        where=f"{path}:{form.line}",
                        why=f"the other is at {first.file}:{first.line}",
                        fix="rename one of them",
                    )
                rules[rule.name] = rule
    families = tuple(p.stem for p in paths)
    return RuleSet(tuple(rules.values()), families, tuple(hashes), tuple(operators.values()))


def read_operators(paths: Sequence[Path]) -> tuple[Operator, ...]:
    """The operators that rule files declare; their rules are not looked at.

    Raises:
        RuleError: a file cannot be read, or a declaration is not right.
    """
    operators: dict[str, Operator] = {}
    for path in paths:
        for form in forms(_text(path)[1], str(path)):
            if _OPERATOR.match(form.text):
                read_form(form, path, operators)
    return tuple(operators.values())


def _text(path: Path) -> tuple[bytes, str]:
    try:
        data = path.read_bytes()
        return data, data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError("the rule file cannot be read", where=str(path), why=str(error)) from error


def install(rules: RuleSet) -> EGraph:
    """A new egglog `EGraph` with the language and the rules in it. Raises RuleError: egglog does not accept a rule."""
    from prism.egraph.bindings import EGraph

    graph = EGraph()
    graph.run_program(*graph.parse_program(PRELUDE, "prism/egraph/language.py"))
    for op in rules.operators:
        graph.run_program(*graph.parse_program(declaration(op), op.where))
    for rule in rules.rules:
        refused = refusal(graph, rule)
        if refused is not None:
            raise RuleError(
                f"egglog does not accept rule {rule.name!r}",
                where=f"{rule.file}:{refused.line}",
                why=refused.message,
                fix="see prism/egraph/language.py for the constructors, relations and rulesets",
            )
    return graph


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why egglog does not accept a rule, and where in the file."""

    message: str
    line: int
    column: int


def refusal(graph: EGraph, rule: Rule) -> Refusal | None:
    """Add the rule to the e-graph; why that failed, after which the e-graph is of no more use."""
    try:
        # Blank lines put the form where it stands in its file, so that egglog's positions are the file's.
        graph.run_program(*graph.parse_program("\n" * (rule.line - 1) + rule.text, rule.file))
    except BaseException as error:
        # egglog panics with pyo3's PanicException, which is no Exception.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        found = re.search(r"In (\d+):(\d+)", str(getattr(error, "context", "")))
        line, column = (int(found.group(1)), int(found.group(2))) if found else (rule.line, 1)
        return Refusal(_message(error), line, column)
    return None


def _message(error: BaseException) -> str:
    """egglog's message, without its positions and its list of alternatives."""
    text = str(getattr(error, "context", "") or error)
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("In ")]
    said = " ".join(lines)[:300] or type(error).__name__
    unknown = re.fullmatch(r"Unbound function (\w+)", said.strip())
    if unknown:
        said += f'; declare it, as (operator {unknown[1].lower()} (x) "..."); docs/rules.md says what there is'
    return said


def read_form(form: Form, path: Path, operators: dict[str, Operator]) -> tuple[Rule, ...]:
    """The rule of a form, or the definitions of the operator that it declares, which joins `operators`.

    Raises:
        RuleError: it does not say what it must.
    """
    if not _OPERATOR.match(form.text):
        return (read_rule(form, path, operators),)
    op = read_operator(form.text, form.line, str(path), operators)
    operators[constructor(op.name)] = op
    found = []
    for name, text, formula in definitions(op):
        digest = hashlib.sha256(text.encode()).hexdigest()
        rule = Rule(name, SIMPLIFY, FpClass.EXACT, formula, str(path), form.line, text, digest, (op,), definition=True)
        found.append(rule)
    return tuple(found)


def declarations_first(found: Iterable[Form]) -> list[Form]:
    """The forms of a file, those that declare operators before the others."""
    return sorted(found, key=lambda form: not _OPERATOR.match(form.text))


_OPERATOR = re.compile(r"\(\s*operator\b")
_HEAD = re.compile(r"\(\s*([A-Z]\w*)")
_CLASS = re.compile(r"^;;\s*(exact|reassociates|domain):\s*(.+)$")
_NAME = re.compile(r':name\s+"([^"]*)"')
_RULESET = re.compile(r":ruleset\s+([^\s()]+)")


def read_rule(form: Form, path: Path, operators: Mapping[str, Operator] | None = None) -> Rule:
    """A rule from its form and comment, not type-checked; `operators` are those that are known, by their constructors.

    Raises:
        RuleError: it does not say what it must.
    """
    where = f"{path}:{form.line}"
    head = form.text[1:].split(None, 1)[0].rstrip(")") if len(form.text) > 1 else ""
    if head not in ("rule", "rewrite", "birewrite"):
        raise RuleError(f"({head} ...) is not a rule", where=where, fix="use rule, rewrite, birewrite or operator")
    name = _NAME.search(form.text)
    if name is None:
        raise RuleError("the rule has no name", where=where, fix='add :name "..."')
    ruleset = _RULESET.search(form.text)
    if ruleset is None or ruleset.group(1) not in RULESETS:
        given = "it has none" if ruleset is None else f"there is no ruleset {ruleset.group(1)!r}"
        raise RuleError(
            f"rule {name.group(1)!r} is in no ruleset of the schedule",
            where=where,
            why=given,
            fix=f"add :ruleset with one of {', '.join(RULESETS)}",
        )
    marked = next((n for n, line in enumerate(form.comment) if _CLASS.match(line)), None)
    if marked is None:
        raise RuleError(
            f"rule {name.group(1)!r} does not say its floating-point class",
            where=where,
            why="the comment directly above it must be `;; exact|reassociates|domain: formula`",
            fix="add the comment",
        )
    match = _CLASS.match(form.comment[marked])
    assert match is not None
    fp_class = FpClass(match.group(1))
    formula = " ".join([match.group(2), *(line.lstrip("; ") for line in form.comment[marked + 1 :])])
    if fp_class is FpClass.DOMAIN and ruleset.group(1) == EXPLORE:
        # The generator may use whatever `explore` derives, and must not emit a form that overflows where the
        # reference does not.
        raise RuleError(
            f"rule {name.group(1)!r} is of class domain and in ruleset {EXPLORE}", where=where, fix="move it to expand"
        )
    digest = hashlib.sha256(form.text.encode()).hexdigest()
    known = operators or {}
    used = tuple([known[c] for c in dict.fromkeys(_HEAD.findall(form.text)) if c in known])
    return Rule(name.group(1), ruleset.group(1), fp_class, formula, str(path), form.line, form.text, digest, used)


def forms(text: str, file: str) -> Iterator[Form]:
    """The top-level forms of a rule file. Raises RuleError: parentheses or quotes do not match."""
    depth, start, start_line, line = 0, 0, 1, 1
    quoted = False
    comment: list[str] = []
    position = 0
    while position < len(text):
        c = text[position]
        if quoted:
            if c == "\\":
                position += 1
            elif c == '"':
                quoted = False
        elif c == ";":
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            if depth == 0:
                comment.append(text[position:end].strip())
            position = end
            continue
        elif c == '"':
            quoted = True
        elif c == "(":
            if depth == 0:
                start, start_line = position, line
            depth += 1
        elif c == ")":
            depth -= 1
            if depth < 0:
                raise RuleError("a closing parenthesis has no opening one", where=f"{file}:{line}")
            if depth == 0:
                yield Form(text[start : position + 1], start_line, tuple(comment))
                comment = []
        elif depth == 0 and not c.isspace():
            raise RuleError(f"unexpected {c!r} outside a form", where=f"{file}:{line}")
        if c == "\n":
            line += 1
            if depth == 0 and text[position + 1 : position + 2] == "\n":
                comment = []  # a blank line ends a comment
        position += 1
    if depth or quoted:
        raise RuleError("the form does not end", where=f"{file}:{start_line}", why="a parenthesis or quote is missing")
