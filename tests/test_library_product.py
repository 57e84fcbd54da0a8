"""A vendor library's product as one of a kernel's instantiations: what qualifies, what it costs, that it is right."""

from __future__ import annotations

import dataclasses
import json
import types
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sgraph_samples as samples
import sgraph_small as small
import torch
from finalist import open_to
from interpreting import InterpreterPool, InterpretJob
from sgraph_programs import PLAIN as DEVICE
from sgraph_programs import classes_of
from sgraph_samples import BF16, F16, F32, SUM, Sample, at, op, sym
from short_calls import config_of

import prism
from prism.api.verifying import verify
from prism.backends.loading import load_module
from prism.backends.protocol import Compiled, arguments
from prism.backends.triton.crosscompile import CompileJob
from prism.backends.triton.emit import emit_module
from prism.bench.prepare import module_facts
from prism.cost.device import device, multicore
from prism.cost.library import LIBRARY_EFFICIENCY, extents, library_times
from prism.cost.model import Model
from prism.errors import BackendError
from prism.events import Evidence
from prism.generate.enumerate import Bounds, Task, generate
from prism.generate.forms import forms
from prism.generate.materialise import Planner
from prism.generate.options import Weights, Within, options
from prism.generate.plan_estimate import PlanEstimate
from prism.generate.pruning import reach
from prism.instantiate.gate.check import KernelRunner, check_module
from prism.instantiate.proposals import Point, Proposer
from prism.instantiate.space import Space
from prism.program import build
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Definition, DType, Expr, Program, ReduceKind, SymbolRange, Tensor
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
    Role,
    SGraph,
    Stmt,
    Store,
    TileReduce,
    Whole,
)
from prism.sgraph.products import PlainProduct, plain_product

pytestmark = pytest.mark.usefixtures("small_gate")

H200 = device("sm_90")
M, N, K, B, H = Axis("m", 12), Axis("n", 20), Axis("k", 24), Axis("b", 3), Axis("h", 4)
PRODUCT = (Contract("p", K, "x1", "w1"), Accumulate("acc", SUM, "p"))


def plain_products(sgraph: SGraph) -> dict[str, PlainProduct]:
    """The launches of one kernel that is a plain product, by name, in order."""
    lone = {x.name: x.kernels[0] for x in sgraph.launches if len(x.kernels) == 1}
    return {name: p for name, k in lone.items() if (p := plain_product(k, sgraph)) is not None}


def one_kernel(
    x: Sequence[Axis],
    w: Sequence[Axis],
    y: Sequence[Axis],
    *,
    inner: Sequence[Stmt] = PRODUCT,
    after: Sequence[Stmt] = (),
    stored: str = "acc",
    role: Role | None = None,
    dtypes: tuple[DType, DType, DType] = (F32, F32, F32),
    range_: tuple[Index, ...] = (),
    more: Sequence[Tensor] = (),
) -> SGraph:
    """y = sum_k x * w, in a loop over k where its role is one."""
    k_role = role or LoopRole(sym("T_k"))
    body: tuple[Stmt, ...] = (Load("x1", "x", at(*x)), Load("w1", "w", at(*w)), *inner)
    if isinstance(k_role, LoopRole):
        body = (Loop(K, body, range_),)
    body += (*after, Store("y", at(*y), stored))
    roles: list[tuple[Axis, Role]] = [(a, Grid(sym(f"T_{a.name}"))) for a in y]
    tensors = [Tensor(n, tuple(a.extent for a in axes), t) for n, axes, t in zip("xwy", (x, w, y), dtypes, strict=True)]
    kernel = Kernel("product_kernel", (*roles, (K, k_role)), body)
    return SGraph("product", (*tensors[:2], *more), (), (tensors[2],), (kernel,))


def loop_over_columns() -> SGraph:
    body = (
        Load("x1", "x", at(M, K)),
        Loop(N, (Load("w1", "w", at(K, N)), Contract("p", K, "x1", "w1"), Store("y", at(M, N), "p"))),
    )
    roles = ((M, Grid(sym("T_m"))), (N, LoopRole(sym("T_n"))), (K, Whole()))
    tensors = (Tensor("x", (12, 24), F32), Tensor("w", (24, 20), F32))
    return SGraph("product", tensors, (), (Tensor("y", (12, 20), F32),), (Kernel("product_kernel", roles, body),))


def with_ones() -> SGraph:
    """x[0, m, 0, k]: dimensions of extent 1 that no axis runs over."""
    zero = Index.const(0)
    body = (
        Loop(
            K,
            (
                Load("x1", "x", (zero, *at(M), zero, *at(K))),
                Load("w1", "w", (*at(K, N), zero)),
                *PRODUCT,
            ),
        ),
        Store("y", (*at(M), zero, *at(N)), "acc"),
    )
    roles = ((M, Grid(sym("T_m"))), (N, Grid(sym("T_n"))), (K, LoopRole(sym("T_k"))))
    tensors = (Tensor("x", (1, 12, 1, 24), F32), Tensor("w", (24, 20, 1), F32))
    return SGraph("product", tensors, (), (Tensor("y", (12, 1, 20), F32),), (Kernel("product_kernel", roles, body),))


TILE_SUM = (op("v", "mul", "x1", "w1"), TileReduce("p", SUM, K, "v"))

