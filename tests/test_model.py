"""The cost model: sane against rooflines, monotone where it must be, and comparable with the baseline's."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from sgraph_programs import task
from sgraph_small import F16, F32, attention, layer_norm, matmul, matvec, split_k
from test_ranges import narrowed

import prism
from benchmarks.model import told
from prism.api.loading import trace
from prism.cost.compiled import compiled_estimate
from prism.cost.counts import LINE_BYTES, Access, Monomial, sgraph_cost
from prism.cost.device import DEVICES, Device, device
from prism.cost.gpu import DOT_EFFICIENCY, DRAM_EFFICIENCY, FULL_DOT_REUSE, L2_SHARE, transfer
from prism.cost.library import AttentionExtents, attention_times
from prism.cost.model import Estimate, Model, attentions, baseline_estimate
from prism.cost.trips import PRODUCT_CYCLES
from prism.generate.enumerate import Bounds, generate
from prism.instantiate.space import Space
from prism.program.build import mul, op, read, reduce
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import Definition, DType, Expr, Program, ReduceKind, Tensor
from prism.sgraph.config import Config, Resources
from prism.sgraph.launches import fuse
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    Role,
    SGraph,
    Stmt,
    Store,
    TileReduce,
    Whole,
)

H200 = device("sm_90")


def best(g: SGraph, d: Device = H200) -> Estimate:
    return Space(g, d, {}).points_ranked(Model(g, d, {}), 1)[0][1]


@pytest.mark.parametrize("d", DEVICES.values(), ids=lambda d: d.target)
def test_a_long_matrix_times_vector_is_bound_by_memory(d: Device) -> None:
    n, k = 16_384, 16_384
    e = best(matvec(n, k), d)
    assert e.limiter == "memory"
    ideal = n * k * 2 / d.bandwidth_bytes_s
    assert ideal < e.seconds < 2 * ideal


@pytest.mark.parametrize("d", DEVICES.values(), ids=lambda d: d.target)
def test_a_big_matmul_is_bound_by_compute(d: Device) -> None:
    n = 8192
    e = best(matmul(n, n, n), d)
    assert e.limiter == "compute"
    ideal = 2 * n**3 / d.half_dot_flops
    assert ideal < e.seconds < 3 * ideal


# What is published for kernels by Triton on an H100, whose matrix units are an H200's.


@pytest.mark.parametrize("depth", [4096, 8192, 16_384])
@pytest.mark.parametrize("stages", [3, 4])
def test_persistent_products_by_descriptors_are_near_the_published_ones(depth: int, stages: int) -> None:
    g = matmul(8192, 8192, depth, DType.BFLOAT16)
    plain = Config({"T_m": 128, "T_n": 256, "T_k": 64}, {"matmul": 8}, {"matmul": stages})
    both = plain.having(descriptors=["matmul"], persistent={"matmul": 1})
    model = Model(g, H200, {})
    rates = [2e-12 * 8192 * 8192 * depth / model.seconds(c) for c in (plain, both)]
    assert 0.95 * 666 < rates[1] < 1.05 * 689
    assert 500 < rates[0] < 600
    # It takes both: copies that run ahead, and a next tile that they run ahead to.
    for one in (plain.having(descriptors=["matmul"]), plain.having(persistent={"matmul": 1})):
        assert model.seconds(one) == model.seconds(plain)


@pytest.mark.parametrize(
    ("keys", "published", "within"),
    [
        (512, 328.9, 0.25),
        (1024, 389.7, 0.1),
        (2048, 433.7, 0.1),
        (4096, 458.4, 0.1),
        (8192, 470.7, 0.1),
        (16_384, 476.8, 0.1),
    ],
)
def test_attention_is_near_the_published_rates(keys: int, published: float, within: float) -> None:
    # Triton's tutorial, tiles of 128 x 128, 16,384 tokens by 16 heads of 128, nothing masked.
    heads = 16 * 16_384 // keys
    g = attention(heads, keys, 128, causal=False)
    (name,) = (x.name for x in g.launches)
    config = Config({"T_i": 128, "T_j": 128}, {name: 8}, {name: 2})
    rate = 4e-12 * heads * keys * keys * 128 / Model(g, H200, {}).seconds(config)
    assert abs(rate - published) < within * published


@pytest.mark.parametrize("columns", [64, 128])
def test_causal_attention_is_near_the_published_rate(columns: int) -> None:
    # The same tutorial under a causal mask, 4096 queries (published with FlashAttention-3), tiles of 128 queries.
    heads, keys = 64, 4096
    g = narrowed(attention(heads, keys, 128, causal=True))
    (name,) = (x.name for x in g.launches)
    config = Config({"T_i": 128, "T_j": columns}, {name: 8}, {name: 2})
    rate = 2e-12 * heads * keys * keys * 128 / Model(g, H200, {}).seconds(config)
    assert rate == pytest.approx(353, rel=0.11)


def test_masks_cost_on_the_diagonal_alone() -> None:
    n, t = 4096, 128
    g = narrowed(attention(8, n, 128, causal=True))
    (kernel,) = Model(g, H200, {}).kernels
    tiles = n // t
    # A comparison and a selection a score, on the tiles below the diagonal.
    below = 8 * tiles * (tiles - 1) // 2 * t * t
    assert float(kernel.cost.idle_selections.evaluate({"T_i": t, "T_j": t})) == 2 * below
    # Without a range nothing is known of tiles, and nothing masks where nothing is compared.
    for plain in (attention(8, n, 128, causal=True), attention(8, n, 128, causal=False)):
        (kernel,) = Model(plain, H200, {}).kernels
        assert not kernel.cost.idle_selections.terms


def test_units_that_groups_of_warps_keep_busy_overlap() -> None:
    g = attention(32, 4096, 128, causal=False)
    (kernel,) = Model(g, H200, {}).kernels
    for warps, groups in ((4, 1.0), (8, 2.0)):
        part = kernel.part({"T_i": 128, "T_j": 64}, warps, 2, None)
        dots, vectors = float(part.dot_seconds), float(part.vector_seconds) / min(1.0, warps / 8)
        beside = dots + vectors - max(dots, vectors) + float(part.barrier_seconds)
        assert float(part.compute(1.0)) == pytest.approx(max(dots, vectors) + beside / groups)
    assert float(part.compute(2.0)) < float(part.compute(1.0)) < dots + vectors


# What an H200 measured (decision 199).


def test_warps_beyond_a_products_tiles_compute_the_same_again() -> None:
    (kernel,) = Model(matmul(4096, 4096, 4096), H200, {}).kernels

    def busy(rows: int, columns: int, warps: int) -> float:
        return float(kernel.part({"T_m": rows, "T_n": columns, "T_k": 64}, warps, 3, None).dot_seconds)

    # 16 x 16 are two instructions of 16 x 8.
    assert busy(16, 16, 1) == busy(16, 16, 2) == pytest.approx(busy(16, 16, 8) / 4)
    assert busy(64, 64, 1) == busy(64, 64, 8)
    # Vector units have no instructions for tiles.
    (kernel,) = Model(matmul(4096, 4096, 4096, F32), H200, {}).kernels
    assert busy(16, 16, 1) == busy(16, 16, 8)


def test_both_bandwidths_take_longer_than_either() -> None:
    alone = transfer(H200, 1e9, 0.0, 1000)
    assert alone == pytest.approx(1e9 / (DRAM_EFFICIENCY * H200.bandwidth_bytes_s))
    equal = alone * H200.cache_bandwidth_bytes_s
    assert transfer(H200, 0.0, equal, 1000) == pytest.approx(alone)
    assert transfer(H200, 1e9, equal, 1000) == pytest.approx(alone * 2**0.25)
    both = transfer(H200, np.array([1e9, 1e9]), np.array([0.0, equal]), np.array([1000, 1000]), np.maximum)
    assert both == pytest.approx([alone, alone * 2**0.25])


def test_small_products_are_waited_for_and_large_ones_take_longer_themselves() -> None:
    (kernel,) = Model(matmul(4096, 4096, 4096), H200, {}).kernels

    def chain(columns: int) -> float:
        return float(kernel.part({"T_m": 64, "T_n": columns, "T_k": 64}, 4, 3, None).chain)

    waited = 64 * PRODUCT_CYCLES / H200.multiprocessor.hertz / H200.memory_latency_s
    assert chain(32) - chain(64) == pytest.approx(waited)


def test_tiles_without_their_neighbours_in_memory_move_whole_sectors() -> None:
    # Elements of two bytes, sectors of 32 and lines of 128.
    g = matmul(512, 512, 512)
    (kernel,) = Model(g, H200, {}).kernels
    store = next(a for a in kernel.cost.accesses if a.store)
    (last,) = store.index[-1].axes()
    sizes = {a: 16 for a, _ in kernel.kernel.roles}
    for columns, times in ((1, 16), (4, 4), (16, 1), (64, 1)):
        assert store.sectors({**sizes, last: columns}, {}) == times
        assert store.sectors({**sizes, last: columns}, {}, LINE_BYTES) == max(1, 64 / columns)


def test_rows_of_what_is_read_by_columns_are_sectors_though_a_loop_goes_along_the_columns() -> None:
    # Two columns of 2048, and all rows in a loop: 4 bytes of each sector, which 5.3 times as long was measured for.
    rows, columns = Axis("m", 4096), Axis("n", 2048)
    body: tuple[Stmt, ...] = (
        Loop(
            rows,
            (
                Load("a", "x", (Index.axis(rows), Index.axis(columns))),
                TileReduce("part", ReduceKind.SUM, rows, "a"),
                Accumulate("acc", ReduceKind.SUM, "part"),
            ),
        ),
        Store("y", (Index.axis(columns),), "acc"),
    )
    roles = (columns, Grid(symbol("T_n"))), (rows, LoopRole(symbol("T_m")))
    x, y = Tensor("x", (4096, 2048), DType.BFLOAT16), Tensor("y", (2048,), DType.BFLOAT16)
    (kernel,) = Model(SGraph("sums", (x,), (), (y,), (Kernel("sums", roles, body),)), H200, {}).kernels
    load = next(a for a in kernel.cost.accesses if not a.store)
    for held, times in ((2, 8), (16, 1), (512, 1)):
        assert load.sectors({rows: 512, columns: held}, {}) == times


def test_axes_that_share_a_dimension_lie_side_by_side() -> None:
    pair, half = Axis("pair", 2), Axis("half", 64)
    one = Monomial(1, ())
    access = Access("y", True, one, one, frozenset({pair, half}), row=((((1, pair), (2, half)), 128),), element=2)
    # Every other element of a run: twice what it asks for, and no less than a sector.
    for held, times in (((2, 16), 1), ((2, 4), 2), ((1, 16), 2), ((1, 64), 2), ((1, 4), 4), ((1, 1), 16)):
        assert access.sectors(dict(zip((pair, half), held, strict=True)), {}) == times


def test_attention_of_few_queries_shares_no_keys() -> None:
    for keys in (4096, 32_768):
        # One query for each of 32 heads, four to a key: 54 and 383 us were measured.
        t = attention_times(AttentionExtents(32, 4, 1, keys, 128, 2, False, False), DType.BFLOAT16, H200)
        assert 0.9 * keys * 11.5e-9 < float(t.total(H200.launch_overhead_s)) < 1.2 * keys * 11.5e-9 + 8e-6
    sizes = (AttentionExtents(8, 1, n, 32_768, 128, 2, False, False) for n in (32, 256))
    few, many = (float(attention_times(size, DType.BFLOAT16, H200).total(0.0)) for size in sizes)
    assert many < few


def test_float32_products_do_not_run_at_the_matrix_units_rate() -> None:
    n = 4096
    assert best(matmul(n, n, n, F32)).seconds > n**3 / H200.multiply_adds_s > best(matmul(n, n, n, F16)).seconds


def test_tiny_kernels_are_bound_by_latency_or_launch() -> None:
    e = best(layer_norm(2, 64))
    assert e.limiter in ("latency", "launch")
    assert e.seconds >= H200.launch_overhead_s


def test_splitting_helps_a_long_sum_with_few_results() -> None:
    # 16 x 64 results: one tile or a few, most of the device idle, unless the contracted axis is shared.
    assert best(split_k(16, 64, 65_536)).seconds < best(matmul(16, 64, 65_536)).seconds


def test_splitting_does_not_help_where_there_is_enough_to_do() -> None:
    assert best(split_k(4096, 4096, 4096)).seconds > best(matmul(4096, 4096, 4096)).seconds


def estimate(g: SGraph, config: Config, resources: Sequence[Resources] | None = None) -> Estimate:
    return Model(g, H200, {}).estimate(config, resources)


def config_of(g: SGraph, **symbols: int) -> Config:
    return Config(symbols, {k.name: 4 for k in g.kernels}, {k.name: 2 for k in g.kernels})


@pytest.mark.parametrize("registers", [0, 64, 168, 255])
def test_more_spills_are_never_faster(registers: int) -> None:
    g = attention()
    config = config_of(g, T_i=64, T_j=64)
    before = 0.0
    for spills in (0, 8, 64, 512, 4096):
        now = estimate(g, config, [Resources("attention", 40_000, registers, spills, 4)]).seconds
        assert now > before
        before = now


def test_more_shared_memory_or_registers_are_never_faster() -> None:
    g = attention()
    config = config_of(g, T_i=64, T_j=64)
    for what in ("shared", "registers"):
        before = 0.0
        for amount in (32, 64, 128, 255) if what == "registers" else (1024, 40_000, 100_000, 200_000):
            r = Resources("attention", 40_000, 64, 0, 4)
            r = (
                Resources("attention", amount, 64, 0, 4)
                if what == "shared"
                else Resources(r.kernel, r.shared, amount, 0, 4)
            )
            now = estimate(g, config, [r]).seconds
            assert now >= before
            before = now


def test_what_does_not_fit_takes_forever() -> None:
    g = matmul(4096, 4096, 4096)
    config = config_of(g, T_m=128, T_n=128, T_k=64)
    assert math.isfinite(estimate(g, config).seconds)
    assert estimate(g, config, [Resources("matmul", 300_000, 128, 0, 4)]).seconds == math.inf
    huge = config_of(g, T_m=256, T_n=256, T_k=512)
    assert estimate(g, huge).seconds == math.inf


def test_small_row_tiles_waste_the_matrix_units() -> None:
    g = matmul(4096, 4096, 4096)
    small, large = (estimate(g, config_of(g, T_m=t, T_n=128, T_k=64)) for t in (16, 128))
    assert small.per_kernel[0].compute > 2 * large.per_kernel[0].compute


def test_bytes_from_memory_lie_between_one_read_and_all_reads() -> None:
    g = matmul(8192, 8192, 8192)
    k = estimate(g, config_of(g, T_m=64, T_n=64, T_k=64)).per_kernel[0]
    once = 3 * 8192 * 8192 * 2
    every = 2 * 8192 * 8192 * 128 * 2
    assert once <= k.bytes < every / 4


def test_arrays_and_numbers_agree() -> None:
    for g in (matmul(), attention(), layer_norm(), split_k()):
        space = Space(g, H200, {})
        model = Model(g, H200, {})
        for km, ks in zip(model.kernels, space.kernels, strict=True):
            many = np.broadcast_to(km.seconds(ks.binding(), ks.column("warps"), ks.column("stages")), (len(ks.points),))
            for row in range(0, len(ks.points), max(1, len(ks.points) // 20)):
                one = dict(zip(ks.names, ks.points[row].tolist(), strict=True))
                assert float(km.seconds(one, one["warps"], one["stages"])) == pytest.approx(float(many[row]))


def part_of(g: SGraph, config: Config, kernel: int = 0) -> Any:
    return Model(g, H200, {}).kernels[kernel].part(config.symbols, 4, 2, None)


def test_each_matrix_product_reaches_its_own_part_of_the_rate() -> None:
    h, i, d = 8, 1024, 256
    rate = H200.half_dot_flops * DOT_EFFICIENCY
    flops = 2.0 * h * i * i * d

    def share(rows: int, columns: int) -> float:
        return min(1.0, 2 * rows * columns / (rows + columns) / FULL_DOT_REUSE)

    g = attention(h, i, d, causal=False)
    found = part_of(g, config_of(g, T_i=64, T_j=16)).dot_seconds
    # Scores are 64 x 16, the other product is 64 x 256: it does not suffer from the first.
    assert share(64, 16) < 0.3 < share(64, 256)
    assert found == pytest.approx(flops / rate / share(64, 16) + flops / rate / share(64, 256))


def test_matrix_units_add_to_accumulators_for_nothing() -> None:
    g = matmul(512, 768, 1024)
    config = config_of(g, T_m=128, T_n=64, T_k=32)
    assert sgraph_cost(g).evaluate(config.symbols)["flops"] == 512 * 768 * 32
    assert part_of(g, config).vector_seconds == 0
    # In full precision the vector units multiply and add; one addition more a trip is theirs.
    assert part_of(matmul(512, 768, 1024, F32), config).vector_seconds > 0


def test_what_a_launch_has_just_stored_is_read_from_l2_if_it_stays_there() -> None:
    for columns, stays in ((1024, True), (4096, False)):
        g = split_k(1024, columns, 4096)
        config = config_of(g, T_m=128, T_n=128, T_k=64, S_k=4, T_m2=16, T_n2=64)
        second = Model(g, H200, {}).estimate(config).per_kernel[1]
        partial, result = 4 * 1024 * columns * 4, 1024 * columns * 2
        assert (partial <= L2_SHARE * H200.cache_bytes) == stays
        assert second.bytes == result + (0 if stays else partial)
        # It takes what L2 needs in any case.
        assert second.memory >= (partial + result) / H200.cache_bandwidth_bytes_s


@pytest.mark.parametrize(
    ("role", "passes", "there", "loads"),
    [
        ("whole", 1, 1.0, 1.0),
        ("grid", 1, 1.0, 1.0),
        ("whole", 1, 1.5, 1.5),
        ("whole", 1, 2.0, 1.5),
        ("loop", 1, 1.0, 2.0),
        ("loop", 2, 1.0, 2.0),
    ],
    ids=[
        "one tile holds the axis",
        "programs together have it all",
        "the other half is another one",
        "and more is there",
        "a loop comes there later",
        "two passes",
    ],
)
def test_what_a_trip_loads_under_two_shifts_comes_from_memory_once(
    role: str, passes: int, there: float, loads: float
) -> None:
    """Rotary embeddings read each half where it is and where the other half is; of a tensor beyond the cache.

    What lies outside is not there to be read, whatever a mask leaves of it: `there` is how often the columns are.
    """
    rows, columns = 1 << 17, 4096
    m, n = Axis("m", rows), Axis("n", columns)
    shift = 0 if passes == 2 else columns // 2
    tile = sympy.Symbol("T_n", integer=True, positive=True)
    first = Load("a", "x", (Index.axis(m), Index.axis(n)))
    second = Load("b", "x", (Index.axis(m), Index.axis(n) + shift))
    store = Store("z", (Index.axis(m), Index.axis(n)), "c")
    add = Pointwise("c", "add", ("a", "b"))
    body: tuple[Stmt, ...] = (first, second, add, store)
    if passes == 2:
        total = (TileReduce("p", ReduceKind.MAX, n, "a"), Accumulate("s", ReduceKind.MAX, "p"))
        body = (Loop(n, (first, *total)), Loop(n, (second, Pointwise("c", "mul", ("b", "s")), store)))
    elif role == "loop":
        body = (Loop(n, body),)
    roles: dict[str, Role] = {"whole": Whole(), "grid": Grid(tile), "loop": LoopRole(tile)}
    row = sympy.Symbol("T_m", integer=True, positive=True)
    kernel = Kernel("k", ((m, Grid(row)), (n, roles[role])), body)
    x = Tensor("x", (rows, int(there * columns)), DType.BFLOAT16)
    g = SGraph("g", (x,), (), (Tensor("z", (rows, columns), DType.BFLOAT16),), (kernel,))
    sizes = {"T_m": 1} | ({} if role == "whole" else {"T_n": 256})
    found = estimate(g, Config(sizes, {"k": 4}, {"k": 1}))
    assert found.per_kernel[0].bytes == pytest.approx((loads + 1) * rows * columns * 2)


@pytest.mark.parametrize(("stride", "offset", "loads"), [(1, 0, 1.0), (1, 4096, 2.0), (2, 1, 2.0), (2, 2, 1.0)])
def test_parts_of_a_tensor_are_read_each(stride: int, offset: int, loads: float) -> None:
    """Halves of a row, as of a packed gate, and its even and odd elements, of a tensor that stays in L2."""
    rows, columns = 1 << 8, 4096
    m, n = Axis("m", rows), Axis("n", columns)
    place = Index.axis(n).scaled(stride)
    body: tuple[Stmt, ...] = (
        Load("a", "x", (Index.axis(m), place)),
        Load("b", "x", (Index.axis(m), place + offset)),
        Pointwise("c", "mul", ("a", "b")),
        Store("z", (Index.axis(m), Index.axis(n)), "c"),
    )
    kernel = Kernel("k", ((m, Grid(symbol("T_m"))), (n, Grid(symbol("T_n")))), body)
    g = SGraph(
        "g",
        (Tensor("x", (rows, 2 * columns), DType.BFLOAT16),),
        (),
        (Tensor("z", (rows, columns), DType.BFLOAT16),),
        (kernel,),
    )
    found = estimate(g, Config({"T_m": 1, "T_n": 256}, {"k": 4}, {"k": 1})).per_kernel[0]
    assert found.bytes == pytest.approx((loads + 1) * rows * columns * 2, rel=0.01)


def test_rows_and_columns_of_one_tensor_come_from_memory_once() -> None:
    """Of x times its own transpose, batch by batch, one program has both."""
    b, i, j, k = Axis("b", 4096), Axis("i", 64), Axis("j", 64), Axis("k", 128)

    def loaded(second: str, j: Axis) -> float:
        body: tuple[Stmt, ...] = (
            Load("l", "x", (Index.axis(b), Index.axis(i), Index.axis(k))),
            Load("r", second, (Index.axis(b), Index.axis(j), Index.axis(k))),
            Contract("p", k, "l", "r"),
            Store("z", (Index.axis(b), Index.axis(i), Index.axis(j)), "p"),
        )
        roles = ((b, Grid(1)), (i, Whole()), (j, Whole()), (k, Whole()))
        inputs = tuple(Tensor(n, (4096, int(a.extent), 128), DType.BFLOAT16) for n, a in {"x": i, second: j}.items())
        z = Tensor("z", (4096, 64, int(j.extent)), DType.BFLOAT16)
        g = SGraph("g", inputs, (), (z,), (Kernel("k", roles, body),))
        return estimate(g, Config({}, {"k": 4}, {"k": 1})).per_kernel[0].bytes - 2 * math.prod(map(int, z.shape))

    one = 4096 * 64 * 128 * 2
    assert loaded("x", j) == pytest.approx(one)
    assert loaded("y", j) == pytest.approx(2 * one)


def test_what_one_kernel_after_another_streams_through_a_launch_is_read_again() -> None:
    """Programs of the second come when the first has read all of x and y, which together are more than L2 keeps."""

    def read(rows: int) -> float:
        m, n = Axis("m", rows), Axis("n", 2048)
        place = (Index.axis(m), Index.axis(n))
        kernels = []
        for name, what in (("u", "add"), ("v", "mul")):
            body = (
                Load("a", "x", place),
                Load("b", "y", place),
                Pointwise("c", what, ("a", "b")),
                Store(name, place, "c"),
            )
            kernels.append(Kernel(f"k_{name}", ((m, Grid(symbol(f"T_{name}"))), (n, Whole())), body))
        x, y, u, v = (Tensor(t, (rows, 2048), DType.BFLOAT16) for t in "xyuv")
        g = fuse(SGraph("g", (x, y), (), (u, v), tuple(kernels)), [k.name for k in kernels])
        (launch,) = g.launches
        one = {launch.name: 1}
        return estimate(g, Config({"T_u": 1, "T_v": 1}, one, one)).per_kernel[0].bytes / (rows * 2048 * 2)

    assert read(4096) == pytest.approx(2 + 4)
    assert read(256) == pytest.approx(2 + 2), "L2 keeps what there is"


@pytest.mark.parametrize("role", ["grid", "loop"])
@pytest.mark.parametrize(("step", "times"), [(1, 1.0), (2, 2.0), (4, 4.0), (5, 4.0)])
def test_windows_that_overlap_come_from_memory_once(role: str, step: int, times: float) -> None:
    """Four taps a place, as many bytes as the windows cover, of a tensor beyond the cache."""
    rows, columns = 1 << 15, 1 << 13
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", 4)
    tile, row = (sympy.Symbol(f"T_{a}", integer=True, positive=True) for a in "nm")
    window = Index.axis(n).scaled(step) + Index.axis(k)
    load, total = Load("a", "x", (Index.axis(m), window)), TileReduce("s", ReduceKind.SUM, k, "a")
    body: tuple[Stmt, ...] = (load, total, Store("z", (Index.axis(m), Index.axis(n)), "s"))
    roles: dict[str, Role] = {"grid": Grid(tile), "loop": LoopRole(tile)}
    kernel = Kernel("k", ((m, Grid(row)), (n, roles[role]), (k, Whole())), (Loop(n, body),) if role == "loop" else body)
    x = Tensor("x", (rows, columns * step + 4), DType.BFLOAT16)
    g = SGraph("g", (x,), (), (Tensor("z", (rows, columns), DType.BFLOAT16),), (kernel,))
    found = estimate(g, Config({"T_m": 1, "T_n": 256}, {"k": 4}, {"k": 1})).per_kernel[0]
    assert found.bytes == pytest.approx((times + 1) * rows * columns * 2, rel=0.02)


@pytest.mark.parametrize(
    ("role", "window", "offset", "times"),
    [
        *((role, *near, 1.0) for role in ("grid", "loop") for near in [(1, 0), (1, 3), (-1, 3)]),
        # Programs that run together have a row between them, a trip of a loop has one tile.
        ("grid", 1, 1 << 11, 1.5),
        ("loop", 1, 1 << 11, 2.25),
    ],
)
def test_what_a_window_has_is_not_loaded_again(role: str, window: int, offset: int, times: float) -> None:
    """Four taps about a place and the place itself, which lies within them or far off, of a tensor beyond the cache."""
    rows, columns = 1 << 15, 1 << 13
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", 4)
    tile, row = (sympy.Symbol(f"T_{a}", integer=True, positive=True) for a in "nm")
    taps = Index.axis(n) + Index.axis(k).scaled(window) + (3 if window < 0 else 0)
    body: tuple[Stmt, ...] = (
        Load("a", "x", (Index.axis(m), taps)),
        TileReduce("s", ReduceKind.SUM, k, "a"),
        Load("b", "x", (Index.axis(m), Index.axis(n) + offset)),
        Pointwise("c", "mul", ("s", "b")),
        Store("z", (Index.axis(m), Index.axis(n)), "c"),
    )
    roles: dict[str, Role] = {"grid": Grid(tile), "loop": LoopRole(tile)}
    kernel = Kernel("k", ((m, Grid(row)), (n, roles[role]), (k, Whole())), (Loop(n, body),) if role == "loop" else body)
    x = Tensor("x", (rows, columns + offset + 4), DType.BFLOAT16)
    g = SGraph("g", (x,), (), (Tensor("z", (rows, columns), DType.BFLOAT16),), (kernel,))
    found = estimate(g, Config({"T_m": 1, "T_n": 256}, {"k": 4}, {"k": 1})).per_kernel[0]
    assert found.bytes == pytest.approx((times + 1) * rows * columns * 2, rel=0.03)


def test_a_tap_a_trip_is_added_by_the_matrix_units_too() -> None:
    """Sums over an axis of which a trip has one place are no work: the product goes into the accumulator itself."""
    m, n, c, k = Axis("m", 512), Axis("n", 768), Axis("c", 64), Axis("k", 9)
    rows, columns = (sympy.Symbol(f"T_{a}", integer=True, positive=True) for a in "mn")
    body: tuple[Stmt, ...] = (
        Load("x", "x", (Index.axis(m), Index.axis(c), Index.axis(k))),
        Load("w", "w", (Index.axis(n), Index.axis(c), Index.axis(k))),
        Contract("p", c, "x", "w"),
        TileReduce("q", ReduceKind.SUM, k, "p"),
        Accumulate("s", ReduceKind.SUM, "q"),
    )
    store = Store("z", (Index.axis(m), Index.axis(n)), "s")
    roles: tuple[tuple[Axis, Role], ...] = ((m, Grid(rows)), (n, Grid(columns)), (k, LoopRole(1)), (c, Whole()))
    x, w = Tensor("x", (512, 64, 9), DType.BFLOAT16), Tensor("w", (768, 64, 9), DType.BFLOAT16)
    z = Tensor("z", (512, 768), DType.BFLOAT16)
    g = SGraph("g", (x, w), (), (z,), (Kernel("k", roles, (Loop(k, body), store)),))
    config = Config({"T_m": 128, "T_n": 64}, {"k": 4}, {"k": 1})
    assert part_of(g, config).vector_seconds == 0
    assert sgraph_cost(g).evaluate(config.symbols)["flops"] == 512 * 768 * 9


# The baseline.


def test_the_baseline_reads_from_l2_what_an_operator_has_just_written() -> None:
    m, n = Axis("m", 1024), Axis("n", 4096)
    steps = (
        _definition("t", (n, m), read("x", m, n), view=True),
        _definition("a", (n, m), op("exp", read("t", n, m))),
        _definition("u", (m, n), read("a", n, m), view=True),
        _definition("b", (m, n), op("exp", read("u", m, n))),
    )
    program = Program("p", (Tensor("x", (1024, 4096), F16),), steps, ("b",))
    size = 1024 * 4096 * 2
    e = baseline_estimate(program, H200, {})
    assert [k.bytes for k in e.per_kernel] == [2 * size, size]
    assert e.per_kernel[1].memory >= 2 * size / H200.cache_bandwidth_bytes_s


def _definition(name: str, axes: tuple[Axis, ...], expr: Expr, dtype: DType = F16, view: bool = False) -> Definition:
    return Definition(name, axes, expr, dtype, view=view)


def matmul_program(m: int, n: int, k: int) -> Program:
    am, an, ak = Axis("m", m), Axis("n", n), Axis("k", k)
    product = reduce("sum", ak, mul(read("x", am, ak), read("w", ak, an)))
    tensors = (Tensor("x", (m, k), F16), Tensor("w", (k, n), F16))
    return Program("matmul", tensors, (_definition("y", (am, an), product),), ("y",))


def test_the_baseline_matmul_is_as_fast_as_a_well_tiled_one() -> None:
    for n in (512, 2048, 8192):
        vendor = baseline_estimate(matmul_program(n, n, n), H200, {}).seconds
        mine = best(matmul(n, n, n)).seconds
        assert vendor <= mine < 2.5 * vendor


@pytest.mark.parametrize(("rows", "at_once"), [(64, 1), (512, 4), (65536, 16)])
def test_what_an_operator_exposes_is_judged_as_of_kernels(rows: int, at_once: int) -> None:
    m, n = Axis("m", rows), Axis("n", 1024)
    program = Program(
        "p", (Tensor("x", (rows, 1024), F16),), (_definition("a", (m, n), op("exp", read("x", m, n))),), ("a",)
    )
    (k,) = baseline_estimate(program, H200, {}).per_kernel
    parts = sorted((k.memory, k.compute, k.latency))
    assert k.seconds == pytest.approx(parts[2] + (parts[0] + parts[1]) / (at_once + 1) + k.launch)


def test_the_baseline_pays_for_every_operator_but_not_for_views() -> None:
    m, n = Axis("m", 4096), Axis("n", 4096)
    steps = (
        _definition("a", (m, n), op("exp", read("x", m, n))),
        _definition("t", (n, m), read("a", m, n), view=True),
        _definition("b", (n, m), mul(read("t", n, m), read("t", n, m))),
        _definition("s", (n,), reduce("sum", m, read("b", n, m))),
    )
    program = Program("p", (Tensor("x", (4096, 4096), F16),), steps, ("s",))
    e = baseline_estimate(program, H200, {})
    assert [k.name for k in e.per_kernel] == ["a", "b", "s"]
    size = 4096 * 4096 * 2
    assert [k.bytes for k in e.per_kernel] == [2 * size, 2 * size, size + 4096 * 2]
    assert e.seconds > sum(k.bytes for k in e.per_kernel) / H200.bandwidth_bytes_s
    assert e.limiter == "memory"


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda q, k, v: torch.softmax(q @ k.mT * 0.1, -1) @ v, 1),
        (lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), 1),
        (lambda q, k, v: (s := (q @ k.mT).exp()) @ v / s.sum(-1, keepdim=True), 0),  # no weights that sum to 1
        (lambda q, k, v: torch.softmax(q, -1) @ k.mT @ v, 0),
        (lambda q, k, v: torch.sigmoid(q @ k.mT) @ v, 0),
    ],
)
def test_attention_is_known_where_the_baseline_takes_it_apart(function: Callable[..., Any], found: int) -> None:
    program = trace(function, [torch.randn(2, 4, 8) for _ in range(3)], name="p", check=False)
    assert len(attentions(program)) == found
    assert not attentions(matmul_program(4, 4, 4))


def test_a_bias_goes_into_the_baselines_product() -> None:
    m, n, k = Axis("m", 2048), Axis("n", 4096), Axis("k", 1024)
    product = _definition("p", (m, n), reduce("sum", k, mul(read("x", m, k), read("w", k, n))))
    inputs = (Tensor("x", (2048, 1024), F16), Tensor("w", (1024, 4096), F16), Tensor("b", (4096,), F16))

    def kernels(*after: Definition, outputs: tuple[str, ...] = ("y",)) -> list[str]:
        program = Program("p", (*inputs, Tensor("c", (2048, 4096), F16)), (product, *after), outputs)
        return [e.name for e in baseline_estimate(program, H200, {}).per_kernel]

    bias = _definition("y", (m, n), op("add", read("p", m, n), read("b", n)))
    assert kernels(bias) == ["p"]
    assert kernels(_definition("y", (m, n), op("add", read("b", n), read("p", m, n)))) == ["p"]
    assert kernels(_definition("y", (m, n), op("add", read("p", m, n), read("c", m, n)))) == ["p", "y"]
    assert kernels(bias, outputs=("y", "p")) == ["p", "y"]
    assert kernels(bias, _definition("z", (m, n), op("exp", read("p", m, n))), outputs=("y", "z")) == ["p", "y", "z"]


def test_one_pass_attention_beats_its_operators() -> None:
    h, i, j, d = Axis("h", 16), Axis("i", 4096), Axis("j", 4096), Axis("d", 64)
    scores = reduce("sum", d, mul(read("q", h, i, d), read("k", h, j, d)))
    total = reduce("sum", j, read("p", h, i, j))
    out = reduce("sum", j, mul(read("w", h, i, j), read("v", h, j, d)))
    steps = (
        _definition("s", (h, i, j), scores),
        _definition("p", (h, i, j), op("exp", read("s", h, i, j))),
        _definition("l", (h, i), total),
        _definition("w", (h, i, j), mul(read("p", h, i, j), op("recip", read("l", h, i)))),
        _definition("o", (h, i, d), out),
    )
    inputs = tuple(Tensor(n, (16, 4096, 64), F16) for n in "qkv")
    program = Program("attention", inputs, steps, ("o",))
    assert best(attention(16, 4096, 64, causal=False)).seconds < baseline_estimate(program, H200, {}).seconds


def test_only_the_cost_model_knows_rates() -> None:
    rates = {f.name for f in fields(Device) if f.name.endswith(("_s", "_flops")) and f.name != "launch_overhead_s"}
    assert {"bandwidth_bytes_s", "multiply_adds_s", "half_dot_flops"} <= rates
    root = Path(prism.__file__).parent
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        if path.parent != root / "cost" and any(rate in text for rate in rates):
            tree = ast.parse(text)
            asked = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} & rates
            assert not asked, f"{path.relative_to(root)} makes times of counts by itself: {', '.join(sorted(asked))}"


def test_every_constant_of_the_cost_model_says_where_it_is_from() -> None:
    sources = ("(guess", "(reported", "(measured", "(data sheet", "(by definition")
    for path in sorted((Path(prism.__file__).parent / "cost").glob("*.py")):
        body = ast.parse(path.read_text()).body
        for node, after in itertools.pairwise([*body, None]):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.BinOp | ast.Tuple | ast.Dict):
                if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                    continue
                told = ast.unparse(after) if isinstance(after, ast.Expr) else ""
                assert any(s in told for s in sources), f"{path.name}:{node.lineno}: {ast.unparse(node)}: no source"


def test_the_page_of_constants_is_what_the_code_says() -> None:
    page = (Path(prism.__file__).parent.parent / "docs" / "cost_constants.md").read_text("utf-8")
    assert page == told(), "write it anew: python benchmarks/model.py constants docs/cost_constants.md"
    for name in ("DRAM_EFFICIENCY", "ATTENTION_EFFICIENCY", "BASELINE_WARPS", "half_dot_flops"):
        assert f"`{name}`" in page


# What torch.compile fuses.


def fused(function: Callable[..., Any], *tensors: torch.Tensor) -> list[str]:
    program = trace(function, list(tensors), name="p", check=False)
    return [k.name for k in compiled_estimate(program, H200, program.hints).per_kernel]


def norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def test_neighbours_are_one_launch_and_products_of_matrices_their_own() -> None:
    x, g, w = drawn(64, 256), drawn(256), drawn(256, 128)
    assert len(fused(norm, x, g)) == 1
    assert len(fused(lambda x, g, w: norm(x, g) @ w, x, g, w)) == 2
    assert len(fused(lambda x, w: torch.relu(x @ w).sum(-1), x, w)) == 2
    # What is added after the product is read beside it: before and after are not one launch.
    after = fused(lambda x, g, w: (y := norm(x, g)) @ w @ w.mT + y, x, g, w)
    assert len(after) == 4
    # A bias is the product's.
    assert len(fused(lambda x, w, b: torch.addmm(b, x, w), x, w, drawn(128))) == 1


def test_codes_that_are_computed_are_multiplied_in_the_type_that_they_were_computed_from() -> None:
    """As the kernel does: bytes have no type of their own, so rows quantised in bfloat16 make it bfloat16."""

    def product(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        q = (x / s).round().clamp(-127, 127)
        return (q @ w.to(x.dtype).T) * s

    w = torch.zeros(256, 512, dtype=torch.int8)
    p = trace(product, [drawn(128, 512), w, drawn(128, 1)], name="p", check=False)
    found = generate(task(p), Bounds(max_kernels=1)).candidates
    assert {k.dtype for c in found for k in Model(c.sgraph, H200, {}).kernels if k.cost.dots} == {DType.BFLOAT16}


def scaled_blocks(before: bool, n: int = 1024, blocks: int = 32) -> SGraph:
    """y[i,j] = sum_b s[i,b] * sum_k x[i,128*b+k]*w[j,128*b+k], s in float32; with `before`, x is scaled first."""
    i, j, b, k = Axis("i", n), Axis("j", n), Axis("b", blocks), Axis("k", 128)
    at = Index.axis(b).scaled(128) + Index.axis(k)
    loads = (
        Load("x1", "x", (Index.axis(i), at)),
        Load("w1", "w", (Index.axis(j), at)),
        Load("s1", "s", (Index.axis(i), Index.axis(b))),
    )
    made: tuple[Stmt, ...] = (Contract("p", k, "x1", "w1"), Contract("q", b, "s1", "p"))
    if before:
        made = (
            Pointwise("x2", "mul", ("x1", "s1")),
            Contract("p", k, "x2", "w1"),
            TileReduce("q", ReduceKind.SUM, b, "p"),
        )
    body = (
        Loop(b, (*loads, *made, Accumulate("acc", ReduceKind.SUM, "q"))),
        Store("y", (Index.axis(i), Index.axis(j)), "acc"),
    )
    roles = ((i, Grid(symbol("T_i"))), (j, Grid(symbol("T_j"))), (b, LoopRole(1)), (k, Whole()))
    halves = [Tensor(name, (n, 128 * blocks), DType.BFLOAT16) for name in ("x", "w")]
    inputs = (*halves, Tensor("s", (n, blocks), DType.FLOAT32))
    return SGraph("f", inputs, (), (Tensor("y", (n, n), DType.FLOAT32),), (Kernel("f", roles, body),))


def test_scales_of_blocks_in_another_type_leave_the_product_its_own() -> None:
    after, before = scaled_blocks(before=False), scaled_blocks(before=True)
    (kernel,) = Model(after, H200, {}).kernels
    assert kernel.dtype is DType.BFLOAT16, "a scale times a row of products is no product of matrices"
    (kernel,) = Model(before, H200, {}).kernels
    assert kernel.dtype is DType.FLOAT32
    assert best(after).seconds < best(before).seconds


def test_products_of_one_row_are_sums_that_take_their_neighbours_in() -> None:
    def quantised(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w.to(torch.bfloat16) * s[:, None])

    w, s = torch.randint(-8, 8, (512, 1024), dtype=torch.int8), drawn(512)
    assert len(fused(quantised, drawn(1, 1024), w, s)) == 1
    assert len(fused(quantised, drawn(16, 1024), w, s)) == 2
    one = trace(quantised, [drawn(1, 1024), w, s], name="p", check=False)
    # Codes are read once, and no weights are written.
    assert compiled_estimate(one, H200, {}).per_kernel[0].bytes == 512 * 1024 + 2 * (1024 + 512 + 512)
    # A sum over the rows of a reduction waits for all of them, and a norm before it is computed at other points.
    square = drawn(256, 256)
    assert len(fused(lambda x, w: torch.relu(x @ w) @ w, drawn(1, 256), square)) == 2
    assert len(fused(lambda x, g, w: norm(x, g) @ w, drawn(1, 256), drawn(256), drawn(256, 128))) == 2


def test_attention_is_one_call_unless_something_else_reads_what_is_within() -> None:
    q, k, v = (drawn(8, 1024, 64) for _ in range(3))

    def weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT * 0.125, -1)

    assert len(fused(lambda q, k, v: weights(q, k) @ v, q, k, v)) == 1
    assert len(fused(lambda q, k, v: (weights(q, k) @ v, weights(q, k)), q, k, v)) > 1
    plain = trace(lambda q, k, v: weights(q, k) @ v, [q, k, v], name="p", check=False)
    size = AttentionExtents(8, 1, 1024, 1024, 64, 2, False, copied=False)
    call = float(attention_times(size, DType.BFLOAT16, H200).total(H200.launch_overhead_s))
    assert compiled_estimate(plain, H200, {}).seconds == pytest.approx(call)
    causal = trace(
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        [q, k, v],
        name="p",
        check=False,
    )
    half = AttentionExtents(8, 1, 1024, 1024, 64, 2, True, copied=False)
    found = compiled_estimate(causal, H200, {})
    assert found.per_kernel[-1].seconds == pytest.approx(
        float(attention_times(half, DType.BFLOAT16, H200).total(H200.launch_overhead_s))
    )
    # In full precision there is no fast one.
    full = [t.float() for t in (q, k, v)]
    assert len(fused(lambda q, k, v: weights(q, k) @ v, *full)) == 3


def test_fused_is_no_more_than_one_by_one() -> None:
    for g in (matmul_program(64, 64, 64), matmul_program(4096, 4096, 4096)):
        assert compiled_estimate(g, H200, {}).seconds <= baseline_estimate(g, H200, {}).seconds
