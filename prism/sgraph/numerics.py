"""What an sGraph does to rounding that the reference does not: read off its expressions, without running anything.

    exp       the exponent has no upper bound: neither a maximum over the same values (or more) is subtracted from it,
              nor does its form bound it (-|x|, log sigmoid), nor does what becomes of it (1/(1 + exp x))
    variance  mean(x^2) - mean(x)^2, whose two terms agree in most of their digits where the mean is large
    growth    a scan multiplies what it carries by the exponential of what is not known to be 0 or less: once it has
              overflowed it stays so, where the reference's later places have forgotten what was that large
    overflow  a buffer in float16 holds a sum that only a later kernel divides, or a product of inputs that the
              reference does not multiply with each other: it may overflow where what is computed from it does not
              (bfloat16 has float32's range, so nothing is lost there)

All but the last are refused, for float32 has no answer to them either; for the last the buffer is staged in float32.
What the reference does itself is no finding: its author chose it, and the numeric gate compares with it. An exponent is
the reference's own if it is written so, or if the identity test finds no difference: it overflows where that does.

How exponents are bounded is in value_bounds.py.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from itertools import islice, permutations

from prism.ir.kit import defined
from prism.program.extents import is_static
from prism.program.identity.testing import Outcome, compare
from prism.program.identity.values import Evaluator
from prism.program.index import Axis
from prism.program.nodes import Const, DType, Expr, Map, Read, Reduce, ReduceKind, Size, Tensor, free_axes, walk
from prism.program.ops import BOOLEAN
from prism.program.transform import nested, rename_free
from prism.sgraph.denote import Denotation, kernel_values, stored_values
from prism.sgraph.nodes import Gather, Kernel, Load, Loop, Pointwise, Scan, SGraph, Stmt, Store
from prism.sgraph.value_bounds import Bounds, Divisors, flat, shape

EXP_LIMIT = 80.0
"""Exponents up to here are safe: exp(88.7) is float32's largest number, and sums of some thousands fit."""


class Kind(StrEnum):
    """What is wrong."""

    EXP = "exp"
    VARIANCE = "variance"
    GROWTH = "growth"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class Finding:
    """One numerically unsafe place."""

    kind: Kind  # what is wrong
    where: str  # the tensor whose value it is in, an output or a buffer
    what: str  # the expression, shortened
    why: str  # what happens there, in one line

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: {self.why}"


_WHY: Mapping[Kind, str] = {
    Kind.EXP: "the exponent has no upper bound, so it overflows where the reference does not",
    Kind.VARIANCE: "a variance by difference cancels where the mean is large",
    Kind.GROWTH: "what a scan carries is not known to decay, so it stays infinite where the reference does not",
    Kind.OVERFLOW: "a sum that is divided later, or a product of inputs, is stored in float16: it may overflow alone",
}


@dataclass(slots=True)
class Numerics:
    """Judges sGraphs of one program; what several have in common is worked out once."""

    reference: tuple[Expr, ...]  # the outputs' expressions, as the model has them
    _known: _Known | None = None
    _outputs: dict[Denotation, tuple[tuple[int, Kind, Expr], ...]] = field(default_factory=dict)

    def findings(self, sgraph: SGraph, denotation: Denotation) -> tuple[Finding, ...]:
        """See the function of that name."""
        tensors = {t.name: t for t in sgraph.inputs}
        if self._known is None:
            self._known = _Known.of(self.reference, tensors)
        if denotation not in self._outputs:
            bounds = Bounds(tensors)
            self._outputs[denotation] = tuple(
                (n, kind, at)
                for n, e in enumerate(denotation.outputs)
                for kind, at in (*_unbounded(e, bounds), *_differences(e))
                if not self._known.does(kind, at)
            )
        found: dict[Finding, None] = {}
        for n, kind, at in self._outputs[denotation]:
            found[Finding(kind, sgraph.outputs[n].name, _short(at), _WHY[kind])] = None
        for scan in _growing(sgraph, Bounds(tensors)):
            found[Finding(Kind.GROWTH, scan.dst, str(scan), _WHY[Kind.GROWTH])] = None
        for buffer in _overflowing(sgraph, self._known):
            found[Finding(Kind.OVERFLOW, buffer, buffer, _WHY[Kind.OVERFLOW])] = None
        return tuple(found)

    def safe(self, sgraph: SGraph, denotation: Denotation) -> SGraph | None:
        """The sGraph, staged and with divisors stored where that is needed; None where it is refused."""
        found = self.findings(sgraph, denotation)
        wide = staged(sgraph, found) if found else sgraph
        return None if wide is None else divisors_stored(wide)


