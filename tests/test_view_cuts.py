"""Views that no split of an axis describes: the program is cut there, and what is cut is the program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from test_partition import draw, run_regions

from prism.api import trace
from prism.api.partitioned import search_regions
from prism.api.region_search import SearchBudget
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.errors import UnsupportedError
from prism.events import Recorder
from prism.generate.partition import affine, partition
from prism.program.evaluate import evaluate
from prism.program.inline import inline
from prism.program.nodes import Program
from prism.program.region import Region


def patches(x: torch.Tensor, token: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """A class token beside the patches of an image."""
    rows = torch.cat([token, torch.tanh(x).flatten(2).transpose(1, 2)], 1)
    return torch.softmax(rows + places, -1)


def shorter(x: torch.Tensor) -> torch.Tensor:
    """The first 40 of 42 numbers in rows of 14."""
    return torch.exp(x.reshape(42)[:40]) * 2.0


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Both a sum of what is cut, and another cut of it."""
    rows = torch.cat([y, torch.relu(x).flatten()])
    again = torch.cat([rows[:2], torch.sigmoid(rows.reshape(5, 4)).flatten()])
    return again * again.sum()


def both(x: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What is cut at is an output, too."""
    flat = x.flatten()
    return flat * 2.0, torch.cat([token, flat]) + 1.0


CASES: dict[Callable[..., object], tuple[tuple[int, ...], ...]] = {
    patches: ((1, 8, 4, 4), (1, 1, 8), (1, 17, 8)),
    shorter: ((3, 14),),
    twice: ((4, 4), (4,)),
    both: ((3, 4), (1,)),
}


def traced(function: Callable[..., object]) -> Program:
    return trace(function, tuple(torch.randn(s) for s in CASES[function]))


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_the_regions_are_affine_and_compute_the_program(function: Callable[..., object]) -> None:
    program = traced(function)
    with pytest.raises(UnsupportedError, match="does not divide it"):
        inline(program)
    regions = partition(program)
    assert len(regions) > 1
    for r in regions:
        inline(r.canonical().program)
        (again,) = affine(r)
        assert again is r
    feed = draw(program)
    expected, found = evaluate(program, feed), run_regions(program, regions, feed)
    for name in program.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


def test_the_regions_are_searched_and_composed() -> None:
    program = traced(patches)
    with Worker() as worker:
        found = search_regions(
            program, partition(program), device("sm_90"), SearchBudget(max_sgraphs=2), [worker], Recorder()
        )
    assert all(r.result.proved for r in found.regions)
    composed = found.compose([r.result.proved[0].sgraph for r in found.regions])
    assert len(composed.sgraph.kernels) >= len(found.regions)


def test_what_no_cut_makes_affine_is_left_whole() -> None:
    """Rows of five as rows of eight: a reshape that no index in two axes describes, wherever it is cut."""
    program = trace(lambda x: torch.exp(x).reshape(5, 8).tanh(), (torch.randn(8, 5),))
    region = Region(program, program.outputs)
    try:
        inline(program)
    except UnsupportedError:
        assert affine(region) == (region,)
    else:
        pytest.fail("such a reshape is read now: take another one")
