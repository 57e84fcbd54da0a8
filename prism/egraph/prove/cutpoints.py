"""Proof by cuts: two deep programs are one function if they are, part by part.

Both programs are run on the same inputs, and tensors that come out alike are guessed to be equal (whole_runs.py): cuts.
Each is proved on its own, the cuts before it being inputs of both sides: whatever values these have, the two formulas
have equal ones. So by induction over the order of the proofs every cut that was proved has the reference's values for
all inputs of the programs, and the outputs are cuts like any others. A cut that is not proved is dropped, and what
reads it is compared together with it; where two formulas are equal only for what the cuts before them hold, some of
these are taken back. Nothing is refuted by parts: only inputs of the whole programs do that.

Cuts are inputs that are finite numbers, as all inputs are. So each cut of the reference has to be a number for all
inputs; where that is not known, it is an assumption of the proof, and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from prism.egraph.language import Budget
from prism.egraph.prove.equality import Examined, align, examine
from prism.egraph.prove.matching import Matched, Names
from prism.egraph.prove.whole_runs import Alike, Order, Runs
from prism.egraph.worker import Worker
from prism.errors import PrismError, ShapeError
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, Expr, Map, Program, Read, Reduce, ReduceKind, Tensor, walk
from prism.program.ops import COMPARISONS
from prism.program.region import reads, subprogram
from prism.program.sign_analysis import NONE, Facts, kept
from prism.program.verdict import Status, Verdict
from prism.program.views import axes_of, reshape_index, same_extent

# Parts that a tensor is tried with: the cuts that it reads are taken back, those before them, two more, four more.
_LEVELS = 4
# Reductions in the formulas of a part that is tried: of any, and of sums of products of what is read, which arithmetic
# alone decides (two steps of Strassen's have 144). And definitions of one that is looked through.
_LARGEST = 14
_LARGEST_SUMS = 256
_LONGEST = 80
# Parts of one comparison that may fail, and what one counts that is refuted at once.
_FAILURES = 8.0
_EASY = 0.25
_BUDGET = Budget(enodes=4000, iterations=16, seconds=20.0)
_SAME = "the same formula"


@dataclass(frozen=True, slots=True)
class _Step:
    """A tensor that was proved to be a cut."""

    cuts: frozenset[str]  # what the proof takes for equal inputs, by the reference's names
    examined: Examined | None = None  # the prover's verdict; None where both sides have the same formula
    matched: Matched | None = None  # what was compared


@dataclass(slots=True)
class Cuts:
    """The cuts of two programs."""

    names: Names  # of both
    worker: Worker  # runs the rules
    sound: bool = True  # whether all tensors within that are alike were proved equal
    # Of each cut, by the reference's name: the tensor as the parts read it, and the tensors of each side that are it.
    _tensors: dict[str, Tensor] = field(default_factory=dict)
    _proved: dict[tuple[int, str], tuple[Alike, _Step]] = field(default_factory=dict)
    _open: dict[str, None] = field(default_factory=dict)
    _failures: float = 0.0
    _failed: dict[str, str] = field(default_factory=dict)

    def examine(self, runs: Runs) -> Examined:
        """The verdict: proved, or unknown with the first parts that were not."""
        ours, theirs = runs.alike()
        places = {d.name: n for n, d in enumerate(self.names.a.definitions)}
        wanted = {x.of for x in theirs}
        targets = [(places[x.of], 1, x) for x in self._worthwhile(1, theirs)]
        targets += [(places[x.name], 0, x) for x in self._worthwhile(0, ours) if x.of in wanted]
        later = {d.name: n for n, d in enumerate(self.names.b.definitions)}
        targets.sort(key=lambda t: (t[0], t[1], later.get(t[2].name, 0)))
        for _, side, alike in targets:
            self._try(side, alike)
        self.sound = not self._failed
        steps: list[_Step] = []
        for one, other in zip(self.names.a.outputs, self.names.b.outputs, strict=True):
            step = self._step(1, Alike(other, one, None))
            if step is None:
                return Examined(Verdict(Status.UNKNOWN, self._reason(one, len(targets))))
            steps.append(step)
        return self._composed(steps)

    def _worthwhile(self, side: int, found: Sequence[Alike]) -> list[Alike]:
        """Those that are more than a view of one of the others."""
        definitions = {d.name: d for d in (self.names.a, self.names.b)[side].definitions}
        known = {x.name for x in found} | ({x.of for x in found} if side == 0 else set())
        return [
            x for x in found if not (definitions[x.name].view and known.issuperset(reads(definitions[x.name].expr)))
        ]

    # One cut

    def _try(self, side: int, alike: Alike) -> None:
        self._tensor(alike.of)
        step = self._step(side, alike)
        if step is not None:
            self._proved[side, alike.name] = alike, step
            self._open[alike.of] = None

    def _tensor(self, of: str) -> Tensor:
        """The cut as the parts of both programs read it."""
        if of not in self._tensors:
            taken = {t.name for p in (self.names.a, self.names.b) for t in p.inputs}
            taken |= {d.name for d in self.names.b.definitions} | set(self.names.weights)
            taken |= {t.name for t in self._tensors.values()}
            name = of
            while name in taken:
                name += "'"
            self._tensors[of] = replace(self.names.a.definition(of).tensor, name=name)
        return self._tensors[of]

    def _step(self, side: int, alike: Alike) -> _Step | None:
        """How a tensor is proved to be its cut; None where it is not."""
        taken: set[str] = set()
        reason = ""
        for level in range(_LEVELS):
            try:
                for _ in range(1 << level):
                    right, left, used = self._parts(side, alike, taken)
                    taken |= used
                matched = self.names.matched(left, right, [self._tensors[x] for x in used])
                if _same(matched):
                    return _Step(used)
                fits = all(_fits(f.expr) for f in (*matched.reference, *matched.candidate))
                if self._failures >= _FAILURES or not fits:
                    reason = reason or "too much before it was not proved"
                    break
                # What was not equal within a part may not become so by the rounding of a larger one.
                stained = not self._failed.keys().isdisjoint(d.name for d in right.definitions)
                sharp = level > 0 or stained
                examined = examine(replace(matched, sharp=sharp), budget=_BUDGET, worker=self.worker)
            except PrismError as error:
                reason = reason or error.one_line()
                break
            verdict = examined.verdict
            if verdict:
                return _Step(used, examined, matched)
            reason = reason or verdict.reason
            self._failures += 1 if verdict.status is Status.UNKNOWN else _EASY
            if not used or stained:
                break
        self._failed[alike.name] = reason
        return None

    def _parts(self, side: int, alike: Alike, taken: Iterable[str]) -> tuple[Program, Program, frozenset[str]]:
        """The tensor's part, the cut's, and the cuts that they read; those that are taken back are computed."""
        given = frozenset(self._open).difference(taken)
        right, theirs = self._part(side, alike.name, given, alike)
        if alike.of in theirs:
            return right, self._itself(alike.of), theirs
        left, ours = self._part(0, alike.of, given - {alike.of})
        return right, left, ours | theirs

    def _part(
        self, side: int, target: str, given: Iterable[str], alike: Alike | None = None
    ) -> tuple[Program, frozenset[str]]:
        """The part of a program that computes a tensor from cuts, and these; as the cut has it, if that is given."""
        whole = (self.names.a, self.names.b)[side]
        allowed = frozenset(given)
        cuts = {n: x for (s, n), (x, _) in self._proved.items() if s == side and x.of in allowed and n != target}
        if side == 0:
            cuts |= {of: Alike(of, of, None) for of in allowed if of != target}
        sub = subprogram(whole, whole.name, [target], cuts)
        inputs: dict[str, Tensor] = {}
        views: list[Definition] = []
        used: set[str] = set()
        for t in sub.inputs:
            cut = cuts.get(t.name)
            if cut is None:
                inputs[t.name] = t
                continue
            tensor = self._tensors[cut.of]
            inputs[tensor.name] = tensor
            used.add(cut.of)
            if tensor.name != t.name:
                axes = axes_of(t.shape)
                views.append(Definition(t.name, axes, _read(tensor, axes, cut.order), t.dtype, view=True))
        body = (*views, *sub.definitions)
        output = target
        if alike is not None:
            t = whole.definition(target).tensor
            shape = self.names.a.definition(alike.of).tensor.shape
            if t.shape != shape or alike.order is not None:
                axes = axes_of(shape)
                back = None if alike.order is None else tuple(map(alike.order.index, range(len(alike.order))))
                output = f"{target}."
                body = (*body, Definition(output, axes, _read(t, axes, back), t.dtype, view=True))
        return replace(sub, inputs=tuple(inputs.values()), definitions=body, outputs=(output,)), frozenset(used)

    def _itself(self, of: str) -> Program:
        """A program that returns a cut."""
        tensor = self._tensors[of]
        axes = axes_of(tensor.shape)
        read = Definition(f"{tensor.name}.", axes, Read(tensor.name, tuple(map(Index.axis, axes))), tensor.dtype)
        return Program(self.names.a.name, (tensor,), (read,), (read.name,), self.names.a.ranges)

    # All of them

    def _composed(self, steps: Sequence[_Step]) -> Examined:
        """The verdict on the outputs, from the steps that they rest on."""
        every: dict[int, _Step] = {}
        cuts: dict[str, None] = {}
        stack = list(steps)
        while stack:
            step = stack.pop()
            if id(step) in every:
                continue
            every[id(step)] = step
            for of in step.cuts:
                if of not in cuts:
                    cuts[of] = None
                    stack += [s for x, s in self._proved.values() if x.of == of]
        parts = [(s.examined, s.matched) for s in every.values() if s.examined is not None and s.matched is not None]
        verdicts = [x.verdict for x, _ in parts]
        weights = tuple(dict.fromkeys(w for v in verdicts for w in v.weights))
        many = f"{len(every)} parts" if len(every) > 1 else "1 part"
        rest = f", {len(every) - len(parts)} of them {_SAME}" if len(parts) < len(every) else ""
        read = f", with {len(weights)} weight{'s' * (len(weights) > 1)} read alike" if weights else ""
        verdict = Verdict(
            Status.PROVED,
            f"equal in {many}, cut where tensors are alike{rest}{read}",
            enodes=max((v.enodes for v in verdicts), default=0),
            iterations=max((v.iterations for v in verdicts), default=0),
            rules=tuple(dict.fromkeys(r for v in verdicts for r in v.rules)),
            classes=tuple(dict.fromkeys(c for v in verdicts for c in v.classes)),
            weights=weights,
        )
        assumed = [c for v in verdicts for c in v.assumptions]
        assumed += [c for of in self._of_numbers(cuts, list(every.values())) for c in self._finite(of)]
        return Examined(verdict.assuming(tuple(dict.fromkeys(assumed))), parts=tuple(parts))

    def _of_numbers(self, cuts: Iterable[str], steps: Sequence[_Step]) -> list[str]:
        """The cuts that have to be numbers: those of which not all is the same formula, and what is rewritten with."""
        by: dict[str, list[_Step]] = {}
        for alike, step in self._proved.values():
            by.setdefault(alike.of, []).append(step)
        one: dict[str, bool] = {}
        for of in self._open:
            # In the order of the proofs.
            one[of] = all(s.examined is None and all(one.get(x, x == of) for x in s.cuts) for s in by[of])
        within = {x for s in steps if s.examined is not None for x in s.cuts}
        return [of for of in cuts if not one[of] or of in within]

    def _finite(self, of: str) -> tuple[str, ...]:
        """What has to be assumed for the reference's tensor to be a number, for all inputs of the programs."""
        dropped = {of}
        assumed: tuple[str, ...] | None = None
        for _ in range(_LONGEST):
            try:
                part, used = self._part(0, of, [x for x in self._open if x not in dropped])
                (formula,) = self.names.matched(part, part, [self._tensors[x] for x in used]).reference
            except PrismError:
                break
            if Facts().infinities(formula.expr) == NONE:
                return ()
            facts = Facts(assume=True)
            if assumed is None and facts.infinities(formula.expr) == NONE:
                assumed = tuple(kept(e) for e in facts.assumed)
            if not used or len(part.definitions) > _LONGEST:
                break
            dropped |= used
        if assumed is not None:
            return assumed
        definition = self.names.a.definition(of)
        return (f"{definition.origin or of} is a number everywhere",)

    def _reason(self, output: str, many: int) -> str:
        proved = sum(1 for side, _ in self._proved)
        said = "; ".join(f"{name}: {reason}" for name, reason in list(self._failed.items())[:2])
        return f"{proved} of {many} tensors that are alike on random inputs were proved equal, {output} was not: {said}"


