"""Checks derivations, alone: it imports neither egglog nor anything of the prover, only the standard library.

A certificate is JSON, schema `prism.derivation/1`:

    rules     rule file to the SHA-256 of its bytes, for the files whose rules are cited
    axes      name of an axis to its extent
    terms     a table, children before parents: [op, child, ...]; [op, axis, child] for Sum, Max, Min and Prod;
              ["Read", tensor, [index, ...]], ["Pos", index], ["Const", number], ["Size", extent], where an index is
              [[[axis, coefficient], ...], offset]; nothing twice, nothing unused
    outputs   for each output: name, `reference` and `denotation` (rows of the table), and the steps that lead from the
              one to the other; every step replaces what stands at its positions (equal terms, paths of child numbers)
    sha256    of all of the above, against accidents

A step is one of

    rule      an instance of a named rule of a rule file, `forward` or `backward`, under the substitution that it gives:
              a row for each variable of the rule that is not defined by others, an axis' name for each axis variable
    rename    the same term up to the names of bound axes; `to` is its row
    constant  two terms without axes and reads that come to the same number within 2^-19 (so much the prover cuts off)

What a rule asks of its variables (free axes, finite, positive, ...) is worked out here, from the term alone; the rules
that derive such facts for the prover are not used. The rules themselves are read from their files' text.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

SCHEMA = "prism.derivation/1"
REDUCTIONS = frozenset({"Sum", "Max", "Min", "Prod"})
LEAVES = frozenset({"Read", "Pos", "Const", "Size"})
TOLERANCE = 2.0**-19

Sexp: TypeAlias = "str | float | list[Sexp]"  # a quoted string keeps its quotes
Index: TypeAlias = "tuple[tuple[tuple[str, str], ...], str]"  # ((axis, coefficient), ...), offset
_NO_AXES: frozenset[str] = frozenset()


class CertificateError(Exception):
    """The certificate is not what it claims; the message names the first bad place."""


# --- terms ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A term; within one `Terms`, equal terms are one object.

    Attributes:
        id: its number there.
        op: constructor.
        data: of a leaf what it names, of a reduction its axis, else None.
        kids: children.
        axes: its free axes.
        facts: what is known of its value: finite, positive, nonneg, nonzero, boolean.
        value: the number that it is, where it has neither reads nor axes.
        size: how many nodes it has, as a tree.
    """

    id: int
    op: str
    data: Any
    kids: tuple[Term, ...]
    axes: frozenset[str]
    facts: frozenset[str]
    value: float | None
    size: int


