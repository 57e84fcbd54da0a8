"""The weights file is written without torch, and torch reads it."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from prism.backends.cpu.loader import WEIGHT
from prism.backends.weights import ALIGNED, weights_file
from prism.program.nodes import DType, Program, Tensor

EDGES = [0.0, -0.0, 1.0, 1 + 2**-8, 1 + 3 * 2**-8, 3.3e38, 3.4028e38, 1e-40, np.inf, -np.inf, np.nan, 65519.0, 65520.0]
"""Ties of bfloat16, what overflows it or float16, what is tiny."""
WHOLE = [0, 1, -3, 100]
HELD = {
    "f64": (DType.FLOAT64, np.array(EDGES)),
    "f32": (DType.FLOAT32, np.array(EDGES, np.float32)),
    "f16": (DType.FLOAT16, np.array(EDGES, np.float32)),
    "bf16": (DType.BFLOAT16, np.array(EDGES, np.float32)),
    "i64": (DType.INT64, np.array(WHOLE)),
    "i32": (DType.INT32, np.array(WHOLE, np.int32)),
    "i8": (DType.INT8, np.array(WHOLE, np.int8)),
    "u8": (DType.UINT8, np.array([0, 255], np.uint8)),
    "flags": (DType.BOOL, np.array([True, False, True])),
    "scalar": (DType.FLOAT32, np.array(2.5, np.float32)),
    "nothing": (DType.FLOAT32, np.zeros((2, 0, 3), np.float32)),
    "turned": (DType.FLOAT32, np.arange(12, dtype=np.float32).reshape(3, 4).T),
    "cube": (DType.INT64, np.arange(24).reshape(2, 3, 4)),
    "a.name with ünicode" + "x" * 300: (DType.FLOAT32, np.ones((1, 70000), np.float32)),
}


@pytest.fixture(scope="module")
def program() -> Program:
    """A program that holds a weight of every kind."""
    inputs = tuple(Tensor(n, value.shape, dtype) for n, (dtype, value) in HELD.items())
    return Program("held", inputs, (), (), weights={n: value for n, (_, value) in HELD.items()})


@pytest.fixture(scope="module")
def written(program: Program) -> bytes:
    """Its weights file."""
    return bytes(weights_file(program) or b"")


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether they are equal bit by bit; any NaN is any other."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape) or not found.is_contiguous():
        return False
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    numbers = ~wanted.isnan()
    signs = torch.equal(found[numbers].signbit(), wanted[numbers].signbit())
    return signs and torch.equal(found.isnan(), ~numbers) and torch.equal(found[numbers], wanted[numbers])


@pytest.mark.parametrize("mapped", [False, True])
def test_torch_reads_what_it_would_have_stored(written: bytes, tmp_path: Path, mapped: bool) -> None:
    (tmp_path / "w.pt").write_bytes(written)
    found = torch.load(tmp_path / "w.pt", weights_only=True, mmap=mapped)
    assert list(found) == list(HELD)
    for name, (dtype, value) in HELD.items():
        wanted = torch.from_numpy(np.array(value, order="C")).to(getattr(torch, dtype.value))
        assert same(found[name], wanted), name
        assert not found[name].requires_grad


def test_an_emitted_module_reads_it_without_torch(written: bytes, tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(written)
    names: dict[str, object] = {"np": np}
    exec(WEIGHT, names)
    found = names["_read_weights"](tmp_path / "w.pt")  # type: ignore[operator]
    assert list(found) == list(HELD)
    for name, (dtype, value) in HELD.items():
        wanted = torch.from_numpy(np.array(value, order="C")).to(getattr(torch, dtype.value))
        read = torch.from_numpy(found[name])
        assert same(read.view(torch.bfloat16) if dtype is DType.BFLOAT16 else read, wanted), name


def test_numbers_are_aligned_and_the_same_weights_are_the_same_bytes(program: Program, written: bytes) -> None:
    assert bytes(weights_file(program) or b"") == written
    with zipfile.ZipFile(io.BytesIO(written)) as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():
            name, extra = (int.from_bytes(written[entry.header_offset + n :][:2], "little") for n in (26, 28))
            assert (entry.header_offset + 30 + name + extra) % ALIGNED == 0


def test_no_weights_are_no_file() -> None:
    assert weights_file(Program("none", (), (), ())) is None


def test_torch_is_not_imported_to_write() -> None:
    source = """
import sys
import numpy as np
from prism.backends.weights import weights_file
from prism.program.nodes import DType, Program, Tensor
p = Program("p", (Tensor("w", (2,), DType.BFLOAT16),), (), (), weights={"w": np.ones(2, np.float32)})
assert weights_file(p)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", source], check=True)
