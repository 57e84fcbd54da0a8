"""What predicates see of rescaled values: nothing is proved that kernels compute otherwise where a row is masked.

Such a row's maximum is -inf, below which no exponential has a value; kernels have 0 there. Each sGraph makes something
of a maximum m, a sum s of exponentials below it, and one with a factor, w: of a row, or of what comes up to a place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pytest
import torch
from quick import run_slow
from sgraph_samples import at, op, sym
from tile_simulator import run_module

from prism.api import trace
from prism.api.region_search import SearchBudget, run_search
from prism.backends.lower import lower
from prism.cost.device import device
from prism.egraph.language import Budget
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.program import build
from prism.program.evaluate import evaluate, evaluate_expr
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, Map, Read, ReduceKind, Tensor
from prism.program.prefix import Recurrence
from prism.program.sign_analysis import Facts
from prism.program.transform import canonical, substitute
from prism.sgraph import rescaled, spec
from prism.sgraph.denote import denote
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    Scan,
    SGraph,
    Stmt,
    Store,
    TileReduce,
)

Tree: TypeAlias = "str | float | tuple[str | float | Tree, ...]"

M, K, J = Axis("d5", 5), Axis("d24", 24), Axis("d24_1", 24)
SUM, MAX = ReduceKind.SUM, ReduceKind.MAX
F32, BOOL = DType.FLOAT32, DType.BOOL
NONE = -math.inf
INPUTS = (Tensor("keep", (5, 24), BOOL), Tensor("x", (5, 24), F32), Tensor("v", (24,), F32))
TILES = {"T_d5": 2, "T_d24": 8}
LSE: Tree = ("add", "m", ("log", "s"))
SHARE: Tree = ("mul", "w", ("recip", "s"))
PREDICATES: dict[str, Tree] = {
    f"{name}({of})" if name == "isnan" else f"{of} {name}": tree
    for of, value in {"s": "s", "w": "w", "lse": LSE, "share": SHARE, "s*w": ("mul", "s", "w"), "m": "m"}.items()
    for name, tree in {
        "isnan": ("isnan", value),
        "> 0": ("lt", 0.0, value),
        ">= 0": ("le", 0.0, value),
        "== 0": ("eq", value, 0.0),
        "< 0.5": ("lt", value, 0.5),
        "> 0.5": ("lt", 0.5, value),
    }.items()
}
FORMS = ("a row", "so far")
# What has one answer in a masked row, and is proved.
BLIND = {f"{of} {name}" for of in ("s", "w") for name in ("> 0", "> 0.5")} | {"isnan(share)", "share > 0", "share == 0"}
# What kernels would answer otherwise.
TOLD = {"isnan(s)", "isnan(w)", "isnan(lse)", "isnan(s*w)", "s == 0", "s >= 0", "s < 0.5", "lse < 0.5", "w == 0"}
FEW = {"isnan(w)", "s == 0", "lse < 0.5"}


def written(tree: Tree, into: list[Stmt]) -> str | float:
    """The name of the value that a tree is, after statements that make it."""
    if not isinstance(tree, tuple):
        return tree
    name, *parts = tree
    args = [written(p, into) for p in parts]
    into.append(Pointwise(f"made{len(into)}", str(name), tuple(args)))
    return f"made{len(into) - 1}"


def formula(tree: Tree, values: dict[str, Expr]) -> Expr:
    if isinstance(tree, tuple):
        return Map(str(tree[0]), tuple([formula(t, values) for t in tree[1:]]))
    return values[tree] if isinstance(tree, str) else Const(tree)


def pair(form: str, tree: Tree) -> tuple[SGraph, Expr]:
    """An sGraph that makes the tree of rescaled values, and what is asked for."""
    kept = Map("where", (Read("keep", at(M, K)), Read("x", at(M, K)), Const(NONE)))
    load = (Load("p", "keep", at(M, K)), Load("b", "x", at(M, K)), op("a", "where", "p", "b", NONE))
    below = (op("n", "mul", -1.0, "m"), op("d", "add", "a", "n"), op("e", "exp", "d"))
    rest: list[Stmt] = []
    out = written(tree, rest)
    roles = ((M, Grid(sym("T_d5"))), (K, LoopRole(sym("T_d24"))))
    f: Expr = Read("v", at(K))
    if form == "a row":
        m: Expr = build.reduce(MAX, K, kept)
        e = build.op("exp", build.add(kept, build.mul(build.const(-1), m)))
        s, w = build.reduce(SUM, K, e), build.reduce(SUM, K, build.mul(e, f))
        loop: tuple[Stmt, ...] = (
            *load,
            TileReduce("t", MAX, K, "a"),
            Accumulate("m", MAX, "t"),
            *below,
            Load("f", "v", at(K)),
            TileReduce("u", SUM, K, "e"),
            Accumulate("s", SUM, "u", "m"),
            Contract("o", K, "e", "f"),
            Accumulate("w", SUM, "o", "m"),
        )
        body: tuple[Stmt, ...] = (Loop(K, loop), *rest, Store("y", at(M), str(out)))
        output = Tensor("y", (5,), F32)
    else:
        so_far = Recurrence(rescaled=True)
        here = build.op("le", build.position(J), build.position(K))
        there = substitute(kept, {K: Index.axis(J)})
        m = build.reduce(MAX, J, build.op("where", here, there, Const(NONE)))
        e = build.op("exp", build.add(there, build.mul(build.const(-1), m)))
        s, w = (
            build.reduce(SUM, J, build.op("where", here, t, Const(0.0))) for t in (e, build.mul(e, Read("v", at(J))))
        )
        loop = (
            *load,
            Scan("m", K, "a", None, Recurrence(MAX)),
            *below,
            Load("f", "v", at(K)),
            op("g", "mul", "e", "f"),
            Scan("s", K, "e", "m", so_far),
            Scan("w", K, "g", "m", so_far),
            *rest,
            Store("y", at(M, K), str(out)),
        )
        body, output = (Loop(K, loop),), Tensor("y", (5, 24), F32)
    g = SGraph("g", INPUTS, (), (output,), (Kernel("g_kernel", roles, body),))
    return g, canonical(formula(tree, {"m": m, "s": s, "w": w}))


def inputs() -> list[np.ndarray]:
    """Masks that hide a row, the first tile of one, all but the last place of one, and nothing of one."""
    rng = np.random.default_rng(5)
    keep = rng.random((5, 24)) < 0.5
    keep[0], keep[1, :9], keep[2], keep[3] = False, False, np.arange(24) == 23, True
    return [keep, rng.standard_normal((5, 24)).astype(np.float32), rng.standard_normal(24).astype(np.float32)]


def holds(g: SGraph, reference: Expr) -> bool:
    """Whether kernels have the reference's value wherever it has one."""
    given = inputs()
    axes = (M, K)[: len(g.outputs[0].shape)]
    want = evaluate_expr(reference, dict(zip(("keep", "x", "v"), given, strict=True)), {}, axes).ravel()
    found = run_module(lower(g), given, TILES)[0]["y"]
    with np.errstate(invalid="ignore"):
        near = (np.abs(found - want) <= 1e-4 * (1 + np.abs(want))) | (found == want)
    return bool((near | np.isnan(want)).all())


