"""Vectors that loops load one trip ahead: which, that results stay the same, what compilers make of them, the model."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sgraph_samples as samples
from compiled_code import CodeOf
from interpreting import InterpreterPool, InterpretJob
from sgraph_small import SUM, at, matvec, tile
from test_small_integers import both_codes
from test_stages import even_and_odd

from prism.backends.lower import lower
from prism.backends.passes import tile_module
from prism.backends.tile import Load as TileLoad
from prism.backends.tile import TileProgram
from prism.backends.triton.ahead import loads_ahead
from prism.backends.triton.emit import emit_module
from prism.backends.triton.paired import pairs
from prism.cost.constraints import footprint, tile_sizes
from prism.cost.counts import SECTOR_BYTES
from prism.cost.pipelining import L2_TRIP, TRIPS_AHEAD, pipelined_loads
from prism.ir.kit import statements
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Gather,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Place,
    Pointwise,
    Role,
    SGraph,
    Split,
    Stmt,
    Store,
    TileReduce,
    Whole,
    part_axis,
)

BF16, F32 = DType.BFLOAT16, DType.FLOAT32
LOADED = re.compile(r"(%\w+) = tt\.load .*tensor<")


def scaled_groups(
    m: int = 5, n: int = 37, groups: int = 6, length: int = 16, parts: bool = False, flat: bool = True
) -> SGraph:
    """y[m,n] = sum_g s[n,g] * (sum_k x[m,g*length+k]*w[n,g*length+k] - z[n,g] * sum_k x[m,g*length+k]).

    With `parts` the groups are shared by programs, and partial results are stored; else one program has all of them.
    Without `flat` a group is a loop of its own.
    """
    am, an, ag, ak = Axis("m", m), Axis("n", n), Axis("g", groups), Axis("k", length)
    place = Index.axis(ag).scaled(length) + Index.axis(ak)
    group: tuple[Stmt, ...] = (
        Load("x1", "x", (Index.axis(am), place)),
        Load("w1", "w", (Index.axis(an), place)),
        Contract("p", ak, "x1", "w1"),
        TileReduce("t", SUM, ak, "x1"),
    )
    product, total = "p", "t"
    if not flat:
        group = (Loop(ak, (*group, Accumulate("a", SUM, "p"), Accumulate("b", SUM, "t"))),)
        product, total = "a", "b"
    loop: tuple[Stmt, ...] = (
        Load("s1", "s", at(an, ag)),
        Load("z1", "z", at(an, ag)),
        *group,
        Pointwise("zt", "mul", ("z1", total)),
        Pointwise("less", "mul", (-1.0, "zt")),
        Pointwise("d", "add", (product, "less")),
        Contract("q", ag, "s1", "d"),
        Accumulate("acc", SUM, "q"),
    )
    rows, columns = (am, Grid(tile("T_m"))), (an, Grid(tile("T_n")))
    inner = (ak, Whole() if flat else LoopRole(tile("T_k")))
    inputs = (
        Tensor("x", (m, groups * length), BF16),
        Tensor("w", (n, groups * length), BF16),
        Tensor("s", (n, groups), BF16),
        Tensor("z", (n, groups), BF16),
    )
    roles: tuple[tuple[Axis, Role], ...]
    if not parts:
        roles = (rows, columns, inner, (ag, LoopRole(1)))
        kernel = Kernel("scaled", roles, (Loop(ag, loop), Store("y", at(am, an), "acc")))
        return SGraph("groups", inputs, (), (Tensor("y", (m, n), F32),), (kernel,))
    share = tile("S_g")
    part = part_axis(ag, share)
    split = Kernel(
        "scaled", (rows, columns, inner, (ag, Split(share, 1))), (Loop(ag, loop), Store("b0", at(part, am, an), "acc"))
    )
    second = (Load("v", "b0", at(part, am, an)), TileReduce("r", SUM, part, "v"), Store("y", at(am, an), "r"))
    roles = ((am, Grid(tile("T_mc"))), (an, Grid(tile("T_nc"))), (part, Whole()))
    buffer = Tensor("b0", (share, m, n), F32)
    return SGraph("groups", inputs, (buffer,), (Tensor("y", (m, n), F32),), (split, Kernel("combine", roles, second)))


def ahead(p: TileProgram) -> set[str]:
    """The tensors of which a program loads something ahead."""
    apart = {x.dst for pair in pairs(p).values() for x in pair}
    return {a.load.tensor for found in loads_ahead(p, apart).values() for a in found}


# Which.


@pytest.mark.parametrize("flat", [True, False])
def test_scales_and_zero_points_go_ahead_and_tiles_do_not(flat: bool) -> None:
    g = scaled_groups(flat=flat)
    spec.check(g)
    (p,) = tile_module(g).programs
    assert ahead(p) == {"s", "z"}


def test_so_do_weights_of_a_norm_in_a_loop_with_a_product() -> None:
    (p,) = lower(samples.rmsnorm_linear(BF16).sgraph).programs
    assert ahead(p) == {"g"}
    # Without a product Triton copies what is contiguous, asynchronously.
    (p,) = lower(matvec(256, 512)).programs
    assert ahead(p) == set()


def test_pairs_are_loaded_as_pairs() -> None:
    for g in (even_and_odd(), both_codes()):
        (p,) = tile_module(g).programs
        assert ahead(p) == set()


def test_what_an_address_is_made_of_is_loaded_where_it_is_needed() -> None:
    """y[m,n] = sum_k w[m,k] * x[i[k],n]: what is copied ahead needs the places of trips to come."""
    am, an, ak = Axis("m", 20), Axis("n", 24), Axis("k", 40)
    loop: tuple[Stmt, ...] = (
        Load("i1", "i", at(ak)),
        Gather("x1", "x", (Index.const(0), Index.axis(an)), (Place("i1", 0, 3),)),
        Load("w1", "w", at(am, ak)),
        Contract("p", ak, "w1", "x1"),
        Accumulate("acc", SUM, "p"),
    )
    roles = ((am, Grid(tile("T_m"))), (an, Grid(tile("T_n"))), (ak, LoopRole(tile("T_k"))))
    kernel = Kernel("looked_up", roles, (Loop(ak, loop), Store("y", at(am, an), "acc")))
    inputs = (Tensor("i", (40,), DType.INT64), Tensor("x", (3, 24), BF16), Tensor("w", (20, 40), BF16))
    g = SGraph("looked_up", inputs, (), (Tensor("y", (20, 24), F32),), (kernel,))
    spec.check(g)
    (p,) = tile_module(g).programs
    assert ahead(p) == set()


# Results.


@pytest.mark.parametrize(("flat", "parts"), [(True, 0), (False, 0), (True, 1), (True, 4), (False, 4), (True, 9)])
def test_results_are_the_same_however_groups_are_shared(
    interpreter: InterpreterPool, tmp_path: Path, flat: bool, parts: int
) -> None:
    g = scaled_groups(flat=flat, parts=bool(parts), length=24)
    spec.check(g)
    source = emit_module(g, formula="", configs={})
    assert source.text.count("_ahead = tl.load") == 4
    path = tmp_path / "groups.py"
    path.write_text(source.text)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, (rows, 6 * 24)).astype(np.float32) for rows in (5, 37))
    s, z = (rng.integers(-3, 4, (37, 6)).astype(np.float32) for _ in range(2))
    names = [k.name for k in g.kernels]
    symbols = {"T_m": 16, "T_n": 16, "T_mc": 4, "T_nc": 16, "T_k": 16, "S_g": parts}
    # Of nine parts of six groups three have nothing to do.
    config = Config({x.name: symbols[x.name] for x in g.symbols}, dict.fromkeys(names, 4), dict.fromkeys(names, 2))
    (y,) = interpreter.run(InterpretJob(path, source.entry, (x, w, s, z), ("bfloat16",) * 4, config))
    weight = (w.reshape(37, 6, 24) - z[..., None]) * s[..., None]
    np.testing.assert_array_equal(y, x @ weight.reshape(37, -1).T)


# What the compilers make of it.


@pytest.mark.parametrize("warps", [2, 4])
def test_no_trip_waits_for_what_it_has_just_loaded(code_of: CodeOf, warps: int) -> None:
    g = scaled_groups(16, 4096, 32, 128)
    config = Config({"T_m": 16, "T_n": 64}, {"scaled": warps}, {"scaled": 4})
    for version in code_of.versions:
        (code,) = code_of(g, config, version=version)
        text = code.ttgir
        start, end = text.index("scf.for"), text.rindex("scf.yield")
        loop, handed_on = text[start:end], text[end : text.index("\n", end)]
        loaded = LOADED.findall(loop)
        assert len(loaded) >= 2
        for name in loaded:
            uses = re.findall(rf"{re.escape(name)}\b", loop)
            assert len(uses) == 1, "it is made, and not used"
            assert re.search(rf"{re.escape(name)}\b", handed_on)
        assert loop.count("ttg.async_copy_global_to_local") == 2


# The model.


def test_the_estimate_knows_that_two_trips_overlap() -> None:
    g = scaled_groups(16, 4096, 32, 128)
    (kernel,) = g.kernels
    loads = pipelined_loads(footprint(kernel, g))
    sizes = tile_sizes(kernel, {"T_m": 16, "T_n": 64})
    by_tensor = {len(s.dims): s for s in loads.loads}
    assert by_tensor[1].ahead
    assert not by_tensor[2].ahead
    # A sector has the groups of 16 trips, and scales are read by one program: a sixteenth of a trip to memory each.
    alone = 2 / SECTOR_BYTES / TRIPS_AHEAD
    assert float(loads.waiting(sizes, 4, 64, {})) == alone
    assert float(loads.waiting(sizes, 4, 4, {})) == 1 / 4
    # With several programs along the rows others have brought it to the cache.
    more = tile_sizes(kernel, {"T_m": 8, "T_n": 64})
    assert float(loads.waiting(more, 4, 640, {})) == alone * L2_TRIP


def test_what_brings_the_next_trips_elements_is_kept_in_caches() -> None:
    (p,) = tile_module(scaled_groups()).programs
    readers = {s.tensor: s.readers for s in statements(p.body) if isinstance(s, TileLoad)}
    assert readers["s"] is None
    assert readers["z"] is None
    assert readers["w"] == ("pid_m",)
    # Where a trip takes whole sectors, nothing is left for the next.
    g = scaled_groups()
    turned = replace(g, inputs=(*g.inputs[:2], *(replace(t, shape=(6, 37)) for t in g.inputs[2:])))
    (kernel,) = turned.kernels
    loop, store = kernel.body
    assert isinstance(loop, Loop)
    body = tuple(replace(s, index=s.index[::-1]) if isinstance(s, Load) and s.tensor in "sz" else s for s in loop.body)
    turned = replace(turned, kernels=(replace(kernel, body=(replace(loop, body=body), store)),))
    spec.check(turned)
    (p,) = tile_module(turned).programs
    assert {s.readers for s in statements(p.body) if isinstance(s, TileLoad) and s.tensor in "sz"} == {("pid_m",)}
