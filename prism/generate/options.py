"""Options: the ways to compute each e-class, and the least work of one.

An *option* is an e-node, or one of the forms that an e-node of a sum implies:

    contract   sum_k (a*b), both a and b with axis k: a matrix product, whose product is never a tile of its own
    rescaled   sum_k exp(a + -1*M)*f with M = max_k ...: one pass with a rescaled accumulator, where the plain form
               needs M's pass to end first; also over several axes, the longest the outermost
    deviations sum_k (a - 1/n * sum_k a)^2, n the length of k, or over several axes: one pass that merges means, where
               the plain form needs the mean first
    scan       sum_m where(m <= n, f, 0), f without n and m as long as n: f's prefix sums along n, in one loop over it;
               also with exp(G(n) - G(m))*f under the sum, G the prefix sums of a growth g, or as many g as there are
               places between; and where(m < n, exp(G(n) - g(n) - G(m))*f, 0), the sum before each place; and
               where(m <= n, exp(a - M)*f, 0), M(n) = max_m where(m <= n, b, -inf), rescaled as M moves

An e-node of a minimum implies

    first      min_k where(v == M, k, n), M the maximum or minimum of v along k, n beyond all places: the first place
               where M is met, in the pass that finds M; also with `v is undefined or` before the comparison

Where the e-node picks an element, it is a load and nothing else:

    gather     sum_k where(k == p, x[..., k, ...], 0), p without k: x at the place p, of one such k or of several

`options` lists them without those that the pruners commuted, leaf, operands and product remove (see pruning.PRUNERS).
`Weights` says what an option costs by itself, counted once: the measure by which forms are put in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, compress
from math import isclose, prod
from typing import TypeAlias

from prism.cost.counts import DEVIATION_WORK
from prism.cost.device import MATRIX_OPERATION
from prism.generate.scans import Along, Pairs, Scans, differences, is_number, positions
from prism.program.classes import EClasses, ENode, Payload
from prism.program.extents import Extent, evaluate, is_static
from prism.program.index import Axis
from prism.program.nodes import Const, Read, ReduceKind, Size, Tensor
from prism.program.ops import COMMUTATIVE, OPS
from prism.program.products import matrix_product

REDUCTIONS = frozenset(k.value for k in ReduceKind)
FIRST = {"first max": ReduceKind.MAX, "first min": ReduceKind.MIN}
"""Of what the first place is found."""
REDUCING = REDUCTIONS | {"contract", "rescaled", "deviations", "scan", *FIRST}
ONE_PASS = frozenset({"rescaled", *FIRST})
"""What goes with an extreme in the pass that finds it."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a gather reads."""

    element: Read  # the read, over the axes of the places and others
    # Those that the gather's operands are places along, each the only axis of one of the element's indices.
    axes: tuple[Axis, ...]

    @property
    def dimensions(self) -> tuple[int, ...]:
        """The tensor's dimension that each place is along."""
        return tuple(next(n for n, i in enumerate(self.element.index) if a in i.axes()) for a in self.axes)


@dataclass(frozen=True, slots=True)
class Over:
    """Several axes, the outermost first."""

    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """How an e-class is computed."""

    # An e-node's op, "contract" with children (a, b), "rescaled" with children (a, b) or (a, b, f), where the shift is
    # M = max_axis(b) or the maximum over its axes, "first max" or "first min" with children (v, n) or (v, n, whether v
    # is undefined), "deviations" with children (a,), "scan" with its operands (see `Scan`) as children, or "gather"
    # with its places.
    op: str
    # The e-node's payload; the reduced axis for contract, rescaled and deviations, or axes for those; for a scan its
    # axes; for a gather what it reads.
    payload: Payload | Along | Chosen | Over
    children: tuple[int, ...]  # e-class ids

    @property
    def reduced(self) -> frozenset[Axis]:
        """The axes that it reduces."""
        match self.payload:
            case Axis() as axis if self.op in REDUCING:
                return frozenset({axis})
            case Over(axes):
                return frozenset(axes)
            case _:
                return frozenset()

    @property
    def innermost(self) -> Axis:
        """The axis that a product is contracted over: of several the innermost."""
        axis = self.payload.axes[-1] if isinstance(self.payload, Over) else self.payload
        assert isinstance(axis, Axis)
        return axis


