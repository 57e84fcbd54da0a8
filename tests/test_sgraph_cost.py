"""Costs and constraints: hand counts, brute force over the loop nest, bounds, and what is unsatisfiable and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import sgraph_samples as samples
import sympy
from cost_bounds import attained, dominates, first_unfit, lower_bound, upper_bound
from cost_sympy import as_sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from sgraph_small import ALL, F16, F32, SUM, at, attention, layer_norm, matmul, matvec, split_k, tile

from prism.cost.compiled_expr import compiled, value
from prism.cost.constraints import (
    checks,
    constraints,
    domains,
    first_unsatisfiable,
    footprint,
    held_bytes,
    live_elements,
    staged_bytes,
    tile_sizes,
)
from prism.cost.counts import kernel_cost, sgraph_cost
from prism.cost.device import Device, Tiles, device
from prism.cost.shared_memory import BARRIER_CYCLES, BARRIERS, SharedMemory, shared_memory
from prism.errors import UnsupportedError
from prism.program.extents import Extent, symbol
from prism.program.extents import evaluate as extent_value
from prism.program.index import Axis
from prism.program.nodes import DType, Tensor
from prism.sgraph.nodes import (
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
)

H200 = device("sm_90")


def test_matmul_by_hand() -> None:
    c = sgraph_cost(matmul(512, 768, 1024)).evaluate({"T_m": 128, "T_n": 64, "T_k": 32})
    # x is read once for each of 12 column tiles, w once for each of 4 row tiles; 2 bytes an element.
    assert c["bytes_read"] == 2 * (512 * 1024 * 12 + 1024 * 768 * 4)
    assert c["bytes_written"] == 2 * 512 * 768
    assert c["dot_flops"] == 2 * 512 * 768 * 1024
    assert c["flops"] == 512 * 768 * 32  # one addition to the accumulator a trip
    assert c["launches"] == 1
    k = sgraph_cost(matmul(512, 768, 1024)).kernels[0].evaluate({"T_m": 128, "T_n": 64, "T_k": 32})
    assert k["programs"] == 4 * 12
    assert k["loop_trips"] == 32


def test_attention_by_hand() -> None:
    h, n, d, t = 8, 1024, 64, 128
    c = sgraph_cost(attention(h, n, d, causal=False)).evaluate({"T_i": t, "T_j": 64})
    tiles = n // t
    assert c["bytes_read"] == 2 * (h * n * d + 2 * h * n * d * tiles)
    assert c["bytes_written"] == 2 * h * n * d
    assert c["dot_flops"] == 2 * 2 * h * n * n * d
    scores, trips = h * n * n, n // 64
    pointwise = scores * (1 + 1 + 1 + 4 + 1)  # scale, maximum, shift, exp, row sum
    running = h * n * trips * (1 + 1)  # m, -m
    rescaled = trips * h * n * ((1 + 1) + (d + d) + 5)  # l and o: scale and add; of both, the exp of the shift's step
    after = h * n * 4 + h * n * d  # 1/l, o/l
    assert c["flops"] == pointwise + running + rescaled + after


def test_a_matrix_times_a_vector_runs_on_vector_units() -> None:
    c = sgraph_cost(matvec(64, 128)).evaluate({"T_n": 8, "T_k": 16})
    assert c["dot_flops"] == 0
    assert c["flops"] == 64 * 128 + 64 * 8


def _brute_force(g: SGraph, env: Mapping[str, int]) -> tuple[int, int, int]:
    """Bytes read and written, and programs, by walking every program's loop nest and counting unmasked elements."""
    walks = [_Walk(g, k, env) for k in g.kernels]
    totals = [w.run() for w in walks]
    return sum(t[0] for t in totals), sum(t[1] for t in totals), sum(t[2] for t in totals)


