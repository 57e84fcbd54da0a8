"""Second stages of splits, done by the last program of each tile: what qualifies, that it is right, what it costs."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sgraph_samples as samples
import sgraph_small as small
import torch
from compiled_code import CodeOf
from finalist import open_to
from interpreting import Interpreted, InterpreterPool, InterpretJob
from quick import run_slow, slow_but
from sgraph_samples import BF16, EPS, F16, F32, SUM, Sample, at, op, sym
from short_calls import config_of, cost_s
from tile_simulator import run_module

import prism
from prism.backends.cpu.emit import emit_module as emit_cpp
from prism.backends.loading import load_module
from prism.backends.lower import lower
from prism.backends.passes.folded_split import fold_module
from prism.backends.passes.sharing import share_module
from prism.backends.tile import TileFold, TileModule
from prism.backends.tile_spec import check_module
from prism.backends.triton.emit import emit_module
from prism.bench.prepare import module_facts
from prism.cost.device import device
from prism.cost.model import Model
from prism.errors import BackendError, IllegalIRError
from prism.instantiate.gate.check import KernelRunner
from prism.instantiate.gate.check import check_module as check_numbers
from prism.instantiate.gate.plan import plan_samples
from prism.instantiate.proposals import Point, Proposer
from prism.instantiate.space import Space
from prism.program import build
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Program, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.folding import bound, folds
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    SGraph,
    Split,
    Store,
    TileReduce,
    Whole,
    part_axis,
)

pytestmark = pytest.mark.usefixtures("small_gate")

H200 = device("sm_90")


def split_norm_linear(dtype: DType = F32, m: int = 20, d: int = 100, n: int = 24) -> Sample:
    """RMSNorm and a linear layer in one split pass: the sum of squares lacks the columns' axis."""
    am, ad, an = Axis("m", m), Axis("d", d), Axis("n", n)
    parts = sym("S_d")
    part = part_axis(ad, parts)
    first = Kernel(
        "norm_kernel",
        ((am, Grid(sym("T_m"))), (an, Grid(sym("T_n"))), (ad, Split(parts, sym("T_d")))),
        (
            Loop(
                ad,
                (
                    Load("x1", "x", at(am, ad)),
                    Load("w1", "w", at(ad, an)),
                    Contract("p", ad, "x1", "w1"),
                    Accumulate("acc", SUM, "p"),
                    op("sq", "mul", "x1", "x1"),
                    TileReduce("q", SUM, ad, "sq"),
                    Accumulate("squares", SUM, "q"),
                ),
            ),
            Store("part_sq", at(part, am), "squares"),
            Store("part_acc", at(part, am, an), "acc"),
        ),
    )
    second = Kernel(
        "norm_combine",
        ((am, Grid(sym("T_m_c"))), (an, Grid(sym("T_n_c"))), (part, Whole())),
        (
            Load("s1", "part_sq", at(part, am)),
            TileReduce("s2", SUM, part, "s1"),
            Load("a1", "part_acc", at(part, am, an)),
            TileReduce("a2", SUM, part, "a1"),
            op("mean", "mul", "s2", 1.0 / d),
            op("shifted", "add", "mean", EPS),
            op("root", "sqrt", "shifted"),
            op("inv", "recip", "root"),
            op("out", "mul", "a2", "inv"),
            Store("y", at(am, an), "out"),
        ),
    )
    sgraph = SGraph(
        "split_norm_linear",
        (Tensor("x", (m, d), dtype), Tensor("w", (d, n), dtype)),
        (Tensor("part_sq", (parts, m), F32), Tensor("part_acc", (parts, m, n), F32)),
        (Tensor("y", (m, n), dtype),),
        (first, second),
    )

    def reference(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, ...]:
        return (x @ w / np.sqrt((x * x).mean(-1, keepdims=True) + EPS),)

    tiles = tuple({"T_m": 16, "T_n": 8, "T_d": 16, "S_d": s, "T_m_c": 4, "T_n_c": 16} for s in (2, 4))
    return Sample(sgraph, reference, ({},), tiles)