Choices: TypeAlias = Mapping[int, Choice]


def below(choices: Choices, roots: Sequence[int], stored: Mapping[int, object] | None = None) -> list[int]:
    """E-classes that a form uses for the roots, operands before results; not what only stored ones need."""
    stops = stored or {}
    seen: set[int] = set()
    order: list[int] = []
    # What is done once its operands are is there as its complement, which no e-class has for a number.
    stack = [*reversed(roots)]
    while stack:
        cls = stack.pop()
        if cls < 0:
            order.append(~cls)
        elif cls not in seen:
            seen.add(cls)
            children = choices[cls].children
            if children and (cls not in stops or cls in roots):
                stack.append(~cls)
                stack += [c for c in children[::-1] if c not in seen]
            else:
                order.append(cls)
    return order


def options(
    classes: EClasses, off: frozenset[str] = frozenset(), pruned: Counter[str] | None = None
) -> dict[int, tuple[Choice, ...]]:
    """Every option of every e-class, each once, in the e-graph's order."""
    counts = pruned if pruned is not None else Counter()
    apart = differences(classes)
    shifts, scans = _shifted_exponents(classes, apart), Scans(classes, apart)
    centred = _Centred(classes)
    found: dict[int, tuple[Choice, ...]] = {}
    gathers = _Gathers(classes)
    rules = (*_RULES, ("product", partial(_product, _streamed(classes))))
    for cls, nodes in classes.nodes.items():
        mine: dict[Choice, None] = {}
        fetched = gathers.of(cls)
        for node in () if fetched else nodes:
            if node.domain or cls in node.children:
                continue
            if node.op in REDUCTIONS and node.payload not in classes.axes[node.children[0]]:
                continue  # as many equal values as the axis is long: the rules write it without the axis
            mine[Choice(node.op, node.payload, node.children)] = None
            if node.op in REDUCTIONS:
                assert isinstance(node.payload, Axis)
                for along, operands in scans.of(ReduceKind(node.op), node.payload, node.children[0]):
                    mine[Choice("scan", along, operands)] = None
            if node.op == "sum":
                for extra in _sum_forms(classes, node, shifts):
                    mine[extra] = None
            if node.op == "min":
                mine |= dict.fromkeys(_first_places(classes, node))
        if any(c.op == "sum" for c in mine):
            mine |= dict.fromkeys(centred.of(cls))
        left = [*fetched, *mine]
        for name, rule in rules:
            if name not in off:
                before = len(left)
                left = rule(classes, left)
                counts[name] += before - len(left)
        found[cls] = tuple(left)
    return found


def fixed_classes(classes: EClasses, ways: Mapping[int, Sequence[Choice]], inputs: Iterable[Tensor]) -> frozenset[int]:
    """The e-classes that some way computes from the model's weights alone, and that have axes.

    All lengths are known there, so that it can be done before any call. What reads nothing (constants, positions) hangs
    on nothing, and is no such e-class. `ways` are the options of each e-class; of a form its choice alone. Some of the
    inputs are weights.
    """
    weights = {t.name for t in inputs if t.weight}
    if not weights:
        return frozenset()
    static = {c for c in ways if all(is_static(a.extent) for a in classes.axes[c])}
    reads: dict[int, bool] = {}
    """Of what hangs on nothing but weights, whether it reads one."""

    def found(choice: Choice) -> bool | None:
        match choice.payload:
            case Read(tensor) | Chosen(Read(tensor)) if tensor not in weights:
                return None
            case payload:
                if any(k not in reads for k in choice.children) or not all(is_static(a.extent) for a in choice.reduced):
                    return None
                return isinstance(payload, Read | Chosen) or any(reads[k] for k in choice.children)

    grown = True
    while grown:
        grown = False
        for c in static:
            for choice in ways[c]:
                more = found(choice)
                if more is not None and (c not in reads or more > reads[c]):
                    reads[c], grown = more, True
    return frozenset(c for c, read in reads.items() if read and classes.axes[c])


