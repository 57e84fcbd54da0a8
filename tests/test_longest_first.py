"""The order of programs of unequal length: what comes first, that each runs once, and what it is said to cost."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sgraph_samples as samples
from cpu_batch import Case, run_batch
from hypothesis import given
from hypothesis import strategies as st
from interpreting import InterpreterPool, InterpretJob
from sgraph_samples import F32, Sample, sym
from test_ranges import CAUSAL, SHAPES, WINDOW, Masked, narrowed, resized
from tile_simulator import place, run_module

from prism.backends.cpu.emit import emit_module as emit_cpu
from prism.backends.cpu.support import find_compiler
from prism.backends.lower import lower
from prism.backends.passes.folded_split import fold_module
from prism.backends.passes.sharing import share_module
from prism.backends.tile import GridAxis, Groups, Sections, TileModule, TileProgram
from prism.backends.tile_spec import check, check_module
from prism.backends.triton.emit import emit_module
from prism.cost.cpu import CpuKernelModel, cpu_times
from prism.cost.device import device, multicore
from prism.cost.gpu import KernelModel
from prism.cost.roofline import dealt
from prism.errors import IllegalIRError
from prism.sgraph.config import Config
from prism.sgraph.folding import folds
from prism.sgraph.nodes import SGraph
from prism.sgraph.ranges import growing, ordered


def tiles(g: SGraph, sections: int | None = None) -> TileModule:
    """The shared module; its sections of so many programs."""
    module = fold_module(share_module(lower(g)), folds(g).values())
    if sections is None:
        return module

    def smaller(p: TileProgram) -> TileProgram:
        return replace(p, sections=p.sections and replace(p.sections, programs=sections))

    launches = tuple(replace(x, programs=tuple(map(smaller, x.programs))) for x in module.launches)
    return replace(module, launches=launches)


# What is ordered.


def test_programs_grow_along_the_rows_of_a_causal_mask_and_nowhere_else() -> None:
    names = {
        name: [[a.name for a in growing(k)] for k in narrowed(g).kernels]
        for name, g in {
            "causal": Masked(CAUSAL).sgraph(),
            "causal, split": Masked(CAUSAL).split(),
            "window": Masked(WINDOW).sgraph(),
            "backward": resized(SHAPES[5][0], 37, 21).sgraph(),
            "heads": samples.attention().sgraph,
            "no mask": samples.attention(causal=False).sgraph,
            "product": samples.matmul().sgraph,
        }.items()
    }
    assert names == {
        "causal": [["i"]],
        "causal, split": [["i"], []],
        "window": [[]],
        "backward": [[]],
        "heads": [["i"]],
        "no mask": [[]],
        "product": [[]],
    }
    assert ordered(narrowed(Masked(CAUSAL).sgraph()).kernels[0])
    assert not ordered(narrowed(Masked(WINDOW).sgraph()).kernels[0])
    assert ordered(samples.matmul().sgraph.kernels[0])


def test_a_launch_of_equal_programs_is_numbered_as_ever() -> None:
    for sample in (samples.attention(causal=False), samples.matmul(), samples.layernorm()):
        for p in tiles(sample.sgraph).programs:
            assert p.sections is None
            assert not any(g.reversed for g in p.grid)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.integers(0, 3),
    st.integers(1, 40),
)
def test_every_program_has_a_place_and_the_longest_of_a_section_come_first(
    counts: list[int], down: list[bool], longest: int, size: int
) -> None:
    longest = min(longest, len(counts) - 1)
    grid = tuple(GridAxis(f"g{n}", c, down[n] or n == longest) for n, c in enumerate(counts))
    p = replace(lower(samples.matmul().sgraph).programs[0], grid=grid, sections=Sections(f"g{longest}", size))
    everywhere = [tuple(place(p, counts, n)[g.index] for g in grid) for n in range(math.prod(counts))]
    assert sorted(everywhere) == list(np.ndindex(*counts))
    length = counts[longest]
    rows = -(-size // length)
    for start in range(0, len(everywhere), rows * length):
        section = everywhere[start : start + rows * length]
        lengths = [e[longest] for e in section]
        assert lengths == sorted(lengths, reverse=True)
        # Whole: all lengths of some places.
        assert len(section) == length * len({e[:longest] + e[longest + 1 :] for e in section})


def test_axes_in_groups_count_down_as_well() -> None:
    counts = [5, 7]
    grid = (GridAxis("g0", 5, True), GridAxis("g1", 7, True))
    up = replace(lower(samples.matmul().sgraph).programs[0], grid=grid, groups=Groups("g0", "g1", 3))
    plain = replace(up, grid=tuple(replace(g, reversed=False) for g in grid))
    for n in range(35):
        a, b = place(up, counts, n), place(plain, counts, n)
        assert (a["g0"], a["g1"]) == (4 - b["g0"], 6 - b["g1"])


def test_the_specification_refuses_sections_that_cannot_be() -> None:
    (p,) = tiles(narrowed(samples.attention().sgraph)).programs
    check(p)
    assert p.sections == Sections("pid_i", 512)
    for wrong in (Sections("pid_x", 8), Sections("pid_i", 0)):
        with pytest.raises(IllegalIRError, match="sections"):
            check(replace(p, sections=wrong))
    with pytest.raises(IllegalIRError, match="sections"):
        check(replace(p, groups=Groups("pid_h", "pid_i", 8)))
    # Both stages of a folded split have to agree.
    module = tiles(narrowed(Masked(CAUSAL).split()))
    check_module(module)
    other = module.launches[1].programs[0]
    up = replace(other, grid=tuple(replace(g, reversed=False) for g in other.grid))
    with pytest.raises(IllegalIRError, match="different orders"):
        check_module(replace(module, launches=(module.launches[0], replace(module.launches[1], programs=(up,)))))


# What is computed stays the same.


def cases() -> list[tuple[Sample, dict[str, int]]]:
    grouped = samples.grouped_attention(groups=2, per=3, queries=21, seq=40)
    return [
        (samples.attention(F32, heads=3), {}),
        (samples.attention(F32, heads=5, seq=sym("seq")), {"seq": 37}),
        (grouped, {}),
    ]


def binding_of(sample: Sample) -> dict[str, int]:
    return {s.name: {"T_i": 8, "T_j": 16, "T_h": 2}[s.name] for s in sample.sgraph.symbols}


@pytest.mark.parametrize("size", [1, 7, 512])
def test_ordered_programs_compute_the_same(size: int) -> None:
    for sample, lengths in cases():
        g = narrowed(sample.sgraph)
        inputs = sample.inputs(lengths)
        module = tiles(g, size)
        check_module(module)
        (p,) = module.programs
        assert p.sections is not None
        up = tuple(replace(a, reversed=False) for a in p.grid)
        plain = replace(p, grid=up, sections=None)
        binding = {**binding_of(sample), **lengths}
        launch = module.launches[0]
        before = replace(module, launches=(replace(launch, programs=(plain,)),))
        want, _ = run_module(before, inputs, binding)
        got, _ = run_module(module, inputs, binding)
        for name, expected in want.items():
            np.testing.assert_array_equal(got[name], expected)


def test_a_folded_split_combines_the_tile_that_it_counted() -> None:
    sample = Masked(CAUSAL)
    g = narrowed(sample.split())
    module = tiles(g)
    assert [[a.reversed for a in p.grid] for p in module.programs] == [[True, False], [True]]
    drawn = sample.draw()
    binding = {"T_i": 8, "T_j": 4, "S_j": 3, "T_c": 8}
    for order in (range, lambda n: np.random.default_rng(0).permutation(n)):
        got, _ = run_module(module, list(drawn.values()), binding, set(folds(g)), order)
        np.testing.assert_allclose(got["y"].reshape(37, 16), sample.reference(**drawn), rtol=1e-5, atol=1e-6)


def test_emitted_kernels_compute_the_closed_form(interpreter: InterpreterPool, tmp_path: Path) -> None:
    jobs: list[InterpretJob] = []
    wanted: list[np.ndarray] = []
    for n, (sample, lengths) in enumerate(cases()):
        source = emit_module(narrowed(sample.sgraph), formula="f", configs={})
        # Sections of 512 programs hold all of so small a grid: three sections besides, of which the last is short.
        for m, text in enumerate((source.text, source.text.replace("tl.cdiv(512, ", "tl.cdiv(10, "))):
            path = tmp_path / f"case{n}_{m}.py"
            path.write_text(text)
            config = Config(binding_of(sample), dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2))
            inputs = tuple(sample.inputs(lengths))
            jobs.append(InterpretJob(path, source.entry, inputs, ("float32",) * len(inputs), config))
            wanted.append(sample.reference(*(np.asarray(a, float) for a in inputs))[0])
        assert text != source.text
    drawn = Masked(CAUSAL).draw()
    source = emit_module(narrowed(Masked(CAUSAL).split()), formula="f", configs={})
    assert "pid_i = tl.cdiv(37, T_i) - 1 - pid" in source.text
    path = tmp_path / "folded.py"
    path.write_text(source.text)
    kernels = dict.fromkeys(source.kernels, 4)
    symbols = {"T_i": 8, "T_j": 16, "S_j": 3, "T_c": 8}
    for folded in (frozenset[str](), frozenset({"masked_combine"})):
        config = Config(symbols, kernels, kernels).having(folded=folded)
        jobs.append(InterpretJob(path, source.entry, tuple(drawn.values()), ("float32",) * 3, config))
        wanted.append(Masked(CAUSAL).reference(**drawn))
    for result, want in zip(interpreter.run_many(jobs), wanted, strict=True):
        assert not result.error
        np.testing.assert_allclose(result.outputs[0], want, rtol=2e-5, atol=2e-6)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_the_cpu_counts_down_and_takes_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [(s, lengths, Case(narrowed(s.sgraph), binding_of(s), s.inputs(lengths))) for s, lengths in cases()]
    (text,) = (t for n, t in emit_cpu(made[0][2].sgraph).extra.items() if n == "attention_kernel.cpp")
    assert "const int64_t pid_i = v_cdiv(37, T_i) - 1 - pid % v_cdiv(37, T_i);" in text
    assert "section" not in text
    found = run_batch([c for _, _, c in made], tmp_path / "own")
    monkeypatch.setattr("prism.backends.cpu.emit.lower", lambda g, defer: tiles(g, 10))
    found += run_batch([c for _, _, c in made], tmp_path / "sections")
    for (sample, _, case), results in zip(made * 2, found, strict=True):
        (want,) = sample.reference(*(np.asarray(a, float) for a in case.inputs))
        np.testing.assert_allclose(results[0], want, rtol=0, atol=3e-6 * np.abs(want).max())


# What it costs.


def last_is_done(lengths: Sequence[float], processors: int) -> float:
    """When each processor takes the next program as it is done with one."""
    free = [0.0] * processors
    for length in lengths:
        heapq.heappush(free, heapq.heappop(free) + length)
    return max(free)


@pytest.mark.parametrize(("rows", "heads"), [(256, 8), (64, 8), (32, 32), (32, 8), (16, 8), (64, 1), (512, 8)])
@pytest.mark.parametrize("least", [0.02, 0.5, 1.0])
@pytest.mark.parametrize("processors", [132, 264])
def test_the_model_is_done_when_a_schedule_is(rows: int, heads: int, least: float, processors: int) -> None:
    lengths = [least + (1 - least) * (n + 1) / rows for n in range(rows)]
    average = sum(lengths) / rows
    p = lower(samples.matmul().sgraph).programs[0]
    p = replace(p, grid=(GridAxis("h", heads), GridAxis("i", rows, True)), sections=Sections("i", 512))
    places = [place(p, [heads, rows], n) for n in range(rows * heads)]
    first = last_is_done([lengths[at["i"]] for at in places], processors)
    rising = last_is_done(lengths * heads, processors)
    said = [average * float(dealt(rows * heads, processors, 1.0 / average, way)) for way in (True, False)]
    assert said[0] == pytest.approx(first, rel=0.03)
    assert said[1] == pytest.approx(rising, rel=0.11)
    # Never later than in ascending order, by the schedule.
    assert first <= rising + 1e-9


def test_equal_programs_come_in_whole_rounds() -> None:
    programs = np.array([1, 131, 132, 133, 264, 1000])
    for way in (True, False):
        np.testing.assert_array_equal(dealt(programs, 132, 1.0, way), np.maximum(np.ceil(programs / 132), 1))


def test_the_order_pays_where_long_programs_would_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # A causal square of 4096 rows and 8 heads on 132 multiprocessors: 512 programs, four of average length for each.
    g = narrowed(samples.attention(F32, heads=8, seq=4096, d=64).sgraph)
    model = KernelModel(g.kernels[0], g, device("sm_90"), {})
    binding = {"T_i": 64, "T_j": 64}
    first = model.times(binding, 4, 2)
    monkeypatch.setattr("prism.cost.gpu.ordered", lambda kernel: False)
    any_way = model.times(binding, 4, 2)
    # Four and nearly two more, of which two thirds are done alone.
    assert float(any_way.compute) / float(first.compute) == pytest.approx(1 + 1.29 / 3.88, rel=0.05)
    assert float(any_way.latency) > float(first.latency)
    # 32 heads: what two waves of programs have in common is one section's.
    order = [(axis, n) for (axis, _), n in zip(model.grid, (32, 64), strict=True)]
    assert {a.name: int(n) for a, n in model._covered(order, 264)} == {"h": 8, "i": 33}


def test_a_cpu_core_is_done_after_the_longest_program() -> None:
    g = narrowed(samples.attention(F32, heads=1, seq=512, d=64).sgraph)
    cpu = multicore("a CPU", cores=4, vector_bytes=32, l1_bytes=1 << 15, l2_bytes=1 << 19, llc_bytes=1 << 24)
    model = CpuKernelModel(g.kernels[0], g, cpu, {})
    assert float(model.skew({"T_i": 64, "T_j": 64})) == pytest.approx(8 / 4.5)
    # Two programs, of 4 and of 8 tiles: four cores are no faster than two, and wait for the second.
    work = float(model.parts({"T_i": 256, "T_j": 64})[1])
    assert float(cpu_times((model,), {"T_i": 256, "T_j": 64}).compute) == pytest.approx(work * 8 / 12)