# Each with the subscripts of the same product for numpy.
PLAIN: dict[str, tuple[SGraph, str]] = {
    "as it comes": (one_kernel((M, K), (K, N), (M, N)), "mk,kn->mn"),
    "whole depth": (one_kernel((M, K), (K, N), (M, N), inner=PRODUCT[:1], stored="p", role=Whole()), "mk,kn->mn"),
    "vector units": (
        one_kernel((M, K), (K, N), (M, N), inner=(*TILE_SUM, Accumulate("acc", SUM, "p"))),
        "mk,kn->mn",
    ),
    "vector units, whole depth": (
        one_kernel((M, K), (K, N), (M, N), inner=TILE_SUM, stored="p", role=Whole()),
        "mk,kn->mn",
    ),
    "one element a step": (
        one_kernel(
            (M, K), (K, N), (M, N), inner=(op("v", "mul", "w1", "x1"), Accumulate("acc", SUM, "v")), role=LoopRole(1)
        ),
        "mk,kn->mn",
    ),
    "right transposed": (one_kernel((M, K), (N, K), (M, N)), "mk,nk->mn"),
    "left transposed": (one_kernel((K, M), (K, N), (M, N)), "km,kn->mn"),
    "both transposed": (one_kernel((K, M), (N, K), (M, N)), "km,nk->mn"),
    "result transposed": (one_kernel((M, K), (K, N), (N, M)), "mk,kn->nm"),
    "loop over columns": (loop_over_columns(), "mk,kn->mn"),
    "batch": (one_kernel((B, M, K), (B, K, N), (B, M, N)), "bmk,bkn->bmn"),
    "batch inside": (one_kernel((M, B, K), (N, B, K), (M, B, N)), "mbk,nbk->mbn"),
    "two batch axes": (one_kernel((B, H, M, K), (B, H, N, K), (B, H, M, N)), "bhmk,bhnk->bhmn"),
    "rows of two axes": (one_kernel((B, M, K), (N, K), (B, M, N)), "bmk,nk->bmn"),
    "columns of two axes": (one_kernel((M, K), (H, N, K), (M, H, N)), "mk,hnk->mhn"),
    "heads taken apart": (one_kernel((B, M, K), (H, N, K), (B, M, H, N)), "bmk,hnk->bmhn"),
    "one row": (one_kernel((K,), (N, K), (N,)), "k,nk->n"),
    "one row, the matrix first": (one_kernel((N, K), (K,), (N,)), "nk,k->n"),
    "batch of rows": (one_kernel((B, K), (B, K, N), (B, N)), "bk,bkn->bn"),
    "dimensions of one": (with_ones(), ""),
    "bfloat16": (one_kernel((M, K), (N, K), (M, N), dtypes=(BF16, BF16, BF16)), "mk,nk->mn"),
}


def with_addend(
    x: Sequence[Axis],
    w: Sequence[Axis],
    y: Sequence[Axis],
    c: Sequence[Axis],
    *,
    relu: bool = False,
    zero_first: bool = False,
    dtype: DType = F32,
) -> SGraph:
    """y = sum_k x * w + c, or its positive part."""
    after: tuple[Stmt, ...] = (Load("c1", "c", at(*c)), op("s", "add", "c1", "acc"))
    if relu:
        after += (op("r", "maximum", *((0.0, "s") if zero_first else ("s", 0.0))),)
    tensor = Tensor("c", tuple(a.extent for a in c), dtype)
    stored = "r" if relu else "s"
    return one_kernel(x, w, y, after=after, stored=stored, dtypes=(dtype,) * 3, more=(tensor,))


# Each with the subscripts of the product and of what is added.
WITH_ADDEND: dict[str, tuple[SGraph, str, str]] = {
    "bias": (with_addend((M, K), (K, N), (M, N), (N,)), "mk,kn->mn", "n"),
    "bias, positive part": (with_addend((M, K), (N, K), (M, N), (N,), relu=True), "mk,nk->mn", "n"),
    "bias of two axes": (with_addend((M, K), (H, N, K), (M, H, N), (H, N)), "mk,hnk->mhn", "hn"),
    "bias of a transposed result": (with_addend((M, K), (K, N), (N, M), (M,)), "mk,kn->nm", "m"),
    "bias of one row": (with_addend((K,), (N, K), (N,), (N,)), "k,nk->n", "n"),
    "positive part, zero first": (
        with_addend((M, K), (K, N), (M, N), (N,), relu=True, zero_first=True),
        "mk,kn->mn",
        "n",
    ),
    "bias in bfloat16": (with_addend((M, K), (K, N), (M, N), (N,), relu=True, dtype=BF16), "mk,kn->mn", "n"),
    "residual": (with_addend((M, K), (K, N), (M, N), (M, N)), "mk,kn->mn", "mn"),
    "transposed residual": (with_addend((M, K), (K, N), (M, N), (N, M)), "mk,kn->mn", "nm"),
    "residual of a batch": (with_addend((B, M, K), (B, K, N), (B, M, N), (B, M, N)), "bmk,bkn->bmn", "bmn"),
}