def wrong(worker: Worker, names: Iterable[str]) -> tuple[list[str], set[str]]:
    """What is proved of what hangs on some predicates and does not hold, and of which predicates all is proved."""
    found: list[str] = []
    proved: set[str] = set()
    for name in names:
        others: tuple[Tree, ...] = (5.0, SHARE, "s") if run_slow() else (5.0,)
        chosen: list[Tree] = [("where", PREDICATES[name], 7.0, other) for other in others]
        verdicts = []
        for form, tree in itertools.product(FORMS, chosen):
            g, reference = pair(form, tree)
            spec.check(g)
            worker.explore((reference,), Budget())
            (verdict,) = worker.prove([denote(g).outputs])
            verdicts.append(bool(verdict) and not verdict.assumptions)
            if verdicts[-1] and not holds(g, reference):
                found.append(name)
        proved |= {name} if all(verdicts) else set()
    return found, proved


def test_what_is_proved_of_rescaled_values_is_what_kernels_compute(worker: Worker) -> None:
    names = PREDICATES if run_slow() else [n for n in PREDICATES if n in BLIND | FEW]
    found, proved = wrong(worker, names)
    assert not found
    assert proved >= BLIND
    assert proved.isdisjoint(TOLD)


def test_maxima_in_the_place_of_what_is_subtracted_prove_what_is_not_so(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescaled, "told", rescaled.plain)
    names = TOLD if run_slow() else FEW
    assert set(wrong(worker, sorted(names))[0]) == names


