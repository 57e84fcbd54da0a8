"""A small e-graph that can say why two terms are equal.

Every e-node is a concrete term (prism.checker), and every union is between two concrete terms, with its reason: an
instance of a rule, a renaming, arithmetic on constants, or congruence. The reasons form a forest, in which the path
between two terms is the proof that they are equal (Nieuwenhuis & Oliveras, Proof-producing congruence closure, 2005;
the e-graph itself after Willsey et al., egg, 2021).

A rule is applied to terms, not to e-classes: its variables stand for the *spokesman* of their e-class, the term of
which the analyses know most. So what a guard asks is true of the very term that the certificate will name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from prism.checker import LEAVES, REDUCTIONS, CertificateError, Rule, Sexp, Term, Terms, instance
from prism.egraph.language import snap

Binding: TypeAlias = "dict[str, int | str]"  # variable to e-class, axis variable to axis
_Key: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why two terms are one."""

    kind: str  # rule, rename, constant or congruence
    rule: str = ""  # of kind rule its name
    forward: bool = True  # of kind rule whether the edge's first term is the rule's left side
    given: Mapping[str, Any] = field(default_factory=dict)  # of kind rule its substitution

    def turned(self) -> Reason:
        """The reason, read from the other end."""
        return Reason(self.kind, self.rule, not self.forward, self.given) if self.kind == "rule" else self


CONGRUENCE, RENAME, CONSTANT = Reason("congruence"), Reason("rename"), Reason("constant")


