"""Kernels that store along an axis and sum over it in the same pass: norms' and losses' gradients.

They are legal sGraphs as any; what is new is that the generator builds them.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_batch import Case, run_batch
from formulas import evaluate_formula
from interpreting import InterpreterPool, InterpretJob
from sgraph_programs import program, task
from sgraph_simulator import simulate

from benchmarks import collection
from prism.api import trace
from prism.api.region_search import SearchBudget, run_search
from prism.backends.cpu.support import find_compiler
from prism.backends.triton.emit import emit_module
from prism.cost.constraints import RoleBounds
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.generate.enumerate import Bounds, generate
from prism.generate.schedule import Output, Scheduler
from prism.generate.values import KernelValue, Values
from prism.program.build import add, const, mean, mul, neg, op, read, recip, reduce
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.inline import aligned, inline
from prism.program.nodes import DType, Program, ReduceKind, Tensor
from prism.sgraph.config import Config
from prism.sgraph.nodes import Accumulate, Grid, Kernel, Load, Loop, LoopRole, Role, SGraph, Split, Store

M, K = Axis("m", 22), Axis("k", 20)
WIDE = Bounds(
    max_kernels=1,
    max_families=2000,
    per_kernel=40,
    per_plan=60,
    max_sgraphs=400,
    off=frozenset({"dominated", "worse"}),
    roles=RoleBounds(short=0),
)


def norm_gradient() -> Program:
    """A norm's dx[m, k], and its dg[k]."""
    x, dy = read("x", M, K), read("dy", M, K)
    h = mul(x, recip(op("sqrt", add(mean(K, mul(x, x)), const(1e-3)))))
    dx = add(dy, neg(mul(h, mean(K, mul(dy, h)))))
    return program(
        "p", {"x": (22, 20), "dy": (22, 20)}, {"dx": ((M, K), dx), "dg": ((K,), reduce("sum", M, mul(dy, h)))}
    )


def along(store: Store) -> set[Axis]:
    """The axes that a store ranges over."""
    return {a for i in store.index for a in i.axes()}


def split_and_stored(g: SGraph) -> bool:
    """Whether some kernel stores along an axis that its programs share."""
    return any(
        isinstance(role, Split) and any(isinstance(s, Store) and axis in along(s) for s in k.statements())
        for k in g.kernels
        for axis, role in k.roles
    )


def looped_and_stored(g: SGraph) -> bool:
    """Whether some loop both stores along its axis and accumulates."""
    return any(
        isinstance(loop, Loop)
        and any(isinstance(s, Accumulate) for s in loop.body)
        and any(isinstance(s, Store) and loop.axis in along(s) for s in loop.body)
        for k in g.kernels
        for loop in k.statements()
    )


@pytest.fixture(scope="module")
def found() -> list[SGraph]:
    """The sGraphs of the norm's gradient that do both along one axis."""
    every = [c.sgraph for c in generate(task(norm_gradient()), WIDE).candidates]
    mine = [g for g in every if looped_and_stored(g)]
    assert len(mine) >= 4
    assert sum(map(split_and_stored, mine)) >= 2
    return mine


