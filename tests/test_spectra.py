"""Fourier transforms as products with matrices, against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from prism.errors import UnsupportedError
from prism.frontend.onnx.reader import from_model
from prism.program.evaluate import evaluate
from prism.program.nodes import Program

RNG = np.random.default_rng(0)


def read(op: str, shape: tuple[Any, ...], operands: list[Any], opset: int = 20, **attributes: Any) -> Program:
    """The program of one node; operands after the signal are stored in the model, and None is left out."""
    names = ["" if o is None else f"k{n}" for n, o in enumerate(operands)]
    node = helper.make_node(op, ["x", *names], ["y"], **attributes)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(np.asarray(o), n) for n, o in zip(names, operands, strict=True) if n]
    graph = helper.make_graph([node], "g", [x], [y], held)
    return from_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), "m", None)


def made(program: Program, x: np.ndarray) -> np.ndarray:
    (found,) = evaluate(program, {"x": x}).values()
    return found


def as_complex(x: np.ndarray) -> np.ndarray:
    return x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("length", [None, 4, 7, 9])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms_are_numpys(size: int, length: int | None, parts: int, inverse: int) -> None:
    x = RNG.standard_normal((3, size, 2, parts))
    operands = [None if length is None else np.int64(length), np.int64(1)]
    found = as_complex(made(read("DFT", x.shape, operands, inverse=inverse), x))
    transform = np.fft.ifft if inverse else np.fft.fft
    np.testing.assert_allclose(found, transform(as_complex(x), length, axis=1), atol=1e-5)


@pytest.mark.parametrize("length", [2, 5, 8, 12])
def test_half_of_a_spectrum_is_enough_for_real_numbers(length: int) -> None:
    x = RNG.standard_normal((3, length, 1))
    found = as_complex(made(read("DFT", x.shape, [], opset=17, onesided=1), x))
    np.testing.assert_allclose(found, np.fft.rfft(x[..., 0], axis=1), atol=1e-5)
    half = np.stack([found.real, found.imag], -1)
    back = made(read("DFT", half.shape, [np.int64(length)], opset=17, onesided=1, inverse=1), half)
    np.testing.assert_allclose(back, x, atol=1e-5)
    with pytest.raises(UnsupportedError, match="real numbers"):
        read("DFT", half.shape, [], opset=17, onesided=1)


@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize("onesided", [1, 0])
def test_frames_of_a_signal_of_any_length(windowed: bool, onesided: int) -> None:
    window = RNG.random(6).astype(np.float32)
    operands = [np.int64(4), window if windowed else None, np.int64(6)]
    program = read("STFT", ("b", "n", 1), operands, onesided=onesided)
    for many in (6, 9, 10, 23):
        x = RNG.standard_normal((2, many, 1))
        frames = np.stack([x[:, f : f + 6, 0] for f in range(0, many - 5, 4)], 1) * (window if windowed else 1)
        transform = np.fft.rfft if onesided else np.fft.fft
        np.testing.assert_allclose(as_complex(made(program, x)), transform(frames, axis=-1), atol=1e-5)


def test_what_has_no_matrix_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="fixed length"):
        read("DFT", (1, "n", 1), [], opset=17)
    with pytest.raises(UnsupportedError, match="fast one"):
        read("DFT", (1, 4096, 1), [], opset=17)