def staged(sgraph: SGraph, found: Sequence[Finding]) -> SGraph | None:
    """The sGraph with the buffers of the findings in float32; None where that does not help."""
    if any(f.kind is not Kind.OVERFLOW for f in found):
        return None
    wide = {f.where for f in found}
    buffers = tuple(replace(t, dtype=DType.FLOAT32) if t.name in wide else t for t in sgraph.buffers)
    return replace(sgraph, buffers=buffers) if wide else sgraph


@dataclass(frozen=True, slots=True)
class _Known:
    """What the reference does."""

    unsafe: frozenset[tuple[Kind, str]]  # its own unsafe places, by shape
    values: frozenset[str]  # every value that it computes, by shape
    exponents: tuple[Expr, ...]  # those that have no bound, each shape once
    tensors: tuple[Tensor, ...]  # the inputs
    _equal: dict[Expr, bool] = field(default_factory=dict)
    _evaluated: dict[Hashable, Evaluator] = field(default_factory=dict)

    def does(self, kind: Kind, at: Expr) -> bool:
        """Whether the reference has that unsafe place, too: what is masked also where it has it without the mask."""
        everywhere = _unmasked(at)
        if any((kind, shape(e)) in self.unsafe for e in (at, *([] if everywhere is None else [everywhere]))):
            return True
        match at:
            case Map("exp", (a,)) if kind is Kind.EXP:
                if a not in self._equal:
                    self._equal[a] = any(_same(e, a, self.tensors, self._evaluated) for e in self.exponents)
                return self._equal[a]
        return False

    @staticmethod
    def of(reference: Sequence[Expr], tensors: Mapping[str, Tensor]) -> _Known:
        bounds = Bounds(tensors)
        places = [found for e in reference for found in (*_unbounded(e, bounds), *_differences(e))]
        exponents = {shape(at): at.children[0] for kind, at in places if kind is Kind.EXP}
        return _Known(
            frozenset((kind, shape(at)) for kind, at in places),
            frozenset(shape(x) for e in reference for x in walk(e)),
            tuple(exponents.values()),
            tuple(tensors.values()),
        )


_NAMINGS = 6
"""Ways to name the axes of one expression by those of another that are tried."""


def _same(one: Expr, other: Expr, tensors: Sequence[Tensor], evaluated: dict[Hashable, Evaluator]) -> bool:
    """Whether two values over axes of the same lengths are one, as far as the identity test can tell.

    It looks at some elements of long axes, and may miss the edge of a mask: those have to have the same shapes.
    """
    ours, theirs = sorted(free_axes(other), key=str), sorted(free_axes(one), key=str)
    if sorted(str(a.extent) for a in ours) != sorted(str(a.extent) for a in theirs) or _masks(one) != _masks(other):
        return False

    def named(order: Sequence[Axis]) -> bool:
        renamed = rename_free(one, dict(zip(theirs, order, strict=True)))
        opinion = compare([renamed], [other], tensors=tensors, kept=evaluated, told=False)
        return opinion.outcome is Outcome.AGREE and opinion.compared > 0

    alike = (p for p in permutations(ours) if all(a.extent == b.extent for a, b in zip(theirs, p, strict=True)))
    return any(map(named, islice(alike, _NAMINGS)))


