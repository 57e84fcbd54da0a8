"""Known places on a few lines are index arithmetic; an image that is made larger reads what it repeats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

import prism
from prism.program.index import Axis, Index
from prism.program.nodes import Map, Reduce, walk
from prism.program.views import MAX_PIECES, progressions

Line = tuple[int, int, int]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(2, 9), st.integers(-9, 9)), max_size=4))
def test_progressions_are_the_elements(made: list[Line]) -> None:
    """Of random ones one after another: (step, how many, first)."""
    table = np.array([first + n * step for step, many, first in made for n in range(many)])
    axis = Axis("i", len(table))
    found = progressions(table.astype(object).reshape(-1, 1), (axis, Axis("j", 7)))
    if not made:
        assert found is None
        return
    assert found is not None, "each that was made is one, or a few"
    along, pieces = found
    assert along == axis
    assert pieces[0][0] == 0
    ends = [start for start, _ in pieces[1:]] + [len(table)]
    for (start, index), end in zip(pieces, ends, strict=True):
        got = [index.substitute({axis: Index.const(n)}).offset for n in range(start, end)]
        assert got == table[start:end].tolist()


def test_what_goes_by_no_few_lines_is_none() -> None:
    axes = (Axis("i", 40),)
    squares = np.array([n * n % 23 for n in range(40)], dtype=object)
    assert progressions(squares, axes) is None
    assert progressions(np.arange(12).astype(object).reshape(3, 4), (Axis("i", 3), Axis("j", 4))) is None
    assert MAX_PIECES < 40


@pytest.mark.parametrize(
    ("made", "most"),
    [
        (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), 0),
        (lambda x: F.interpolate(x, size=(24, 8), mode="nearest"), 0),
        (lambda x: F.interpolate(x, size=(10, 16), mode="nearest"), 9),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), None),
        (lambda x: F.interpolate(x, size=(40, 50), mode="bilinear", align_corners=True), None),
        (lambda x: F.interpolate(x, size=(13, 11), mode="bilinear", align_corners=True), None),
    ],
)
def test_images_of_other_sizes_read_places(made: Callable[[torch.Tensor], torch.Tensor], most: int | None) -> None:
    program = prism.trace(made, (torch.randn(1, 2, 8, 8),))
    assert program.conformance is not None
    assert not program.conformance.missing
    if most is not None:
        nodes = [e for d in program.definitions for e in walk(d.expr)]
        assert not any(isinstance(e, Reduce) for e in nodes), "nothing is sought"
        assert sum(isinstance(e, Map) and e.op == "where" for e in nodes) <= most


def test_upsampling_is_repeating() -> None:
    verdict = prism.prove(
        lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3),
        [torch.randn(1, 2, 3, 4)],
    )
    assert verdict.status.value == "proved", verdict.reason