class _Walk:
    def __init__(self, g: SGraph, kernel: Kernel, env: Mapping[str, int]) -> None:
        self.g, self.kernel, self.env = g, kernel, env
        self.roles = dict(kernel.roles)
        self.length = {a: extent_value(a.extent, env) for a in self.roles}
        self.read = self.written = 0

    def tiles(self, a: Axis) -> list[int]:
        role = self.roles[a]
        assert isinstance(role, Grid | LoopRole | Split)
        t = role.tile if isinstance(role.tile, int) else self.env[role.tile.name]
        n = self.length[a]
        return [min(t, n - start) for start in range(0, n, t)]

    def chunks(self, a: Axis, parts: int) -> list[list[int]]:
        every = self.tiles(a)
        share = math.ceil(len(every) / parts)
        padded = every + [0] * (share * parts - len(every))
        return [padded[p * share : (p + 1) * share] for p in range(parts)]

    def run(self) -> tuple[int, int, int]:
        grid = [a for a, r in self.roles.items() if isinstance(r, Grid)]
        splits = [(a, r.parts) for a, r in self.roles.items() if isinstance(r, Split)]
        programs = 0
        for place in product(*(self.tiles(a) for a in grid)):
            for mine in product(*(self.chunks(a, self.env[s.name]) for a, s in splits)):
                programs += 1
                chunk = {a: m for (a, _), m in zip(splits, mine, strict=True)}
                self.walk(self.kernel.body, dict(zip(grid, place, strict=True)), chunk)
        return self.read, self.written, programs

    def walk(self, body: tuple[Stmt, ...], now: Mapping[Axis, int], chunk: Mapping[Axis, list[int]]) -> None:
        for s in body:
            match s:
                case Load(_, tensor, index) | Store(tensor, index, _):
                    n = self.g.tensor(tensor).dtype.bytes
                    for a in {a for i in index for a in i.axes()} & set(self.roles):
                        n *= self.length[a] if isinstance(self.roles[a], Whole) else now[a]
                    if isinstance(s, Load):
                        self.read += n
                    else:
                        self.written += n
                case Loop(axis, inner):
                    for size in chunk[axis] if axis in chunk else self.tiles(axis):
                        self.walk(inner, {**now, axis: size}, chunk)
                case _:
                    pass


@settings(max_examples=examples(20, 60), deadline=None)
@given(
    make=st.sampled_from(["matmul", "matvec", "attention", "layer_norm", "split_k"]),
    sizes=st.tuples(*[st.integers(1, 23)] * 3),
    tiles=st.tuples(*[st.sampled_from([1, 2, 4, 8, 16])] * 6),
)
def test_bytes_and_programs_are_exact_against_brute_force(
    make: str, sizes: tuple[int, int, int], tiles: tuple[int, ...]
) -> None:
    a, b, c = (s + 1 for s in sizes)
    g = {
        "matmul": lambda: matmul(a, b, c),
        "matvec": lambda: matvec(a, b),
        "attention": lambda: attention(2, a, b),
        "layer_norm": lambda: layer_norm(a, b),
        "split_k": lambda: split_k(a, b, c),
    }[make]()
    env = {s.name: t for s, t in zip(g.symbols, tiles * 2, strict=False)}
    cost = sgraph_cost(g)
    found = cost.evaluate(env)
    read, written, programs = _brute_force(g, env)
    assert found["bytes_read"] == read
    assert found["bytes_written"] == written
    assert cost.total("programs").evaluate(env) == programs


@pytest.mark.parametrize("make", ALL)
def test_sympy_numbers_and_arrays_agree(make: Callable[[], SGraph]) -> None:
    g = make()
    cost = sgraph_cost(g)
    env = {s.name: 2 ** (1 + n % 5) for n, s in enumerate(g.symbols)}
    arrays = {n: np.array([v, 2 * v], dtype=np.int64) for n, v in env.items()}
    for name in ("bytes_read", "bytes_written", "flops", "dot_flops", "programs", "loop_trips"):
        p = cost.total(name)
        exact = as_sympy(p)
        assert int(exact.xreplace({s: sympy.Integer(env[s.name]) for s in exact.free_symbols})) == p.evaluate(env)
        assert compiled(exact)(env) == p.evaluate(env) if exact.free_symbols else True
        rough = as_sympy(p, exact=False)
        assert float(rough.xreplace({s: sympy.Integer(env[s.name]) for s in rough.free_symbols})) <= p.evaluate(env)
        assert np.broadcast_to(p.evaluate(arrays), (2,))[0] == p.evaluate(env)
        assert np.broadcast_to(p.evaluate(arrays), (2,))[1] == p.evaluate({n: 2 * v for n, v in env.items()})


