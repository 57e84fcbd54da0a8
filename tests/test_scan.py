"""Scans: prefix sums that a loop carries from tile to tile, from the sGraph to what backends print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from interpreting import InterpreterPool, InterpretJob
from sgraph_samples import (
    BF16,
    F16,
    F32,
    SCANS,
    SUM,
    TILED_SCANS,
    Sample,
    at,
    decays,
    gates_from_the_end,
    kinds_from_the_end,
    largest_that_decays,
    least_that_falls,
    op,
    prefix_sums,
    running_state,
    state_before,
    sym,
    weights_from_the_end,
    weights_so_far,
    weights_that_decay_before,
)
from sgraph_simulator import simulate

from prism.api import trace
from prism.api.region_search import SearchBudget, run_search
from prism.backends.cpu.emit import emit_module as emit_cpp
from prism.backends.lower import lower
from prism.backends.protocol import arguments
from prism.backends.tile import Prefix
from prism.backends.tile_spec import check_module
from prism.backends.triton.crosscompile import CompileJob, compiled, request
from prism.backends.triton.emit import emit_module
from prism.cost.device import Device, device, multicore
from prism.egraph.language import Budget
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError, UnsupportedError
from prism.events import Recorder
from prism.ir.kit import statements
from prism.process.worker import Pool
from prism.program.build import op as mapped
from prism.program.build import position
from prism.program.evaluate import evaluate, evaluate_expr
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Const, DType, Map, Read, Reduce, ReduceKind, Tensor, walk
from prism.program.prefix import Recurrence
from prism.program.transform import canonical
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.denote import denote
from prism.sgraph.nodes import (
    Accumulate,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Role,
    Scan,
    SGraph,
    Stmt,
    Store,
    TileReduce,
)
from prism.sgraph.record import plain, sgraph_of
from prism.sgraph.show import key, text

# As the front end names output axes.
M, K, J = Axis("d20", 20), Axis("d24", 24), Axis("d24_1", 24)
TOLERANCE = {F32: 2e-6, F16: 2e-3, BF16: 1.5e-2}
BUILDS = (*SCANS, *TILED_SCANS)
CPU = multicore("a CPU", cores=4, vector_bytes=32, l1_bytes=1 << 15, l2_bytes=1 << 19, llc_bytes=1 << 24)


def graph(*inner: Stmt, role: Role | None = None, before: tuple[Stmt, ...] = (), ranged: bool = False) -> SGraph:
    """y[m, k] of one loop over k."""
    condition = (Index.axis(M) + Index.axis(K).scaled(-1),) if ranged else ()
    roles: tuple[tuple[Axis, Role], ...] = ((M, Grid(sym("T_m"))), (K, role or LoopRole(sym("T_k"))))
    if any(isinstance(s, Loop) for s in inner):
        roles = (*roles, (J, LoopRole(sym("T_j"))))
    body = (*before, Loop(K, inner, condition))
    shape = (20, 24)
    return SGraph("g", (Tensor("x", shape, F32),), (), (Tensor("y", shape, F32),), (Kernel("g_kernel", roles, body),))


LOAD, SCAN, STORE = Load("a", "x", at(M, K)), Scan("s", K, "a"), Store("y", at(M, K), "s")


@pytest.mark.parametrize("build", BUILDS)
def test_the_samples_are_legal_and_can_be_read_back(build: Callable[[DType], Sample]) -> None:
    g = build(F32).sgraph
    spec.check(g)
    assert sgraph_of(plain(g)) == g
    scans = [s for k in g.kernels for s in k.statements() if isinstance(s, Scan)]
    assert all(str(s) in text(g) for s in scans)
    assert ("times exp" in text(g)) == any(
        s.growth and not (s.how.factors or s.how.rescaled or s.how.kind.is_extreme) for s in scans
    )


def test_a_scan_is_part_of_what_tells_sgraphs_apart() -> None:
    plain_sum = graph(LOAD, op("s", "add", "a", 0.0), STORE)
    scans = (
        SCAN,
        replace(SCAN, how=Recurrence(before=True)),
        replace(SCAN, growth="a"),
        replace(SCAN, growth="a", how=Recurrence(before=True)),
    )
    assert len({key(plain_sum), *(key(graph(LOAD, s, STORE)) for s in scans), key(graph(LOAD, SCAN))}) == 6


RESCALED = Recurrence(rescaled=True)
MOST, RESCALES = Scan("m", K, "a", None, Recurrence(ReduceKind.MAX)), replace(SCAN, growth="m", how=RESCALED)
NESTED = Loop(J, (Load("b", "x", at(M, J)), TileReduce("t", SUM, J, "b"), Scan("s", K, "a")))
BROKEN: dict[str, tuple[SGraph, str]] = {
    "along a grid axis": (graph(LOAD, replace(SCAN, axis=M), STORE), "do not come one after another"),
    "in a loop inside": (graph(LOAD, NESTED, STORE), "not the axis of the innermost loop"),
    "of what does not vary": (
        graph(SCAN, STORE, before=(Load("a", "x", (Index.axis(M), Index.const(0))),)),
        "which a does not have",
    ),
    "before, with a growth, in tiles": (
        graph(LOAD, replace(SCAN, growth="a", how=Recurrence(before=True)), STORE),
        "tiles of one",
    ),
    "rescaled by what is no maximum": (
        graph(LOAD, replace(SCAN, growth="a", how=RESCALED), STORE),
        "no maximum so far",
    ),
    "rescaled by a maximum from the end": (
        graph(LOAD, replace(MOST, how=Recurrence(ReduceKind.MAX, back=True)), RESCALES, STORE),
        "from either end|no maximum so far",
    ),
    "rescaled by a maximum before each place": (
        graph(LOAD, replace(MOST, how=Recurrence(ReduceKind.MAX, before=True)), RESCALES, STORE),
        "no maximum so far",
    ),
    "rescaled by what grows, in tiles": (
        graph(LOAD, replace(MOST, growth="a"), RESCALES, STORE),
        "rescaled by what grows",
    ),
    "a product that grows": (graph(LOAD, replace(SCAN, growth="a", how=Recurrence(ReduceKind.PROD)), STORE), "no sum"),
    "rescaled by nothing": (graph(LOAD, replace(SCAN, how=RESCALED), STORE), "of nothing"),
    "with a growth of more axes": (
        graph(LOAD, Load("b", "x", (Index.const(0), Index.axis(K))), replace(SCAN, src="b", growth="a"), STORE),
        "axes that b does not have",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_scan_is_refused(what: str) -> None:
    g, message = BROKEN[what]
    with pytest.raises(IllegalIRError, match=message):
        spec.check(g)


def test_tiles_that_are_summed_up_may_not_be_left_out() -> None:
    spec.check(graph(LOAD, SCAN, STORE, ranged=True))
    with pytest.raises(IllegalIRError, match="skips tiles"):
        denote(graph(LOAD, SCAN, STORE, ranged=True))


def test_it_denotes_a_sum_of_what_is_zero_behind_the_place() -> None:
    (value,) = denote(graph(LOAD, SCAN, STORE)).outputs
    r = Axis("r", 24)
    kept = mapped("le", position(r), position(K))
    body = mapped("where", kept, Read("x", at(M, r)), Const(0.0))
    assert value == canonical(Reduce(SUM, r, body))


def test_what_is_rescaled_denotes_exponentials_with_the_maximum_of_the_place() -> None:
    (value,) = denote(weights_so_far().sgraph).outputs
    x, v = np.random.default_rng(0).normal(size=(2, 20, 9))
    sample, m, k = weights_so_far(), Axis("m", 20), Axis("k", sym("K"))
    (want,) = sample.reference(x, v)
    np.testing.assert_allclose(evaluate_expr(value, {"x": x, "v": v}, {"K": 9}, (m, k)), want)


LESS = (op("n", "mul", -1.0, "m"), op("below", "add", "a", "n"), op("p", "exp", "below"))
UNSHIFTED: dict[str, tuple[Stmt, ...]] = {
    "no exponential": (replace(RESCALES, src="below"),),
    "shifted the other way": (op("e", "add", "a", "m"), op("q", "exp", "e"), replace(RESCALES, src="q")),
    "shifted by another maximum": (
        Scan("other", K, "below", None, Recurrence(ReduceKind.MAX)),
        replace(RESCALES, src="p", growth="other"),
    ),
}


@pytest.mark.parametrize("what", UNSHIFTED)
def test_what_is_no_exponential_below_its_maximum_is_not_rescaled(what: str) -> None:
    g = graph(LOAD, MOST, *LESS, *UNSHIFTED[what], STORE)
    spec.check(g)
    with pytest.raises(IllegalIRError, match="what is not exp"):
        denote(g)


def test_a_scan_of_a_scan_confuses_no_places(worker: Worker) -> None:
    g = graph(LOAD, SCAN, Scan("z", K, "s"), replace(STORE, src="z"))
    spec.check(g)
    x = np.random.default_rng(0).normal(size=(20, 24))
    wanted = x.cumsum(1).cumsum(1)
    np.testing.assert_allclose(simulate(g, {"x": x}, {"T_m": 8, "T_k": 4})["y"], wanted)
    p = trace(lambda x: x.cumsum(1).cumsum(1), [torch.empty(20, 24, device="meta")], name="twice")
    np.testing.assert_allclose(evaluate(p, {"x": x})[p.outputs[0]], wanted)
    worker.explore(tuple(f.expr for f in inline(p)), Budget())
    once = denote(graph(LOAD, SCAN, STORE))
    assert [bool(v) for v in worker.prove([denote(g).outputs, once.outputs])] == [True, False]


@pytest.mark.parametrize("build", BUILDS)
def test_tiles_of_any_length_give_the_same(build: Callable[[DType], Sample]) -> None:
    sample = build(F32)
    rng = np.random.default_rng(1)
    for binding in sample.bindings:
        inputs = sample.inputs(binding)
        (want,) = sample.reference(*(np.asarray(a, np.float64) for a in inputs))
        names = [t.name for t in sample.sgraph.inputs]
        for _ in range(4):
            sizes = {s.name: int(rng.choice([1, 2, 4, 8, 16])) for s in sample.sgraph.symbols}
            made = simulate(sample.sgraph, dict(zip(names, inputs, strict=True)), {**binding, **sizes})
            np.testing.assert_allclose(made["y"], want, rtol=1e-6, atol=1e-9)


def test_a_tile_of_one_element_is_added_to_an_accumulator_and_longer_ones_are_summed_within() -> None:
    one, many = (lower(s.sgraph) for s in (running_state(), prefix_sums()))
    assert [sum(isinstance(s, Prefix) for s in statements(m.programs[0].body)) for m in (one, many)] == [0, 1]
    for build in TILED_SCANS:
        for dtype in (F32, F16, BF16):
            check_module(lower(build(dtype).sgraph))


# Backends.


def config(kernels: tuple[str, ...], symbols: object) -> Config:
    assert isinstance(symbols, dict)
    return Config(symbols, dict.fromkeys(kernels, 4), dict.fromkeys(kernels, 2))


def test_kernels_compute_prefix_sums_at_ragged_lengths(interpreter: InterpreterPool, tmp_path: Path) -> None:
    jobs: list[InterpretJob] = []
    wanted: list[tuple[DType, np.ndarray]] = []
    for dtype in (F32, F16, BF16):
        for build in TILED_SCANS:
            sample = build(dtype)
            source = emit_module(sample.sgraph, formula="sums", configs={})
            path = tmp_path / f"{build.__name__}_{dtype.value}.py"
            path.write_text(source.text)
            for binding in sample.bindings:
                for symbols in sample.symbols:
                    inputs = sample.inputs(binding, seed=len(jobs))
                    tuned = config(source.kernels, dict(symbols))
                    jobs.append(InterpretJob(path, source.entry, tuple(inputs), (dtype.value,) * len(inputs), tuned))
                    wanted.append((dtype, sample.reference(*(np.asarray(a, np.float64) for a in inputs))[0]))
    for result, (dtype, want) in zip(interpreter.run_many(jobs), wanted, strict=True):
        assert not result.error
        (got,) = result.outputs
        np.testing.assert_allclose(
            np.asarray(got, np.float64), want, rtol=0, atol=TOLERANCE[dtype] * np.abs(want).max()
        )


def test_kernels_compile_without_spills(compilers: Pool, tmp_path: Path) -> None:
    sizes = {"T_m": 4, "T_k": 256, "T_e": 64}
    jobs: list[CompileJob] = []
    for sample, binding in (
        (running_state(BF16, n=64, c=64, d=64), {}),
        (prefix_sums(BF16), {"K": 4096}),
        (prefix_sums(F32, whole=True), {"K": 512}),
        (state_before(BF16), {}),
        (decays(BF16), {"K": 4096}),
        (gates_from_the_end(BF16), {"K": 4096}),
        (kinds_from_the_end(BF16), {"K": 4096}),
        (weights_from_the_end(BF16), {"K": 4096}),
        (largest_that_decays(BF16), {"K": 4096}),
        (least_that_falls(BF16), {"K": 4096}),
        (weights_that_decay_before(BF16), {"K": 4096}),
    ):
        source = emit_module(sample.sgraph, formula="sums", configs={})
        path = tmp_path / f"{sample.name}_{len(jobs)}.py"
        path.write_text(source.text)
        tuned = config(source.kernels, {s.name: sizes[s.name] for s in sample.sgraph.symbols})
        jobs += [CompileJob(path, t, tuned, arguments(sample.sgraph, binding)) for t in ("sm_80", "sm_90")]
    for reply in compilers.map([request(j) for j in jobs], 60):
        done = compiled(reply.answer)
        assert not done.error
        assert all(r.spills == 0 for r in done.resources)


def test_cpp_sums_from_tile_to_tile_only() -> None:
    assert not CPU.tiles.scans
    with pytest.raises(UnsupportedError, match="tiles of one element"):
        emit_cpp(prefix_sums().sgraph, formula="sums", configs={})


def scanned(worker: Worker, fn: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> dict[str, set[object]]:
    """By target, the tiles of the axes along which proved sGraphs scan."""
    p = trace(fn, [torch.empty(s, device="meta") for s in shapes], name="p")
    found: dict[str, set[object]] = {}
    for name, target in (("sm_90", device("sm_90")), ("cpu", CPU)):
        proved = run_search(p, target, SearchBudget(), worker, Recorder()).proved
        kernels = [k for p in proved for k in p.sgraph.kernels]
        roles = [k.role(s.axis) for k in kernels for s in k.statements() if isinstance(s, Scan)]
        found[name] = {r.tile if isinstance(r, LoopRole) else r for r in roles}
    return found


def test_a_cpu_scans_from_element_to_element_alone(worker: Worker) -> None:
    """One float32 after another rounds worse than torch's own prefix sums, so it is for states of a product."""
    sums = scanned(worker, lambda x: x.cumsum(0), (4096, 512))
    assert not sums["cpu"]
    assert sums["sm_90"]
    assert 1 not in sums["sm_90"]
    shape = (4, 16, 32, 32)
    states = scanned(worker, lambda q, k, v: q @ (k.transpose(-1, -2) @ v).cumsum(1), shape, shape, shape)
    assert states["cpu"] == {1}
    assert 1 in states["sm_90"]


FORMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Recurrence]] = {
    "flipped": (lambda x: x.flip(-1).cumsum(-1).flip(-1), Recurrence(back=True)),
    "moved on": (
        lambda x: torch.cat((torch.ones_like(x[:, :1]), x.cumprod(-1)[:, :-1]), -1),
        Recurrence(ReduceKind.PROD, before=True),
    ),
    "padded": (lambda x: torch.nn.functional.pad(x.cumsum(-1)[:, :-1], (1, 0)), Recurrence(before=True)),
    "the largest so far": (lambda x: x.cummax(-1).values, Recurrence(ReduceKind.MAX)),
}


@pytest.mark.parametrize("form", FORMS)
def test_scans_are_found_as_they_are_written(worker: Worker, form: str) -> None:
    fn, how = FORMS[form]
    p = trace(fn, [torch.empty(512, 2048, device="meta")], name="p")
    best = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved[0].sgraph
    assert [s.how for k in best.kernels for s in k.statements() if isinstance(s, Scan)] == [how]
    x = np.random.default_rng(4).normal(size=(512, 2048))[:4, :9]
    small = trace(fn, [torch.empty(4, 9, device="meta")], name="p")
    np.testing.assert_allclose(evaluate(small, {"x": x})[small.outputs[0]], fn(torch.from_numpy(x)).numpy(), rtol=1e-12)


