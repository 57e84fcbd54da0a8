"""Buffers that share memory: never two that live at the same time, and kernels compute what they did."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sympy
from cpu_batch import load
from sgraph_samples import at, op, sym

from prism.backends.cpu.build import find_compiler
from prism.backends.cpu.emit import emit_module
from prism.backends.lifetimes import shared_places
from prism.backends.lower import lower
from prism.backends.protocol import write_module
from prism.backends.tile import TileModule
from prism.program.index import Axis
from prism.program.nodes import DType, Tensor
from prism.sgraph.nodes import Grid, Kernel, Load, SGraph, Store

pytestmark = pytest.mark.usefixtures("unoptimised")
M = sym("M")


def network(reads: Sequence[Sequence[int]], widths: Sequence[int]) -> SGraph:
    """One kernel a value: value n is 1 plus the sum of those that it reads, of which 0 is the input.

    Every value has M rows, and its columns are those that all of them have; it is stored in a tensor of its own width.
    """
    least = min(widths)
    rows, columns = Axis("m", M), Axis("n", least)
    names = ["x", *(f"b{n}" for n in range(1, len(reads))), "y"]
    tensors = [Tensor(name, (M, w), DType.FLOAT32) for name, w in zip(names, widths, strict=True)]
    kernels = []
    for n, read in enumerate(reads, 1):
        body: list[Load | Store | object] = []
        total: str | float = 1.0
        for r in read:
            body += [Load(f"v{r}", names[r], at(rows, columns)), op(f"s{r}", "add", f"v{r}", total)]
            total = f"s{r}"
        body.append(Store(names[n], at(rows, columns), total))
        roles = ((rows, Grid(sympy.Symbol(f"T_m{n}", integer=True, positive=True))), (columns, Grid(1)))
        kernels.append(Kernel(f"k{n}", roles, tuple(body)))  # type: ignore[arg-type]
    return SGraph("network", (tensors[0],), tuple(tensors[1:-1]), (tensors[-1],), tuple(kernels))


def lives(module: TileModule, b: Tensor) -> range:
    """The launches from the first to the last that needs a buffer."""
    needed = [n for n, launch in enumerate(module.launches) if b in launch.tensors]
    return range(needed[0], needed[-1] + 1)


def random_network(seed: int) -> SGraph:
    rng = random.Random(seed)
    count = rng.randint(2, 12)
    reads = [sorted({n - 1, *(rng.randrange(n) for _ in range(rng.randint(0, 2)))}) for n in range(1, count + 1)]
    return network(reads, [rng.choice((4, 8, 64)) for _ in range(count + 1)])


@pytest.mark.parametrize("seed", range(40))
def test_what_shares_memory_never_lives_at_the_same_time(seed: int) -> None:
    module = lower(random_network(seed))
    groups = shared_places(module)
    assert sorted(b.name for g in groups for b in g) == sorted(b.name for b in module.buffers)
    for group in groups:
        spans = [lives(module, b) for b in group]
        assert len({n for s in spans for n in s}) == sum(map(len, spans))


def test_a_chain_of_any_length_needs_two_places() -> None:
    for length in (3, 20):
        module = lower(network([[n] for n in range(length)], [8] * (length + 1)))
        assert len(shared_places(module)) == 2
    assert shared_places(lower(network([[0]], [8, 8]))) == []


def test_what_is_read_again_in_the_end_keeps_its_place() -> None:
    module = lower(network([[0], [1], [2], [3], [1, 4]], [8] * 6))
    (own,) = [g for g in shared_places(module) if any(b.name == "b1" for b in g)]
    assert len(own) == 1


def test_a_buffer_takes_the_place_that_fits_it_best() -> None:
    """b1 (large) and b2 (small) are free when b4, small, begins; b5, large, takes the large one."""
    reads = [[0], [0], [1, 2], [3], [3, 4], [4, 5]]
    module = lower(network(reads, [4, 64, 4, 8, 4, 64, 4]))
    groups = [{b.name for b in g} for g in shared_places(module)]
    assert {"b2", "b4"} <= next(g for g in groups if "b4" in g)
    assert "b1" in next(g for g in groups if "b5" in g)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_calls_at_several_lengths_compute_what_each_kernel_alone_would(tmp_path: Path) -> None:
    reads = [[0], [1], [0, 2], [3], [1, 4], [5]]
    source = emit_module(network(reads, [8] * 7))
    module = load(write_module(source, tmp_path / "network.py"), "network_module")
    config = {"symbols": {f"T_m{n}": 4 for n in range(1, 7)}}
    for rows in (5, 300, 1, 64):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        values = [x]
        for read in reads:
            values.append(np.sum([values[r] for r in read], axis=0) + np.float32(1.0))
        found = module.network(x, config=config, threads=2)
        np.testing.assert_allclose(found, values[-1], rtol=1e-5)
    assert "_arena((" in source.text