def grouped_decode(dtype: DType = F32, heads: int = 3, group: int = 2, seq: int = 45, d: int = 16) -> Sample:
    """split_attention for each of some heads, one a program; scores without a mask."""
    h, g, j, a, e = Axis("h", heads), Axis("g", group), Axis("j", seq), Axis("a", d), Axis("e", d)
    one = samples.split_attention(dtype, seq, group, d).sgraph
    parts = sym("S_j")
    part = part_axis(j, parts)
    loop = next(s for s in one.kernels[0].body if isinstance(s, Loop))
    inner = tuple(s for s in loop.body if not (isinstance(s, Load) and s.tensor == "mask"))
    changed: dict[str, tuple[Axis, ...]] = {"k1": (h, j, a), "v1": (h, j, e), "q1": (h, g, a)}
    inner = tuple(dataclasses.replace(s, index=at(*changed[s.dst])) if isinstance(s, Load) else s for s in inner)
    inner = tuple(op("s", "mul", "qk", 0.25) if getattr(s, "dst", "") == "s" else s for s in inner)
    stores = {"part_m": (part, h, g), "part_l": (part, h, g), "part_o": (part, h, g, e)}
    first = Kernel(
        "decode_kernel",
        ((h, Grid(1)), (g, Grid(sym("T_g"))), (j, Split(parts, sym("T_j"))), (a, Whole()), (e, Whole())),
        (
            Load("q1", "q", at(h, g, a)),
            Loop(j, inner),
            *(Store(t, at(*axes), t.removeprefix("part_")) for t, axes in stores.items()),
        ),
    )
    body = tuple(
        dataclasses.replace(s, index=at(*stores[s.tensor])) if isinstance(s, Load) else s for s in one.kernels[1].body
    )
    second = Kernel(
        "decode_combine",
        ((h, Grid(1)), (g, Grid(sym("T_g_c"))), (part, Whole()), (e, Whole())),
        (*body[:-1], Store("y", at(h, g, e), "out")),
    )
    shapes = {"q": (heads, group, d), "k": (heads, seq, d), "v": (heads, seq, d)}
    sgraph = SGraph(
        "grouped_decode",
        tuple(Tensor(n, s, dtype) for n, s in shapes.items()),
        tuple(Tensor(t, tuple(x.extent for x in axes), F32) for t, axes in stores.items()),
        (Tensor("y", (heads, group, d), dtype),),
        (first, second),
    )

    def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
        return (samples.softmax(q @ k.swapaxes(-1, -2) * 0.25) @ v,)

    tiles = tuple({"T_g": 2, "T_j": 8, "S_j": s, "T_g_c": 1} for s in (2, 4))
    return Sample(sgraph, reference, ({},), tiles)


BUILDS: tuple[Callable[[DType], Sample], ...] = (
    samples.split_k_matmul,
    samples.split_attention,
    split_norm_linear,
    grouped_decode,
)


def config_of_sample(g: SGraph, symbols: dict[str, int] | Any, *folded: str) -> Config:
    names = [x.name for x in g.launches if x.name not in folded]
    return Config(dict(symbols), dict.fromkeys(names, 4), dict.fromkeys(names, 2)).having(folded=folded)


def folded_config(g: SGraph, symbols: Any) -> Config:
    names = [x.name for x in g.launches]
    combines = [n for n in names if n in folds(g)]
    kept = [n for n in names if n not in combines]
    return Config(bound(g, symbols, combines), dict.fromkeys(kept, 4), dict.fromkeys(kept, 2)).having(
        folded=frozenset(combines)
    )


# What qualifies.


@pytest.mark.parametrize("build", BUILDS)
def test_a_split_and_its_second_stage_are_recognised(build: Callable[[DType], Sample]) -> None:
    g = build(F32).sgraph
    spec.check(g)
    first, second = g.kernels
    (fold,) = folds(g).values()
    assert (fold.split, fold.combine) == (first.name, second.name)
    own = {f"T_{a}_c" for a in "mng"} & {s.name for s in g.symbols}
    assert fold.bind({"T_m": 8, "T_n": 4, "T_g": 2}) == {n: {"T_m_c": 8, "T_n_c": 4, "T_g_c": 2}[n] for n in own}