def test_a_choice_that_is_another_at_the_first_places_stays() -> None:
    p = trace(
        lambda x: torch.cat((torch.zeros_like(x[:, :1]), x.cumprod(-1)[:, :-1]), -1),
        [torch.empty(4, 9, device="meta")],
        name="p",
    )
    (formula,) = inline(p)
    assert any(isinstance(e, Map) and e.op == "where" and e.args[1] == Const(0.0) for e in walk(formula.expr))


# Decays as models write them, quadratic: x [n, d], gates [n] or [n, d].
N = 256
UP_TO = torch.ones(N, N, dtype=torch.bool).tril()


def since(gates: torch.Tensor) -> torch.Tensor:
    """What the logarithms of gates sum up to after j, up to i: [i, j]."""
    total = gates.cumsum(0)
    return total[:, None] - total[None, :]


def selective(u: torch.Tensor, step: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Mamba's: u and step [n, d], a [d, s], b and c [n, s]."""
    added = step[:, :, None] * b[:, None, :] * u[:, :, None]
    weights = since(step[:, :, None] * a).exp() * UP_TO[:, :, None, None]
    return ((weights * added[None]).sum(1) * c[:, None, :]).sum(-1)


def away() -> torch.Tensor:
    return torch.arange(N)[:, None] - torch.arange(N)[None, :]


COLUMNS = 1024
"""As many as leave no processor of a GPU without a program: of fewer, sums anew for each place take no longer."""
DECAYS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "masked after": (lambda x, a: since(-a.abs()).exp().tril() @ x, ((N, COLUMNS), (N,))),
    "masked before": (lambda x, a: since(-a.abs()).masked_fill(~UP_TO, -torch.inf).exp() @ x, ((N, COLUMNS), (N,))),
    "a mask as a factor": (
        lambda x, a: ((since(-a.abs()).exp() * UP_TO[:, :, None]) * x).sum(1),
        ((N, COLUMNS), (N, COLUMNS)),
    ),
    "by the distance": (lambda x: (away() * -0.1).exp().tril() @ x, ((N, COLUMNS),)),
    "selective": (selective, ((N, 16), (N, 16), (16, 4), (N, 4), (N, 4))),
}