NOT_PLAIN: dict[str, SGraph] = {
    "scaled": one_kernel((M, K), (K, N), (M, N), after=(op("s", "mul", 0.5, "acc"),), stored="s"),
    "activation": one_kernel((M, K), (K, N), (M, N), after=(op("s", "sigmoid", "acc"),), stored="s"),
    "bias along the rows": with_addend((M, K), (K, N), (M, N), (M,)),
    "bias of a batch": with_addend((B, M, K), (B, K, N), (B, M, N), (N,)),
    "residual, positive part": with_addend((M, K), (K, N), (M, N), (M, N), relu=True),
    "bias of another type": one_kernel(
        (M, K),
        (K, N),
        (M, N),
        after=(Load("b1", "bias", at(N)), op("s", "add", "acc", "b1")),
        stored="s",
        dtypes=(BF16, BF16, BF16),
        more=(Tensor("bias", (20,), F32),),
    ),
    "bias twice": one_kernel(
        (M, K),
        (K, N),
        (M, N),
        after=(Load("b1", "bias", at(N)), op("s", "add", "acc", "b1"), op("t", "add", "s", "b1")),
        stored="t",
        more=(Tensor("bias", (20,), F32),),
    ),
    "bias in every step": one_kernel(
        (M, K),
        (K, N),
        (M, N),
        inner=(*PRODUCT, Load("b1", "bias", at(N)), op("s", "add", "acc", "b1")),
        stored="s",
        more=(Tensor("bias", (20,), F32),),
    ),
    "positive part alone": one_kernel((M, K), (K, N), (M, N), after=(op("r", "maximum", "acc", 0),), stored="r"),
    "at least one": one_kernel(
        (M, K),
        (K, N),
        (M, N),
        after=(Load("b1", "bias", at(N)), op("s", "add", "acc", "b1"), op("t", "maximum", "s", 1)),
        stored="t",
        more=(Tensor("bias", (20,), F32),),
    ),
    "factor before": one_kernel(
        (M, K), (K, N), (M, N), inner=(op("e", "exp", "x1"), Contract("p", K, "e", "w1"), PRODUCT[1])
    ),
    "norm factor": one_kernel(
        (M, K),
        (K, N),
        (M, N),
        inner=(Load("g1", "g", at(K)), op("e", "mul", "x1", "g1"), Contract("p", K, "e", "w1"), PRODUCT[1]),
        more=(Tensor("g", (24,), F32),),
    ),
    "square": one_kernel((M, K), (K, N), (M, N), inner=(op("e", "mul", "x1", "x1"), Contract("p", K, "e", "w1"))),
    "two products": one_kernel(
        (M, K), (K, N), (M, N), inner=(*PRODUCT, Contract("q", K, "x1", "w1"), Accumulate("other", SUM, "q"))
    ),
    "two stores": one_kernel((M, K), (K, N), (M, N), after=(Store("y", at(M, N), "acc"),)),
    "a maximum": one_kernel((M, K), (K, N), (M, N), inner=(PRODUCT[0], Accumulate("acc", ReduceKind.MAX, "p"))),
    "a maximum of a tile": one_kernel(
        (M, K),
        (K, N),
        (M, N),
        inner=(op("v", "mul", "x1", "w1"), TileReduce("p", ReduceKind.MAX, K, "v"), Accumulate("acc", SUM, "p")),
    ),
    "a sum": one_kernel(
        (M, K), (K, N), (M, N), inner=(op("v", "add", "x1", "w1"), TileReduce("p", SUM, K, "v"), PRODUCT[1])
    ),
    "a range": one_kernel((M, K), (K, N), (M, N), range_=(Index.axis(M) + Index.axis(K).scaled(-1),)),
    "a diagonal": one_kernel((K, K), (K, N), (K, N)),
    "part of a tensor": dataclasses.replace(
        one_kernel((M, K), (K, N), (M, N)), inputs=(Tensor("x", (30, 24), F32), Tensor("w", (24, 20), F32))
    ),
    "other type stored": one_kernel((M, K), (K, N), (M, N), dtypes=(BF16, BF16, F32)),
    "mixed types": one_kernel((M, K), (K, N), (M, N), dtypes=(F32, BF16, BF16)),
    "integers": one_kernel((M, K), (K, N), (M, N), dtypes=(DType.INT8, DType.INT8, DType.INT8)),
    "rows apart": one_kernel((B, K, M), (K, N), (B, M, N)),
    "rows in another order": one_kernel((M, B, K), (K, N), (B, M, N)),
    "batch last": one_kernel((M, K, B), (K, N, B), (M, N, B)),
    "no product": one_kernel((B, K), (B, K), (B,)),
    "split": samples.split_k_matmul().sgraph,
    "two sums": samples.batched_loop().sgraph,
    "a sum besides": samples.heads_projection().sgraph,
    "attention": samples.attention().sgraph,
    "broadcast": one_kernel((M, K), (K, N), (M, N, B)),
    "shifted": SGraph(
        "product",
        (Tensor("x", (12, 25), F32), Tensor("w", (24, 20), F32)),
        (),
        (Tensor("y", (12, 20), F32),),
        (
            Kernel(
                "product_kernel",
                ((M, Grid(sym("T_m"))), (N, Grid(sym("T_n"))), (K, LoopRole(sym("T_k")))),
                (
                    Loop(
                        K,
                        (
                            Load("x1", "x", (*at(M), Index.axis(K) + 1)),
                            Load("w1", "w", at(K, N)),
                            *PRODUCT,
                        ),
                    ),
                    Store("y", at(M, N), "acc"),
                ),
            ),
        ),
    ),
}


def found(g: SGraph) -> PlainProduct | None:
    results = [plain_product(k, g) for k in g.kernels]
    return results[0] if len(results) == 1 else next((r for r in results if r is not None), None)


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_product_is_recognised(name: str) -> None:
    g, _ = PLAIN[name]
    product = found(g)
    assert product is not None
    assert product.depth == K
    assert list(plain_products(g)) == ["product_kernel"]


@pytest.mark.parametrize("name", WITH_ADDEND)
def test_a_product_and_what_is_added_is_recognised(name: str) -> None:
    g, _, added = WITH_ADDEND[name]
    product = found(g)
    assert product is not None
    assert product.addend is not None
    assert product.relu == any(isinstance(s, Pointwise) and s.op == "maximum" for s in g.kernels[0].body)
    assert product.copies_addend == (len(added) == len(g.outputs[0].shape) and len(product.rows) > 0)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_anything_else_is_not(name: str) -> None:
    assert found(NOT_PLAIN[name]) is None


