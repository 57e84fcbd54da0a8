"""Large programs: what is shared is looked at once, however often it stands in an expression written out."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from prism.api.loading import load
from prism.cli.app import main
from prism.egraph.prove import polynomials
from prism.egraph.prove.normal_form import Unfit, normal_form
from prism.errors import ExitCode, TooDeepError, refusing_depth
from prism.generate.partition import partition
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import Expr, Map, Read, Reduce, ReduceKind, walk

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