@dataclass(slots=True)
class Terms:
    """All terms of a check.

    Attributes:
        extents: of the axes, by name.
        rows: by number.
    """

    extents: dict[str, str] = field(default_factory=dict)
    rows: list[Term] = field(default_factory=list)
    _known: dict[tuple[Any, ...], Term] = field(default_factory=dict)

    def make(self, op: str, data: Any, kids: tuple[Term, ...]) -> Term:
        """The term."""
        # 0.0 and -0.0 are equal and NaN is not: a constant is told apart by its text.
        key = (op, repr(data) if op == "Const" else data, *[k.id for k in kids])
        known = self._known.get(key)
        if known is None:
            value = _value(op, data, kids)
            facts = _closed(_facts(op, data, kids, value))
            size = 1 + sum(k.size for k in kids)
            known = Term(len(self.rows), op, data, kids, _axes(op, data, kids), facts, value, size)
            self.rows.append(known)
            self._known[key] = known
        return known

    def const(self, value: float) -> Term:
        """A constant."""
        return self.make("Const", value + 0.0, ())

    def length(self, axis: str) -> Term:
        """How long an axis is, as a term."""
        extent = self.extents[axis]
        return self.const(float(extent)) if extent.isdecimal() else self.make("Size", extent, ())

    def at(self, term: Term, path: Sequence[int]) -> Term:
        """What stands at a path.

        Raises:
            CertificateError: there is no such path.
        """
        for n in path:
            if not 0 <= n < len(term.kids):
                raise CertificateError(f"there is no position {list(path)}")
            term = term.kids[n]
        return term

    def put(self, term: Term, path: Sequence[int], new: Term) -> Term:
        """The term with something else at a path."""
        if not path:
            return new
        kids = list(term.kids)
        kids[path[0]] = self.put(kids[path[0]], path[1:], new)
        return self.make(term.op, term.data, tuple(kids))

    def renamed(self, term: Term, names: Mapping[str, str]) -> Term:
        """The term with free axes renamed; no bound axis may have one of the new names."""
        done: dict[tuple[int, frozenset[tuple[str, str]]], Term] = {}

        def visit(t: Term, env: Mapping[str, str]) -> Term:
            env = {a: b for a, b in env.items() if a in t.axes}
            if not env:
                return t
            key = t.id, frozenset(env.items())
            if key not in done:
                if t.op in REDUCTIONS and t.data in env.values():
                    raise CertificateError(f"renaming to {t.data} would capture it")
                kids = tuple([visit(k, env) for k in t.kids])
                done[key] = self.make(t.op, rename_data(t, env), kids)
            return done[key]

        return visit(term, names)

    def same(self, a: Term, b: Term) -> bool:
        """Whether two terms differ by the names of their bound axes alone."""
        seen: set[tuple[Any, ...]] = set()

        def visit(x: Term, y: Term, left: Mapping[str, str], right: Mapping[str, str]) -> bool:
            left = {k: v for k, v in left.items() if k in x.axes}
            right = {k: v for k, v in right.items() if k in y.axes}
            if not left and not right and x is y:
                return True
            key = (x.id, y.id, frozenset(left.items()), frozenset(right.items()))
            if key in seen:
                return True
            if x.op != y.op or len(x.kids) != len(y.kids):
                return False
            if x.op in REDUCTIONS:
                if self.extents[x.data] != self.extents[y.data]:
                    return False
                mark = f"\0{len(left)},{len(right)},{x.id},{y.id}"
                fine = visit(x.kids[0], y.kids[0], {**left, x.data: mark}, {**right, y.data: mark})
            elif x.op in LEAVES:
                fine = repr(rename_data(x, left)) == repr(rename_data(y, right))
            else:
                fine = all(visit(p, q, left, right) for p, q in zip(x.kids, y.kids, strict=True))
            if fine:
                seen.add(key)
            return fine

        return visit(a, b, {}, {})


def rename_data(t: Term, names: Mapping[str, str]) -> Any:
    """What a leaf names, under other names of axes."""
    if t.op == "Read":
        return t.data[0], tuple([_rename_index(i, names) for i in t.data[1]])
    return _rename_index(t.data, names) if t.op == "Pos" else t.data


def _rename_index(index: Index, names: Mapping[str, str]) -> Index:
    terms, offset = index
    return tuple(sorted((names.get(a, a), c) for a, c in terms)), offset


def _axes(op: str, data: Any, kids: tuple[Term, ...]) -> frozenset[str]:
    if op == "Read":
        return frozenset(a for terms, _ in data[1] for a, _ in terms)
    if op == "Pos":
        return frozenset(a for a, _ in data[0])
    if not kids:
        return _NO_AXES
    found = kids[0].axes.union(*[k.axes for k in kids[1:]])
    return found - {data} if op in REDUCTIONS else found


def _value(op: str, data: Any, kids: tuple[Term, ...]) -> float | None:
    """The number; None where it is none, not finite, or where rounding could have lost it."""
    if op == "Const":
        return data if math.isfinite(data) else None
    args = [k.value for k in kids]
    match op, args:
        case "Recip", [float(x)] if abs(x) > 1e-290:
            return 1.0 / x
        case "Sqrt", [float(x)] if x >= 0:
            return math.sqrt(x)
        case "Mul", [float(x), float(y)] if 1e-200 < abs(x * y) < 1e200:
            return x * y
        case "Add", [float(x), float(y)] if min(abs(x + y), abs(x), abs(y)) >= 0.01 * max(abs(x), abs(y)):
            return x + y
        case "Max2", [float(x), float(y)]:
            return max(x, y)
        case "Min2", [float(x), float(y)]:
            return min(x, y)
    return None