def _commuted(_: EClasses, mine: list[Choice]) -> list[Choice]:
    seen: dict[tuple[object, ...], Choice] = {}
    for c in mine:
        operands = tuple(sorted(c.children)) if c.op in COMMUTATIVE or c.op == "contract" else c.children
        seen.setdefault((c.op, c.payload, operands), c)
    return list(seen.values())


def _leaf(_: EClasses, mine: list[Choice]) -> list[Choice]:
    leaves = [c for c in mine if not c.children]
    return leaves[:1] or mine


def _operands(_: EClasses, mine: list[Choice]) -> list[Choice]:
    own = [(OPS[c.op].flops, frozenset(c.children)) if c.op in OPS else None for c in mine]
    # The cheapest over each set of operands. Sums of many terms have thousands of options, each over few operands.
    least: dict[frozenset[int], int] = {}
    for cost, over in filter(None, own):
        least[over] = min(cost, least.get(over, cost))

    def replaced(cost: int, over: frozenset[int]) -> bool:
        fewer = (frozenset(under) for size in range(len(over)) for under in combinations(over, size))
        return least[over] < cost or any(under in least and least[under] <= cost for under in fewer)

    return [c for c, o in zip(mine, own, strict=True) if o is None or not replaced(*o)]


def _product(streamed: frozenset[int], classes: EClasses, mine: list[Choice]) -> list[Choice]:
    contracted = {c.payload for c in mine if c.op == "contract"}

    def product(c: Choice) -> bool:
        (body,) = c.children
        factors = [n.children for n in classes.nodes[body] if n.op == "mul" and not n.domain]
        factors = [fs for fs in factors if all(c.payload in classes.axes[f] for f in fs)]
        # Of two that take reductions the product may be stored in the place of both, where it is as large as one.
        sums = [fs for fs in factors if streamed.isdisjoint(fs) and len(set(fs)) > 1]
        stored = any(classes.axes[body] <= classes.axes[f] for fs in sums for f in fs)
        return bool(factors) and not stored

    return [c for c in mine if not (c.op == "sum" and c.payload in contracted and product(c))]


def _streamed(classes: EClasses) -> frozenset[int]:
    """E-classes that nothing is gained by storing.

    Some way computes them from an input's elements over all of their axes, each from its own, or from such alone.
    """
    found: set[int] = set()

    def streams(cls: int, node: ENode) -> bool:
        axes = classes.axes[cls]
        alone = found.issuperset(node.children)
        return alone or any(c in found and classes.axes[c] == axes for c in node.children)

    before = -1
    while len(found) > before:
        before = len(found)
        for cls, nodes in classes.nodes.items():
            if any(n.op not in REDUCTIONS and streams(cls, n) for n in nodes):
                found.add(cls)
    return frozenset(found)


_RULES = (("commuted", _commuted), ("leaf", _leaf), ("operands", _operands))


def _sum_forms(classes: EClasses, total: ENode, shifts: Pairs) -> list[Choice]:
    """The contract and rescaled forms of a sum."""
    axis, body = total.payload, total.children[0]
    assert isinstance(axis, Axis)
    forms: list[Choice] = []
    for a, m in shifts.get(body, ()):
        forms += [Choice("rescaled", axis, (a, b)) for b in _maxima(classes, m, axis)]
    for inner in _plain(classes, body, "sum"):
        forms += _rescaled_over(classes, (axis, inner.payload), inner.children[0], shifts)
    for node in classes.nodes[body]:
        if node.op != "mul" or node.domain:
            continue
        lhs, rhs = node.children
        if axis in classes.axes[lhs] and axis in classes.axes[rhs] and lhs <= rhs:
            forms.append(Choice("contract", axis, (lhs, rhs)))
        for p, f in ((lhs, rhs), (rhs, lhs)):
            for a, m in shifts.get(p, ()):
                if axis in classes.axes[f] and axis in classes.axes[a]:
                    forms += [Choice("rescaled", axis, (a, b, f)) for b in _maxima(classes, m, axis)]
    return forms


