"""What of a program is compared with what it was read from: which of its claims, at which extents, how exactly.

A model that can be run in float64 is compared as a whole, on every draw. Of a larger one, nodes of which the reader
says the same are compared once: what is computed of one is what the others' readers are given, so that all claims that
differ meet numbers. What is still too large is left out, and named.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from prism.program import example_draws, extents
from prism.program.conformance import DOUBLE, SINGLE, Claim, Precision, evaluated
from prism.program.nodes import Definition, Program, Read, walk
from prism.program.work import definition_work, work

# What one draw may take: elements of all values in float64, and in float32 of all but the weights; the weights' own;
# and multiply-adds. As many draws are made as take twice as many elements.
_DOUBLE = 1 << 22
_SINGLE = 1 << 25
_WEIGHTS = 1 << 29
_PRODUCTS = 1 << 34
# What running one node takes beside its elements, in elements; and the most nodes that are run at all.
_NODE = 1 << 11
_NODES = 1 << 13
# The most steps of a loop that are compared.
_STEPS = 16
# What a large extent is reduced to: the first of these that the model takes.
_REDUCED = (12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is compared at some extents."""

    binding: Mapping[str, int]  # the extents
    precision: Precision  # how exactly the model is run there
    elements: int  # what one run takes
    # Values that are not computed, each with the one of an equal node that stands for it.
    same: Mapping[str, str] = field(default_factory=dict)
    left: frozenset[str] = frozenset()  # values that are not computed as their nodes are too large
    definitions: int = 0  # how many definitions are compared

    @property
    def taken(self) -> frozenset[str]:
        """The values that are not computed."""
        return self.left | self.same.keys()

    def once(self, program: Program) -> str:
        """How much of the program is compared, as text; empty where all of it is."""
        if not self.same:
            return ""
        return f"equal operators once, {self.definitions} of {len(program.definitions)}"


def coverage(
    program: Program,
    binding: Mapping[str, int],
    claims: Sequence[Claim],
    same: Callable[[], Mapping[str, str]],
    *,
    partly: bool = False,
) -> Coverage | None:
    """What of the model can be compared at these extents; None: it is too large.

    Loops of many steps are, too: what a step rounds, the next ones may make anything of. All steps are alike. `same`
    has the values of nodes that are equal to earlier ones, with those of the earlier; it is asked where it matters.
    `partly` is whether nodes that are too large may be left out.
    """
    if any(extents.evaluate(loop.trips, binding) > _STEPS for loop in program.loops):
        return None
    made, nodes = work(program, binding), len(program.definitions)
    if nodes <= _NODES and made.elements <= _DOUBLE and made.products <= _PRODUCTS // 8:
        return Coverage(binding, DOUBLE, made.elements + _NODE * nodes, definitions=nodes)
    if program.loops:
        return None
    same_as = same()
    if len(evaluated(program, claims, same_as.keys())) > _NODES:
        return None
    once = _Once(program, binding, claims, same_as)
    for precision in (DOUBLE, SINGLE):
        found = once.within(precision)
        if found is not None:
            return found
    return once.in_part() if partly else None


def can_be_called(program: Program, binding: Mapping[str, int]) -> bool:
    """Whether what a program was read from can be called as a whole, as its user does, a few times."""
    return work(program, binding).products <= _PRODUCTS


class _Once:
    """A program of which equal claims are compared once."""

    def __init__(
        self, program: Program, binding: Mapping[str, int], claims: Sequence[Claim], same: Mapping[str, str]
    ) -> None:
        self._program = program
        self._binding = binding
        self._claims = claims
        self._same = same
        run = evaluated(program, claims, same.keys())
        self._costs = {d.name: definition_work(d, binding) for d in run}
        self._weights = {
            d.name: {e.tensor for e in walk(d.expr) if isinstance(e, Read) and e.tensor in program.weights} for d in run
        }

    def within(self, precision: Precision, left: frozenset[str] = frozenset()) -> Coverage | None:
        """What is compared but for the values left out, where it can be computed so exactly."""
        program, binding = self._program, self._binding
        run = [d.name for d in evaluated(program, self._claims, self._same.keys() | left)]
        read = set[str]().union(*(self._weights[name] for name in run))
        weights = sum(int(np.size(np.asarray(program.weights[name]))) for name in read)
        elements = sum(math.prod(extents.evaluate(e, binding) for e in t.shape) for t in program.arguments)
        elements += sum(self._costs[name].elements for name in run)
        products = sum(self._costs[name].products for name in run)
        if precision is DOUBLE:
            fits = elements + weights <= _DOUBLE and products <= _PRODUCTS // 8
        else:
            fits = elements <= _SINGLE and weights <= _WEIGHTS and products <= _PRODUCTS
        taken = elements + weights + _NODE * len(run)
        return Coverage(binding, precision, taken, self._same, left, len(run)) if fits else None

    def in_part(self) -> Coverage | None:
        """What is compared of what is too large: the largest nodes go first, that little is left out."""
        makers = {c.tensor: c.node for c in reversed(self._claims)}
        values: dict[str, set[str]] = {}
        for claim in self._claims:
            values.setdefault(claim.node, set()).add(claim.value)

        def share(name: str) -> float:
            return max(self._costs[name].elements / _SINGLE, self._costs[name].products / _PRODUCTS)

        order = sorted(self._costs.keys() & makers.keys(), key=lambda n: (-share(n), n))

        def without(many: int) -> Coverage | None:
            return self.within(SINGLE, frozenset[str]().union(*(values[makers[n]] for n in order[:many])))

        return without(bisect.bisect_left(range(len(order)), True, key=lambda n: without(n) is not None))


def draws_within(sizes: Sequence[Coverage], example: bool) -> list[tuple[str, int]]:
    """The draws that are made, and which of the sizes (extents at which the model can be run) each is made at.

    `sizes` are what is compared at each; with an `example` there are the user's own inputs, of the first size.
    """
    made = [("example", 0)] if example else []
    spent = sizes[0].elements if example else 0
    for n, name in enumerate(example_draws.DRAWS, len(made)):
        at = n % len(sizes)
        double, each = sizes[at].precision is DOUBLE, sizes[at].elements
        if made and spent + each > 2 * (_DOUBLE if double else _SINGLE):
            continue
        if not double and name != example_draws.DRAWS[0]:
            continue  # what overflows or vanishes in float32 is no difference, and the first draw holds ties and zeros
        spent += each
        made.append((name, at))
    return made


def reduced(
    shapes: Sequence[tuple[int, ...]], takes: Callable[[Sequence[tuple[int, ...]]], bool]
) -> list[tuple[int, ...]] | None:
    """Smaller shapes that a model takes; None when there are none.

    Equal extents stay equal and different ones different: the largest goes first, to the least that is taken.
    """
    found = list(shapes)
    for large in sorted({n for s in shapes for n in s if n > _REDUCED[1]}, reverse=True):
        for small in _REDUCED:
            if 2 * small > large:
                break
            if any(n == small for s in found for n in s):
                continue
            tried = [tuple(small if n == large else n for n in s) for s in found]
            if takes(tried):
                found = tried
                break
    return found if found != list(shapes) else None


def same_form(a: Iterable[Definition], b: Iterable[Definition]) -> bool:
    """Whether two lists of definitions are the same but for extents and names."""
    return _form(a) == _form(b)


def _form(definitions: Iterable[Definition]) -> list[tuple[str, ...]]:
    return [(d.dtype.value, *(f"{type(e).__name__} {getattr(e, 'op', '')}" for e in walk(d.expr))) for d in definitions]
