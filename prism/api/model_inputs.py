"""Inputs that a whole model takes: drawn, and tried on the model itself, since nothing says what its numbers mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy

from prism.api.given_inputs import WHERE, by_name
from prism.api.options import check_dimensions
from prism.errors import NoImprovementError, UsageError
from prism.frontend.onnx.islands import Port
from prism.platforms.stock import NotRunError
from prism.program.extents import evaluate, is_static

BATCH = 4
SIZES = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 3, 2, 1)
"""What symbolic dimensions are tried as, from the first that the model takes."""
MOST = 1 << 24
"""The most elements of a value at these, as far as is known; what is between may be larger, and is run often."""
HIGHS = (1000, 100, 10, 2, 1)
"""What drawn whole numbers are below, from the first that the model takes."""
FINITE = 0.5
"""The share of the results that has to be finite, or nothing could be compared."""
UNKNOWN = "word"
"""What is drawn beside the strings that a model holds."""
KEEP = "keep the model as it is"


@dataclass(frozen=True, slots=True)
class Feeds:
    """Inputs that a model takes."""

    sizes: Mapping[str, int]  # the values of symbolic dimensions
    highs: Mapping[str, int]  # for each input of whole numbers, what they are below
    arrays: Mapping[str, np.ndarray]  # by name


def feeds(
    ports: Sequence[Port],
    given: Mapping[str, int],
    seed: int,
    run: Callable[[Mapping[str, np.ndarray]], object],
    where: str,
    elements: Callable[[Mapping[str, int]], int],
) -> Feeds:
    """Draw inputs that the model takes.

    Args:
        ports: the model's inputs.
        given: values of symbolic dimensions that the user wants.
        seed: of the draws.
        run: runs the model; what it returns are the outputs.
        where: the model, for errors.
        elements: of the largest value of the model at such sizes, as far as it is known.

    Raises:
        UsageError: a dimension is given that the model does not have.
        NoImprovementError: no inputs were found that it takes, so nothing could be compared.
    """
    for port in ports:
        if port.shape is None or not _drawable(port.dtype):
            why = "its rank is not known"
            fix = "export the model with shapes, whose dimensions may be names, or give inputs (--inputs)"
            if port.dtype and not _drawable(port.dtype):
                why, fix = f"it is of type {port.dtype}", KEEP
            elif not port.dtype:
                why = "it may be no tensor" if port.shape is None else "it is of a type that numpy does not have"
                fix = KEEP
            raise NoImprovementError(
                "an input of the model cannot be drawn, and so the model not be compared",
                where=f"{where}, input {port.name!r}",
                why=why,
                fix=fix,
            )
    names = sorted({s.name for p in ports for e in p.shape or () if not is_static(e) for s in e.free_symbols})  # type: ignore[union-attr]
    check_dimensions(given, names)
    whole = [p.name for p in ports if np.issubdtype(np.dtype(p.dtype), np.integer)]
    last = ""

    def tried(sizes: Mapping[str, int], highs: Mapping[str, int]) -> bool:
        nonlocal last
        try:
            found = run(drawn(ports, sizes, highs, seed))
        except (NotRunError, MemoryError) as error:
            last = str(error)
            return False
        last = "most of its results are infinite or no numbers"
        return _finite(found)

    for size in SIZES if len(given) < len(names) else (1,):
        sizes = {n: given.get(n, min(size, BATCH) if "batch" in n.lower() else size) for n in names}
        if elements(sizes) > MOST and size > 1:
            continue
        for high in HIGHS if whole else (1,):
            highs = dict.fromkeys(whole, high)
            if not tried(sizes, highs):
                continue
            for name in whole:
                for more in HIGHS:
                    if more <= high or tried(sizes, {**highs, name: more}):
                        highs[name] = max(more, high)
                        break
            return Feeds(sizes, highs, drawn(ports, sizes, highs, seed))
    raise _nothing(where, last)


def given_feeds(
    ports: Sequence[Port], arrays: Mapping[str, Any], run: Callable[[Mapping[str, np.ndarray]], object], where: str
) -> Feeds:
    """The inputs that the user gave.

    Raises:
        UsageError: one is missing, or of another type, or the model does not take them.
    """
    found = by_name(arrays, [p.name for p in ports])
    sizes: dict[str, int] = {}
    for p in ports:
        given = found[p.name]
        if given.dtype.kind != "U" if p.dtype == "str" else str(given.dtype) != p.dtype:
            raise UsageError(
                f"the input {p.name!r} is of type {p.dtype}, and what is given of {given.dtype}",
                where=WHERE,
                fix=f"convert it, as by .astype({p.dtype!r})",
            )
        for extent, n in zip(p.shape or (), given.shape, strict=False):
            if isinstance(extent, sympy.Symbol):
                sizes.setdefault(extent.name, n)
    try:
        run(found)
    except NotRunError as error:
        raise UsageError(
            "the model does not take what is given",
            where=WHERE,
            why=f"{where}: {error}",
            fix="give inputs that it takes",
        ) from None
    whole = [p.name for p in ports if np.issubdtype(np.dtype(p.dtype), np.integer)]
    highs = {name: max(1, 1 + int(found[name].max(initial=0))) for name in whole}
    return Feeds(sizes, highs, found)


def smaller(found: Feeds, ports: Sequence[Port], given: Mapping[str, int], seed: int) -> Feeds:
    """The same model at other, small and unlike sizes."""
    sizes = {n: given.get(n, min(v, 3 + 2 * k)) for k, (n, v) in enumerate(sorted(found.sizes.items()))}
    return replace(found, sizes=sizes, arrays=drawn(ports, sizes, found.highs, seed))


def drawn(
    ports: Sequence[Port], sizes: Mapping[str, int], highs: Mapping[str, int], seed: int
) -> dict[str, np.ndarray]:
    """Normal numbers, whole ones from 0, truth values, and strings that the model knows, or does not."""
    found = {}
    for n, p in enumerate(ports):
        rng = np.random.default_rng((seed, n))
        shape = tuple(evaluate(e, sizes) for e in p.shape or ())
        dtype = np.dtype(p.dtype)
        if dtype.kind == "U":
            found[p.name] = np.asarray(rng.choice([*p.words, UNKNOWN], shape))
        elif dtype == np.bool_:
            found[p.name] = np.asarray(rng.random(shape) < 0.5)
        elif np.issubdtype(dtype, np.integer):
            found[p.name] = np.asarray(rng.integers(0, highs[p.name], shape)).astype(dtype)
        else:
            found[p.name] = np.asarray(rng.standard_normal(shape)).astype(dtype)
    return found


def neighbours(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same inputs, but floating-point numbers the next ones to them, above or below in turn."""
    found = dict(arrays)
    for name, x in arrays.items():
        if x.dtype.kind == "f":
            up = (np.arange(x.size) % 2 == 0).reshape(x.shape)
            found[name] = np.nextafter(x, np.where(up, np.inf, -np.inf).astype(x.dtype))
    return found


def _drawable(dtype: str) -> bool:
    try:
        kind = np.dtype(dtype).kind
    except TypeError:
        return False
    return kind in "biufU" and dtype != ""


def _finite(outputs: object) -> bool:
    assert isinstance(outputs, Mapping)
    for x in outputs.values():
        if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size and np.mean(np.isfinite(x)) < FINITE:
            return False
    return True


def _nothing(
    where: str, why: str, fix: str = f"{KEEP}; give sizes that it takes (--shape), or inputs (--inputs)"
) -> NoImprovementError:
    return NoImprovementError("no inputs were found that the model takes", where=where, why=why, fix=fix)
