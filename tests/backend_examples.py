"""The examples as the backends' conformance suite runs them: at their own extents, and rebuilt at small ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cpu_batch import Array
from sgraph_programs import task

from examples import decoder_layer
from examples.common import MODELS, load_example, names
from prism.frontend.onnx.reader import load
from prism.generate.enumerate import Bounds, generate
from prism.generate.partition import partition
from prism.program.nodes import Program
from prism.sgraph.compose import Part, compose
from prism.sgraph.nodes import SGraph

BOUNDS = Bounds(max_families=300, max_sgraphs=20)
# What the scripts' own names stand for. No two extents of a model are equal, and none is a multiple of 16 but heads'.
SMALL: Mapping[str, Mapping[str, int]] = {
    "add_silu": {"F": 40},
    "causal_attention": {"H": 2, "D": 16},
    "gated_mlp": {"D": 40, "F": 72},
    "gqa_decode": {"B": 2, "D": 24},
    "layernorm_linear_gelu": {"D": 56, "N": 40},
    "lora": {"K": 72, "N": 40, "R": 4},
    "mul_silu": {"F": 40},
    "qknorm_attention": {"H": 2, "S": 37, "D": 16},
    "rmsnorm_linear": {"D": 72, "N": 40},
}
SMALL_LAYER = decoder_layer.Sizes(hidden=40, heads=4, kv_heads=2, head=8, mlp=56)


@dataclass(frozen=True)
class Example:
    """A model, a draw of its inputs with its weights, and its script's float64 output."""

    program: Program
    inputs: Mapping[str, Array]
    want: Array


def shipped(name: str) -> Example:
    """The file in examples/models."""
    script = load_example(name)
    feed = script.inputs(np.random.default_rng(0))
    return _example(MODELS / f"{name}.onnx", feed, script.formula(feed))


STORED = Path(__file__).with_name("models") / "reduced"
"""Some of them as files, because torch's exporter takes seconds for each."""


def reduced(name: str, folder: Path, *, stored: bool = True) -> Example:
    """What its script makes at small extents; the model's file goes to the folder, unless it is `stored`."""
    script: Any = load_example(name)
    kept = STORED / f"{name}.onnx"
    path = kept if stored and kept.exists() else folder / kept.name
    if name == "decoder_layer":
        if path != kept:
            onnx.save(script.build(SMALL_LAYER), path)
        feed = script.inputs(np.random.default_rng(0), SMALL_LAYER, 19)
        return _example(path, feed, script.formula(feed, SMALL_LAYER))
    with _constants(script, SMALL[name]):
        if path != kept:
            onnx.save(script.build(), path)
        feed = script.inputs(np.random.default_rng(0))
        return _example(path, feed, script.formula(feed))


def _example(path: Path, feed: Mapping[str, Array], want: Array) -> Example:
    program = load(path, check=False)  # what it computes is compared with the formula
    inputs = {t.name: np.asarray(program.weights.get(t.name, feed.get(t.name))) for t in program.inputs}
    return Example(program, inputs, want)


@contextmanager
def _constants(module: Any, values: Mapping[str, int]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def pick(program: Program, choose: random.Random) -> SGraph:
    """One of the sGraphs of a program; where it has several regions, one of each region's, put together."""
    regions = partition(program)
    if len(regions) == 1:
        return choose.choice(_generated(program))
    made: dict[str, list[SGraph]] = {}
    parts = []
    for region in regions:
        c = region.canonical()
        if c.key not in made:
            made[c.key] = _generated(c.program)
        parts.append(Part(choose.choice(made[c.key]), c.names))
    outputs = [program.definition(n).tensor for n in program.outputs]
    return compose(program.name, program.inputs, outputs, parts).sgraph


def _generated(program: Program) -> list[SGraph]:
    return [c.sgraph for c in generate(replace(task(program), hints=program.hints), BOUNDS).candidates]


__all__ = ["STORED", "Example", "names", "pick", "reduced", "shipped"]
