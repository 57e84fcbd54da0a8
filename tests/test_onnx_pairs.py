"""Verdicts on random pairs of ONNX graphs, rewritten rightly or damaged, against onnx's runtime (onnx_pairs.py)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnx_pairs
import pytest
from onnx_pairs import Judge, Pair, asked, pair, read, wrong
from onnx_random import Graph

from prism.egraph.worker import Worker
from prism.program.verdict import Status, Verdict

PROVED = Verdict(Status.PROVED, "one normal form")


def text(opset: int, given: str, nodes: str, result: str = "float[]", constants: str = "") -> onnx.ModelProto:
    """A model of a result y."""
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({given}) => ({result} y) {constants} {{ {nodes} }}'
    )


def of(one: onnx.ModelProto, other: onnx.ModelProto, right: bool = False) -> Pair:
    """A pair of models whose inputs are of float32 or truth values, with fixed extents."""
    inputs = {
        i.name: (i.type.tensor_type.elem_type, [d.dim_value for d in i.type.tensor_type.shape.dim])
        for i in one.graph.input
    }
    return Pair(0, Graph(0, one, inputs, [{}]), other, ["by hand"], right)


def hunt(seeds: range, worker: Worker) -> Counter[str]:
    """How many verdicts of each kind there were, none of them wrong."""
    counts: Counter[str] = Counter()
    found = list(onnx_pairs.hunt(seeds, worker, counts))
    assert not found, "\n".join(found)
    return counts


def test_verdicts_on_pairs_of_graphs(worker: Worker) -> None:
    counts = hunt(range(20), worker)
    assert counts["right proved"] > 5
    assert counts["wrong refuted"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20_000, 24_000, 200))
def test_thousands_of_verdicts_on_pairs_of_graphs(seed: int, worker: Worker) -> None:
    counts = hunt(range(seed, seed + 200), worker)
    assert counts["right proved"] > 60


def test_pairs_are_drawn_alike_and_of_both_kinds() -> None:
    drawn = [pair(seed) for seed in range(12)]
    assert list(map(str, drawn)) == [str(pair(seed)) for seed in range(12)]
    assert {p.right for p in drawn if p is not None} == {True, False}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("y = Add (x, z)", "y = Sub (x, z)"),
        ("y = ReduceMax <axes = [1], keepdims = 0> (x)", "y = ReduceMax <axes = [0], keepdims = 0> (x)"),
        ("y = Softmax <axis = 1> (x)", "y = Softmax <axis = 0> (x)"),
        ("y = Floor (x)", "y = Round (x)"),
        ("y = Relu (x)", "y = Abs (x)"),
    ],
)
def test_the_judge_sees_mistakes(one: str, other: str) -> None:
    given = "float[3, 3] x, float[3, 3] z"
    p = of(text(17, given, one), text(17, given, other))
    assert Judge(p).judge().differ
    assert wrong(p, (), PROVED)


def test_the_judge_excuses_rounding_overflow_and_what_has_no_value() -> None:
    given = "float[3, 3] x, float[3, 3] z"
    for one, other in (
        ("y = Identity (x)", "a = Sub (x, z) y = Add (a, z)"),
        ("a = Exp (x) y = Log (a)", "y = Identity (x)"),
        ("a = Div (x, z) y = Mul (a, z)", "y = Identity (x)"),
    ):
        found = Judge(of(text(17, given, one), text(17, given, other))).judge()
        assert not found.differ
        assert found.compared > 3


# What the hunt showed


def test_a_counterexample_is_of_the_models_inputs(worker: Worker) -> None:
    given = "float[4, 6] x, float[3] z"
    slice_ = "a = Constant <value_ints = [0]> () b = Constant <value_ints = [2]> () s = Slice (x, a, b, b0) "
    nodes = slice_.replace("b0", "a")
    p = of(text(18, given, nodes + "y = Neg (s)"), text(18, given, nodes + "y = Identity (s)"))
    both = read(p)
    assert both is not None
    verdict = asked(both, worker)
    shapes = {n: np.asarray(a).shape for n, a in verdict.counterexample.items()}
    assert shapes == {"x": (4, 6), "z": (3,)}
    assert not wrong(p, both, verdict)
    nowhere = {n: np.zeros(shape) for n, shape in shapes.items()}
    assert wrong(p, both, replace(verdict, counterexample=nowhere))
