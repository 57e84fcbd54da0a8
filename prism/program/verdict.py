"""What the prover says of a candidate.

*Proved* is: for all inputs that are finite numbers, the candidate has the reference's value wherever the reference has
one, over the real numbers extended by the infinities that constants bring in (a mask's -inf); see docs/rules.md. What
else a proof rests on is named, clause by clause, in `assumptions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Status(StrEnum):
    """The three answers."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer, and what it rests on.

    Attributes:
        status: proved, refuted or unknown.
        reason: for `unknown` why it stopped; for `refuted` where the two differ; for `proved` how it was shown.
        counterexample: for `refuted`: input name to array (numpy, float64) at which the outputs differ.
        enodes: the size of the e-graph when the verdict fell.
        iterations: how many rounds the rules ran.
        rules: the names of the rule families that were loaded.
        classes: for `proved`: the floating-point classes of the rules that matched on the way; it used at most these.
        weights: what of the candidate's weights was read as what of the reference's, a clause each.
        assumptions: for `proved`: what it rests on besides finite inputs, a clause each; the reason names them, too.
    """

    status: Status
    reason: str = ""
    counterexample: Mapping[str, object] = field(default_factory=dict)
    enodes: int = 0
    iterations: int = 0
    rules: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def assuming(self, clauses: Sequence[str]) -> Verdict:
        """The verdict with these assumptions besides those that it has, all of which its reason names."""
        if not clauses:
            return self
        start = "; " if self.assumptions else ", assuming "
        said = f"{self.reason}{start}{'; '.join(clauses)}"
        return replace(self, reason=said, assumptions=(*self.assumptions, *clauses))

    def __str__(self) -> str:
        said = f"{self.status.value}: {self.reason}" if self.reason else self.status.value
        return "\n".join([said, *(f"  {w}" for w in self.weights)])

    def __bool__(self) -> bool:
        return self.status is Status.PROVED
