"""Inputs of the user's own, beside those that are drawn: what the kernels are checked on, too."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from prism.errors import ShapeError, UsageError
from prism.program.evaluate import bind
from prism.program.nodes import DType, Program

WHERE = "--inputs"


def read_inputs(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that `numpy.savez` wrote, by name.

    Raises:
        UsageError: it is no such file.
    """
    try:
        if path.is_file() and not zipfile.is_zipfile(path):
            raise ValueError("it is no archive of arrays")
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{path} holds no inputs",
            where=WHERE,
            why=(str(error).splitlines() or [type(error).__name__])[0],
            fix="write it by numpy.savez(path, name=array, ...), an array for each input of the model",
        ) from None


def by_name(given: Mapping[str, Any], names: Collection[str]) -> dict[str, np.ndarray]:
    """The arrays for these inputs, whose names may have been made identifiers; tensors become arrays.

    Raises:
        UsageError: one is missing.
    """
    found = {}
    plain = {re.sub(r"\W", "_", n): n for n in given}
    for name in names:
        key = name if name in given else plain.get(re.sub(r"\W", "_", name))
        if key is None:
            raise UsageError(
                f"there is nothing for the input {name!r}",
                where=WHERE,
                why=f"there are {', '.join(map(repr, given)) or 'none'}",
                fix="give an array for every input of the model, by its name",
            )
        value = given[key]
        if hasattr(value, "detach"):  # a tensor; numpy has no bfloat16
            value = value.detach().cpu()
            value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
        found[name] = np.asarray(value)
    return found


def given_to(program: Program, given: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The arrays for a program's inputs, and the values that its symbols have by their shapes.

    Raises:
        UsageError: an array is missing, of another kind of numbers, or of a shape that the program does not take.
    """
    declared = program.arguments
    arrays = by_name(given, [t.name for t in declared])
    for t in declared:
        if not _holds(t.dtype, arrays[t.name].dtype):
            raise UsageError(
                f"the input {t.name!r} is of type {t.dtype.value}, and what is given of {arrays[t.name].dtype}",
                where=WHERE,
                fix=f"convert it, as by .astype({t.dtype.value!r})",
            )
    try:
        binding = bind(declared, {name: a.shape for name, a in arrays.items()})
    except ShapeError as error:
        raise UsageError(error.what, where=WHERE, why=error.why, fix="give arrays of the model's shapes") from None
    for name, r in program.ranges.items():
        if name in binding and not r.low <= binding[name] <= r.high:
            raise UsageError(
                f"{name} is {binding[name]} by the shapes that are given",
                where=WHERE,
                why=f"the program is for {r.low} to {r.high}",
                fix="give arrays of such shapes",
            )
    return arrays, binding


def check_sizes(found: Mapping[str, int], asked: Mapping[str, int]) -> None:
    """Make sure that what is given is of the lengths that are asked for.

    Raises:
        UsageError: a dimension has another one.
    """
    for name, n in asked.items():
        if found.get(name, n) != n:
            raise UsageError(
                f"{name}={n} is asked for, and {name} is {found[name]} by the shapes that are given",
                where="--shape and --inputs",
                why="kernels are tuned at the lengths of what is given",
                fix=f"leave --shape {name}={n} away, or give inputs of that length",
            )


def _holds(declared: DType, dtype: np.dtype) -> bool:
    """Whether arrays of that type may stand for the declared one: floats of any width, or the same."""
    if declared.is_float:
        return dtype.kind == "f"
    return dtype.name == declared.value
