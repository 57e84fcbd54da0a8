"""Products of bytes, to each of which a number may be added: they are sums in int32, and exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from prism.backends import tile
from prism.backends.cpu.values import Values
from prism.backends.tile import Operand, Stmt, TileProgram
from prism.backends.tile_rewrite import names_beside, renamed
from prism.ir.kit import defined, operands, rewrite, statements
from prism.program import integers
from prism.program.integers import Interval
from prism.program.nodes import DType

_BYTES = (DType.INT8, DType.UINT8)
_SUMS = integers.range_of(DType.INT32)


@dataclass(frozen=True, slots=True)
class _Level:
    """A factor that is a byte in memory plus a number.

    Attributes:
        load: the byte, by name.
        added: the number, or the name of one that is the same for all of them.
        bounds: of the sum.
    """

    load: str
    added: Operand
    bounds: Interval


def with_products_of_bytes(program: TileProgram) -> TileProgram:
    """The program with products in int32 where both factors are bytes plus a number and no sum leaves int32."""
    if not any(t.dtype in _BYTES for t in program.tensors):
        return program
    v = Values(program)
    v.run()
    made = _products(v, program.body, {})
    whole = {v.resolve(s.dst) for s in made.values()}
    if not whole:
        return program
    names = names_beside(program)

    def change(s: Stmt) -> Stmt | Sequence[Stmt]:
        if id(s) in made:
            return made[id(s)]
        if isinstance(s, tile.Full) and s.dst in whole:
            return replace(s, dtype=DType.INT32)
        if isinstance(s, tile.Cast | tile.For) or v.resolve(defined(s) or "") in whole:
            return s
        wide = {n: names.fresh(n) for n in dict.fromkeys(operands(s)) if v.resolve(n) in whole}
        return (*(tile.Cast(to, n, DType.FLOAT32) for n, to in wide.items()), renamed(s, wide)) if wide else s

    return replace(program, body=rewrite(program.body, change))


def _products(v: Values, body: Sequence[Stmt], trips: Mapping[str, float]) -> dict[int, tile.Dot]:
    """What becomes of the products in a block, by identity; `trips` are of the loops around, by their index."""
    found: dict[int, tile.Dot] = {}
    for s in body:
        match s:
            case tile.For(index, _, stop):
                most = float(stop) if isinstance(stop, int) else float("inf")
                found |= _products(v, s.body, {**trips, index: most})
            case tile.Dot(_, lhs, rhs):
                one, other = _level(v, lhs), _level(v, rhs)
                if one is None or other is None or not _starts_at_zero(v, s):
                    continue
                shared = [n for n in v.lanes_of(one.load) if n in v.lanes_of(other.load)]
                if len(shared) == 1 and _within(v, shared[0], one.bounds.largest * other.bounds.largest, trips):
                    found[id(s)] = replace(s, lhs=one.load, rhs=other.load, added=(one.added, other.added))
            case _:
                pass
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


def _level(v: Values, name: str) -> _Level | None:
    name = v.resolve(name)
    s = v.values[name].stmt if name in v.values else None
    match s:
        case tile.Cast(_, src) if v.kind_of(v.resolve(src)) == "i":
            return _level(v, src)
        case tile.Load(_, tensor):
            view, dtype = v.views[name], v.tensor(tensor).dtype
            plain = not view.masks and not view.places and not set(view.strides) - set(v.lanes_of(name))
            return _Level(name, 0.0, integers.range_of(dtype)) if plain and dtype in _BYTES else None
        case tile.Pointwise(_, "add", (a, b)):
            for value, number in ((a, b), (b, a)):
                level = _level(v, value) if isinstance(value, str) else None
                bounds = _number(v, number)
                if level is not None and level.added == 0.0 and bounds is not None:
                    total = integers.image("add", [level.bounds, bounds])
                    return replace(level, added=v.resolve(number) if isinstance(number, str) else number, bounds=total)
    return None


def _number(v: Values, operand: Operand) -> Interval | None:
    """Bounds of a whole number that is the same in all lanes; None for anything else."""
    if not isinstance(operand, str):
        return Interval(operand, operand, whole=True) if operand == int(operand) else None
    name = v.resolve(operand)
    if name not in v.values or v.lanes_of(name) or v.kind_of(name) != "i":
        return None
    match v.values[name].stmt:
        case tile.Load(_, tensor):
            return integers.range_of(v.tensor(tensor).dtype)
        case tile.Cast(_, src):
            return _number(v, src)
        case tile.Pointwise(_, "add" | "mul" | "neg" as op, args):
            bounds = [_number(v, a) for a in args]
            known = [b for b in bounds if b is not None]
            return integers.image(op, known) if len(known) == len(bounds) else None
    return None
