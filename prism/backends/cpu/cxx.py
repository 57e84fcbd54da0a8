"""C++ source: a writer of braces, integer expressions over 64-bit integers, and pointwise operations."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sympy

from prism.backends.source import PRODUCT, IntegerPrinter, Lines
from prism.errors import UnsupportedError
from prism.program.extents import Extent
from prism.program.ops import OPS

_TAKEN = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr continue
decltype default delete do double else enum explicit export extern false float for friend goto if inline int long
mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register return short
signed sizeof static struct switch template this throw true try typedef typeid typename union unsigned using
virtual void volatile wchar_t while xor xor_eq
prism full lanes part body packed packed_a packed_b seen_0 seen_1 room pid threads total main linux unix at tensors
lengths end own Packed Seen Chunk
sizes past soon run step VL MR NR PANEL LINE AHEAD PAGE Held held Turn Panels Level level_int8_t level_uint8_t vf vi vu
vl vh vs vb vub v8 bf16 f16 Whole Part Count Sum Prod Max Min Scratch scratch Panels multiply
multiply_halves multiply_bytes multiply_window Along INFINITY NAN exp log sin cos tan tanh erf sqrt floor round pow abs
"""
_KEYWORDS = frozenset(_TAKEN.split())
_PREFIXES = ("v_", "i_", "n_", "t_", "b_", "h_", "p_", "s_", "pack_", "mul_", "window_", "PRISM", "_", "INT", "UINT")


class Names:
    """C++ identifiers for the names of a tile program, each its own."""

    def __init__(self, names: Iterable[str]) -> None:
        given = sorted(set(names))
        self._map: dict[str, str] = {}
        taken = set(given)
        for name in given:
            made = name
            if made in _KEYWORDS or made.startswith(_PREFIXES):
                made = "x" + made
                while made in taken:
                    made += "x"
                taken.add(made)
            self._map[name] = made
        self._used = set(self._map.values())

    def fresh(self, base: str) -> str:
        """An identifier that is no name's and was not given out before: the base with a number."""
        count = 1
        while f"{base}_{count}" in self._used:
            count += 1
        self._used.add(f"{base}_{count}")
        return f"{base}_{count}"

    def __call__(self, name: str) -> str:
        """The identifier; a name that was not announced stays as it is."""
        return self._map.get(name, name)


class Writer(Lines):
    """C++."""

    def let(self, name: str, source: str, *, again: bool = False) -> None:
        """See Lines."""
        self.line(f"{name} = {source};" if again else f"const int64_t {name} = {source};")

    @contextmanager
    def block(self, head: str = "", tail: str = "") -> Iterator[None]:
        """A block in braces after its head."""
        self.line(f"{head} {{" if head else "{")
        with self.indented():
            yield
        self.line("}" + tail)


class CxxIntegers(IntegerPrinter):
    """As C++, over 64-bit integers.

    `names` are what symbols are called.
    """

    where = "C++ emission"
    quotient, remainder = ("/", PRODUCT), ("%", PRODUCT)
    cdiv, least, greatest = "v_cdiv", "v_mini", "v_maxi"

    def __init__(self, names: Names) -> None:
        self._names = names

    def name(self, symbol: str) -> str:
        """As `names` has it."""
        return self._names(symbol)

    def order(self, e: Any) -> list[Any]:
        """By what operands are made of, not by how long their names are: sources of equal kernels differ in these."""
        operands = (a for a in e.args if not a.is_Number)
        return sorted(operands, key=lambda a: (-sum(1 for _ in sympy.preorder_traversal(a)), str(a)))

    def number(self, value: int) -> str:
        """A literal of 64 bits where it needs them."""
        return str(value) if abs(value) < 2**31 else f"INT64_C({value})"


def integer(expression: Extent, names: Names) -> str:
    """An integer expression as C++ source.

    Raises:
        UnsupportedError: it holds something else than sums, products, quotients, remainders, minima and maxima.
    """
    return CxxIntegers(names).text(expression)


def factor(expression: Extent, names: Names) -> str:
    """The same, in parentheses where it must have them to be a factor."""
    return CxxIntegers(names).operand(expression)


def number(value: float) -> str:
    """A number as a float literal: the nearest float32."""
    try:
        value = struct.unpack("f", struct.pack("f", float(value)))[0]
    except OverflowError:
        value = float("inf") if value > 0 else float("-inf")
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = repr(value)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


KIND_TYPES: Mapping[str, str] = {"f": "float", "i": "int32_t", "l": "int64_t", "b": "bool"}
_COMPARE = {"lt": "<", "le": "<=", "eq": "=="}
_FUNCTIONS = {*OPS, "exp2"}
"""What math.hpp has, each under its name, where `operation` says nothing else."""


def operation(op: str, a: Sequence[str], kind: str, vector: bool, where: str) -> str:
    """The operation on operands of a kind, all of them vectors or none.

    Raises:
        UnsupportedError: there is no such operation; `where` says in which program.
    """
    match op:
        case "add" | "mul":
            return f"{a[0]} {'+' if op == 'add' else '*'} {a[1]}"
        case "neg":
            return f"-({a[0]})"
        case "recip":
            return f"1.0f / {a[0]}"
        case "div":
            return f"{a[0]} / {a[1]}"
        case "lt" | "le" | "eq":
            if kind == "b" and op != "eq" and vector:
                # Masks are -1 and 0.
                a = [a[1], a[0]]
            source = f"{a[0]} {_COMPARE[op]} {a[1]}"
            return f"v_narrow({source})" if vector and kind == "l" else source
        case "down":
            return f"({a[0]}) & -({a[1]})"
        case "bitand":
            return f"({a[0]}) & ({a[1]})"
        case "and" | "or":
            sign = "&" if op == "and" else "|"
            return f"{a[0]} {sign if vector else 2 * sign} {a[1]}"
        case "not":
            return f"~{a[0]}" if vector else f"!{a[0]}"
        case "isnan":
            return f"{a[0]} != {a[0]}"
        case "where":
            return f"v_sel({a[0]}, {a[1]}, {a[2]})"
        case "maximum" | "minimum":
            return f"v_{op[:3]}({a[0]}, {a[1]})"
        case _ if op in _FUNCTIONS:
            return f"v_{op}({', '.join(a)})"
        case _:
            raise UnsupportedError(f"no C++ expression for {op}", where=f"C++ emission of {where}")


def converted(source: str, before: str, after: str, vector: bool) -> str:
    """The expression as another kind."""
    if after == "b":
        test = f"({source}) != {literal(0, before)}"
        return f"v_narrow({test})" if vector and before == "l" else test
    if not vector:
        return f"({KIND_TYPES[after]})({source})"
    if before == "b":
        masked = {"f": f"v_mask_to_f({source})", "i": f"({source}) & 1", "l": f"v_to_l(({source}) & 1)"}
        return masked[after]
    return f"v_to_{after}({source})"


def literal(value: float, kind: str) -> str:
    """A number of a kind."""
    match kind:
        case "f":
            return number(value)
        case "b":
            return "true" if value else "false"
        case "i":
            return f"(int32_t){int(value)}" if value >= 0 else f"(int32_t)({int(value)})"
        case _:
            return f"INT64_C({int(value)})"
