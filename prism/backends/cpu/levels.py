"""Products of bytes, to each of which a number may be added: they are sums in int32, and exact.

What is computed and a byte where it is a number may be NaN, for which int32 has nothing: beside such a product runs a
sum that is NaN where one of its terms is, and is added to the result as that becomes a float. So nothing is taken for
granted of divisors, nor of what underflows, overflows or is not finite in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prism.backends import tile
from prism.backends.cpu.values import Values
from prism.backends.tile import Dims, Operand, Stmt, TileProgram
from prism.backends.tile_rewrite import names_beside, renamed, value_dims
from prism.ir.kit import defined, operands, rewrite, statements
from prism.program import integers
from prism.program.integers import Interval
from prism.program.known import NOTHING, Known, computed, constant, reduced, stored
from prism.program.nodes import DType, ReduceKind
from prism.program.ops import OPS

_BYTES = (DType.INT8, DType.UINT8)
_SUMS = integers.range_of(DType.INT32)


@dataclass(frozen=True, slots=True)
class _Level:
    """A factor that is a byte plus a number."""

    value: str  # the byte, by name: what is loaded, or is computed and known to be one
    dtype: DType  # of the byte
    loaded: bool  # whether it is in memory
    added: Operand  # the number, or the name of one that is the same for all of them
    bounds: Interval  # of the sum


@dataclass(frozen=True, slots=True)
class _Missing:
    """What tells where a factor of a product is NaN."""

    factor: str  # its name
    dims: Dims  # its dimensions
    dim: str  # the one that is summed over
    total: str  # the name of what is NaN where an element of the factor along it is, and else 0
    running: bool  # whether the product adds to its result

    @property
    def start(self) -> Stmt:
        """Of a total that runs."""
        return tile.Full(self.total, 0.0, tuple(d for d in self.dims if d != self.dim), DType.FLOAT32)

    def found(self, nothing: str, part: str) -> Sequence[Stmt]:
        """The total, beside the product; two names for what is on the way."""
        total = part if self.running else self.total
        made: list[Stmt] = [
            tile.Pointwise(nothing, "mul", (self.factor, 0.0), self.dims, DType.FLOAT32),
            tile.Reduce(total, ReduceKind.SUM, nothing, self.dim),
        ]
        return (*made, tile.Update(self.total, ReduceKind.SUM, part)) if self.running else made


def with_products_of_bytes(program: TileProgram) -> TileProgram:
    """The program with products in int32 where both factors are bytes plus a number and no sum leaves int32."""
    if not any(t.dtype in _BYTES for t in program.tensors):
        return program
    v = Values(program)
    v.run()
    facts = _Facts(v)
    made = _products(facts, program.body, {})
    whole = {v.resolve(s.dst) for s in made.values()}
    if not whole:
        return program
    names, dims = names_beside(program), value_dims(program)
    missing: dict[str, list[_Missing]] = {}  # by result
    for s in statements(program.body):
        if isinstance(s, tile.Dot) and id(s) in made:
            sides = [(n, deep) for n, deep in ((s.lhs, -1), (s.rhs, 0)) if facts.may_miss(n)]
            missing[v.resolve(s.dst)] = [
                _Missing(n, dims[n], dims[n][deep], names.fresh(n), s.add is not None) for n, deep in sides
            ]

    def change(s: Stmt) -> Stmt | Sequence[Stmt]:
        own = missing.get(v.resolve(defined(s) or ""), ())
        if id(s) in made:
            return (*(x for m in own for x in m.found(names.fresh(m.factor), names.fresh(m.factor))), made[id(s)])
        if isinstance(s, tile.Full) and s.dst in whole:
            return (replace(s, dtype=DType.INT32), *(m.start for m in own if m.running))
        if isinstance(s, tile.For) or v.resolve(defined(s) or "") in whole:
            return s
        if isinstance(s, tile.Cast) and not s.dtype.is_float:
            return s
        wide: dict[str, str] = {}
        before: list[Stmt] = []
        for n in dict.fromkeys(n for n in operands(s) if v.resolve(n) in whole):
            wide[n] = names.fresh(n)
            before.append(tile.Cast(wide[n], n, DType.FLOAT32))
            for m in missing[v.resolve(n)]:
                sound = names.fresh(n)
                before.append(tile.Pointwise(sound, "add", (wide[n], m.total), dims[n], DType.FLOAT32))
                wide[n] = sound
        return (*before, renamed(s, wide)) if wide else s

    return replace(program, body=rewrite(program.body, change))


def _products(facts: _Facts, body: Sequence[Stmt], trips: Mapping[str, float]) -> dict[int, tile.Dot]:
    """What becomes of the products in a block, by identity; `trips` are of the loops around, by their index."""
    found: dict[int, tile.Dot] = {}
    v = facts.v
    for s in body:
        match s:
            case tile.For(index, _, stop):
                most = float(stop) if isinstance(stop, int) else float("inf")
                found |= _products(facts, s.body, {**trips, index: most})
            case tile.Dot(_, lhs, rhs):
                one, other = facts.level(lhs), facts.level(rhs)
                if one is None or other is None or not (one.loaded or other.loaded) or not _starts_at_zero(v, s):
                    continue
                shared = [n for n in v.lanes_of(one.value) if n in v.lanes_of(other.value)]
                if len(shared) == 1 and _within(v, shared[0], one.bounds.largest * other.bounds.largest, trips):
                    added, types = (one.added, other.added), (one.dtype, other.dtype)
                    found[id(s)] = replace(s, lhs=one.value, rhs=other.value, added=added, bytes=types)
    return found


def _within(v: Values, lane: str, largest: float, trips: Mapping[str, float]) -> bool:
    """Whether sums of so large terms along the lane and over all trips stay within int32."""
    if lane not in v.lanes or not isinstance(v.lanes[lane].extent, int):
        return False
    terms = float(v.lanes[lane].extent)
    for index, most in trips.items():
        if index not in tile.scalars(v.lanes[lane].start):
            terms *= most
    return largest * terms <= _SUMS.high


def _starts_at_zero(v: Values, s: tile.Dot) -> bool:
    """Whether nothing but this product is added up in its result."""
    same = [o for o in statements(v.program.body) if defined(o) == s.dst and o is not s]
    if s.add is None:
        return not same
    return s.add == s.dst and all(isinstance(o, tile.Full) and o.value == 0 for o in same)


class _Facts:
    """What is known of a program's values, and which of them are bytes plus numbers."""

    def __init__(self, v: Values) -> None:
        self.v = v
        self.known: dict[Operand, Known] = {}
        for s in statements(v.program.body):
            match s:
                case tile.Load(dst, tensor):
                    self.known[dst] = stored(integers.range_of(v.tensor(tensor).dtype))
                case tile.Full(dst, value) if dst not in v.accumulators:
                    self.known[dst] = constant(value)
                case tile.Pointwise(dst, "div", (a, b)):
                    self.known[dst] = computed("mul", [self.of(a), computed("recip", [self.of(b)], [b])], [a, None])
                case tile.Pointwise(dst, op, args) if op in OPS:
                    self.known[dst] = computed(op, [self.of(a) for a in args], args)
                case tile.Reduce(dst, kind, src) | tile.Update(dst, ReduceKind() as kind, src):
                    self.known[dst] = reduced(kind, self.of(src))
                case tile.Cast(dst, src, dtype) if not dtype.is_half and (dtype.is_float or self.of(src).bounds.whole):
                    self.known[dst] = self.of(src)

    def of(self, operand: Operand) -> Known:
        """What is known of a value or a number."""
        return self.known.get(self.v.resolve(operand), NOTHING) if isinstance(operand, str) else constant(operand)

    def may_miss(self, name: str) -> bool:
        """Whether a factor is computed from floats, and so may be NaN."""
        v, name = self.v, self.v.resolve(name)
        match v.values[name].stmt:
            case tile.Load(_, tensor):
                return v.tensor(tensor).dtype.is_float
            case tile.Cast(_, src) if v.kind_of(v.resolve(src)) == "i":
                return False
            case tile.Pointwise(_, "add", args):
                return any(isinstance(a, str) and self.may_miss(a) for a in args)
        return True

    def level(self, name: str) -> _Level | None:
        """A factor as a byte plus a number; None where it is none."""
        v, name = self.v, self.v.resolve(name)
        s = v.values[name].stmt if name in v.values else None
        match s:
            case tile.Cast(_, src) if v.kind_of(v.resolve(src)) == "i":
                return self.level(src)
            case tile.Load(_, tensor):
                view, dtype = v.views[name], v.tensor(tensor).dtype
                plain = not view.masks and not view.places and not set(view.strides) - set(v.lanes_of(name))
                bounds = integers.range_of(dtype)
                return _Level(name, dtype, True, 0.0, bounds) if plain and dtype in _BYTES else None
            case tile.Pointwise(_, "add", (a, b)):
                for value, number in ((a, b), (b, a)):
                    level = self.level(value) if isinstance(value, str) else None
                    if level is not None and level.added == 0.0 and self._is_number(number):
                        bounds = integers.image("add", [level.bounds, self.of(number).bounds])
                        added = v.resolve(number) if isinstance(number, str) else number
                        return replace(level, added=added, bounds=bounds)
        own = self.of(name)
        if own.byte is None or v.kind_of(name) != "f" or not v.lanes_of(name):
            return None
        return _Level(name, own.byte, False, 0.0, own.bounds)

    def _is_number(self, operand: Operand) -> bool:
        """Whether it is one whole number for all lanes."""
        known = self.of(operand)
        kept = not isinstance(operand, str) or not self.v.lanes_of(self.v.resolve(operand))
        return kept and known.bounds.whole and known.bounds.within(_SUMS)
