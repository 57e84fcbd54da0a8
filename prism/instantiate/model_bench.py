"""A whole model against what it was made from: results compared, and both timed, in children."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from prism.cost.device import Device
from prism.instantiate.cache import digest
from prism.instantiate.measure import BASELINE, TIMING_LIMIT_S, Arena, Contender
from prism.instantiate.study import Failure
from prism.process.files import digest_of_file
from prism.process.worker import Ending, Worker

ROUNDINGS = 8.0
"""How many times as far from the model's own result an element may be as its own runtime is by other optimisations."""
RELATIVE: Mapping[str, float] = {"float64": 1e-4, "float32": 1e-3, "float16": 2e-2}
"""How far it may be in any case, relative to itself or to the root mean square of the output; by data type."""
TINY = 1e-300
"""What stands for 0 where something is divided by it."""
TIES = 1e-2
"""The share of an output's whole numbers that may differ: where two values tie but for rounding, either is right."""


class ModelBench(Arena):
    """A model, inputs that it takes, what it gives for them, and the child that times.

    Inputs are in the model's order. `expected` is asked once, when something was run: what the model gives, output by
    output, twice: with its runtime's optimisations and without. `key` is what tells the assembled model from others.
    """

    def __init__(
        self,
        model: Path,
        inputs: Sequence[np.ndarray],
        expected: Callable[[], Sequence[tuple[np.ndarray, np.ndarray]]],
        key: str,
        *,
        device: Device,
        worker: Worker,
        arena: Callable[[], Worker],
    ) -> None:
        super().__init__(device, worker, arena)
        self._model = model
        self._inputs = list(inputs)
        self._expected = cache(expected)
        self._key = key
        self._written = False

    @property
    def program_key(self) -> str:
        """See Arena."""
        data = [[list(x.shape), str(x.dtype), hashlib.sha256(x.tobytes()).hexdigest()] for x in self._inputs]
        return digest(self._key, data)

    @property
    def source_key(self) -> str:
        """See Arena."""
        return digest_of_file(self._model)

    def _prepare(self) -> None:
        import torch

        if not self._written:
            torch.save([*map(storable, self._inputs)], self._path("inputs.pt"))
            self._written = True

    def _spec(self, c: Contender) -> dict[str, Any]:
        what = {"model": str(self._model)} if c.module is None else {"module": str(c.module)}
        return {"kind": c.kind, "inputs": list(range(len(self._inputs))), **what}

    def _failed(self, c: Contender, tensors: Sequence[Any]) -> tuple[Failure, str] | None:
        why = "" if c.side == BASELINE else wrong([t.numpy() for t in tensors], self._expected())
        return (Failure.WRONG, why) if why else None


def compare(
    module: Path,
    cases: Sequence[Sequence[np.ndarray]],
    expected: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]],
    worker: Worker,
) -> list[str]:
    """What the assembled model gives for inputs against what the model does.

    Inputs are in the model's order; for each case `expected` has what the model gives, output by output, as it is
    rounded in two ways.

    Returns:
        For each case how it differs; nothing where it does not.
    """
    import torch

    with tempfile.TemporaryDirectory(prefix="prism-model-") as place:
        paths = [Path(place) / f"inputs_{n}.pt" for n in range(len(cases))]
        for path, case in zip(paths, cases, strict=True):
            torch.save([*map(storable, case)], path)
        results = Path(place) / "results.pt"
        request = {"assembled": str(module), "inputs": [str(p) for p in paths], "results": str(results)}
        reply = worker.ask(request, TIMING_LIMIT_S * (1 + len(cases)))
        if reply.ending is not Ending.ANSWERED or reply.answer.get("error"):
            return [reply.detail or str(reply.answer.get("error", ""))] * len(cases)
        found = torch.load(results)
    return [wrong([t.numpy() for t in r], e) for r, e in zip(found, expected, strict=True)]


def storable(x: np.ndarray) -> Any:
    """An array as a child may be handed it, for whom `np.asarray` makes it one: a tensor, or lists of strings."""
    import torch

    return x.tolist() if x.dtype.kind == "U" else torch.from_numpy(np.asarray(x, order="C"))


def wrong(results: Sequence[np.ndarray], expected: Sequence[tuple[np.ndarray, np.ndarray]]) -> str:
    """The first output that differs, and how; nothing where none does."""
    for n, (result, (one, other)) in enumerate(zip(results, expected, strict=True)):
        why = difference(result, one, other)
        if why:
            return f"output {n}: {why}"
    return ""


def difference(result: np.ndarray, one: np.ndarray, other: np.ndarray) -> str:
    """How a result differs from what is expected, beyond rounding; nothing where it does not.

    `other` is what is expected, rounded in another way.
    """
    if result.shape != one.shape or result.dtype != one.dtype:
        return f"it is {result.dtype}{list(result.shape)} and should be {one.dtype}{list(one.shape)}"
    if not np.issubdtype(one.dtype, np.floating):
        unlike = (result != one) & (result != other)
        share = float(np.mean(unlike)) if unlike.size else 0.0
        return f"{share:.1%} of its elements differ" if share > TIES else ""
    worst, allowed = off(result, one, other)
    return "" if worst <= allowed else f"an element is off by {worst:.3g}, and rounding explains {allowed:.3g}"


def farthest(one: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Of what may be expected in its place, what is farthest from it; itself where none is of its size."""

    def distance(other: np.ndarray) -> float:
        if one.dtype.kind != "f":
            return float(np.count_nonzero(one != other))
        finite = np.isfinite(one) & np.isfinite(other)
        return float(np.abs(one[finite].astype(np.float64) - other[finite]).max(initial=0.0))

    return max((x for x in others if x.shape == one.shape and x.dtype == one.dtype), key=distance, default=one)


def off(result: np.ndarray, one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """How far the worst element is off, and how far rounding explains; floating-point numbers of one shape.

    `other` is what is expected, rounded in another way.
    """
    finite = np.isfinite(one) & np.isfinite(other)
    if not finite.any():
        return 0.0, 0.0
    wide, near, far = (x[finite].astype(np.float64) for x in (result, one, other))
    relative, size = RELATIVE.get(str(one.dtype), 0.05), np.abs(near)
    scale = np.maximum(size, np.sqrt(np.mean((near / max(size.max(), TINY)) ** 2)) * size.max())
    allowed = np.maximum(relative * scale, ROUNDINGS * np.abs(near - far).max())
    error = np.abs(wide - near)
    worst = np.argmax(error / np.maximum(allowed, TINY))
    return float(error[worst]), float(allowed[worst])
