"""Recurrent layers are loops of one step: what is read, what a legal one is, and what is made of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cpu_batch import load
from quick import slow_but
from torch import nn

import prism
from prism.api.partitioned import search_regions
from prism.api.region_search import SearchBudget
from prism.api.verifying import verify
from prism.backends.cpu.build import find_compiler
from prism.backends.cpu.emit import emit_module
from prism.backends.lifetimes import shared_places
from prism.backends.lower import lower
from prism.backends.protocol import write_module
from prism.backends.triton.emit import emit_module as emit_triton
from prism.cost.device import DEVICES, device
from prism.cost.model import Model, baseline_estimate
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError, UnsupportedError
from prism.events import Recorder
from prism.frontend.onnx.reader import from_model
from prism.frontend.torch.reader import trace
from prism.generate.partition import partition
from prism.instantiate.gate.plan import plan_samples
from prism.instantiate.lock import program_hash
from prism.program import spec
from prism.program.evaluate import evaluate
from prism.program.loops import stacks, written_out
from prism.program.nodes import Loop, Program, Steps
from prism.program.verdict import Status
from prism.sgraph import spec as sgraph_spec
from prism.sgraph.compose import steps_differ
from prism.sgraph.config import Config
from prism.sgraph.launches import apart, waits
from prism.sgraph.nodes import SGraph
from prism.sgraph.record import plain, sgraph_of
from prism.sgraph.show import key, text

compiled = pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")


class Layer(nn.Module):
    """A recurrent layer of 5 inputs and 3 hidden elements, with what it returns in one tuple."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(5, 3, **options)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, last = self.layer(x, *([states if len(states) > 1 else states[0]] if states else []))
        return (y, *(last if isinstance(last, tuple) else (last,)))


def layer(kind: str, **options: Any) -> Layer:
    torch.manual_seed(0)
    return Layer(kind, **options).eval()


def given(made: Layer, steps: int, states: bool) -> tuple[torch.Tensor, ...]:
    own = made.layer
    shape = (2, steps, 5) if own.batch_first else (steps, 2, 5)
    many = 2 if isinstance(own, nn.LSTM) else 1
    rows = own.num_layers * (2 if own.bidirectional else 1)
    return (torch.randn(shape), *(torch.randn(rows, 2, 3) for _ in range(many if states else 0)))


def read(made: Layer, steps: int = 4, states: bool = False) -> Program:
    program = trace(made, given(made, steps, states), name="layer", check=False)
    spec.check(program)
    return program


def values(program: Program, tensors: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
    named = {t.name: x.double().numpy() for t, x in zip(program.arguments, tensors, strict=True)}
    found = evaluate(program, named)
    return [found[name] for name in program.outputs]


KINDS = ("LSTM", "GRU", "RNN")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
}
QUICK = [("LSTM", "all"), ("GRU", "all"), ("RNN", "all"), ("GRU", "plain"), ("LSTM", "no bias")]


@pytest.mark.parametrize(("kind", "options"), slow_but(QUICK, itertools.product(KINDS, OPTIONS)))
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_layers_are_what_torch_computes(kind: str, options: str, states: bool, steps: int) -> None:
    made = layer(kind, **OPTIONS[options])
    tensors = given(made, steps, states)
    program = read(made, steps, states)
    assert len(program.loops) == made.layer.num_layers * (2 if made.layer.bidirectional else 1)
    with torch.no_grad():
        expected = made.double()(*(t.double() for t in tensors))
    for one, other in zip(values(program, tensors), expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), atol=1e-6)
    apart_ = written_out(program)
    spec.check(apart_)
    assert not apart_.loops
    for one, two in zip(values(program, tensors), values(apart_, tensors), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-13)


def test_a_rectified_layer_is_one_too() -> None:
    made = layer("RNN", nonlinearity="relu")
    tensors = given(made, 3, False)
    program = read(made, 3)
    with torch.no_grad():
        expected = made.double()(*(t.double() for t in tensors))
    np.testing.assert_allclose(values(program, tensors)[0], expected[0].numpy(), atol=1e-6)


