"""The term language that rule files are written in: sorts, constructors, analyses and rulesets, as egglog text.

    T       ::= (Read "x[m, k]" axes) | (Const c) | (Size "seq") | (Pos "i + 4" axes)
              | (Add T T) | (Mul T T) | ...          one constructor per pointwise op; negation is (Mul (Const -1.0) a)
              | (Sum "k" T) | (Max "k" T) | (Min "k" T) | (Prod "k" T)
    axes    T -> the free axes of its value: the least set that was derived
    value   T -> its exact value, where it is a finite constant; a `Const` itself carries that value cut to 40 bits, so
            that what folding rounds in float64 is one term; constants rounded to float32 are read before (constants.py)
    length  axis -> its extent, as a term
    lower, upper  T -> a number that no element is below, or above, of a T that is finite
    finite, nonzero, positive, nonneg, boolean: relations on T, over the reals for finite inputs; those, and the
            bounds, that are stated of an input are facts of its reads
    told    relation on T: made of constants, sizes, positions, truth values, and inputs that something is stated of; so
            that what is known of it holds for whatever other inputs are, infinities and NaN among it

The free-axes analysis is generated from the op table, so that no op can be forgotten there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from prism.program.ops import OPS
from prism.program.stated import Fact


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on a saturation; a result depends on the first two only."""

    enodes: int = 6000  # stop before the next step once there are more. The last step may overshoot.
    iterations: int = 24  # rounds of the schedule
    seconds: float = 60.0  # hard limit on wall time, after which the worker is killed


# Names differ from egglog's primitives (`max`, `min`, `and`, `not`, `abs`, `exp`, `log`, `sqrt`).
_SPECIAL = {
    "maximum": "Max2", "minimum": "Min2", "isnan": "IsNan", "exp": "Exp", "abs": "Abs", "log": "Log", "sqrt": "Sqrt",
}  # fmt: skip

CONSTRUCTORS: Mapping[str, str] = MappingProxyType({op: _SPECIAL.get(op, op.capitalize()) for op in OPS if op != "neg"})
"""Pointwise op to its constructor."""

REDUCTIONS: Mapping[str, str] = MappingProxyType({"sum": "Sum", "max": "Max", "min": "Min", "prod": "Prod"})
"""Kind of a reduction to its constructor."""

LEAVES = ("Read", "Const", "Size", "Pos")

TensorFacts: TypeAlias = "Mapping[str, Sequence[Fact]]"
"""Relations that all elements of a tensor are in, and bounds of them, as ("lower", 0.5), by its name."""

NO_FACTS: TensorFacts = MappingProxyType({})
"""Nothing is known of any tensor but that it is finite."""

RULESETS = ("analysis", "simplify", "explore", "expand", "distribute", "assume")
ANALYSIS, SIMPLIFY, EXPLORE, EXPAND, DISTRIBUTE, ASSUME = RULESETS

TOLD = "told"
"""The relation that says what a candidate may do without; of a value it says nothing."""

# x - (x - c*x) with c = 2^13 + 1 rounds x to 40 bits (Veltkamp 1968); egglog has no rounding of its own.
_SPLIT = 8193.0


def snap(value: float) -> float:
    """The value to 40 bits, as a `Const` carries it; infinities and NaN as they are."""
    if value != value or abs(value) > 1e290:
        return value
    p = _SPLIT * value
    return p - (p - value)


def _prelude() -> str:
    variants = [f"({name} {' '.join('T' for _ in range(OPS[op].arity))})" for op, name in CONSTRUCTORS.items()]
    variants += [f"({name} String T)" for name in REDUCTIONS.values()]
    lines = [
        "(sort Axes (Set String))",
        f"(datatype T (Read String Axes) (Const f64) (Size String) (Pos String Axes) {' '.join(variants)})",
        "(function axes (T) Axes :merge (set-intersect old new))",
        "(function value (T) f64 :merge old)",
        "(function length (String) T :merge old)",
        # A bound that rounding alone makes sharper is no news: an e-class with terms of itself would have no last.
        "(function lower (T) f64 :merge (max old (- new (* 1e-13 (abs new)))))",
        "(function upper (T) f64 :merge (min old (+ new (* 1e-13 (abs new)))))",
        *(f"(relation {name} (T))" for name in ("finite", "nonzero", "positive", "nonneg", "boolean", TOLD)),
        *(f"(ruleset {name})" for name in RULESETS),
    ]

    def rule(name: str, facts: str, actions: str) -> None:
        lines.append(f'(rule ({facts}) ({actions}) :ruleset {ANALYSIS} :name "{name}")')

    rule("told-Pos", "(= t (Pos n s))", f"({TOLD} t)")
    rule("told-boolean", "(boolean t)", f"({TOLD} t)")
    for name in ("Read", "Pos"):
        rule(f"axes-{name}", f"(= t ({name} n s))", "(set (axes t) s)")
    for name in ("Const", "Size"):
        rule(f"axes-{name}", f"(= t ({name} n))", "(set (axes t) (set-empty))")
        rule(f"told-{name}", f"(= t ({name} n))", f"({TOLD} t)")
    for op, name in CONSTRUCTORS.items():
        args = [f"a{n}" for n in range(OPS[op].arity)]
        union = "s0"
        for n in range(1, len(args)):
            union = f"(set-union {union} s{n})"
        known = " ".join(f"(= s{n} (axes {a}))" for n, a in enumerate(args))
        rule(f"axes-{name}", f"(= t ({name} {' '.join(args)})) {known}", f"(set (axes t) {union})")
        if not OPS[op].boolean:  # a choice between two is one of them
            said = " ".join(f"({TOLD} {a})" for a in args[op == "where" :])
            rule(f"told-{name}", f"(= t ({name} {' '.join(args)})) {said}", f"({TOLD} t)")
    for name in REDUCTIONS.values():
        rule(f"axes-{name}", f"(= t ({name} k a)) (= s (axes a))", "(set (axes t) (set-remove s k))")
        rule(f"told-{name}", f"(= t ({name} k a)) ({TOLD} a)", f"({TOLD} t)")
    # Constants: folded exactly, kept as one `Const` cut to 40 bits.
    cut = f"(- (* {_SPLIT} x) (- (* {_SPLIT} x) x))"
    small = "(< (abs x) 1e290)"
    rule("value-const", "(= t (Const x)) (< (abs x) inf)", "(set (value t) x)")
    rule("const-value", f"(= x (value t)) {small}", f"(union t (Const {cut}))")
    rule(
        "constants-differ",
        "(= (Const a) (Const b)) (< a b) (> (- b a) (* 0.001 (max (abs a) (abs b))))",
        '(panic "the rules derive that two different numbers are equal")',
    )
    return "\n".join(lines)


PRELUDE = _prelude()
"""Declares all of the above to an empty e-graph."""
