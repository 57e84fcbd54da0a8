"""Writing at places that data give: torch's and onnx's forms of it, against both, and in kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backend_examples import BOUNDS
from cpu_batch import Case, run_batch
from frontend_onnx_models import check, model, run_program
from onnx import TensorProto, helper
from onnx.helper import make_node as node
from sgraph_programs import task

import prism
from prism.backends.cpu.build import find_compiler
from prism.backends.eager import eager
from prism.errors import UnsupportedError
from prism.frontend.onnx.reader import from_model
from prism.generate.enumerate import generate
from prism.instantiate.gate.draws import draw_inputs
from prism.program.evaluate import evaluate
from prism.program.nodes import Reduce, walk
from prism.program.spec import check as legal
from prism.program.verdict import Status

Fn = Callable[..., Any]
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def places(*shape: int, below: int, least: int = 0) -> torch.Tensor:
    return torch.randint(least, below, shape, generator=torch.Generator().manual_seed(sum(shape)))


X, Y = torch.randn(5, 4), torch.randn(5, 4)
CUBE = torch.randn(3, 5, 4)
WHOLE = torch.arange(20).view(5, 4) - 7
APART = torch.tensor([3, 0, 4])
"""Places of which no two are equal: of equal ones torch does not say which counts."""


def assigned(*at: Any) -> Fn:
    """A copy of the tensor, in which something is written at places."""

    def function(x: torch.Tensor, value: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[tuple(given[i] if isinstance(i, int) else i for i in at)] = value
        return y

    return function


ALL, LINE = slice(None), torch.arange(3)
WRITES: dict[str, tuple[Fn, list[torch.Tensor]]] = {
    "one hot": (lambda i: torch.zeros(6, 9).scatter(1, i[:, None], 1.0), [places(6, below=9)]),
    "one hot in place": (lambda i: torch.zeros(6, 9).scatter_(-1, i.unsqueeze(1), 0.5), [places(6, below=9)]),
    "several hot": (lambda i: torch.zeros(6, 9).scatter(1, i, 1.0), [places(6, 3, below=9)]),
    "one_hot": (lambda i: F.one_hot(i, 9), [places(2, 6, below=9)]),
    "a number": (lambda x, i: x.scatter(0, i, 2), [X, places(2, 3, below=5)]),
    "a source": (lambda x, i, y: x.scatter(0, i, y), [X, APART[:, None].expand(3, 4), Y]),
    "of equal places the last": (
        lambda x, i, y: x.scatter(0, i, y),
        [X, torch.tensor([[1], [1], [4]]).expand(3, 4), Y],
    ),
    "of fewer columns": (lambda x, i, y: x.scatter(0, i, y), [X, APART[:, None].expand(3, 2), Y]),
    "added": (lambda x, i, y: x.scatter_add(1, i, y), [X, places(5, 3, below=4), Y]),
    "multiplied": (lambda x, i, y: x.scatter(1, i, y, reduce="multiply"), [X, places(5, 3, below=4), Y]),
    "added number": (lambda x, i: x.scatter(1, i, 1.5, reduce="add"), [X, places(5, 3, below=4)]),
    "reduced": (
        lambda x, i, y: tuple(x.scatter_reduce(0, i, y, r) for r in ("sum", "prod", "amax", "amin", "mean")),
        [X, places(3, 4, below=5), Y],
    ),
    "reduced without what is there": (
        lambda x, i, y: tuple(
            x.scatter_reduce(0, i, y, r, include_self=False) for r in ("sum", "prod", "amax", "amin", "mean")
        ),
        [X, places(3, 4, below=3), Y],
    ),
    "whole numbers": (
        lambda x, i, y: (x.scatter(0, i, -3), x.scatter_add(0, i, y), x.scatter_reduce(0, i, y, "amax")),
        [WHOLE, places(3, 4, below=5), WHOLE * 2],
    ),
    "truth values": (lambda x, i: (x > 0).scatter(0, i, True), [X, places(2, 4, below=5)]),
    "of a scalar": (lambda x, i, y: x.scatter(0, i, y), [torch.tensor(2.0), torch.tensor(0), torch.tensor(3.0)]),
    "index_add": (lambda x, i, y: x.index_add(0, i, y, alpha=2), [X, places(5, below=5), Y]),
    "index_add along the middle": (lambda x, i: x.index_add(1, i, x[:, :3]), [CUBE, places(3, below=5)]),
    "index_copy": (lambda x, i, y: x.index_copy(0, i, y[:3]), [X, APART, Y]),
    "index_copy at known places": (lambda x, y: x.index_copy(0, torch.tensor([3, 0, 4]), y[:3]), [X, Y]),
    "index_fill": (lambda x, i: x.index_fill(1, i, 7.0), [X, places(2, below=4)]),
    "index_reduce": (lambda x, i, y: x.index_reduce(0, i, y, "amax"), [X, places(5, below=5), Y]),
    "rows assigned": (assigned(0), [X, Y[:3], APART]),
    "a row assigned": (assigned(0), [X, Y[0], APART]),
    "from the end": (assigned(0), [X, Y[:3], torch.tensor([-1, 0, -3])]),
    "elements assigned": (assigned(0, 1), [X, Y[:3, 0], APART, torch.tensor([1, 1, 3])]),
    "a number at elements": (assigned(0, 1), [X, torch.tensor(4.0), APART, torch.tensor([1, 1, 3])]),
    "labels": (assigned(torch.arange(5), 0), [X, torch.tensor(1.0), places(5, below=4)]),
    "a part of the rows": (assigned(LINE + 1, 0), [X, Y[:3, 0], places(3, below=4)]),
    "dimensions apart": (assigned(0, ALL, 1), [CUBE, torch.randn(2, 5), torch.tensor([2, 0]), torch.tensor([1, 3])]),
    "dimensions at the end": (
        assigned(ALL, 0, 1),
        [CUBE, torch.randn(3, 2), torch.tensor([2, 0]), torch.tensor([1, 3])],
    ),
    "a table of places": (assigned(0, 1), [X, torch.randn(2, 2), torch.tensor([[0], [2]]), torch.tensor([[1, 3]])]),
    "every other row": (assigned(torch.arange(0, 5, 2)), [X, Y[:3]]),
    "every other row from the second on": (assigned(torch.arange(1, 5, 2)), [X, Y[:2]]),
    "backwards": (assigned(torch.arange(4, -1, -1)), [X, Y]),
    "accumulated": (lambda x, i, y: x.index_put((i,), y, accumulate=True), [X, places(5, below=3), Y]),
}


@pytest.mark.parametrize("name", WRITES)
def test_torch_writes(name: str) -> None:
    fn, given = WRITES[name]
    program = prism.trace(fn, given)
    legal(program)
    want = fn(*given)
    want = want if isinstance(want, tuple) else (want,)
    found = evaluate(program, {t.name: x.numpy() for t, x in zip(program.inputs, given, strict=False)})
    for name, expected, again in zip(program.outputs, want, eager(program)(*given, *_weights(program)), strict=True):
        np.testing.assert_allclose(found[name], expected.double().numpy(), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(again, expected, rtol=1e-5, atol=1e-5)


def _weights(program: prism.Program) -> list[torch.Tensor]:
    return [torch.from_numpy(np.asarray(program.weights[t.name])) for t in program.inputs if t.name in program.weights]


@pytest.mark.parametrize("name", ["one hot", "labels", "a part of the rows", "every other row", "backwards"])
def test_what_positions_tell_is_not_summed(name: str) -> None:
    program = prism.trace(*WRITES[name])
    assert not any(isinstance(e, Reduce) for d in program.definitions for e in walk(d.expr))


def test_places_a_step_apart_are_told_as_a_slice_s_are() -> None:
    """By what is left of a place: a kernel is for `i // 4 - 3`, and was for none of `(i + 1) // 4 - 4`."""
    program = prism.trace(lambda x: torch.zeros(80).index_add(0, torch.arange(17) * 4 + 15, x) * 2, torch.randn(17))
    assert "x[(i0)//4 - 3]" in str(program)


def test_random_writes_are_read_as_onnx_says() -> None:
    rng = np.random.default_rng(0)
    for trial in range(40):
        shape = [int(n) for n in rng.integers(1, 6, rng.integers(1, 4))]
        x = rng.standard_normal(shape).astype(np.float32)
        reduction = ["none", "add", "mul", "max", "min"][trial % 5]
        if trial % 2:
            d = int(rng.integers(-len(shape), len(shape)))
            own = [int(rng.integers(1, n + 1)) for n in shape]
            own[d] = int(rng.integers(1, 7))
            at, wide = rng.integers(-shape[d], shape[d], own), own
            attributes: dict[str, Any] = {"axis": d}
        else:
            many = int(rng.integers(1, len(shape) + 1))
            outer = [int(n) for n in rng.integers(1, 4, rng.integers(1, 3))]
            at = np.stack([rng.integers(-n, n, outer) for n in shape[:many]], -1)
            wide, attributes = [*outer, *shape[many:]], {}
        update = rng.standard_normal(wide).astype(np.float32)
        op = "ScatterElements" if trial % 2 else "ScatterND"
        given: dict[str, np.ndarray] = {"x": x, "i": at, "u": update}
        kinds: dict[str, tuple[int, Any]] = {"x": (FLOAT, shape), "i": (INT64, at.shape), "u": (FLOAT, wide)}
        written = node(op, ["x", "i", "u"], ["y"], reduction=reduction, **attributes)
        check(model([written], kinds, ["y"], opset=18), given)
        held = model([written], {n: kinds[n] for n in "xu"}, ["y"], opset=18, constants={"i": at})
        check(held, {n: given[n] for n in "xu"})


def test_a_slice_that_is_written_is_no_sum() -> None:
    """As exporters write `x[1:4, 2] = u`."""
    at = np.stack(np.broadcast_arrays(np.arange(1, 4), 2), -1)
    written = model(
        [node("ScatterND", ["x", "i", "u"], ["y"])],
        {"x": (FLOAT, [5, 4, 3]), "u": (FLOAT, [3, 3])},
        ["y"],
        opset=18,
        constants={"i": at},
    )
    program = check(written, {"x": np.ones((5, 4, 3), np.float32), "u": np.arange(9, dtype=np.float32).reshape(3, 3)})
    assert not any(isinstance(e, Reduce) for d in program.definitions for e in walk(d.expr))


IDS, ROWS = places(7, below=5), torch.randn(7, 4)
PAIRS: list[tuple[Fn, Fn, list[torch.Tensor], Status]] = [
    (
        lambda x, i, y: x.index_add(0, i, y),
        lambda x, i, y: x + (i[None] == torch.arange(5)[:, None]).float() @ y,
        [X, IDS, ROWS],
        Status.PROVED,
    ),
    (
        lambda x, i, y: x.index_add(0, i, 2 * y),
        lambda x, i, y: x.scatter_add(0, i[:, None].expand(7, 4), y + y),
        [X, IDS, ROWS],
        Status.PROVED,
    ),
    (
        lambda i: torch.zeros(7, 5).scatter(1, i[:, None], 1.0),
        lambda i: F.one_hot(i, 5).float(),
        [IDS],
        Status.PROVED,
    ),
    (lambda x, i, y: x.index_add(0, i, y), lambda x, i, y: x.index_copy(0, i, y), [X, IDS, ROWS], Status.REFUTED),
]


@pytest.mark.parametrize("n", range(len(PAIRS)))
def test_verdicts(n: int) -> None:
    a, b, given, status = PAIRS[n]
    assert prism.prove(a, b, given).status is status


def test_places_that_are_written_twice_are_no_misreading() -> None:
    """torch writes them on several threads, in no order."""
    cache, rows = (torch.empty(n, 8, 128, device="meta") for n in (32768, 4096))
    places = torch.empty(4096, dtype=torch.int64, device="meta")
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for _ in range(8):
            prism.trace(lambda c, i, y: c.index_put((i,), y), [cache, places, rows])
    finally:
        torch.set_num_threads(before)
    assert torch.get_deterministic_debug_mode() == 0


def test_draws_are_places_that_are_written_to() -> None:
    program = prism.trace(lambda x, i, y: x.index_add(0, i, y), [X, IDS, ROWS])
    _, i, _ = (draw_inputs(program, "normal", {}, 0)[t.name] for t in program.inputs)
    assert int(i.min()) >= 0
    assert 1 < int(i.max()) < 5


def test_masks_of_several_values_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="depends on data"):
        prism.trace(lambda x, y: x.index_put((x[:, 0] > 0,), y), [X, Y])


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_kernels_write_the_same(tmp_path: Path) -> None:
    cases, expected = [], []
    for name in ("one hot", "added", "of equal places the last", "elements assigned"):
        fn, given = WRITES[name]
        program = prism.trace(fn, given, check=False)
        made = [c.sgraph for c in generate(task(program), BOUNDS).candidates]
        cases += [Case(g, {s.name: 8 for s in g.symbols}, [x.numpy() for x in given]) for g in made[:2]]
        expected += [fn(*given).numpy()] * len(made[:2])
    assert len(cases) >= 4
    for found, want in zip(run_batch(cases, tmp_path), expected, strict=True):
        np.testing.assert_allclose(found[0], want, rtol=1e-5, atol=1e-6)


def test_the_operator_that_elements_were_written_by_before_is_the_same() -> None:
    ort = pytest.importorskip("onnxruntime")
    x, at, update = (
        np.ones((3, 4), np.float32),
        np.array([[1, 0], [0, 2]]),
        np.arange(4, dtype=np.float32).reshape(2, 2),
    )
    kinds = {"x": (FLOAT, x.shape), "i": (INT64, at.shape), "u": (FLOAT, update.shape)}
    built = model([node("Scatter", ["x", "i", "u"], ["y"], axis=0)], kinds, ["y"], opset=9)
    built.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, x.shape))
    given = {"x": x, "i": at, "u": update}
    (want,) = ort.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)
    (found,) = run_program(from_model(built, "m", None), given)
    np.testing.assert_array_equal(found, want)
