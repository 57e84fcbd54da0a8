"""Proofs: candidates in their order, one small batch after another, each with a second opinion.

Candidates whose splits leave no trace in their denotation share the saturated reference; those that combine rescaled
partial results are proved against the reference written over (part, rest) of the split axis. A batch is of one
reference and holds the candidate whose turn it is; what is decided ahead of its turn waits for it. The worker keeps the
last few references, so going back to one costs nothing. While the prover works on a batch, the identity test
(second_opinion.py) looks at the same denotations here; where it contradicts a proof, the search stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from prism.api.second_opinion import SecondOpinions
from prism.egraph.language import Budget
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError
from prism.events import Recorder
from prism.generate.enumerate import Candidate
from prism.program.assumptions import facts, stated_texts
from prism.program.extents import Extent
from prism.program.identity.testing import Opinion
from prism.program.nodes import Expr, Tensor
from prism.program.verdict import Status, Verdict
from prism.sgraph import spec
from prism.sgraph.denote import Denotation, denote, expand
from prism.sgraph.nodes import SGraph
from prism.sgraph.numerics import Numerics
from prism.sgraph.rescaled import LostError

_Split: TypeAlias = tuple[Extent, ...]

BATCH = 4
"""Denotations that the prover is asked about at once."""
AHEAD = 8
"""How far beyond the candidate whose turn it is a batch looks for others of the same reference."""


@dataclass(frozen=True, slots=True)
class ProvedSGraph:
    """An sGraph with its proof.

    Attributes:
        sgraph: the family.
        verdict: proved, and how.
        denotation: what it computes, as the prover read it off.
        seconds: its least estimated time by the ranking model; only for ordering.
        opinion: what the identity test over finite fields says of the proof.
        written: whether it computes every value as the model does, in its order of operations.
    """

    sgraph: SGraph
    verdict: Verdict
    denotation: Denotation
    seconds: float
    opinion: Opinion | None = None
    written: bool = False

    def __str__(self) -> str:
        return f"{self.sgraph}\n{self.verdict}"


class Proofs:
    """Decides candidates in batches.

    A verdict depends on the reference and on the denotation alone: the worker forgets a candidate before the next. So
    it does not matter how candidates are batched, nor which worker is asked, nor how often.
    """

    def __init__(
        self,
        reference: tuple[Expr, ...],
        candidates: Sequence[Candidate],
        workers: Sequence[Worker],
        limit: Budget,
        recorder: Recorder,
        second: SecondOpinions | None = None,
        inputs: Sequence[Tensor] = (),
        *,
        saturated: bool = True,
    ) -> None:
        self.candidates = candidates
        self.decided: dict[int, ProvedSGraph | None] = {}
        self.counts: Counter[Status] = Counter()
        self._reference = reference
        # Those that are refused, for their numerics or for what predicates would see of them, those that are not legal,
        # spares that no saturated reference proves, and those with float32 buffers in place of narrower ones.
        self.refused = self.illegal = self.spares = 0
        self._numerics = Numerics(reference)
        self._staged: dict[int, SGraph] = {}
        self._workers = workers
        self._limit = limit
        self._facts = facts(inputs)
        self._stated = stated_texts(inputs)
        self._recorder = recorder
        self._second = second
        # Families that differ by roles and cuts alone denote the same: one proof serves them all.
        self._distinct: dict[Denotation, int] = {}
        self._meanings: list[Denotation] = []
        self._meaning: dict[int, int] = {}
        self._verdicts: dict[int, Verdict] = {}
        # Which reference each worker holds: the first has just saturated the program's own, if that was not in pieces.
        self._held: list[_Split | None] = [() if saturated else None, *(None for _ in workers[1:])]

    def go_on(self, candidates: Sequence[Candidate]) -> None:
        """Begin anew with these; what was found of denotations is known."""
        self.candidates = candidates
        self.decided, self._staged, self._meaning = {}, {}, {}
        self.counts, self.refused, self.illegal, self.spares = Counter(), 0, 0, 0

    def forget(self) -> None:
        """Whatever references the workers hold by now, they are given those of what is decided next."""
        self._held = [None] * len(self._workers)

    @property
    def proved(self) -> tuple[ProvedSGraph, ...]:
        """Those that were proved, best first."""
        found = (self.decided[n] for n in sorted(self.decided))
        return tuple(p for p in found if p is not None)

    def decide(self, n: int) -> None:
        """Decide candidate n; others are decided on the way."""
        while n not in self.decided:
            turn = self._needs(n)
            if turn is None:
                return
            lanes = {0: (turn, n)} if len(self._workers) == 1 else self._lanes(n)
            self._ask({lane: (split, self._batch(m, split)) for lane, (split, m) in lanes.items()}, n)

    def _lanes(self, n: int) -> dict[int, tuple[_Split, int]]:
        """A reference for every worker, as long as there are any; each goes on with the one that it holds."""
        waiting: dict[_Split, int] = {}
        for m in range(n, len(self.candidates)):
            split = self._needs(m)
            if split is not None:
                waiting.setdefault(split, m)
        lanes = {lane: (h, waiting.pop(h)) for lane, h in enumerate(self._held) if h is not None and h in waiting}
        free = [lane for lane in range(len(self._workers)) if lane not in lanes]
        return lanes | dict(zip(free, waiting.items(), strict=False))

    def _needs(self, n: int) -> _Split | None:
        """The reference that candidate n is proved against; None when it is decided, or not legal and so dropped."""
        if n in self.decided:
            return None
        if n not in self._meaning:
            try:
                spec.check(self.candidates[n].sgraph)
                meaning = denote(self.candidates[n].sgraph)
            except LostError:
                self.refused += 1
                self.decided[n] = None
                return None
            except IllegalIRError as error:
                self._recorder.warn(f"an sGraph was dropped: {error}")
                self.illegal += 1
                self.decided[n] = None
                return None
            if meaning.split and self.candidates[n].spare:
                self.spares += 1
                self.decided[n] = None
                return None
            safe = self._numerics.safe(self.candidates[n].sgraph, meaning)
            if safe is None:
                self.refused += 1
                self.decided[n] = None
                return None
            self._staged[n] = safe
            self._meaning[n] = self._distinct.setdefault(meaning, len(self._meanings))
            if self._meaning[n] == len(self._meanings):
                self._meanings.append(meaning)
            if self._meaning[n] in self._verdicts:
                self._settle(n)
                return None
        return self._meanings[self._meaning[n]].split

    def _batch(self, n: int, split: _Split) -> list[int]:
        """The denotations to ask about: candidate n's, and others of the same reference among the next few.

        The first alone: something is proved sooner.
        """
        found: dict[int, None] = {}
        most = BATCH if any(self._verdicts.values()) else 1
        for m in range(n, min(n + AHEAD, len(self.candidates))):
            if len(found) == most:
                break
            if self._needs(m) == split:
                found[self._meaning[m]] = None
        return list(found)

    def _ask(self, batches: Mapping[int, tuple[_Split, list[int]]], n: int) -> None:
        """Ask each lane's worker about its batch, all at the same time; until they answer, read off the next."""
        for lane, (split, batch) in batches.items():
            self._refer(lane, split)
            self._workers[lane].submit([self._meanings[m].outputs for m in batch])
        for m in range(n, min(n + 2 * AHEAD, len(self.candidates))):
            if all(self._workers[lane].answered() for lane in batches):
                break
            self._needs(m)
        if self._second is not None:
            for _, batch in batches.values():
                for m in batch:
                    self._second.ahead(self._meanings[m])
        for lane, (_, batch) in batches.items():
            self._verdicts.update(zip(batch, self._workers[lane].collect(), strict=True))
        for m in sorted(self._meaning.keys() - self.decided.keys()):
            if self._meaning[m] in self._verdicts:
                self._settle(m)

    def _refer(self, lane: int, split: _Split) -> None:
        """Make the worker hold the reference; as e-classes only the program's own is of use."""
        if self._held[lane] == split:
            return
        self._held[lane] = None
        if split:
            self._workers[lane].refer(tuple(expand(e, split) for e in self._reference), self._limit, self._facts)
        else:
            self._workers[lane].explore(self._reference, self._limit, self._facts)
        self._held[lane] = split

    def _settle(self, n: int) -> None:
        c, m = self.candidates[n], self._meaning[n]
        verdict = self._verdicts[m]
        verdict = verdict.assuming(self._stated) if verdict else verdict
        self.counts[verdict.status] += 1
        if not verdict:
            self.decided[n] = None
            return
        sgraph, meaning = self._staged[n], self._meanings[m]
        opinion = self._second.of(sgraph, meaning) if self._second is not None else None
        self.decided[n] = ProvedSGraph(sgraph, verdict, meaning, c.seconds, opinion, c.written)