@pytest.mark.parametrize("target", [device("sm_90"), CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("what", DECAYS)
def test_decays_as_models_write_them_are_one_loop(worker: Worker, what: str, target: Device) -> None:
    fn, shapes = DECAYS[what]
    stated = ["a <= 0", "step >= 0"] if fn is selective else []
    p = trace(fn, [torch.zeros(s) for s in shapes], name="p", check=False, assume=stated)
    (kernel,) = run_search(p, target, SearchBudget(), worker, Recorder()).proved[0].sgraph.kernels
    (scan,) = (s for s in kernel.statements() if isinstance(s, Scan))
    assert scan.growth is not None
    assert not any(isinstance(s, Accumulate) for s in kernel.statements())


def attending(scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The averages of x by the softmax of scores up to each place: scores and x [n, d]."""
    seen = scores[None].masked_fill(~UP_TO[:, :, None], -torch.inf)
    return (seen.softmax(1) * x[None]).sum(1)


AVERAGES: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "logsumexp": (lambda x: x.logcumsumexp(0), ((N, COLUMNS),)),
    "logsumexp from the end": (lambda x: x.flip(0).logcumsumexp(0).flip(0), ((N, COLUMNS),)),
    "softmax": (attending, ((N, COLUMNS), (N, COLUMNS))),
    "one score for all": (lambda s, x: attending(s[:, None], x), ((N,), (N, COLUMNS))),
    "softmax from the end": (lambda s, x: attending(s.flip(0), x.flip(0)).flip(0), ((N, COLUMNS), (N, COLUMNS))),
}


@pytest.mark.parametrize("target", [device("sm_90"), CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("what", AVERAGES)
def test_sums_of_exponentials_so_far_are_one_loop(worker: Worker, what: str, target: Device) -> None:
    fn, shapes = AVERAGES[what]
    p = trace(fn, [torch.zeros(s) for s in shapes], name="p", check=False)
    (kernel,) = run_search(p, target, SearchBudget(), worker, Recorder()).proved[0].sgraph.kernels
    scans = [s for s in kernel.statements() if isinstance(s, Scan)]
    assert sum(s.how.rescaled for s in scans) == len(scans) - 1 > 0
    assert {s.how.back for s in scans} == {"from the end" in what}
    assert not any(isinstance(s, Accumulate) for s in kernel.statements())


def steps(x: torch.Tensor) -> torch.Tensor:
    """By how many places a row of x is after another."""
    places = torch.arange(len(x))
    return (places[:, None] - places)[:, :, None]


def faded(x: torch.Tensor, w: torch.Tensor, before: int = 0) -> torch.Tensor:
    """x less w for each place since, where it is not later: [i, j, d]."""
    return torch.where(steps(x) >= before, x[None] - (steps(x) - before) * w, -torch.inf)


def gated(i: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """i and the gates since, where it is not later: [i, j, d]."""
    return torch.where(steps(i) >= 0, since(f) + i[None], -torch.inf)


def mixing(k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """RWKV-4's (Peng 2023): places before, which fade, and one's own with another weight."""
    own = torch.where(steps(k) == 0, k[:, None] + u, -torch.inf)
    return (torch.where(steps(k) > 0, faded(k, w, 1), own).softmax(1) * v).sum(1)


def stabilised(i: torch.Tensor, f: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """An xLSTM's cell and normaliser below its stabiliser (Beck 2024), without a matrix: i, f and x [n, d]."""
    d = gated(i, torch.nn.functional.logsigmoid(f))
    top = d.amax(1, keepdim=True)
    p = (d - top).exp()
    return (p * x[None]).sum(1) / torch.maximum(p.sum(1), (-top).exp()[:, 0])


FADING: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], int]] = {
    "the largest": (lambda x, w: faded(x, w).amax(1), ((N, COLUMNS), (COLUMNS,)), 0),
    "the largest before": (lambda x, w: faded(x, w, 1).amax(1), ((N, COLUMNS), (COLUMNS,)), 0),
    "the least from the end": (
        lambda x, w: -faded(-x.flip(0), w).amax(1).flip(0),
        ((N, COLUMNS), (COLUMNS,)),
        0,
    ),
    "gates": (lambda i, f: gated(i, f).amax(1), ((N, COLUMNS), (N, COLUMNS)), 0),
    "a logsumexp": (lambda x, w: faded(x, w).logsumexp(1), ((N, COLUMNS), (COLUMNS,)), 1),
    "an average": (lambda s, w, x: (faded(s, w).softmax(1) * x).sum(1), ((N, COLUMNS), (COLUMNS,), (N, COLUMNS)), 2),
    "mixing": (mixing, ((N, COLUMNS), (N, COLUMNS), (COLUMNS,), (COLUMNS,)), 2),
    "stabilised": (stabilised, ((N, COLUMNS), (N, COLUMNS), (N, COLUMNS)), 2),
}