@dataclass(slots=True)
class Forest:
    """The e-graph; e-classes are numbers of terms."""

    terms: Terms
    _parent: dict[int, int] = field(default_factory=dict)
    _edge: dict[int, tuple[int, Reason]] = field(default_factory=dict)
    _members: dict[int, list[int]] = field(default_factory=dict)
    _keys: dict[_Key, int] = field(default_factory=dict)
    _users: dict[int, list[int]] = field(default_factory=dict)
    _waiting: list[int] = field(default_factory=list)
    _spokesman: dict[int, Term] = field(default_factory=dict)
    _done: set[tuple[Any, ...]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._parent)

    def find(self, n: int) -> int:
        """The e-class."""
        parent = self._parent
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    def equal(self, a: Term, b: Term) -> bool:
        """Whether the two terms, which must have been added, are in one e-class."""
        return self.find(a.id) == self.find(b.id)

    def spokesman(self, t: Term) -> Term:
        """The term of its e-class of which most is known."""
        return self._spokesman[self.find(t.id)]

    def add(self, term: Term) -> None:
        """Put a term in, and all that it is made of."""
        stack = [term]
        while stack:
            t = stack[-1]
            missing = [k for k in t.kids if k.id not in self._parent]
            if missing:
                stack += missing
                continue
            stack.pop()
            if t.id not in self._parent:
                self._add(t)

    def _add(self, t: Term) -> None:
        self._parent[t.id] = t.id
        self._members[t.id] = [t.id]
        self._spokesman[t.id] = t
        for k in {self.find(k.id) for k in t.kids}:
            self._users.setdefault(k, []).append(t.id)
        self._register(t)
        if t.value is not None:
            number = self.terms.const(snap(t.value))
            if number is not t:
                if number.id not in self._parent:
                    self._add(number)
                self.union(t, number, CONSTANT)

    def _key(self, t: Term) -> _Key:
        return (t.op, t.data if t.op != "Const" else repr(t.data), *[self.find(k.id) for k in t.kids])

    def _register(self, t: Term) -> None:
        key = self._key(t)
        other = self._keys.setdefault(key, t.id)
        if self.find(other) != self.find(t.id):
            self.union(self.terms.rows[other], t, CONGRUENCE)

    def union(self, a: Term, b: Term, reason: Reason) -> bool:
        """Join the e-classes of two terms that were added; False when they are one already."""
        x, y = self.find(a.id), self.find(b.id)
        if x == y:
            return False
        if len(self._members[x]) > len(self._members[y]):
            a, b, x, y, reason = b, a, y, x, reason.turned()
        self._hang(a.id, b.id, reason)
        self._parent[x] = y
        self._members[y] += self._members.pop(x)
        self._waiting += self._users.get(x, [])
        self._users.setdefault(y, []).extend(self._users.pop(x, []))
        old = self._spokesman.pop(x)
        if _rank(old) < _rank(self._spokesman[y]):
            self._spokesman[y] = old
        return True

    def _hang(self, child: int, parent: int, reason: Reason) -> None:
        """Make the child the root of its tree, and hang it below the parent."""
        edge: tuple[int, Reason] | None = (parent, reason)
        at = child
        while edge is not None:
            before = self._edge.get(at)
            self._edge[at] = edge
            edge = None if before is None else (at, before[1].turned())
            at = at if before is None else before[0]

    def rebuild(self) -> None:
        """Restore congruence; then let spokesmen be made of spokesmen."""
        self._congruence()
        for _ in range(4):
            if not self._promote():
                break
            self._congruence()

    def _congruence(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            for n in dict.fromkeys(waiting):
                self._register(self.terms.rows[n])

    def nodes(self) -> Iterator[Term]:
        """One term for each e-node."""
        seen: set[_Key] = set()
        for n in list(self._parent):
            t = self.terms.rows[n]
            key = self._key(t)
            if key not in seen:
                seen.add(key)
                yield t

    def _promote(self) -> bool:
        changed = False
        for t in list(self.nodes()):
            if not t.kids:
                continue
            kids = tuple([self._spokesman[self.find(k.id)] for k in t.kids])
            cls = self.find(t.id)
            if all(a is b for a, b in zip(kids, t.kids, strict=True)):
                continue
            better = self.terms.make(t.op, t.data, kids)
            if _rank(better) < _rank(self._spokesman[cls]):
                self.add(better)
                changed = True
                self._spokesman[self.find(t.id)] = better
        return changed

    # --- matching --------------------------------------------------------------------------------------------------

    def index(self) -> dict[tuple[int, str], list[Term]]:
        """E-class and constructor to its e-nodes; e-class -1 stands for all."""
        found: dict[tuple[int, str], list[Term]] = {}
        for t in self.nodes():
            found.setdefault((self.find(t.id), t.op), []).append(t)
            found.setdefault((-1, t.op), []).append(t)
        return found

    def matches(self, rule: Rule, forward: bool, index: Mapping[tuple[int, str], list[Term]]) -> Iterator[Binding]:
        """Where a rule's left side (its right side, backward) may apply; the conditions are not looked at yet."""
        side = rule.left if forward else rule.right
        patterns = {v: p for v, p in rule.defined if isinstance(p, list) and str(p[0])[0].isupper()}

        def finish(binding: Binding, left: list[str]) -> Iterator[Binding]:
            # Variables that a pattern defines: those that are bound are looked into.
            ready = next((v for v in left if v in binding), None)
            if ready is None:
                yield binding
                return
            rest = [v for v in left if v != ready]
            cls = binding[ready]
            assert isinstance(cls, int)
            for b in self._within(patterns[ready], cls, binding, index):
                yield from finish(b, rest)

        if not isinstance(side, list):
            return
        for t in list(index.get((-1, str(side[0])), ())):
            for binding in self._node(side, t, {}, index):
                yield from finish(binding, list(patterns))

    def _within(
        self, pattern: Sexp, cls: int, binding: Binding, index: Mapping[tuple[int, str], list[Term]]
    ) -> Iterator[Binding]:
        """Bindings under which the pattern is in the e-class."""
        if isinstance(pattern, str):
            known = binding.get(pattern)
            if known is None:
                yield {**binding, pattern: cls}
            elif known == cls:
                yield binding
            return
        if isinstance(pattern, list):
            for t in index.get((cls, str(pattern[0])), ()):
                yield from self._node(pattern, t, binding, index)

    def _node(
        self, pattern: list[Sexp], t: Term, binding: Binding, index: Mapping[tuple[int, str], list[Term]]
    ) -> Iterator[Binding]:
        op, *args = pattern
        if op == "Const":
            if isinstance(args[0], float) and args[0] == t.data:
                yield binding
            return
        if op in LEAVES:
            return
        if op in REDUCTIONS:
            axis, body = args
            assert isinstance(axis, str)
            if binding.get(axis, t.data) == t.data:
                yield from self._within(body, self.find(t.kids[0].id), {**binding, axis: t.data}, index)
            return
        found = [binding]
        for p, k in zip(args, t.kids, strict=True):
            cls = self.find(k.id)
            found = [b for one in found for b in self._within(p, cls, one, index)]
        yield from found

    def apply(self, rule: Rule, forward: bool, index: Mapping[tuple[int, str], list[Term]]) -> None:
        """Apply a rule wherever it does, as the e-graph is now."""
        wanted, axes = rule.free
        for binding in list(self.matches(rule, forward, index)):
            given: dict[str, Any] = {a: binding[a] for a in axes if a in binding}
            classes = {v: c for v, c in binding.items() if v in wanted and isinstance(c, int)}
            given |= {v: self._spokesman[self.find(c)] for v, c in classes.items()}
            if given.keys() != wanted | axes:
                continue
            key = (rule.name, forward, *[x.id if isinstance(x, Term) else x for _, x in sorted(given.items())])
            if key in self._done:
                continue
            self._done.add(key)
            try:
                left, right = instance(rule, self.terms, given)
            except CertificateError:
                continue
            if left is not right:
                self.add(left)
                self.add(right)
                self.union(left, right, Reason("rule", rule.name, True, given))


def _rank(t: Term) -> tuple[int, int, int, int]:
    """The less, the more is known of the term."""
    return (-len(t.facts) - (6 if t.op == "Const" else 0), len(t.axes), t.size, t.id)


# --- why -----------------------------------------------------------------------------------------------------------

MAX_STEPS = 3000


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a chain: what stands at the paths, which are relative to the chain's terms, is replaced."""

    reason: Reason
    before: Term
    after: Term
    paths: tuple[tuple[int, ...], ...]

    def below(self, kids: list[int]) -> Link:
        """The same, under these children of one parent."""
        return Link(self.reason, self.before, self.after, tuple(sorted((n, *p) for n in kids for p in self.paths)))


class TooLongError(Exception):
    """The chain has more than MAX_STEPS links."""


@dataclass(slots=True)
class Explainer:
    """Reads chains off a forest."""

    forest: Forest
    _chains: dict[tuple[int, int], list[Link]] = field(default_factory=dict)

    def chain(self, a: int, b: int) -> list[Link]:
        """From one term to another one of its e-class. Raises TooLongError: see there."""
        if a == b:
            return []
        known = self._chains.get((a, b))
        if known is None:
            known = []
            for x, y, reason in self._path(a, b):
                known += self._edge(x, y, reason)
                if len(known) > MAX_STEPS:
                    raise TooLongError
            self._chains[a, b] = known
        return known

    def _edge(self, x: int, y: int, reason: Reason) -> Iterator[Link]:
        rows = self.forest.terms.rows
        if reason.kind != "congruence":
            yield Link(reason, rows[x], rows[y], ((),))
            return
        pairs: dict[tuple[int, int], list[int]] = {}
        for n, (p, q) in enumerate(zip(rows[x].kids, rows[y].kids, strict=True)):
            if p is not q:
                pairs.setdefault((p.id, q.id), []).append(n)
        for (p_id, q_id), kids in pairs.items():
            for link in self.chain(p_id, q_id):
                yield link.below(kids)

    def _path(self, a: int, b: int) -> list[tuple[int, int, Reason]]:
        """The edges between two terms of one tree, each with its reason in the direction of travel."""
        edges = self.forest._edge
        up: dict[int, int] = {}
        left: list[tuple[int, int, Reason]] = []
        at = a
        while True:
            up[at] = len(left)
            if at not in edges:
                break
            to, reason = edges[at]
            left.append((at, to, reason))
            at = to
        right: list[tuple[int, int, Reason]] = []
        at = b
        while at not in up:
            to, reason = edges[at]
            right.append((to, at, reason.turned()))
            at = to
        return left[: up[at]] + right[::-1]
