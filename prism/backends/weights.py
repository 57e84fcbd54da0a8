"""The weights file of an output folder: what the model fixes itself, as `torch.load` reads it.

It is written without torch, whose import takes longer than all else that a run does whose results are stored.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
import zipfile
from typing import TYPE_CHECKING, Any

from prism.contents import Pieces
from prism.program.nodes import DType, Program

if TYPE_CHECKING:
    import numpy as np

STORAGES = {
    DType.FLOAT64: "DoubleStorage",
    DType.FLOAT32: "FloatStorage",
    DType.FLOAT16: "HalfStorage",
    DType.BFLOAT16: "BFloat16Storage",
    DType.INT64: "LongStorage",
    DType.INT32: "IntStorage",
    DType.INT16: "ShortStorage",
    DType.INT8: "CharStorage",
    DType.UINT8: "ByteStorage",
    DType.BOOL: "BoolStorage",
}
"""What torch calls the storage of each data type."""
ALIGNED = 64
"""Where the numbers of a tensor begin, bytes: at a multiple, so that a file that is mapped can be read as it lies."""
_HEADER = 30
"""The fixed part of what stands before an entry of a zip file, bytes."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest date of a zip file: the same weights are the same bytes."""


def weights_file(program: Program) -> Pieces | None:
    """A dict of the model's weights by name, in the data types of the program's inputs; None when it has none."""
    return Pieces(lambda: _pieces(program)) if program.weights else None


def _pieces(program: Program) -> list[bytes | memoryview]:
    """The file's bytes: what stands about the numbers, and the numbers where they lie."""
    import numpy as np

    dtypes = {name: program.tensor(name).dtype for name in program.weights}
    arrays = {name: np.asarray(value) for name, value in program.weights.items()}
    # The numbers of a dict of tensors, each in an entry of its own, by its place.
    tensors = [_plain(name) + _tensor(n, dtypes[name], value.shape) for n, (name, value) in enumerate(arrays.items())]
    written = _Written()
    with zipfile.ZipFile(written, "w") as archive:
        _write(archive, "data.pkl", b"".join([b"\x80\x02}(", *tensors, b"u."]))
        _write(archive, "byteorder", sys.byteorder.encode())
        for n, (name, value) in enumerate(arrays.items()):
            _write(archive, f"data/{n}", _numbers(value, dtypes[name]))
        _write(archive, "version", b"3\n")
    return list(written.pieces.values())


class _Written(io.RawIOBase):
    """A file that keeps what is written to it where it lies; a piece may be replaced by one of its length."""

    def __init__(self) -> None:
        self.pieces: dict[int, bytes | memoryview] = {}  # by where they begin, in order
        self._at = self._end = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (self._end if whence == io.SEEK_END else 0)
        return self._at

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size:
            replaced = self.pieces.get(self._at)
            assert self._at == self._end or (replaced is not None and len(replaced) == size)
            self.pieces[self._at] = data
        self._at += size
        self._end = max(self._end, self._at)
        return size


def _tensor(place: int, dtype: DType, shape: tuple[int, ...]) -> bytes:
    """A tensor as pickle's opcodes call for it, contiguous: pickle itself would import torch."""
    strides = [1] * len(shape)
    for n in reversed(range(len(shape) - 1)):
        strides[n] = strides[n + 1] * max(shape[n + 1], 1)
    return b"".join(
        [
            b"ctorch._utils\n_rebuild_tensor_v2\n(",
            # The storage: a persistent id.
            b"(" + _plain("storage") + f"ctorch\n{STORAGES[dtype]}\n".encode(),
            _plain(str(place)) + _plain("cpu") + _plain(math.prod(shape)) + b"tQ",
            # Where it begins there, the shape, the strides, no gradient, no hooks.
            _plain(0) + _plain(tuple(shape)) + _plain(tuple(strides)) + b"\x89ccollections\nOrderedDict\n)RtR",
        ]
    )


def _plain(value: str | int | tuple[int, ...]) -> bytes:
    """The opcodes that put a value of Python's own on the stack."""
    return pickle.dumps(value, 2)[2:-1]


def _numbers(value: np.ndarray, dtype: DType) -> memoryview:
    """The elements in a data type, in order; where they lie, if they are so there."""
    import numpy as np

    from prism.program.arrays import numpy_type

    with np.errstate(over="ignore", invalid="ignore"):
        stored = np.ascontiguousarray(value, dtype=numpy_type(dtype))
    return stored.reshape(-1).view(np.uint8).data


def _write(archive: zipfile.ZipFile, name: str, data: bytes | memoryview) -> None:
    """An entry, not compressed, whose bytes begin where they are aligned."""
    entry = zipfile.ZipInfo(f"weights/{name}", _EPOCH)
    assert archive.fp is not None
    begins = archive.fp.tell() + _HEADER + len(entry.filename.encode()) + 4
    padding = -begins % ALIGNED
    # A field that readers pass over, as torch's own: its name, its length, and as many bytes.
    entry.extra = b"FB" + padding.to_bytes(2, "little") + bytes(padding)
    archive.writestr(entry, data)
