"""Loops without matrix products are pipelined by the launch's stages: as emitted, as compiled, as estimated."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from compiled_code import CodeOf
from interpreting import InterpreterPool, InterpretJob
from sgraph_small import F16, F32, SUM, at, attention, matmul, matvec, tile

from prism.backends.protocol import Compiled, arguments
from prism.backends.triton.crosscompile import CompileJob, compiled, request
from prism.backends.triton.emit import emit_module
from prism.cost.constraints import footprint, tile_sizes
from prism.cost.device import device
from prism.cost.model import Model
from prism.cost.pipelining import L2_TRIP, pipelined_loads
from prism.process.worker import Pool
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    SGraph,
    Split,
    Stmt,
    Store,
    TileReduce,
    Whole,
    part_axis,
)

H200 = device("sm_90")
N, K = 24, 100


def source_of(g: SGraph) -> str:
    return emit_module(g, formula="", configs={}).text


def split_matvec(n: int = N, k: int = K) -> SGraph:
    """y[n] = sum_k x[k]*w[n,k], the axis k shared by S_k programs."""
    an, ak, parts = Axis("n", n), Axis("k", k), tile("S_k")
    ap = part_axis(ak, parts)
    loop: tuple[Stmt, ...] = (
        Load("a", "x", at(ak)),
        Load("b", "w", at(an, ak)),
        Contract("p", ak, "a", "b"),
        Accumulate("acc", SUM, "p"),
    )
    stored = (Index.axis(ap), Index.axis(an))
    first = (Loop(ak, loop), Store("partial", stored, "acc"))
    second = (Load("part", "partial", stored), TileReduce("total", SUM, ap, "part"), Store("y", at(an), "total"))
    return SGraph(
        "split_matvec",
        (Tensor("x", (k,), F32), Tensor("w", (n, k), F32)),
        (Tensor("partial", (parts, n), F32),),
        (Tensor("y", (n,), F32),),
        (
            Kernel("parts", ((an, Grid(tile("T_n"))), (ak, Split(parts, tile("T_k")))), first),
            Kernel("combine", ((an, Grid(tile("T_n2"))), (ap, Whole())), second),
        ),
    )


def two_sums(n: int = N, k: int = K) -> SGraph:
    """y[n] = sum_k w[n,k] by a loop and z[n] = w[n,0], in one launch."""
    an, ak, am = Axis("n", n), Axis("k", k), Axis("m", n)
    loop = Loop(ak, (Load("b", "w", at(an, ak)), TileReduce("t", SUM, ak, "b"), Accumulate("acc", SUM, "t")))
    copy = (Load("c", "w", (Index.axis(am), Index.const(0))), Store("z", at(am), "c"))
    return SGraph(
        "two_sums",
        (Tensor("w", (n, k), F32),),
        (),
        (Tensor("y", (n,), F32), Tensor("z", (n,), F32)),
        (
            Kernel("sums", ((an, Grid(tile("T_n"))), (ak, LoopRole(tile("T_k")))), (loop, Store("y", at(an), "acc"))),
            Kernel("first", ((am, Grid(tile("T_m"))),), copy),
        ),
        together=(("sums", "first"),),
    )


# Emission.


def test_only_loops_without_products_are_told_their_stages() -> None:
    text = source_of(matvec(N, K))
    assert "in tl.range(0, 100, T_k, num_stages=STAGES):" in text
    assert 'STAGES=stages["matvec"],' in text
    for g in (matmul(), attention()):
        assert "STAGES" not in source_of(g)


def test_a_nest_of_loops_is_told_in_its_innermost_loops_alone() -> None:
    an, ak, ad = Axis("n", N), Axis("k", K), Axis("d", 40)
    inner = Loop(ad, (Load("b", "w", at(an, ak, ad)), TileReduce("t", SUM, ad, "b"), Accumulate("s", SUM, "t")))
    body = (Loop(ak, (inner, TileReduce("u", SUM, ak, "s"), Accumulate("acc", SUM, "u"))), Store("y", at(an), "acc"))
    roles = ((an, Grid(tile("T_n"))), (ak, LoopRole(tile("T_k"))), (ad, LoopRole(tile("T_d"))))
    g = SGraph("nest", (Tensor("w", (N, K, 40), F32),), (), (Tensor("y", (N,), F32),), (Kernel("nest", roles, body),))
    spec.check(g)
    text = source_of(g)
    assert "in range(0, 100, T_k):" in text
    assert "in tl.range(0, 40, T_d, num_stages=STAGES):" in text


def test_the_parameter_takes_no_name_that_is_there() -> None:
    g = matvec(N, K)
    n = symbol("STAGES")
    (kernel,) = g.kernels
    an, ak = Axis("n", N), Axis("k", n)
    loop = Loop(ak, (Load("b", "w", at(an, ak)), TileReduce("t", SUM, ak, "b"), Accumulate("acc", SUM, "t")))
    kernel = Kernel("k", ((an, Grid(tile("T_n"))), (ak, LoopRole(tile("T_k")))), (loop, Store("y", at(an), "acc")))
    text = source_of(SGraph("named", (Tensor("w", (N, n), F32),), (), g.outputs, (kernel,)))
    assert "num_stages=STAGES_):" in text
    assert 'STAGES_=stages["k"],' in text


def run(pool: InterpreterPool, folder: Path, g: SGraph, inputs: list[np.ndarray], config: Config) -> list[np.ndarray]:
    spec.check(g)
    source = emit_module(g, formula="", configs={})
    path = folder / f"{g.name}.py"
    path.write_text(source.text)
    dtypes = tuple(t.dtype.value for t in g.inputs)
    return pool.run(InterpretJob(path, source.entry, tuple(inputs), dtypes, config))


@pytest.mark.parametrize("folded", [False, True])
def test_a_split_passes_its_stages_folded_or_not(interpreter: InterpreterPool, tmp_path: Path, folded: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(K).astype(np.float32), rng.standard_normal((N, K)).astype(np.float32)
    launches = ["parts"] if folded else ["parts", "combine"]
    symbols = {"T_n": 8, "T_k": 16, "S_k": 4, "T_n2": 8}
    names = frozenset({"combine"}) if folded else frozenset[str]()
    config = Config(symbols, dict.fromkeys(launches, 4), dict.fromkeys(launches, 3)).having(folded=names)
    (y,) = run(interpreter, tmp_path, split_matvec(), [x, w], config)
    np.testing.assert_allclose(y, w @ x, rtol=1e-5, atol=1e-5)


def test_a_launch_of_several_kernels_hands_them_on(interpreter: InterpreterPool, tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((N, K)).astype(np.float32)
    g = two_sums()
    name = g.launches[0].name
    config = Config({"T_n": 8, "T_k": 16, "T_m": 8}, {name: 4}, {name: 3})
    y, z = run(interpreter, tmp_path, g, [w], config)
    np.testing.assert_allclose(y, w.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(z, w[:, 0])


# The compiler.


def test_the_compiler_keeps_buffers_for_the_stages(compilers: Pool, tmp_path: Path) -> None:
    n, k = 1024, 4096
    path = tmp_path / "long.py"
    g = replace(matvec(n, k), name="long")
    path.write_text(source_of(g))

    def shared(stages: int) -> int:
        config = Config({"T_n": 16, "T_k": 256}, {"matvec": 4}, {"matvec": stages})
        (reply,) = compilers.map([request(CompileJob(path, "sm_90", config, arguments(g, {})))], 60)
        found: Compiled = compiled(reply.answer)
        assert not found.error
        return found.resources[0].shared

    tile_bytes = (16 * 256 + 256) * 2
    assert shared(1) < tile_bytes
    assert 2 * tile_bytes <= shared(3) < 2 * tile_bytes + 4096


def one_tile_twice(i: int = 256, j: int = 4096, d: int = 128) -> SGraph:
    """y[i,d] = sum_j relu(sum_d q[i,d]*c[j,d]) * c[j,d]: what is read is keys and values."""
    ai, aj, ad = Axis("i", i), Axis("j", j), Axis("d", d)
    loop: tuple[Stmt, ...] = (
        Load("c", "c", at(aj, ad)),
        Contract("s", ad, "q", "c"),
        Pointwise("r", "maximum", ("s", 0.0)),
        Contract("p", aj, "r", "c"),
        Accumulate("acc", SUM, "p"),
    )
    body = (Load("q", "q", at(ai, ad)), Loop(aj, loop), Store("y", at(ai, ad), "acc"))
    roles = ((ai, Grid(tile("T_i"))), (aj, LoopRole(tile("T_j"))), (ad, Whole()))
    bf16 = DType.BFLOAT16
    inputs = (Tensor("q", (i, d), bf16), Tensor("c", (j, d), bf16))
    return SGraph("latent", inputs, (), (Tensor("y", (i, d), F32),), (Kernel("twice", roles, body),))


def test_a_tile_that_two_products_take_in_two_orders_is_right(interpreter: InterpreterPool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    q, c = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((20, 32), (40, 32)))
    (y,) = run(
        interpreter,
        tmp_path,
        one_tile_twice(20, 40, 32),
        [q, c],
        Config({"T_i": 16, "T_j": 16}, {"twice": 4}, {"twice": 2}),
    )
    scores = np.maximum(q @ c.T, 0)
    np.testing.assert_allclose(y, scores @ c, rtol=1e-6)


def test_a_tile_that_two_products_take_in_two_orders_is_copied_while_others_are_multiplied(
    code_of: CodeOf,
) -> None:
    g = one_tile_twice()
    # Rows for single warps and rows for groups of warps, which read shared memory themselves.
    for rows, version in itertools.product((16, 64), code_of.versions):
        config = Config({"T_i": rows, "T_j": 64}, {"twice": 4}, {"twice": 3})
        (code,) = code_of(g, config, version=version)
        loop = code.ttgir[code.ttgir.index("scf.for") : code.ttgir.rindex("scf.yield")]
        assert loop.count("ttg.async_copy_global_to_local") == 1
        assert "tt.load" not in loop


# The model.


def times(g: SGraph, stages: int, **symbols: int) -> float:
    (kernel,) = Model(g, H200, {}).kernels
    return float(kernel.times(symbols, 4, stages).latency)


def test_pipelining_hides_trips_and_takes_shared_memory() -> None:
    g = matvec(16_384, 8192)
    assert times(g, 3, T_n=16, T_k=256) < 0.6 * times(g, 1, T_n=16, T_k=256)
    (kernel,) = Model(g, H200, {}).kernels
    # Two buffers of 64 x 2048 float16 and more do not fit.
    assert np.isfinite(kernel.seconds({"T_n": 16, "T_k": 256}, 4, 3))
    assert not np.isfinite(kernel.seconds({"T_n": 64, "T_k": 2048}, 8, 3))


def with_index(g: SGraph, tensor: str, index: tuple[Index, ...]) -> SGraph:
    (kernel,) = g.kernels
    loop, store = kernel.body
    assert isinstance(loop, Loop)
    body = tuple(replace(s, index=index) if isinstance(s, Load) and s.tensor == tensor else s for s in loop.body)
    return replace(g, kernels=(replace(kernel, body=(replace(loop, body=body), store)),))


def waiting(g: SGraph, overlapping: int, **symbols: int) -> float:
    (kernel,) = g.kernels
    f = footprint(kernel, g)
    sizes = tile_sizes(kernel, symbols)
    return float(pipelined_loads(f).waiting(sizes, 4, overlapping, {}))


def test_what_is_no_asynchronous_copy_waits_unless_it_is_in_a_cache() -> None:
    g = matvec(16_384, 8192)
    an, ak = (a for a, _ in g.kernels[0].roles)
    assert waiting(g, 4, T_n=16, T_k=256) == 1 / 4
    wide = replace(g, inputs=(Tensor("x", (8192,), F16), Tensor("w", (16_384, 16_384), F16)))
    strided = with_index(wide, "w", (Index.axis(an), Index.axis(ak).scaled(2)))
    spec.check(strided)
    assert waiting(strided, 4, T_n=16, T_k=256) == 1
    assert times(strided, 3, T_n=16, T_k=256) == times(strided, 1, T_n=16, T_k=256)
    # 128 elements for 128 threads are 2 bytes each: no copy. But other programs bring the same elements of x to L2.
    assert waiting(g, 4, T_n=16, T_k=128) == L2_TRIP
    alone = matvec(16, 8192)
    assert waiting(alone, 4, T_n=16, T_k=128) == 1
    # Every 16th trip brings 32 bytes to the first cache: 16 trips of two bytes, 8 of four.
    assert waiting(alone, 40, T_n=16, T_k=1) == 1 / 16
    far = with_index(replace(alone, inputs=wide.inputs), "w", (Index.axis(an), Index.axis(ak).scaled(2)))
    assert waiting(far, 40, T_n=16, T_k=1) == 1 / 8


def test_a_few_bytes_that_are_waited_for_do_not_stop_the_stream() -> None:
    g = matvec(16_384, 8192)
    (kernel,) = g.kernels
    loads = pipelined_loads(footprint(kernel, g))
    for columns, many in ((128, 4), (1, 1)):
        sizes = tile_sizes(kernel, {"T_n": 16, "T_k": columns})
        assert float(loads.hidden(sizes, 4, 4)) == many


def even_and_odd() -> SGraph:
    """The product of a vector and a matrix of which every other column is added apart."""
    g = matvec(16_384, 8192)
    an, ak = (a for a, _ in g.kernels[0].roles)
    even, odd = ((Index.axis(an), Index.axis(ak).scaled(2) + n) for n in (0, 1))
    loop, store = with_index(g, "w", even).kernels[0].body
    assert isinstance(loop, Loop)
    more = (Load("c", "w", odd), Contract("q", ak, "a", "c"), Accumulate("acc2", SUM, "q"))
    body = (replace(loop, body=(*loop.body, *more)), store)
    return replace(
        g,
        inputs=(Tensor("x", (8192,), F16), Tensor("w", (16_384, 16_384), F16)),
        kernels=(replace(g.kernels[0], body=body),),
    )


def test_even_and_odd_elements_are_pairs() -> None:
    assert waiting(even_and_odd(), 4, T_n=16, T_k=256) == 1 / 4