def test_an_axis_of_one_element_a_program_is_a_tile_of_one() -> None:
    g = samples.split_k_matmul().sgraph
    first, second = g.kernels
    first = dataclasses.replace(first, roles=((M, Grid(1)), *first.roles[1:]))
    g = dataclasses.replace(g, kernels=(first, second))
    assert folds(g)["combine_kernel"].bind({"T_n": 4}) == {"T_m_c": 1, "T_n_c": 4}


def changed(**kernels: Any) -> SGraph:
    """split_k_matmul with other kernels."""
    g = samples.split_k_matmul().sgraph
    first, second = (kernels[w](k) if w in kernels else k for w, k in zip(("first", "second"), g.kernels, strict=True))
    return dataclasses.replace(g, kernels=(first, second, *kernels.get("more", ())))


def with_roles(*roles: Any) -> Callable[[Kernel], Kernel]:
    def change(k: Kernel) -> Kernel:
        axes = [a for a, _ in k.roles]
        made = tuple((axes[r[0]], r[1]) if isinstance(r, tuple) else k.roles[r] for r in roles)
        return dataclasses.replace(k, roles=made)

    return change


def reading(index: tuple[Index, ...]) -> Callable[[Kernel], Kernel]:
    return lambda k: dataclasses.replace(k, body=(Load("p1", "partial", index), *k.body[1:]))


def looped(k: Kernel) -> Kernel:
    part = k.roles[-1][0]
    body = (
        Loop(part, (k.body[0], TileReduce("y0", SUM, part, "p1"), Accumulate("y1", SUM, "y0"))),
        k.body[-1],
    )
    return dataclasses.replace(k, body=body, roles=(*k.roles[:-1], (part, LoopRole(sym("T_p")))))


M, N, K = (a for a, _ in samples.split_k_matmul().sgraph.kernels[0].roles)
P = part_axis(K, sym("S_k"))
OTHER = Kernel(
    "other_kernel",
    ((M, Grid(sym("T_m_o"))), (N, Grid(sym("T_n_o"))), (P, Whole())),
    (Load("p1", "partial", at(P, M, N)), TileReduce("z1", SUM, P, "p1"), Store("z", at(M, N), "z1")),
)
NOT: dict[str, SGraph] = {
    "no split": samples.matmul().sgraph,
    "a loop over the parts": changed(second=looped),
    "the grid the other way round": changed(second=with_roles(1, 0, 2)),
    "an axis of the grid in one tile": changed(second=with_roles((0, Whole()), 1, 2)),
    "whole tiles to single rows": changed(second=with_roles((0, Grid(1)), 1, 2)),
    "one symbol for two tiles": changed(second=with_roles((0, Grid(sym("T_c"))), (1, Grid(sym("T_c"))), 2)),
    "read elsewhere": changed(second=reading((Index.axis(P), Index.axis(M), Index.axis(N) + 1))),
    "read by another kernel": changed(more=(OTHER,)),
    "of a group": dataclasses.replace(
        changed(more=(dataclasses.replace(OTHER, body=(Load("x1", "x", at(M, K)),)),)),
        together=(("combine_kernel", "other_kernel"),),
    ),
}


@pytest.mark.parametrize("name", NOT)
def test_nothing_else_is(name: str) -> None:
    assert folds(NOT[name]) == {}


def test_what_is_stored_after_the_split_cannot_be_read_by_it() -> None:
    g = samples.split_k_matmul().sgraph
    first, second = g.kernels
    bias = Kernel(
        "bias_kernel",
        ((N, Grid(sym("T_b"))),),
        (Load("r1", "raw", at(N)), op("b1", "exp", "r1"), Store("b", at(N), "b1")),
    )
    late = dataclasses.replace(
        second,
        body=(*second.body[:2], Load("b1", "b", at(N)), op("t", "add", "y1", "b1"), Store("y", at(M, N), "t")),
    )
    tensors = (*g.inputs, Tensor("raw", (24,), F32))
    buffers = (*g.buffers, Tensor("b", (24,), F32))
    for kernels, count in (((first, bias, late), 0), ((bias, first, late), 1)):
        made = dataclasses.replace(g, inputs=tensors, buffers=buffers, kernels=kernels)
        spec.check(made)
        assert len(folds(made)) == count


