"""Random ONNX graphs (onnx_random.py): read as what they are at every size that they take, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_random
import pytest
import sympy
from onnx.reference.op_run import RuntimeTypeError
from onnx_random import DRAWS, Array, Graph, Oracle, sizes

from prism.errors import ExitCode, PrismError, ShapeError, UnsupportedError
from prism.frontend.onnx.reader import from_model
from prism.program.evaluate import bind, evaluate
from prism.program.extents import exact_quotient, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Program, Tensor

BINDINGS: Sequence[Mapping[str, int]] = tuple(
    {"n": n, "m": m} for n, m in ((3, 4), (1, 1), (2, 2), (7, 1), (1, 5), (8, 6))
)
"""Values of the symbols at which programs are compared."""
EXACT = 2.0**53
ROUNDED = 2e-6
"""Of the reference, whose functions hold constants in float32."""
IN_SINGLE = frozenset({"Erf", "Gelu", "Selu", "Mish", "HardSwish", "RMSNormalization", "DequantizeLinear", "Part"})
SOFT = ("nan", "infinite")
"""Draws of which only numbers are compared with numbers."""


def wrong(graph: Graph, many: int = 2, check: bool = True) -> Iterator[str]:
    """How the program of a graph is not the graph.

    Args:
        graph: the graph; one that is refused is not wrong.
        many: how many seeds each way of drawing inputs has.
        check: compare it as it is read, too.
    """
    try:
        program = from_model(graph.model, "g.onnx", None, check=check)
    except PrismError as error:
        if error.exit_code != ExitCode.UNSUPPORTED:
            yield f"{error}"
        return
    symbols = [d for _, shape in graph.inputs.values() for d in shape if isinstance(d, str)]
    bindings = [b for b in BINDINGS if allowed(program, graph, b)] if symbols else [{}]
    oracle = Oracle(graph.model)
    for binding in bindings:
        for how in DRAWS:
            for seed in range(many):
                told = difference(program, graph, oracle, graph.arrays(how, seed, binding), how)
                if told:
                    yield f"{dict(binding)}, {how} {seed}: {told}"
                    return


def allowed(program: Program, graph: Graph, binding: Mapping[str, int]) -> bool:
    """Whether the program takes these sizes: a dimension that is a product of others' is a symbol of its own."""
    shapes = {n: sizes(shape, binding) for n, (_, shape) in graph.inputs.items()}
    bound = bind([t for t in program.inputs if t.name in shapes], shapes)
    return all(r.low <= bound[s] <= r.high for s, r in program.ranges.items())


def difference(program: Program, graph: Graph, oracle: Oracle, inputs: Mapping[str, Array], how: str) -> str:
    """What the program has where the graph has something else; nothing where rounding explains it."""
    try:
        values = oracle.values(inputs)
    except Exception as error:  # onnx's reference raises what numpy does
        return undefined(program, graph, inputs, error)
    if not oracle.defined(values) or vanishing(values) or lost(oracle, values):
        return ""
    try:
        found = evaluate(program, inputs)
    except ShapeError as error:
        return str(error)
    for name, output in zip(program.outputs, oracle.outputs, strict=True):
        soft = how in SOFT or any(np.isnan(v).any() for v in values.values() if v.dtype.kind == "f")
        told, at = apart(program, name, found[name], values[output], soft, slack(graph, values))
        if told and not (at is not None and explained(program, graph, oracle, inputs, (name, output), at)):
            return told
    return ""


def vanishing(values: Mapping[str, Array]) -> bool:
    """Whether something is so small that its reciprocal is not a number of float64."""
    return any(((v != 0) & (np.abs(v) < 1e-300)).any() for v in values.values() if v.dtype.kind == "f")


def lost(oracle: Oracle, values: Mapping[str, Array]) -> bool:
    """Whether float64 has lost an exponential, which is too large, or too small beside 1, or a place is none."""
    for n in oracle.model.graph.node:
        given, made = ([values[x] for x in names if x] for names in (n.input, n.output))
        if n.op_type == "Exp" and (np.isinf(made[0]) & np.isfinite(given[0])).any():
            return True
        if n.op_type == "GatherElements":
            axis = next((a.i for a in n.attribute), 0)
            if (np.abs(given[1] + 0.5) > given[0].shape[axis]).any():
                return True
        if n.op_type in ("Softplus", "Mish") and ((made[0] != 0) & (np.abs(made[0]) < 1e-13)).any():
            return True
    return False