def test_of_the_samples_the_products_alone_qualify() -> None:
    plain_ones = {s.__name__ for s in samples.SAMPLES for p in [plain_products(s(F32).sgraph)] if p}
    assert plain_ones == {"matmul", "symbolic_matmul"}


def module_of(g: SGraph, folder: Path, configs: Sequence[Config] = ()) -> Path:
    path = folder / f"{g.name}.py"
    path.write_text(emit_module(g, formula="a product", configs={"cpu": configs} if configs else {}).text)
    return path


def library_config(g: SGraph, *names: str) -> Config:
    launches = [x.name for x in g.launches if x.name not in names]
    tiles = {s.name: 16 for s in g.symbols}
    return Config(tiles, dict.fromkeys(launches, 4), dict.fromkeys(launches, 1)).having(library=names)


@pytest.mark.parametrize("name", PLAIN)
def test_the_library_computes_the_product(name: str, tmp_path: Path) -> None:
    g, subscripts = PLAIN[name]
    module = load_module(module_of(g, tmp_path), apart=True)
    rng = np.random.default_rng(0)
    dtype = getattr(torch, g.inputs[0].dtype.value)
    x, w = (torch.from_numpy(rng.standard_normal(t.shape)).to(dtype) for t in g.inputs)
    y = torch.full(g.outputs[0].shape, float("nan"), dtype=dtype)
    config = library_config(g, "product_kernel").encode()
    ((kernel, grid, args, meta),) = module.launches(x, w, y, config=config)
    kernel[grid](*args, **meta)
    left, right = x.double().numpy(), w.double().numpy()
    if subscripts:
        expected = np.einsum(subscripts, left, right)
    else:
        expected = np.einsum("mk,kn->mn", left[0, :, 0], right[:, :, 0])[:, None]
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    np.testing.assert_allclose(y.double().numpy(), expected, atol=tolerance * float(np.abs(expected).max()))
    # The operands are views of what was given, and so is the result.
    assert {a.untyped_storage().data_ptr() for a in args} == {t.untyped_storage().data_ptr() for t in (x, w, y)}
    # Shapes alone are enough for whoever compiles.
    given = [torch.empty(t.shape, dtype=dtype, device="meta") for t in (*g.inputs, *g.outputs)]
    ((named, _, views, _),) = module.launches(*given, config=config)
    assert named.__name__ == "product_kernel"
    assert all(v.device.type == "meta" for v in views)
    assert named.warmup(*views, grid=(1,)) is None


@pytest.mark.parametrize("name", WITH_ADDEND)
def test_the_library_adds_as_it_stores(name: str, tmp_path: Path) -> None:
    g, subscripts, added = WITH_ADDEND[name]
    module = load_module(module_of(g, tmp_path), apart=True)
    rng = np.random.default_rng(0)
    dtype = getattr(torch, g.inputs[0].dtype.value)
    x, w, c = (torch.from_numpy(rng.standard_normal(t.shape)).to(dtype) for t in g.inputs)
    y = torch.full(g.outputs[0].shape, float("nan"), dtype=dtype)
    ((kernel, grid, args, meta),) = module.launches(x, w, c, y, config=library_config(g, "product_kernel").encode())
    kernel[grid](*args, **meta)
    left, right, more = (t.double().numpy() for t in (x, w, c))
    result = subscripts.split("->")[1]
    product = np.einsum(subscripts, left, right)
    expected = product + np.einsum(f"{added},{result}->{result}", more, np.ones_like(product))
    if name in ("bias, positive part", "positive part, zero first", "bias in bfloat16"):
        expected = np.maximum(expected, 0.0)
    tolerance = 1e-5 if dtype == torch.float32 else 0.01
    np.testing.assert_allclose(y.double().numpy(), expected, atol=tolerance * float(np.abs(expected).max()))
    assert {a.untyped_storage().data_ptr() for a in args} == {t.untyped_storage().data_ptr() for t in (x, w, c, y)}


def test_an_addend_costs_its_bytes_and_a_copy_where_it_is_a_matrix() -> None:
    hints = {"T_m": 16, "T_n": 16, "T_k": 16}
    plain, bias, residual = (
        found(g) for g in (PLAIN["as it comes"][0], WITH_ADDEND["bias"][0], WITH_ADDEND["residual"][0])
    )
    assert plain is not None
    assert bias is not None
    assert residual is not None
    moved = [library_times(extents(p, hints), p.dtype, H200).bytes for p in (plain, bias, residual)]
    assert [m - moved[0] for m in moved] == [0, 20 * 4, 3 * 12 * 20 * 4]
    spills = [library_times(extents(p, hints), p.dtype, H200).spill for p in (plain, bias, residual)]
    assert spills == [0.0, 0.0, H200.launch_overhead_s]


def test_precision_is_as_generated_and_the_users_own_comes_back(tmp_path: Path) -> None:
    module = load_module(module_of(PLAIN["as it comes"][0], tmp_path), apart=True)
    flags = torch.backends.cuda.matmul
    seen: list[object] = []

    def spy(lhs: Any, rhs: Any, *, out: Any) -> None:
        seen.append((flags.fp32_precision, flags.allow_bf16_reduced_precision_reduction))
        if lhs.shape[0] == 7:
            raise RuntimeError("refused")

    fake = types.SimpleNamespace(
        mm=spy, bmm=spy, float32=torch.float32, bfloat16=torch.bfloat16, float16=torch.float16, backends=torch.backends
    )
    vars(module)["torch"] = fake
    before = flags.fp32_precision
    try:
        flags.fp32_precision = "tf32"
        product = module.LibraryProduct("p")
        product[1,](torch.empty(2, 3), torch.empty(3, 2), torch.empty(2, 2))
        assert seen.pop()[0] == "ieee"  # type: ignore[index]
        assert flags.fp32_precision == "tf32"
        half = [torch.empty(s, dtype=torch.bfloat16) for s in ((7, 3), (3, 2), (7, 2))]
        with pytest.raises(RuntimeError, match="refused"):
            product[1,](*half)
        assert seen == [("tf32", False)]
        assert flags.allow_bf16_reduced_precision_reduction is True
    finally:
        flags.fp32_precision = before


