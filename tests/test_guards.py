"""Predicates on positions: selections that are made only where they are needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sgraph_samples as samples
from compiled_code import CodeOf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from quick import examples
from sgraph_samples import BF16, F32, SAMPLES, Sample, op
from test_ranges import CAUSAL, SHAPES, below, i, j, narrowed, resized
from tile_simulator import Array, run_module

from prism.backends.lower import lower
from prism.backends.passes.guards import guard
from prism.backends.protocol import Compiled, arguments
from prism.backends.tile import For, InBounds, Pointwise, Select, TileProgram, Within
from prism.backends.tile_spec import check, check_module
from prism.backends.triton.crosscompile import CompileJob
from prism.backends.triton.emit import emit_module
from prism.errors import IllegalIRError
from prism.program.index import Index
from prism.program.nodes import DType
from prism.sgraph.config import Config
from prism.sgraph.nodes import Loop, SGraph


def same(g: SGraph, inputs: Sequence[Array], binding: Mapping[str, int]) -> Counter[str]:
    """Checks that guards are legal and that the same bits are computed with them; what was executed."""
    module = lower(g)
    wanted, work = run_module(module, inputs, binding)
    changed = module.over(guard)
    check_module(changed)
    got, found = run_module(changed, inputs, binding)
    for tensor, want in wanted.items():
        np.testing.assert_array_equal(got[tensor], want, err_msg=str(dict(binding)))
    assert found["iterations"] == work["iterations"], "no tile is visited twice or left out"
    return found


def loops(p: TileProgram) -> list[For]:
    return [s for s in p.body if isinstance(s, For)]


# What is made of a loop.


def test_a_causal_loop_selects_at_the_diagonal_alone() -> None:
    (p,) = lower(narrowed(samples.attention().sgraph)).over(guard).programs
    (loop,) = loops(p)
    first, *rest = [s for s in loop.body if isinstance(s, Within)]
    # The comparison is made where it is used; the bound of the tile, which loads ask for, is not.
    assert [type(s) for s in first.body] == [Pointwise, Pointwise]
    assert all([type(s) for s in w.body] == [Select] for w in rest)
    assert sum(isinstance(s, InBounds) for s in loop.body) == 1
    assert not any(isinstance(s, Select) for s in loop.body)


def test_nothing_changes_where_loads_alone_are_masked() -> None:
    for build in (samples.matmul, samples.rmsnorm_linear, samples.split_k_matmul):
        module = lower(build().sgraph)
        assert module.over(guard) == module


def test_a_masked_value_may_be_the_first_choice() -> None:
    # where(j > i, -inf, s): it is the negation that holds below the diagonal.
    base = resized(CAUSAL, 96, 96)
    masked = replace(base, predicates=(below(Index.axis(base.rows), Index.axis(base.keys), "lt"),))
    g = masked.sgraph()
    kernel = g.kernels[0]
    old = next(s for s in kernel.statements() if getattr(s, "op", "") == "where")
    new = op(old.dst, "where", old.args[0], float("-inf"), "qk")  # type: ignore[union-attr]
    body = tuple(
        replace(s, body=tuple(new if x is old else x for x in s.body)) if isinstance(s, Loop) else s
        for s in kernel.body
    )
    g = replace(g, kernels=(replace(kernel, body=body),))
    drawn = list(masked.draw().values())
    work = same(g, drawn, {"T_i": 16, "T_j": 16})
    # Every tile is visited, because there is no range; 15 of 36 are below the diagonal.
    assert work["guarded"] * 36 == work["Within"] * 21
    got = run_module(lower(g).over(guard), drawn, {"T_i": 16, "T_j": 16})[0]["y"]
    np.testing.assert_allclose(got.reshape(96, 16), base.reference(*drawn), rtol=1e-5, atol=1e-6)


# The same bits.


@pytest.mark.parametrize("build", SAMPLES)
def test_samples_compute_the_same(build: Callable[[DType], Sample]) -> None:
    sample = build(F32)
    if build in (samples.heads_projection, samples.batched_loop, samples.functions):
        # Rearranged products, and operations that the simulator has not: nothing is to be changed there.
        assert lower(sample.sgraph).over(guard) == lower(sample.sgraph)
        return
    for binding in sample.bindings:
        for symbols in sample.symbols:
            same(narrowed(sample.sgraph), sample.inputs(binding), {**binding, **symbols})


@pytest.mark.parametrize(("predicates", "rows", "keys"), SHAPES)
def test_masks_of_all_kinds_compute_the_same(
    predicates: Sequence[tuple[str, Index, Index]], rows: int, keys: int
) -> None:
    sample = resized(predicates, rows, keys)
    drawn = sample.draw()
    same(sample.sgraph(), list(drawn.values()), {"T_i": 16, "T_j": 16})
    same(narrowed(sample.sgraph()), list(drawn.values()), {"T_i": 8, "T_j": 16})
    same(narrowed(sample.split()), list(drawn.values()), {"T_i": 64, "T_j": 16, "S_j": 3, "T_c": 8})
    got = run_module(lower(narrowed(sample.sgraph())).over(guard), list(drawn.values()), {"T_i": 8, "T_j": 4})[0]["y"]
    np.testing.assert_allclose(got.reshape(rows, -1), sample.reference(**drawn), rtol=1e-4, atol=1e-5)


def aligned(data: st.DataObject) -> None:
    """Checks one mask at one alignment of its diagonal, its tiles, and the ends of its axes."""
    rows, keys = (data.draw(st.integers(1, 40)) for _ in range(2))
    low, high = (data.draw(st.integers(-24, 24)) for _ in range(2))
    scale = data.draw(st.sampled_from([1, 1, 2, 3]))
    upper, least = below(j.scaled(scale), i + high), below(i + low, j.scaled(scale), "lt")
    choices: list[tuple[tuple[str, Index, Index], ...]] = [(upper,), (least,), (upper, least)]
    sample = resized(data.draw(st.sampled_from(choices)), rows, keys)
    binding = {"T_i": 1 << data.draw(st.integers(1, 5)), "T_j": 1 << data.draw(st.integers(1, 5))}
    drawn = list(sample.draw().values())
    if data.draw(st.booleans()):
        same(narrowed(sample.split()), drawn, {**binding, "S_j": data.draw(st.integers(1, 4)), "T_c": 8})
    else:
        g = sample.sgraph()
        same(narrowed(g) if data.draw(st.booleans()) else g, drawn, binding)


@settings(max_examples=12, phases=[Phase.explicit, Phase.generate], deadline=None)
@given(data=st.data())
def test_any_alignment_computes_the_same(data: st.DataObject) -> None:
    aligned(data)


@pytest.mark.slow
@settings(max_examples=examples(100, 300), phases=[Phase.explicit, Phase.generate], deadline=None)
@given(data=st.data())
def test_many_alignments_compute_the_same(data: st.DataObject) -> None:
    aligned(data)


def test_below_the_diagonal_nothing_is_selected() -> None:
    # 8 rows of tiles: the diagonal is 8 of 36 tiles.
    sample = resized(CAUSAL, 128, 128)
    work = same(narrowed(sample.sgraph()), list(sample.draw().values()), {"T_i": 16, "T_j": 16})
    assert work["iterations"] == 36
    assert work["Within"] == 3 * 36
    assert work["guarded"] == 3 * 8


def test_lengths_that_are_known_at_launch() -> None:
    sample = samples.causal_symbolic(F32)
    for seq in (1, 15, 16, 17, 33):
        same(narrowed(sample.sgraph), sample.inputs({"seq": seq}), {"seq": seq, "T_i": 16, "T_j": 8})


# The specification.


def test_the_specification_refuses_a_guard_of_another_kind_of_value() -> None:
    (p,) = lower(narrowed(samples.attention().sgraph)).over(guard).programs
    (loop,) = loops(p)
    first = next(s for s in loop.body if isinstance(s, Within))

    def broken(**changes: object) -> TileProgram:
        new = replace(first, **changes)  # type: ignore[arg-type]
        body = tuple(new if s is first else s for s in loop.body)
        return replace(p, body=tuple(replace(loop, body=body) if s is loop else s for s in p.body))

    check(p)
    for changes, message in (
        ({"src": "mask_j"}, "differ"),
        ({"high": None}, "no bound"),
        ({"index": "offs_j"}, "not defined"),
        ({"body": (*first.body, replace(first, dst="again"))}, "more than compute"),
        ({"value": "nothing"}, "not defined"),
    ):
        with pytest.raises(IllegalIRError, match=message):
            check(broken(**changes))


# What is emitted.


def test_a_guarded_loop_reads_well_and_its_products_overlap(
    compile_job: Callable[[CompileJob], Compiled], tmp_path: Path
) -> None:
    sample = samples.attention(BF16, seq=512, d=64)
    g = narrowed(sample.sgraph)
    source = emit_module(g, formula="f", configs={})
    guarded = "        if start_j >= whole_j:\n            keep = offs_j[None, :] <= offs_i[:, None]\n"
    assert guarded in source.text
    assert source.text.count("for start_j") == 1
    path = tmp_path / "causal.py"
    path.write_text(source.text)
    config = Config({"T_i": 128, "T_j": 64}, {"attention_kernel": 8}, {"attention_kernel": 3})
    done = compile_job(CompileJob(path, "sm_90", config, arguments(g, {})))
    assert not done.error
    (r,) = done.resources
    assert r.spills == 0
    # Three stages of keys and values beside the queries: the loop is pipelined with the branch in it.
    assert r.shared >= 3 * 2 * 64 * 64 * 2


def test_below_the_diagonal_no_score_is_compared_or_selected(code_of: CodeOf) -> None:
    """In PTX what takes the exponentials is one block, and what masks is another, which a branch leaves out."""
    g = narrowed(samples.attention(BF16, seq=512, d=64).sgraph)
    config = Config({"T_i": 128, "T_j": 64}, {"attention_kernel": 8}, {"attention_kernel": 3})
    for version in code_of.versions:
        (code,) = code_of(g, config, version=version)
        blocks = re.split(r"\n(?=\$L__BB\d+_\d+:|\s+(?:@%p\d+ )?bra)", code.ptx)
        (scores,) = (b for b in blocks if "ex2.approx" in b)
        masked = [b for b in blocks if b.count("selp.f32") > 2]
        # A thread has 32 scores of two rows, whose largest may be -inf.
        assert scores.count("ex2.approx") == 32 + 2
        assert scores.count("selp.f32") == 2
        assert [b.count("selp.f32") for b in masked] == [32]
        assert "bra" in masked[0].splitlines()[0]
