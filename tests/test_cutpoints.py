"""Deep models compared part by part: proved where each part is, and refuted by whole runs alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from frontend_onnx_models import FLOAT, model
from onnx.helper import make_node as node
from short_calls import prove_programs
from test_models import runtime_basic

from prism.egraph.prove.cutpoints import Cuts
from prism.egraph.prove.matching import named
from prism.egraph.prove.programs import finer
from prism.egraph.prove.whole_runs import Runs
from prism.egraph.worker import Worker
from prism.frontend.onnx.reader import from_model
from prism.program.evaluate import evaluate
from prism.program.verdict import Status, Verdict

LAYERS, ROWS, D, H = 2, 4, 6, 8
Weights: TypeAlias = dict[str, np.ndarray]


def f32(x: Any) -> np.ndarray:
    return np.asarray(x, dtype=np.float32)


def weights(dtype: Any = np.float32) -> Weights:
    """Of a model with pre-norms, attention, a gated block and a LoRA on the queries in every layer."""
    rng = np.random.default_rng(5)
    shapes = {
        **dict.fromkeys(("q", "kw", "vw", "o"), (D, D)),
        "up": (D, H), "gate": (D, H), "down": (H, D), "low": (D, 2), "high": (2, D),
    }  # fmt: skip
    found = {f"{n}{i}": rng.standard_normal(s) / np.sqrt(s[0]) for i in range(LAYERS) for n, s in shapes.items()}
    found |= {f"{n}{i}": 1 + 0.3 * rng.standard_normal(D) for i in range(LAYERS) for n in ("g", "h")}
    return {n: np.asarray(w, dtype=dtype) for n, w in found.items()}


def folded(w: Weights) -> Weights:
    """The gains, the scale and the LoRA in the projections, which are fused to one."""
    kind = w["q0"].dtype
    out: Weights = {}
    w = {n: f32(x) for n, x in w.items()}
    for i in range(LAYERS):
        g, h = w[f"g{i}"][:, None], w[f"h{i}"][:, None]
        q = g * (w[f"q{i}"] + w[f"low{i}"] @ w[f"high{i}"]) * np.float32(0.5)
        out[f"qkv{i}"] = np.concatenate([q, g * w[f"kw{i}"], g * w[f"vw{i}"]], 1)
        out |= {f"up{i}": h * w[f"up{i}"], f"gate{i}": h * w[f"gate{i}"]}
        out |= {f"{n}{i}": w[f"{n}{i}"] for n in ("o", "down")}
    return {n: np.asarray(x, dtype=kind) for n, x in out.items()}


def steps(text: str, layer: int) -> list[onnx.NodeProto]:
    """Nodes, a line each: an operator, its operands and its results; `#` stands for the layer."""
    made = []
    for line in filter(None, text.replace("#", str(layer)).splitlines()):
        op, args, result, *rest = (p.strip() for p in line.split("|"))
        attributes = {k: json.loads(v) for k, v in (p.split("=") for p in rest)}
        made.append(node(op, args.split(), result.split(), **attributes))
    return made


NORM = """
Mul | {x} {x} | {n}sq
ReduceMean | {n}sq last | {n}ms
Add | {n}ms {eps} | {n}me
Sqrt | {n}me | {n}rt
Div | {x} {n}rt | {n}
"""
ATTEND = """
Transpose | k# | kt# | perm=[0,2,1]
MatMul | {q} kt# | s#
Softmax | s# | p#
MatMul | p# v# | a#
MatMul | a# o# | ao#
Add | x# ao# | m#
"""
GATED = """
Sigmoid | gt# | sg#
Mul | gt# sg# | si#
Mul | si# ut# | hh#
MatMul | hh# down# | dn#
Add | m# dn# | {y}
"""


def plain(layer: int, out: str) -> list[onnx.NodeProto]:
    text = NORM.format(x="x#", n="n#", eps="eps") + "Mul | n# g# | t#\nMatMul | t# q# | qa#\n"
    text += "MatMul | t# low# | lo#\nMatMul | lo# high# | hi#\nAdd | qa# hi# | qb#\nMul | qb# half | qs#\n"
    text += "MatMul | t# kw# | k#\nMatMul | t# vw# | v#\n" + ATTEND.format(q="qs#")
    text += NORM.format(x="m#", n="nm#", eps="eps") + "Mul | nm# h# | u#\nMatMul | u# up# | ut#\n"
    return steps(text + "MatMul | u# gate# | gt#\n" + GATED.format(y=out), layer)


def fused(layer: int, out: str, eps: str = "eps") -> list[onnx.NodeProto]:
    text = NORM.format(x="x#", n="n#", eps=eps) + "MatMul | n# qkv# | f#\nSplit | f# three | q# k# v# | axis=2\n"
    text += ATTEND.format(q="q#") + NORM.format(x="m#", n="nm#", eps="eps")
    return steps(text + "MatMul | nm# up# | ut#\nMatMul | nm# gate# | gt#\n" + GATED.format(y=out), layer)


def build(nodes: Sequence[onnx.NodeProto], w: Weights) -> onnx.ModelProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(next(iter(w.values())).dtype)
    dtype = next(iter(w.values())).dtype
    numbers = {"eps": np.asarray(1e-5, dtype), "other": np.asarray(1e-6, dtype), "half": np.asarray(0.5, dtype)}
    shapes = {"last": np.array([-1]), "three": np.array([D, D, D])}
    named_ = {n: x for n, x in {**w, **numbers, **shapes}.items() if any(n in one.input for one in nodes)}
    return model(nodes, {"x0": (kind, (1, ROWS, D))}, ["y"], named_)


def reference(w: Weights) -> onnx.ModelProto:
    made = [n for i in range(LAYERS) for n in plain(i, f"x{i + 1}" if i + 1 < LAYERS else "y")]
    return build(made, w)


def candidate(w: Weights, changed: Mapping[str, np.ndarray] | None = None, eps: str = "eps") -> onnx.ModelProto:
    made = [
        n for i in range(LAYERS) for n in fused(i, f"x{i + 1}" if i + 1 < LAYERS else "y", eps if i == 0 else "eps")
    ]
    return build(made, {**folded(w), **(changed or {})})


def verdict(a: onnx.ModelProto, b: onnx.ModelProto, worker: Worker) -> Verdict:
    return prove_programs(from_model(a, "a.onnx", None), from_model(b, "b.onnx", None), worker=worker)


def test_a_deep_model_with_folded_weights_is_proved(worker: Worker) -> None:
    w = weights()
    found = verdict(reference(w), candidate(w), worker)
    assert found.status is Status.PROVED, found.reason
    assert "parts, cut where tensors are alike" in found.reason
    assert len(found.weights) >= 3 * LAYERS
    assert all("ulp of float32" in said or "read as" in said for said in found.weights)
    assert not found.assumptions


@pytest.mark.parametrize("name", ["qkv0", "up1"])
def test_one_changed_element_is_refuted(name: str, worker: Worker) -> None:
    w = weights()
    off = folded(w)[name].copy()
    off[2, 3] *= 1.01
    found = verdict(reference(w), candidate(w, {name: off}), worker)
    assert found.status is Status.REFUTED, found.reason
    given = {n: np.asarray(v) for n, v in found.counterexample.items()}
    assert set(given) == {"x0"}
    one, other = (
        evaluate(from_model(m, "m.onnx", None), given)["y"] for m in (reference(w), candidate(w, {name: off}))
    )
    assert np.abs(one - other).max() > 1e-7 * np.abs(one).max()


@pytest.mark.parametrize("name", ["qkv1", pytest.param("gate0", marks=pytest.mark.slow)])
def test_a_change_of_a_few_last_places_is_not_proved(name: str, worker: Worker) -> None:
    """Whatever is computed from it, by which rounding would be larger than the change."""
    w = weights()
    off = folded(w)[name].copy()
    off[2, -1] *= 1 + 1e-6
    assert verdict(reference(w), candidate(w, {name: off}), worker).status is not Status.PROVED


def test_another_epsilon_is_refuted(worker: Worker) -> None:
    w = weights()
    found = verdict(reference(w), candidate(w, eps="other"), worker)
    assert found.status is Status.REFUTED, found.reason


@pytest.mark.slow
def test_halves_that_are_folded_are_proved_and_a_changed_one_is_not(worker: Worker) -> None:
    w = weights(np.float16)
    assert verdict(reference(w), candidate(w), worker).status is Status.PROVED
    for name in ("qkv1",):
        off = folded(w)[name].copy()
        off[1, -1] *= np.float16(1.02)
        assert verdict(reference(w), candidate(w, {name: off}), worker).status is not Status.PROVED


def test_heads_swapped_and_a_scale_left_out_are_refuted(worker: Worker) -> None:
    w = weights()
    whole = folded(w)
    swapped = np.concatenate([np.split(whole["qkv1"], 3, 1)[n] for n in (1, 0, 2)], 1)
    larger = whole["qkv0"].copy()
    larger[:, :D] *= 2
    for changed in ({"qkv1": swapped}, {"qkv0": larger}, {"o1": whole["o1"].T.copy()}):
        assert verdict(reference(w), candidate(w, changed), worker).status is Status.REFUTED


def test_what_onnxruntime_makes_of_a_deep_model_is_proved(worker: Worker, tmp_path: Path) -> None:
    w = weights()
    optimised = runtime_basic(reference(w), tmp_path / "b.onnx")
    assert verdict(reference(w), optimised, worker).status is Status.PROVED


MASKED = """
Where | keep x0 none | mm
ReduceMax | mm last | M | keepdims=1
Mul | x0 two | d0
"""


def masked(tail: str) -> onnx.ModelProto:
    """A deep model whose first tensors are a masked maximum, which is -inf for some rows, and 2x."""
    text = "Greater | x0 zero | keep\n" + MASKED + tail
    nodes = steps(text, 0)
    w = weights()
    for i in range(1, LAYERS):
        nodes += plain(i, f"x{i + 1}" if i + 1 < LAYERS else "y")
    numbers = {"eps": f32(1e-5), "half": f32(0.5), "zero": f32(0), "two": f32(2), "none": f32(-np.inf)}
    held = {n: x for n, x in {**w, **numbers, "last": np.array([-1])}.items() if any(n in one.input for one in nodes)}
    return model(nodes, {"x0": (FLOAT, (1, ROWS, D))}, ["M", "y"], held)


def test_a_cut_that_may_be_infinite_hides_nothing(worker: Worker) -> None:
    """The maximum of a masked row is a cut; a candidate that subtracts it from itself is NaN where it is -inf."""
    a = masked("Identity | d0 | x1")
    b = masked("Sub | M M | no\nAdd | d0 no | x1")
    found = verdict(a, b, worker)
    assert found.status is Status.REFUTED, found.reason
    assert verdict(a, a, worker).status is Status.PROVED


def test_a_proof_by_cuts_names_what_has_to_be_a_number(worker: Worker) -> None:
    """By parts alone, without the runs that refute it, the proof says that it takes the maximum for a number."""
    programs = [
        from_model(m, "m.onnx", None)
        for m in (masked("Identity | d0 | x1"), masked("Sub | M M | no\nAdd | d0 no | x1"))
    ]
    names = named(*(finer(p) for p in programs))
    runs = Runs.of(names)
    assert runs is not None
    found = Cuts(names, worker).examine(runs).verdict
    assert not found or found.assumptions


def test_finer_programs_compute_the_same() -> None:
    w = weights()
    for built in (reference(w), candidate(w), masked("Identity | d0 | x1")):
        program = from_model(built, "m.onnx", None)
        given = {"x0": np.random.default_rng(0).standard_normal((1, ROWS, D))}
        one, other = evaluate(program, given), evaluate(finer(program), given)
        assert len(finer(program).definitions) > len(program.definitions)
        for n in one:
            np.testing.assert_allclose(one[n], other[n], rtol=1e-9, atol=1e-12)