def _rescaled_over(classes: EClasses, axes: tuple[object, ...], body: int, shifts: Pairs) -> Iterator[Choice]:
    """The rescaled forms of a sum over two axes."""
    one, other = (a for a in axes if isinstance(a, Axis))
    if not {one, other} <= classes.axes[body]:
        return
    over = Over(tuple(sorted((one, other), key=_by_length)))

    def maxima(m: int) -> Iterator[int]:
        if other not in classes.axes[m]:
            yield from (b for inner in _maxima(classes, m, one) for b in _maxima(classes, inner, other))

    yield from (Choice("rescaled", over, (a, b)) for a, m in shifts.get(body, ()) for b in maxima(m))
    for node in _plain(classes, body, "mul"):
        for p, f in (node.children, node.children[::-1]):
            for a, m in shifts.get(p, ()):
                if {one, other} <= classes.axes[f] & classes.axes[a]:
                    yield from (Choice("rescaled", over, (a, b, f)) for b in maxima(m))


def _by_length(axis: Axis) -> tuple[int, str]:
    """The longest first; what is not known is long."""
    return -int(axis.extent) if is_static(axis.extent) else -(1 << 62), axis.name


def _first_places(classes: EClasses, least: ENode) -> Iterator[Choice]:
    """The first places of extremes that a minimum is."""
    axis = least.payload
    assert isinstance(axis, Axis)
    for node in _plain(classes, least.children[0], "where"):
        mask, place, beyond = node.children
        if axis not in positions(classes, place) or not _is_beyond(classes, beyond, axis):
            continue
        for value, op in _met(classes, mask, axis):
            yield Choice(op, axis, (value, beyond))
        for either in _plain(classes, mask, "or"):
            for guard, met in (either.children, either.children[::-1]):
                undefined = {n.children[0] for n in _plain(classes, guard, "isnan")}
                for value, op in _met(classes, met, axis):
                    if value in undefined:
                        yield Choice(op, axis, (value, beyond, guard))


def _met(classes: EClasses, mask: int, axis: Axis) -> Iterator[tuple[int, str]]:
    """The values v, and of which extreme, for which a mask is v == M, M v's extreme along the axis."""
    for node in _plain(classes, mask, "eq"):
        for value, extreme in (node.children, node.children[::-1]):
            if axis in classes.axes[value]:
                for op, kind in FIRST.items():
                    if any(n.payload == axis and n.children == (value,) for n in _plain(classes, extreme, kind.value)):
                        yield value, op


def _is_beyond(classes: EClasses, cls: int, axis: Axis) -> bool:
    """Whether the e-class is a number that is greater than every place of the axis."""
    for n in classes.nodes[cls]:
        match n.payload:
            case Const(value) if is_static(axis.extent) and value >= int(axis.extent):
                return True
            case Size(extent) if extent == axis.extent:
                return True
    return False


def _plain(classes: EClasses, cls: int, op: str) -> Iterator[ENode]:
    return (n for n in classes.nodes[cls] if n.op == op and not n.domain)


@dataclass(slots=True)
class _Gathers:
    """Finds the e-classes that are elements of tensors at places that other e-classes give."""

    classes: EClasses
    _known: dict[int, tuple[Choice, ...]] = field(default_factory=dict)

    def of(self, cls: int) -> tuple[Choice, ...]:
        """The gathers that an e-class is, each once."""
        if cls not in self._known:
            self._known[cls] = ()  # what is made of itself is none
            self._known[cls] = tuple(dict.fromkeys(self._found(cls)))
        return self._known[cls]

    def _found(self, cls: int) -> Iterator[Choice]:
        for node in self.classes.nodes[cls]:
            if node.op != "sum" or node.domain:
                continue
            assert isinstance(node.payload, Axis)
            for inner in self.classes.nodes[node.children[0]]:
                if inner.op != "where" or inner.domain or not is_number(self.classes, inner.children[2], 0):
                    continue
                for place in self._places(inner.children[0], node.payload):
                    for element, axes, places in self._elements(inner.children[1]):
                        if _reads_along(element, node.payload):
                            yield Choice("gather", Chosen(element, (node.payload, *axes)), (place, *places))

    def _elements(self, cls: int) -> Iterator[tuple[Read, tuple[Axis, ...], tuple[int, ...]]]:
        for node in self.classes.nodes[cls]:
            if isinstance(node.payload, Read):
                yield node.payload, (), ()
        for choice in self.of(cls):
            assert isinstance(choice.payload, Chosen)
            yield choice.payload.element, choice.payload.axes, choice.children

    def _places(self, mask: int, axis: Axis) -> Iterator[int]:
        """The e-classes p, without the axis, for which the mask is `axis == p`."""
        for node in self.classes.nodes[mask]:
            if node.op == "eq" and not node.domain:
                for position, place in (node.children, node.children[::-1]):
                    if axis in positions(self.classes, position) and axis not in self.classes.axes[place]:
                        yield place


