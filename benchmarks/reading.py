"""What prism reads of an ONNX file, and whether that is what onnxruntime computes: no search, no kernels.

The file is read as `prism optimize` reads it: whole, or where it holds what has no translation cut into islands and
nodes that stay. Programs are evaluated in float64, by the interpreter, and what stays by onnxruntime.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

LARGE = 1 << 20
"""Bytes of a file above which convolutions that are left to onnxruntime are not evaluated as prism reads them.

The interpreter gathers what each of their windows sees: an AlexNet takes 11 GB."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of a file.

    Attributes:
        name: the file's.
        kind: whole, in parts, not taken by onnxruntime, or failed.
        seconds: what reading took, of the processor, comparison with onnx's runtime included.
        error: the largest error of any output over what rounding explains: the gate is at 1.
        islands: how many there are.
        nodes: of those that compute with data, how many are in programs, and how many there are.
        kept: nodes that stay, by operator and reason.
        why: why it is not read whole, or what failed.
    """

    name: str
    kind: str
    seconds: float = 0.0
    error: float = 0.0
    islands: int = 0
    nodes: tuple[int, int] = (0, 0)
    kept: Mapping[str, int] = field(default_factory=dict)
    why: str = ""

    @property
    def failed(self) -> bool:
        """Whether it was refused, or its outputs are not those of onnxruntime."""
        return self.kind == "failed" or not self.error <= 1.0

    def lines(self) -> list[str]:
        """It as text."""
        share = f"{self.islands} islands, {self.nodes[0]} of {self.nodes[1]} nodes" if self.islands else ""
        head = f"{self.name:30} {self.kind:8} {self.seconds:5.1f} s  error {self.error:.1e}  {share}  {self.why}"
        return [head.rstrip(), *(f"{'':30} {many} stay: {what}" for what, many in self.kept.items())]


def read(file: Path, inputs: Mapping[str, np.ndarray]) -> Reading:
    """Read a file, and compare what is read with what onnxruntime computes on these inputs."""
    from prism.api.loading import load
    from prism.errors import ModelError, PrismError, UnsupportedError
    from prism.frontend.onnx.islands import left
    from prism.platforms.stock import Stock

    try:
        stock, plain = Stock(file, file.name), Stock(file, file.name, optimised=False)
    except ModelError as error:
        return Reading(file.stem, "not taken by onnxruntime", why=error.why)
    # Exporters drop inputs that nothing reads.
    takes = [i.name for i in stock._session.get_inputs()]
    one, other = stock.run(inputs, takes), plain.run(inputs, takes)
    begun = time.process_time()
    try:
        program = load(file)
    except UnsupportedError as error:
        return _in_parts(file, inputs, one, other, error.one_line())
    except PrismError as error:
        return Reading(file.stem, "failed", time.process_time() - begun, why=error.one_line())
    seconds = time.process_time() - begun
    if left(file) and file.stat().st_size > LARGE:
        return _in_parts(file, inputs, one, other, "")
    found = _evaluated(program, [inputs[n] for n in takes])
    worst = _worst(dict(zip(stock.outputs, found, strict=True)), one, other)
    if not worst <= 1.0 or not left(file):
        return Reading(file.stem, "whole", seconds, worst)
    return _in_parts(file, inputs, one, other, "")


def _in_parts(
    file: Path, inputs: Mapping[str, np.ndarray], one: Mapping[str, Any], other: Mapping[str, Any], why: str
) -> Reading:
    from prism.api.loading import load_bytes
    from prism.errors import PrismError
    from prism.frontend.onnx.islands import cut
    from prism.platforms.stock import Stock

    begun = time.process_time()
    try:
        parts = cut(file)
    except PrismError as error:
        return Reading(file.stem, "failed", time.process_time() - begun, why=error.one_line())
    seconds = time.process_time() - begun
    values: dict[str, Any] = dict(inputs)
    refused = 0
    for part in parts.parts(frozenset(i.name for i in parts.islands)):
        given = [p.name for p in part.inputs]
        if part.island:
            begun = time.process_time()
            try:
                program = load_bytes(part.data, part.name)
            except PrismError as error:
                why, refused = error.one_line(), refused + part.nodes
            else:
                seconds += time.process_time() - begun
                made = _evaluated(program, [values[n] for n in given])
                values |= {p.name: x.astype(p.dtype) for p, x in zip(part.outputs, made, strict=True)}
                continue
        values |= Stock(part.data, part.name, optimised=False).run(values, given)
    return Reading(
        file.stem,
        "in parts",
        seconds,
        _worst({p.name: values[p.name] for p in parts.outputs}, one, other),
        len(parts.islands),
        (sum(len(i.nodes) for i in parts.islands) - refused, parts.count),
        Counter(f"{k.op}: {k.why[:200]}" for k in parts.kept.values()),
        why[:300],
    )


def _evaluated(program: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a program, in float64."""
    from prism.program.evaluate import evaluate

    given = {t.name: np.asarray(a) for t, a in zip(program.arguments, arrays, strict=True)}
    found = evaluate(program, given)
    return [found[n] for n in program.outputs]


def _worst(found: Mapping[str, np.ndarray], one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest error of any output, in what rounding explains; infinite for another shape or whole number."""
    from prism.instantiate.model_bench import off

    worst = 0.0
    for name, expected in one.items():
        got = found[name]
        if not isinstance(expected, np.ndarray):  # of a sequence, or of maps
            worst = max(worst, 0.0 if repr(got) == repr(expected) else float("inf"))
            continue
        if got.shape != expected.shape:
            return float("inf")
        if not np.issubdtype(expected.dtype, np.floating):
            worst = max(worst, 0.0 if bool((got == expected).all()) else float("inf"))
            continue
        largest, allowed = off(got.astype(expected.dtype), expected, other[name])
        worst = max(worst, largest / allowed if allowed else largest)
    return worst