def test_the_comparison_with_torch_passes_and_finds_a_wrong_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from prism.frontend import recurrent
    from prism.frontend.torch import reader
    from prism.frontend.torch import recurrent as layers

    made = layer("LSTM")
    assert prism.trace(made, given(made, 3, True)).conformance is not None
    wrong = replace(layers._KINDS["lstm"], loop=lambda of, weights: recurrent.lstm(of, weights, "ifog"))
    monkeypatch.setitem(reader.HANDLERS, "lstm", partial(layers._layers, wrong))
    with pytest.raises(prism.errors.ConformanceError, match="lstm"):
        prism.trace(made, given(made, 3, True))


def test_long_layers_are_compared_over_few_steps() -> None:
    """What a step rounds, the next ones may make anything of."""
    made = layer("GRU")
    found = prism.trace(made, given(made, 40, False)).conformance
    assert found is not None
    assert found.draws
    assert found.extents == "x[12, 2, 5]"


def test_layers_of_other_kinds_are_decomposed() -> None:
    made = layer("LSTM", proj_size=2)
    program = trace(made, (torch.randn(3, 2, 5),), name="layer", check=False)
    assert not program.loops


def test_a_layer_does_not_grow_with_its_steps() -> None:
    few, many = read(layer("RNN"), 8), read(layer("RNN"), 64)
    assert len(few.definitions) == len(many.definitions)
    regions = partition(many)
    assert [r.loop is not None for r in regions] == [False, True, False]
    assert [r.canonical().key for r in regions if r.loop] == [r.canonical().key for r in partition(few) if r.loop]


def test_the_products_of_all_steps_are_one_and_layers_share_their_step() -> None:
    made = layer("GRU", num_layers=3)
    regions = partition(read(made))
    steps = [r for r in regions if r.loop is not None]
    assert len({r.canonical().key for r in steps}) == 1
    assert all(tuple(t.shape[0] for t in r.program.inputs if t.name.endswith("_in")) == (2,) for r in steps)
    assert regions[0].program.definitions[0].tensor.shape[:2] == (4, 2)


def test_the_text_says_what_is_carried() -> None:
    program = read(layer("LSTM"), states=True)
    lines = str(program).splitlines()
    assert "  loop lstm_0: 4 steps, first place first" in lines
    carried = [line for line in lines if line.startswith("    carry ")]
    assert carried[1] == "    carry lstm_0_c[2, 3] float32 = lstm_0_c_after of the step before, at first input2[0]"
    assert "last place first" in str(read(layer("LSTM", bidirectional=True)))
    assert program_hash(program) != program_hash(_with_loop(program, reverse=True))


def _with_loop(program: Program, **changes: Any) -> Program:
    """The program with its one loop changed."""
    (loop,) = program.loops
    other = replace(loop, **changes)
    return replace(
        program,
        definitions=tuple(
            replace(d, expr=Steps(other, d.expr.output, d.expr.index)) if isinstance(d.expr, Steps) else d
            for d in program.definitions
        ),
    )


def _loop(program: Program) -> Loop:
    (loop,) = program.loops
    return loop


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("has other steps", lambda loop: {"trips": 5}),
        ("reads what is not there", lambda loop: {"slices": ((loop.slices[0][0], "nothing"),)}),
        ("starts elsewhere", lambda loop: {"states": (replace(loop.states[0], place=1),)}),
        ("starts from what has another shape", lambda loop: {"states": (replace(loop.states[0], place=None),)}),
        ("carries what is no output", lambda loop: {"states": (replace(loop.states[0], after="nothing"),)}),
        ("has a state that is a slice", lambda loop: {"slices": (*loop.slices, (loop.states[0].before, "x"))}),
        ("is called like a tensor inside", lambda loop: {"body": replace(loop.body, name="no name")}),
    ],
)
def test_loops_that_are_not_legal_are_refused(what: str, change: Any) -> None:
    program = read(layer("RNN"), states=True)
    with pytest.raises(IllegalIRError):
        spec.check(_with_loop(program, **change(_loop(program))))


