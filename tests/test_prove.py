"""Proof and refutation: what is right is proved, what is wrong never is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from egraph_identities import RIGHT, WRONG
from formulas import evaluate_formula, prove_formulas
from onnx import TensorProto, helper, numpy_helper
from quick import run_slow
from short_calls import prove_programs

from prism.egraph.language import Budget
from prism.egraph.prove.refutation import refute
from prism.egraph.worker import Worker
from prism.errors import ShapeError
from prism.frontend.onnx.reader import from_model
from prism.program.build import add, const, mul, read, recip, reduce
from prism.program.constants import readings
from prism.program.extents import Extent, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Expr, Formula, Program, Read, SymbolRange, Tensor, free_axes, walk
from prism.program.verdict import Status, Verdict

F32 = DType.FLOAT32


def as_formulas(*exprs: Expr) -> list[Formula]:
    """The expressions as outputs over the union of their free axes."""
    axes = sorted({a for e in exprs for a in free_axes(e)}, key=lambda a: a.name)
    tensor = Tensor("out", tuple(a.extent for a in axes), F32)
    return [Formula(tensor, tuple(Index.axis(a) for a in axes), e) for e in exprs]


def verdict_of(pair: tuple[Expr, Expr], worker: Worker) -> Verdict:
    a, b = as_formulas(*pair)
    return prove_formulas([a], [b], tensors=(), worker=worker)


@pytest.mark.parametrize("name", RIGHT)
def test_right_is_proved(name: str, worker: Worker) -> None:
    a, b = RIGHT[name]()
    read_alike = readings([a], [b])
    worker.explore(read_alike.left, Budget())
    by_rules = worker.prove([read_alike.right])[0]
    assert by_rules.status is Status.PROVED, by_rules.reason
    assert by_rules.rules
    verdict = verdict_of((a, b), worker)
    assert verdict.status is (Status.REFUTED if name in DOMAIN else Status.PROVED), verdict.reason


# Proved over the reals by a rule of class domain: where all keys of one part are masked its maximum is -inf, and the
# part's own exponentials are NaN, though their weight is 0. The whole prover refutes it.
DOMAIN = {"masked split softmax"}


@pytest.mark.parametrize("name", [n for n in RIGHT if n not in DOMAIN])
def test_right_is_not_refuted(name: str) -> None:
    a, b = as_formulas(*RIGHT[name]())
    attempt = refute([a], [b], (), {})
    assert attempt.found is None, attempt.found
    assert attempt.points > 0


@pytest.mark.parametrize("name", WRONG)
def test_wrong_is_refuted(name: str, worker: Worker) -> None:
    verdict = verdict_of(WRONG[name](), worker)
    assert verdict.status is Status.REFUTED, verdict.reason
    assert verdict.counterexample
    assert "against" in verdict.reason


def test_wrong_is_not_proved_the_other_way_round(worker: Worker) -> None:
    for make in [*WRONG.values()][:: 1 if run_slow() else 3]:
        a, b = make()
        worker.explore([b], Budget(enodes=1500))
        assert worker.prove([[a]])[0].status is not Status.PROVED


def test_a_counterexample_tells_the_two_apart(worker: Worker) -> None:
    a, b = as_formulas(*WRONG["gain dropped"]())
    verdict = prove_formulas([a], [b], tensors=(), worker=worker)
    tensors = {n: np.asarray(v) for n, v in verdict.counterexample.items()}
    # Tensors are cut to what is read, so they are padded back to the declared shapes.
    shapes = {e.tensor: [_extent(i) for i in e.index] for f in (a, b) for e in walk(f.expr) if isinstance(e, Read)}
    full = {}
    for n, shape in shapes.items():
        full[n] = np.zeros(shape)
        full[n][tuple(slice(s) for s in tensors[n].shape)] = tensors[n]
    left, right = evaluate_formula(a, full, {}), evaluate_formula(b, full, {})
    assert np.nanmax(np.abs(left - right)) > 1e-3


def _extent(index: Index) -> int:
    axis = index.as_axis()
    assert axis is not None
    return int(axis.extent)


# Programs


Shapes = dict[str, tuple[Extent, ...]]


def program(
    name: str, inputs: Shapes, axes: tuple[Axis, ...], expr: Expr, ranges: Mapping[str, SymbolRange] | None = None
) -> Program:
    tensors = tuple(Tensor(n, s, F32) for n, s in inputs.items())
    return Program(name, tensors, (Definition("y", axes, expr, F32),), ("y",), ranges or {})


M, K, N = Axis("m", 4), Axis("k", 6), Axis("n", 5)
SHAPES: Shapes = {"x": (4, 6), "s": (4,), "w": (6, 5)}


def scaled_after() -> Program:
    expr = mul(recip(read("s", M)), reduce("sum", K, mul(read("x", M, K), read("w", K, N))))
    return program("after", SHAPES, (M, N), expr)


def scaled_before() -> Program:
    expr = reduce("sum", K, mul(mul(read("x", M, K), recip(read("s", M))), read("w", K, N)))
    return program("before", SHAPES, (M, N), expr)


def test_programs_are_compared_by_input_name(worker: Worker) -> None:
    a, b = scaled_after(), scaled_before()
    assert prove_programs(a, b, worker=worker)
    swapped = Program(b.name, b.inputs[::-1], b.definitions, b.outputs)
    assert prove_programs(a, swapped, worker=worker)


def test_programs_are_compared_by_position_when_names_differ(worker: Worker) -> None:
    a = scaled_after()
    expr = reduce("sum", K, mul(mul(read("p", M, K), recip(read("q", M))), read("r", K, N)))
    b = program("b", {"p": (4, 6), "q": (4,), "r": (6, 5)}, (M, N), expr)
    assert prove_programs(a, b, worker=worker)


def test_a_wrong_program_is_refuted_with_inputs(worker: Worker) -> None:
    a = scaled_after()
    expr = mul(read("s", M), reduce("sum", K, mul(read("x", M, K), read("w", K, N))))
    verdict = prove_programs(a, program("b", SHAPES, (M, N), expr), worker=worker)
    assert verdict.status is Status.REFUTED
    assert set(verdict.counterexample) == {"x", "s", "w"}


def test_shapes_that_do_not_match(worker: Worker) -> None:
    a = scaled_after()
    with pytest.raises(ShapeError, match="inputs"):
        prove_programs(a, program("b", {"x": (4, 6)}, (M, K), read("x", M, K)), worker=worker)
    with pytest.raises(ShapeError, match="input w"):
        prove_programs(a, program("b", {**SHAPES, "w": (5, 6)}, (M, K), read("x", M, K)), worker=worker)
    transposed = Program("b", a.inputs, (Definition("y", (N, M), a.definitions[0].expr, F32),), ("y",))
    assert prove_programs(a, transposed, worker=worker).status is Status.REFUTED


def test_symbols_are_matched_by_the_inputs_shapes(worker: Worker) -> None:
    def make(name: str) -> Program:
        i = Axis("i", symbol(name))
        expr = reduce("sum", i, mul(read("x", i), read("x", i)))
        ranges = {name: SymbolRange(1, 64, 8)}
        return program(name, {"x": (symbol(name),)}, (), mul(expr, const(2.0)), ranges=ranges)

    assert prove_programs(make("seq"), make("length"), worker=worker)


def test_an_output_stored_by_split_axes(worker: Worker) -> None:
    h, d, c = Axis("h", 2), Axis("d", 3), Axis("c", 6)
    tensor = Tensor("y", (6,), F32)
    whole = Index.axis(h).scaled(3) + Index.axis(d)
    split = Formula(tensor, (whole,), mul(const(2.0), read("x", whole)))
    plain = Formula(tensor, (Index.axis(c),), add(read("x", c), read("x", c)))
    for pair in ((split, plain), (plain, split)):
        assert prove_formulas([pair[0]], [pair[1]], tensors=(), worker=worker)


def test_models_with_other_weights_are_not_equal(worker: Worker) -> None:
    w = np.arange(30.0).reshape(6, 5)
    a, b = scaled_after(), scaled_before()
    one = Program(a.name, a.inputs, a.definitions, a.outputs, weights={"w": w})
    same = Program(b.name, b.inputs, b.definitions, b.outputs, weights={"w": w.copy()})
    w[4, 3] *= 1.01
    other = Program(b.name, b.inputs, b.definitions, b.outputs, weights={"w": w + 0})
    w[4, 3] /= 1.01
    assert prove_programs(one, same, worker=worker)
    verdict = prove_programs(one, other, worker=worker)
    assert verdict.status is Status.REFUTED
    assert set(verdict.counterexample) == {"x", "s"}


def test_a_formula_too_large_to_evaluate_is_unknown(worker: Worker) -> None:
    i, j, k = Axis("i", 1 << 14), Axis("j", 1 << 14), Axis("k", 1 << 14)
    big = reduce("sum", (i, j, k), mul(read("x", i, j), read("y", j, k)))
    other = reduce("sum", (i, j, k), mul(read("x", i, j), read("z", j, k)))
    verdict = verdict_of((big, other), worker)
    assert verdict.status is Status.UNKNOWN
    assert "too large" in verdict.reason


def test_a_program_is_itself_however_large_it_is() -> None:
    def chain(steps: Sequence[str], names: str, weight: float = 0.5) -> Program:
        nodes, last = [helper.make_node("Mul", [f"{names}in", f"{names}w"], [f"{names}0"])], f"{names}0"
        for n, step in enumerate(steps, 1):
            nodes.append(helper.make_node(step, [last], [f"{names}{n}"]))
            last = f"{names}{n}"
        value = [helper.make_tensor_value_info(t, TensorProto.FLOAT, [4]) for t in (f"{names}in", last)]
        w = numpy_helper.from_array(np.linspace(weight, 1, 4, dtype=np.float32), f"{names}w")
        graph = helper.make_graph(nodes, "g", [value[0]], [value[1]], [w])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        return from_model(made, "m", None, check=False)

    steps = ["Tanh", "Neg"] * 400
    verdict = prove_programs(chain(steps, "x"), chain(steps, "y"))
    assert verdict.status is Status.PROVED
    assert "one program" in verdict.reason
    few = steps[:6]
    for other in (chain([*few[:3], "Abs", *few[4:]], "x"), chain(few, "x", 0.25)):
        assert prove_programs(chain(few, "x"), other).status is Status.REFUTED