def _fits(e: Expr) -> bool:
    """Whether a part has not too many reductions to be tried."""
    nodes = tuple(walk(e))
    reductions = [x for x in nodes if isinstance(x, Reduce)]
    if len(reductions) <= _LARGEST:
        return True
    plain = all(x.op in _ARITHMETIC or x.op in COMPARISONS for x in nodes if isinstance(x, Map))
    return plain and len(reductions) <= _LARGEST_SUMS and all(x.kind is ReduceKind.SUM for x in reductions)


_ARITHMETIC = ("add", "mul", "neg", "where")


def _same(matched: Matched) -> bool:
    """Whether both sides are one formula."""
    for a, b in zip(matched.reference, matched.candidate, strict=True):
        both = align(a, b)
        if both is None or both[0].expr != both[1].expr:
            return False
    return True


def _read(tensor: Tensor, axes: Sequence[Axis], order: Order | None) -> Expr:
    """The element of a tensor that is an element of another: transposed, or the same in row-major order.

    Raises:
        ShapeError: their shapes do not fit.
    """
    if order is None:
        return Read(tensor.name, reshape_index(tensor.shape, axes))
    long = [a for a in axes if a.extent != 1]
    places = [d for d, e in enumerate(tensor.shape) if e != 1]
    index = [Index.const(0)] * len(tensor.shape)
    if len(places) == len(long) == len(order):
        for d, n in zip(places, order, strict=True):
            index[d] = Index.axis(long[n])
            if not same_extent(long[n].extent, tensor.shape[d]):
                break
        else:
            return Read(tensor.name, tuple(index))
    raise ShapeError(f"{tensor.name} is not transposed so", why="the extents are others")