def test_names_of_a_step_are_its_own() -> None:
    program = read(layer("RNN", num_layers=2))
    one, other = program.loops
    taken = replace(
        program, definitions=tuple(
            replace(d, expr=Steps(replace(one, name=other.name), d.expr.output, d.expr.index))
            if isinstance(d.expr, Steps) and d.expr.loop is one
            else d
            for d in program.definitions
        )
    )  # fmt: skip
    with pytest.raises(IllegalIRError, match="two loops have one name"):
        spec.check(taken)


# Proofs


def _lstm_by_hand(order: str) -> Any:
    def forward(
        x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        h, state, found = x.new_zeros(2, 3), x.new_zeros(2, 3), []
        for t in range(x.shape[0]):
            gates = dict(zip(order, (x[t] @ w.T + h @ u.T + b + c).chunk(4, -1), strict=True))
            kept = torch.sigmoid(gates["f"]) * state
            state = kept + torch.sigmoid(gates["i"]) * torch.tanh(gates["g"])
            h = torch.sigmoid(gates["o"]) * torch.tanh(state)
            found.append(h)
        return torch.stack(found), h

    return forward


def _rnn_by_hand(function: Any) -> Any:
    def forward(
        x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        h, found = x.new_zeros(2, 3), []
        for t in range(x.shape[0]):
            h = function(x[t] @ w.T + h @ u.T + b + c)
            found.append(h)
        return torch.stack(found), h

    return forward


def _of_torch(kind: str) -> Any:
    def forward(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        zeros = x.new_zeros(1, 2, 3)
        states = (zeros, zeros) if kind == "lstm" else zeros
        y, h, *_ = getattr(torch._VF, kind)(x, states, list(weights), True, 1, 0.0, False, False, False)
        return y, h[0]

    return forward


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "gates"),
    [
        ("rnn_tanh", _rnn_by_hand(torch.tanh), _rnn_by_hand(torch.sigmoid), 1),
        pytest.param("lstm", _lstm_by_hand("ifgo"), _lstm_by_hand("figo"), 4, marks=pytest.mark.slow),
    ],
)
def test_a_layer_is_proved_and_a_wrong_one_refuted(kind: str, right: Any, wrong: Any, gates: int) -> None:
    rows = 3 * gates
    tensors = tuple(torch.randn(s) for s in ((2, 2, 5), (rows, 5), (rows, 3), (rows,), (rows,)))
    assert prism.prove(_of_torch(kind), right, tensors).status is Status.PROVED
    assert prism.prove(_of_torch(kind), wrong, tensors).status is Status.REFUTED


def test_steps_that_are_too_many_to_be_written_out_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="cannot be written out"):
        written_out(_with_loop(read(layer("RNN")), trips=5000))


# sGraphs


@pytest.fixture(scope="module")
def both() -> tuple[Program, SGraph]:
    """Two directions, from given states, and the best sGraph that is found."""
    program = read(layer("RNN", bidirectional=True), steps=4, states=True)
    with Worker() as worker:
        regions = partition(program, device=device("sm_90"))
        found = search_regions(program, regions, device("sm_90"), SearchBudget(), [worker], Recorder())
    assert len(found.regions) > len(found.distinct)
    picks = [r.result.proved[0] for r in found.regions]
    made = found.whole(picks, found.compose([p.sgraph for p in picks]))
    assert made.verdict.status is Status.PROVED
    assert made.verdict.reason.endswith("so all steps are, by induction")
    return program, made.sgraph


def test_steps_are_windows(both: tuple[Program, SGraph]) -> None:
    program, sgraph = both
    sgraph_spec.check(sgraph)
    assert [r.reverse for r in sgraph.repeats] == [False, True]
    assert not steps_differ(sgraph.repeats, program.loops)
    shown = text(sgraph)
    assert "  4 steps, the last place first, each with" in shown
    assert sgraph_of(plain(sgraph)) == sgraph
    assert {w.of for r in sgraph.repeats for w in r.windows} >= set(stacks(program).values())