def _masks(e: Expr) -> frozenset[str]:
    """The comparisons that it holds, by shape."""
    return frozenset(shape(x) for x in walk(e) if isinstance(x, Map) and x.op in BOOLEAN)


def _short(e: Expr) -> str:
    text = str(e)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Exponents.


def _unbounded(root: Expr, bounds: Bounds) -> Iterator[tuple[Kind, Expr]]:
    """The exponentials that may overflow and whose overflow shows.

    Where a product that one is a factor of is chosen by a mask, and 0 elsewhere, it is as if it had the mask in itself.
    """
    seen: set[tuple[int, bool, int]] = set()
    stack: list[tuple[Expr, bool, Expr | None]] = [(root, False, None)]
    while stack:
        e, guarded, mask = stack.pop()
        if (id(e), guarded, id(mask)) in seen:
            continue
        seen.add((id(e), guarded, id(mask)))
        match e:
            case Map("exp", (a,)):
                if (
                    not guarded
                    and bounds.of(a)[1] > EXP_LIMIT
                    and (mask is None or _largest(a, mask, bounds) > EXP_LIMIT)
                ):
                    yield Kind.EXP, e if mask is None else Map("exp", (Map("where", (mask, a, Const(-math.inf))),))
                stack.append((a, False, None))
            case Map("recip", (a,)):
                # 1/(b + exp x) with b > 0 goes to 0 where exp x overflows.
                terms = list(flat(a, "add"))
                positive = all(bounds.of(t)[0] >= 0 for t in terms) and any(bounds.of(t)[0] > 0 for t in terms)
                stack += [(t, positive, None) for t in terms]
            case Map("where", (p, a, Const(0.0))):
                stack += [(p, False, None), (a, False, p)]
            case Map("mul", args):
                stack += [(a, False, mask) for a in args]
            case _:
                stack += [(c, False, None) for c in e.children]


def _largest(e: Expr, mask: Expr, bounds: Bounds) -> float:
    """The largest value of a sum where the mask holds: what a maximum is of has the mask, one term or all but one."""
    terms = flat(e, "add")
    found = math.inf
    for n, t in enumerate(terms):
        others = terms[:n] + terms[n + 1 :]
        for within, outside in (([t], others), (others, [t])) if len(others) > 1 else (([t], others),):
            masked: Expr = Map("where", (mask, reduce(_plus, within), Const(-math.inf)))
            found = min(found, bounds.of(reduce(_plus, outside, masked))[1])
    return found


def _plus(a: Expr, b: Expr) -> Expr:
    return Map("add", (a, b))


def _unmasked(e: Expr) -> Expr | None:
    """exp(a), where the expression is that under a mask."""
    match e:
        case Map("exp", (Map("where", (_, a, Const(value))),)) if value == -math.inf:
            return Map("exp", (a,))
    return None


def _growing(sgraph: SGraph, bounds: Bounds) -> Iterator[Scan]:
    """The scans whose growth, over all places, may come to more than an exponential takes."""
    scans = [
        (k.name, s)
        for k in sgraph.kernels
        for s in k.statements()
        if isinstance(s, Scan) and s.growth is not None and s.how.kind is ReduceKind.SUM
        if not (s.how.factors or s.how.rescaled)
    ]
    values = kernel_values(sgraph) if any(isinstance(s.growth, str) for _, s in scans) else {}
    for kernel, s in scans:
        value = Const(float(s.growth)) if not isinstance(s.growth, str | None) else values[kernel].get(str(s.growth))
        high = math.inf if value is None else bounds.of(value)[1]
        if high > 0 and not (is_static(s.axis.extent) and high * int(s.axis.extent) <= EXP_LIMIT):
            yield s


# Variances.


