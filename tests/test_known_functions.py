"""Every sGraph that is proved of the functions of benchmarks/collection.py, run tile by tile, is what torch computes.

An oracle that no proof has a part in: memory that nothing stored is NaN, and a read beside a tensor ends the run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from quick import slow_but
from sgraph_simulator import simulate

from benchmarks.collection import KNOWN, Known
from prism.api import trace
from prism.api.partitioned import search_regions
from prism.api.region_search import SearchBudget, SearchResult
from prism.bench.suite import Argument
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.errors import PrismError
from prism.events import Recorder
from prism.generate.partition import partition, whole
from prism.program.evaluate import evaluate
from prism.program.nodes import Program, Tensor

TARGET = device("sm_90")
# Several of each kind, the smallest with lengths that no tile divides: some functions have lengths of their own.
SMALLER: tuple[Callable[[int], int], ...] = (
    lambda n: n if n < 64 else 12 if n < 512 else 24 if n < 8192 else 40,
    lambda n: n if n < 64 else 32 if n < 512 else 64 if n < 8192 else 128,
    lambda n: n if n < 128 else max(64, n // 16) if n < 8192 else 512,
)
TILES = (2, 3, 4, 5, 8, 16, 64)
# Of these a simulation, tile by tile, takes minutes.
LONG = {"MBConv", "ConvNeXt block", "separable convolution"}


def smaller(known: Known) -> tuple[Program, list[torch.Tensor]]:
    """The function's program in float32 at small sizes, and numbers for it."""
    for length in SMALLER:
        sizes = " ".join(f"{name}={length(n)}" for name, n in known.dimensions.items())
        inputs = [
            replace(a, dtype="float32" if a.dtype in ("bfloat16", "float16") else a.dtype)
            for a in replace(known, sizes=sizes).inputs
        ]
        given = [drawn(a) for a in inputs]
        try:
            return trace(known.fn, given, name="small", assume=known.stated), given
        except PrismError:
            continue
    pytest.skip("it has lengths of its own")


def drawn(a: Argument) -> torch.Tensor:
    """Numbers of a seed."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, a.dtype)
    if dtype.is_floating_point:
        return (torch.randn(a.shape, generator=generator) * a.scale + a.offset).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else a.below or 7, a.shape, generator=generator).to(dtype)


def searches(program: Program, worker: Worker) -> Iterator[tuple[Program, SearchResult]]:
    """What was searched of it, regions and the whole, with what was found."""
    done: dict[str, SearchResult] = {}
    regions = partition(program, device=TARGET)
    found = search_regions(program, regions, TARGET, SearchBudget(), [worker], Recorder(), done)
    as_one = whole(program, TARGET)
    forms = [r.canonical for r in found.regions] + [r.canonical() for r in (*regions, *([as_one] if as_one else []))]
    for form in {f.key: f for f in forms}.values():
        if form.key in done:
            yield form.program, done[form.key]


@pytest.mark.parametrize("name", slow_but(["RMSNorm backward", "linear attention"], [k.name for k in KNOWN]))
def test_what_is_proved_computes_what_torch_does(name: str) -> None:
    known = next(k for k in KNOWN if k.name == name)
    program, given = smaller(known)
    made = known.fn(*[g.clone() for g in given])
    inputs = {t.name: g.double().numpy() for t, g in zip(program.inputs, given, strict=True)}
    read = evaluate(program, inputs)
    for output, expected in zip(program.outputs, made if isinstance(made, tuple) else (made,), strict=True):
        scale = float(expected.double().abs().max())
        np.testing.assert_allclose(read[output], expected.detach().double(), rtol=0.02, atol=0.02 * max(1.0, scale))
    tiles, numbers = random.Random(0), np.random.default_rng(0)
    with Worker() as worker:
        for region, found in searches(program, worker):
            assert not found.refuted
            arrays = {t.name: positive(t, numbers) for t in region.inputs}
            if [(t.shape, t.dtype) for t in region.inputs] == [(t.shape, t.dtype) for t in program.inputs]:
                arrays = dict(zip(arrays, inputs.values(), strict=True))
            meant = evaluate(region, arrays)
            for p in found.proved if name not in LONG else ():
                binding = {s.name: tiles.choice(TILES) for s in p.sgraph.symbols}
                for output, array in simulate(p.sgraph, arrays, binding).items():
                    scale = float(
                        np.nanmax(np.abs(np.where(np.isfinite(meant[output]), meant[output], 0.0)), initial=1.0)
                    )
                    told = f"{output} at {binding} of\n{p.sgraph}"
                    np.testing.assert_allclose(array, meant[output], rtol=1e-4, atol=1e-6 * scale, err_msg=told)


def positive(t: Tensor, numbers: np.random.Generator) -> np.ndarray:
    """Of what regions hand over: deviations and sums are, and codes are few."""
    shape = [int(n) for n in t.shape]
    return np.abs(numbers.normal(size=shape)) + 0.1 if t.dtype.is_float else numbers.integers(0, 2, shape).astype(float)
