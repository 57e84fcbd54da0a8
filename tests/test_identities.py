"""True identities are proved and wrong ones refuted, over the families of models, at small and realistic extents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from formulas import prove_formulas
from identities_common import EQUAL, LARGE, SMALL, Sizes, formulas
from identities_false import FALSE
from identities_true import TRUE
from quick import slow_but
from short_calls import prove_programs
from torch.nn import functional as F

from prism.egraph.prove.normal_form import Unfit, normal_form
from prism.egraph.prove.refutation import refute
from prism.egraph.prove.smaller_inputs import shrink, written
from prism.egraph.worker import Worker
from prism.frontend.torch.reader import trace
from prism.program.evaluate import evaluate_expr
from prism.program.nodes import Formula, Read, free_axes, walk
from prism.program.refinement import common_refinement
from prism.program.verdict import Status, Verdict

# True, and not proved: why. What becomes provable has to leave the table.
UNKNOWN: Mapping[str, str] = {}

EXTENTS = {"small": SMALL, "equal": EQUAL, "large": LARGE}


def cases(names: Mapping[str, object]) -> list[object]:
    """Each identity at one of: small extents, equal ones, which confuse axes, and large ones, which are sampled."""
    return [
        pytest.param(name, z, id=f"{name} {extents}", marks=[pytest.mark.slow] if (n + e) % 3 else [])
        for n, name in enumerate(names)
        for e, (extents, z) in enumerate(EXTENTS.items())
    ]


def verdict_of(pair: tuple[Formula, Formula], worker: Worker) -> Verdict:
    return prove_formulas([pair[0]], [pair[1]], tensors=(), worker=worker)


def test_there_are_enough() -> None:
    assert len(TRUE) - len(UNKNOWN) >= 40
    assert len(FALSE) >= 60
    assert set(UNKNOWN) <= set(TRUE)


@pytest.mark.parametrize(("name", "z"), cases(TRUE))
def test_true(name: str, z: Sizes, worker: Worker) -> None:
    verdict = verdict_of(formulas(TRUE[name](z)), worker)
    expected = Status.UNKNOWN if name in UNKNOWN else Status.PROVED
    assert verdict.status is expected, f"{verdict.status}: {verdict.reason}"


@pytest.mark.parametrize(("name", "z"), cases(FALSE))
def test_false(name: str, z: Sizes, worker: Worker) -> None:
    verdict = verdict_of(formulas(FALSE[name](z)), worker)
    assert verdict.status is Status.REFUTED, f"{verdict.status}: {verdict.reason}"
    assert verdict.counterexample
    assert " against " in verdict.reason
    assert ", where " in verdict.reason


@pytest.mark.parametrize("name", slow_but(TRUE, [*TRUE, *FALSE]))
def test_a_normal_form_has_the_values_of_what_it_stands_for(name: str) -> None:
    """Both sides, as they are and in pieces, at signed random inputs."""
    pair = formulas({**TRUE, **FALSE}[name](SMALL))
    exprs = [f.expr for f in pair]
    rng = np.random.default_rng(7)
    for e in [*exprs, *(x for side in common_refinement([exprs[0]], [exprs[1]]) for x in side)]:
        try:
            form = normal_form(e)
        except Unfit:
            continue
        shapes: dict[str, list[int]] = {}
        for r in [*walk(e), *walk(form)]:
            if isinstance(r, Read):
                shapes[r.tensor] = [40] * len(r.index)
        inputs = {n: rng.standard_normal(s) for n, s in sorted(shapes.items())}
        axes = tuple(sorted(free_axes(e) | free_axes(form), key=lambda a: a.name))
        one, other = (evaluate_expr(x, inputs, {}, axes) for x in (e, form))
        np.testing.assert_allclose(np.where(np.isfinite(one), other, one), one, rtol=1e-4, atol=1e-4, equal_nan=True)


def batch_norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, var, None, None, False, 0.1, 1e-5)


def folded(x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    inverse = torch.rsqrt(var + 1e-5)
    return F.conv1d(x, w * inverse[:, None, None], -mean * inverse)


def by_group(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.cat([F.conv2d(x[:, :2], w[:3], padding=1), F.conv2d(x[:, 2:], w[3:], padding=1)], 1)


def shared_keys(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return (q.reshape(1, 2, 2, 3, 4) @ k[:, :, None].mT).reshape(1, 4, 3, 5)


TORCH: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "batch norm folded": (
        lambda x, w, mean, var: batch_norm(F.conv1d(x, w), mean, var),
        folded,
        [(2, 3, 8), (5, 3, 3), (5,), (5,)],
    ),
    "convolution by group": (
        lambda x, w: F.conv2d(x, w, padding=1, groups=2),
        by_group,
        [(1, 4, 5, 5), (6, 2, 3, 3)],
    ),
    "convolution of windows": (
        F.conv1d,
        lambda x, w: torch.einsum("bcik,ock->boi", x.unfold(2, 3, 1), w),
        [(1, 4, 8), (5, 4, 3)],
    ),
    "group norm by layer norm": (
        lambda x: F.group_norm(x, 2),
        lambda x: F.layer_norm(x.reshape(2, 2, 2, 5), (2, 5)).reshape(2, 4, 5),
        [(2, 4, 5)],
    ),
    "grouped keys": (lambda q, k: q @ k.repeat_interleave(2, dim=1).mT, shared_keys, [(1, 4, 3, 4), (1, 2, 5, 4)]),
}


@pytest.mark.parametrize("name", TORCH)
def test_true_of_torch_functions(name: str, worker: Worker) -> None:
    one, other, shapes = TORCH[name]
    examples = [torch.ones(s) for s in shapes]
    verdict = prove_programs(trace(one, examples), trace(other, examples), worker=worker)
    assert verdict.status is Status.PROVED, verdict.reason


def test_counterexamples_are_small() -> None:
    """One matrix element too few in a long sum shows at one product."""
    left, right = formulas(FALSE["last of k dropped"](SMALL))
    found = refute([left], [right], (), {}).found
    assert found is not None
    assert {n: int(np.count_nonzero(a)) for n, a in found.inputs.items()} == {"w": 1, "x": 1}
    assert "x[0, 7] = 1" in found.where
    assert "all else 0" in found.where


def test_shrinking_keeps_the_difference() -> None:
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((5, 40)), "y": rng.standard_normal(3)}

    def differs(at: Mapping[str, np.ndarray]) -> bool:
        return bool(at["x"][2, 7] > 0.5 and at["y"].sum() != 0) if inputs["x"][2, 7] > 0.5 else bool(at["x"][2, 7])

    small = shrink(inputs, differs)
    assert differs(small)
    assert np.count_nonzero(small["x"]) == 1
    assert small["x"][2, 7] in (1.0, -1.0)
    assert "x[2, 7] = " in written(small)
    assert shrink(inputs, differs, tries=0)["x"].tolist() == inputs["x"].tolist()


def test_a_number_throughout_is_written_as_one() -> None:
    assert written({"x": np.ones((4, 4)), "y": np.zeros(3)}) == "x = 1 throughout, all else 0"