def test_symbolic_extents(tmp_path: Path) -> None:
    g = samples.symbolic_matmul(F32).sgraph
    module = load_module(module_of(g, tmp_path), apart=True)
    names = tuple(plain_products(g))
    for m in (1, 5):
        sizes = {s: 3 + n for n, s in enumerate(sorted({str(e) for t in g.inputs for e in t.shape}))}
        shapes = [[e if isinstance(e, int) else sizes.get(str(e), m) for e in t.shape] for t in g.inputs]
        x, w = (torch.randn(s) for s in shapes)
        y = torch.empty(x.shape[0], w.shape[1])
        for kernel, grid, args, meta in module.launches(x, w, y, config=library_config(g, *names).encode()):
            kernel[grid](*args, **meta)
        torch.testing.assert_close(y, x @ w)


# Configurations.


def test_a_config_without_library_calls_is_what_it_was() -> None:
    old = Config({"T": 16}, {"k": 4}, {"k": 2})
    assert old.key() == "T=16 warps.k=4 stages.k=2"
    assert old.encode() == {"symbols": {"T": 16}, "warps": {"k": 4}, "stages": {"k": 2}}
    assert config_of({"T": 16, "warps.k": 4, "stages.k": 2}) == old
    new = old.having(library=frozenset({"p", "o"}))
    assert new.key() == "T=16 warps.k=4 stages.k=2 library.o library.p"
    assert new.encode()["library"] == ["o", "p"]
    assert config_of(new.flat()) == new


def test_the_emitted_configs_say_library_and_no_other_launch_may(tmp_path: Path) -> None:
    g = PLAIN["as it comes"][0]
    text = module_of(g, tmp_path, [library_config(g, "product_kernel")]).read_text()
    (config,), _ = module_facts(text)
    assert config["library"] == ["product_kernel"]
    with pytest.raises(BackendError, match="no library computes the launch other"):
        emit_module(g, formula="", configs={"t": [library_config(g, "other")]})
    attention = samples.attention().sgraph
    text = emit_module(attention, formula="", configs={}).text
    assert "LibraryProduct" not in text
    assert "library" not in text[text.index("def launches") : text.index("def _results")]


# The space and the model.


def test_the_library_is_one_point_of_a_product_and_none_of_anything_else() -> None:
    space = Space(small.matmul(64, 64, 64), H200, {})
    every = list(space.configs())
    calls = [c for c in every if c.launches("library")]
    assert [sorted(c.launches("library")) for c in calls] == [["matmul"]]
    assert len(every) == space.size
    assert len({c.key() for c in every}) == space.size
    (call,) = calls
    assert space.feasible(call)
    assert not call.warps
    assert not call.stages
    assert {s.name for s in space.sgraph.symbols} == set(call.symbols)
    for g in (small.split_k(), small.layer_norm()):
        other = Space(g, H200, {})
        assert not open_to(other, "library")
        assert not other.feasible(next(other.configs()).having(library=frozenset({g.kernels[0].name})))


def test_where_launches_have_no_options_there_is_no_library() -> None:
    cpu = multicore("a CPU", cores=4, vector_bytes=32, l1_bytes=1 << 15, l2_bytes=1 << 19, llc_bytes=1 << 24)
    space = Space(small.matmul(64, 64, 64), cpu, {})
    assert not open_to(space, "library")
    assert not any(c.launches("library") for c in space.configs(500))


def chain(n: int = 4096) -> SGraph:
    """z = (x w) v, and a first kernel that is no product."""
    am, ak, an, ao = Axis("m", n), Axis("k", n), Axis("n", n), Axis("o", n)

    def product(name: str, a: str, b: str, out: str, axes: tuple[Axis, Axis, Axis]) -> Kernel:
        r, d, c = axes
        body = (
            Loop(
                d,
                (
                    Load("x1", a, at(r, d)),
                    Load("w1", b, at(d, c)),
                    Contract("p", d, "x1", "w1"),
                    Accumulate("acc", SUM, "p"),
                ),
            ),
            Store(out, at(r, c), "acc"),
        )
        roles = (
            (r, Grid(sym(f"T_{r.name}_{name}"))),
            (c, Grid(sym(f"T_{c.name}_{name}"))),
            (d, LoopRole(sym(f"T_{d.name}_{name}"))),
        )
        return Kernel(name, roles, body)

    act = Kernel(
        "act",
        ((am, Grid(sym("T_m_act"))), (ak, Grid(sym("T_k_act")))),
        (Load("x1", "x", at(am, ak)), op("r1", "maximum", "x1", 0.0), Store("r", at(am, ak), "r1")),
    )
    inputs = tuple(Tensor(t, (n, n), BF16) for t in ("x", "w", "v"))
    kernels = (act, product("first", "r", "w", "y", (am, ak, an)), product("second", "y", "v", "z", (am, an, ao)))
    return SGraph(
        "chain", inputs, (Tensor("r", (n, n), BF16), Tensor("y", (n, n), BF16)), (Tensor("z", (n, n), BF16),), kernels
    )


