"""Expressions as the terms of certificates, and back; a certificate as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prism.checker import REDUCTIONS, SCHEMA, Term, Terms, digest
from prism.checker import Index as Written
from prism.egraph import language
from prism.egraph.language import TensorFacts
from prism.errors import IllegalIRError
from prism.program.extents import Extent, ExtentError, from_text
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Expr, Map, Position, Read, Reduce, ReduceKind, Size, walk

_OPS = {constructor: op for op, constructor in language.CONSTRUCTORS.items()}
_KINDS = {constructor: kind for kind, constructor in language.REDUCTIONS.items()}


@dataclass(slots=True)
class Encoder:
    """Writes expressions as terms."""

    terms: Terms  # where they go
    _done: dict[int, tuple[Expr, Term]] = field(default_factory=dict)

    def of(self, expr: Expr) -> Term:
        """The term.

        Raises:
            IllegalIRError: an index is not affine, two axes have one name, or the op has no constructor.
        """
        for e in walk(expr):
            if id(e) not in self._done:
                self._done[id(e)] = e, self._node(e)
        return self._done[id(expr)][1]

    def _node(self, e: Expr) -> Term:
        kids = tuple([self._done[id(c)][1] for c in e.children])
        match e:
            case Read(tensor, index):
                return self.terms.make("Read", (tensor, tuple(map(self._index, index))), ())
            case Position(index):
                return self.terms.make("Pos", self._index(index), ())
            case Const(value):
                return self.terms.const(value)
            case Size(extent):
                return self.terms.make("Size", str(extent), ())
            case Map("neg", _):
                return self.terms.make("Mul", None, (self.terms.const(-1.0), *kids))
            case Map(op, _) if op in language.CONSTRUCTORS:
                return self.terms.make(language.CONSTRUCTORS[op], None, kids)
            case Reduce(kind, axis, _):
                return self.terms.make(language.REDUCTIONS[kind.value], self._axis(axis), kids)
        raise IllegalIRError(f"{e} has no term")

    def _axis(self, axis: Axis) -> str:
        extent = str(axis.extent)
        if self.terms.extents.setdefault(axis.name, extent) != extent:
            raise IllegalIRError(f"two axes are called {axis.name}")
        return axis.name

    def _index(self, index: Index) -> Written:
        terms: list[tuple[str, str]] = []
        for atom, c in index.terms:
            if not isinstance(atom, Axis):
                raise IllegalIRError(f"the index {index} is not affine")
            terms.append((self._axis(atom), str(c)))
        return tuple(sorted(terms)), str(index.offset)


@dataclass(slots=True)
class Decoder:
    """Reads terms as expressions; a product with -1 on the left is a negation, as it was before `Encoder`."""

    terms: Terms  # where they are
    # Constructors of operators that rule files declare, to their names.
    declared: Mapping[str, str] = field(default_factory=dict)
    _done: dict[int, Expr] = field(default_factory=dict)
    _axes: dict[str, Axis] = field(default_factory=dict)

    def of(self, term: Term) -> Expr:
        """The expression. Raises IllegalIRError: the term is none of prism's own language."""
        if term.id not in self._done:
            self._done[term.id] = self._node(term, tuple([self.of(k) for k in term.kids]))
        return self._done[term.id]

    def _node(self, t: Term, kids: tuple[Expr, ...]) -> Expr:
        match t.op:
            case "Read":
                return Read(t.data[0], tuple(map(self._index, t.data[1])))
            case "Pos":
                return Position(self._index(t.data))
            case "Const":
                return Const(t.data)
            case "Size":
                return Size(_extent(t.data))
            case op if op in _KINDS:
                return Reduce(ReduceKind(_KINDS[op]), self._axis(t.data), kids[0])
            case "Mul" if kids[0] == Const(-1.0):
                return Map("neg", kids[1:])
            case op if op in _OPS:
                return Map(_OPS[op], kids)
            case op if op in self.declared:
                return Map(self.declared[op], kids)
        raise IllegalIRError(f"there is no operation {t.op}")

    def _axis(self, name: str) -> Axis:
        if name not in self._axes:
            self._axes[name] = Axis(name, _extent(self.terms.extents[name]))
        return self._axes[name]

    def _index(self, index: Written) -> Index:
        terms, offset = index
        total = Index((), _extent(offset))
        for axis, c in terms:
            total = total + Index(((self._axis(axis), 1),)).scaled(_extent(c))
        return total


def _extent(text: str) -> Extent:
    """An extent from its text. Raises IllegalIRError: it is none."""
    try:
        return from_text(text)
    except ExtentError as error:
        raise IllegalIRError(str(error)) from error


REPLAY_SCHEMA = "prism.replay/1"
"""Of a certificate without steps: its terms are to be proved equal again."""


@dataclass(frozen=True, slots=True)
class Derived:
    """The derivation of one output."""

    name: str  # of the output
    reference: Term  # where it starts
    denotation: Term  # where it ends
    steps: tuple[dict[str, Any], ...]  # in order; terms stand where the certificate has rows