# The tile programs: in any order of programs, what is read has been stored.


def tiles_of(g: SGraph) -> TileModule:
    return fold_module(share_module(lower(g)), folds(g).values())


@pytest.mark.parametrize("build", [samples.split_k_matmul, split_norm_linear])
def test_folded_or_not_and_in_any_order_the_bits_are_the_same(build: Callable[[DType], Sample]) -> None:
    sample = build(F32)
    module = tiles_of(sample.sgraph)
    check_module(module)
    inputs = sample.inputs({})
    (want,) = sample.reference(*(np.asarray(a, np.float64) for a in inputs))
    for symbols in sample.symbols:
        binding = {**symbols, **bound(sample.sgraph, symbols, list(folds(sample.sgraph)))}
        before, _ = run_module(share_module(lower(sample.sgraph)), inputs, symbols)
        apart, _ = run_module(module, inputs, symbols)
        alike, _ = run_module(module, inputs, binding)
        np.testing.assert_array_equal(apart["y"], before["y"])
        np.testing.assert_allclose(apart["y"].reshape(want.shape), want, atol=1e-5 * np.abs(want).max())
        for seed in range(3):
            rng = np.random.default_rng(seed)
            one, _ = run_module(module, inputs, symbols, set(folds(sample.sgraph)), rng.permutation)
            np.testing.assert_array_equal(one["y"], alike["y"])


def test_a_result_that_lacks_an_axis_of_the_grid_is_kept_by_every_program() -> None:
    g = split_norm_linear().sgraph
    module = tiles_of(g)
    shapes = {b.name: b.shape for b in module.buffers}
    assert len(shapes["part_sq"]) == 3
    assert shapes["part_acc"] == g.tensor("part_acc").shape
    text = emit_module(g, formula="f", configs={}).text
    assert re.search(r"slot_n = \(?pid_n \* T_n_c\)? // T_n\n", text)
    assert "first_n" not in text
    assert "part_sq = torch.empty((-(-24 // T_n), S_d, 20)" in text
    # Lowered for a backend that does not fold, one program stores for all.
    assert any("first_n" in str(s) for s in lower(g).programs[0].body)


def test_groups_are_numbered_alike() -> None:
    module = tiles_of(samples.split_k_matmul().sgraph)
    split, combine = module.programs
    assert split.groups is not None
    assert combine.groups is not None
    assert split.groups.size == combine.groups.size
    broken = dataclasses.replace(combine, groups=None)
    launches = (module.launches[0], dataclasses.replace(module.launches[1], programs=(broken,)))
    with pytest.raises(IllegalIRError, match="different orders"):
        check_module(dataclasses.replace(module, launches=launches))


def test_the_specification_refuses_what_would_race() -> None:
    g = split_norm_linear().sgraph
    unfit = share_module(lower(g))
    (fold,) = tiles_of(g).folds
    alike = dataclasses.replace(unfit.programs[1], groups=unfit.programs[0].groups)
    launches = (unfit.launches[0], dataclasses.replace(unfit.launches[1], programs=(alike,)))
    with pytest.raises(IllegalIRError, match="part_sq does not mention pid_n"):
        check_module(dataclasses.replace(unfit, launches=launches, folds=(fold,)))
    module = tiles_of(samples.split_k_matmul().sgraph)
    (fold,) = module.folds
    with pytest.raises(IllegalIRError, match="more than the parts"):
        check_module(dataclasses.replace(module, folds=(dataclasses.replace(fold, sizes=fold.sizes[:1]),)))
    with pytest.raises(IllegalIRError, match="stands for"):
        check_module(dataclasses.replace(module, folds=(TileFold(fold.split, fold.combine, (("T_m_c", "T"),)),)))


