"""Exponentials to the base 2, which is the one that GPUs have.

    s = score * c;  m max= max(s);  p = exp(s - m)                               # before
    s = score;  m max= max(s);  p = exp2(s * (c*log2 e) - m * (c*log2 e))        # where all are scaled by one c > 0
    s = score * (c*log2 e);  m max= max(s);  p = exp2(s - m)                     # where they are not

Values that only lead to exponentials, by operations that commute with a positive factor (sums, signs, selections,
extremes, comparisons with an infinity), are held in another unit, where all that they begin with is a number or a
product with one. Where those are one positive number, and the others 0 or infinite, the values are held without it: it
comes back in the exponent, where a score's product and the difference are one multiply-add, and the maximum's product
is one a row (as in Dao's FlashAttention-2, 2023). Elsewhere log2 e goes into the numbers. Where such a value is needed
as it was (the maximum that a split attention stores) it is multiplied by its unit outside of all loops. Any other
exponential is exp2(x * log2 e): without a scale the difference stays first, as it is exact where logits are large.

Errors: a compiler makes the latter product anyway, in the same precision. In the others the difference is rounded at
the same magnitudes as before, those of s and m times 1.44, where the product is not rounded, and m's is: the
exponential of the maximum itself is 1 but for that. What is below 2**-126 is 0, as it is in hardware's exp2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from prism.backends import tile
from prism.backends.tile_rewrite import clean, names_beside, renamed, value_dims
from prism.ir.connected import connected
from prism.ir.kit import defined, operands, rewrite, statements
from prism.program.nodes import DType

LOG2_E = math.log2(math.e)
_SMALLEST = 2.0**-64
LN_2 = math.log(2.0)
_LINEAR = frozenset({"add", "neg", "maximum", "minimum", "where"})


def binary(program: tile.TileProgram) -> tile.TileProgram:
    """The program with `exp2` in the places of `exp`."""
    everything = statements(program.body)
    if not any(isinstance(s, tile.Pointwise) and s.op == "exp" for s in everything):
        return program
    work = _Rescale(program)
    work.choose(everything)
    return replace(program, body=work.block(program.body))


def of_two(program: tile.TileProgram) -> tile.TileProgram:
    """The program with `exp2(x)` for `exp(x*log 2)`, as programs say it: whole powers of two are exact."""
    powers: dict[str, tile.Operand] = {}
    for s in statements(program.body):
        match s:
            case tile.Pointwise(dst, "mul", args) if LN_2 in args:
                powers[dst] = args[1 - args.index(LN_2)]

    def change(s: tile.Stmt) -> tile.Stmt:
        match s:
            case tile.Pointwise(_, "exp", (str() as x,)) if x in powers:
                return replace(s, op="exp2", args=(powers[x],))
        return s

    return replace(program, body=clean(rewrite(program.body, change))) if powers else program


@dataclass(slots=True)
class _Rescale:
    program: tile.TileProgram
    scaled: set[str] = field(default_factory=set)
    units: dict[str, float] = field(default_factory=dict)
    spread: set[str] = field(default_factory=set)

    # Which values are held in another unit, and in which.

    def choose(self, everything: Sequence[tile.Stmt]) -> None:
        """Fill in `scaled`, the unit of each, and the differences whose operands get the exponent's factor.

        A value that is held is the natural one divided by its unit: ln 2, or the number that all scores are scaled by.
        """
        made: dict[str, list[tile.Stmt]] = {}
        for s in everything:
            name = defined(s)
            if name is not None:
                made.setdefault(name, []).append(s)
        looped = {id(x) for s in everything if isinstance(s, tile.For) for x in statements(s.body)}
        leads = [self._leading(s.args[0], made) for s in everything if isinstance(s, tile.Pointwise) and s.op == "exp"]
        found = [x for x in leads if x is not None]
        while True:
            self.scaled = {n for x in found for n in x}
            strange = {
                n for s in everything if id(s) in looped and not self._keeps(s) for n in operands(s) if n in self.scaled
            }
            if not strange:
                break
            found = [x for x in found if strange.isdisjoint(x)]
        for group in connected(found):
            spread, unit = self._differences(group, everything, made), self._one_factor(group, made)
            self.units.update(dict.fromkeys(group, LN_2 if unit is None or not spread else unit))
            self.spread |= spread if unit is not None else set()

    def _one_factor(self, group: frozenset[str], made: Mapping[str, Sequence[tile.Stmt]]) -> float | None:
        """The positive number of all products that a group begins with, where its other numbers are 0 or infinite."""
        found: set[float] = set()
        for s in (s for name in group for s in made[name]):
            match s:
                case tile.Pointwise(_, "mul", (str() as x, float() as c)) | tile.Pointwise(
                    _, "mul", (float() as c, str() as x)
                ):
                    if c != -1.0 or x not in group:
                        found.add(c if x not in group else math.nan)
                case tile.Pointwise(_, _, args) if not all(isinstance(a, str) or a == 0 or math.isinf(a) for a in args):
                    return None
                case tile.Select(otherwise=number) | tile.Full(value=number) if number != 0 and not math.isinf(number):
                    return None
        number = found.pop() if len(found) == 1 else math.nan
        return number if _SMALLEST < number < math.inf else None

    def _differences(
        self, group: frozenset[str], everything: Sequence[tile.Stmt], made: Mapping[str, Sequence[tile.Stmt]]
    ) -> set[str]:
        """The group's sums of a tile and a part of its dimensions that nothing but exponentials read."""
        dims = value_dims(self.program)
        exponents = {s.args[0] for s in everything if isinstance(s, tile.Pointwise) and s.op == "exp"}
        others = {n for s in everything if not (isinstance(s, tile.Pointwise) and s.op == "exp") for n in operands(s)}
        found: set[str] = set()
        for name in group & exponents - others:
            match made[name]:
                case [tile.Pointwise(_, "add", (str() as a, str() as b), own)] if {dims[a], dims[b]} > {own}:
                    found.add(name)
        return found

    def _leading(self, arg: tile.Operand, made: Mapping[str, Sequence[tile.Stmt]]) -> frozenset[str] | None:
        """Everything from the products with numbers to an operand, or None where it begins with something else."""
        found: set[str] = set()
        left = [arg]
        while left:
            name = left.pop()
            if not isinstance(name, str) or name in found:
                continue
            if name not in made:
                return None
            found.add(name)
            for s in made[name]:
                before = _before(s)
                if before is None:
                    return None
                left += before
        return frozenset(found)

    def _keeps(self, s: tile.Stmt) -> bool:
        """Whether a statement does with multiples of its operands what it does with them, or is an exponential."""
        match s:
            case tile.Pointwise(_, "exp", _) | tile.Pointwise(_, "isnan", _):
                return True
            case tile.Pointwise(_, "eq" | "lt" | "le", (a, b)):
                return any(not isinstance(x, str) and (x == 0 or math.isinf(x)) for x in (a, b))
            case _:
                return defined(s) in self.scaled

    # Statements.

    def block(self, body: Sequence[tile.Stmt]) -> tuple[tile.Stmt, ...]:
        """The statements with their numbers multiplied, and exp2 for exp."""
        names, dims = names_beside(self.program), value_dims(self.program)

        def times(src: str, factor: float, base: str) -> tile.Pointwise:
            return tile.Pointwise(names.fresh(base), "mul", (src, factor), dims[src], DType.FLOAT32)

        def one(s: tile.Stmt) -> list[tile.Stmt]:
            match s:
                case tile.For():
                    return [replace(s, body=tuple(x for inner in s.body for x in one(inner)))]
                case tile.Pointwise(_, "exp", (str() as arg,)) if arg in self.scaled and self._factor(arg) == 1.0:
                    return [replace(s, op="exp2")]
                case tile.Pointwise(_, "exp", (str() as arg,)):
                    product = times(arg, self._factor(arg), "binary")
                    return [product, replace(s, op="exp2", args=(product.dst,))]
                case tile.Pointwise(dst, "add", (str() as a, str() as b)) if dst in self.spread:
                    both = [times(n, self.units[n] * LOG2_E, "binary") for n in (a, b)]
                    return [*both, replace(s, args=tuple(p.dst for p in both))]
                case _ if self._keeps(s):
                    return [self._scaled(s) if defined(s) in self.scaled else s]
                case _:
                    needed = [n for n in dict.fromkeys(operands(s)) if n in self.scaled]
                    plain = [times(n, self.units[n], f"{n}_natural") for n in needed]
                    return [*plain, renamed(s, {str(p.args[0]): p.dst for p in plain})]

        return tuple(x for s in body for x in one(s))

    def _factor(self, name: str) -> float:
        """What the exponential of a value multiplies it by to be one to the base 2."""
        unit = self.units.get(name, 1.0)
        return 1.0 if unit == LN_2 or name in self.spread else unit * LOG2_E

    def _scaled(self, s: tile.Stmt) -> tile.Stmt:
        """The statement for a result that is held in another unit."""
        if self.units[defined(s) or ""] != LN_2:
            match s:
                case tile.Pointwise(dst, "mul", (str() as x, _)) | tile.Pointwise(dst, "mul", (_, str() as x)):
                    return s if x in self.scaled else tile.Copy(dst, x)
                case _:
                    return s
        match s:
            case tile.Pointwise(_, "mul", (str() as x, c)) if not isinstance(c, str) and x not in self.scaled:
                return replace(s, args=(x, c * LOG2_E))
            case tile.Pointwise(_, "mul", (c, str() as x)) if not isinstance(c, str) and x not in self.scaled:
                return replace(s, args=(c * LOG2_E, x))
            case tile.Pointwise(_, op, args) if op != "mul":
                first = 1 if op == "where" else 0
                scaled = (a if isinstance(a, str) else a * LOG2_E for a in args[first:])
                return replace(s, args=(*args[:first], *scaled))
            case tile.Select(otherwise=otherwise):
                return replace(s, otherwise=otherwise * LOG2_E)
            case tile.Full(value=value):
                return replace(s, value=value * LOG2_E)
            case _:
                return s