def test_the_model_takes_the_library_for_a_large_product() -> None:
    g = chain()
    spec.check(g)
    space, model = Space(g, H200, {}), Model(g, H200, {})
    (best, estimate), *_ = space.points_ranked(model, 3)
    assert best.launches("library") == {"first", "second"}
    assert set(best.warps) == set(best.stages) == {"act"}
    # Each of the library's at no more than its share of the peak, and the ranking is that of the estimates.
    peak = 2 * 4096**3 / (H200.half_dot_flops * LIBRARY_EFFICIENCY)
    for launch in estimate.per_kernel[1:]:
        assert peak <= launch.seconds <= 1.35 * peak
        assert launch.limiter == "compute"
    ranked = [e.seconds for _, e in space.points_ranked(model, 50)]
    assert ranked == sorted(ranked)
    one = dataclasses.replace(best, warps={**best.warps, "second": 8}, stages={**best.stages, "second": 3}).having(
        library=frozenset({"first"})
    )
    assert model.seconds(one) > estimate.seconds
    with pytest.raises(BackendError, match="no library"):
        model.seconds(best.having(library=frozenset({"act", "first", "second"})))


def product_of(m: int, n: int, k: int, dtype: DType = BF16) -> PlainProduct:
    g = small.matmul(m, n, k, dtype)
    product = plain_products(g)["matmul"]
    return product


def seconds(m: int, n: int, k: int) -> float:
    return float(library_times(extents(product_of(m, n, k), {}), BF16, H200).total(H200.launch_overhead_s))


def test_a_product_of_few_rows_is_bound_by_memory() -> None:
    for m in (1, 16, 64):
        times = library_times(extents(product_of(m, 4096, 4096), {}), BF16, H200)
        moved = 2 * (m * 4096 * 2 + 4096 * 4096)
        assert times.memory >= moved / H200.bandwidth_bytes_s
        assert times.memory > times.compute
        assert seconds(m, 4096, 4096) < 4 * moved / H200.bandwidth_bytes_s
    assert seconds(1, 4096, 4096) <= seconds(64, 4096, 4096) < seconds(2048, 4096, 4096)


def test_a_tail_of_tiles_costs_a_wave() -> None:
    # 132 multiprocessors: as many tiles as they take at once, and one more.
    full, over = seconds(128 * 132, 256, 8192), seconds(128 * 132 + 1, 256, 8192)
    assert over > 1.05 * full
    assert full < seconds(128 * 264, 256, 8192)


def test_symbolic_rows_are_taken_at_their_hint() -> None:
    g = small.matmul(symbol("seq"), 4096, 4096, BF16)
    p = plain_products(g)["matmul"]
    few, many = (float(library_times(extents(p, {"seq": s}), p.dtype, H200).total(0.0)) for s in (8, 8192))
    assert many > 4 * few


def test_a_family_that_the_library_makes_good_is_kept() -> None:
    g = chain(2048)
    kernel = g.kernels[1]
    without = reach([kernel], g, DEVICE, [{}])
    with_it = reach([kernel], g, dataclasses.replace(DEVICE, library=True), [{}])
    assert not isinstance(without, str)
    assert not isinstance(with_it, str)
    # Each element once: no tiling moves so little.
    assert with_it.ideal[0][0] == 3 * 2 * 2048**2 < without.ideal[0][0]
    assert not with_it.covered([without])
    assert without.covered([with_it])
    act = g.kernels[0]
    plain_ = [reach([act], g, d, [{}]) for d in (DEVICE, dataclasses.replace(DEVICE, library=True))]
    assert [r.ideal[0].tolist() for r in plain_ if not isinstance(r, str)] == [plain_[0].ideal[0].tolist()] * 2  # type: ignore[union-attr]


def test_a_library_shares_the_depth_of_a_product_of_few_tiles() -> None:
    device = dataclasses.replace(DEVICE, library=True)

    def ranked(m: int, n: int, k: int) -> tuple[float, float]:
        g = small.matmul(m, n, k, BF16)
        r = reach(g.kernels, g, device, [{}])
        assert not isinstance(r, str)
        return r.seconds, 2.0 * (m * k + k * n + m * n) / device.bandwidth_bytes_s

    # 64 tiles of 64 x 64 fill half of the device; parts of the depth fill it, for a launch more and what they store.
    seconds, least = ranked(64, 4096, 14_336)
    assert least + 2 * device.launch_overhead_s < seconds < 1.2 * least + 2 * device.launch_overhead_s
    # Tiles that fill it need none.
    seconds, least = ranked(64, 64 * 132, 14_336)
    assert seconds == pytest.approx(least + device.launch_overhead_s)


# Proposals, compilation, the gate.


def test_proposals_have_one_dimension_more_and_reach_the_library() -> None:
    g = small.matmul(64, 64, 64)
    points = list(Space(g, H200, {}).configs(400))
    points += [c for c in Space(g, H200, {}).configs() if c.launches("library") and c not in points]
    proposer = Proposer([points], [Point(0, p) for p in points], 0)
    calls = [p for p in points if p.launches("library")]
    assert len(calls) == 1
    values, kinds = proposer.parameters(Point(0, calls[0]))
    assert values["0.stages.matmul"] == 0
    assert kinds.keys() == values.keys()
    history: list[tuple[Point, float | None]] = [(Point(0, p), 1e-3 + n) for n, p in enumerate(points[:8])]
    assert proposer.propose(history, 4, 1)[0] == proposer.propose(history, 4, 1)[0]
    # A whole sweep by proposals meets it exactly once.
    left, _ = proposer.propose([(Point(0, p), 1.0) for p in points if not p.launches("library")], 2, 0)
    assert left == [Point(0, calls[0])]