def test_what_is_the_same_along_an_axis_is_stored_beside_a_square_product() -> None:
    # k and n are as long, so squares are summed up under the name of n at first: no program has to go over all of it.
    n = Axis("n", 20)
    x, w = read("x", M, K), read("w", K, n)
    squares = reduce("sum", K, mul(x, x))
    y = mul(reduce("sum", K, mul(x, w)), recip(squares))
    both = program("p", {"x": (22, 20), "w": (20, 20)}, {"y": ((M, n), y), "squares": ((M,), squares)})
    every = [c.sgraph for c in generate(task(both), replace(WIDE, roles=RoleBounds(short=0, splits=False))).candidates]
    mine = [
        g
        for g in every
        for k in g.kernels
        if {s.tensor for s in k.statements() if isinstance(s, Store)} == {"y", "squares"}
        and sum(isinstance(role, Grid) for _, role in k.roles) == 2
        and sum(isinstance(s, Loop) for s in k.statements()) == 1
    ]
    assert mine
    rng = np.random.default_rng(1)
    given = {"x": rng.standard_normal((22, 20)), "w": rng.standard_normal((20, 20))}
    for g in mine:
        got = simulate(g, given, {s.name: 8 for s in g.symbols})
        summed = (given["x"] ** 2).sum(1)
        np.testing.assert_allclose(got["squares"], summed, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(got["y"], given["x"] @ given["w"] / summed[:, None], rtol=1e-9, atol=1e-9)


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {t.name: rng.standard_normal([int(e) for e in t.shape]) for t in norm_gradient().inputs}


def test_tiles_and_parts_of_any_length_give_the_same(found: list[SGraph]) -> None:
    choose, given = random.Random(0), inputs()
    wanted = evaluate(norm_gradient(), given)
    for g in found[:: max(1, len(found) // 8)]:
        binding = {s.name: choose.choice((3, 5, 8, 32)) for s in g.symbols}
        got = simulate(g, given, binding)
        for name in ("dx", "dg"):
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-9, atol=1e-9, err_msg=str(binding))


def picked(found: list[SGraph]) -> list[SGraph]:
    """One of each kind: split, and looped by one program."""
    return [next(g for g in found if split_and_stored(g)), next(g for g in found if not split_and_stored(g))]


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
def test_cpp_kernels_do_both(found: list[SGraph], tmp_path: Path) -> None:
    given = {n: a.astype(np.float32) for n, a in inputs().items()}
    wanted = evaluate(norm_gradient(), given)
    made = [
        Case(g, {s.name: size for s in g.symbols}, [given[t.name] for t in g.inputs])
        for g in picked(found)
        for size in (3, 8)
    ]
    for case, got in zip(made, run_batch(made, tmp_path), strict=True):
        for t, a in zip(case.sgraph.outputs, got, strict=True):
            np.testing.assert_allclose(a, wanted[t.name], rtol=0, atol=2e-5)


def test_triton_kernels_do_both(found: list[SGraph], interpreter: InterpreterPool, tmp_path: Path) -> None:
    given = {n: a.astype(np.float32) for n, a in inputs().items()}
    wanted = evaluate(norm_gradient(), given)
    jobs, names = [], []
    for n, g in enumerate(picked(found)):
        source = emit_module(g, formula="both", configs={})
        path = tmp_path / f"m{n}.py"
        path.write_text(source.text)
        config = Config(
            {s.name: 8 for s in g.symbols}, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2)
        )
        jobs.append(InterpretJob(path, source.entry, tuple(given[t.name] for t in g.inputs), ("float32",) * 2, config))
        names.append([t.name for t in g.outputs])
    for result, outputs in zip(interpreter.run_many(jobs), names, strict=True):
        assert not result.error
        for name, got in zip(outputs, result.outputs, strict=True):
            np.testing.assert_allclose(got, wanted[name], rtol=0, atol=2e-5)


def test_what_reads_nothing_in_common_stays_apart() -> None:
    x, y = read("x", M, K), read("y", M, K)
    apart = program(
        "p", {"x": (22, 20), "y": (22, 20)}, {"o": ((M, K), mul(x, x)), "s": ((K,), reduce("sum", M, mul(y, y)))}
    )
    assert not any(looped_and_stored(c.sgraph) for c in generate(task(apart), WIDE).candidates)


@pytest.mark.parametrize(
    ("fn", "shapes", "once"),
    [
        (collection.rms_norm_backward, ((4096, 2048), (2048,), (4096, 2048)), (0, 2)),
        (collection.jsd, ((1024, 32768), (1024, 32768)), (0, 1)),
    ],
    ids=["RMSNorm", "JSD"],
)
def test_gradients_read_their_inputs_once(
    worker: Worker, fn: object, shapes: tuple[tuple[int, ...], ...], once: tuple[int, ...]
) -> None:
    p = trace(fn, [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes], name="p")  # type: ignore[arg-type]
    best = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved[0].sgraph
    loads = [s.tensor for k in best.kernels for s in k.statements() if isinstance(s, Load)]
    assert [loads.count(p.inputs[n].name) for n in once] == [1] * len(once)
    assert looped_and_stored(best)


def test_square_shapes_name_the_axes_of_later_outputs_as_earlier_ones_do() -> None:
    """What the sum over rows is left with is a column, though rows and columns are as many."""

    def gradients(x: torch.Tensor, dy: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        h, dh = x * r, dy * g
        return r * (dh - h * (dh * h).mean(-1, keepdim=True)), (dy * h).sum(0)

    shapes = (torch.empty(4096, 4096), torch.empty(4096, 4096), torch.empty(4096))
    p = trace(gradients, shapes, name="square", check=False)
    with Worker() as worker:
        found = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder())
    reads = [s.tensor for k in found.proved[0].sgraph.kernels for s in k.statements() if isinstance(s, Load)]
    assert reads.count("x") == 1, "one kernel makes both gradients, and reads x once"
    rows, columns = found.formulas[0].index
    assert found.formulas[1].index == (columns,)
    assert rows != columns


def test_naming_axes_as_earlier_outputs_do_keeps_what_is_computed() -> None:
    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x + y, (x * y).T, (x @ y).sum(0)

    p = trace(both, (torch.empty(6, 6), torch.empty(6, 6)), name="both", check=False)
    plain, named = inline(p), aligned(inline(p))
    assert plain[0] == named[0]
    assert any(a != b for a, b in zip(plain, named, strict=True)), "the transposed one reads x as the sum does"
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal((6, 6)) for t in p.inputs}
    for a, b in zip(plain, named, strict=True):
        np.testing.assert_array_equal(evaluate_formula(a, given, {}), evaluate_formula(b, given, {}))


