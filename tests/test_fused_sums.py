"""Sums that only meet in a sum are one: what is joined, what is not, that the same is computed, what it saves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sgraph_samples as samples
from compiled_code import CodeOf
from interpreting import InterpreterPool, InterpretJob
from sgraph_samples import F32, SAMPLES, Sample
from sgraph_small import SUM
from test_small_integers import K, M, N, both_codes, config
from tile_simulator import run_module

from prism.backends.lower import lower
from prism.backends.passes.fused_sums import fused
from prism.backends.tile import Dot, For, Full, Pointwise, Reduce, Stmt, TileProgram, Update
from prism.backends.tile_spec import check, check_module
from prism.backends.triton.emit import emit_module
from prism.ir.kit import statements
from prism.program.nodes import DType, ReduceKind
from prism.sgraph.nodes import Accumulate, Loop, SGraph
from prism.sgraph.nodes import Pointwise as SPointwise


def apart(m: int = M, n: int = N, k: int = K, sums: bool = True) -> SGraph:
    """`both_codes`, each product and each sum in an accumulator of its own; they meet after the loop."""
    g = both_codes(m, n, k, sums=sums)
    (kernel,) = g.kernels
    loop, *stores = kernel.body
    assert isinstance(loop, Loop)
    kept = [s for s in loop.body if not isinstance(s, Accumulate) and getattr(s, "dst", "") not in ("both", "ab")]
    own = [Accumulate(f"acc_{name}", SUM, name) for name in ("p", "q", *("a", "b")[: 2 * sums])]
    after: list[SPointwise] = [SPointwise("acc", "add", ("acc_p", "acc_q"))]
    after += [SPointwise("total", "add", ("acc_a", "acc_b"))] * sums
    body = (Loop(loop.axis, (*kept, *own)), *after, *stores)
    return replace(g, kernels=(replace(kernel, body=body),))


def count(p: TileProgram, kind: type[Stmt]) -> int:
    return sum(isinstance(s, kind) for s in statements(p.body))


# What is joined.


def test_accumulators_that_meet_after_their_loop_are_one_and_so_are_sums_within_it() -> None:
    (before,) = lower(apart()).programs
    p = fused(before)
    check(p)
    assert (count(before, Full), count(p, Full)) == (4, 2)
    assert (count(before, Reduce), count(p, Reduce)) == (2, 1)
    assert [s.add for s in statements(p.body) if isinstance(s, Dot)] == ["acc", "acc"]
    assert fused(p) == p


@pytest.mark.parametrize(
    "change",
    [
        # One of them is needed by itself, too.
        lambda body: (*body[:-1], replace(body[-1], src="acc_p")),
        # What meets is not their sum.
        lambda body: tuple(replace(s, op="mul") if isinstance(s, SPointwise) else s for s in body),
        # One begins elsewhere, or takes the largest.
        lambda body: (replace(body[0], body=tuple(largest(s) for s in body[0].body)), *body[1:]),
    ],
)
def test_others_are_not(change: Callable[[Sequence[object]], tuple[object, ...]]) -> None:
    g = apart(sums=False)
    (kernel,) = g.kernels
    changed = replace(g, kernels=(replace(kernel, body=change(kernel.body)),))  # type: ignore[arg-type]
    (before,) = lower(changed).programs
    assert sum(isinstance(s, Full) for s in fused(before).body) == sum(isinstance(s, Full) for s in before.body)


def largest(s: object) -> object:
    return replace(s, kind=ReduceKind.MAX) if isinstance(s, Accumulate) and s.dst == "acc_p" else s


def test_sums_of_which_one_is_used_again_or_that_are_over_other_dimensions_stay() -> None:
    (p,) = lower(apart()).programs
    (loop,) = (s for s in p.body if isinstance(s, For))
    first, second = (s for s in loop.body if isinstance(s, Reduce))
    total = Pointwise("both_sums", "add", (first.dst, second.dst), ("m",), DType.FLOAT32)

    def within(*stmts: Stmt) -> TileProgram:
        inner = tuple(s for s in loop.body if not isinstance(s, Update))
        return replace(p, body=tuple(replace(loop, body=(*inner, *stmts)) if s is loop else s for s in p.body))

    sums = [s.dst for s in statements(p.body) if isinstance(s, Full) and s.dims == ("m",)]
    alone = within(total, Update(sums[0], SUM, "both_sums"))
    again = within(total, Update(sums[0], SUM, "both_sums"), Update(sums[1], SUM, first.dst))
    assert count(fused(alone), Reduce) == 1
    assert count(fused(again), Reduce) == 2


# The same is computed.


@pytest.mark.parametrize("build", SAMPLES)
def test_samples_compute_the_same(build: Callable[[DType], Sample]) -> None:
    sample = build(F32)
    module = lower(sample.sgraph)
    changed = module.over(fused)
    check_module(changed)
    if changed == module or build in (samples.heads_projection, samples.batched_loop, samples.functions):
        return  # The simulator has not all of these.
    for binding in sample.bindings:
        for symbols in sample.symbols:
            want, found = (run_module(x, sample.inputs(binding), {**binding, **symbols})[0] for x in (module, changed))
            for name, array in want.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-5)


def test_joined_accumulators_compute_the_same(interpreter: InterpreterPool, tmp_path: Path) -> None:
    g = apart()
    source = emit_module(g, formula="", configs={})
    # Pairs in one accumulator are one product over the codes of a byte in turn, and one reduction.
    assert source.text.count("tl.dot(") == 1
    assert source.text.count("tl.sum(") == 1
    path = tmp_path / "apart.py"
    path.write_text(source.text)
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (M, 2 * K)).astype(np.float32)
    w = rng.integers(0, 256, (N, K)).astype(np.uint8)
    job = InterpretJob(path, source.entry, (x, w), ("bfloat16", "uint8"), config(T_m=16, T_n=16, T_k=16))
    y, z = interpreter.run(job)
    np.testing.assert_array_equal(y, x[:, ::2] @ (w & 15).T.astype(np.float64) + x[:, 1::2] @ (w >> 4).T)
    np.testing.assert_array_equal(z, x.sum(1))


# What the compilers make of it.


def test_one_reduction_and_one_product_a_trip(code_of: CodeOf) -> None:
    g = apart(16, 4096, 2048)
    for version in code_of.versions:
        (code,) = code_of(g, config(T_m=16, T_n=64, T_k=64), version=version)
        text = code.ttgir
        loop = text[text.index("scf.for") : text.rindex("scf.yield")]
        assert loop.count('"tt.reduce"') == 1
        # The product adds to its accumulator in place.
        (product,) = (line for line in loop.splitlines() if "tt.dot " in line)
        assert "%cst" not in product.split("tt.dot ")[1].split(":")[0]