def _facts(op: str, data: Any, kids: tuple[Term, ...], value: float | None) -> set[str]:
    """What is known of the value, for finite inputs, over the reals."""
    if value is not None:
        return {"finite", "positive" if value > 0 else "nonzero" if value < 0 else "nonneg"}
    if op in ("Read", "Pos"):
        return {"finite"}
    if op == "Size":
        return {"finite", "positive"}
    if op in ("Lt", "Le", "Eq", "And", "Or", "Not", "IsNan"):
        return {"boolean"}
    args = [k.facts for k in kids]
    if op == "Where":
        args = args[1:]
    every = frozenset.intersection(*args) if args else frozenset()
    some = frozenset().union(*args)
    finite = "finite" in every
    found: set[str] = set()
    match op:
        case "Add":
            found = {"finite", "nonneg"} & every
            if "nonneg" in every and "positive" in some:
                found.add("positive")
        case "Mul":
            found = {"finite", "positive", "nonneg", "nonzero"} & every
            if kids[0] is kids[1]:
                found.add("nonneg")
        case "Recip":
            found = {"nonneg"} & every
            if finite:
                found |= {"positive", "nonzero"} & every
                if "nonzero" in every:
                    found.add("finite")
        case "Exp":
            found = {"finite", "positive", "nonneg"} if finite else {"nonneg"}
        case "Sigmoid":
            found = {"finite", "positive", "nonneg"} if finite else {"nonneg"}
        case "Sqrt":
            found = {"nonneg"} | ({"positive"} & every)
            if finite and "nonneg" in every:
                found.add("finite")
        case "Log":
            found = {"finite"} if finite and "positive" in every else set()
        case "Abs":
            found = {"nonneg"} | ({"finite"} & every)
            if "nonzero" in every:
                found.add("positive")
        case "Tanh" | "Erf" | "Sin" | "Cos" | "Min2":
            found = {"finite"} & every
        case "Max2":
            found = ({"finite"} & every) | ({"positive", "nonneg"} & some)
        case "Where" | "Sum" | "Max":
            found = {"finite", "positive", "nonneg"} & every
        case "Min":
            found = {"finite", "nonneg"} & every
        case "Prod":
            found = {"finite", "positive"} & every
    return found


def _closed(facts: set[str]) -> frozenset[str]:
    if "boolean" in facts:
        facts |= {"finite", "nonneg"}
    if "positive" in facts:
        facts |= {"nonneg", "nonzero"}
    return frozenset(facts)


# --- rules ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rule file says.

    Attributes:
        name: of the rule.
        file: that it stands in.
        left: the term that it takes.
        right: the term that it gives.
        facts: what must hold, `(= t left)` not among them.
        defined: variables that the facts define, in an order in which each needs only earlier ones.
        free: the other variables: those of terms, and those of axes.
        both: whether the prover applies it in both directions.
    """

    name: str
    file: str
    left: Sexp
    right: Sexp
    facts: tuple[list[Sexp], ...]
    defined: tuple[tuple[str, Sexp], ...]
    free: tuple[frozenset[str], frozenset[str]]
    both: bool = False


_TOKEN = re.compile(r'\s+|;[^\n]*|([()])|("[^"]*")|([^\s()";]+)')


def sexps(text: str) -> Iterator[Sexp]:
    """The forms of a rule file.

    Raises:
        CertificateError: the parentheses do not match.
    """
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
    """The rules of a file that equate two terms, by name."""
    found: dict[str, Rule] = {}
    for form in sexps(text):
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

    Args:
        rule: the rule.
        terms: where the terms go.
        given: a term for each free variable, a name for each axis variable.

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
        case ("finite" | "positive" | "nonneg" | "nonzero" | "boolean"), [Term() as t]:
            return head in t.facts
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


# --- certificates --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One step as it was applied.

    Attributes:
        kind: rule, rename or constant.
        rule: of a rule step its name, else empty.
        forward: the direction of a rule step.
        before: what stood at the positions.
        after: what stands there now.
        whole: the whole term afterwards.
    """

    kind: str
    rule: str
    forward: bool
    before: Term
    after: Term
    whole: Term


