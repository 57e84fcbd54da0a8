"""One conformance suite for both backends: the same sGraphs at the same tile sizes, in Triton and in C++.

Every example, generated sGraphs of small programs and of random ones, each against the float64 oracle. Triton runs in
its interpreter. What one backend alone has (data types, odd tile sizes, NaN) is in test_triton_* and test_cpu_*.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_batch import Array, Case, run_batch
from sgraph_programs import ALL, task
from test_cpu_conformance import MODELS, TOLERANCE, WIDE, close, random_programs

from examples.common import load_example
from prism.backends.cpu.support import find_compiler
from prism.backends.protocol import Config, write_module
from prism.backends.triton.backend import TritonBackend
from prism.errors import UnsupportedError
from prism.frontend.onnx import load
from prism.instantiate.check import KernelRunner
from prism.program.evaluate import evaluate
from prism.program.extents import evaluate as extent
from prism.program.nodes import Program
from prism.sgraph.generate import Bounds, generate
from prism.sgraph.nodes import Grid, Kernel, LoopRole, SGraph, Split, Whole

Run = Callable[[Sequence[Case], Path], list[tuple[Array, ...]]]
SIZES = (1, 2, 4, 8, 16, 32)
TILE = 1 << 19
INTERPRETED = 1 << 18


@dataclass(frozen=True)
class Expected:
    """A case, its oracle's outputs, and how near they must be, against the largest one."""

    case: Case
    want: tuple[Array, ...]
    tolerance: float
    name: str


def in_triton(cases: Sequence[Case], folder: Path) -> list[tuple[Array, ...]]:
    backend, found = TritonBackend("sm_90"), []
    with KernelRunner("interpreter") as runner:
        for n, case in enumerate(cases):
            g = case.sgraph
            module = write_module(backend.emit(g), folder / f"case{n}.py")
            tensors = [
                torch.from_numpy(np.asarray(a, np.float64)).to(getattr(torch, t.dtype.value))
                for a, t in zip(case.inputs, g.inputs, strict=True)
            ]
            binding = {
                str(e): size
                for t, a in zip(g.inputs, tensors, strict=True)
                for e, size in zip(t.shape, a.shape, strict=True)
            }
            shapes = [(tuple(int(extent(e, binding)) for e in t.shape), t.dtype.value) for t in g.outputs]
            names = [launch.name for launch in g.launches]
            config = Config(case.symbols, dict.fromkeys(names, 4), dict.fromkeys(names, 1))
            got = runner.run(module, config, tensors, shapes, [None] * len(names))
            assert not isinstance(got, str), f"{g.name} {dict(case.symbols)}: {got}"
            assert all(o.written.all() for o in got), f"{g.name} {dict(case.symbols)}"
            found.append(tuple(o.values for o in got))
    return found


def in_cpp(cases: Sequence[Case], folder: Path) -> list[tuple[Array, ...]]:
    if find_compiler() is None:
        pytest.skip("needs a C++ compiler: install g++ or clang++")
    return run_batch(cases, folder)


@pytest.fixture(params=[in_triton, in_cpp], ids=["Triton", "C++"])
def run(request: pytest.FixtureRequest) -> Run:
    chosen: Run = request.param
    return chosen


def assignment(g: SGraph, choose: random.Random, sizes: Sequence[int]) -> dict[str, int]:
    """Random tile sizes, no tile with more elements than Triton takes; few parts."""
    parts = {role.parts.name for k in g.kernels for _, role in k.roles if isinstance(role, Split)}
    while True:
        found = {s.name: choose.choice((2, 4) if s.name in parts else sizes) for s in g.symbols}
        if all(tile_elements(k, found) <= TILE for k in g.kernels):
            return found


