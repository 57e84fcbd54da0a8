"""Reductions over nearly the same places, over equally many: which, what they are, and that kernels are right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from formulas import evaluate_formula
from sgraph_simulator import simulate

from prism.api import trace
from prism.api.region_search import SearchBudget, run_search
from prism.cost.device import device
from prism.egraph.language import Budget
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.ir import kit
from prism.program.equal_lengths import as_short, of_equal_lengths
from prism.program.evaluate import evaluate
from prism.program.inline import aligned, inline
from prism.program.nodes import Const, Map, Program, Reduce, walk
from prism.sgraph.denote import denote
from prism.sgraph.nodes import Load, Pointwise, SGraph, Stmt


def variation(x: torch.Tensor) -> torch.Tensor:
    return (x[1:] - x[:-1]).abs().sum() + (x[:, 1:] - x[:, :-1]).abs().mean()


def rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x[:, 1:] * x[:, :-1]).sum(-1), x.amax(-1)


def products(x: torch.Tensor) -> torch.Tensor:
    return x[2:].prod(0) + x.prod(0) + x[1:].amin(0)


def traced(fn: Callable[..., object], *shapes: tuple[int, ...]) -> Program:
    return trace(fn, [torch.empty(s, device="meta") for s in shapes], name="p", check=False)


def drawn(p: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal([int(e) for e in t.shape]) for t in p.inputs}


EXAMPLES = {
    "variation": lambda: traced(variation, (33, 20)),
    "as square": lambda: traced(variation, (32, 32)),
    "rows": lambda: traced(rows, (5, 40)),
    "products": lambda: traced(products, (48, 3)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_reductions_are_over_equally_many_places_and_give_the_same(name: str) -> None:
    p = EXAMPLES[name]()
    formulas = aligned(inline(p))
    equal = of_equal_lengths(formulas)
    assert equal != formulas

    def lengths(fs: tuple[object, ...]) -> int:
        made = {e for f in fs for e in walk(f.expr) if isinstance(e, Reduce)}  # type: ignore[attr-defined]
        return len({str(e.axis.extent) for e in made})

    assert lengths(equal) < lengths(formulas)
    given = drawn(p)
    for one, other in zip(formulas, equal, strict=True):
        wanted = evaluate_formula(one, given, {})
        np.testing.assert_allclose(evaluate_formula(other, given, {}), wanted, rtol=1e-12)
        assert as_short(other.expr) == one.expr
    assert [as_short(f.expr) for f in formulas] == [f.expr for f in formulas]


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x: (x[1:] - x[:-1]).abs().sum(), ((32, 8),)),
        (lambda x: x[16:].sum() + x.amax(), ((32, 8),)),
        (lambda x, y: x[1:].sum(0) + y.sum(0), ((32, 8), (32, 8))),
        (lambda x: (x[1:] + 1, x.sum(0)), ((32, 8),)),
    ],
    ids=["alone", "far apart", "of two tensors", "not reduced"],
)
def test_what_gains_nothing_stays(fn: Callable[..., object], shapes: tuple[tuple[int, ...], ...]) -> None:
    formulas = aligned(inline(traced(fn, *shapes)))
    assert of_equal_lengths(formulas) == formulas


@pytest.fixture(scope="module")
def found() -> tuple[Program, list[SGraph]]:
    """What is proved of the variation that has all in one kernel."""
    p = EXAMPLES["as square"]()
    with Worker() as worker:
        proved = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved
    mine = [g.sgraph for g in proved if len(g.sgraph.kernels) == 1]
    assert mine, "one kernel has both sums"
    return p, mine


def test_one_kernel_has_both_sums_at_any_tiles(found: tuple[Program, list[SGraph]]) -> None:
    p, graphs = found
    choose, given = random.Random(0), drawn(p)
    wanted = evaluate(p, given)
    for g in graphs:
        assert len({s for s in g.kernels[0].statements() if isinstance(s, Load)}) <= 3
        binding = {s.name: choose.choice((3, 8, 32, 64)) for s in g.symbols}
        for name, value in simulate(g, given, binding).items():
            if name in wanted:
                np.testing.assert_allclose(value, wanted[name], rtol=1e-9, err_msg=str(binding))


def test_a_mask_by_another_number_is_not_proved(found: tuple[Program, list[SGraph]]) -> None:
    p, (g, *_) = found
    reference = tuple(f.expr for f in aligned(inline(p)))

    def wrong(change: Callable[[Pointwise], Pointwise]) -> SGraph:
        def of(s: Stmt) -> Stmt:
            return change(s) if isinstance(s, Pointwise) else s

        return replace(g, kernels=tuple(replace(k, body=kit.rewrite(k.body, of)) for k in g.kernels))

    def nearer(s: Pointwise) -> Pointwise:
        return replace(s, args=tuple(30.0 if a == 31.0 else a for a in s.args))

    def other(s: Pointwise) -> Pointwise:
        return replace(s, args=(*s.args[:2], 1.0)) if s.op == "where" else s

    with Worker() as worker:
        worker.explore(reference, Budget())
        assert worker.prove([denote(g).outputs])[0]
        for change in (nearer, other):
            assert wrong(change) != g
            assert not worker.prove([denote(wrong(change)).outputs])[0]


def test_what_a_mask_leaves_is_not_all_that_is_shortened() -> None:
    """A mask that begins later, or leaves something else than what changes nothing, stays."""
    (f,) = aligned(inline(traced(lambda x: x.sum(0) + x[1:].amax(0), (32, 3))))
    (g,) = of_equal_lengths((f,))
    assert g != f
    changed = [e for e in walk(g.expr) if isinstance(e, Reduce) and isinstance(e.body, Map) and e.body.op == "where"]
    (e,) = changed
    within, value, rest = e.body.args  # type: ignore[attr-defined]
    assert as_short(e) != e
    for body in (Map("where", (within, value, Const(0.0))), Map("where", (within, rest, value))):
        assert as_short(replace(e, body=body)) == replace(e, body=body)
    assert as_short(Reduce(e.kind, e.axis, e.body)) == as_short(e)