def test_the_compiler_says_nothing_of_a_library_call(
    compile_job: Callable[[CompileJob], Compiled], tmp_path: Path
) -> None:
    g = chain(256)
    config = library_config(g, "first")
    done = compile_job(CompileJob(module_of(g, tmp_path), "sm_90", config, arguments(g, {})))
    assert not done.error
    act, first, second = done.resources
    assert (first.kernel, first.shared, first.registers, first.spills, first.warps) == ("first", 0, 0, 0, 0)
    assert act.warps == second.warps == 4
    assert second.shared > 0
    # What is not known of it changes no estimate.
    model = Model(g, H200, {})
    assert model.estimate(config, [first]).per_kernel[1] == model.estimate(config).per_kernel[1]


def run_sample(interpreter: InterpreterPool, folder: Path, sample: Sample, config: Config) -> np.ndarray:
    g = sample.sgraph
    inputs = sample.inputs({})
    source = emit_module(g, formula="", configs={})
    path = folder / f"{g.name}.py"
    path.write_text(source.text)
    dtypes = tuple(t.dtype.value for t in g.inputs)
    (made,) = interpreter.run(InterpretJob(path, source.entry, tuple(inputs), dtypes, config))
    return np.asarray(made)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_the_launcher_gives_what_the_generated_kernel_gives(
    interpreter: InterpreterPool, tmp_path: Path, dtype: DType
) -> None:
    sample = samples.matmul(dtype)
    generated = run_sample(interpreter, tmp_path, sample, library_config(sample.sgraph))
    library = run_sample(interpreter, tmp_path, sample, library_config(sample.sgraph, "matmul_kernel"))
    (expected,) = sample.reference(*(np.asarray(a, np.float64) for a in sample.inputs({})))
    tolerance = {F32: 1e-5, F16: 2e-3, BF16: 2e-2}[dtype] * float(np.abs(expected).max())
    np.testing.assert_allclose(library, expected, atol=tolerance)
    np.testing.assert_allclose(library, generated, atol=tolerance)


def chain_program(n: int = 64) -> Program:
    i, k, a, o = Axis("i", n), Axis("k", n), Axis("a", n), Axis("o", n)
    inputs = tuple(Tensor(t, (n, n), BF16) for t in ("x", "w", "v"))
    r = Definition("r", (i, k), build.op("maximum", build.read("x", i, k), build.const(0.0)), BF16)
    y = Definition("y", (i, a), build.reduce("sum", k, build.mul(build.read("r", i, k), build.read("w", k, a))), BF16)
    z = Definition("z", (i, o), build.reduce("sum", a, build.mul(build.read("y", i, a), build.read("v", a, o))), BF16)
    return Program("chain", inputs, (r, y, z), ("z",), {"seq": SymbolRange(1, 8, 4)} if n == 0 else {})


def test_the_gate_runs_library_calls_and_catches_wrong_ones(runner: KernelRunner, tmp_path: Path) -> None:
    g = chain(64)
    config = library_config(g, "first", "second")
    path = module_of(g, tmp_path)
    report = check_module(chain_program(), path, g, config, runner=runner, limit=4)
    assert report.passed, report.failures
    wrong = tmp_path / "wrong.py"
    text = path.read_text()
    assert "(y, v, z)" in text
    start, end = text.index('yield (LibraryProduct("second")'), text.index("else:", text.index('"second"'))
    wrong.write_text(text[:start] + text[start:end].replace("(y, v, z)", "(y, v.mT, z)", 1) + text[end:])
    assert not check_module(chain_program(), wrong, g, config, runner=runner, limit=4).passed


@pytest.mark.slow
def test_optimize_picks_the_library_where_the_model_says_so(interpreter: InterpreterPool, tmp_path: Path) -> None:
    """The whole path: the folder says library, works without prism, and is verified."""

    def scored(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.layer_norm(x @ w, (w.shape[1],))) + r

    shapes = ((128, 256), (256, 1024), (128, 1024))
    meta = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes]
    made = prism.optimize(prism.trace(scored, meta, name="scored"), target="sm_90", out=tmp_path / "out", trials=1)
    assert made.out is not None
    lock = json.loads((made.out / "prism.lock.json").read_text())
    config = config_of(lock["config"])
    (launch,) = config.launches("library")
    (record,) = (k for k in made.report.kernels if k.name == launch)
    assert record.config == "library"
    assert record.shared == record.registers == record.spills == 0
    configs, _ = module_facts(made.module)
    assert configs == [config.encode()]
    assert made.report.evidence is Evidence.ESTIMATED
    assert verify(made.out).passed
    rng = np.random.default_rng(0)
    given = tuple(samples.rounded(rng.standard_normal(s), BF16) for s in shapes)
    path = made.out / "scored.py"
    (out,) = interpreter.run(InterpretJob(path, "scored", given, ("bfloat16",) * 3, config))
    expected = scored(*(torch.from_numpy(np.asarray(g, np.float64)) for g in given)).numpy()
    np.testing.assert_allclose(np.asarray(out), expected, atol=0.03 * float(np.abs(expected).max()))


# The search.