@pytest.mark.parametrize("field", ["trips", "reverse", "windows"])
def test_steps_of_another_loop_are_told_apart(both: tuple[Program, SGraph], field: str) -> None:
    program, sgraph = both
    first, second = sgraph.repeats
    swapped = tuple(replace(w, first=w.first and second.windows[-1].first, place=1) for w in first.windows)
    changed: Any = {"trips": 3, "reverse": True, "windows": swapped}[field]
    other = replace(sgraph, repeats=(replace(first, **{field: changed}), second))
    assert steps_differ(other.repeats, program.loops)
    assert key(other) != key(sgraph)


def test_steps_that_are_not_legal_are_refused(both: tuple[Program, SGraph]) -> None:
    _, sgraph = both
    first, second = sgraph.repeats
    state = next(w for w in first.windows if w.first is not None)
    for wrong in (
        replace(first, trips=3),
        replace(first, kernels=(*first.kernels, *second.kernels)),
        replace(first, windows=tuple(w for w in first.windows if w is not state)),
        replace(first, windows=tuple(replace(w, first="nothing") if w is state else w for w in first.windows)),
        replace(first, windows=tuple(replace(w, first=None) if w is state else w for w in first.windows)),
        replace(first, windows=tuple(replace(w, place=7) if w is state else w for w in first.windows)),
    ):
        with pytest.raises(IllegalIRError):
            sgraph_spec.check(replace(sgraph, repeats=(wrong, second)))


def test_steps_take_their_time_each_and_run_in_order(both: tuple[Program, SGraph]) -> None:
    program, sgraph = both
    one = replace(sgraph, repeats=tuple(replace(r, trips=1) for r in sgraph.repeats))
    symbols = {s.name: 2 for s in sgraph.symbols}
    names = [x.name for x in sgraph.launches]
    config = Config(symbols, dict.fromkeys(names, 4), dict.fromkeys(names, 2))
    model, once = (Model(g, DEVICES["sm_90"], {}).estimate(config) for g in (sgraph, one))
    steps = {k for r in sgraph.repeats for k in r.kernels}
    for a, b in zip(model.per_kernel, once.per_kernel, strict=True):
        assert a.seconds == pytest.approx(b.seconds * (4 if a.name in steps else 1))
    assert not apart(waits(sgraph))
    assert baseline_estimate(program, DEVICES["sm_90"], {}).seconds > once.seconds
    samples = dict(zip(names, plan_samples(sgraph, config, {}), strict=True))
    assert all(samples[name] is None for name in steps)


def test_buffers_of_steps_live_through_all_of_them(both: tuple[Program, SGraph]) -> None:
    _, sgraph = both
    module = lower(sgraph)
    places = {b.name: n for n, group in enumerate(shared_places(module)) for b in group}
    for r in sgraph.repeats:
        around = {w.of for w in r.windows} & places.keys()
        assert len({places[name] for name in around}) == len(around)


@compiled
@pytest.mark.usefixtures("unoptimised")
def test_steps_run_natively(both: tuple[Program, SGraph], tmp_path: Path) -> None:
    program, sgraph = both
    config = Config({s.name: 2 for s in sgraph.symbols}, {}, {})
    source = emit_module(sgraph, configs={"cpu": [config]})
    main = source.extra[f"{source.entry}.cpp"]
    assert main.count("for (int64_t step = 0; step < 4; ++step)") == 2
    assert main.count('#include "') == len(sgraph.launches)
    module = load(write_module(source, tmp_path / "layer.py"), "layer_module")
    made = layer("RNN", bidirectional=True)
    tensors = given(made, 4, True)
    with torch.no_grad():
        expected = made(*tensors)
    weights = [
        torch.from_numpy(np.asarray(program.weights[t.name])) for t in program.inputs if t.name in program.weights
    ]
    named = dict(zip([t.name for t in program.arguments], tensors, strict=True))
    named |= dict(zip([t.name for t in program.inputs if t.name in program.weights], weights, strict=True))
    for _ in range(2):
        found = getattr(module, source.entry)(*(named[t.name] for t in program.inputs))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


def test_steps_are_a_loop_of_launches_on_a_gpu(both: tuple[Program, SGraph]) -> None:
    _, sgraph = both
    source = emit_triton(sgraph, formula="", configs={})
    assert source.text.count("for step in range(4):") == 2
    assert source.text.count("yield (") == len(sgraph.launches)