def test_outputs_that_sum_over_what_others_keep_are_one_kernel(worker: Worker) -> None:
    """dx sums over the streams that dr and dp keep, and those over the channels that it keeps."""
    shapes = ((512, 4, 2048), (512, 2048), (512, 4, 4), (512, 4), (512, 4, 2048))
    given = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes]
    p = trace(collection.hyper_connection_backward, given, name="p")
    (kernel,) = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved[0].sgraph.kernels
    assert len([s for s in kernel.statements() if isinstance(s, Load)]) == len(shapes)


def test_axes_of_earlier_outputs_are_named_as_later_ones_have_them() -> None:
    """Streams that the first output sums over are those that both others keep."""
    shapes = ((6, 4, 5), (6, 5), (6, 4, 4), (6, 4), (6, 4, 5))
    p = trace(
        lambda *given: collection.hyper_connection_backward(*given)[::2],
        tuple(torch.empty(s) for s in shapes),
        name="streams",
        check=False,
    )
    plain, named = inline(p), aligned(inline(p))
    assert plain[0] != named[0]
    assert plain[1] == named[1]
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal([int(e) for e in t.shape]) for t in p.inputs}
    for a, b in zip(plain, named, strict=True):
        np.testing.assert_allclose(evaluate_formula(a, given, {}), evaluate_formula(b, given, {}), rtol=1e-12)


def test_a_shift_that_is_known_needs_no_running_value() -> None:
    """Along s the maxima are summed up, and what they shift is stored: where it is, the maximum has been found."""
    s, v = Axis("s", 20), Axis("v", 24)
    values = Values()
    x = values.read("x", (Index.axis(s), Index.axis(v)))
    top = values.reduce(ReduceKind.MAX, v, x)
    outputs = [
        Output("total", (), values.reduce(ReduceKind.SUM, s, top)),
        Output("sums", (Index.axis(s),), values.rescaled(v, x, top, None)),
    ]
    roles = {s: LoopRole(4), v: LoopRole(8)}
    kernel = Kernel("f_kernel", tuple(roles.items()), Scheduler(roles).run(outputs))
    made = (Tensor("total", (), DType.FLOAT32), Tensor("sums", (20,), DType.FLOAT32))
    rows = np.random.default_rng(0).standard_normal((20, 24))
    got = simulate(SGraph("f", (Tensor("x", (20, 24), DType.FLOAT32),), (), made, (kernel,)), {"x": rows}, {})
    np.testing.assert_allclose(got["total"], rows.max(1).sum())
    np.testing.assert_allclose(got["sums"], np.exp(rows - rows.max(1, keepdims=True)).sum(1))


