"""States that stay on chip: when all steps of a loop may be one launch, what that is, and that it computes the same."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpu_batch import Case, run_batch
from interpreting import InterpreterPool, InterpretJob
from test_cpu_target import CPU
from tile_simulator import run_module

import prism
from prism.api.partitioned import PartitionedSearch, composed_choice, search_regions
from prism.api.records import Choice
from prism.api.region_search import SearchBudget
from prism.api.verifying import verify
from prism.backends.cpu.build import find_compiler
from prism.backends.lower import lower
from prism.backends.passes import tile_module
from prism.backends.protocol import Compiled, arguments, write_module
from prism.backends.tile import For, Load, Store
from prism.backends.tile_spec import check_module
from prism.backends.triton.crosscompile import CompileJob, compiled, request
from prism.backends.triton.emit import emit_module
from prism.cost.counts import sgraph_cost
from prism.cost.cpu import CpuModel
from prism.cost.device import device
from prism.cost.model import Model
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError
from prism.events import CheckSummary, Evidence, Recorder
from prism.generate.partition import partition
from prism.instantiate.study import Best, TuneResult
from prism.process.worker import Pool
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Program, ReduceKind, Tensor
from prism.sgraph import nodes, spec
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import Grid, Kernel, LoopRole, Pointwise, Repeat, SGraph, Split, TileReduce, Whole, Window
from prism.sgraph.record import plain, sgraph_of
from prism.sgraph.resident import as_one, in_one_launch, launched, obstacle
from prism.sgraph.show import key, text

F32 = DType.FLOAT32
T, N = symbol("t"), symbol("n")
TILE = symbol("T_n")
n = Axis("n", N)
AT = Index.axis(n)


def delta(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The delta rule: a state that its steps multiply, each column by itself."""
    state, found = v.new_zeros(q.shape[-1], v.shape[-1]), []
    for t in range(q.shape[0]):
        error = v[t] - k[t] @ state
        state = state + b[t] * k[t][:, None] * error
        found.append(q[t] @ state)
    return torch.stack(found)


