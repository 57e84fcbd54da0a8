"""The worker that runs and times emitted C++ modules: a process that a wild access may kill.

Requests are JSON lines (see `prism.backends.triton.serve`); arrays travel in .npy files, bfloat16 as its bits. Outputs
start as not-a-numbers of a bit pattern that no arithmetic produces, inside a frame of the same, so that what was not
written and what was written beyond the end shows.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import numpy as np

from prism.backends.triton.serve import Answer, Request, serve

FRAME = 256
"""Elements before and after each output."""
BATCH_S = 2e-3
"""A sample is of as many calls as take this long, seconds, so that the clock does not count."""
MAX_CALLS = 4096
MAX_COPIES = 64
# By element size in bytes: quiet not-a-numbers with a payload.
_POISON: Mapping[int, int] = {8: 0x7FF8_DEAD_BEEF_0001, 4: 0x7FC0_BEEF, 2: 0x7FEB, 1: 0x55}
_STORED: Mapping[str, str] = {"bfloat16": "uint16"}


@lru_cache(maxsize=32)
def _module(path: str, stamp: float) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"emitted_{abs(hash((path, stamp)))}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Framed:
    """An output inside of its frame."""

    def __init__(self, shape: Sequence[int], dtype: str) -> None:
        size = math.prod(shape)
        self._flat = np.empty(size + 2 * FRAME, _STORED.get(dtype, dtype))
        self._bits = self._flat.view(f"u{self._flat.itemsize}")
        self.array = self._flat[FRAME : FRAME + size].reshape(shape)
        self.poison()

    def poison(self) -> None:
        """Overwrite all of it."""
        self._bits.fill(_POISON[self._bits.itemsize])

    def check(self, name: str) -> None:
        """Raises ValueError when something was written outside, or nothing to some element inside."""
        poison = _POISON[self._bits.itemsize]
        if (self._bits[:FRAME] != poison).any() or (self._bits[len(self._bits) - FRAME :] != poison).any():
            raise ValueError(f"a kernel stored beyond the end of {name}")
        if self._bits.itemsize > 1 and (self._bits[FRAME : len(self._bits) - FRAME] == poison).any():
            raise ValueError(f"a kernel left elements of {name} unwritten")


def handle(request: Request) -> Answer:
    """Run a module (`what` = run), or time it (`what` = time).

    The request names the module, its entry, the configuration, the files of the inputs, the outputs' names, shapes and
    dtypes, the number of threads; for timing also `repeats` and `rotate_bytes` (0: the same buffers every time).
    """
    path = Path(request["module"])
    module = _module(str(path), path.stat().st_mtime)
    call = getattr(module, request["entry"])
    inputs = [np.load(p) for p in request["inputs"]]
    names = [name for name, _, _ in request["outputs"]]
    config, threads = request["config"], int(request["threads"])
    module.load(config)
    if request["what"] == "run":
        outputs = [_Framed(shape, dtype) for _, shape, dtype in request["outputs"]]
        call(*inputs, config=config, out=tuple(o.array for o in outputs), threads=threads)
        for name, o in zip(names, outputs, strict=True):
            o.check(name)
        for p, o in zip(request["results"], outputs, strict=True):
            np.save(p, o.array)
        return {}
    size = sum(a.nbytes for a in inputs) + sum(
        math.prod(shape) * np.dtype(_STORED.get(dtype, dtype)).itemsize for _, shape, dtype in request["outputs"]
    )
    copies = min(MAX_COPIES, 1 + math.ceil(int(request["rotate_bytes"]) / max(size, 1)))
    sets = [
        ([a.copy() for a in inputs], [_Framed(shape, dtype) for _, shape, dtype in request["outputs"]])
        for _ in range(copies)
    ]

    def run(number: int) -> float:
        started = time.perf_counter()
        for n in range(number):
            given, made = sets[n % copies]
            call(*given, config=config, out=tuple(o.array for o in made), threads=threads)
        return (time.perf_counter() - started) / number

    run(copies)
    once = min(run(1) for _ in range(3))
    number = max(1, min(MAX_CALLS, math.ceil(BATCH_S / max(once, 1e-7))))
    number = math.ceil(number / copies) * copies
    for _, made in sets:
        for o in made:
            o.poison()
    samples = [run(number) for _ in range(int(request["repeats"]))]
    for _, made in sets:
        for name, o in zip(names, made, strict=True):
            o.check(name)
    return {"samples": samples, "calls": number}


def main() -> None:
    """The process."""
    serve(handle)


if __name__ == "__main__":
    # Threads stay on their cores, and are back at once for the next launch.
    os.environ.setdefault("OMP_PROC_BIND", "true")
    main()