@pytest.mark.parametrize(
    ("summed", "loaded"),
    [
        # A gradient's sum is read again with its moment; not where that needs it, nor where more would be computed.
        ("plain", [1, 2]),
        ("needed", [2, 2]),
        ("twice", [2, 2]),
    ],
)
def test_a_sum_waits_for_the_pass_that_reads_what_it_does(summed: str, loaded: list[int]) -> None:
    m, k, values = M, K, Values()
    x, dy = (values.read(name, (Index.axis(m), Index.axis(k))) for name in ("x", "dy"))
    power = values.make("exp", (x,))

    def total(value: KernelValue) -> KernelValue:
        return values.reduce(ReduceKind.SUM, k, value)

    first = total(power if summed == "twice" else x)
    alone = total(values.make("mul", (power, dy)) if summed == "twice" else dy)
    shift = values.make("add", (first, alone)) if summed == "needed" else first
    moment = total(values.make("mul", (dy, values.make("add", (x, shift)))))
    outputs = [Output("alone", (Index.axis(m),), alone), Output("moment", (Index.axis(m),), moment)]
    roles: dict[Axis, Role] = {m: Grid(4), k: LoopRole(8)}
    kernel = Kernel("f_kernel", tuple(roles.items()), Scheduler(roles).run(outputs))
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    assert [sum(isinstance(s, Load) for s in loop.body) for loop in loops] == loaded
    made = tuple(Tensor(name, (22,), DType.FLOAT32) for name in ("alone", "moment"))
    given = tuple(Tensor(name, (22, 20), DType.FLOAT32) for name in ("x", "dy"))
    a, b = np.random.default_rng(0).standard_normal((2, 22, 20))
    got = simulate(SGraph("f", given, (), made, (kernel,)), {"x": a, "dy": b}, {})
    by = np.exp(a) if summed == "twice" else a
    sums = (np.exp(a) * b if summed == "twice" else b).sum(1, keepdims=True)
    shifts = by.sum(1, keepdims=True) + (sums if summed == "needed" else 0.0)
    np.testing.assert_allclose(got["alone"], sums[:, 0])
    np.testing.assert_allclose(got["moment"], (b * (a + shifts)).sum(1))


def numbers() -> Program:
    """Something over the root of the sum of all its squares, and two numbers with half of that sum."""
    x = read("x", M, K)
    total = reduce("sum", M, reduce("sum", K, mul(x, x)))
    pair = Axis("p", 2)
    scaled = mul(x, recip(op("sqrt", total)))
    told = add(mul(const(0.5), total), read("b", pair))
    return program("p", {"x": (22, 20), "b": (2,)}, {"y": ((M, K), scaled), "z": ((pair,), told)})


def test_a_number_is_stored_and_read_back(interpreter: InterpreterPool, tmp_path: Path) -> None:
    found = [c.sgraph for c in generate(task(numbers()), replace(WIDE, max_kernels=2)).candidates]
    mine = [g for g in found if any(not b.shape for b in g.buffers)]
    assert mine
    given = {t.name: np.random.default_rng(0).standard_normal([int(e) for e in t.shape]) for t in numbers().inputs}
    wanted = evaluate(numbers(), given)
    for g in mine[:4]:
        got = simulate(g, given, {s.name: 5 for s in g.symbols})
        for name in ("y", "z"):
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-9, atol=1e-9)
    g, short = mine[0], {n: a.astype(np.float32) for n, a in given.items()}
    made = [short[t.name] for t in g.inputs]
    source = emit_module(g, formula="numbers", configs={})
    path = tmp_path / "numbers.py"
    path.write_text(source.text)
    config = Config({s.name: 8 for s in g.symbols}, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2))
    (result,) = interpreter.run_many([InterpretJob(path, source.entry, tuple(made), ("float32",) * 2, config)])
    assert not result.error
    answers = [dict(zip([t.name for t in g.outputs], result.outputs, strict=True))]
    if find_compiler() is not None:
        (compiled,) = run_batch([Case(g, {s.name: 8 for s in g.symbols}, made)], tmp_path)
        answers.append(dict(zip([t.name for t in g.outputs], compiled, strict=True)))
    for answer in answers:
        for name in ("y", "z"):
            np.testing.assert_allclose(answer[name], wanted[name], rtol=1e-5, atol=1e-5)
