"""The order of programs in a grid, and hints for caches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sgraph_samples as samples
import torch
from cpu_batch import Case, run_batch
from hypothesis import given
from hypothesis import strategies as st
from interpreting import InterpreterPool, InterpretJob
from sgraph_samples import BF16, F32, SAMPLES, Sample
from test_ranges import narrowed
from tile_simulator import place, run_module

import prism
from prism.backends.cpu.support import find_compiler
from prism.backends.lower import lower
from prism.backends.passes.sharing import grouped, hinted, share_module
from prism.backends.tile import GridAxis, Groups, Load, Store, TileModule, TileProgram
from prism.backends.tile_spec import check, check_module
from prism.backends.triton.emit import emit_module
from prism.errors import IllegalIRError
from prism.ir.kit import statements
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph


def program(sample: Sample, number: int = 0) -> TileProgram:
    return share_module(lower(sample.sgraph)).programs[number]


def readers(p: TileProgram) -> dict[str, tuple[str, ...] | None]:
    return {s.tensor: s.readers for s in statements(p.body) if isinstance(s, Load)}


# The order.


@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.integers(1, 9), st.integers(0, 2))
def test_every_program_has_a_place_of_its_own(counts: list[int], size: int, first: int) -> None:
    first = min(first, len(counts) - 2)
    grid = tuple(GridAxis(f"g{n}", c) for n, c in enumerate(counts))
    p = replace(lower(samples.matmul().sgraph).programs[0], grid=grid)
    p = replace(p, groups=Groups(f"g{first}", f"g{first + 1}", size))
    everywhere = [tuple(place(p, counts, n)[g.index] for g in grid) for n in range(int(np.prod(counts)))]
    assert sorted(everywhere) == list(np.ndindex(*counts))
    # Programs of a group follow each other, and within it the slow index changes first.
    after = int(np.prod(counts[first + 2 :]))
    pairs = [e[first : first + 2] for e in everywhere[::after][: counts[first] * counts[first + 1]]]
    assert [m // size for m, _ in pairs] == sorted(m // size for m, _ in pairs)
    rows = min(size, counts[first])
    assert pairs[:rows] == [(m, 0) for m in range(rows)]


def test_products_are_grouped_and_what_shares_nothing_is_not() -> None:
    assert program(samples.matmul()).groups == Groups("pid_m", "pid_n", 8)
    assert program(samples.split_k_matmul()).groups == Groups("pid_m", "pid_n", 8)
    for sample in (samples.attention(), samples.add_silu(), samples.layernorm()):
        assert program(sample).groups is None


def test_the_specification_refuses_groups_of_axes_apart() -> None:
    p = program(samples.split_k_matmul())
    check(p)
    for wrong in (Groups("pid_m", "pid_k_part", 8), Groups("pid_n", "pid_m", 8), Groups("pid_m", "pid_n", 0)):
        with pytest.raises(IllegalIRError, match="groups of"):
            check(replace(p, groups=wrong))


SHAPES: tuple[tuple[Sample, Mapping[str, int]], ...] = (
    (samples.matmul(m=40, n=20, k=16), {"T_m": 4, "T_n": 8, "T_k": 16}),
    (samples.split_k_matmul(m=36, n=20, k=32), {"T_m": 4, "T_n": 8, "T_k": 16, "S_k": 2, "T_m_c": 16, "T_n_c": 32}),
)


def test_grouped_programs_compute_the_same() -> None:
    for sample, symbols in SHAPES:
        inputs = sample.inputs({})
        module = lower(sample.sgraph)
        want, _ = run_module(module, inputs, symbols)
        for size in (1, 3, 8, 64):
            launches = tuple(replace(x, programs=tuple(grouped(p, size) for p in x.programs)) for x in module.launches)
            got, _ = run_module(replace(module, launches=launches), inputs, symbols)
            for name, expected in want.items():
                np.testing.assert_array_equal(got[name], expected)


def test_grouped_programs_compute_the_closed_form_in_triton(interpreter: InterpreterPool, tmp_path: Path) -> None:
    for sample, symbols in SHAPES:
        source = emit_module(sample.sgraph, formula="f", configs={})
        assert "group_rows = tl.minimum(" in source.text
        path = tmp_path / f"{source.entry}.py"
        path.write_text(source.text)
        inputs = sample.inputs({})
        config = Config(symbols, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2))
        (got,) = interpreter.run(InterpretJob(path, source.entry, tuple(inputs), ("float32", "float32"), config))
        (want,) = sample.reference(*(a.astype(float) for a in inputs))
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_the_other_backend_takes_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(g: SGraph, *, defer: bool) -> TileModule:
        return share_module(lower(g, defer=defer))

    monkeypatch.setattr("prism.backends.cpu.emit.lower", changed)
    cases = [(s, Case(s.sgraph, symbols, s.inputs({}))) for s, symbols in SHAPES]
    for sample in (samples.attention(), samples.grouped_attention()):
        g = narrowed(sample.sgraph)
        cases += [(sample, Case(g, symbols, sample.inputs({}))) for symbols in sample.symbols]
    for (sample, case), results in zip(cases, run_batch([c for _, c in cases], tmp_path), strict=True):
        wanted = sample.reference(*(np.asarray(a, float) for a in case.inputs))
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=3e-6 * np.abs(want).max())


# Hints.


def test_readers_are_the_axes_that_an_address_does_not_mention() -> None:
    assert readers(program(samples.matmul())) == {"x": ("pid_n",), "w": ("pid_m",)}
    # A part of the keys is a program's own: the parts are shares of the axis.
    found = readers(program(samples.split_attention()))
    assert found["k"] == found["v"] == ("pid_g",)
    assert found["q"] == ("pid_j_part",)
    # Under a causal mask how far a loop goes depends on the rows, which keys it reads does not.
    found = readers(lowered_hints(narrowed(samples.attention().sgraph)))
    assert (found["q"], found["k"]) == ((), ("pid_i",))
    assert readers(program(samples.add_silu())) == {"x": (), "y": ()}


def lowered_hints(g: SGraph) -> TileProgram:
    return share_module(lower(g)).programs[0]


def test_what_a_program_reads_again_has_no_hint() -> None:
    # The loop over the hidden features reads the whole of x in every iteration; two passes read it twice.
    assert readers(program(samples.gated_mlp()))["x"] is None
    body = program(samples.layernorm()).body
    loads = [s.readers for s in statements(body) if isinstance(s, Load) and s.tensor == "x"]
    assert len(loads) > 1
    assert set(loads) == {None}


def test_outputs_are_streamed_and_buffers_are_not() -> None:
    module = share_module(lower(samples.split_k_matmul().sgraph))
    stores = {s.tensor: s.write_only for p in module.programs for s in statements(p.body) if isinstance(s, Store)}
    outputs = {t.name for t in module.outputs}
    assert stores == {name: name in outputs for name in stores}
    assert set(stores.values()) == {True, False}


def test_every_sample_stays_legal() -> None:
    for build in SAMPLES:
        check_module(share_module(lower(build(BF16).sgraph)))


def test_the_specification_refuses_hints_that_cannot_be() -> None:
    p = program(samples.matmul())
    (x, *_) = [s for s in statements(p.body) if isinstance(s, Load)]
    with pytest.raises(IllegalIRError, match="no grid indices"):
        check(hinted_with(p, x, replace(x, readers=("start_k",))))
    store = next(s for s in statements(p.body) if isinstance(s, Store))
    with pytest.raises(IllegalIRError, match="write_only"):
        check(hinted_with(p, store, replace(store, tensor="x", write_only=True)))


def hinted_with(p: TileProgram, old: object, new: object) -> TileProgram:
    def visit(body: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(
            new if s is old else replace(s, body=visit(s.body)) if hasattr(s, "body") else s  # type: ignore[type-var]
            for s in body
        )

    return replace(p, body=visit(p.body))  # type: ignore[arg-type]


def test_hints_are_printed_where_they_are_known_when_compiled() -> None:
    text = emit_module(samples.matmul(F32).sgraph, formula="f", configs={}).text
    assert 'eviction_policy="evict_first" if 24 <= T_n and 8 <= T_k else ""' in text
    # The rows' number is known at launch alone; of a small output nothing is said.
    text = emit_module(samples.symbolic_matmul(F32).sgraph, formula="f", configs={}).text
    assert text.count("eviction_policy") == 1
    large = emit_module(samples.add_silu(F32, m=4096, n=2048).sgraph, formula="f", configs={}).text
    assert large.count('eviction_policy="evict_first"') == 3


def test_what_leaves_a_part_of_a_sector_to_other_programs_says_nothing_to_caches() -> None:
    def columns(x: torch.Tensor) -> torch.Tensor:
        return x.float().square().sum(0).to(x.dtype)

    # 16 elements of two bytes are a sector, or 8 of four: of fewer the next columns' program reads the rest.
    assert hinted_when(columns, (4096, 2048)) == {"16 <= T_d2048", "8 <= T_d2048c"}


def test_what_stores_a_part_of_a_line_says_nothing_to_caches() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((x[..., 1::2].exp(), x[..., ::2]), -1).flatten(-2)

    # Of pairs of two bytes 2 lie side by side for sure: a line has 64, and no tile of an axis of two.
    assert hinted_when(turned, (65536, 128)) >= {"64 <= T_d2"}


def hinted_when(function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> set[str]:
    """When the kernels of a function's sGraphs say to caches that what is moved is not needed again."""
    x = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    with prism.search(prism.trace(function, (x,))) as running:
        texts = [emit_module(p.sgraph, formula="f", configs={}).text for p in running.run().proved]
    return {when for text in texts for when in re.findall('eviction_policy="evict_first" if (.*) else ""', text)}


def test_elements_side_by_side_are_those_of_the_fastest_axes() -> None:
    (p,) = lower(samples.matmul(F32).sgraph).programs
    runs = {s.tensor: s.run for s in statements(hinted(p, {"x": 1, "w": 1}).body) if isinstance(s, (Load, Store))}
    assert {name: str(run) for name, run in runs.items()} == {"x": "T_k", "w": "T_n", "y": "T_n"}


def test_hinted_changes_nothing_else() -> None:
    (p,) = lower(samples.matmul().sgraph).programs
    plain = [
        replace(s, run=1, **({"readers": None} if isinstance(s, Load) else {"write_only": False}))
        if isinstance(s, (Load, Store))
        else s
        for s in statements(hinted(p, {"x": 1, "w": 1}).body)
        if not hasattr(s, "body")
    ]
    assert plain == [s for s in statements(p.body) if not hasattr(s, "body")]