# The emitted kernels, in the interpreter.

TWICE = """

def twice(*inputs, config=None):
    {entry}(*(t if t.dtype == torch.bool else t * 2 for t in inputs), config=config)
    found = {entry}(*inputs, config=config)
    (counts,) = _ARRIVALS.values()
    return found, counts.clone()
"""


def run_twice(
    interpreter: InterpreterPool, folder: Path, sample: Sample, symbols: Any, edit: Callable[[str], str] = str
) -> Interpreted:
    g = sample.sgraph
    source = emit_module(g, formula="a formula", configs={})
    path = folder / f"{g.name}.py"
    path.write_text(edit(source.text) + TWICE.format(entry=source.entry))
    dtypes = tuple(t.dtype.value for t in g.inputs)
    config = folded_config(g, symbols)
    return interpreter.run_many([InterpretJob(path, "twice", tuple(sample.inputs({})), dtypes, config)])[0]


@pytest.mark.parametrize("dtype", [F32, pytest.param(F16, marks=pytest.mark.slow), BF16])
@pytest.mark.parametrize("build", BUILDS)
def test_a_second_call_finds_the_counts_as_the_first_did(
    interpreter: InterpreterPool, tmp_path: Path, build: Callable[[DType], Sample], dtype: DType
) -> None:
    sample = build(dtype)
    (want,) = sample.reference(*(np.asarray(a, np.float64) for a in sample.inputs({})))
    for symbols in sample.symbols if dtype is F32 else sample.symbols[:1]:
        result = run_twice(interpreter, tmp_path, sample, symbols)
        assert not result.error
        got, counts = result.outputs
        assert (np.isnan(got) == np.isnan(want)).all()
        tolerance = {F32: 2e-6, F16: 2e-3, BF16: 1.5e-2}[dtype] * np.nanmax(np.abs(want))
        np.testing.assert_allclose(got, want, rtol=0, atol=4 * tolerance)
        assert counts.size > 0
        assert (counts == 0).all()


def test_counts_that_stay_spoil_the_second_call(interpreter: InterpreterPool, tmp_path: Path) -> None:
    def without_reset(text: str) -> str:
        made = re.sub(r"\n +tl\.store\(arrivals_ptr \+ tile, 0\)", "", text)
        assert made != text
        return made

    sample = samples.split_k_matmul()
    result = run_twice(interpreter, tmp_path, sample, sample.symbols[0], without_reset)
    assert not result.error
    got, counts = result.outputs
    assert np.isnan(got).all()
    assert (counts == 4).all()


def test_one_launch_where_it_is_folded_and_two_where_not(tmp_path: Path) -> None:
    sample = samples.split_k_matmul()
    g = sample.sgraph
    path = tmp_path / "module.py"
    path.write_text(emit_module(g, formula="f", configs={}).text)
    module = load_module(path, apart=True)
    given = [torch.empty(t.shape, device="meta") for t in (*g.inputs, *g.outputs)]
    symbols = sample.symbols[0]
    (one,) = module.launches(*given, config=folded_config(g, symbols).encode())
    assert one[0].__name__ == "split_kernel"
    assert one[1] == (2 * 2 * 2,)
    assert one[3]["COMBINE"] is True
    assert [a.dtype for a in one[2] if a is not None][-1] == torch.int32
    first, second = module.launches(*given, config=config_of_sample(g, symbols).encode())
    assert first[0].__name__ == "split_kernel"
    assert first[3]["COMBINE"] is False
    assert first[2][-1] is None
    assert second[0].__name__ == "combine_kernel"
    assert module._ARRIVALS.keys() == {(0, False, torch.device("meta"))}


