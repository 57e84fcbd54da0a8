"""Certificates: reading one, and following its steps."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prism.checker.rules import Rule, instance, read_rules
from prism.checker.terms import REDUCTIONS, CertificateError, Fact, Index, Term, Terms

SCHEMA = "prism.derivation/1"

# By how much, as a share, the constants of one output's derivation may change in all. The prover keeps 40 bits of each.
TOLERANCE = 2.0**-36


STATED = frozenset({"positive", "nonneg", "nonzero", "boolean"})
"""What may be taken for granted of a tensor's elements, but for bounds: ["lower", 0.5], ["upper", 2]."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step as it was applied."""

    kind: str  # rule, rename or constant
    rule: str  # of a rule step its name, else empty
    forward: bool  # the direction of a rule step
    before: Term  # what stood at the positions
    after: Term  # what stands there now
    whole: Term  # the whole term afterwards


@dataclass(frozen=True, slots=True)
class Checked:
    """A certificate that was accepted."""

    terms: Terms
    # For each output its name, reference, steps and denotation.
    outputs: tuple[tuple[str, Term, tuple[Step, ...], Term], ...]


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of a certificate, its own `sha256` left out."""
    rest = {k: v for k, v in body.items() if k != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check(data: bytes, rule_texts: Mapping[str, bytes]) -> Checked:
    """Accept a certificate, or name the first thing that is wrong with it.

    Raises:
        CertificateError: what is wrong, and where.
    """
    try:
        body = json.loads(data)
        if body["schema"] != SCHEMA:
            raise CertificateError(f"not a {SCHEMA} certificate")
        if body["sha256"] != digest(body):
            raise CertificateError("its digest is another one: it was altered")
        if body.keys() - {"stated"} != {"schema", "rules", "axes", "terms", "outputs", "sha256"}:
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
    reader = Reader(Terms(dict(body["axes"]), stated_in(body)), rules)
    reader.read_table(body["terms"])
    outputs = tuple([reader.output(o) for o in body["outputs"]])
    if not outputs:
        raise CertificateError("it proves nothing")
    unused = [n for n in range(len(reader.table)) if n not in reader.used]
    if unused:
        raise CertificateError(f"term {unused[0]} is not used")
    if reader.files != set(body["rules"]):
        raise CertificateError("it names rule files that it does not use")
    if not reader.terms.stated.keys() <= {t.data[0] for t in reader.table if t.op == "Read"}:
        raise CertificateError("it takes something for granted of a tensor that it does not read")
    mentioned = reader.cited.union(*[t.axes for t in reader.table])
    mentioned |= {str(t.data) for t in reader.table if t.op in REDUCTIONS}
    if mentioned != set(body["axes"]):
        raise CertificateError("it declares axes that it does not use")
    return Checked(reader.terms, outputs)


def stated_in(body: Mapping[str, Any]) -> dict[str, tuple[Fact, ...]]:
    """What a certificate takes for granted of tensors' elements, by their names; whoever trusts it has to agree.

    Raises:
        CertificateError: it is no such thing.
    """
    found = {}
    for tensor, facts in body.get("stated", {}).items():
        if not isinstance(facts, list) or not facts:
            raise CertificateError(f"of {tensor} it takes nothing for granted")
        found[_text(tensor)] = tuple(_fact(tensor, f) for f in facts)
    return found


def _fact(tensor: str, fact: Any) -> Fact:
    match fact:
        case str() if fact in STATED:
            return fact
        case [("lower" | "upper") as end, float() | int() as x] if math.isfinite(x):
            return end, float(x)
    known = ", ".join(sorted(STATED))
    raise CertificateError(f"of {tensor} it takes for granted what is no bound and none of {known}")


@dataclass(slots=True)
class Reader:
    """A certificate while it is read."""

    terms: Terms
    rules: Mapping[str, Rule]  # that it may cite, by name
    table: list[Term] = field(default_factory=list)  # its rows
    used: set[int] = field(default_factory=set)  # numbers of the rows that something refers to
    files: set[str] = field(default_factory=set)  # of the rules that it cites
    cited: set[str] = field(default_factory=set)  # axes that its substitutions name
    drift: float = 0.0  # by how much constants have changed since the output's reference, as a share

    def read_table(self, rows: Sequence[Any]) -> None:
        """Take in the table of terms."""
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
        """Follow the steps of an output."""
        if output.keys() != {"name", "reference", "denotation", "steps"}:
            raise CertificateError("an output has other fields")
        name = _text(output["name"])
        start, end = self._mark(output["reference"]), self._mark(output["denotation"])
        whole, self.drift = start, 0.0
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
        if not all(isinstance(p, list) for p in (raw["positions"], *raw["positions"])):
            raise CertificateError("its positions are no lists")
        paths = [tuple(p) for p in raw["positions"]]
        if not paths or paths != sorted(set(paths)):
            raise CertificateError("its positions are not in order")
        if any(b[: len(a)] == a for a, b in itertools.pairwise(paths)):
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
            if kind == "constant":
                self._same_number(before.value, after.value)
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
        self.cited |= {str(given[v]) for v in axes}
        forward = raw["direction"] == "forward"
        if (left if forward else right) is not before:
            raise CertificateError("the rule's instance is not what stands there")
        return (right if forward else left), rule.name, forward

    def _same_number(self, a: float | None, b: float | None) -> None:
        if a is None or b is None:
            raise CertificateError("there is a term that is no number")
        self.drift += abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0
        if self.drift > TOLERANCE:
            raise CertificateError("the two are different numbers")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CertificateError(f"{value!r} is no text")
    return value
