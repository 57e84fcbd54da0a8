"""benchmarks/models.py: what its rows say. Its models need transformers, and minutes."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import models, packaged, reading
from benchmarks.models import Row, last_line, lines_of, operations, shapes_of, shares, stages_of


def test_a_model_that_fails_is_a_row_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> dict[str, object]:
        raise RuntimeError("no such class")

    monkeypatch.setattr(models, "child", refused)
    row = models.row_of("bert", tmp_path, Namespace(opset=18, dynamic=False, budget="1s", threads=1, compile=False))
    assert row.ratio is None
    assert "export: no such class" in "\n".join(lines_of(row))
    rows = [row, Row("vit", kept=True, code=4), Row("t5", ratios={"onnxruntime": (3.9, 4.0, 4.2)})]
    assert last_line(rows).endswith("2.00x of 2 models (1 stay as they were, 1 failed)")


def test_stages_are_summed_over_islands_and_regions() -> None:
    said = """prism: load 78.9 ms  in parts
prism: island_0 of 3: search 2.59 s  2 regions
prism: island_2 of 3: search: 5/8 regions ... 30.0 s so far
prism: island_2 of 3, region 1 of 8: tuning 360 ms  3 compiled
prism: island_2 of 3, region 2 of 8: tuning 1.5 min
prism: island_2 65.2 s  64 nodes"""
    assert stages_of(said) == pytest.approx({"load": 0.0789, "search": 2.59, "tuning": 90.36})


def test_kernels_that_the_gate_drops_are_told() -> None:
    said = """prism: island_0: check 3.1 s  6 cases
prism: warning: a proved sGraph failed the numeric gate and was dropped: n=3: 4 elements
prism: warning: the time ended: 4 cases of the numeric gate were not run"""
    row = Row("gpt2", dropped=models.dropped_in(said))
    assert [x for x in lines_of(row) if "numeric gate" in x] == [f"{'':9} {said.splitlines()[1]}"]


def test_shares_count_nodes_and_operations_of_islands(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    m (float[n, 8] x, float[8, 4] w, float[4, 2] v) => (float[n, 2] y) {
        a = MatMul(x, w)  b = Exp(a)  y = MatMul(b, v) }"""
    model = onnx.parser.parse_model(text)
    onnx.save(model, tmp_path / "m.onnx")
    first = model.graph.node[0]
    assert operations(first, shapes_of(onnx.shape_inference.infer_shapes(model))) == 2.0 * models.SEQUENCE * 4 * 8
    model.functions.append(
        onnx.helper.make_function("ai.prism", "island_0", ["x", "w"], ["b"], model.graph.node[:2], model.opset_import)
    )
    folder = tmp_path / "out"
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    islands = [{"nodes": 2, "why": ""}, {"nodes": 1, "why": "it gains nothing"}]
    (folder / "report.json").write_text(json.dumps({"nodes": 3, "islands": islands}))
    assert shares(tmp_path / "m.onnx", folder) == pytest.approx((2 / 3, 32 / 40))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        models.main([])
    assert "transformers is missing: pip install transformers" in capsys.readouterr().err


READ = """<ir_version: 10, opset_import: ["" : 18]>
m (float[n, 8] x, float[m, 8] z) => (float[n, 3] y) <int64[1] many = {3}> { s = Add(x, z)  t = Tanh(s)  %s }"""


@pytest.mark.parametrize(
    ("rest", "kind", "nodes"),
    [
        ("w = Exp(t)  y = Slice(w, zero, many, one)", "whole", (0, 0)),
        ("y, at = TopK <sorted = 0> (t, many)", "in parts", (2, 3)),
    ],
)
def test_what_is_read_is_compared_with_onnxruntime(
    rest: str, kind: str, nodes: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    text = READ.replace("{3}>", "{3}, int64[1] zero = {0}, int64[1] one = {1}>") % rest
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    inputs = {n: np.random.default_rng(0).standard_normal((5, 8), np.float32) for n in ("x", "z")}
    found = reading.read(tmp_path / "m.onnx", inputs)
    assert (found.kind, found.nodes, found.failed) == (kind, nodes, False)
    evaluated = reading._evaluated
    monkeypatch.setattr(reading, "_evaluated", lambda *given: [1.01 * x for x in evaluated(*given)])
    assert reading.read(tmp_path / "m.onnx", inputs).failed


def test_models_of_packages_are_found_and_nets_have_weights_of_their_own(tmp_path: Path) -> None:
    assert {"light_resnet50", "test_Linear_no_bias", "test_sequence_model1"} <= packaged.files().keys()
    assert "light_resnet50" in packaged.nets()
    assert "test_Linear_no_bias" not in packaged.nets()
    packaged.write("light_squeezenet", tmp_path / "net.onnx")
    net = onnx.load(tmp_path / "net.onnx")
    assert {n.op_type for n in net.graph.node}.isdisjoint({"ConstantOfShape"})
    weights = [w for w in map(onnx.numpy_helper.to_array, net.graph.initializer) if w.ndim == 4]
    assert min(float(w.std()) for w in weights) > 0.0
    (image,) = packaged.inputs("light_squeezenet", net).values()
    assert (image.dtype, image.shape) == (np.float32, (1, 3, 224, 224))


def test_models_of_packages_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    """A sequence by the data beside it, maps as a result, an opset that onnxruntime dropped, and one that is whole."""
    pytest.importorskip("onnxruntime")
    names = "test_sequence_model1,logreg_iris,test_Linear,test_Softmax"
    assert models.main(["--read", "--packaged", "--only", names]) == 0
    assert "2 in parts, 1 not taken by onnxruntime, 1 whole" in capsys.readouterr().out


@pytest.mark.slow
def test_all_models_of_packages_are_read() -> None:
    pytest.importorskip("onnxruntime")
    assert models.main(["--read", "--packaged"]) == 0