def _fits(number: float) -> bool:
    """Whether the number is infinite or stays finite in float32: that of a mask may be the least there is."""
    return math.isinf(number) or abs(number) * LOG2_E < 3.4e38


def _before(s: tile.Stmt) -> list[tile.Operand] | None:
    """The operands that are multiples where the result is one; None where it cannot be made one."""
    match s:
        case tile.Pointwise(_, "mul", (str() as x, -1.0)) | tile.Pointwise(_, "mul", (-1.0, str() as x)):
            return [x]
        case tile.Pointwise(_, "mul", (str(), float() as c)) | tile.Pointwise(_, "mul", (float() as c, str())):
            return [] if _fits(c) else None
        case tile.Pointwise(_, op, args, _, DType.FLOAT32) if op in _LINEAR:
            given = args[1:] if op == "where" else args
            return list(given) if all(isinstance(a, str) or _fits(a) for a in given) else None
        case tile.Select(src=src, otherwise=otherwise):
            return [src] if _fits(otherwise) else None
        case tile.Copy(src=src) | tile.Rearrange(src=src):
            return [src]
        case tile.Reduce(kind=kind, src=src) | tile.Update(kind=kind, src=src) if kind is not None and kind.is_extreme:
            return [src]
        case tile.Full(value=value, dtype=DType.FLOAT32):
            return [] if _fits(value) else None
        case _:
            return None
