"""A vendor library's attention as one of a kernel's instantiations: what qualifies, that it is right, what it costs."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sgraph_small as small
import torch
from finalist import open_to
from interpreting import InterpreterPool, InterpretJob
from sgraph_programs import PLAIN as DEVICE
from sgraph_samples import BF16, F16, F32, MAX, SUM, op, sym
from short_calls import config_of

from prism.api.choosing import _without_library
from prism.api.loading import trace
from prism.api.region_search import SearchBudget, run_search
from prism.backends.loading import load_module
from prism.backends.triton.emit import emit_module
from prism.cost.device import device
from prism.cost.library import call_times
from prism.cost.model import Model
from prism.egraph.worker import Worker
from prism.events import Evidence, Recorder
from prism.generate.pruning import reach
from prism.instantiate.proposals import Point
from prism.instantiate.space import Space
from prism.instantiate.study import Best, Outcome, Trial, TuneResult
from prism.program.extents import Extent, symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.library import PlainAttention, library_calls
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Position,
    Role,
    SGraph,
    Stmt,
    Store,
    TileReduce,
    Whole,
)

H200 = device("sm_90")
INF = float("inf")
B, H, G, D, E = Axis("b", 2), Axis("h", 3), Axis("g", 4), Axis("d", 16), Axis("e", 16)
Places = tuple[Index, ...]


def at(*places: Axis | Index) -> Places:
    return tuple(Index.axis(p) if isinstance(p, Axis) else p for p in places)


LATER = (
    op("seen", "le", "pj", "pi"),
    op("s", "where", "seen", "scaled", -INF),
)
SCALED = (op("scaled", "mul", "qk", 0.25),)
AFTER = (op("inv", "recip", "l"), op("out", "mul", "o", "inv"))


def attention(
    causal: bool = True,
    *,
    n: Extent = 24,
    keys: Extent | None = None,
    query: Callable[[Axis], Places] = lambda i: at(B, H, i, D),
    key: Callable[[Axis], Places] = lambda j: at(B, H, j, D),
    value: Callable[[Axis], Places] = lambda j: at(B, H, j, E),
    out: Callable[[Axis], Places] = lambda i: at(B, H, i, E),
    shapes: dict[str, tuple[Extent, ...]] | None = None,
    scores: tuple[Stmt, ...] = SCALED,
    mask: tuple[Stmt, ...] = LATER,
    ranged: bool | None = None,
    after: tuple[Stmt, ...] = AFTER,
    axes: tuple[Axis, ...] = (B, H),
    dtype: DType = BF16,
) -> SGraph:
    """Attention in one pass over the keys, with what is given in place of its parts."""
    i, j = Axis("i", n), Axis("j", n if keys is None else keys)
    positions = (Position("pj", Index.axis(j)), Position("pi", Index.axis(i)))
    seen: tuple[Stmt, ...] = (*positions, *mask) if causal else ()
    s = "s" if causal else "scaled"
    body: tuple[Stmt, ...] = (
        Load("k1", "k", key(j)),
        Contract("qk", D, "q1", "k1"),
        *scores,
        *seen,
        TileReduce("top", MAX, j, s),
        Accumulate("m", MAX, "top"),
        op("minus", "mul", -1.0, "m"),
        op("diff", "add", s, "minus"),
        op("p", "exp", "diff"),
        TileReduce("psum", SUM, j, "p"),
        Accumulate("l", SUM, "psum", "m"),
        Load("v1", "v", value(j)),
        Contract("pv", j, "p", "v1"),
        Accumulate("o", SUM, "pv", "m"),
    )
    within = (Index.axis(i) + Index.axis(j).scaled(-1),) if (causal if ranged is None else ranged) else ()
    body = (Load("q1", "q", query(i)), Loop(j, body, within), *after, Store("y", out(i), "out"))
    roles: tuple[tuple[Axis, Role], ...] = (
        *((a, Grid(1)) for a in axes),
        (i, Grid(sym("T_i"))),
        (j, LoopRole(sym("T_j"))),
        (D, Whole()),
        (E, Whole()),
    )
    places = {"q": query(i), "k": key(j), "v": value(j), "y": out(i)}
    tensors = {}
    for name, index in places.items():
        plain = tuple(p.terms[0][0].extent if len(p.terms) == 1 else 1 for p in index)  # type: ignore[union-attr]
        tensors[name] = Tensor(name, (shapes or {}).get(name, plain), dtype)
    kernel = Kernel("attention_kernel", roles, body)
    inputs = tuple({t: tensors[t] for t in "qkv"}.values())
    return SGraph("attention", inputs, (), (tensors["y"],), (kernel,))


def two_passes(divided: bool = False) -> SGraph:
    """The largest product and the sum of the weights before what is weighed."""
    n = 24
    i, j = Axis("i", n), Axis("j", n)
    score = (Load("k1", "k", at(B, H, j, D)), Contract("qk", D, "q1", "k1"))
    again = (Load("k2", "k", at(B, H, j, D)), Contract("qk2", D, "q1", "k2"))
    weight = (op("scaled", "mul", "qk2", 0.25), op("diff", "add", "scaled", "minus"), op("p", "exp", "diff"))
    total = (TileReduce("psum", SUM, j, "p"), Accumulate("l", SUM, "psum"))
    weighed = (Load("v1", "v", at(B, H, j, E)), Contract("pv", j, "p", "v1"), Accumulate("o", SUM, "pv"))
    body: tuple[Stmt, ...] = (
        Load("q1", "q", at(B, H, i, D)),
        Loop(j, (*score, TileReduce("top", MAX, j, "qk"), Accumulate("m", MAX, "top"))),
        op("minus", "mul", -0.25, "m"),
    )
    if divided:
        third: tuple[Stmt, ...] = (
            Load("k3", "k", at(B, H, j, D)),
            Contract("qk3", D, "q1", "k3"),
            op("scaled3", "mul", "qk3", 0.25),
            op("diff3", "add", "scaled3", "minus"),
            op("p3", "exp", "diff3"),
            op("share", "mul", "p3", "inv"),
            Load("v1", "v", at(B, H, j, E)),
            Contract("pv", j, "share", "v1"),
            Accumulate("out", SUM, "pv"),
        )
        body += (Loop(j, (*again, *weight, *total)), op("inv", "recip", "l"), Loop(j, third))
    else:
        body += (Loop(j, (*again, *weight, *total, *weighed)), *AFTER)
    g = attention(False)
    kernel = Kernel("attention_kernel", g.kernels[0].roles, (*body, Store("y", at(B, H, i, E), "out")))
    return dataclasses.replace(g, kernels=(kernel,))


def heads(*axes: Axis) -> Index:
    """One dimension of these axes, the last the fastest."""
    total = Index.const(0)
    for a in axes:
        total = total.scaled(a.extent) + Index.axis(a)
    return total


GROUPED = (B, H, G)
FUSED: dict[str, SGraph] = {
    "causal": attention(),
    "every key": attention(False),
    "fewer keys": attention(False, keys=40),
    "float16": attention(dtype=F16),
    "heads behind rows": attention(query=lambda i: at(B, i, H, D), out=lambda i: at(B, i, H, E)),
    "heads in the width": attention(out=lambda i: at(B, i, heads(H, E)), shapes={"y": (2, 24, 48)}),
    "a width of its own": attention(out=lambda i: at(B, H, Index.const(0), i, E)),
    "shared keys": attention(
        query=lambda i: at(B, heads(H, G), i, D),
        out=lambda i: at(B, heads(H, G), i, E),
        shapes={"q": (2, 12, 24, 16), "y": (2, 12, 24, 16)},
        axes=GROUPED,
    ),
    "shared keys, every key": attention(
        False, query=lambda i: at(B, H, G, i, D), out=lambda i: at(B, H, G, i, E), axes=GROUPED
    ),
    "keys of all heads": attention(key=lambda j: at(B, j, D), value=lambda j: at(B, j, E)),
    "the scale after the mask": attention(
        scores=(op("scaled", "mul", "qk", 1.0),),
        mask=(op("seen", "le", "pj", "pi"), op("raw", "where", "seen", "qk", -INF), op("s", "mul", "raw", 0.25)),
    ),
    "two passes, a multiple of the largest": two_passes(),
    "two passes, weights divided": two_passes(divided=True),
    "what is hidden first": attention(mask=(op("late", "lt", "pi", "pj"), op("s", "where", "late", -INF, "scaled"))),
    "what is not hidden": attention(
        mask=(op("late", "lt", "pi", "pj"), op("seen", "not", "late"), op("s", "where", "seen", "scaled", -INF))
    ),
    "a difference of places": attention(
        mask=(
            op("back", "mul", "pj", -1.0),
            op("far", "add", "pi", "back"),
            op("seen", "lt", -1.0, "far"),
            op("s", "where", "seen", "scaled", -INF),
        ),
        ranged=False,
    ),
    "any length": attention(n=symbol("seq")),
    "any length, shared keys": attention(
        n=symbol("seq"),
        query=lambda i: at(B, i, heads(H, G), D),
        out=lambda i: at(B, i, heads(H, G), E),
        shapes={"q": (2, symbol("seq"), 12, 16), "y": (2, symbol("seq"), 12, 16)},
        axes=GROUPED,
    ),
}
NOT_FUSED: dict[str, SGraph] = {
    "float32": attention(dtype=F32),
    "strictly earlier keys": attention(
        mask=(op("seen", "lt", "pj", "pi"), op("s", "where", "seen", "scaled", -INF)), ranged=False
    ),
    "later keys": attention(
        mask=(op("seen", "le", "pi", "pj"), op("s", "where", "seen", "scaled", -INF)), ranged=False
    ),
    "a finite mask": attention(
        mask=(op("seen", "le", "pj", "pi"), op("s", "where", "seen", "scaled", -1e4)), ranged=False
    ),
    "causal, of more keys": attention(keys=40),
    "a bias": attention(mask=(op("s", "add", "scaled", "pj"),), ranged=False),
    "not divided": attention(after=(op("out", "mul", "o", 1.0),)),
    "twice as much": attention(
        after=(op("inv", "recip", "l"), op("one", "mul", "o", "inv"), op("out", "mul", "one", 2.0))
    ),
    "heads mixed up": attention(
        query=lambda i: at(B, heads(G, H), i, D),
        out=lambda i: at(B, heads(H, G), i, E),
        shapes={"q": (2, 12, 24, 16), "y": (2, 12, 24, 16)},
        axes=GROUPED,
    ),
    "heads between rows": attention(
        query=lambda i: at(B, heads(G, H), i, D),
        out=lambda i: at(B, heads(G, H), i, E),
        shapes={"q": (2, 12, 24, 16), "y": (2, 12, 24, 16)},
        axes=GROUPED,
    ),
    "a column's stride": attention(query=lambda i: at(B, H, D, i)),
    "an odd place": attention(query=lambda i: at(B, H, i, Index.axis(D) + 1), shapes={"q": (2, 3, 24, 24)}),
}


def fused(g: SGraph) -> PlainAttention | None:
    found = library_calls(g).get("attention_kernel")
    assert found is None or isinstance(found, PlainAttention)
    return found


def fused_call(g: SGraph) -> PlainAttention:
    found = fused(g)
    assert found is not None
    return found


@pytest.mark.parametrize("name", FUSED)
def test_attention_is_recognised(name: str) -> None:
    spec.check(FUSED[name])
    found = fused(FUSED[name])
    assert found is not None
    assert found.scale == 0.25
    assert found.causal == any(isinstance(s, Position) for s in FUSED[name].kernels[0].statements())


@pytest.mark.parametrize("name", NOT_FUSED)
def test_anything_else_is_not(name: str) -> None:
    assert fused(NOT_FUSED[name]) is None


def reference(g: SGraph, given: dict[str, torch.Tensor], lengths: dict[str, int]) -> torch.Tensor:
    """What the kernel says, element by element: no view, no order of axes is taken for granted."""
    (kernel,) = g.kernels
    places = {s.tensor: s.index for s in kernel.statements() if isinstance(s, Load | Store)}
    every = {a.name: a for a, _ in kernel.roles}

    def extent(e: Extent) -> int:
        return e if isinstance(e, int) else lengths[str(e)]

    def grid(index: Places, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
        where = []
        for p in index:
            flat = torch.full([1] * len(names), int(p.offset))
            for a, c in p.terms:
                assert isinstance(a, Axis)
                view = [1] * len(names)
                view[names.index(a.name)] = -1
                flat = flat + int(c) * torch.arange(extent(a.extent)).view(view)
            where.append(flat)
        return tuple(where)

    outer = tuple(n for n in every if n not in ("j", "d", "e"))
    size = {n: extent(a.extent) for n, a in every.items()}
    q, k = (given[t][grid(places[t], (*outer, "j", "d"))].double() for t in "qk")
    s = 0.25 * (q * k).sum(-1)
    if any(isinstance(x, Position) for x in kernel.statements()):
        hidden = torch.arange(size["j"]) > torch.arange(size["i"])[:, None]
        s = s.masked_fill(hidden, -INF)
    p = s.softmax(-1).expand([size[n] for n in (*outer, "j")])
    v = given["v"][grid(places["v"], (*outer, "j", "e"))].double().expand(*p.shape, size["e"])
    result = torch.full([extent(e) for e in g.outputs[0].shape], float("nan"), dtype=torch.float64)
    result[grid(places["y"], (*outer, "e"))] = (p[..., None] * v).sum(-2)
    return result


@pytest.mark.parametrize("name", FUSED)
def test_the_library_computes_it(name: str, tmp_path: Path) -> None:
    g = FUSED[name]
    path = tmp_path / "attention.py"
    path.write_text(emit_module(g, formula="attention", configs={}).text)
    module = load_module(path, apart=True)
    config = Config({s.name: 16 for s in g.symbols}, {}, {}).having(library=("attention_kernel",))
    torch.manual_seed(0)
    for length in (24, 9) if "any" in name else (24,):
        lengths = {"seq": length}
        shapes = [[e if isinstance(e, int) else lengths[str(e)] for e in t.shape] for t in (*g.inputs, *g.outputs)]
        dtype = getattr(torch, g.inputs[0].dtype.value)
        q, k, v = (torch.randn(s).to(dtype) for s in shapes[:3])
        y = torch.full(shapes[3], float("nan"), dtype=dtype)
        ((kernel, grid, args, meta),) = module.launches(q, k, v, y, config=config.encode())
        kernel[grid](*args, **meta)
        expected = reference(g, {"q": q, "k": k, "v": v}, lengths)
        torch.testing.assert_close(y.double(), expected, atol=0.02, rtol=0.02)
        # What a GPU asks of torch, by torch's kernels for CPUs.
        call = fused_call(g)
        again = torch.nn.functional.scaled_dot_product_attention(
            args[0], args[1], args[2], scale=call.scale, is_causal=call.causal, enable_gqa=call.grouped
        )
        torch.testing.assert_close(again, args[3].view(again.shape), atol=0.02, rtol=0.02)
        # The operands are views of what was given, and so is the result; shapes alone are enough for who compiles.
        assert [a.untyped_storage().data_ptr() for a in args] == [t.untyped_storage().data_ptr() for t in (q, k, v, y)]
        ((named, _, views, _),) = module.launches(*(t.to("meta") for t in (q, k, v, y)), config=config.encode())
        assert [v.shape for v in views] == [a.shape for a in args]
        assert named.warmup(*views, grid=(1,)) is None


def test_what_the_user_allows_comes_back_and_the_fastest_is_asked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "attention.py"
    path.write_text(emit_module(FUSED["causal"], formula="attention", configs={}).text)
    module = load_module(path, apart=True)
    cuda: Any = torch.backends.cuda
    kinds: Any = torch.nn.attention.SDPBackend
    asked: list[object] = []

    def spy(q: Any, *args: object, **kwargs: object) -> torch.Tensor:
        asked.append((torch._C._get_sdp_priority_order()[0], cuda.flash_sdp_enabled(), kwargs["is_causal"]))
        return torch.zeros(1, 1, 2, 8)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    cuda.enable_flash_sdp(False)
    try:
        on_device: Any = types.SimpleNamespace(is_cuda=True, shape=(1, 1, 2, 8))
        given = [torch.zeros(1, 1, 2, 8) for _ in range(3)]
        module.LibraryAttention("a", 0.5, causal=True)[1,](on_device, *given)
        assert asked == [(int(kinds.CUDNN_ATTENTION), True, True)]
        assert not cuda.flash_sdp_enabled()
    finally:
        cuda.enable_flash_sdp(True)


def test_a_result_that_is_no_view_takes_the_memory_of_the_librarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "attention.py"
    path.write_text(emit_module(FUSED["causal"], formula="attention", configs={}).text)
    module = load_module(path, apart=True)
    made: list[torch.Tensor] = []

    def spy(*args: object, **kwargs: object) -> torch.Tensor:
        made.append(torch.full((1, 1, 2, 8), float(len(made) + 1)))
        return made[-1]

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    on_device: Any = types.SimpleNamespace(is_cuda=True, shape=(1, 1, 2, 8))
    stored = torch.zeros(3, 2, 8)
    given = torch.zeros(1, 1, 2, 8)
    outs = {
        "whole": torch.zeros(1, 1, 2, 8),
        "of another shape": torch.zeros(2, 8),
        "a view": stored[1:2].view(1, 1, 2, 8),
        "turned": torch.zeros(1, 1, 8, 2).mT,
        "of another type": torch.zeros(1, 1, 2, 8, dtype=torch.float64),
    }
    shapes = [out.shape for out in outs.values()]
    for out in outs.values():
        module.LibraryAttention("a", 0.5)[1,](on_device, given, given, out)
        assert out.eq(made[-1].view(out.shape)).all()
    taken = [n for (n, out), result in zip(outs.items(), made, strict=True) if out.data_ptr() == result.data_ptr()]
    assert taken == ["whole", "of another shape"]
    assert [out.shape for out in outs.values()] == shapes
    assert stored.eq(torch.tensor([0.0, 3.0, 0.0]).view(3, 1, 1)).all()
    with torch.inference_mode():
        out = torch.zeros(1, 1, 2, 8)
        module.LibraryAttention("a", 0.5)[1,](on_device, given, given, out)
        assert out.data_ptr() == made[-1].data_ptr()


def test_rows_that_are_not_numbers_stay_so(tmp_path: Path) -> None:
    path = tmp_path / "attention.py"
    path.write_text(emit_module(FUSED["causal"], formula="attention", configs={}).text)
    module = load_module(path, apart=True)
    q, k, v = (torch.ones(1, 1, 19, 16, dtype=torch.bfloat16) for _ in range(3))
    q[0, 0, 7] = float("-inf")
    k[0, 0, 12] = float("nan")
    y = torch.zeros_like(q)
    module.LibraryAttention("a", 0.25, causal=True)[1,](q, k, v, y)
    assert y[0, 0, 7].isnan().all()
    assert y[0, 0, :7].eq(1).all()
    assert y[0, 0, 8:12].eq(1).all()
    assert y[0, 0, 12:].isnan().all()


def test_queries_of_heads_that_share_keys_are_rows_where_nothing_is_hidden() -> None:
    every, causal = fused(FUSED["shared keys, every key"]), fused(FUSED["shared keys"])
    assert every is not None
    assert causal is not None
    assert every.query.sizes == (2, 3, 4 * 24, 16)
    assert not every.grouped
    assert causal.query.sizes == (2, 12, 24, 16)
    assert causal.key.sizes == (2, 3, 24, 16)
    assert causal.grouped


def test_the_generated_kernel_and_the_library_agree(interpreter: InterpreterPool, tmp_path: Path) -> None:
    g = FUSED["shared keys"]
    path = tmp_path / "attention.py"
    path.write_text(emit_module(g, formula="attention", configs={}).text)
    torch.manual_seed(1)
    given = tuple(torch.randn(t.shape).to(torch.bfloat16).float().numpy() for t in g.inputs)
    tiles = {s.name: 16 for s in g.symbols}
    own = Config(tiles, {"attention_kernel": 4}, {"attention_kernel": 1})
    jobs = (own, Config(tiles, {}, {}).having(library=("attention_kernel",)))
    found = [interpreter.run(InterpretJob(path, "attention", given, ("bfloat16",) * 3, c))[0] for c in jobs]
    assert abs(found[0] - found[1]).max() < 0.03


def test_it_is_one_point_of_the_space_and_written_down_as_a_product_is() -> None:
    g = small.attention()
    space = Space(g, H200, {})
    assert open_to(space, "library") == ("attention",)
    (call,) = (c for c in space.configs() if c.launches("library"))
    assert space.feasible(call)
    assert config_of(call.flat()) == call
    assert call.encode()["library"] == ["attention"]
    assert not open_to(Space(small.attention(causal=False, d=20), H200, {}), "library")


# TFLOP/s of cuDNN on an H100 by head width, mask and queries, of 16384 tokens in 2048 columns: as published.
PUBLISHED = (
    (128, True, {512: 315, 1024: 410, 2048: 484, 4096: 518, 8192: 529, 16384: 539}),
    (128, False, {512: 497, 1024: 574, 2048: 617, 4096: 609, 8192: 600, 16384: 595}),
    (64, False, {512: 335, 1024: 373, 2048: 395, 4096: 408, 8192: 412, 16384: 413}),
)


H100 = dataclasses.replace(H200, bandwidth_bytes_s=3.35e12)
"""By its data sheet: of an H200 it has all but the memory."""


def seconds(heads: int, i: int, d: int, causal: bool) -> float:
    (call,) = library_calls(small.attention(heads, i, d, causal=causal)).values()
    return float(call_times(call, {}, H100).total(H100.launch_overhead_s))


@pytest.mark.parametrize(("d", "causal", "rates"), PUBLISHED)
def test_the_estimate_is_what_is_published(d: int, causal: bool, rates: dict[int, int]) -> None:
    for queries, rate in rates.items():
        heads = 16384 // queries * (2048 // d)
        work = 4.0 * heads * queries**2 * d * (0.5 if causal else 1.0)
        assert 0.88 < work / seconds(heads, queries, d, causal) / 1e12 / rate < 1.12, queries


def test_short_attention_is_bound_by_its_launch() -> None:
    assert H200.launch_overhead_s < seconds(1, 64, 64, causal=True) < 5 * H200.launch_overhead_s


def test_a_result_that_is_a_part_of_a_tensor_is_copied_there() -> None:
    found = {name: fused(g) for name, g in FUSED.items()}
    assert {name for name, call in found.items() if call is not None and call.copied} == {
        "any length, shared keys",
        "heads behind rows",
        "heads in the width",
    }
    (call,) = library_calls(small.attention(8, 1024, 128)).values()
    assert isinstance(call, PlainAttention)
    copied, taken = (call_times(dataclasses.replace(call, copied=c), {}, H200) for c in (True, False))
    # One more launch, which reads what attention has written and writes it again.
    moved = 2 * 8 * 1024 * 128 * 2 / H200.bandwidth_bytes_s
    assert float(copied.total(0.0) - taken.total(0.0)) == pytest.approx(moved + H200.launch_overhead_s, rel=0.5)


def test_lengths_are_taken_at_their_hints() -> None:
    (call,) = library_calls(small.attention(8, symbol("seq"), 128)).values()
    few, many = (float(call_times(call, {"seq": s}, H200).total(0.0)) for s in (1024, 8192))
    assert many > 16 * few


def test_a_family_that_the_library_makes_good_is_kept() -> None:
    g = small.attention(8, 4096, 128)
    without = reach(g.kernels, g, DEVICE, [{}])
    with_it = reach(g.kernels, g, dataclasses.replace(DEVICE, library=True), [{}])
    assert not isinstance(without, str)
    assert not isinstance(with_it, str)
    assert without.covered([with_it])


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as running:
        yield running


@pytest.mark.parametrize(("heads", "queries", "chosen"), [(16, 256, True), (2, 16, False)])
def test_it_competes_with_attention_whose_keys_are_shared(
    heads: int, queries: int, chosen: bool, worker: Worker
) -> None:
    """Few queries over many keys: a split and its second stage, or the one kernel that it splits as a call."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v

    rows = (queries, 8192, 8192)
    program = trace(attend, [torch.empty(heads, n, 128, dtype=torch.bfloat16, device="meta") for n in rows])
    found = run_search(program, H200, SearchBudget(), worker, Recorder())
    seconds: dict[str, float] = {}
    for p in found.proved:
        model = Model(p.sgraph, H200, {})
        (best,) = Space(p.sgraph, H200, {}).best(model, 1)
        kernels = [k for k in p.sgraph.kernels if not k.name.endswith("combine")]
        if len(kernels) == 1:
            kind = "library" if best.launches("library") else "split" if len(p.sgraph.kernels) == 2 else "loop"
            seconds[kind] = min(model.seconds(best), seconds.get(kind, INF))
    # Where the call is chosen for neither, the one kernel is slower still; where it is, a split may be a spare.
    assert (seconds.get("library", INF) < seconds.get("split", INF)) is chosen
    # What looks fastest comes first.
    assert bool(library_calls(found.proved[0].sgraph)) is chosen


def test_a_call_that_the_gate_refuses_leaves_the_candidates_own_best() -> None:
    own, slower = (Config({"T": t}, {"a": 4}, {"a": 1}) for t in (16, 32))
    call = Config({"T": 16}, {}, {}).having(library=("a",))
    times = ((0, call, 1.0), (0, slower, 3.0), (0, own, 2.0), (1, own, 0.5), (0, own, None))
    trials = tuple(Trial(Point(n, c), Outcome(s)) for n, c, s in times)
    found = _without_library(0, TuneResult(Evidence.MEASURED, trials, (Best(0, call, 1.0, ()),)))
    assert found == [Best(0, own, 2.0, ())]
    assert _without_library(2, TuneResult(Evidence.MEASURED, trials, ())) == []