@settings(max_examples=examples(20, 60), deadline=None)
@given(which=st.sampled_from(ALL), powers=st.lists(st.integers(0, 8), min_size=8, max_size=8))
def test_bounds_hold_at_every_assignment(which: Callable[[], SGraph], powers: list[int]) -> None:
    g = which()
    env = {s.name: 2**p for s, p in zip(g.symbols, powers, strict=False)}
    low, at_point = lower_bound(g, {}), attained(g, env)
    high = upper_bound(g, {})
    for x, y, z in zip(low.as_tuple(), at_point.as_tuple(), high.as_tuple(), strict=True):
        assert x <= y
        # The widest split with the shortest tile is the worst for splits that have enough tiles for all parts.
        if "S_k" not in env:
            assert y <= z


def test_larger_tiles_never_move_more_bytes() -> None:
    cost = sgraph_cost(matmul(500, 700, 900))
    for name in ("T_m", "T_n", "T_k"):
        env = {"T_m": 16, "T_n": 16, "T_k": 16}
        before = cost.evaluate(env)["bytes_read"]
        for t in (32, 64, 128, 1024):
            now = cost.evaluate({**env, name: t})["bytes_read"]
            assert now <= before
            before = now


def test_a_tensor_read_twice_counts_once_in_the_lower_bound() -> None:
    g = layer_norm(128, 4096)
    assert lower_bound(g, {}).bytes == 2 * 128 * 4096 * 4
    assert sgraph_cost(g).evaluate({"T_m": 1, "T_n": 1024})["bytes_read"] == 2 * 128 * 4096 * 4


def test_domination_needs_a_strict_gain() -> None:
    one = attained(matmul(), {"T_m": 128, "T_n": 128, "T_k": 32})
    assert not dominates(one, one)
    assert dominates(one, replace(one, launches=2.0))
    assert not dominates(one, replace(one, launches=2.0, bytes=one.bytes - 1))


def test_symbolic_extents_are_bound_by_hints() -> None:
    seq = symbol("seq")
    g = attention(8, seq, 64)
    cost = kernel_cost(g.kernels[0], g)
    assert cost.bytes_read.evaluate({"seq": 1000, "T_i": 64, "T_j": 64}) == 2 * (8 * 1000 * 64 + 2 * 8 * 1000 * 64 * 16)
    assert seq in as_sympy(cost.bytes_read).free_symbols
    assert first_unfit(g, H200, {"seq": 1000}) is None