@pytest.mark.slow
def test_a_folder_of_a_layer_is_verified(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = layer("GRU", bidirectional=True)
    program = prism.trace(made, given(made, 3, True), name="layer")
    out = tmp_path / "out"
    found = prism.optimize(program, target="sm_90", trials=1, out=out)
    assert found.report.rung.startswith("derivation")
    assert any("recurrent" in w for w in found.report.warnings)
    again = verify(out, program)
    assert not again.mismatches
    assert "the steps are given what the model's loops say" in again.passed


# ONNX; the node cases of onnx are in test_onnx_node_cases.py


def _onnx(op: str, given: Sequence[str], arrays: Mapping[str, np.ndarray], **attributes: Any) -> onnx.ModelProto:
    names = ["y", "y_h"] + ["y_c"] * (op == "LSTM")
    node = onnx.helper.make_node(op, [*given], names, hidden_size=3, **attributes)
    value = onnx.helper.make_tensor_value_info
    inputs = [value("x", onnx.TensorProto.FLOAT, [4, 2, 5])]
    inputs += [value("lengths", onnx.TensorProto.INT32, [2])] * ("lengths" in given and "lengths" not in arrays)
    graph = onnx.helper.make_graph(
        [node],
        "layer",
        inputs,
        [value(name, onnx.TensorProto.FLOAT, None) for name in names],
        [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])


def _weights(gates: int, directions: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w": (3 * gates, 5), "r": (3 * gates, 3), "b": (6 * gates,), "h": (2, 3), "c": (2, 3)}
    return {n: rng.standard_normal((directions, *s)).astype(np.float32) / 2 for n, s in shapes.items()}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "options"),
    [("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {"activations": ["Relu", "Relu"]})],
)
def test_onnx_layers_are_what_its_runtime_computes(op: str, options: dict[str, Any], direction: str) -> None:
    directions = 1 + (direction == "bidirectional")
    arrays = _weights({"LSTM": 4, "GRU": 3, "RNN": 1}[op], directions)
    operands = ["x", "w", "r", "b", "", "h"] + ["c"] * (op == "LSTM")
    if "activations" in options:
        options = {"activations": options["activations"][:directions]}
    used = {n: arrays[n] for n in operands if n in arrays}
    model = _onnx(op, operands, used, direction=direction, **options)
    program = from_model(model, "layer", None, check=False)
    spec.check(program)
    assert [loop.reverse for loop in program.loops] == {
        "forward": [False], "reverse": [True], "bidirectional": [False, True]
    }[direction]  # fmt: skip
    x = np.random.default_rng(1).standard_normal((4, 2, 5)).astype(np.float32)
    expected = onnxruntime_of(model, {"x": x})
    found = evaluate(program, {"x": x})
    for name, y in zip(program.outputs, expected, strict=True):
        np.testing.assert_allclose(found[name], y, atol=1e-5)


def onnxruntime_of(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
    """onnxruntime's results, where it is installed."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model.ir_version = 8
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: Sequence[np.ndarray] = session.run(None, given)
    return found


def test_sequences_of_several_lengths_stay_as_they_are() -> None:
    arrays = _weights(1, 1)
    used = {n: arrays[n] for n in "wrb"}
    operands = ["x", "w", "r", "b", "lengths"]
    equal = _onnx("RNN", operands, {**used, "lengths": np.array([4, 4], np.int32)})
    assert from_model(equal, "layer", None, check=False).loops
    for model in (
        _onnx("RNN", operands, {**used, "lengths": np.array([4, 3], np.int32)}),
        _onnx("RNN", operands, used),
    ):
        with pytest.raises(UnsupportedError, match="several lengths"):
            from_model(model, "layer", None, check=False)


@pytest.mark.parametrize("attributes", [{"clip": 1.0}, {"activations": ["HardSigmoid"]}])
def test_what_a_step_does_besides_is_refused(attributes: dict[str, Any]) -> None:
    arrays = _weights(1, 1)
    with pytest.raises(UnsupportedError):
        from_model(
            _onnx("RNN", ["x", "w", "r"], {n: arrays[n] for n in "wr"}, **attributes), "layer", None, check=False
        )