def test_modules_say_what_is_folded() -> None:
    g = samples.split_k_matmul().sgraph
    config = folded_config(g, samples.split_k_matmul().symbols[0])
    text = emit_module(g, formula="f", configs={"sm_90": [config]}).text
    assert module_facts(text)[0] == [config.encode()]
    assert max(map(len, text.splitlines())) <= 120
    wrong = config.having(folded=frozenset({"split_kernel"}))
    with pytest.raises(BackendError, match="split_kernel cannot be folded"):
        emit_module(g, formula="f", configs={"sm_90": [wrong]})
    assert "arrivals" not in emit_module(samples.matmul().sgraph, formula="f", configs={}).text.lower()
    # C++ has second stages of its own.
    one, other = (emit_cpp(g, configs={"cpu": [c]}) for c in (config, config.having(folded=())))
    assert one == other


# Graphs: what launches count in is theirs.


class Cuda:
    """The part of torch.cuda that is used."""

    def __init__(self) -> None:
        self.now = types.SimpleNamespace(cuda_stream=7, device=torch.device("meta"))
        self.capturing = False

    def current_stream(self, _: Any) -> Any:
        return self.now

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


class Place:
    """A device that says that it is a GPU."""

    type = "cuda"


def test_a_graph_has_counts_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(emit_module(samples.split_k_matmul().sgraph, formula="f", configs={}).text)
    module = load_module(path, apart=True)
    cuda, place = Cuda(), Place()
    made: list[Any] = []

    def zeros(count: int, **_: Any) -> Any:
        made.append(torch.zeros(count, dtype=torch.int32))
        return made[-1]

    version = types.SimpleNamespace(hip=None)
    vars(module)["torch"] = types.SimpleNamespace(cuda=cuda, zeros=zeros, int32=torch.int32, version=version)
    side = types.SimpleNamespace(cuda_stream=7, device=place)
    eager = module._arrivals(4, place)
    assert module._arrivals(3, place) is eager
    cuda.now = types.SimpleNamespace(cuda_stream=8)
    assert module._arrivals(4, place) is not eager
    # Captured by somebody else: the graph zeroes what it counts in, and nobody else gets it.
    cuda.now, cuda.capturing = side, True
    foreign = module._arrivals(4, place)
    assert foreign is not eager
    assert module._arrivals(4, place) is not foreign
    count = len(made)
    with module.GraphArrivals(side) as held:
        own = module._arrivals(4, place)
        assert own is eager
        assert own is held.held
    assert len(made) == count
    # Its graph is captured: neither the stream's next calls nor its next capture share with it.
    assert module._arrivals(4, place) is not own
    cuda.capturing = False
    assert module._arrivals(4, place) is not own
    version.hip = "6.4"
    with pytest.raises(RuntimeError, match="NVIDIA"):
        module._arrivals(4, place)
    text = path.read_text()
    assert "with GraphArrivals(side) as graph.arrivals, torch.cuda.graph(graph, stream=side):" in text


# What compilers make of it.

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


@pytest.fixture(scope="module")
def assembly(code_of: CodeOf) -> dict[str, dict[str, str]]:
    """For each sample and target, the assembly of the folded kernel."""
    cases: list[tuple[Sample, tuple[str, ...]]] = [
        (samples.split_k_matmul(BF16), TARGETS if run_slow() else TARGETS[1::2])
    ]
    if run_slow():
        cases.append((grouped_decode(BF16), TARGETS[1:2]))
    found: dict[str, dict[str, str]] = {}
    for sample, targets in cases:
        config = folded_config(sample.sgraph, {**sample.symbols[0], "T_j": 16, "T_m": 16})
        for target in targets:
            (code,) = code_of(sample.sgraph, config, target)
            found.setdefault(sample.sgraph.name, {})[target] = code.amdgcn or code.ptx
    return found


