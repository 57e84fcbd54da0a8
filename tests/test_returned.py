"""Outputs that need no kernel: constants of every type, inputs as they are, one result twice, nothing at all."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
import sympy
import torch
from onnx import TensorProto, helper, numpy_helper

import prism
from prism.api.loading import load
from prism.api.optimizing import check_supported
from prism.api.proving import prove_models
from prism.api.trivial import check_gain
from prism.backends.cpu.emit import CPP
from prism.backends.protocol import Backend, write_module
from prism.backends.triton.emit import TRITON
from prism.backends.weights import weights_file
from prism.errors import NoImprovementError, UnsupportedError
from prism.platforms.contenders import Contenders
from prism.program.nodes import Program
from prism.program.returned import Computed, Made, Passed, computed
from prism.program.verdict import Status
from prism.sgraph.config import Config

LARGE = 2**40 + 1
"""A whole number that float32 does not hold."""


def work(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + 1) * x


def many(x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = work(x)
    return (
        torch.arange(5),
        y,
        torch.tensor([LARGE, -LARGE]),
        torch.tensor([True, False]),
        torch.full((2, 3), 2.5, dtype=torch.float16),
        torch.full((3,), 2.5, dtype=torch.bfloat16),
        torch.full((2,), 7, dtype=torch.uint8),
        torch.full((200, 2), -3, dtype=torch.int32),
        torch.full((), 0.5, dtype=torch.float64),
        torch.full((2,), -torch.inf),
        x,
        ids,
        y,
        x[:0],
        torch.tensor(x.shape[0]),
    )


X, IDS = torch.randn(6, 8), torch.tensor([2**30 + 1, 3])


@pytest.fixture(scope="module")
def program() -> Program:
    return prism.trace(many, [X, IDS], check=False)


def test_what_is_left_is_what_a_kernel_computes(program: Program) -> None:
    left, returned = computed(program)
    assert left.outputs == (program.outputs[1],)
    assert left.places == (1,)
    assert left.inputs == program.inputs, "the function keeps its arguments"
    assert returned[10:13] == (Passed("x"), Passed("ids"), Computed(0))
    # What torch lifts out of a function, tensors that are written out in it, are weights.
    made = [
        r for r in returned if r not in (*returned[10:13], Computed(0)) and r not in list(map(Passed, program.weights))
    ]
    assert len(made) >= 9
    assert all(isinstance(r, Made) for r in made)
    assert computed(left) == (left, (Computed(0),))
    check_supported(left)


def module(backend: Backend, program: Program, folder: Path) -> ModuleType:
    """The emitted module of the first sGraph that is proved; tiles of 4."""
    left, returned = computed(program)
    with prism.search(left) as found:
        sgraph = next(found).sgraph
    config = Config({s.name: 4 for s in sgraph.symbols}, {k.name: 1 for k in sgraph.kernels}, {})
    configs = {"cpu": [config]}
    source = backend.emit(sgraph, configs=configs, weights=bool(program.weights), returned=returned)
    path = write_module(source, folder / "kernels.py")
    (folder / "weights.pt").write_bytes(bytes(weights_file(program) or b""))
    spec = importlib.util.spec_from_file_location(f"returned_{folder.name}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_an_emitted_function_returns_all_outputs(program: Program, tmp_path: Path) -> None:
    launch: Callable[..., tuple[torch.Tensor, ...]] = module(CPP, program, tmp_path).many
    for found, wanted in zip(launch(X, IDS), many(X, IDS), strict=True):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        torch.testing.assert_close(found, wanted)
    for array, tensor in zip(launch(X.numpy(), IDS.numpy()), many(X, IDS), strict=True):
        if tensor.dtype is not torch.bfloat16:
            np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-6)


def test_triton_constants(program: Program, tmp_path: Path) -> None:
    made = module(TRITON, program, tmp_path)
    for r, wanted in zip(computed(program)[1], many(X, IDS), strict=True):
        if isinstance(r, Made):
            values = tuple(v if wanted.dtype.is_floating_point else int(v) for v in map(float, map(str, r.values)))
            shape = tuple(map(int, map(str, r.tensor.shape)))
            found = made._constant(torch.device("cpu"), values, shape, r.tensor.dtype.value)
            assert found.dtype == wanted.dtype
            torch.testing.assert_close(found, wanted)


def test_a_symbolic_shape_is_returned(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node("Softmax", ["x"], ["y"]),
        helper.make_node("Identity", ["w"], ["v"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    info, whole = helper.make_tensor_value_info, TensorProto.INT64
    outputs = [info("s", whole, [2]), info("n", whole, []), info("y", TensorProto.FLOAT, ["batch", 4])]
    outputs += [info("v", whole, [1]), info("w", whole, [1])]
    weight = numpy_helper.from_array(np.array([LARGE]), "w")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], outputs, [weight]), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    program = load(path)
    batch = sympy.Symbol("batch", integer=True, positive=True)
    left, returned = computed(program)
    assert [r.values for r in returned if isinstance(r, Made)] == [(batch, 4.0), (4 * batch,), (LARGE,), (LARGE,)]
    assert returned[2] == Computed(0)
    assert left.outputs == ("y",)
    assert prove_models(path, path).status is Status.PROVED


def test_models_that_differ_in_a_constant_output_are_refuted() -> None:
    def other(x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, *rest = many(x, ids)
        return (first + 1, *rest)

    assert prism.prove(many, many, [X, IDS], check=False).status is Status.PROVED
    assert prism.prove(many, other, [X, IDS], check=False).status is Status.REFUTED


def test_only_constants_are_nothing_to_gain() -> None:
    program = prism.trace(lambda x: (torch.arange(3), x, x[:0]), [X], check=False)
    assert computed(program)[0] is program
    with pytest.raises(NoImprovementError, match="nothing to gain"):
        check_gain(program)


@pytest.mark.parametrize(
    ("fn", "fits"),
    [
        (lambda x: (work(x), x > 0), True),
        (lambda x: (work(x), (x > 0).to(torch.uint8)), True),
        (lambda x: (work(x), (x > 0).sum(-1)), True),
        (lambda x: (work(x), (x * 1e9).to(torch.int32)), False),
        (lambda x: (work(x), torch.arange(300) + 2**30), False),
    ],
)
def test_whole_numbers_that_float32_holds_are_computed(
    fn: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], fits: bool
) -> None:
    left, _ = computed(prism.trace(fn, [X], check=False))
    assert len(left.outputs) == 2
    if fits:
        check_supported(left)
    else:
        with pytest.raises(UnsupportedError, match="may be large"):
            check_supported(left)


def test_a_baseline_gives_what_the_program_computes(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(_Many(), (X, IDS)), tmp_path / "many.pt2")
    spec = {"kind": "eager", "exported": str(tmp_path / "many.pt2"), "program": "", "inputs": [0, 1], "places": [1]}
    (found,) = Contenders([X, IDS]).call(spec, 1)()
    torch.testing.assert_close(found, work(X))


class _Many(torch.nn.Module):
    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t.clone() for t in many(x, ids))
