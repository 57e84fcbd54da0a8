"""torch's tensors beside kernels: files between processes, results as numbers, and outputs that tell what was written.

Outputs start as a not-a-number of a bit pattern that no arithmetic produces, inside a frame of the same: so a store
beyond the tensor shows, too.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def save(tensors: Any, path: Path | str) -> None:
    """Write what `torch.load` reads.

    Written by torch itself, a full disk would be a RuntimeError about positions in a file.

    Raises:
        OSError: the disk refused.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    Path(path).write_bytes(buffer.getbuffer())


FRAME = 256
"""Elements before and after each output; a multiple of every alignment that kernels are specialised on."""

# By element size in bytes: quiet not-a-numbers with a payload, as signed integers; small integers get no such luxury.
_POISON: Mapping[int, int] = {8: 0x7FF8_DEAD_BEEF_0001, 4: 0x7FC0_BEEF, 2: 0x7FEB, 1: 0x55}


class Framed:
    """Outputs of these shapes and data types, poisoned."""

    def __init__(self, outputs: Sequence[tuple[Sequence[int], str]], device: str) -> None:
        import torch

        self.outputs: list[Any] = []  # the tensors, for kernels to write to
        self._frames = []
        for shape, dtype in outputs:
            elements = math.prod(shape)
            frame = torch.empty(elements + 2 * FRAME, dtype=getattr(torch, dtype), device=device)
            _integers(frame).fill_(_POISON[frame.element_size()])
            self._frames.append(frame)
            self.outputs.append(frame[FRAME : FRAME + elements].view(tuple(shape)))

    def results(self) -> list[tuple[Any, Any]] | None:
        """Of each output a copy on the CPU and a mask of the elements that were written; None after a store outside."""
        found = []
        for frame, output in zip(self._frames, self.outputs, strict=True):
            bits, poison = _integers(frame.cpu()), _POISON[frame.element_size()]
            if bool((bits[:FRAME] != poison).any()) or bool((bits[-FRAME:] != poison).any()):
                return None
            found.append((output.cpu().clone(), (bits[FRAME:-FRAME] != poison).view(output.shape)))
        return found

    def answer(self, path: str) -> dict[str, str]:
        """A worker's answer: the results, saved to a file, or that a kernel stored outside."""
        results = self.results()
        if results is None:
            return {"error": "a kernel stored beyond the end of an output"}
        save(results, path)
        return {"results": path}


def _integers(tensor: Any) -> Any:
    import torch

    return tensor.view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[tensor.element_size()])


def numbers(value: Any) -> list[np.ndarray]:
    """A result as arrays of numbers: strings by codes, a sequence or a map by its parts.

    Raises:
        TypeError: it holds something else.
    """
    match value:
        case str():
            return [np.asarray(int.from_bytes(hashlib.sha256(value.encode()).digest()[:7], "big"))]
        case Mapping():
            return numbers(list(value)) + numbers(list(value.values()))
        case list():
            parts = [a for x in value for a in numbers(x)]
            alike = len(parts) == len(value) and all(a.ndim == 0 for a in parts)
            return [np.asarray([a[()] for a in parts])] if alike else [np.asarray(len(value)), *parts]
    array = np.asarray(value)
    if array.dtype.kind in "OU" and all(isinstance(x, str) for x in array.flat):
        return [np.asarray([numbers(x)[0] for x in array.flat], np.int64).reshape(array.shape)]
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{type(value).__name__} of {array.dtype}")
    return [array]