@pytest.mark.parametrize(
    ("name", "target"),
    slow_but(
        [("split_k_matmul", TARGETS[1])],
        [*(("split_k_matmul", t) for t in TARGETS[:3]), ("grouped_decode", TARGETS[1])],
    ),
)
def test_nvidia_stores_then_meets_then_counts_then_meets_again(
    assembly: dict[str, dict[str, str]], name: str, target: str
) -> None:
    lines = [line.strip() for line in assembly[name][target].splitlines()]
    (count,) = (n for n, line in enumerate(lines) if ".add.u32" in line or (".add.s32" in line and "atom" in line))
    assert re.search(r"atom\.global\.gpu\.acq_rel\.add\.[us]32|atom\.acq_rel\.gpu\.global\.add\.[us]32", lines[count])
    stores = [n for n, line in enumerate(lines) if re.search(r"\bst\.global", line)]
    loads = [n for n, line in enumerate(lines) if re.search(r"\bld\.global", line)]
    meets = [n for n, line in enumerate(lines) if re.search(r"\bbar(rier)?\.sync", line)]
    before, after = [n for n in stores if n < count], [n for n in loads if n > count]
    assert before
    assert after
    assert any(before[-1] < n < count for n in meets)
    assert any(count < n < after[0] for n in meets)
    # What other programs stored is not read through the cache for what never changes.
    assert not any("ld.global.nc" in lines[n] for n in after)


def test_amd_compiles_but_its_barrier_waits_for_no_store(assembly: dict[str, dict[str, str]]) -> None:
    lines = [line.strip() for line in assembly["split_k_matmul"]["gfx942"].splitlines()]
    (count,) = (n for n, line in enumerate(lines) if "atomic_add" in line)
    store = max(n for n, line in enumerate(lines[:count]) if "_store_" in line)
    between = lines[store + 1 : count]
    barrier = between.index("s_barrier")
    assert any("buffer_wbl2" in line for line in between[barrier:])
    assert any("buffer_inv" in line for line in lines[count:])
    # Why modules refuse to fold there. When this fails, a Triton that waits is here: think again (decision 30).
    assert not any("vmcnt(0)" in line for line in between[:barrier])


# Configurations, spaces, estimates.


def decode(heads: int = 8, group: int = 4, seq: int = 4096, d: int = 128) -> SGraph:
    return grouped_decode(BF16, heads, group, seq, d).sgraph


def test_a_configuration_goes_through_the_lock_and_its_key_tells() -> None:
    config = folded_config(decode(), {"T_g": 4, "T_j": 64, "S_j": 16, "T_g_c": 1})
    assert config_of(config.flat()) == config
    assert config_of(json.loads(json.dumps(config.flat()))) == config
    assert config.key() != config.having(folded=()).key()
    assert "folded" not in config.having(folded=()).encode()
    assert config.encode()["folded"] == ["decode_combine"]


def test_a_space_has_both_and_folded_points_have_the_splits_tiles() -> None:
    g = decode(group=2, seq=64)
    space, model = Space(g, H200, {}), Model(g, H200, {})
    assert open_to(space, "folded") == ("decode_combine",)
    found = list(space.configs())
    assert len({c.key() for c in found}) == len(found) == space.size
    folded = [c for c in found if c.launches("folded")]
    assert 0 < len(folded) < len(found)
    for c in folded[::7]:
        assert space.feasible(c)
        assert c.symbols["T_g_c"] == c.symbols["T_g"]
        assert set(c.warps) == set(c.stages) == {"decode_kernel"}
        assert set(c.symbols) == {s.name for s in g.symbols}
        other = dataclasses.replace(c, symbols={**c.symbols, "T_g_c": 2 * c.symbols["T_g"]})
        assert not space.feasible(other)
    ranked = space.points_ranked(model, 20)
    everything = sorted(model.seconds(c) for c in found)
    assert [e.seconds for _, e in ranked] == pytest.approx(everything[:20], rel=1e-9)


def test_few_of_many_assignments_of_shared_symbols_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    for g in (decode(), small.split_k(256, 256, 4096)):
        space, model = Space(g, H200, {}), Model(g, H200, {})
        for limit, minor in ((1, 0.0), (20, 0.0), (20, 0.3)):
            each = space.points_ranked(model, limit, minor)
            with monkeypatch.context() as many:
                many.setattr("prism.instantiate.space.FEW", 0)
                assert space.points_ranked(model, limit, minor) == each


