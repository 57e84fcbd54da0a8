"""Pointwise operations, conversions and numbers as C++ expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prism.backends.cpu.cxx import number
from prism.errors import UnsupportedError

KIND_TYPES: Mapping[str, str] = {"f": "float", "i": "int32_t", "l": "int64_t", "b": "bool"}
_COMPARE = {"lt": "<", "le": "<=", "eq": "=="}
_FUNCTIONS = frozenset(
    {"exp", "log", "sqrt", "sin", "cos", "tanh", "atan", "erf", "sigmoid", "abs", "sign", "floor", "round", "pow"}
)


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