def test_compiled_expressions_print_what_extents_are_made_of() -> None:
    a, b = symbol("a"), symbol("b")
    cases = {
        sympy.ceiling(a / b): -(-7 // 3),
        sympy.floor(a / b): 7 // 3,
        a * b + 2 * a**2 - 1: 7 * 3 + 2 * 49 - 1,
        sympy.Max(a, b * 5): 15,
        sympy.Min(a, b): 3,
        2 ** sympy.ceiling(sympy.log(a, 2)): 8,
        sympy.Le(a, b): False,
        sympy.Mod(a, b): 1,
    }
    for e, expected in cases.items():
        assert compiled(e)({"a": 7, "b": 3}) == expected
        arrays = {"a": np.array([7, 7]), "b": np.array([3, 3])}
        assert (compiled(e)(arrays) == expected).all()
    assert value(a * b, {"a": 7, "b": 3}) == 21
    with pytest.raises(UnsupportedError, match="cannot print"):
        compiled(sympy.gamma(a))


# Constraints.


def unsatisfiable(g: SGraph, limits: Device = H200) -> list[str | None]:
    return [first_unsatisfiable(footprint(k, g), g, limits, {}) for k in g.kernels]


@pytest.mark.parametrize("make", ALL)
def test_samples_are_satisfiable(make: Callable[[], SGraph]) -> None:
    assert first_unfit(make(), H200, {}) is None


def _copy(m: Extent, n: int, *, role: Whole | Grid) -> SGraph:
    am, an = Axis("m", m), Axis("n", n)
    body: tuple[Stmt, ...] = (Load("a", "x", at(am, an)), TileReduce("s", SUM, an, "a"), Store("y", at(am), "s"))
    kernel = Kernel("copy", ((am, Grid(tile("T_m"))), (an, role)), body)
    return SGraph("g", (Tensor("x", (m, n), F16),), (), (Tensor("y", (m,), F16),), (kernel,))


def test_a_whole_axis_that_no_tile_can_hold_is_named() -> None:
    assert unsatisfiable(_copy(64, 32_768, role=Whole())) == [None]
    assert unsatisfiable(_copy(64, 32_769, role=Whole())) == ["registers"]
    assert unsatisfiable(_copy(64, 65_537, role=Whole())) == ["tile_elements"]
    assert first_unfit(_copy(64, 100_000, role=Whole()), H200, {}) == ("copy", "tile_elements")


def test_offsets_that_overflow_32_bits_are_named() -> None:
    """Where it is known how many elements there are, offsets into more have 64 bits, along a dimension still 32."""
    assert unsatisfiable(_copy(2**19, 4096, role=Whole())) == [None]
    assert unsatisfiable(_copy(2**31, 16, role=Whole())) == ["int32_offsets"]
    symbolic = _copy(symbol("m"), 4096, role=Whole())
    assert first_unfit(symbolic, H200, {"m": 2**19 - 1}) is None
    assert first_unfit(symbolic, H200, {"m": 2**19}) == ("copy", "int32_offsets")
    # What is handed over is no longer than what is passed.
    am, an = Axis("m", 2**19), Axis("n", 4096)
    write = Kernel(
        "write", ((am, Grid(tile("T_m"))), (an, Grid(1))), (Load("a", "x", at(am)), Store("b", at(am, an), "a"))
    )
    read = _copy(2**19, 4096, role=Whole()).kernels[0]
    read = replace(read, body=(Load("a", "b", at(am, an)), *read.body[1:]))
    for passed, fits in (((2**19,), False), ((2**19, 4096), True)):
        x = Tensor("x", passed, F16)
        first = write if len(passed) == 1 else replace(write, body=(Load("a", "x", at(am, an)), *write.body[1:]))
        g = SGraph("g", (x,), (Tensor("b", (2**19, 4096), F16),), (Tensor("y", (2**19,), F16),), (first, read))
        assert (first_unfit(g, H200, {}) is None) is fits


def test_too_much_in_registers_is_named() -> None:
    # Two tiles that live together, each within the limit of a single one.
    am, an = Axis("m", 64), Axis("n", 32_768)
    body: tuple[Stmt, ...] = (
        Load("a", "x", at(am, an)),
        TileReduce("s", SUM, an, "a"),
        Load("b", "x", at(am, an)),
        TileReduce("t", SUM, an, "b"),
        Store("y", (*at(am),), "s"),
        Store("z", at(am), "t"),
    )
    kernel = Kernel("k", ((am, Grid(1)), (an, Whole())), body)
    outputs = (Tensor("y", (64,), F16), Tensor("z", (64,), F16))
    g = SGraph("g", (Tensor("x", (64, 32_768), F16),), (), outputs, (kernel,))
    assert unsatisfiable(g) == [None]
    both = (body[0], body[2], body[1], body[3], *body[4:])
    assert unsatisfiable(replace(g, kernels=(replace(kernel, body=both),))) == ["registers"]


def test_too_much_shared_memory_is_named() -> None:
    # One tile of w, 16 x 2048 elements of four bytes, is more than a block of an sm_89 can have; of two bytes, not.
    g = matmul(512, 2048, 4096, dtype=F32)
    m, n, k = (a for a, _ in g.kernels[0].roles)
    roles = ((m, Grid(tile("T_m"))), (n, Whole()), (k, LoopRole(tile("T_k"))))
    g = replace(g, kernels=(replace(g.kernels[0], roles=roles),))
    assert unsatisfiable(g, limits=device("sm_89")) == ["shared"]
    assert unsatisfiable(g, limits=H200) == [None]
    halves = replace(g, inputs=tuple(replace(t, dtype=F16) for t in g.inputs))
    assert unsatisfiable(halves, limits=device("sm_89")) == [None]


def test_more_parts_than_tiles_is_named() -> None:
    assert unsatisfiable(split_k(16, 256, 16)) == ["parts", None]
    assert unsatisfiable(split_k(16, 256, 32)) == [None, None]


def test_short_axes_of_a_product_are_padded_not_refused() -> None:
    g = matmul(4, 8, 1024)
    assert unsatisfiable(g) == [None]
    ranges = {d.symbol: d.values for d in domains(footprint(g.kernels[0], g), {}, Tiles())}
    assert ranges["T_m"] == (4,)
    assert min(ranges["T_k"]) == 16


def test_relationals_agree_with_the_fast_checks() -> None:
    for make in ALL:
        g = make()
        stated = constraints(g, H200)
        for kernel in g.kernels:
            f = footprint(kernel, g)
            ranges = domains(f, {}, Tiles())
            rng = np.random.default_rng(0)
            for _ in range(20):
                env = {d.symbol: int(rng.choice(d.values)) for d in ranges}
                stages = int(rng.integers(1, 5))
                fast: dict[str, bool] = {}
                for name, ok in checks(f, H200, env, stages):
                    fast[name] = fast.get(name, True) and bool(ok)
                slow: dict[str, bool] = {}
                for c in stated:
                    if c.kernel == kernel.name:
                        # An axis of the parts is bound only by its own kernel's assignment.
                        binding = {**env, f"stages_{kernel.name}": stages}
                        ok = compiled(c.relational)(binding) if c.relational.free_symbols else bool(c.relational)
                        slow[c.name] = slow.get(c.name, True) and bool(ok)
                for name in fast:
                    assert fast[name] == slow.get(name, True), (g.name, kernel.name, name, env)
        assert all(c.why and c.name for c in stated)


def test_operands_that_stay_in_shared_memory_count_where_groups_of_warps_multiply_them() -> None:
    """Queries of 512 channels stay, by 128 rows 128 KB of them, beside keys and values of a trip."""
    g = samples.attention(DType.FLOAT16, seq=4096, d=512).sgraph
    (kernel,) = g.kernels
    f = footprint(kernel, g)

    def outcome(rows: int, on: Device) -> bool:
        binding = {"T_i": rows, "T_j": 32}
        return all(ok for name, ok in checks(f, on, binding) if name == "shared")

    assert held_bytes(f, tile_sizes(kernel, {"T_i": 128, "T_j": 32}), H200) == 128 * 512 * 2
    assert held_bytes(f, tile_sizes(kernel, {"T_i": 32, "T_j": 32}), H200) == 0  # a warp has them in registers
    assert held_bytes(f, tile_sizes(kernel, {"T_i": 128, "T_j": 32}), device("sm_80")) == 0
    assert outcome(128, H200)
    assert not outcome(256, H200)


def test_footprints_by_hand() -> None:
    g = matmul()
    f = footprint(g.kernels[0], g)
    sizes = tile_sizes(g.kernels[0], {"T_m": 128, "T_n": 64, "T_k": 32})
    assert staged_bytes(f, sizes) == (128 * 32 + 32 * 64) * 2
    assert live_elements(f, sizes) == 128 * 64  # the accumulator; the product is added in place
    g = layer_norm()
    f = footprint(g.kernels[0], g)
    sizes = tile_sizes(g.kernels[0], {"T_m": 4, "T_n": 512})
    # The square, computed over x's registers once x has been summed, and per row s1, s2 and nothing else of weight.
    assert 4 * 512 <= live_elements(f, sizes) <= 2 * 4 * 512 + 4 * 4


def live_of(*body: Stmt) -> int:
    """Elements that are live together, of tiles of 64 x 128 in one program of 8 warps."""
    am, an = Axis("m", 64), Axis("n", 128)
    kernel = Kernel("k", ((am, Grid(tile("T_m"))), (an, Whole())), body)
    tensors = tuple(Tensor(n, (64, 128), F16) for n in ("x", "w"))
    g = SGraph("g", tensors, (), (Tensor("y", (64, 128), F16), Tensor("z", (64, 128), F16)), (kernel,))
    found: int = live_elements(footprint(kernel, g), tile_sizes(kernel, {"T_m": 64}))
    return found


def test_what_is_computed_place_by_place_is_there_an_element_at_a_time() -> None:
    am, an, whole = Axis("m", 64), Axis("n", 128), 64 * 128
    x, w = Load("x1", "x", at(am, an)), Load("x2", "w", at(am, an))
    chain = (
        Pointwise("v1", "tanh", ("x1",)),
        Pointwise("v2", "mul", ("x1", "v1")),
        Pointwise("v3", "mul", ("v1", "v2")),
    )
    store = Store("y", at(am, an), "v3")
    assert live_of(x, *chain, store) == whole
    # What it is made of is there for as long as what is made of it is wanted.
    both = (Pointwise("v4", "mul", ("v1", "x2")), Store("y", at(am, an), "v4"))
    assert live_of(x, chain[0], w, *both) == 2 * whole
    # A reduction takes elements one by one as well; what is wanted behind one is there as a whole.
    summed = (TileReduce("s", SUM, an, "v3"), Pointwise("v5", "mul", ("s", "s")))
    assert live_of(x, *chain, *summed, Store("y", at(am, an), "v5")) == whole
    beside = (Pointwise("v6", "mul", ("v5", "v3")), Pointwise("v7", "add", ("v6", "v2")), Store("y", at(am, an), "v7"))
    assert live_of(x, *chain, *summed, *beside) == 2 * whole + 64


def test_the_grid_is_searched_when_the_smallest_corner_fails() -> None:
    # Two grid axes flattened into the rows of a product: the corner (1, 1) is no legal operand, (16, 1) is.
    a, b, n, k = Axis("a", 64), Axis("b", 64), Axis("n", 64), Axis("k", 256)
    base = matmul()
    loop = Loop(k, (Load("p", "x", at(a, b, k)), Load("q", "w", at(k, n)), *_rest(k)))
    roles = ((a, Grid(tile("T_a"))), (b, Grid(tile("T_b"))), (n, Grid(tile("T_n"))), (k, LoopRole(tile("T_k"))))
    kernel = Kernel("k", roles, (loop, Store("y", at(a, b, n), "acc")))
    tensors = (Tensor("x", (64, 64, 256), F16), Tensor("w", (256, 64), F16))
    g = replace(base, inputs=tensors, outputs=(Tensor("y", (64, 64, 64), F16),), kernels=(kernel,))
    f = footprint(kernel, g)
    corner = {d.symbol: d.low for d in domains(f, {}, Tiles())}
    assert not all(ok for _, ok in checks(f, H200, corner))
    assert unsatisfiable(g) == [None]


def _rest(k: Axis) -> tuple[Stmt, ...]:
    from prism.sgraph.nodes import Accumulate, Contract

    return (Contract("c", k, "p", "q"), Accumulate("acc", SUM, "c"))


# Shared memory: a tile in two layouts.


def test_a_tile_in_two_layouts_conflicts_by_its_rows_and_is_read_by_every_warp_that_shares_it() -> None:
    g = samples.rmsnorm_linear(DType.BFLOAT16, m=64, d=4096, n=4096).sgraph
    found = shared_memory(footprint(g.kernels[0], g))
    (tile,) = found.tiles
    m, d, n = (a for a, _ in sorted(g.kernels[0].roles, key=lambda r: "mdn".index(r[0].name)))
    assert (tile.dims, tile.side, tile.inside) == ((m, d), (m,), d)
    sizes = {m: 64, d: 128, n: 64}
    own = 64 * 128 * 2
    assert tile.read(sizes, 4, True) == own
    # Rows of 256 bytes begin at the same bank: all eight of a matrix conflict. Rows of 32 bytes do in pairs.
    assert tile.read(sizes, 4, False) == 8 * own
    assert tile.read({**sizes, d: 16}, 4, False) == 2 * 64 * 16 * 2
    # 64 rows are four warps': of eight, two hold the same. Of 16 rows all hold the same.
    assert tile.read(sizes, 8, True) == 2 * own
    assert tile.read({**sizes, m: 16}, 4, True) == 4 * own / 4
    arrays = tile.read({**sizes, d: np.array([16, 128])}, np.array([4, 8]), np.array([False, True]))
    assert arrays.tolist() == [2 * 64 * 16 * 2, 2 * own]


def test_shared_memory_takes_cycles_of_the_multiprocessor() -> None:
    g = samples.rmsnorm_linear(DType.BFLOAT16, m=64, d=4096, n=4096).sgraph
    found = shared_memory(footprint(g.kernels[0], g))
    sizes = {a: 64 for a, _ in g.kernels[0].roles}
    reading, meeting = found.seconds(H200, sizes, 4, 10, True)
    assert float(reading) == pytest.approx(10 * 64 * 64 * 2 / (128 * 1.98e9))
    assert float(meeting) == pytest.approx(10 * BARRIERS * BARRIER_CYCLES / 1.98e9)
    # One warp meets nobody, and what is not multiplied has no barriers.
    assert float(found.seconds(H200, sizes, 1, 10, True)[1]) == 0.0
    plain = samples.layernorm(DType.BFLOAT16).sgraph
    assert shared_memory(footprint(plain.kernels[0], plain)) == SharedMemory((), False)