def test_a_second_stage_that_the_splits_tile_has_no_room_for_is_not_folded() -> None:
    space = Space(small.split_k(256, 256, 4096), H200, {})
    table = space.launches[0]
    folded = table.column("folded.combine") == 1
    assert 0 < folded.sum() < (~folded).sum()
    # All parts of a tile are in registers at once.
    held = table.column("T_m") * table.column("T_n") * table.column("S_k")
    assert held[folded].max() <= H200.multiprocessor.registers < held[~folded].max()
    big = Config({"T_m": 128, "T_n": 128, "T_k": 64, "S_k": 8, "T_m2": 128, "T_n2": 128}, {"parts": 8}, {"parts": 2})
    assert not space.feasible(big.having(folded=frozenset({"combine"})))


def test_the_model_folds_where_launches_count() -> None:
    g = decode()
    (best, estimate), *_ = Space(g, H200, {}).points_ranked(Model(g, H200, {}), 1)
    assert best.launches("folded") == {"decode_combine"}
    assert [k.name for k in estimate.per_kernel] == ["decode_kernel"]
    # The same tiles as two launches take up to a launch more, and not less.
    model = Model(g, H200, {})
    apart = Config(
        best.symbols,
        {**best.warps, "decode_combine": best.warps["decode_kernel"]},
        {**best.stages, "decode_combine": 1},
    )
    saved = model.seconds(apart) - model.seconds(best)
    assert 0 < saved < H200.launch_overhead_s


def test_the_model_does_not_where_the_second_stage_is_large() -> None:
    # Few tiles of a large result with many parts: the second stage wants more programs than there are tiles.
    g = small.split_k(1024, 1024, 65536)
    (best, _), *_ = Space(g, H200, {}).points_ranked(Model(g, H200, {}), 1)
    assert not best.launches("folded")


def test_proposals_tell_folded_points_apart() -> None:
    g = decode(group=2, seq=64)
    points = list(Space(g, H200, {}).configs())
    points = [p for p in points if p.launches("folded")][:40] + [p for p in points if not p.launches("folded")][:40]
    proposer = Proposer([points], [Point(0, p) for p in points], 0)
    vectors = [proposer.parameters(Point(0, p))[0] for p in points]
    assert len({json.dumps(v, sort_keys=True) for v in vectors}) == len(points)
    assert {v["0.stages.decode_combine"] for v, p in zip(vectors, points, strict=True) if p.launches("folded")} == {0}


# The gate.


def program_of(sample: Sample) -> Program:
    x, w = sample.sgraph.inputs
    m, k, n = Axis("m", x.shape[0]), Axis("k", x.shape[1]), Axis("n", w.shape[1])
    y = build.reduce("sum", k, build.mul(build.read("x", m, k), build.read("w", k, n)))
    return Program("split_k_matmul", (x, w), (Definition("y", (m, n), y, x.dtype),), ("y",))


def test_the_gate_runs_all_programs_of_a_folded_launch(runner: KernelRunner, tmp_path: Path) -> None:
    sample = samples.split_k_matmul()
    g = sample.sgraph
    config = folded_config(g, sample.symbols[1])
    assert plan_samples(g, config, {}) == [None]
    assert cost_s(g, config, {}, sampled=True) > 0
    path = tmp_path / "module.py"
    path.write_text(emit_module(g, formula="f", configs={}).text)
    report = check_numbers(program_of(sample), path, g, config, runner=runner, limit=3)
    assert report.passed, report.failures


def test_a_second_stage_within_a_step_reads_what_the_step_is_given() -> None:
    def layer(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows = []
        for t in range(x.shape[0]):
            h = torch.tanh(h @ w + x[t] - 0.5 * h)
            rows.append(h)
        return torch.stack(rows)

    shapes = (6, 16, 4096), (16, 4096), (4096, 4096)
    program = prism.trace(layer, [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes])
    assert program.loops
    with prism.search(program) as running:
        found = [p.sgraph for p in running.run().proved]
    folded = [g for g in found if any(n in r.kernels for n in folds(g) for r in g.repeats)]
    assert folded
    for g in folded:
        check_module(fold_module(share_module(lower(g)), folds(g).values()))