def quick(g: SGraph, choose: random.Random) -> dict[str, int]:
    """Tiles as large as they may be, and so few programs and trips: Triton's interpreter takes 5 ms for each."""
    parts = {role.parts.name for k in g.kernels for _, role in k.roles if isinstance(role, Split)}
    found = {s.name: 2 if s.name in parts else 128 for s in g.symbols}
    for k in g.kernels:
        own = [role.tile.name for _, role in k.roles if not isinstance(role, Whole) and not isinstance(role.tile, int)]
        while tile_elements(k, found) > TILE:
            name = choose.choice(own)
            found[name] = max(1, found[name] // 2)
    return found


def tile_elements(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Elements of a tile over all axes of the kernel."""
    of = []
    for axis, role in kernel.roles:
        match role:
            case Grid(t) | LoopRole(t) | Split(_, t):
                of.append(t if isinstance(t, int) else sizes[t.name])
            case Whole():
                of.append(axis.extent if isinstance(axis.extent, int) else 64)
    return math.prod(of)


def drawn(p: Program, count: int, choose: random.Random) -> Iterator[Expected]:
    """Some of a program's sGraphs, at random tile sizes."""
    found = [c.sgraph for c in generate(task(p), WIDE).candidates]
    values = np.random.default_rng(choose.randrange(1 << 30))
    inputs = {t.name: values.standard_normal([int(e) for e in t.shape]).astype(np.float32) for t in p.inputs}
    expected = evaluate(p, inputs)
    for g in choose.sample(found, min(count, len(found))):
        case = Case(g, assignment(g, choose, SIZES), [inputs[t.name] for t in g.inputs])
        yield Expected(case, tuple(expected[t.name] for t in g.outputs), 2e-5, p.name)


def random_ones(count: int, each: int, seed: int) -> list[Expected]:
    choose = random.Random(seed)
    found: list[Expected] = []
    for p in random_programs(count, seed):
        try:
            found += drawn(p, each, choose)
        except UnsupportedError:  # reshapes that no tile can follow
            continue
    return found


def conform(run: Run, expected: Sequence[Expected], folder: Path) -> None:
    for e, got in zip(expected, run([e.case for e in expected], folder), strict=True):
        close(got, e.want, e.tolerance, f"{e.name} {dict(e.case.symbols)}")


def example(path: Path, choose: random.Random) -> Expected:
    program, model = load(path), load_example(path.stem)
    feed = model.inputs(np.random.default_rng(0))
    bounds = Bounds(max_families=300, max_sgraphs=20)
    found = [c.sgraph for c in generate(replace(task(program), hints=program.hints), bounds).candidates]
    g = choose.choice(found)
    inputs = [np.asarray(program.weights.get(t.name, feed.get(t.name))) for t in g.inputs]
    case = Case(g, quick(g, choose), inputs)
    return Expected(case, (model.formula(feed),), 2 * TOLERANCE[g.outputs[0].dtype], path.stem)


def test_every_example(run: Run, tmp_path: Path) -> None:
    choose = random.Random(5)
    expected = [example(path, choose) for path in MODELS]
    assert len(expected) >= 9
    if run is in_triton:
        # The others take its interpreter a minute each here; test_end_to_end runs all of them in it, in samples.
        expected = [e for e in expected if sum(a.size for a in e.case.inputs) < INTERPRETED]
        assert len(expected) >= 4
    conform(run, expected, tmp_path)


def test_generated_sgraphs(run: Run, tmp_path: Path) -> None:
    choose = random.Random(1)
    expected = [e for make in ALL for e in drawn(make(), 3, choose)]
    assert len(expected) >= 20
    assert any(len(e.case.sgraph.kernels) > 1 for e in expected)
    conform(run, expected, tmp_path)


def test_random_programs(run: Run, tmp_path: Path) -> None:
    expected = random_ones(30, 1, 11)
    assert len(expected) >= 18
    conform(run, expected, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_few_hundred_random_sgraphs(run: Run, seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    expected = [*random_ones(40, 2, 100 + seed), *(e for make in ALL for e in drawn(make(), 8, choose))]
    assert len(expected) >= 80
    conform(run, expected, tmp_path)