@dataclass(frozen=True, slots=True)
class Checked:
    """A certificate that was accepted.

    Attributes:
        terms: its terms.
        outputs: for each output its name, reference, steps and denotation.
    """

    terms: Terms
    outputs: tuple[tuple[str, Term, tuple[Step, ...], Term], ...]


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of a certificate, its own `sha256` left out."""
    rest = {k: v for k, v in body.items() if k != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check(data: bytes, rule_texts: Mapping[str, bytes]) -> Checked:
    """Accept a certificate, or name the first thing that is wrong with it.

    Args:
        data: the certificate.
        rule_texts: the rule files by name.

    Raises:
        CertificateError: what is wrong, and where.
    """
    try:
        body = json.loads(data)
        if body["schema"] != SCHEMA:
            raise CertificateError(f"not a {SCHEMA} certificate")
        if body["sha256"] != digest(body):
            raise CertificateError("its digest is another one: it was altered")
        if body.keys() != {"schema", "rules", "axes", "terms", "outputs", "sha256"}:
            raise CertificateError("it has other fields than a certificate")
        return _check(body, rule_texts)
    except CertificateError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise CertificateError(f"the certificate is damaged: {type(error).__name__}: {error}") from error


def _check(body: Mapping[str, Any], rule_texts: Mapping[str, bytes]) -> Checked:
    rules: dict[str, Rule] = {}
    for file, expected in body["rules"].items():
        if file not in rule_texts:
            raise CertificateError(f"there is no rule file {file}")
        found = hashlib.sha256(rule_texts[file]).hexdigest()
        if found != expected:
            raise CertificateError(f"rule file {file} has SHA-256 {found[:12]}…, it was {str(expected)[:12]}…")
        rules |= read_rules(rule_texts[file].decode(), file)
    if not all(isinstance(a, str) and isinstance(e, str) for a, e in body["axes"].items()):
        raise CertificateError("an axis or its extent is no text")
    reader = _Reader(Terms(dict(body["axes"])), rules)
    reader.read_table(body["terms"])
    outputs = tuple([reader.output(o) for o in body["outputs"]])
    if not outputs:
        raise CertificateError("it proves nothing")
    unused = [n for n in range(len(reader.table)) if n not in reader.used]
    if unused:
        raise CertificateError(f"term {unused[0]} is not used")
    if reader.files != set(body["rules"]):
        raise CertificateError("it names rule files that it does not use")
    mentioned = {a for t in reader.table for a in (t.axes | ({t.data} if t.op in REDUCTIONS else set()))}
    mentioned |= reader.cited
    if mentioned != set(body["axes"]):
        raise CertificateError("it declares axes that it does not use")
    return Checked(reader.terms, outputs)


@dataclass(slots=True)
class _Reader:
    """A certificate while it is read."""

    terms: Terms
    rules: Mapping[str, Rule]
    table: list[Term] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    cited: set[str] = field(default_factory=set)

    def read_table(self, rows: Sequence[Any]) -> None:
        arities: dict[str, int] = {}
        for n, row in enumerate(rows):
            try:
                made = self._row(row)
            except (CertificateError, ValueError, TypeError, IndexError) as error:
                raise CertificateError(f"term {n}: {error}") from error
            if made.id != n:
                raise CertificateError(f"term {n} is term {made.id} again")
            if arities.setdefault(made.op, len(made.kids)) != len(made.kids):
                raise CertificateError(f"term {n}: {made.op} has another number of arguments elsewhere")
            self.table.append(made)

    def _row(self, row: Sequence[Any]) -> Term:
        op, *rest = row
        match op:
            case "Read":
                tensor, index = rest
                return self.terms.make(op, (_text(tensor), tuple([self._index(i) for i in index])), ())
            case "Pos":
                return self.terms.make(op, self._index(rest[0]), ())
            case "Const":
                return self.terms.const(float(rest[0]))
            case "Size":
                return self.terms.make(op, _text(rest[0]), ())
            case _ if op in REDUCTIONS:
                axis, kid = rest
                if axis not in self.terms.extents:
                    raise CertificateError(f"there is no axis {axis}")
                return self.terms.make(op, axis, (self._mark(kid),))
        if not rest or not _text(op)[:1].isupper():
            raise CertificateError(f"there is no operation {op} without arguments")
        return self.terms.make(op, None, tuple([self._mark(k) for k in rest]))

    def _index(self, index: Any) -> Index:
        terms, offset = index
        for axis, _ in terms:
            if axis not in self.terms.extents:
                raise CertificateError(f"there is no axis {axis}")
        return tuple(sorted((a, _text(c)) for a, c in terms)), _text(offset)

    def _mark(self, n: Any) -> Term:
        """The row, which is used."""
        if type(n) is not int or not 0 <= n < len(self.table):
            raise CertificateError(f"there is no term {n} before")
        self.used.add(n)
        return self.table[n]

    def output(self, output: Mapping[str, Any]) -> tuple[str, Term, tuple[Step, ...], Term]:
        if output.keys() != {"name", "reference", "denotation", "steps"}:
            raise CertificateError("an output has other fields")
        name = _text(output["name"])
        start, end = self._mark(output["reference"]), self._mark(output["denotation"])
        whole = start
        steps: list[Step] = []
        for n, raw in enumerate(output["steps"]):
            try:
                step = self._step(whole, raw)
            except CertificateError as error:
                what = raw.get("rule") or raw.get("kind") if isinstance(raw, dict) else raw
                raise CertificateError(f"output {name}, step {n + 1} ({what}): {error}") from error
            steps.append(step)
            whole = step.whole
        if whole is not end:
            raise CertificateError(f"output {name}: the steps end elsewhere than at the denotation")
        return name, start, tuple(steps), end

    def _step(self, whole: Term, raw: Mapping[str, Any]) -> Step:
        paths = [tuple(p) for p in raw["positions"]]
        if not paths or paths != sorted(set(paths)):
            raise CertificateError("its positions are not in order")
        if any(b[: len(a)] == a for a, b in zip(paths, paths[1:], strict=False)):
            raise CertificateError("one position lies within another")
        before = self.terms.at(whole, paths[0])
        if any(self.terms.at(whole, p) is not before for p in paths):
            raise CertificateError("different terms stand at its positions")
        after, rule, forward = self._after(before, raw)
        if after is before:
            raise CertificateError("it changes nothing")
        for p in paths:
            whole = self.terms.put(whole, p, after)
        return Step(raw["kind"], rule, forward, before, after, whole)

    def _after(self, before: Term, raw: Mapping[str, Any]) -> tuple[Term, str, bool]:
        kind = raw["kind"]
        if kind in ("rename", "constant"):
            if raw.keys() != {"kind", "positions", "to"}:
                raise CertificateError("it has other fields")
            after = self._mark(raw["to"])
            if kind == "rename" and not self.terms.same(before, after):
                raise CertificateError("the two differ by more than the names of bound axes")
            if kind == "constant" and not _close(before.value, after.value):
                raise CertificateError("the two are different numbers")
            return after, "", True
        if kind != "rule" or raw.keys() != {"kind", "rule", "direction", "positions", "substitution"}:
            raise CertificateError("it is no step, or has other fields")
        if raw["direction"] not in ("forward", "backward"):
            raise CertificateError(f"there is no direction {raw['direction']}")
        if raw["rule"] not in self.rules:
            raise CertificateError("the rule files have no such rule")
        rule = self.rules[raw["rule"]]
        self.files.add(rule.file)
        wanted, axes = rule.free
        given = {v: self._mark(x) if v in wanted else x for v, x in raw["substitution"].items()}
        left, right = instance(rule, self.terms, given)
        self.cited |= {given[v] for v in axes}
        forward = raw["direction"] == "forward"
        if (left if forward else right) is not before:
            raise CertificateError("the rule's instance is not what stands there")
        return (right if forward else left), rule.name, forward


def _close(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and abs(a - b) <= TOLERANCE * max(abs(a), abs(b))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CertificateError(f"{value!r} is no text")
    return value