def test_a_row_of_which_something_is_kept_hides_nothing(worker: Worker) -> None:
    """Below a maximum that no mask hides, predicates are as they are written."""
    g, _ = pair("a row", ("where", ("lt", "s", 0.5), 7.0, "s"))
    (loop, *after) = g.kernels[0].body
    assert isinstance(loop, Loop)
    bare = tuple(op("a", "mul", 1.0, "b") if isinstance(s, Pointwise) and s.op == "where" else s for s in loop.body)
    kernel = replace(g.kernels[0], body=(Loop(K, bare), *after))
    assert "-inf" not in str(denote(replace(g, kernels=(kernel,))).outputs[0])


def test_what_is_more_than_its_shift_is_not_rescaled() -> None:
    """While m is -inf a term counts for nothing: of terms that are no smaller that is not what their sum denotes."""
    g, reference = pair("a row", "s")
    assert holds(g, reference)
    denote(g)
    (loop, *after) = g.kernels[0].body
    assert isinstance(loop, Loop)
    lost = tuple(replace(s, args=("b", "n")) if isinstance(s, Pointwise) and s.dst == "d" else s for s in loop.body)
    other = replace(g, kernels=(replace(g.kernels[0], body=(Loop(K, lost), *after)),))
    spec.check(other)
    x, kept = Read("x", at(M, K)), Map("where", (Read("keep", at(M, K)), Read("x", at(M, K)), Const(NONE)))
    shifted = build.add(x, build.mul(build.const(-1), build.reduce(MAX, K, kept)))
    assert not holds(other, canonical(build.reduce(SUM, K, build.op("exp", shifted))))
    with pytest.raises(rescaled.LostError, match="-inf so far where what is summed is not"):
        denote(other)


def test_what_may_be_far_above_its_shift_is_not_rescaled() -> None:
    """exp(v - m) overflows below a maximum that is -200 so far, where the last one is 200."""
    g, _ = pair("a row", "s")
    (loop, *after) = g.kernels[0].body
    assert isinstance(loop, Loop)
    factor = Load("f", "v", at(K))
    apart: dict[str, Stmt] = {"a": op("a", "mul", 1.0, "b"), "d": op("d", "add", "f", "n"), "p": factor}
    body = [apart.get(s.dst, s) if isinstance(s, Pointwise | Load) else s for s in loop.body if s != factor]
    with pytest.raises(rescaled.LostError, match="so far that it overflows"):
        denote(replace(g, kernels=(replace(g.kernels[0], body=(Loop(K, tuple(body)), *after)),)))