def _differences(root: Expr) -> Iterator[tuple[Kind, Expr]]:
    """Sums of sum_k(x*x)*c and -(sum_k x)^2*d, with c, d > 0."""
    sums = [e for e in walk(root) if isinstance(e, Map) and e.op == "add"]
    within = {id(a) for e in sums for a in e.args}
    for e in sums:
        if id(e) in within:
            continue  # its terms are terms of the larger sum
        squares: set[str] = set()
        products: set[str] = set()
        for t in flat(e, "add"):
            factors = list(flat(t, "mul"))
            sign = math.prod(math.copysign(1.0, f.value) for f in factors if isinstance(f, Const))
            if sign > 0:
                squares |= {s for f in factors if (s := _squared_inside(f))}
            else:
                means = [s for f in factors for s in _sums_inside(f)]
                products |= {s for s in means if means.count(s) > 1}
        if squares & products:
            yield Kind.VARIANCE, e


def _squared_inside(e: Expr) -> str:
    """x, where the expression is a sum of x*x over an axis, or over the parts of one; else nothing."""
    body = _summed(e)
    if body is None:
        return ""
    if isinstance(body, Map) and body.op == "pow" and body.args[1] == Const(2.0):
        return shape(body.args[0])
    if isinstance(body, Map) and body.op == "mul":
        shapes = [shape(f) for f in flat(body, "mul") if not isinstance(f, Const) and free_axes(f)]
        if len(shapes) % 2 == 0 and shapes and all(shapes.count(s) % 2 == 0 for s in shapes):
            return _product_text(s for s in sorted(set(shapes)) for _ in range(shapes.count(s) // 2))
    return ""


def _sums_inside(e: Expr) -> list[str]:
    """For each factor that is a sum of x over an axis: x; a square of a product is two of each."""
    if isinstance(e, Map) and e.op == "pow" and e.args[1] == Const(2.0):
        return [s for f in flat(e.args[0], "mul") for s in _sums_inside(f)] * 2
    body = _summed(e)
    if body is None:
        return []
    shapes = [shape(f) for f in flat(body, "mul") if not isinstance(f, Const) and free_axes(f)]
    return [_product_text(sorted(shapes))] if shapes else []


def _product_text(shapes: Iterator[str] | Sequence[str]) -> str:
    return "*".join(shapes)


def _summed(e: Expr) -> Expr | None:
    """What is summed, over one axis or over the parts of one."""
    return nested(e)[-1].body if isinstance(e, Reduce) and e.kind is ReduceKind.SUM else None


# What overflows in a float16 buffer alone.


def _overflowing(sgraph: SGraph, known: _Known) -> list[str]:
    """The float16 buffers that hold what the reference does not compute, and that may overflow where it does not.

    That is a sum that another kernel divides, and a product of inputs that are not the model's own.
    """
    narrow = {t.name for t in sgraph.buffers if t.dtype is DType.FLOAT16}
    if not narrow:
        return []
    whole, alone = stored_values(sgraph)
    given = {t.name for t in sgraph.inputs if t.dtype.is_float and not t.weight}
    found: list[str] = []
    for t in sgraph.buffers:
        if t.name not in narrow or shape(whole[t.name]) in known.values:
            continue
        divided = any(_divides(e, t.name) for name, e in alone.items() if name != t.name)
        if (divided and _is_sum(whole[t.name])) or _is_product(whole[t.name], given):
            found.append(t.name)
    return found


def _is_product(e: Expr, given: Container[str]) -> bool:
    """Whether the value is a product of several of these tensors that are divided by nothing of their own."""
    factors = list(flat(e, "mul")) if isinstance(e, Map) and e.op == "mul" else []
    divisors = {x.tensor for f in factors if _is_quotient(f) for x in walk(f) if isinstance(x, Read)}
    return len({f.tensor for f in factors if isinstance(f, Read) and f.tensor in given} - divisors) > 1


def _is_sum(e: Expr) -> bool:
    """Whether the value is a sum over an axis, times or plus something, and is not divided by anything."""
    match e:
        case Reduce(ReduceKind.SUM, _, _):
            return True
        case Map("mul", _):
            factors = list(flat(e, "mul"))
            return any(map(_is_sum, factors)) and not any(map(_is_quotient, factors))
        case Map("add", _):
            return any(map(_is_sum, flat(e, "add")))
        case _:
            return False


def _is_quotient(e: Expr) -> bool:
    return isinstance(e, Map) and e.op == "recip" and not isinstance(e.args[0], Const | Size)


def _divides(root: Expr, buffer: str) -> bool:
    """Whether somewhere a value that comes from the buffer by sums and products is divided."""
    for e in walk(root):
        if isinstance(e, Map) and e.op == "mul":
            factors = list(flat(e, "mul"))
            if any(map(_is_quotient, factors)) and any(_carries(f, buffer) for f in factors if not _is_quotient(f)):
                return True
    return False


def _carries(e: Expr, buffer: str) -> bool:
    match e:
        case Read(tensor, _):
            return tensor == buffer
        case Map("add" | "mul" | "neg" | "where", args):
            return any(_carries(a, buffer) for a in args)
        case Reduce(ReduceKind.SUM, _, body):
            return _carries(body, buffer)
        case _:
            return False


# A buffer holds the divisor, and not its reciprocal, where float32 does not hold every reciprocal.
#
# A kernel that stores 1/b leaves to the next one nothing but a product with what may be infinite; one that stores b
# lets it divide (prism.backends.quotients). What is computed is the same.


def divisors_stored(sgraph: SGraph) -> SGraph:
    """The sGraph with divisors in the buffers that held reciprocals which float32 does not hold.

    Raises:
        IllegalIRError: a kernel has no denotation.
    """
    buffers = {t.name for t in sgraph.buffers}
    stores = [(k, s) for k in sgraph.kernels for s in k.statements() if isinstance(s, Store) and s.tensor in buffers]
    inverses = {
        s.tensor: (k, divisor)
        for k, s in stores
        for made in k.statements()
        if isinstance(made, Pointwise) and made.op == "recip" and made.dst == s.src
        for divisor in made.args
        if isinstance(divisor, str)
    }
    if not inverses:
        return sgraph
    divisors, values = Divisors({t.name: t for t in sgraph.inputs}), kernel_values(sgraph)
    changed: dict[str, str] = {}
    # What lies outside of a tensor is 0 for a gather, and 1/0 of it would not be; sums of reciprocals are none.
    gathered = {
        s.tensor
        for k in sgraph.kernels
        for s in k.statements()
        if isinstance(s, Gather) or (isinstance(s, Store) and s.places)
    }
    for tensor, (k, divisor) in inverses.items():
        known = values[k.name].get(divisor)
        if tensor not in gathered and known is not None and not divisors.invertible(known):
            changed[tensor] = divisor
    if not changed:
        return sgraph
    # A divisor may be larger than what float16 holds, where its reciprocal was not.
    kept = tuple(
        replace(t, dtype=DType.FLOAT32) if t.name in changed and t.dtype is DType.FLOAT16 else t for t in sgraph.buffers
    )
    return replace(sgraph, buffers=kept, kernels=tuple(_kernel(k, changed) for k in sgraph.kernels))


def _kernel(kernel: Kernel, changed: Mapping[str, str]) -> Kernel:
    taken = {name for s in kernel.statements() if (name := defined(s)) is not None}

    def body(of: Sequence[Stmt]) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for s in of:
            match s:
                case Loop():
                    made.append(replace(s, body=body(s.body)))
                case Load(dst, tensor, _) if tensor in changed:
                    name = f"{dst}_divisor"
                    while name in taken:
                        name += "_"
                    taken.add(name)
                    made += [replace(s, dst=name), Pointwise(dst, "recip", (name,))]
                case Store(tensor, _, _) if tensor in changed:
                    made.append(replace(s, src=changed[tensor]))
                case _:
                    made.append(s)
        return tuple(made)

    return replace(kernel, body=body(kernel.body))
