"""The node cases that `onnx` makes for its backends, each read as a program and evaluated.

    python tests/onnx_node_cases.py            what comes out, case by case where it is not equal
    python tests/onnx_node_cases.py --write    docs/supported_onnx.md, anew

A case is a model, mostly of one node, with inputs and what they give. What a node takes as an operand is often a
constant in real models (axes, shapes, masks), so a case is read as it is and with its operands stored in the model.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference.ops import op_pool_common

from prism.errors import PrismError
from prism.frontend.onnx.contrib import DOMAIN
from prism.frontend.onnx.contrib import TRANSLATORS as CONTRIB
from prism.frontend.onnx.contrib_quantized import NAMES as QUANTISED
from prism.frontend.onnx.reader import TRANSLATORS, from_model
from prism.frontend.onnx.schemas import VERSIONS
from prism.program.evaluate import evaluate
from prism.program.nodes import Program

PAGE = Path(__file__).parents[1] / "docs" / "supported_onnx.md"
EQUAL, REFUSED, WRONG, CRASHED = "equal", "refused", "wrong", "crashed"
# Relative to the largest number that goes in or comes out: what the case itself loses to the rounding of its type.
ROUNDINGS = 4
# How far off results of cases are that are written down to a few decimals.
WRITTEN = {"test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-4}
# Cases with elements between two levels, of which float32's rounding of the scale takes one: there either is right.
TIED = frozenset({"test_dynamicquantizelinear", "test_dynamicquantizelinear_expanded"})


@dataclass(frozen=True, slots=True)
class Case:
    """A model with inputs and outputs that belong together.

    Attributes:
        name: the case's, without the `test_` before it.
        op: the operator that it is about.
        expanded: whether it is the operator's function body instead of its node.
    """

    name: str
    op: str
    expanded: bool
    model: onnx.ModelProto
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case: one of the four, and why."""

    case: Case
    kind: str
    why: str = ""


def collect() -> list[Case]:
    """Every case; it takes some seconds to make them.

    Pools in three dimensions are computed by `_pool`: window by window in Python, they took as long as all the others.
    """
    computed = op_pool_common.pool

    def pool(padded: Any, x_shape: Sequence[int], *rest: Any, **named: Any) -> Any:
        return (_pool if len(x_shape) == 5 else computed)(padded, x_shape, *rest, **named)

    with warnings.catch_warnings(), mock.patch.object(op_pool_common, "pool", pool):
        warnings.simplefilter("ignore")
        made = collect_testcases(None)
    cases = []
    own: dict[str, str] = {}  # the operator of a function body is that of the node that it is a body of
    for c in made:
        assert c.model is not None
        assert c.data_sets is not None
        base = re.sub(r"_expanded(_ver\d+)?$", "", c.name)
        last = next((n.op_type for n in reversed(c.model.graph.node)), "")
        op = own.setdefault(base, last)
        inputs, outputs = (tuple(map(_array, arrays)) for arrays in c.data_sets[0])
        cases.append(Case(c.name, op, base != c.name, c.model, inputs, outputs))
    return cases


def _pool(
    padded: np.ndarray,
    x_shape: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    out_shape: Sequence[int],
    pooling_type: str,
    pads_required: Any = None,
    pads: Any = None,
    dilations: Sequence[int] | None = None,
    count_include_pad: int = 0,
    p: int = 1,
) -> np.ndarray:
    """What onnx's function of these arguments does, a tap at a time for all windows; padding is NaN, or is counted."""
    around = [*pads] if pads is not None and len(pads) > 1 else [0 if pads is None else int(pads[0])] * 6
    taps = []
    for tap in np.ndindex(*kernel):
        places = [
            np.arange(n) * s + t * d
            for n, s, t, d in zip(out_shape, strides or [1] * 3, tap, dilations or [1] * 3, strict=True)
        ]
        ends = [n + around[d] + around[d + 3] for d, n in enumerate(x_shape[2:])]
        outside = np.zeros(tuple(out_shape), dtype=bool)
        for d, (at, end) in enumerate(zip(places, ends, strict=True)):
            outside |= np.expand_dims(at >= end, [e for e in range(3) if e != d])
        lie = np.ix_(*(np.minimum(at, n - 1) for at, n in zip(places, padded.shape[2:], strict=True)))
        element = padded[:, :, *lie].astype(np.float64)
        taps.append((element, ~outside & (np.isfinite(element) | bool(count_include_pad))))
    element, counted = (np.stack(parts) for parts in zip(*taps, strict=True))
    found: np.ndarray
    match pooling_type:
        case "MAX":
            found = np.where(counted, element, -np.inf).max(0)
        case "AVG":
            found = np.where(counted, element, 0.0).sum(0) / counted.sum(0)
        case _:
            found = (np.where(counted, np.abs(element), 0.0) ** p).sum(0) ** (1.0 / p)
    return np.asarray(found, padded.dtype)


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def outcome(case: Case, check: bool = True) -> Outcome:
    """What becomes of the case, read as it is and with operands stored in the model: the worst, and else the best.

    Args:
        case: the case.
        check: let each model be compared with onnx's reference as it is read, which takes most of the time; what it
            computes is compared with the case's own outputs in any event.
    """
    found = [_attempt(case, stored, check) for stored in _variants(case)]
    for kind in (CRASHED, WRONG, EQUAL):
        for o in found:
            if o.kind == kind:
                return o
    return found[-1]