def gated(x: torch.Tensor, gate: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """A state with a gate for each row, which is read by a product: the last step first."""
    state, found = x.new_zeros(q.shape[-1], x.shape[-1]), []
    for t in reversed(range(x.shape[0])):
        state = torch.sigmoid(gate[t])[:, None] * torch.tanh(state + q[t] @ state) + x[t]
        found.append(q[t] @ state)
    return torch.stack(found)


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A state of which every element hangs on all elements of the one before."""
    state, found = x.new_zeros(x.shape[-1]), []
    for t in range(x.shape[0]):
        state = torch.tanh(state @ w + x[t])
        found.append(state)
    return torch.stack(found)


def balanced(x: torch.Tensor) -> torch.Tensor:
    """Rows and columns that sum to 1, by turns: the first state is made of x, and the last is all that is wanted."""
    state = (x - x.amax((-1, -2), keepdim=True)).exp()
    for _ in range(6):
        state = state / (state.sum(-1, keepdim=True) + 1e-3)
        state = state / (state.sum(-2, keepdim=True) + 1e-3)
    return state


SIZES: Mapping[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "delta": (delta, ((9, 5), (9, 5), (9, 7), (9,))),
    "square delta": (delta, ((9, 6), (9, 6), (9, 6), (9,))),
    "gated": (gated, ((8, 7), (8, 5), (8, 5))),
    "balanced": (balanced, ((9, 4, 3),)),
    "mixed": (mixed, ((8, 6), (6, 6))),
}


def drawn(name: str) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(s) / 2 for s in SIZES[name][1])


@pytest.fixture(scope="module")
def searched(worker: Worker) -> Mapping[str, tuple[Program, PartitionedSearch, SGraph]]:
    """Each function, its searches and the best sGraph."""
    return {name: best_of(function, drawn(name), worker) for name, (function, _) in SIZES.items()}


def best_of(
    function: Any, inputs: tuple[torch.Tensor, ...], worker: Worker
) -> tuple[Program, PartitionedSearch, SGraph]:
    """The function, its searches and the best sGraph."""
    program = prism.trace(function, inputs, name="steps", check=False)
    assert len(program.loops) == 1
    regions = partition(program, device=device("sm_90"))
    searches = search_regions(program, regions, device("sm_90"), SearchBudget(), [worker], Recorder())
    composed = searches.compose([r.result.proved[0].sgraph for r in searches.regions])
    spec.check(composed.sgraph)
    return program, searches, composed.sgraph


ON_CHIP = [name for name in SIZES if name != "mixed"]
Searched = Mapping[str, tuple[Program, PartitionedSearch, SGraph]]


# What is found.


@pytest.mark.parametrize("name", ON_CHIP)
def test_steps_that_need_no_other_program_are_one_launch(searched: Searched, name: str) -> None:
    _, _, sgraph = searched[name]
    (repeat,) = sgraph.repeats
    assert repeat.resident
    assert len(repeat.kernels) == 1
    place = "last" if repeat.reverse else "first"
    assert f"{repeat.trips} steps in one launch, the {place} place first, each with" in text(sgraph)
    assert sgraph_of(plain(sgraph)) == sgraph
    waiting = replace(sgraph, repeats=(replace(repeat, resident=False),))
    assert key(waiting) != key(sgraph)
    spec.check(waiting)


def test_a_state_that_all_programs_need_takes_a_launch_a_step(searched: Searched) -> None:
    _, searches, sgraph = searched["mixed"]
    (repeat,) = sgraph.repeats
    assert not repeat.resident
    with pytest.raises(IllegalIRError, match="cannot be one launch"):
        spec.check(replace(sgraph, repeats=(replace(repeat, resident=True),)))
    (step,) = (r for r in searches.regions if r.region.loop is not None)
    assert searches.through_steps(step) is None


def computed(name: str) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(SIZES[name][0](*(t.double() for t in drawn(name))).numpy())


@pytest.mark.parametrize("name", ON_CHIP)
@pytest.mark.parametrize("tile", [1, 2, 4, 8])
@pytest.mark.parametrize("backwards", [False, True])
def test_tile_programs_compute_it(searched: Searched, name: str, tile: int, backwards: bool) -> None:
    """In whatever order programs run."""
    program, _, sgraph = searched[name]
    (repeat,) = sgraph.repeats
    module = tile_module(sgraph)
    check_module(module)
    assert not module.repeats
    (through,) = (p for p in module.programs if p.name == repeat.kernels[0])
    windows = {w.tensor.name for w in repeat.windows}
    assert windows.isdisjoint(t.name for t in through.tensors), "no window is memory"
    inputs = [t.numpy() for t in drawn(name)]
    binding = {s.name: tile for s in sgraph.symbols}
    made, _ = run_module(module, inputs, binding, order=lambda n: reversed(range(n)) if backwards else range(n))
    expected = computed(name)
    np.testing.assert_allclose(made[program.outputs[0]].reshape(expected.shape), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++")
@pytest.mark.usefixtures("unoptimised")
def test_it_runs_natively(searched: Searched, tmp_path: Path) -> None:
    cases = [
        Case(searched[name][2], {s.name: tile for s in searched[name][2].symbols}, [t.numpy() for t in drawn(name)])
        for name in ON_CHIP
        for tile in (1, 2, 8)
    ]
    for case, (found,) in zip(cases, run_batch(cases, tmp_path), strict=True):
        name = next(n for n in ON_CHIP if searched[n][2] is case.sgraph)
        np.testing.assert_allclose(found, computed(name), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["delta", "gated", "balanced"])
def test_it_is_interpreted(searched: Searched, interpreter: InterpreterPool, name: str, tmp_path: Path) -> None:
    _, _, sgraph = searched[name]
    launches = [x.name for x in launched(sgraph)]
    config = Config({s.name: 2 for s in sgraph.symbols}, dict.fromkeys(launches, 4), dict.fromkeys(launches, 2))
    source = emit_module(sgraph, formula="", configs={})
    assert source.text.count("yield (") == len(launches)
    path = write_module(source, tmp_path / "steps.py")
    inputs = tuple(t.numpy() for t in drawn(name))
    (found,) = interpreter.run(InterpretJob(path, source.entry, inputs, ("float32",) * len(inputs), config))
    np.testing.assert_allclose(found, computed(name), rtol=2e-4, atol=2e-5)


def test_it_compiles(searched: Searched, compilers: Pool, tmp_path: Path) -> None:
    _, _, sgraph = searched["delta"]
    launches = [x.name for x in sgraph.launches]
    config = Config({s.name: 4 for s in sgraph.symbols}, dict.fromkeys(launches, 4), dict.fromkeys(launches, 2))
    path = write_module(emit_module(sgraph, formula="", configs={}), tmp_path / "steps.py")
    job = CompileJob(path, "sm_90", config, arguments(sgraph, {}))
    found = compiled(compilers.submit(request(job), 120).result().answer)
    assert isinstance(found, Compiled)
    assert not found.error
    assert [r.kernel for r in found.resources] == launches


def test_a_launch_of_all_steps_is_chosen_for_and_told_of_a_step(searched: Searched) -> None:
    _, searches, sgraph = searched["delta"]
    (step,) = (r for r in searches.regions if r.region.loop is not None)
    through = searches.through_steps(step)
    assert through is not None
    assert [len(c.sgraph.launches) for _, c in through.made] == [1] * len(through.made)
    assert through.program.outputs == ("stack",)
    waiting = replace(searches, waiting=frozenset({step.canonical.key}))
    # What is chosen for all steps is said of one in its own names.
    proved, composed = through.made[0]
    (launch,) = composed.sgraph.launches
    config = Config({s.name: 4 for s in composed.sgraph.symbols}, {launch.name: 8}, {launch.name: 3})
    best = Best(0, config, 9e-6, (Resources(launch.name, 1, 2, 0, 8),))
    (of_all, *_) = through.result(step.result).proved
    model = Model(composed.sgraph, device("sm_90"), {})
    tuned, checked = TuneResult(Evidence.ESTIMATED, (), (best,)), CheckSummary("here", 1, {})
    chosen = through.of_step(
        Choice(of_all, best, model, tuned, checked, 1.0, "it"), lambda g, hints: Model(g, device("sm_90"), hints)
    ).best
    assert chosen.config.symbols == {s.name: 4 for s in proved.sgraph.symbols}
    assert chosen.seconds == pytest.approx(1e-6)
    assert [x.name for x in proved.sgraph.launches] == [r.kernel for r in chosen.resources] == [*chosen.config.warps]
    apart = waiting.compose([r.result.proved[0].sgraph for r in searches.regions]).sgraph
    assert [r.resident for r in (*apart.repeats, *sgraph.repeats)] == [False, True]


@pytest.mark.slow
def test_a_folder_of_steps_in_one_launch_is_verified(tmp_path: Path) -> None:
    program = prism.trace(delta, drawn("delta"), name="steps")
    found = prism.optimize(program, target="sm_90", trials=1, out=tmp_path / "out")
    assert "steps in one launch" in (tmp_path / "out" / "sgraph.txt").read_text()
    assert found.report.rung.startswith("derivation")
    assert not any("are launches" in w for w in found.report.warnings)
    assert not verify(tmp_path / "out").mismatches


# What may be.


def recurrence(*, resident: bool = True, reverse: bool = False, kept: bool = True) -> SGraph:
    """h = a*h + x over any number of steps of any length; without `kept`, sums of h alone leave the loop."""
    x, a, first = Tensor("x", (T, N), F32), Tensor("a", (N,), F32), Tensor("first", (2, N), F32)
    states, sums = Tensor("h", (T, N), F32), Tensor("y", (T, N), F32)
    body = (
        nodes.Load("before", "h_before", (AT,)),
        nodes.Load("factor", "a", (AT,)),
        nodes.Load("given", "x_slice", (AT,)),
        Pointwise("grown", "mul", ("factor", "before")),
        Pointwise("after", "add", ("grown", "given")),
        nodes.Store("h_after", (AT,), "after"),
        Pointwise("both", "add", ("after", "before")),
        nodes.Store("y_step", (AT,), "both"),
    )
    windows = (
        Window(Tensor("x_slice", (N,), F32), "x"),
        Window(Tensor("h_after", (N,), F32), "h"),
        Window(Tensor("y_step", (N,), F32), "y"),
        Window(Tensor("h_before", (N,), F32), "h", "first", 1),
    )
    return SGraph(
        "recurrence",
        (x, a, first),
        () if kept else (states,),
        (states, sums) if kept else (sums,),
        (Kernel("step_kernel", ((n, Grid(TILE)),), body),),
        repeats=(Repeat(("step_kernel",), T, windows, reverse, resident),),
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("steps", "length", "tile"), [(1, 1, 1), (4, 5, 2), (5, 8, 8), (3, 7, 16)])
def test_a_recurrence_of_any_lengths(reverse: bool, kept: bool, steps: int, length: int, tile: int) -> None:
    sgraph = recurrence(reverse=reverse, kept=kept)
    spec.check(sgraph)
    rng = np.random.default_rng(0)
    x, a, first = (rng.normal(size=s).astype(np.float32) for s in ((steps, length), (length,), (2, length)))
    h, states, sums = first[1], np.zeros_like(x), np.zeros_like(x)
    for at in reversed(range(steps)) if reverse else range(steps):
        before, h = h, a * h + x[at]
        states[at], sums[at] = h, h + before
    module = lower(sgraph)
    check_module(module)
    made, _ = run_module(module, (x, a, first), {"t": steps, "n": length, "T_n": tile})
    np.testing.assert_allclose(made["y"].reshape(x.shape), sums, rtol=1e-5)
    if kept:
        np.testing.assert_allclose(made["h"].reshape(x.shape), states, rtol=1e-5)


@pytest.mark.parametrize(("rows", "length", "tile"), [(3, 5, 2), (4, 8, 8), (5, 3, 16)])
def test_a_state_whose_steps_forget_an_axis(interpreter: InterpreterPool, rows: int, length: int, tile: int) -> None:
    """What is kept has all dimensions of its tile, whatever the value that it becomes has."""
    sgraph = forgetting()
    spec.check(sgraph)
    rng = np.random.default_rng(0)
    x, first = (rng.normal(size=s).astype(np.float32) for s in ((4, length), (rows, length)))
    expected = np.stack([first, *(np.broadcast_to(v, first.shape) for v in x[:-1])])
    binding = {"m": rows, "n": length, "T_n": tile, "T_m": 2}
    module = tile_module(sgraph)
    check_module(module)
    made, _ = run_module(module, (x, first), binding)
    np.testing.assert_array_equal(made["y"].reshape(expected.shape), expected)
    config = Config({"T_n": tile, "T_m": 2}, {"step_kernel": 4}, {"step_kernel": 2})
    with tempfile.TemporaryDirectory() as folder:
        source = emit_module(sgraph, formula="", configs={})
        path = write_module(source, Path(folder) / "steps.py")
        (found,) = interpreter.run(InterpretJob(path, source.entry, (x, first), ("float32",) * 2, config))
    np.testing.assert_array_equal(found, expected)


def forgetting() -> SGraph:
    """The state after a step is what it is given, for all rows; the state before it is told."""
    m = Axis("m", symbol("m"))
    at = (Index.axis(m), AT)
    shape = (m.extent, N)
    body = (
        nodes.Load("before", "h_before", at),
        nodes.Store("y_step", at, "before"),
        nodes.Load("given", "x_slice", (AT,)),
        nodes.Store("h_after", at, "given"),
    )
    windows = (
        Window(Tensor("x_slice", (N,), F32), "x"),
        Window(Tensor("h_after", shape, F32), "h"),
        Window(Tensor("y_step", shape, F32), "y"),
        Window(Tensor("h_before", shape, F32), "h", "first"),
    )
    kernel = Kernel("step_kernel", ((m, Grid(symbol("T_m"))), (n, Grid(TILE))), body)
    return SGraph(
        "forgetting",
        (Tensor("x", (4, N), F32), Tensor("first", shape, F32)),
        (Tensor("h", (4, *shape), F32),),
        (Tensor("y", (4, *shape), F32),),
        (kernel,),
        repeats=(Repeat(("step_kernel",), 4, windows, False, True),),
    )


def test_a_state_that_nothing_else_reads_is_never_stored() -> None:
    (program,) = lower(recurrence(kept=False)).programs
    assert {t.name for t in program.tensors} == {"x", "a", "first", "y"}
    (loop,) = (s for s in program.body if isinstance(s, For))
    assert [s.tensor for s in loop.body if isinstance(s, Load)] == ["a", "x"]


def test_a_state_of_which_the_last_is_read_is_stored_once(worker: Worker) -> None:
    def kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, found = v.new_zeros(q.shape[-1], v.shape[-1]), []
        for t in range(q.shape[0]):
            state = state + b[t] * k[t][:, None] * (v[t] - k[t] @ state)
            found.append(q[t] @ state)
        return torch.stack(found), state

    program, _, sgraph = best_of(kept, drawn("delta"), worker)
    (through,) = (p for p in lower(sgraph).programs if p.name == sgraph.repeats[0].kernels[0])
    (loop,) = (s for s in through.body if isinstance(s, For))
    stored = [s.tensor for s in through.body if isinstance(s, Store)]
    assert len(stored) == 1
    every = [s.tensor for s in loop.body if isinstance(s, Store)]
    assert len(every) == 1
    assert every != stored
    made, _ = run_module(tile_module(sgraph), [t.numpy() for t in drawn("delta")], {s.name: 2 for s in sgraph.symbols})
    with torch.no_grad():
        wanted = [t.numpy() for t in kept(*(t.double() for t in drawn("delta")))]
    for name, expected in zip(program.outputs, wanted, strict=True):
        np.testing.assert_allclose(made[name].reshape(expected.shape), expected, rtol=2e-4, atol=2e-5)


def test_what_makes_the_first_state_and_what_copies_the_last_are_no_launches(searched: Searched) -> None:
    _, _, sgraph = searched["balanced"]
    assert len(sgraph.kernels) == 3
    (launch,) = launched(sgraph)
    assert launch.name == sgraph.repeats[0].kernels[0]
    (through,) = lower(sgraph).programs
    assert [t.name for t in through.tensors] == ["x", *(t.name for t in sgraph.outputs)]
    # Others read what is made first, or what is copied, or it is rounded as it is copied: then these are launches.
    first, _, last = sgraph.kernels
    (x, *_), (copy, y) = first.body, last.body
    assert isinstance(x, nodes.Load)
    assert isinstance(copy, nodes.Load)
    assert isinstance(y, nodes.Store)
    (made,) = first.writes
    (result,) = sgraph.outputs
    again = replace(sgraph, outputs=(result, replace(result, name="also")))
    for reads in (replace(copy, tensor=made, index=copy.index[1:]), copy):
        also = replace(last, name="also", body=(reads, replace(y, tensor="also")))
        other = replace(again, kernels=(*sgraph.kernels, also))
        spec.check(other)
        assert len(launched(other)) == 3
    rounded = replace(sgraph, outputs=(replace(result, dtype=DType.BFLOAT16),))
    assert len(launched(rounded)) == 2


def test_what_is_no_launch_has_no_part_in_the_whole_s_choice(searched: Searched) -> None:
    _, searches, sgraph = searched["balanced"]
    picks = []
    for r in searches.regions:
        proved = r.result.proved[0]
        (launch,) = proved.sgraph.launches
        config = Config({s.name: 2 for s in proved.sgraph.symbols}, {launch.name: 4}, {launch.name: 2})
        best = Best(0, config, 1e-6, (Resources(launch.name, 1, 2, 0, 4),))
        model = Model(proved.sgraph, device("sm_90"), {})
        checked = CheckSummary("here", 1, {})
        picks.append(Choice(proved, best, model, TuneResult(Evidence.ESTIMATED, (), (best,)), checked, 1.0, "it"))
    whole = composed_choice(searches, picks, lambda g: Model(g, device("sm_90"), {})).best
    names = [x.name for x in launched(sgraph)]
    assert [*whole.config.warps] == [*whole.config.stages] == [r.kernel for r in whole.resources] == names
    assert whole.config.symbols.keys() >= {s.name for k in in_one_launch(sgraph).kernels for s in k.symbols}
    assert whole.seconds == pytest.approx(6e-6)


def with_body(change: Any, roles: tuple[Any, ...] = ((n, Grid(TILE)),)) -> str:
    """Why the recurrence with another body needs a launch a step."""
    (kernel,), (repeat,) = recurrence().kernels, recurrence().repeats
    body = tuple(x for s in kernel.body for x in change(s))
    return obstacle((replace(kernel, roles=roles, body=body),), repeat)


def test_it_has_no_obstacle_as_it_is() -> None:
    assert with_body(lambda s: (s,)) == ""


j = Axis("j", N)
other = Axis("m", N + 1)


@pytest.mark.parametrize(
    ("why", "roles", "change"),
    [
        # A neighbour's element is another program's, as is all of the state.
        ("programs read what others", (), lambda s: (replace(s, index=(AT + 1,)) if before(s) else s,)),
        ("programs read what others", ((j, Whole()),), lambda s: (*summed(s),)),
        ("not each axis by itself", (), lambda s: (replace(s, index=(AT + 1,)) if before(s) or after(s) else s,)),
        ("not each axis by itself", (), lambda s: (replace(s, index=(AT.scaled(2),)) if before(s) or after(s) else s,)),
        ("within a loop", ((j, LoopRole(1)),), lambda s: (nodes.Loop(j, (s,)),)),
        ("not one tile", (), lambda s: (s, s) if after(s) else (s,)),
        ("not one tile", (), lambda s: (replace(s, src=0.0) if after(s) else s,)),
        ("no output of the step", (), lambda s: (s, replace(s, tensor="elsewhere")) if after(s) else (s,)),
        ("share an axis", ((j, Split(symbol("S_j"), 1)),), lambda s: (s,)),
        (
            "looks up places",
            (),
            lambda s: (nodes.Gather("before", "h_before", (AT,), ()) if before(s) else s,),
        ),
    ],
)
def test_what_makes_steps_wait_is_told(why: str, roles: tuple[Any, ...], change: Any) -> None:
    assert why in with_body(change, ((n, Grid(TILE)), *roles))


def before(s: nodes.Stmt) -> bool:
    return isinstance(s, nodes.Load) and s.tensor == "h_before"


def after(s: nodes.Stmt) -> bool:
    return isinstance(s, nodes.Store) and s.tensor == "h_after"


def summed(s: nodes.Stmt) -> tuple[nodes.Stmt, ...]:
    if not before(s):
        return (s,)
    return (
        s,
        nodes.Load("all", "h_before", (Index.axis(j),)),
        TileReduce("sum", ReduceKind.SUM, j, "all"),
    )


def test_an_axis_that_is_a_loop_is_no_tile_that_a_program_keeps() -> None:
    assert "not each axis by itself" in with_body(lambda s: (s,), ((n, LoopRole(TILE)),))


def test_several_kernels_are_an_obstacle() -> None:
    (kernel,), (repeat,) = recurrence().kernels, recurrence().repeats
    assert "a step is 2 kernels" in obstacle((kernel, kernel), repeat)


def test_what_is_no_sgraph_is_told_as_such() -> None:
    """Before it is looked at whether its steps may be one launch."""
    whole = recurrence()
    (kernel,) = whole.kernels
    stored = tuple(nodes.Store(s.tensor, (), s.src) if isinstance(s, nodes.Store) else s for s in kernel.body)
    for wrong in (replace(kernel, roles=()), replace(kernel, body=stored)):
        with pytest.raises(IllegalIRError):
            spec.check(replace(whole, kernels=(wrong,)))


# Kernels as one.


def test_kernels_of_other_grids_are_not_one() -> None:
    (kernel,), (repeat,) = recurrence().kernels, recurrence().repeats
    y = replace(kernel, name="y_kernel", body=tuple(s for s in kernel.body if not after(s)))
    h = replace(kernel, name="h_kernel", body=tuple(s for s in kernel.body if getattr(s, "tensor", "") != "y_step"))
    made = as_one((y, h), repeat)
    assert made is not None
    one, tiles = made
    assert [s.tensor for s in one.body if isinstance(s, nodes.Load)] == ["h_before", "a", "x_slice"]
    assert len({replace(s, dst="") for s in one.body if isinstance(s, Pointwise)}) == 3
    assert sum(isinstance(s, Pointwise) for s in one.body) == 3
    assert {s.tensor for s in one.body if isinstance(s, nodes.Store)} == {"h_after", "y_step"}
    assert tiles == {TILE: TILE}
    for roles in (((n, Grid(1)),), ((n, Whole()),), ((n, Grid(TILE)), (j, Grid(symbol("T_j"))))):
        assert as_one((replace(y, roles=roles), h), repeat) is None
    assert as_one((y,), repeat) is None, "none stores a state"


# What it costs.


def test_it_is_counted_as_one_launch_that_reads_the_state_once() -> None:
    binding = {"t": 64, "n": 4096, "T_n": 256}
    element = 4
    waiting, one = (sgraph_cost(recurrence(resident=r, kept=False)).evaluate(binding) for r in (False, True))
    assert one["launches"] == 1
    # x once, the factor in each step, and the first state; y.
    assert one["bytes_read"] == element * 4096 * (64 + 64 + 1)
    assert one["bytes_written"] == element * 4096 * 64
    assert 64 * waiting["bytes_read"] == element * 4096 * 64 * 3
    assert one["flops"] == 64 * waiting["flops"]


@pytest.mark.parametrize("target", ["sm_90", "cpu"])
def test_it_takes_one_launch_by_the_model(target: str) -> None:
    hints = {"t": 64, "n": 4096}
    config = Config({"T_n": 256}, {"step_kernel": 4}, {"step_kernel": 2})
    of = CPU if target == "cpu" else device(target)
    model = Model if of.is_gpu else CpuModel
    waiting, one = (model(recurrence(resident=r), of, hints).estimate(config).seconds for r in (False, True))
    assert waiting >= 64 * of.launch_overhead_s
    assert one < waiting / 2


def test_what_goes_through_steps_is_made_once() -> None:
    made = in_one_launch(recurrence())
    assert in_one_launch(made) is made
    assert in_one_launch(recurrence(resident=False)) == recurrence(resident=False)