def undefined(program: Program, graph: Graph, inputs: Mapping[str, Array], error: Exception) -> str:
    """What is wrong where the graph takes no such inputs: not that the program refuses them, too."""
    # of constants that its functions hold in float32, or of a label that is no class
    if isinstance(error, RuntimeTypeError) or any(n.op_type.endswith("Loss") for n in graph.model.graph.node):
        return ""
    # places that callers pass, and sizes of nothing divided by each other
    passed = {i.name for i in graph.model.graph.input}
    looked_up = {n.input[1] for n in graph.model.graph.node if n.op_type.startswith("Gather")}
    if (isinstance(error, IndexError) and passed & looked_up) or "array of size 0 into shape (0" in str(error):
        return ""
    try:
        found = evaluate(program, inputs)
    except ShapeError:
        return ""
    other = onnx_random.onnxruntime(graph.model, inputs)
    if other is not None and all(o.shape == found[n].shape for o, n in zip(other, program.outputs, strict=True)):
        return ""
    return f"it is evaluated, and onnx says {type(error).__name__} {error}"


def slack(graph: Graph, values: Mapping[str, Array]) -> float:
    """What values may be off by where they are of functions that the reference has in float32."""
    if not any(n.op_type in IN_SINGLE for n in graph.model.graph.node):
        return 0.0
    floats = [np.abs(v[np.isfinite(v)]).max(initial=0.0) for v in values.values() if v.dtype.kind == "f"]
    return ROUNDED * float(max(floats, default=0.0))


def apart(
    program: Program, name: str, found: Array, expected: Array, soft: bool, slack: float
) -> tuple[str, tuple[int, ...] | None]:
    """How an output is not what is expected, and where."""
    dtype = program.tensor(name).dtype
    if found.shape != expected.shape:
        return f"{name} has shape {found.shape} and not {expected.shape}", None
    exact = np.asarray(expected, np.float64)
    with np.errstate(all="ignore"):
        same = (found == exact) | (np.isnan(found) & np.isnan(exact))
        if dtype.is_float:
            largest = np.abs(exact[np.isfinite(exact)]).max(initial=1e-30)
            same |= np.abs(found - exact) <= ROUNDED * np.abs(exact) + ROUNDED * largest + slack
            same |= np.isinf(found) & np.isinf(exact)  # 1/0 has the sign of a zero
        if dtype is DType.INT64:
            same |= np.maximum(np.abs(found), np.abs(exact)) > EXACT
    if soft:  # a program is over the reals
        same |= ~(np.isfinite(found) & np.isfinite(exact)) | (not dtype.is_float)
    if same.all():
        return "", None
    at = tuple(int(n) for n in np.argwhere(~same)[0])
    return f"{name}{list(at)} is {found[at]:.9g} and not {exact[at]:.9g}", at


def explained(
    program: Program,
    graph: Graph,
    oracle: Oracle,
    inputs: Mapping[str, Array],
    names: tuple[str, str],
    at: tuple[int, ...],
) -> bool:
    """Whether rounding decides there, or onnxruntime agrees with the program."""
    name, output = names
    mine = np.float64(evaluate(program, inputs)[name][at])
    theirs = np.float64(oracle.values(inputs)[output][at])
    rng = np.random.default_rng(5)
    for turn in range(6):

        def moved_by(a: Array, flip: bool = turn == 0) -> Array:
            if a.dtype.kind != "f":
                return a
            return np.where(a == 0, -a, a) if flip else a * (1.0 + 1e-9 * rng.uniform(-1.0, 1.0, a.shape))

        moved = {n: moved_by(onnx_random.wide(a)) for n, a in inputs.items()}
        for before, after in (
            (mine, evaluate(program, moved)[name][at]),
            (theirs, np.float64(oracle.values(moved)[output][at])),
        ):
            with np.errstate(all="ignore"):
                apart_ = abs(after - before) > 1e-6 * max(abs(before), 1e-6)
            if np.isnan(before) != np.isnan(after) or apart_ or (np.isinf(before) and before != after):
                return True
    other = onnx_random.onnxruntime(graph.model, inputs)
    if other is None or other[list(program.outputs).index(name)].shape != oracle.values(inputs)[output].shape:
        return False
    third = np.float64(onnx_random.wide(other[list(program.outputs).index(name)])[at])
    return bool(np.isclose(mine, third, rtol=1e-2, atol=1e-6, equal_nan=True))