def _variants(case: Case) -> Iterator[tuple[int, ...]]:
    """Which inputs to store in the model: none, the short integers, those of them after the first, all after it."""
    yield ()
    if len(case.inputs) != len(case.model.graph.input) or not all(isinstance(i, np.ndarray) for i in case.inputs):
        return
    short = tuple(n for n, i in enumerate(case.inputs) if _whole(i.dtype) and i.size <= 16)
    rest = tuple(range(1, len(case.inputs)))
    yield from dict.fromkeys(v for v in (short, tuple(n for n in short if n > 0), rest) if v)


def _attempt(case: Case, stored: Sequence[int], check: bool) -> Outcome:
    model = case.model
    if stored:
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for n in sorted(stored, reverse=True):
            model.graph.initializer.append(numpy_helper.from_array(case.inputs[n], model.graph.input[n].name))
            del model.graph.input[n]
    try:
        program = from_model(model, case.name, None, check=check)
    except PrismError as error:
        return Outcome(case, REFUSED, f"{error.what}: {error.why}" if error.why else error.what)
    except Exception as error:
        return Outcome(case, CRASHED, f"{type(error).__name__}: {error}")
    try:
        why = _difference(program, [i for n, i in enumerate(case.inputs) if n not in stored], case)
    except Exception as error:
        return Outcome(case, CRASHED, f"evaluated: {type(error).__name__}: {error}")
    return Outcome(case, WRONG, f"{why} (stored: {list(stored)})") if why else Outcome(case, EQUAL)


def _difference(program: Program, inputs: Iterable[Any], case: Case) -> str:
    free = [t for t in program.inputs if t.name not in program.weights]
    given = {t.name: np.asarray(i) for t, i in zip(free, inputs, strict=True)}
    results = evaluate(program, given)
    scale = _largest([*given.values(), *case.outputs])
    for name, expected in zip(program.outputs, case.outputs, strict=True):
        stored = program.tensor(name).dtype.value
        if stored != np.asarray(expected).dtype.name:
            return f"{name} is of type {stored} and not {np.asarray(expected).dtype.name}"
        found = results[name]
        if case.name in WRITTEN:
            found = np.where(abs(found - expected) < WRITTEN[case.name], expected, found)
        if case.name in TIED and np.asarray(expected).dtype.kind == "u":
            found = np.where(abs(found - expected) <= 1, expected, found)
        why = difference(found, np.asarray(expected), scale)
        if why:
            return f"{name} {why}"
    return ""