def _reads_along(element: Read, axis: Axis) -> bool:
    """Whether the axis is all that one index varies with, place by place, and is in no other."""
    own = [i for i in element.index if axis in i.axes()]
    return len(own) == 1 and own[0].terms == ((axis, 1),)


def _maxima(classes: EClasses, cls: int, axis: Axis) -> list[int]:
    """The e-classes b with cls = max_axis(b), for a cls that does not depend on the axis."""
    if axis in classes.axes[cls]:
        return []
    return [
        n.children[0]
        for n in classes.nodes[cls]
        if n.op == "max" and n.payload == axis and not n.domain and axis in classes.axes[n.children[0]]
    ]


def _shifted_exponents(classes: EClasses, apart: Pairs) -> Pairs:
    """For each e-class that is exp(a + -1*m): the pairs (a, m)."""
    return {
        cls: tuple(pair for n in nodes if n.op == "exp" for pair in apart.get(n.children[0], ()))
        for cls, nodes in classes.nodes.items()
        if any(n.op == "exp" for n in nodes)
    }


@dataclass(slots=True)
class _Centred:
    """Finds the e-classes that are sums of squares about the mean of what is squared, over the same axes."""

    classes: EClasses
    _differences: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    _sums: dict[int, dict[tuple[frozenset[Axis], int], None]] = field(default_factory=dict)

    def of(self, cls: int) -> Iterator[Choice]:
        """For the axes k, l, ..., as long together as n, what is sum_k sum_l (a + -1/n * sum_k sum_l a)^2.

        Each of the axes is the outermost once. Of several names of them, those of one are enough.
        """
        found: dict[tuple[int, tuple[Axis, ...]], None] = {}
        for axes, body in self._sums_of(cls):
            for node in self.classes.nodes[body]:
                if node.op == "mul" and len(set(node.children)) == 1 and not node.domain:
                    for a, mean in self._of_difference(node.children[0]):
                        if self._is_minus_mean(mean, axes, a):
                            found[a, tuple(sorted(axes, key=lambda x: x.name))] = None
        if found:
            a, named = min(found, key=lambda t: (t[0], [k.name for k in t[1]]))
            for first in named:
                over = (first, *(k for k in named if k != first))
                yield Choice("deviations", Over(over) if len(over) > 1 else first, (a,))

    def _sums_of(self, cls: int) -> dict[tuple[frozenset[Axis], int], None]:
        """The pairs (axes, e-class) of which it is the sum, in the e-graph's order."""
        known = self._sums.get(cls)
        if known is None:
            known = self._sums[cls] = {}
            for node in self.classes.nodes[cls]:
                axis = node.payload
                if node.op == "sum" and isinstance(axis, Axis) and not node.domain:
                    (body,) = node.children
                    if axis in self.classes.axes[body]:
                        known[frozenset({axis}), body] = None
                        for axes, inner in self._sums_of(body):
                            known[axes | {axis}, inner] = None
        return known

    def _of_difference(self, cls: int) -> tuple[tuple[int, int], ...]:
        """The pairs of which it is the sum, where the second has fewer axes."""
        if cls not in self._differences:
            self._differences[cls] = tuple(
                (a, b)
                for n in self.classes.nodes[cls]
                if n.op == "add" and not n.domain
                for a, b in (n.children, n.children[::-1])
                if self.classes.axes[b] < self.classes.axes[a]
            )
        return self._differences[cls]

    def _is_minus_mean(self, cls: int, axes: frozenset[Axis], of: int) -> bool:
        """Whether the e-class is -1/n * the sum of the other over the axes, n as many as there are."""
        return any(
            n.op == "mul"
            and not n.domain
            and (axes, of) in self._sums_of(n.children[1])
            and self._is_minus_share(n.children[0], axes)
            for n in self.classes.nodes[cls]
        )

    def _is_minus_share(self, cls: int, axes: frozenset[Axis]) -> bool:
        """Whether the e-class is -1 over the number of places of the axes."""
        nodes = self.classes.nodes[cls]
        extents = [a.extent for a in axes]
        if all(map(is_static, extents)):
            count = prod(int(e) for e in extents)
            return any(isinstance(n.payload, Const) and isclose(-n.payload.value * count, 1) for n in nodes)
        return len(extents) == 1 and any(
            n.op == "mul" and is_number(self.classes, n.children[0], -1) and self._is_share(n.children[1], extents[0])
            for n in nodes
        )

    def _is_share(self, cls: int, extent: Extent) -> bool:
        return any(
            n.op == "recip" and any(m.payload == Size(extent) for m in self.classes.nodes[n.children[0]])
            for n in self.classes.nodes[cls]
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """What an option costs by itself, each value counted once, at one shape."""

    classes: EClasses  # the e-graph
    hints: Mapping[str, int]  # the value of every symbol of the extents
    dot: int = 1  # the least elements that matrix units sum; shorter sums are filled up
    # e-classes that hang on the model's weights alone: they are computed before any call, and cost nothing.
    fixed: frozenset[int] = frozenset()
    _sizes: dict[frozenset[Axis], float] = field(default_factory=dict, compare=False, repr=False)

    def size(self, axes: frozenset[Axis]) -> float:
        """The number of elements of a value with these axes."""
        known = self._sizes.get(axes)
        if known is None:
            known = self._sizes[axes] = self.elements(a.extent for a in axes)
        return known

    def elements(self, shape: Iterable[Extent]) -> float:
        """The number of elements of a tensor."""
        return float(prod(evaluate(e, self.hints) for e in shape))

    def work(self, cls: int, choice: Choice) -> float:
        """Multiply-adds of vector units, those of matrix units weighed by MATRIX_OPERATION."""
        if cls in self.fixed:
            return 0.0
        axes = [self.classes.axes[k] for k in choice.children]
        match choice.op:
            case "contract":
                return self.size(axes[0] | axes[1]) * self._weight(axes[0], axes[1], choice)
            case "scan" if isinstance(choice.payload, Along) and choice.payload.how.rescaled:
                # The maximum and what its moves scale by, the exponentials, and what is carried; or a product, too.
                exponentials = self.size(axes[1]) + self.size(axes[0] | axes[1])
                return exponentials * (1 + OPS["exp"].flops) + self.size(frozenset().union(*axes)) * len(axes)
            case "rescaled":
                exponent = axes[0] | axes[1]
                work = self.size(axes[1]) + self.size(exponent) * (1 + OPS["exp"].flops)
                if len(axes) == 3:
                    return work + self.size(exponent | axes[2]) * self._weight(exponent, axes[2], choice)
                return work + self.size(exponent)
            case "scan":
                assert isinstance(choice.payload, Along)
                exponential = OPS["exp"].flops if choice.payload.how.exponential else 0
                grown = self.size(axes[1]) * exponential + self.size(axes[0]) if len(axes) == 2 else 0.0
                return self.size(axes[0]) + grown
            case op if op in REDUCTIONS:
                return self.size(axes[0])
            case op if op in FIRST:
                # The extreme, the comparison, the choice of a place and the least of those.
                return self.size(axes[0]) * (4 + 2 * (len(axes) == 3))
            case "deviations":
                return self.size(axes[0]) * DEVIATION_WORK
            case "gather":
                return 0.0
            case op if choice.children:
                return self.size(self.classes.axes[cls]) * OPS[op].flops
            case _:
                return 0.0

    def _weight(self, lhs: frozenset[Axis], rhs: frozenset[Axis], choice: Choice) -> float:
        """What a multiply-add of a contraction weighs."""
        axis = choice.innermost
        if not matrix_product(lhs, rhs, {axis}):
            return 1.0
        return min(1.0, 2 * MATRIX_OPERATION * max(1.0, self.dot / self.size(frozenset({axis}))))


_FLAGS = bytes.maketrans(b"01", b"\0\1")


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """What a kernel goes through; one object for one kernel of a form, so it can be a key."""

    used: tuple[int, ...]  # the e-classes, operands before results; also those that are read back
    back: frozenset[int]  # those that are stored and not the kernel's own


@dataclass(slots=True)
class Within:
    """Finds what kernels of a form go through."""

    choices: Choices  # the form
    reduced: Mapping[int, frozenset[Axis]] = field(init=False)  # the axes that each e-class's choice reduces
    # The e-classes, operands before results; as bits by their places, what each is, its operands, and all below it and
    # itself.
    _order: Sequence[int] = field(init=False)
    _bit: dict[int, int] = field(init=False)
    _operands: list[int] = field(init=False)
    _under: list[int] = field(init=False)
    _known: dict[tuple[int, ...], tuple[int, dict[int, Inside]]] = field(default_factory=dict)
    _each: dict[tuple[tuple[int, ...], int], Inside] = field(default_factory=dict)
    _stored: Mapping[int, object] | None = None
    _held: int = 0

    def __post_init__(self) -> None:
        self.reduced = {c: choice.reduced for c, choice in self.choices.items()}
        self._order = below(self.choices, list(self.choices))
        self._bit = {c: 1 << n for n, c in enumerate(self._order)}
        self._operands = [self._bits(self.choices[c].children) for c in self._order]
        self._under = []
        for n, c in enumerate(self._order):
            under = 1 << n
            for k in self.choices[c].children:
                under |= self._below(k)
            self._under.append(under)

    def of(self, own: Sequence[int], stored: Mapping[int, object]) -> Inside:
        """What the kernel that computes these e-classes goes through, where some are stored.

        Args:
            own: what it computes.
            stored: what is stored; not to be changed between calls.
        """
        roots = tuple(own)
        if stored is not self._stored:
            # A plan asks of each of its kernels; what it stores stays the same meanwhile.
            self._stored, self._held = stored, self._bits(stored)
        under, found = self._known.get(roots) or self._under_all(roots)
        held = self._held & under
        known = found.get(held)
        if known is None:
            known = found[held] = self._inside(roots, self._bits(roots), held)
        return known

    def _under_all(self, roots: tuple[int, ...]) -> tuple[int, dict[int, Inside]]:
        """What is below what a kernel computes, as bits, and what it goes through, by what of that is stored."""
        under = 0
        for c in roots:
            under |= self._below(c)
        found = self._known[roots] = (under & ~self._bits(roots), {})
        return found

    def _inside(self, roots: tuple[int, ...], mine: int, held: int) -> Inside:
        """The same, results before operands, as bits: thousands of kernels are gone through."""
        seen = left = mine
        back = 0
        while left:
            place = left.bit_length() - 1
            bit = 1 << place
            left ^= bit
            if held & bit:
                back |= bit
            elif held & self._under[place]:
                new = self._operands[place] & ~seen
                seen |= new
                left |= new
            else:
                # All of it, as nothing below it is read back.
                seen |= self._under[place]
                left &= ~self._under[place]
        # What is stored under something else that is read back does not matter.
        known = self._each.get((roots, back))
        if known is None:
            used = tuple(compress(self._order, f"{seen:b}"[::-1].encode().translate(_FLAGS)))
            known = Inside(used, frozenset(c for c in used if self._bit[c] & back))
            self._each[roots, back] = known
        return known

    def _bits(self, several: Iterable[int]) -> int:
        found = 0
        for c in several:
            found |= self._bit[c]
        return found

    def needs(self, root: int, cls: int) -> bool:
        """Whether one e-class is computed from another, or is it."""
        return bool(self._below(root) & self._bit.get(cls, 0))

    def depend(self, several: Sequence[int]) -> bool:
        """Whether one of these e-classes is computed from another of them."""
        every = self._bits(several)
        return any(self._below(c) & every & ~self._bit[c] for c in several)

    def _below(self, root: int) -> int:
        """The e-classes that one is computed from and itself, as bits."""
        return self._under[self._bit[root].bit_length() - 1]