def told(seeds: Iterable[int], dynamic: bool | None = None, many: int = 2) -> list[str]:
    """All that is wrong with the graphs of these seeds."""
    graphs = [g for seed in seeds if (g := onnx_random.graph(seed, dynamic)) is not None]
    return [f"{g}{w}" for g in graphs for w in wrong(g, many)]


def test_random_graphs_are_read_as_what_they_are() -> None:
    found = told(range(6), many=1)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(10_000, 12_000, 100))
def test_thousands_of_graphs_are_read_as_what_they_are(seed: int, dynamic: bool) -> None:
    found = told(range(seed, seed + 100), dynamic)
    assert not found, "\n".join(found)


def test_graphs_are_drawn_alike() -> None:
    assert list(map(str, map(onnx_random.graph, range(6)))) == list(map(str, map(onnx_random.graph, range(6))))


# What random graphs showed


def read(text: str) -> Program:
    """A model in onnx's own text."""
    return from_model(onnx.parser.parse_model(text), "g.onnx", None)


def of(opset: int, given: str, nodes: str, result: str = "float[]", constants: str = "") -> Program:
    """A model of a result y, whose shape it does not say."""
    return read(f'<ir_version: 10, opset_import: ["" : {opset}]> g ({given}) => ({result} y) {constants} {{ {nodes} }}')


N, M = symbol("n"), symbol("m")


def test_a_quotient_of_sizes_is_exact_for_all_of_them_or_none() -> None:
    assert exact_quotient((N + 1) * M, 2) is None
    assert exact_quotient(N + 1, 2) is None
    assert exact_quotient(2 * N * M + 4 * M, 2) == N * M + 2 * M
    assert exact_quotient(N * M + M, N + 1) == M
    assert exact_quotient(2 * N + 2, 2 * M) is None
    half = sympy.floor(N / 2)
    assert exact_quotient(4 * half, 2) == 2 * half
    assert exact_quotient(half, 2) is None
    assert exact_quotient(6, 4) is None
    # index arithmetic divides by it, too
    i = Axis("i", N)
    assert Index.axis(i).scaled((N + 1) * M).floordiv(2) != Index.axis(i).scaled((N + 1) * M / 2)


def test_sizes_at_which_a_bound_would_lie_before_the_dimension_are_none_of_the_program() -> None:
    bounds = "<int64[1] s = {-3}, int64[1] e = {9223372036854775807}, int64[1] a = {0}>"
    p = of(18, "float[n, 2] x", "y = Slice (x, s, e, a)", "float[k, 2]", bounds)
    assert (p.ranges["n"].low, p.definitions[0].tensor.shape) == (3, (3, 2))
    p = of(18, 'float["2*n", 2] x', "y = Slice (x, s, e, a)", "float[k, 2]", bounds)
    assert p.ranges["n"].low == 2
    p = of(18, "float[n, 2] x", "y = Gather (x, i)", "float[k, 2]", "<int64[2] i = {4, -1}>")
    assert p.ranges["n"].low == 5
    with pytest.raises(UnsupportedError, match="not known to lie inside"):
        of(
            18,
            "float[n, m] x",
            "z = Flatten <axis = 0> (x) y = Gather <axis = 1> (z, i)",
            "float[k, 2]",
            "<int64[2] i = {4, -1}>",
        )


