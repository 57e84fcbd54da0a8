"""Horizontal fusion: kernels of different widths in one launch, from the sGraph to the emitted module."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_code import CodeOf
from cost_bounds import lower_bound
from interpreting import InterpreterPool, InterpretJob
from sgraph_samples import BF16, F32, at, op, sym
from sgraph_simulator import simulate
from short_calls import cost_s

from prism.backends import tile_spec
from prism.backends.lower import lower
from prism.backends.protocol import ModuleSource
from prism.backends.triton.emit import emit_module
from prism.cost.constraints import checks, footprint
from prism.cost.counts import sgraph_cost
from prism.cost.device import device
from prism.cost.gpu import KernelModel, LaunchModel
from prism.cost.model import Estimate, Model
from prism.errors import IllegalIRError
from prism.instantiate.gate.check import KernelRunner, check_module
from prism.instantiate.gate.plan import plan_samples
from prism.instantiate.space import Space
from prism.program.build import mul, read, reduce
from prism.program.build import op as mapped
from prism.program.extents import Extent
from prism.program.index import Axis
from prism.program.nodes import Definition, DType, Program, ReduceKind, Tensor
from prism.sgraph import spec
from prism.sgraph.config import Config, Resources
from prism.sgraph.denote import denote
from prism.sgraph.launches import fusable, fuse
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
from prism.sgraph.show import dot, key, text

H200 = device("sm_90")
ROWS = sym("M")
WIDTHS = {"q": 40, "k": 12, "v": 24}


def projection(name: str, rows: Extent, depth: int, width: int, x: str = "x", gain: bool = False) -> Kernel:
    """name[m, n] = sum_k x[m, k] * w_name[k, n], or the same through a sigmoid."""
    m, k, n = Axis("m", rows), Axis("k", depth), Axis(f"n_{name}", width)
    product = Loop(
        k,
        (
            Load("x1", x, at(m, k)),
            Load("w1", f"w{name}", at(k, n)),
            Contract("p", k, "x1", "w1"),
            Accumulate("acc", ReduceKind.SUM, "p"),
        ),
    )
    after = (op("a", "sigmoid", "acc"), Store(name, at(m, n), "a")) if gain else (Store(name, at(m, n), "acc"),)
    roles = ((m, Grid(sym(f"T_m_{name}"))), (n, Grid(sym(f"T_n_{name}"))), (k, LoopRole(sym(f"T_k_{name}"))))
    return Kernel(f"qkv_{name}_kernel", roles, (product, *after))


def qkv(
    rows: Extent = ROWS, depth: int = 72, widths: Mapping[str, int] = WIDTHS, dtype: DType = F32, *, apart: bool = False
) -> SGraph:
    """Three products of one input, one of them through a sigmoid; in one launch or apart."""
    weights = tuple(Tensor(f"w{n}", (depth, w), dtype) for n, w in widths.items())
    outputs = tuple(Tensor(n, (rows, w), dtype) for n, w in widths.items())
    kernels = tuple(projection(n, rows, depth, w, gain=n == "v") for n, w in widths.items())
    g = SGraph("qkv", (Tensor("x", (rows, depth), dtype), *weights), (), outputs, kernels)
    return g if apart else fuse(g, [k.name for k in kernels])


def chain() -> SGraph:
    """q from x, a row maximum of q, k from x, v from k: four kernels, two dependences."""
    g = qkv(6, 24, {"q": 10, "k": 12, "v": 8}, apart=True)
    m, n = Axis("m", 6), Axis("n_q", 10)
    top = Kernel(
        "qkv_top_kernel",
        ((m, Grid(sym("T_m_top"))), (n, Whole())),
        (Load("q1", "q", at(m, n)), op("a", "abs", "q1"), Store("top", at(m, n), "a")),
    )
    q, k, _ = g.kernels
    v = projection("v", 6, 12, 8, x="k")
    inputs = tuple(replace(t, shape=(12, 8)) if t.name == "wv" else t for t in g.inputs)
    return replace(
        g,
        inputs=inputs,
        buffers=tuple(t for t in g.outputs if t.name != "v"),
        outputs=(Tensor("top", (6, 10), F32), g.outputs[2]),
        kernels=(q, top, k, v),
    )


def reference(x: np.ndarray, *weights: np.ndarray) -> list[np.ndarray]:
    q, k, v = (x.astype(float) @ w.astype(float) for w in weights)
    return [q, k, 1 / (1 + np.exp(-v))]


def draw(g: SGraph, binding: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [[binding.get(str(e), e) for e in t.shape] for t in g.inputs]
    return [rng.standard_normal([int(str(e)) for e in s]).astype(np.float32) for s in shapes]


def tiles(g: SGraph, m: int = 16, n: int = 16, k: int = 32) -> dict[str, int]:
    """Tiles that divide neither the widths nor the depth; another one for each kernel."""
    size = {"T_m": m, "T_n": n, "T_k": k}
    return {s.name: size[s.name[:3]] * (2 if s.name.endswith("_k") else 1) for s in g.symbols}


# The sGraph.


def test_kernels_that_share_an_input_are_found_and_fused() -> None:
    apart = qkv(apart=True)
    (group,) = fusable(apart)
    assert group == ("qkv_q_kernel", "qkv_k_kernel", "qkv_v_kernel")
    together = fuse(apart, group)
    spec.check(together)
    assert [launch.name for launch in together.launches] == ["qkv_q_k_v_kernel"]
    assert [launch.name for launch in apart.launches] == list(group)
    assert together.kernels == apart.kernels
    assert denote(together) == denote(apart)
    assert fusable(together) == []


def test_what_depends_is_not_fused_and_what_does_not_moves_together() -> None:
    g = chain()
    spec.check(g)
    assert fusable(g) == [("qkv_q_kernel", "qkv_k_kernel")]
    # `top` and `v` share nothing; without that condition they are a second group.
    groups = fusable(g, sharing=False)
    assert groups == [("qkv_q_kernel", "qkv_k_kernel"), ("qkv_top_kernel", "qkv_v_kernel")]
    for group in groups:
        g = fuse(g, group)
    spec.check(g)
    assert [k.name for k in g.kernels] == ["qkv_q_kernel", "qkv_k_kernel", "qkv_top_kernel", "qkv_v_kernel"]
    assert [launch.name for launch in g.launches] == ["qkv_q_k_kernel", "qkv_top_v_kernel"]
    assert denote(g) == denote(chain())


def test_groups_that_would_wait_for_each_other_are_not_found() -> None:
    # q and v in one launch, top and k in another: top waits for q, v for k.
    g = fuse(chain(), ("qkv_top_kernel", "qkv_k_kernel"))
    assert fusable(g, sharing=False) == []
    with pytest.raises(IllegalIRError, match="through a kernel"):
        fuse(g, ("qkv_q_kernel", "qkv_v_kernel"))


@pytest.mark.parametrize(
    ("together", "message"),
    [
        ((("qkv_q_kernel", "qkv_top_kernel"),), "qkv_top_kernel loads q, which qkv_q_kernel stores"),
        ((("qkv_q_kernel", "qkv_k_kernel"),), "not adjacent"),
        ((("qkv_top_kernel", "qkv_q_kernel"),), "not adjacent"),
        ((("qkv_q_kernel",),), "no group"),
        ((("qkv_q_kernel", "z"),), "z is to be launched with others and is no kernel"),
        ((("qkv_top_kernel", "qkv_k_kernel"), ("qkv_k_kernel", "qkv_v_kernel")), "launched twice"),
    ],
)
def test_an_illegal_group_is_refused(together: tuple[tuple[str, ...], ...], message: str) -> None:
    with pytest.raises(IllegalIRError, match=message):
        spec.check(replace(chain(), together=together))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (("qkv_q_kernel", "qkv_top_kernel"), "cannot be launched together: qkv_top_kernel loads q"),
        (("qkv_q_kernel", "nothing"), "are not two or more of its kernels"),
        (("qkv_q_kernel",), "are not two or more of its kernels"),
    ],
)
def test_fusing_what_cannot_be_fused_says_why(group: tuple[str, ...], message: str) -> None:
    with pytest.raises(IllegalIRError, match=message):
        fuse(chain(), group)
    with pytest.raises(IllegalIRError, match="together already"):
        fuse(qkv(), ("qkv_q_kernel", "qkv_k_kernel"))


def test_a_launch_has_a_name_of_its_own() -> None:
    g = qkv(6, 24, {"q": 10, "k": 12, "q_k": 8}, apart=True)
    fused = fuse(g, ("qkv_q_kernel", "qkv_k_kernel"))
    names = [launch.name for launch in fused.launches]
    assert names == ["qkv_q_k_kernel_", "qkv_q_k_kernel"]
    renamed = tuple(replace(k, name=n) for k, n in zip(g.kernels, ("a", "b_c", "a_d"), strict=True))
    assert [x.name for x in fuse(replace(g, kernels=renamed), ("a", "b_c", "a_d")).launches] == ["a_b_c_a_d"]


def test_the_simulation_is_right() -> None:
    g = qkv()
    binding = {"M": 19}
    inputs = draw(g, binding)
    tensors = {t.name: a for t, a in zip(g.inputs, inputs, strict=True)}
    found = simulate(g, tensors, {**binding, **tiles(g)})
    for name, want in zip(WIDTHS, reference(*inputs), strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-9)


def test_text_drawing_and_key_tell_one_launch_from_three() -> None:
    shown = text(qkv())
    assert "  launch qkv_q_k_v_kernel: qkv_q_kernel, qkv_k_kernel, qkv_v_kernel\n  kernel qkv_q_kernel" in shown
    assert "launch" not in text(qkv(apart=True))
    drawn = dot(qkv())
    assert drawn.count("{") == drawn.count("}")
    assert '"cluster launch qkv_q_k_v_kernel"' in drawn
    assert key(qkv()) != key(qkv(apart=True))
    two = fuse(qkv(apart=True), ("qkv_q_kernel", "qkv_k_kernel"))
    assert len({key(two), key(qkv()), key(qkv(apart=True))}) == 3


def test_one_launch_and_one_read_of_what_all_share() -> None:
    together, apart = qkv(512, 1024), qkv(512, 1024, apart=True)
    assert (sgraph_cost(together).launches, sgraph_cost(apart).launches) == (1, 3)
    binding = tiles(together)
    for name in ("programs", "dot_flops", "bytes_read", "bytes_written"):
        mine, theirs = (sgraph_cost(g).total(name).evaluate(binding) for g in (together, apart))
        assert mine == theirs
    mine, theirs = lower_bound(together, {}), lower_bound(apart, {})
    assert theirs.bytes - mine.bytes == 2 * 512 * 1024 * 4
    assert (mine.launches, theirs.launches, mine.flops) == (1, 3, theirs.flops)


# The model and the search space.


def estimated(g: SGraph) -> tuple[Config, Estimate]:
    return Space(g, H200, {}).points_ranked(Model(g, H200, {}), 1)[0]


def test_one_launch_is_faster_than_three_that_do_not_fill_the_device() -> None:
    widths = {"q": 1024, "k": 256, "v": 256}
    (config_together, together), (_, apart) = (estimated(qkv(16, 4096, widths, BF16, apart=a)) for a in (False, True))
    assert [k.name for k in together.per_kernel] == ["qkv_q_k_v_kernel"]
    assert [k.launch for k in together.per_kernel] == [H200.launch_overhead_s]
    assert set(config_together.warps) == set(config_together.stages) == {"qkv_q_k_v_kernel"}
    assert together.seconds < apart.seconds - 2 * H200.launch_overhead_s


def test_work_adds_up_and_what_all_load_is_moved_once() -> None:
    g, apart = (qkv(2048, 4096, {"q": 4096, "k": 1024, "v": 1024}, BF16, apart=a) for a in (False, True))
    symbols = {s.name: 64 if s.name.startswith("T_k") else 128 for s in g.symbols}
    one = Model(g, H200, {}).estimate(Config(symbols, {"qkv_q_k_v_kernel": 8}, {"qkv_q_k_v_kernel": 3}))
    names = [k.name for k in apart.kernels]
    three = Model(apart, H200, {}).estimate(Config(symbols, dict.fromkeys(names, 8), dict.fromkeys(names, 3)))
    x = 2048 * 4096 * 2
    # L2 keeps x, which the second and the third kernel load again.
    assert sum(k.bytes for k in three.per_kernel) - one.per_kernel[0].bytes == pytest.approx(2 * x)
    # 768 programs on 132 multiprocessors, against 512, 128 and 128: fewer stand idle at the end.
    assert one.per_kernel[0].compute < sum(k.compute for k in three.per_kernel)
    assert one.per_kernel[0].compute > 0.8 * sum(k.compute for k in three.per_kernel)
    alone = KernelModel(g.kernels[1], g, H200, {})
    launch = LaunchModel("k", [alone])
    assert launch.seconds(symbols, 8, 3) == alone.seconds(symbols, 8, 3)


def test_a_launch_is_estimated_once_for_all_configurations_that_are_the_same_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = qkv(512, 1024, {"q": 1024, "k": 256, "v": 256}, BF16, apart=True)
    points = Space(g, H200, {}).best(Model(g, H200, {}), 64)
    points = (*points, *(p.having(descriptors=p.warps.keys()) for p in points[:4]))
    alone = [Model(g, H200, {}).estimate(p) for p in points]
    model, found = Model(g, H200, {}), []
    times = LaunchModel._times_of

    def counted(self: LaunchModel, config: Config, resources: Resources | None) -> Any:
        found.append(self.name)
        return times(self, config, resources)

    monkeypatch.setattr(LaunchModel, "_times_of", counted)
    assert [model.estimate(p) for p in points] == alone

    def own(config: Config, k: Kernel) -> tuple[Any, ...]:
        chosen = tuple(o for o in config.options if k.name in config.launches(o))
        values = tuple(config.symbols[s.name] for s in k.symbols)
        return values, config.warps.get(k.name), config.stages.get(k.name), chosen

    assert len(found) == sum(len({own(p, k) for p in points}) for k in g.kernels) < len(points) * len(g.kernels)


def test_a_kernel_that_does_not_fit_rules_the_launch_out() -> None:
    g = qkv(512, 1024, {"q": 1024, "k": 256, "v": 256}, BF16)
    model = Model(g, H200, {})
    fits = {s.name: 64 for s in g.symbols}
    one = {"qkv_q_k_v_kernel": 4}
    assert math.isfinite(model.seconds(Config(fits, one, one)))
    for name in ("q", "k", "v"):
        assert model.seconds(Config({**fits, f"T_k_{name}": 1024, f"T_m_{name}": 256}, one, one)) == math.inf
    over = [Resources("qkv_q_k_v_kernel", 300_000, 128, 0, 4)]
    assert model.seconds(Config(fits, one, one), over) == math.inf


def test_the_space_of_a_launch_holds_what_fits_for_each_kernel() -> None:
    g = qkv(512, 1024, {"q": 1024, "k": 256, "v": 256}, BF16)
    space = Space(g, H200, {})
    assert 0 < space.size <= 200_000
    found = list(islice(space.configs(), 0, 20_000, 997))
    assert len({c.key() for c in found}) == len(found)
    for c in found:
        assert space.feasible(c)
        for k in g.kernels:
            name = "qkv_q_k_v_kernel"
            assert all(ok for _, ok in checks(footprint(k, g), H200, c.symbols, c.stages[name], c.warps[name]))
    bad = Config({**found[0].symbols, "T_m_k": 3}, found[0].warps, found[0].stages)
    assert not space.feasible(bad)


def test_no_other_point_of_two_small_kernels_is_better() -> None:
    # Small enough to go through all pairs of points.
    g = fuse(qkv(64, 64, {"q": 64, "k": 32, "v": 32}, BF16, apart=True), ("qkv_q_kernel", "qkv_k_kernel"))
    g = replace(g, kernels=g.kernels[:2], outputs=g.outputs[:2], inputs=g.inputs[:3])
    space, model = Space(g, H200, {}), Model(g, H200, {})
    (best,) = space.points_ranked(model, 1)
    q, k = space.kernels
    least = math.inf
    for row in range(len(q.points)):
        mine = dict(zip(q.names, q.points[row].tolist(), strict=True))
        same = (k.column("warps") == mine["warps"]) & (k.column("stages") == mine["stages"])
        theirs = {n: c[same] for n, c in k.binding().items()}
        least = min(least, model.launches[0].seconds({**mine, **theirs}, mine["warps"], mine["stages"]).min())
    assert best[1].seconds == pytest.approx(least, rel=0.02)


def test_the_parts_of_a_split_stay_free_for_the_second_stage() -> None:
    # Two sums over a long axis, split; their first stages in one launch.
    g = split_pair()
    spec.check(g)
    fused = fuse(g, fusable(g)[0])
    spec.check(fused)
    assert [launch.name for launch in fused.launches] == ["a_b_split", "a_combine", "b_combine"]
    space = Space(fused, H200, {})
    assert space.shared == ("S_k_a", "S_k_b")
    ranked = space.points_ranked(Model(fused, H200, {}), 5)
    assert ranked
    assert all(space.feasible(c) for c, _ in ranked)
    assert ranked[0][1].seconds < estimated(g)[1].seconds


def split_pair() -> SGraph:
    """a = sum_k x[k, n] and b = sum_k x[k, n] * x[k, n], both split over k."""
    k, n = Axis("k", 65_536), Axis("n", 16)
    kernels: list[Kernel] = []
    buffers: list[Tensor] = []
    for name in ("a", "b"):
        parts = sym(f"S_k_{name}")
        part = part_axis(k, parts)
        square = (op("y", "mul", "x1", "x1"),) if name == "b" else (op("y", "abs", "x1"),)
        loop = Loop(
            k,
            (
                Load("x1", "x", at(k, n)),
                *square,
                TileReduce("s", ReduceKind.SUM, k, "y"),
                Accumulate("acc", ReduceKind.SUM, "s"),
            ),
        )
        roles = ((n, Grid(sym(f"T_n_{name}"))), (k, Split(parts, sym(f"T_k_{name}"))))
        kernels.append(Kernel(f"{name}_split", roles, (loop, Store(f"{name}_parts", at(n, part), "acc"))))
        total = (
            Load("p", f"{name}_parts", at(n, part)),
            TileReduce("s", ReduceKind.SUM, part, "p"),
            Store(name, at(n), "s"),
        )
        kernels.append(Kernel(f"{name}_combine", ((n, Grid(sym(f"T_n_{name}2"))), (part, Whole())), total))
        buffers.append(Tensor(f"{name}_parts", (16, parts), F32))
    outputs = tuple(Tensor(name, (16,), F32) for name in ("a", "b"))
    return SGraph("sums", (Tensor("x", (65_536, 16), F32),), tuple(buffers), outputs, tuple(kernels))


def test_long_launches_are_sampled_kernel_by_kernel() -> None:
    g = qkv(1000, 64, {"q": 64, "k": 16, "v": 16})
    tuned = Config({s.name: 16 for s in g.symbols}, {"qkv_q_k_v_kernel": 4}, {"qkv_q_k_v_kernel": 1})
    (sample,) = plan_samples(g, tuned, {})
    assert sample is not None
    # A third of the time for each, and not all programs of any.
    assert [grid for grid, _ in sample] == [(63, 4), (63, 1), (63, 1)]
    assert all(1 < limit < math.prod(grid) for grid, limit in sample)
    assert cost_s(g, tuned, {}, sampled=True) < cost_s(g, tuned, {})
    assert plan_samples(qkv(16, 64, {"q": 64, "k": 16, "v": 16}), tuned, {}) == [None]


def test_the_numeric_gate_runs_samples_of_each_kernel(
    runner: KernelRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prism.instantiate.gate.plan.CASE_TARGET_S", 0.1)
    m, k = Axis("m", 200), Axis("k", 32)
    axes = {name: Axis(f"n_{name}", width) for name, width in (("q", 32), ("k", 16), ("v", 16))}
    weights = {name: reduce("sum", k, mul(read("x", m, k), read(f"w{name}", k, n))) for name, n in axes.items()}
    definitions = tuple(
        Definition(name, (m, axes[name]), mapped("sigmoid", e) if name == "v" else e, F32)
        for name, e in weights.items()
    )
    g = qkv(200, 32, {"q": 32, "k": 16, "v": 16})
    program = Program("qkv", g.inputs, definitions, ("q", "k", "v"))
    source = emit(g)
    tuned = config(source, {s.name: 16 for s in g.symbols}, 1)
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(source.text)
    assert "pid < end_2" in source.text
    wrong.write_text(source.text.replace("pid < end_2", "pid < end_1"))
    report = check_module(program, right, g, tuned, runner=runner)
    assert report.passed, report.failures
    assert report.sampled
    failures = check_module(program, wrong, g, tuned, runner=runner).failures
    assert "k: " in failures[0], "the second kernel's programs do not run"


# The module.


def emit(g: SGraph) -> ModuleSource:
    tile_spec.check_module(lower(g))
    return emit_module(g, formula="q, k, v = x @ wq, x @ wk, sigmoid(x @ wv)", configs={})


def config(source: ModuleSource, symbols: Mapping[str, int], stages: int = 2) -> Config:
    return Config(symbols, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, stages))


def interpret(interpreter: InterpreterPool, folder: Path, g: SGraph, inputs: list[np.ndarray]) -> list[np.ndarray]:
    source = emit(g)
    path = folder / f"{g.name}.py"
    path.write_text(source.text)
    dtypes = tuple(t.dtype.value for t in g.inputs)
    return interpreter.run(InterpretJob(path, source.entry, tuple(inputs), dtypes, config(source, tiles(g))))


@pytest.mark.parametrize("rows", [1, 16, 35])
def test_a_launch_of_three_computes_all_three(interpreter: InterpreterPool, tmp_path: Path, rows: int) -> None:
    g = qkv()
    inputs = draw(g, {"M": rows}, seed=rows)
    found = interpret(interpreter, tmp_path, g, inputs)
    for got, want in zip(found, reference(*inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_two_launches_of_two(interpreter: InterpreterPool, tmp_path: Path) -> None:
    g = chain()
    for group in fusable(g, sharing=False):
        g = fuse(g, group)
    x, wq, wk, wv = draw(g, {})
    top, v = interpret(interpreter, tmp_path, g, [x, wq, wk, wv])
    np.testing.assert_allclose(top, np.abs(x.astype(float) @ wq), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(v, x.astype(float) @ wk @ wv, rtol=1e-4, atol=1e-4)


def test_lengths_that_only_the_grid_depends_on(interpreter: InterpreterPool, tmp_path: Path) -> None:
    # A row a program: the first kernel itself does not ask how many rows there are.
    wide, rows, others = Axis("d", 12), Axis("m", ROWS), Axis("n", sym("N"))
    first = Kernel(
        "top_kernel",
        ((rows, Grid(1)), (wide, Whole())),
        (Load("x1", "x", at(rows, wide)), TileReduce("s", ReduceKind.MAX, wide, "x1"), Store("a", at(rows), "s")),
    )
    second = Kernel(
        "abs_kernel",
        ((others, Grid(sym("T_n"))),),
        (Load("y1", "y", at(others)), op("s", "abs", "y1"), Store("b", at(others), "s")),
    )
    inputs = (Tensor("x", (ROWS, 12), F32), Tensor("y", (sym("N"),), F32))
    g = SGraph("two", inputs, (), (Tensor("a", (ROWS,), F32), Tensor("b", (sym("N"),), F32)), (first, second))
    assert fusable(g) == []
    g = fuse(g, fusable(g, sharing=False)[0])
    assert [launch.name for launch in g.launches] == ["top_abs_kernel"]
    x, y = draw(g, {"M": 5, "N": 37})
    a, b = interpret(interpreter, tmp_path, g, [x, y])
    np.testing.assert_array_equal(a, x.max(1))
    np.testing.assert_array_equal(b, np.abs(y))


def test_a_launch_takes_what_its_programs_need() -> None:
    module = lower(qkv())
    (launch,) = module.launches
    assert [p.name for p in launch.programs] == ["qkv_q_kernel", "qkv_k_kernel", "qkv_v_kernel"]
    assert module.programs == launch.programs
    for broken, missing in (
        (replace(launch, constants=launch.constants[1:]), "T_m_q"),
        (replace(launch, lengths=()), "M"),
        (replace(launch, tensors=launch.tensors[1:]), "x"),
    ):
        with pytest.raises(IllegalIRError, match=rf"needs {missing}, which its launch does not take"):
            tile_spec.check_module(replace(module, launches=(broken,)))
    # Nor does a launch load what another of its programs stores.
    dependent = lower(chain())
    q, top, *rest = dependent.launches
    both = replace(q, programs=(*q.programs, *top.programs))
    with pytest.raises(IllegalIRError, match="loads q, which no earlier launch stores"):
        tile_spec.check_module(replace(dependent, launches=(both, *rest)))


def test_the_module_shows_the_branches_and_launches_once() -> None:
    source = emit(qkv())
    assert source.kernels == ("qkv_q_k_v_kernel",)
    assert source.text.startswith('"""qkv: 1 Triton kernel, written by prism.')
    assert max(map(len, source.text[source.text.index("import torch") :].splitlines())) <= 120
    functions = {n.name: n for n in ast.parse(source.text).body if isinstance(n, ast.FunctionDef)}
    branches = [n for n in functions["qkv_q_k_v_kernel"].body if isinstance(n, ast.If)]
    assert [ast.unparse(b.test) for b in branches] == [
        "pid < end_1",
        "(pid >= end_1) & (pid < end_2)",
        "pid >= end_2",
    ]
    called = [b.body[0].value.func.id for b in branches]  # type: ignore[attr-defined]
    assert called == ["qkv_q_kernel", "qkv_k_kernel", "qkv_v_kernel"]
    assert not any(b.orelse for b in branches)
    assert [a.arg for a in functions["qkv_k_kernel"].args.args][:4] == ["pid", "x_ptr", "wk_ptr", "k_ptr"]
    yields = [n for n in ast.walk(functions["launches"]) if isinstance(n, ast.Yield)]
    assert len(yields) == 1
    assert source == emit(qkv())


def test_apart_the_module_is_that_of_three_kernels() -> None:
    source = emit(qkv(apart=True))
    assert source.kernels == ("qkv_q_kernel", "qkv_k_kernel", "qkv_v_kernel")
    assert not re.search(r"^ *if \(?pid", source.text, re.MULTILINE)
    assert re.search(r"^ *if \(?pid", emit(qkv()).text, re.MULTILINE)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_launch_of_three_compiles_with_its_products_pipelined(code_of: CodeOf, target: str) -> None:
    g = qkv(512, 256, {"q": 1024, "k": 256, "v": 256}, BF16)
    (code,) = code_of(g, config(emit(g), {s.name: 64 for s in g.symbols}, stages=3), target)
    assert (code.kernel, code.resources.spills) == ("qkv_q_k_v_kernel", 0)
    # Shared memory holds the operands of two or three steps at a time, and all three products use the same.
    step = (64 * 64 + 64 * 64) * 2
    assert 2 * step <= code.resources.shared <= 3 * step
    assert code.ttgir.count("async_copy_global_to_local") >= 3 * 2
    assert "tt.call" not in code.ttgir