def difference(found: np.ndarray, expected: np.ndarray, scale: float) -> str:
    """How a result differs from the expected one by more than the rounding of its type, or nothing.

    Args:
        found: the result, in float64.
        expected: in its own type.
        scale: the largest number among inputs and results.
    """
    if found.shape != expected.shape:
        return f"has shape {found.shape} and not {expected.shape}"
    exact = np.asarray(expected, dtype=np.float64)
    tolerance = 0.0
    if expected.dtype.kind not in "iub":
        tolerance = ROUNDINGS * float(ml_dtypes.finfo(expected.dtype).eps)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        close = np.isclose(found, exact, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    if bool(np.all(close)):
        return ""
    at = tuple(int(n) for n in np.argwhere(~close)[0]) if close.ndim else ()
    return f"at {list(at)} is {found[at]:.9g} and not {exact[at]:.9g}"


def _largest(arrays: Iterable[Any]) -> float:
    numbers = [np.abs(np.asarray(a, dtype=np.float64)) for a in arrays if np.asarray(a).dtype.kind not in "USO"]
    finite = [float(n[np.isfinite(n)].max(initial=0.0)) for n in numbers]
    return max([1.0, *finite])


def page(outcomes: Sequence[Outcome]) -> str:
    """The table of what is supported, as Markdown."""
    by_op: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        by_op[o.case.op].append(o)
    equal = sum(o.kind == EQUAL for o in outcomes)
    lines = [
        "# ONNX operators",
        "",
        "Made by `python tests/onnx_node_cases.py --write`; a test checks that it is what the code does.",
        "",
        f"The node cases of onnx {onnx.__version__} are read as programs and evaluated in float64. Of {len(outcomes)},"
        f" {equal} give what `onnx` says, {len(outcomes) - equal} are refused with an error that says why, and none is"
        " read as something else. A case counts as read when it is with its operands stored in the model, as exporters"
        " store shapes, axes and indices.",
        "",
        "Versions are those of the operator's schema (`onnx.defs`): prism has the meaning of the first, the last and"
        " all between, and refuses others. Operator sets are 1 to the newest that `onnx` knows.",
        "",
        "| operator | versions | cases read | function bodies read | refused |",
        "|---|---|---:|---:|---|",
    ]
    for op in sorted({*TRANSLATORS, *VERSIONS}):
        first, last = VERSIONS[op]
        versions = f"{first} to {last}" if last > first else str(first)
        lines.append(f"| {op} | {versions} | {_counts(by_op[op])} | {_refusals(by_op[op])} |")
    others = sorted(op for op in by_op if op and op not in VERSIONS)
    bodies = [op for op in others if op != "If" and any(o.kind == EQUAL for o in by_op[op])]
    lines += [
        "",
        f"Operators without a translation, {len(others)} of those that have cases: {', '.join(others)}.",
        "",
        f"Of these, {', '.join(bodies)} are read by the function bodies that onnx has of them, and If where the"
        " shapes say which branch is taken.",
        "",
        "Whatever is refused stays as it is and runs in onnxruntime, and the rest of its model goes in islands: no case"
        " is refused by `prism optimize`.",
        "",
        f"Of onnxruntime's fused operators (`{DOMAIN}`) these are read: {', '.join(sorted({*CONTRIB, *QUANTISED}))}.",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _counts(outcomes: Sequence[Outcome]) -> str:
    def share(expanded: bool) -> str:
        some = [o for o in outcomes if o.case.expanded == expanded]
        return f"{sum(o.kind == EQUAL for o in some)} of {len(some)}" if some else ""

    return f"{share(False)} | {share(True)}"


def _whole(dtype: np.dtype[Any]) -> bool:
    """Whether it is a type of whole numbers; numpy does not know that those of few bits are."""
    return dtype.kind in "iub" or dtype.name in ("int4", "uint4", "int2", "uint2")


def _refusals(outcomes: Sequence[Outcome]) -> str:
    """The reasons, the commonest first, each with its number of cases."""
    reasons: Mapping[str, int] = defaultdict(int)
    for o in outcomes:
        if o.kind == REFUSED and not o.case.expanded:
            reasons[re.sub(r"'[^']*'", "…", o.why.split(": ")[0])] += 1  # type: ignore[index]
    return "; ".join(f"{why} ({n})" for why, n in sorted(reasons.items(), key=lambda r: (-r[1], r[0])))


def main() -> None:
    """The script."""
    outcomes = [outcome(case) for case in collect()]
    if "--write" in sys.argv:
        PAGE.write_text(page(outcomes))
    for o in outcomes:
        if o.kind in (WRONG, CRASHED) or (o.kind == REFUSED and "--write" not in sys.argv):
            print(f"{o.kind:8} {o.case.name}: {o.why}")
    print({kind: sum(o.kind == kind for o in outcomes) for kind in (EQUAL, REFUSED, WRONG, CRASHED)})


if __name__ == "__main__":
    main()