def test_a_product_of_sizes_that_nothing_tells_apart_is_a_size_of_its_own() -> None:
    p = of(18, 'float["n*m", 2] x, float["n*m"] z', "y = MatMul (z, x)", "float[2]")
    assert list(p.ranges) == ["n_m"]
    assert evaluate(p, {"x": np.ones((6, 2)), "z": np.ones(6)})["y"].tolist() == [6, 6]
    p = of(18, 'float["n*m", 2] x, float[m] z', "y = Identity (x)", "float[k, 2]")
    assert set(p.ranges) == {"n", "m"}


def test_what_becomes_of_nan_as_a_whole_number_is_no_misreading() -> None:
    p = of(18, "float[n, 2] x", "r = Sqrt (x) z = Log (r) y = Cast <to = 3> (z)", "int8[n, 2]")
    assert p.conformance is not None
    assert len(p.conformance.draws) == 6


def test_a_shape_that_onnxs_runtime_has_alone_is_no_misreading() -> None:
    p = of(12, "float[4, 6] x", "y = Unsqueeze <axes = [2, 0]> (x)", "float[1, 4, 1, 6]")
    assert p.definitions[0].tensor.shape == (1, 4, 1, 6)
    nodes = "y = Attention <is_causal = 1, q_num_heads = 2, kv_num_heads = 2> (x, x, x, b)"
    assert of(24, "float[2, 4, 4] x, bool[1, 4] b", nodes, "float[2, 4, 4]").conformance is not None


def test_equal_weights_of_classes_are_divided_by() -> None:
    nodes = "y = NegativeLogLikelihoodLoss (x, l, w)"
    p = of(18, "float[2, 1] x", nodes, "float", "<int64[2] l = {0, 0}, float[1] w = {2}>")
    assert evaluate(p, {"x": np.array([[1.0], [2.0]])})["y"] == -1.5


def test_the_least_number_is_a_limit_from_above() -> None:
    nodes = "y = Clip (x, , c)"
    p = of(18, "uint8[3] x", nodes, "uint8[3]", "<uint8 c = {0}>")
    assert evaluate(p, {"x": np.array([0, 3, 255], np.uint8)})["y"].tolist() == [0, 0, 0]


def test_what_is_scaled_by_nothing_is_not_read() -> None:
    p = of(18, "float[2, 2] x, float[2] c", "l = Log (c) y = Gemm <beta = 0.0> (x, x, l)", "float[2, 2]")
    assert np.isfinite(evaluate(p, {"x": np.eye(2), "c": np.array([-1.0, 0.0])})["y"]).all()


def test_places_of_elements_lie_within_the_other_dimensions() -> None:
    nodes, places = "y = GatherElements <axis = 0> (x, i)", "<int64[1, 4] i = {0, 0, 0, 0}>"
    assert of(18, "float[2, n] x", nodes, "float[1, 4]", places).ranges["n"].low == 4
    with pytest.raises(ShapeError, match="indices of 4 places"):
        of(18, "float[2, 3] x", nodes, "float[1, 4]", places)


def test_sizes_are_told_by_each_other_in_any_order() -> None:
    tensors = (Tensor("x", (N * M,), DType.FLOAT32), Tensor("y", (N + 1,), DType.FLOAT32))
    assert bind(tensors, {"x": (12,), "y": (4,)}) == {"n": 3, "m": 4}


def test_labels_are_of_the_scores_sizes() -> None:
    labels = f"<int64[2, 12] l = {{{', '.join('0' * 24)}}}>"
    with pytest.raises(ShapeError, match=r"labels of the shape \[2, 12\]"):
        of(18, 'float[2, 5, "n*m"] x', "y = NegativeLogLikelihoodLoss (x, l)", "float", labels)


def test_a_dimension_without_places_is_evaluated() -> None:
    bounds = "<int64[1] s = {1}, int64[1] e = {9223372036854775807}, int64[1] r = {2}>"
    p = of(18, "float[n] x", "z = Slice (x, s, e) y = Tile (z, r)", "float[k]", bounds)
    assert evaluate(p, {"x": np.ones(1)})["y"].shape == (0,)
    assert evaluate(p, {"x": np.arange(3.0)})["y"].tolist() == [1, 2, 1, 2]