X, Y, HIDDEN = Read("x", at(K)), Read("y", at(K)), Read("keep", at(K))
KEPT = Map("where", (HIDDEN, X, Const(NONE)))
FALLS = {
    "itself": (KEPT, KEPT, True),
    "below what is a number": (Y, X, True),
    "more terms": (build.add(KEPT, Y), KEPT, True),
    "fewer terms": (KEPT, build.add(KEPT, Y), True),
    "a multiple": (build.mul(build.const(2), KEPT), KEPT, True),
    "the same choice": (Map("where", (HIDDEN, Y, Const(NONE))), KEPT, True),
    "one of two": (KEPT, Map("maximum", (KEPT, Map("log", (build.op("abs", Y),)))), True),
    "what is not hidden": (X, KEPT, False),
    "another choice": (Map("where", (build.op("lt", Y, Const(0.0)), X, Const(NONE))), KEPT, False),
    "the other choice": (Map("where", (HIDDEN, Const(NONE), X)), KEPT, False),
    "a negative multiple": (build.mul(build.const(-1), KEPT), KEPT, False),
    "what may be 0": (build.op("log", build.op("abs", Y)), build.op("log", build.op("abs", X)), False),
}


@pytest.mark.parametrize("what", FALLS)
def test_what_falls_with_what_it_is_shifted_by(what: str) -> None:
    a, b, falls = FALLS[what]
    assert rescaled.falls_with(a, b, Facts()) == falls


def test_what_a_scan_leaves_out_no_predicate_may_see() -> None:
    """While m is -inf a scan takes nothing, an infinite factor neither, of which -inf * 0 would be no number."""
    g, _ = pair("so far", ("where", ("lt", 0.0, "w"), 7.0, "w"))
    denote(g)
    (loop,) = g.kernels[0].body
    assert isinstance(loop, Loop)
    factor = [op("f", "log", "h") if isinstance(s, Load) and s.dst == "f" else s for s in loop.body]
    factor.insert(0, Load("h", "v", at(K)))
    with pytest.raises(rescaled.LostError, match="some factor may be infinite"):
        denote(replace(g, kernels=(replace(g.kernels[0], body=(Loop(K, tuple(factor)),)),)))


def test_what_is_more_than_its_shift_is_searched_without_a_word(worker: Worker) -> None:
    def lost(x: torch.Tensor, y: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return (y - x.masked_fill(hidden, NONE).amax(-1, keepdim=True)).exp().sum(-1)

    given = [torch.empty(64, 4096), torch.empty(64, 4096), torch.empty(64, 4096, dtype=torch.bool)]
    p = trace(lost, given, name="p", check=False)
    events = Recorder()
    proved = run_search(p, device("sm_90"), SearchBudget(max_sgraphs=4, max_families=48), worker, events).proved
    assert proved
    assert not any(
        isinstance(s, Accumulate) and s.shift for q in proved for k in q.sgraph.kernels for s in k.statements()
    )


def test_parts_that_are_masked_as_a_whole_need_no_assumption(worker: Worker) -> None:
    def attention(q: torch.Tensor, hidden: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q.masked_fill(hidden, NONE).softmax(-1) @ v

    given = [torch.empty(8, 4096), torch.empty(8, 4096, dtype=torch.bool), torch.empty(4096, 8)]
    p = trace(attention, given, name="p", check=False)
    proved = run_search(p, device("sm_90"), SearchBudget(max_sgraphs=4, max_families=48), worker, Recorder()).proved
    split = next(q for q in proved if q.denotation.split)
    assert not split.verdict.assumptions
    rng = np.random.default_rng(1)
    hidden = rng.random((8, 4096)) < 0.5
    hidden[1, :3000], hidden[2, 700:] = True, True
    drawn = [rng.standard_normal((8, 4096)), hidden, rng.standard_normal((4096, 8))]
    drawn = [a if a.dtype == bool else a.astype(np.float32) for a in drawn]
    want = evaluate(p, dict(zip((t.name for t in p.inputs), drawn, strict=True)))[p.outputs[0]]
    binding = {str(s): 8 if str(s).startswith("parts") else 64 for s in split.sgraph.symbols}
    found = run_module(lower(split.sgraph), drawn, binding)[0][split.sgraph.outputs[0].name]
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=0, atol=1e-5)