def mlp_task(dtype: DType, library: bool) -> Task:
    """relu(x w) v with few rows: what is stored between the products is next to nothing beside the weights."""
    i, k, h, o = Axis("i", 2), Axis("k", 128), Axis("h", 256), Axis("o", 64)
    inputs = (Tensor("x", (2, 128), dtype), Tensor("w", (128, 256), dtype), Tensor("v", (256, 64), dtype))
    hidden = build.reduce("sum", k, build.mul(build.read("x", i, k), build.read("w", k, h)))
    active = build.op("maximum", hidden, build.const(0.0))
    y = Definition("y", (i, o), build.reduce("sum", h, build.mul(active, build.read("v", h, o))), dtype)
    p = Program("mlp", inputs, (y,), ("y",))
    formulas = inline(p)
    device = dataclasses.replace(DEVICE, library=library)
    return Task(p.name, p.inputs, formulas, classes_of([f.expr for f in formulas]), {}, device)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_what_products_alone_read_is_stored_as_they_take_it(dtype: DType) -> None:
    stored = {
        b.dtype
        for g in (c.sgraph for c in generate(mlp_task(dtype, True), Bounds()).candidates)
        for k in g.kernels
        for b in g.buffers
        if b.name in k.reads and "part" not in b.name and k.writes == ("y",)
    }
    # float16 has not float32's range: what is small stays in float32 there, but where the library is given it.
    assert stored == {BF16: {BF16}, F16: {F32, F16}, F32: {F32}}[dtype]


def biased_layers(act: Callable[[Expr], Expr], rows: int = 512) -> Task:
    """A norm, a product with a bias, something element by element, and a product with a bias: four operators."""
    i, k, h, o = Axis("i", rows), Axis("k", 1024), Axis("h", 4096), Axis("o", 512)
    shapes = {"x": (rows, 1024), "w": (1024, 4096), "b": (4096,), "v": (4096, 512), "c": (512,)}
    x = build.read("x", i, k)
    normed = build.mul(x, build.recip(build.reduce("sum", k, build.op("abs", x))))
    first = build.reduce("sum", k, build.mul(normed, build.read("w", k, h)))
    active = act(build.add(first, build.read("b", h)))
    second = build.reduce("sum", h, build.mul(active, build.read("v", h, o)))
    y = Definition("y", (i, o), build.add(second, build.read("c", o)), BF16)
    p = Program("layers", tuple(Tensor(t, s, BF16) for t, s in shapes.items()), (y,), ("y",))
    formulas = inline(p)
    return Task(p.name, p.inputs, formulas, classes_of([f.expr for f in formulas]), {}, device("sm_90"), (), 4)


@pytest.mark.parametrize(
    "act",
    [
        lambda e: build.mul(e, build.op("sigmoid", e)),
        lambda e: build.op("sigmoid", e),  # which the pruner `chain` would store in place of its operand
        lambda e: build.op("maximum", e, build.const(0.0)),
    ],
)
def test_products_are_left_to_the_library_in_as_many_launches_as_operators_take(act: Callable[[Expr], Expr]) -> None:
    t = biased_layers(act)

    def most(t: Task, bounds: Bounds) -> int:
        return max(len(plain_products(c.sgraph)) for c in generate(t, bounds).candidates)

    assert most(t, Bounds()) == 2
    kept = [c.sgraph for c in generate(t, Bounds()).candidates if len(plain_products(c.sgraph)) == 2]
    relu = any(p.relu for g in kept for p in plain_products(g).values())
    assert min(len(g.kernels) for g in kept) == (3 if relu else 4)
    assert any(all(p.addend is not None for p in plain_products(g).values()) for g in kept)
    # A round alone keeps to three kernels.
    assert most(t, Bounds(max_rounds=1)) == (2 if relu else 1)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_a_small_result_is_left_to_the_library_too_and_stored_as_the_model_has_it(dtype: DType) -> None:
    """Splits do no worse in the pruners' eyes, and what is small beside the weights is stored in float32 elsewhere."""
    i, k, h = Axis("i", 512), Axis("k", 4096), Axis("h", 2048)
    inputs = (Tensor("x", (512, 4096), dtype), Tensor("w", (4096, 2048), dtype))
    product = build.reduce("sum", k, build.mul(build.read("x", i, k), build.read("w", k, h)))
    y = Definition("y", (i, h), build.op("maximum", product, build.const(0.0)), dtype)
    p = Program("positive", inputs, (y,), ("y",))
    formulas = inline(p)
    t = Task(p.name, p.inputs, formulas, classes_of([f.expr for f in formulas]), {}, device("sm_90"), (), 2)
    found = [c.sgraph for c in generate(t, Bounds()).candidates]
    (called,) = [g for g in found if plain_products(g)]
    assert [b.dtype for b in called.buffers] == [dtype]
    assert {b.dtype for g in found if g is not called and len(g.kernels) > 1 for b in g.buffers} == {F32}


def test_the_search_keeps_the_families_that_a_library_makes_good() -> None:
    def products(library: bool) -> list[int]:
        found = [c.sgraph for c in generate(mlp_task(BF16, library), Bounds()).candidates]
        return [n for n, g in enumerate(found) if plain_products(g)]

    assert products(True)
    # The same task gives the same answer.
    assert products(True) == products(True)
    assert len(products(False)) <= len(products(True))


def test_the_outlook_of_a_product_counts_each_element_once() -> None:
    task = mlp_task(BF16, True)
    weights = Weights(task.classes, {})
    form = forms(task.classes, options(task.classes, frozenset(), Counter()), weights, 4).found[0]

    def estimate(library: bool) -> list[float]:
        device = dataclasses.replace(DEVICE, library=library)
        planner = Planner(task.formulas, task.inputs, Within(form.choices), weights, device)
        plans = list(planner.plans(2, 4, Counter()))
        return [PlanEstimate(weights, planner.within, task.formulas, task.inputs, device).seconds(p) for p in plans]

    with_it, without = estimate(True), estimate(False)
    assert all(a <= b for a, b in zip(with_it, without, strict=True))
    assert any(a < b for a, b in zip(with_it, without, strict=True))
