"""Large programs: what is shared is looked at once, however often it stands in an expression written out."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from prism.api.loading import load
from prism.cli.app import main
from prism.cost import regions
from prism.cost.streams import Demand, finished, placed
from prism.egraph.prove import polynomials
from prism.egraph.prove.normal_form import Unfit, normal_form
from prism.errors import ExitCode, TooDeepError, refusing_depth
from prism.generate.partition import DEEP, partition
from prism.instantiate.gate import plan
from prism.program.evaluate import evaluate
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Const, Definition, DType, Expr, Map, Program, Read, Reduce, ReduceKind, Tensor, walk
from prism.program.region import subprogram
from prism.sgraph.config import Config
from prism.sgraph.denote import kernel_values
from prism.sgraph.launches import apart, waits
from prism.sgraph.nodes import Grid, Kernel, Load, Pointwise, SGraph, Store
from prism.sgraph.value_bounds import Bounds, shape

M, K = Axis("d4", 4), Axis("d4_1", 4)


def doubled(depth: int, name: str = "x") -> Expr:
    """tanh y + y, again and again: 2^depth operations written out, 2*depth objects."""
    e: Expr = Read(name, (Index.axis(M),))
    for _ in range(depth):
        e = Map("add", (Map("tanh", (e,)), e))
    return e


def test_equal_expressions_are_compared_once_for_each_pair() -> None:
    one, other = doubled(100), doubled(100)
    assert one == other
    assert one != doubled(100, "z")
    assert len({one: 0, other: 1}) == 1
    assert one == pickle.loads(pickle.dumps(doubled(100)))
    body = Map("add", (one, Reduce(ReduceKind.SUM, K, one)))
    assert body == Map("add", (other, Reduce(ReduceKind.SUM, K, other)))
    assert body != Map("add", (other, Reduce(ReduceKind.MAX, K, other)))


def test_what_is_known_of_shared_values_is_found_without_writing_them_out() -> None:
    deep = doubled(100)
    assert shape(deep) == shape(Map("add", (doubled(99), Map("tanh", (doubled(99),)))))
    assert shape(deep) != shape(doubled(100, "z"))
    squares: Expr = Read("x", (Index.axis(M),))
    sums: Expr = Map("lt", (squares, Const(0.0)))
    masks = sums
    for _ in range(100):
        squares, sums = Map("mul", (squares, squares)), Map("add", (sums, sums))
        masks = Map("and", (masks, masks))
    bounds = Bounds({})
    assert bounds.of(squares)[0] == 0
    assert bounds.of(sums) == (0.0, 2.0**100)
    assert bounds.of(deep) == (-math.inf, math.inf)
    assert shape(Map("where", (masks, Const(1.0), Const(0.0)))) == shape(masks)


def test_nested_softmaxes_are_judged() -> None:
    e: Expr = Read("x", (Index.axis(M),))
    for _ in range(60):
        e = Map("exp", (Map("add", (e, Map("mul", (Const(-1.0), Reduce(ReduceKind.MAX, M, e))))),))
        e = Map("mul", (e, Map("recip", (Reduce(ReduceKind.SUM, M, e),))))
    low, high = Bounds({}).of(e)
    assert low == 0
    assert high > 0


def line(count: int) -> Program:
    """A chain of operators, each of the one before transposed: what is read as it is takes no work at all."""
    names = ["x", *(f"v{n}" for n in range(count))]
    made = tuple(
        Definition(b, (M, K), Map("tanh", (Read(a, (Index.axis(K), Index.axis(M))),)), DType.FLOAT32)
        for a, b in itertools.pairwise(names)
    )
    return Program("line", (Tensor("x", (4, 4), DType.FLOAT32),), made, (names[-1],))


def test_a_chain_is_cut_in_a_number_of_steps_that_grows_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    plain = regions._substituted

    def counted(index: Index, mapping: Mapping[Axis, Index]) -> Index:
        nonlocal steps
        steps += 1
        return plain(index, mapping)

    monkeypatch.setattr(regions, "_substituted", counted)
    taken = []
    for count in (3 * DEEP, 6 * DEEP):
        steps = 0
        cut = partition(line(count))
        assert [d.name for r in cut for d in r.program.definitions] == [f"v{n}" for n in range(count)]
        assert all(a.outputs == b.inputs for a, b in itertools.pairwise(cut))
        taken.append(steps)
    assert 0 < taken[1] < 2.3 * taken[0]


def test_thousands_of_outputs_of_one_input_are_put_together_by_the_next_ones() -> None:
    index = (Index.axis(M), Index.axis(K))
    made = tuple(Definition(f"y{n}", (M, K), Map("tanh", (Read("x", index),)), DType.FLOAT32) for n in range(600))
    x = Tensor("x", (4, 4), DType.FLOAT32)
    cut = partition(Program("wide", (x,), made, tuple(d.name for d in made)))
    assert [r.outputs for r in cut] == [tuple(f"y{k}" for k in range(n, n + 3)) for n in range(0, 600, 3)]


def test_what_is_cut_out_looks_at_nothing_else() -> None:
    """A part of a long program takes no look at every definition of the whole."""
    whole, asked = line(500), []

    class Given(set[str]):
        def __contains__(self, name: object) -> bool:
            asked.append(name)
            return super().__contains__(name)

    part = subprogram(whole, "part", ["v300"], Given({"v290"}))
    assert [d.name for d in part.definitions] == [f"v{n}" for n in range(291, 301)]
    assert [t.name for t in part.inputs] == ["v290"]
    assert len(asked) == 10
    (formula,) = inline(whole, ("v300",), Given({"v298"}))
    assert str(formula.expr) == "tanh(tanh(v298[d4, d4_1]))"


def test_far_back_values_are_read_where_kernels_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = []
    for n in range(6):
        body = (
            Load("a", f"t{n}", (Index.axis(M),)),
            Pointwise("b", "tanh", ("a",)),
            Store(f"t{n + 1}", (Index.axis(M),), "b"),
        )
        kernels.append(Kernel(f"k{n}", ((M, Grid(symbol(f"T{n}"))),), body))
    x, *buffers, y = (Tensor(f"t{n}", (4,), DType.FLOAT32) for n in range(7))
    sgraph = SGraph("s", (x,), tuple(buffers), (y,), tuple(kernels))
    nested = "tanh(tanh(tanh(tanh(tanh(tanh(t0[d4]))))))"
    assert str(kernel_values(sgraph)["k5"]["b"]) == nested
    monkeypatch.setattr("prism.sgraph.denote.HORIZON", 3)
    assert str(kernel_values(sgraph)["k5"]["b"]) == "tanh(tanh(tanh(t3[d4])))"


def test_a_long_text_names_what_is_shared() -> None:
    assert str(doubled(2)) == "(tanh((tanh(x[d4]) + x[d4])) + (tanh(x[d4]) + x[d4]))"
    text = str(doubled(60))
    assert len(text) < 3000
    assert text.startswith("(tanh(s58) + s58) where s0 = (tanh(x[d4]) + x[d4]), s1 = (tanh(s0) + s0), ")
    apart = Map("add", (Map("tanh", (doubled(59),)), doubled(59)))
    assert str(apart) == text, "the same, whichever parts are one object"
    assert str(doubled(60, "z")) != text


def test_a_normal_form_takes_a_bounded_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    normal_form(doubled(3))
    monkeypatch.setattr(polynomials, "MAX_STEPS", 20)
    with pytest.raises(Unfit):
        normal_form(doubled(3))


def test_stack_that_does_not_suffice_is_the_models_fault() -> None:
    def deeper() -> None:
        deeper()

    with pytest.raises(TooDeepError, match="m: an expression is nested too deeply") as caught, refusing_depth("m"):
        deeper()
    assert caught.value.exit_code == ExitCode.UNSUPPORTED


def model(nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], shape: list[int], path: Path) -> Path:
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", given, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.mark.parametrize("op", ["Sum", "Max", "Mean", "Concat"])
def test_operators_of_many_inputs(op: str, tmp_path: Path) -> None:
    names = [f"x{n}" for n in range(600)]
    node = helper.make_node(op, names, ["y"])
    if op == "Concat":
        node.attribute.append(helper.make_attribute("axis", 0))
    shape = [1200 if op == "Concat" else 2, 3]
    program = load(model([node], {n: [2, 3] for n in names}, shape, tmp_path / "m.onnx"), check=False)
    given = {n: np.random.default_rng(k).standard_normal((2, 3)) for k, n in enumerate(names)}
    (found,) = evaluate(program, given).values()
    values = list(given.values())
    makes: dict[str, Callable[[list[np.ndarray]], np.ndarray]] = {
        "Sum": lambda v: np.sum(v, 0),
        "Max": lambda v: np.max(v, 0),
        "Mean": lambda v: np.mean(v, 0),
        "Concat": np.concatenate,
    }
    wanted = makes[op](values)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    assert len(partition(program)) == 1


def test_a_model_of_doublings_is_proved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["x", *(f"v{n}" for n in range(29)), "y"]
    nodes = [helper.make_node("Add", [names[n], names[n]], [names[n + 1]]) for n in range(30)]
    path = model(nodes, {"x": [4, 4]}, [4, 4], tmp_path / "m.onnx")
    assert sum(1 for d in load(path, check=False).definitions for _ in walk(d.expr)) < 100
    assert main(["prove", str(path), str(path), "--no-check"]) == ExitCode.DONE
    assert "proved" in capsys.readouterr().out


def side_by_side(count: int) -> SGraph:
    """So many kernels that have nothing to do with each other."""
    index = (Index.axis(M), Index.axis(Axis("k", 256)))
    kernels = [
        Kernel(
            f"k{n}",
            ((M, Grid(symbol(f"T_{n}"))), (Axis("k", 256), Grid(symbol(f"U_{n}")))),
            (Load("a", f"x{n}", index), Pointwise("b", "tanh", ("a",)), Store(f"y{n}", index, "b")),
        )
        for n in range(count)
    ]
    x, y = ([Tensor(f"{name}{n}", (4, 256), DType.FLOAT32) for n in range(count)] for name in "xy")
    return SGraph("s", tuple(x), (), tuple(y), tuple(kernels))


def test_tiles_of_many_kernels_are_chosen_with_few_looks_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    plain = plan._grid_and_program

    def counted(*args: object) -> object:
        nonlocal looks
        looks += 1
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(plan, "_grid_and_program", counted)
    taken = []
    for count in (20, 80):
        looks, g = 0, side_by_side(count)
        config = Config({s.name: 1 for s in g.symbols}, {}, {})
        program = Program("p", g.inputs, (), ())
        quick = plan.quick_config(program, g, config)
        # As large as leaves two tiles along each axis, in every kernel.
        assert set(quick.symbols.values()) == {2, 128}
        # A device may have no room for such tiles, and has for those of the configuration.
        assert plan.quick_config(program, g, config, bounded=True) == config
        assert plan.interpretable(g, config, {}).symbols["U_3"] > 1
        taken.append(looks)
    assert taken[1] < 4.4 * taken[0]


def test_what_waits_for_what_is_told_without_looking_at_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A diamond, and beside it a launch that nothing waits for, in front of a long chain."""
    edges = {"a": "x", "b": "a", "c": "a", "d": "bc", "e": "x", "f": "da"}
    index = (Index.axis(M),)

    def kernel(name: str, reads: str) -> Kernel:
        loads = tuple(Load(f"v{n}", f"t_{r}", index) for n, r in enumerate(reads))
        return Kernel(name, ((M, Grid(1)),), (*loads, Store(f"t_{name}", index, "v0")))

    def sgraph(edges: Mapping[str, str]) -> SGraph:
        tensors = [Tensor(f"t_{n}", (4,), DType.FLOAT32) for n in ("x", *edges)]
        return SGraph("s", (tensors[0],), (), tuple(tensors[1:]), tuple(kernel(n, r) for n, r in edges.items()))

    found = waits(sgraph(edges))
    assert found == {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c"), "e": (), "f": ("d",)}
    assert apart(found)
    chain = {chr(0x4E00 + n): chr(0x4E00 + n - 1) if n else "x" for n in range(3000)}
    line = waits(sgraph(chain))
    assert list(line.values())[1:] == [(n,) for n in list(chain)[:-1]]
    assert not apart(line)


def test_streams_of_thousands_of_launches_are_placed() -> None:
    after: dict[str, tuple[str, ...]] = {f"k{n}": () for n in range(600)}
    demands = {name: Demand(1e-6, 0.01) for name in after}
    one = finished(after, demands, {}, 1e-6)
    assert one == pytest.approx(600 * 2e-6)
    streams = placed(after, demands, 1e-6)
    assert finished(after, demands, streams, 1e-6) < 0.3 * one
