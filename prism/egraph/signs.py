"""What a rule's text alone says of the sign of a term: enough to tell a guard that is missing from one that is not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from prism.egraph.sexpr import Form, show


@dataclass(frozen=True, slots=True)
class Signs:
    """Answers about terms.

    Attributes:
        facts: (relation, term as text) that the rule demands.
    """

    facts: Collection[tuple[str, str]]

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