@pytest.mark.parametrize("target", [device("sm_90"), CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("what", FADING)
def test_maxima_that_decay_are_one_loop_with_what_is_below_them(worker: Worker, what: str, target: Device) -> None:
    fn, shapes, below = FADING[what]
    p = trace(fn, [torch.zeros(s) for s in shapes], name="p", check=False)
    proved = run_search(p, target, SearchBudget(), worker, Recorder()).proved[0].sgraph
    (kernel,) = proved.kernels
    scans = [s for s in kernel.statements() if isinstance(s, Scan)]
    assert any(s.how.kind.is_extreme and s.growth is not None for s in scans)
    assert sum(s.how.rescaled for s in scans) == below
    assert not any(isinstance(s, Accumulate) for s in kernel.statements())


def test_a_maximum_of_what_is_multiplied_by_scores_is_found_in_their_pass(worker: Worker) -> None:
    """An xLSTM's matrix cell in parallel: a scan of its stabiliser would take its rows off the grid."""

    def cell(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        d = gated(i[:, None], torch.nn.functional.logsigmoid(f)[:, None])[..., 0]
        return ((q @ k.T) * (d - d.amax(1, keepdim=True)).exp()) @ v

    p = trace(cell, [torch.zeros(N, 64)] * 3 + [torch.zeros(N)] * 2, name="p", check=False)
    proved = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved[0].sgraph
    scans = [s for k in proved.kernels for s in k.statements() if isinstance(s, Scan)]
    assert not any(s.how.kind.is_extreme or s.how.rescaled for s in scans)


@pytest.mark.parametrize("what", FADING)
def test_what_decays_below_a_maximum_is_what_is_written(worker: Worker, what: str) -> None:
    fn, shapes, _ = FADING[what]
    small = [tuple({N: 24, COLUMNS: 4}[e] for e in shape) for shape in shapes]
    p = trace(fn, [torch.zeros(s) for s in small], name="p", check=False)
    found = [g.sgraph for g in run_search(p, CPU, SearchBudget(), worker, Recorder()).proved]
    scanned = [g for g in found if any(isinstance(s, Scan) for k in g.kernels for s in k.statements())]
    assert scanned
    rng = np.random.default_rng(3)
    for scale in (1.0, 300.0):
        # No exponential of these is a number, but below a maximum.
        values = {t.name: scale * rng.normal(size=t.shape) for t in scanned[0].inputs}
        by_name = dict(zip((t.name for t in p.inputs), values.values(), strict=True))
        wanted = evaluate(p, by_name)[p.outputs[0]]
        for g in scanned:
            sizes = {s.name: 4 for s in g.symbols}
            with np.errstate(over="ignore"):
                made = simulate(g, values, sizes)[g.outputs[0].name]
            np.testing.assert_allclose(made, wanted, rtol=1e-9)


def shifted_otherwise(s: torch.Tensor, x: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Exponentials of all places up to one, below another number of that place: s and x [n, d], `largest` [n, d]."""
    seen = s[None].masked_fill(~UP_TO[:, :, None], -torch.inf)
    return ((seen - largest[:, None]).exp() * x[None]).sum(1)


NOT_RESCALED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "by the largest of all": lambda s, x: shifted_otherwise(s, x, s.amax(0, keepdim=True).expand(N, -1)),
    "by the largest from the end": lambda s, x: shifted_otherwise(s, x, s.flip(0).cummax(0).values.flip(0)),
    "by the least": lambda s, x: shifted_otherwise(s, x, s.cummin(0).values),
    "by the largest before": lambda s, x: shifted_otherwise(
        s, x, torch.cat((torch.zeros_like(s[:1]), s.cummax(0).values[:-1]))
    ),
}


@pytest.mark.parametrize("what", NOT_RESCALED)
def test_what_is_shifted_otherwise_is_not_rescaled(worker: Worker, what: str) -> None:
    p = trace(NOT_RESCALED[what], [torch.zeros(N, 16)] * 2, name="p", check=False)
    proved = run_search(p, CPU, SearchBudget(), worker, Recorder()).proved
    assert proved
    assert not any(
        s.how.rescaled for g in proved for k in g.sgraph.kernels for s in k.statements() if isinstance(s, Scan)
    )


SUMMED = (op("w", "mul", "p", "a"), replace(RESCALES, src="w"))
ALIKE: dict[str, tuple[Stmt, ...]] = {
    "not rescaled": (MOST, *LESS, SUMMED[0], replace(SCAN, src="w")),
    "each place left out": (MOST, *LESS, SUMMED[0], replace(SCAN, src="w", how=Recurrence(before=True))),
    "from the end": (
        replace(MOST, how=Recurrence(ReduceKind.MAX, back=True)),
        *LESS,
        SUMMED[0],
        replace(SUMMED[1], how=Recurrence(back=True, rescaled=True)),
    ),
    "without its factor": (MOST, *LESS, replace(RESCALES, src="p")),
    "below the largest of another": (op("b", "maximum", "a", 0.0), replace(MOST, src="b"), *LESS, *SUMMED),
    "that decays": (MOST, *LESS, SUMMED[0], replace(SCAN, src="w", growth=-0.25)),
}


def test_sums_that_look_like_one_that_is_rescaled_are_not_proved(worker: Worker) -> None:
    up_to = torch.ones(24, 24, dtype=torch.bool).tril()

    def weights(x: torch.Tensor) -> torch.Tensor:
        seen = x[:, None, :].masked_fill(~up_to, -torch.inf)
        return ((seen - seen.amax(-1, keepdim=True)).exp() * x[:, None, :]).sum(-1)

    p = trace(weights, [torch.zeros(20, 24)], name="p", check=False)
    worker.explore(tuple(f.expr for f in inline(p)), Budget())
    right = graph(LOAD, MOST, *LESS, *SUMMED, STORE)
    asked = [right, *(graph(LOAD, *body, STORE) for body in ALIKE.values())]
    for g in asked:
        spec.check(g)
    assert [bool(v) for v in worker.prove([denote(g).outputs for g in asked])] == [True] + [False] * len(ALIKE)


FADES = replace(MOST, growth=-0.25)
NOT_FADING: dict[str, tuple[Stmt, ...]] = {
    "that does not decay": (MOST, *LESS, *SUMMED),
    "that decays faster": (replace(MOST, growth=-0.5), *LESS, *SUMMED),
    "that grows": (replace(MOST, growth=0.25), *LESS, *SUMMED),
    "each place left out": (FADES, *LESS, SUMMED[0], replace(SUMMED[1], how=Recurrence(before=True, rescaled=True))),
    "not rescaled": (FADES, *LESS, SUMMED[0], replace(SCAN, src="w")),
    "decaying alone": (FADES, *LESS, SUMMED[0], replace(SCAN, src="w", growth=-0.25)),
}


def test_sums_that_look_like_one_that_decays_below_a_maximum_are_not_proved(worker: Worker) -> None:
    def weights(x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(24)[:, None] - torch.arange(24)
        seen = torch.where(steps >= 0, x[:, None, :] - 0.25 * steps, -torch.inf)
        return ((seen - seen.amax(-1, keepdim=True)).exp() * x[:, None, :]).sum(-1)

    p = trace(weights, [torch.zeros(20, 24)], name="p", check=False)
    worker.explore(tuple(f.expr for f in inline(p)), Budget())
    right = graph(LOAD, FADES, *LESS, *SUMMED, STORE, role=LoopRole(1))
    asked = [right, *(graph(LOAD, *body, STORE, role=LoopRole(1)) for body in NOT_FADING.values())]
    for g in asked:
        spec.check(g)
    assert [bool(v) for v in worker.prove([denote(g).outputs for g in asked])] == [True] + [False] * len(NOT_FADING)


def grown_by_another(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The decays of two different gates: their sums cancel nowhere."""
    return ((-a.abs()).cumsum(0)[:, None] - (-b.abs()).cumsum(0)[None, :]).exp().tril() @ x


def unknown(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Gates of any sign: what is carried may overflow, and stays infinite."""
    return (a.cumsum(0)[:, None] - a.cumsum(0)[None, :]).exp().tril() @ x


UNLIKE: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "two gates": (grown_by_another, ((N, 16), (N,), (N,))),
    "the other way": (lambda x, a: (-since(-a.abs())).exp().tril() @ x, ((N, 16), (N,))),
    "of any sign": (unknown, ((N, 16), (N,))),
    "places after": (lambda x, a: since(-a.abs()).exp().triu() @ x, ((N, 16), (N,))),
    "by two steps": (lambda x: ((away() - 1) * -0.1).exp().tril() @ x, ((N, 16),)),
}


@pytest.mark.parametrize("what", UNLIKE)
def test_what_grows_otherwise_is_no_scan(worker: Worker, what: str) -> None:
    fn, shapes = UNLIKE[what]
    p = trace(fn, [torch.empty(s) for s in shapes], name="p", check=False)
    proved = run_search(p, CPU, SearchBudget(), worker, Recorder()).proved
    assert proved
    scans = [s for g in proved for k in g.sgraph.kernels for s in k.statements() if isinstance(s, Scan)]
    assert not any(s.growth is not None for s in scans)


def test_a_number_as_growth_is_the_growth_of_every_place() -> None:
    constant, element = graph(LOAD, replace(SCAN, growth=-0.25), STORE), LoopRole(1)
    for g in (constant, graph(LOAD, replace(SCAN, growth=-0.25, how=Recurrence(before=True)), STORE, role=element)):
        spec.check(g)
        assert sgraph_of(plain(g)) == g
        check_module(lower(g))
        x = np.random.default_rng(0).normal(size=(20, 24))
        before = "before" in text(g)
        steps = np.subtract.outer(np.arange(24), np.arange(24)) - before
        wanted = x @ np.where(steps >= 0, np.exp(-0.25 * steps), 0).T
        np.testing.assert_allclose(simulate(g, {"x": x}, {"T_m": 8, "T_k": 4})["y"], wanted)
        (value,) = denote(g).outputs
        np.testing.assert_allclose(evaluate_expr(value, {"x": x}, {}, (M, K)), wanted)