@dataclass(frozen=True, slots=True)
class Derivation:
    """What came of the attempt."""

    # For `prism.checker.check`; where no derivation was found, the same terms without steps, which says what is to be
    # proved again (schema `prism.replay/1`).
    certificate: bytes
    reason: str = ""  # why there is none, or empty
    steps: int = 0  # of all outputs
    seconds: Mapping[str, float] = field(default_factory=dict)  # of finding, replaying and checking


def certificate(terms: Terms, outputs: Sequence[Derived], files: Mapping[str, str], schema: str = SCHEMA) -> bytes:
    """The certificate's bytes.

    `files` are rule file to SHA-256, for those that are cited.
    """
    roots = [t for o in outputs for t in (o.reference, o.denotation, *cited_terms(o.steps))]
    numbers: dict[int, int] = {}
    rows: list[list[Any]] = []
    axes: set[str] = {v for o in outputs for s in o.steps for v in s.get("substitution", {}).values() if type(v) is str}

    def add(term: Term) -> None:
        stack = [term]
        while stack:
            t = stack[-1]
            missing = [k for k in t.kids if k.id not in numbers]
            if t.id in numbers or not missing:
                stack.pop()
                if t.id not in numbers:
                    numbers[t.id] = len(rows)
                    rows.append(_row(t, numbers))
                    axes.update(t.axes | ({t.data} if t.op in REDUCTIONS else set()))
                continue
            stack += missing

    for r in roots:
        add(r)

    def plain(value: Any) -> Any:
        if isinstance(value, Term):
            return numbers[value.id]
        return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value

    read = {row[1] for row in rows if row[0] == "Read"}
    stated = {t: list(f) for t, f in sorted(terms.stated.items()) if t in read}
    body: dict[str, Any] = {
        "schema": schema,
        "rules": dict(sorted(files.items())),
        "axes": {a: terms.extents[a] for a in sorted(axes)},
        **({"stated": stated} if stated else {}),
        "terms": rows,
        "outputs": [
            {
                "name": o.name,
                "reference": numbers[o.reference.id],
                "denotation": numbers[o.denotation.id],
                "steps": [plain(s) for s in o.steps],
            }
            for o in outputs
        ],
    }
    body["sha256"] = digest(body)
    return _lines(body)


def replay(
    names: Sequence[str],
    reference: Sequence[Expr],
    denotation: Sequence[Expr],
    reason: str,
    facts: TensorFacts = language.NO_FACTS,
) -> Derivation:
    """What is to be proved again, where there is no derivation. Raises IllegalIRError: an expression has no term."""
    terms = Terms(stated=facts)
    encoder = Encoder(terms)
    pairs = zip(names, reference, denotation, strict=True)
    outputs = [Derived(name, encoder.of(a), encoder.of(b), ()) for name, a, b in pairs]
    return Derivation(certificate(terms, outputs, {}, REPLAY_SCHEMA), reason)


def cited_terms(steps: Iterable[Mapping[str, Any]]) -> Iterable[Term]:
    """The terms that steps name."""
    for s in steps:
        for value in (s.get("to"), *s.get("substitution", {}).values()):
            if isinstance(value, Term):
                yield value


def _row(t: Term, numbers: Mapping[int, int]) -> list[Any]:
    kids = [numbers[k.id] for k in t.kids]
    match t.op:
        case "Read":
            return ["Read", t.data[0], [_plain(i) for i in t.data[1]]]
        case "Pos":
            return ["Pos", _plain(t.data)]
        case "Const":
            # JSON has no infinities: they are text, as float() reads it.
            return ["Const", t.data if abs(t.data) < float("inf") else repr(t.data)]
        case "Size":
            return ["Size", t.data]
        case _:
            return [t.op, t.data, *kids] if t.op in REDUCTIONS else [t.op, *kids]


def _plain(index: Written) -> list[Any]:
    return [[list(term) for term in index[0]], index[1]]


def _lines(body: Mapping[str, Any]) -> bytes:
    """JSON with one row, and one step, a line."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=True)

    parts = [f'"{name}": {text(body[name])}' for name in ("schema", "rules", "axes", "stated") if name in body]
    parts.append('"terms": [\n  ' + ",\n  ".join(map(text, body["terms"])) + "\n ]")
    outputs = []
    for o in body["outputs"]:
        steps = ",\n    ".join(map(text, o["steps"]))
        head = ", ".join(f'"{k}": {text(o[k])}' for k in ("name", "reference", "denotation"))
        outputs.append(f'{{{head}, "steps": [\n    {steps}\n  ]}}')
    parts.append('"outputs": [\n  ' + ",\n  ".join(outputs) + "\n ]")
    parts.append(f'"sha256": {text(body["sha256"])}')
    return ("{\n " + ",\n ".join(parts) + "\n}\n").encode()
