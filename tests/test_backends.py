"""One conformance suite for both backends: the same sGraphs at the same tile sizes, in Triton and in C++.

Every example, generated sGraphs of small programs and of random ones, each against the float64 oracle. C++ runs in this
process, its kernels compiled as one source; Triton in its interpreter, in the child that the numeric gate has. What one
backend alone has (data types, odd tiles, NaN) is in test_triton_* and test_cpu_*.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sgraph_samples as samples
import torch
from backend_examples import STORED, Example, names, pick, reduced, shipped
from cpu_batch import Array, Case, compile_batch
from quick import slow_but
from sgraph_programs import ALL, task
from sgraph_samples import BF16, F32, Sample
from short_calls import cost_s
from test_cpu_conformance import TOLERANCE, WIDE, close, random_programs
from window_programs import reads_windows, windowed

from prism.api.region_search import SearchBudget
from prism.api.searching import search
from prism.backends.cpu.build import compile_module
from prism.backends.cpu.emit import CPP
from prism.backends.cpu.running import bound_call
from prism.backends.cpu.support import find_compiler
from prism.backends.protocol import Argument, Compiled, write_module
from prism.backends.tensors import Framed
from prism.backends.triton.crosscompile import WORKER, CompileJob, compiled, request, worker_environment
from prism.backends.triton.emit import TRITON
from prism.errors import UnsupportedError
from prism.generate.enumerate import Bounds, generate
from prism.instantiate.gate.check import KernelRunner, Output
from prism.platforms import cpu_children, gpu
from prism.process.child import module_command
from prism.process.worker import Worker
from prism.program.evaluate import bind, evaluate
from prism.program.extents import evaluate as extent
from prism.program.nodes import Program
from prism.sgraph.config import Config
from prism.sgraph.nodes import Grid, Kernel, LoopRole, SGraph, Split, Whole

SIZES = (1, 2, 4, 8, 16, 32)
TILE = 1 << 19
INTERPRETED = 1 << 18
"""Elements of the inputs up to which Triton's interpreter takes an example at its own extents."""
PATIENCE_S = 0.8
"""What it may take for one sGraph at small extents."""
NEEDS_COMPILER = "needs a C++ compiler: install g++ or clang++"


@dataclass(frozen=True)
class Expected:
    """A case, its oracle's outputs, and how near they must be, against the largest one."""

    case: Case
    want: tuple[Array, ...]
    tolerance: float
    name: str

    def __str__(self) -> str:
        return f"{self.name} {dict(self.case.symbols)}"


# Running them.


class Runs:
    """Runs cases through a backend.

    Args:
        target: `cpu` for C++, `sm_90` for Triton.
        compiler: the child's, for C++; that of this process is told how much to optimise by who asks it.
    """

    def __init__(self, target: str, compiler: Path | None = None) -> None:
        self.target = target
        self.backend = CPP if target == "cpu" else TRITON
        self.child = gpu.interpreter() if target != "cpu" else _compiled_runner(compiler)

    def conform(self, expected: Sequence[Expected], folder: Path, level: str = "-O0") -> None:
        """Every case gives what is expected of it, in each element, and writes nowhere else.

        Args:
            expected: the cases.
            folder: for modules.
            level: how much the C++ compiler optimises; what ships is -O3, which takes it several times as long, so that
            the tests that run with --run-slow alone ask for it.
        """
        cases = [e.case for e in expected]
        results = self.together(cases, folder, level) if self.target == "cpu" else self.apart(cases, folder)
        for e, got in zip(expected, results, strict=True):
            assert not isinstance(got, str), f"{e}: {got}"
            assert all(o.written.all() for o in got), str(e)
            close([o.values for o in got], e.want, e.tolerance, str(e))

    def apart(self, cases: Sequence[Case], folder: Path) -> Iterator[list[Output] | str]:
        """In the child, each emitted and run by itself."""
        for n, case in enumerate(cases):
            (folder / f"case{n}").mkdir()
            source = self.backend.emit(case.sgraph)
            yield self.one(write_module(source, folder / f"case{n}" / f"{source.entry}.py"), case)

    def one(self, module: Path, case: Case) -> list[Output] | str:
        """One emitted module in the child."""
        return self.child.run(module, config_of(case), tensors_of(case), outputs_of(case), [])

    def together(self, cases: Sequence[Case], folder: Path, level: str) -> Iterator[list[Output] | str]:
        """In this process, all compiled as one source."""
        for case, (module, _) in zip(cases, compile_batch(cases, folder, level=level), strict=True):
            framed = Framed(outputs_of(case), "cpu")
            bound_call(module, config_of(case), tensors_of(case), framed.outputs, 2)()
            results = framed.results()
            assert results is not None, f"{case.sgraph.name}: beyond the end"
            yield [Output(output.to(torch.float64).numpy(), written.numpy()) for output, written in results]


def _compiled_runner(compiler: Path | None) -> KernelRunner:
    environment = cpu_children.cpu_environment(2) | ({"CXX": str(compiler)} if compiler is not None else {})
    return KernelRunner("cpu", "compiled C++", Worker(module_command(cpu_children.WORKER), environment))


def compiled_by(target: str, module: Path, config: Config, arguments: Sequence[Argument]) -> Compiled:
    """What a backend's compiler says."""
    if target == "cpu":
        return Compiled(error=compile_module(module, config, timeout_s=120.0).error or "")
    worker = Worker(module_command(WORKER), worker_environment())
    with closing(worker):
        return compiled(worker.ask(request(CompileJob(module, target, config, tuple(arguments)), 120.0), 120.0).answer)


@pytest.fixture(scope="module", params=["sm_90", "cpu"], ids=["Triton", "C++"])
def run(request: pytest.FixtureRequest, unoptimising: Path | None) -> Iterator[Runs]:
    if request.param == "cpu" and find_compiler() is None:
        pytest.skip(NEEDS_COMPILER)
    made = Runs(request.param, unoptimising)
    yield made
    made.child.close()


def config_of(case: Case) -> Config:
    launches = [launch.name for launch in case.sgraph.launches]
    return Config(case.symbols, dict.fromkeys(launches, 4), dict.fromkeys(launches, 1))


def tensors_of(case: Case) -> list[torch.Tensor]:
    return [
        torch.from_numpy(np.asarray(a, np.float64)).to(getattr(torch, t.dtype.value))
        for a, t in zip(case.inputs, case.sgraph.inputs, strict=True)
    ]


def binding_of(case: Case) -> dict[str, int]:
    shapes = {t.name: a.shape for t, a in zip(case.sgraph.inputs, case.inputs, strict=True)}
    return dict(bind(case.sgraph.inputs, shapes))


def outputs_of(case: Case) -> list[tuple[tuple[int, ...], str]]:
    binding = binding_of(case)
    return [(tuple(int(extent(e, binding)) for e in t.shape), t.dtype.value) for t in case.sgraph.outputs]


# What is run.


def assignment(g: SGraph, choose: random.Random, sizes: Sequence[int]) -> dict[str, int]:
    """Random tile sizes, no tile with more elements than Triton takes: the larger ones are halved; few parts."""
    parts = {role.parts.name for k in g.kernels for _, role in k.roles if isinstance(role, Split)}
    found = {s.name: choose.choice((2, 4) if s.name in parts else sizes) for s in g.symbols}
    return fitting(g, found, choose)


def fitting(g: SGraph, found: dict[str, int], choose: random.Random) -> dict[str, int]:
    """The tile sizes, some of them halved until no tile has more elements than Triton takes."""
    for k in g.kernels:
        own = [role.tile.name for _, role in k.roles if not isinstance(role, Whole) and not isinstance(role.tile, int)]
        while tile_elements(k, found) > TILE:
            name = choose.choice(own)
            found[name] = max(1, found[name] // 2)
    return found


def quick(g: SGraph, choose: random.Random) -> dict[str, int]:
    """Tiles as large as they may be, and so few programs and trips: Triton's interpreter takes 5 ms for each."""
    parts = {role.parts.name for k in g.kernels for _, role in k.roles if isinstance(role, Split)}
    return fitting(g, {s.name: 2 if s.name in parts else 128 for s in g.symbols}, choose)


def tile_elements(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Elements of a tile over all axes of the kernel."""
    of = []
    for axis, role in kernel.roles:
        match role:
            case Grid(t) | LoopRole(t) | Split(_, t):
                of.append(t if isinstance(t, int) else sizes[t.name])
            case Whole():
                of.append(axis.extent if isinstance(axis.extent, int) else 64)
    return math.prod(of)


@cache
def generated(make: Callable[[], Program]) -> tuple[Program, list[SGraph]]:
    """A program and its sGraphs, which both backends draw from."""
    p = make()
    return p, [c.sgraph for c in generate(task(p), WIDE).candidates]


def drawn(p: Program, found: Sequence[SGraph], count: int, choose: random.Random) -> Iterator[Expected]:
    """Some of a program's sGraphs, at random tile sizes."""
    values = np.random.default_rng(choose.randrange(1 << 30))
    inputs = {t.name: values.standard_normal([int(e) for e in t.shape]).astype(np.float32) for t in p.inputs}
    expected = evaluate(p, inputs)
    for g in choose.sample(found, min(count, len(found))):
        case = Case(g, assignment(g, choose, SIZES), [inputs[t.name] for t in g.inputs])
        yield Expected(case, tuple(expected[t.name] for t in g.outputs), 2e-5, p.name)


@cache
def random_ones(count: int, each: int, seed: int) -> list[Expected]:
    choose = random.Random(seed)
    found: list[Expected] = []
    for p in random_programs(count, seed):
        try:
            found += drawn(p, [c.sgraph for c in generate(task(p), WIDE).candidates], each, choose)
        except UnsupportedError:  # reshapes that no tile can follow
            continue
    return found


# Several regions, with norms before products and attention with a mask among them; a split.
FEW = ("decoder_layer", "gqa_decode")
OTHERS = tuple(sorted(set(names()) - set(FEW)))


def tolerance(g: SGraph) -> float:
    """Of an example: each launch rounds what the next one reads."""
    return (1 + len(g.launches)) * TOLERANCE[g.outputs[0].dtype]


def at_small(example: Example, g: SGraph, choose: random.Random) -> Expected:
    """Tiles of which the axes have some, as small as the interpreter's patience allows."""
    inputs = [example.inputs[t.name] for t in g.inputs]
    for sizes in ((4, 8, 16), (8, 16, 32), (16, 32), (32, 64), (64, 128)):
        case = Case(g, assignment(g, choose, sizes), inputs)
        if cost_s(g, config_of(case), binding_of(case)) < PATIENCE_S:
            break
    return Expected(case, (example.want,), tolerance(g), example.program.name)


@cache
def small_examples(names: Sequence[str], folder: Path) -> list[Expected]:
    """An sGraph of each example at small extents, as both backends run it; exporting takes a second for each."""
    choose = random.Random(5)
    examples = [reduced(name, folder) for name in names]
    return [at_small(e, pick(e.program, choose), choose) for e in examples]


@pytest.mark.parametrize("which", [FEW, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["few", "others"])
def test_every_example_at_small_extents(
    run: Runs, which: Sequence[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected = small_examples(which, tmp_path_factory.getbasetemp())
    assert {e.name for e in expected} == set(which)
    most = max(len(e.case.sgraph.launches) for e in expected)
    assert most > 4 or which is not FEW, "the decoder layer is of several regions"
    run.conform(expected, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(STORED.glob("*.onnx")), ids=lambda p: p.stem)
def test_what_is_stored_is_what_the_script_makes(path: Path, tmp_path: Path) -> None:
    kept, made = (reduced(path.stem, tmp_path, stored=stored).program for stored in (True, False))
    assert str(kept) == str(made)


@pytest.mark.parametrize(
    "which", [("lora", "add_silu"), pytest.param(names(), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_every_example_at_its_own_extents(run: Runs, which: Sequence[str], tmp_path: Path) -> None:
    choose = random.Random(6)
    expected: list[Expected] = []
    for name in which:
        example = shipped(name)
        # The others take the interpreter a minute each, and have been run at small extents.
        if run.target == "cpu" or sum(a.size for a in example.inputs.values()) < INTERPRETED:
            g = pick(example.program, choose)
            case = Case(g, quick(g, choose), [example.inputs[t.name] for t in g.inputs])
            expected.append(Expected(case, (example.want,), tolerance(g), name))
    assert len(expected) >= (len(which) if run.target == "cpu" else min(4, len(which) - 1))
    run.conform(expected, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_what_is_proved_of_an_example(run: Runs, name: str, tmp_path: Path) -> None:
    """What the search finds with all of its rules: online softmax, folded norms, splits."""
    choose = random.Random(name)
    example = reduced(name, tmp_path)
    with search(example.program, target=run.target, budget=SearchBudget(max_sgraphs=12)) as found:
        proved = [p.sgraph for p in found]
    assert proved
    run.conform([at_small(example, g, choose) for g in proved[:12]], tmp_path, "-O3")


def test_generated_sgraphs(run: Runs, tmp_path: Path) -> None:
    choose = random.Random(1)
    expected = [e for make in ALL for e in drawn(*generated(make), 1, choose)]
    assert len(expected) == len(ALL)
    assert any(len(e.case.sgraph.kernels) > 1 for e in expected)
    run.conform(expected, tmp_path)


def test_what_windows_see_is_read_back(run: Runs, tmp_path: Path) -> None:
    p = windowed()
    bounds = Bounds(max_families=400, max_sgraphs=400, off=frozenset({"dominated", "worse"}))
    found = [c.sgraph for c in generate(task(p), bounds).candidates if reads_windows(c.sgraph)]
    run.conform(list(drawn(p, found, 3, random.Random(2))), tmp_path)


def test_random_programs(run: Runs, tmp_path: Path) -> None:
    expected = random_ones(8, 1, 11)
    assert len(expected) >= 4
    run.conform(expected, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_few_hundred_random_sgraphs(run: Runs, seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    expected = [*random_ones(40, 2, 100 + seed), *(e for make in ALL for e in drawn(*generated(make), 8, choose))]
    assert len(expected) >= 80
    run.conform(expected, tmp_path, "-O3")


# What else the protocol has.

# The last has what the others have: several launches, symbolic parts.
SAMPLES = [
    pytest.param(samples.matmul(BF16), marks=pytest.mark.slow),
    pytest.param(samples.symbolic_matmul(), marks=pytest.mark.slow),
    samples.split_attention(),
]


# What emitted modules call their own, and Python's and C++'s words.
NAMES = [["config", "tl", "out"], ["symbols", "float", "threads"], ["torch", "pid", "int"], ["x", "past", "range"]]


# Two sets hold a word of each kind: of the emitted module, of Python, of Triton and of C++.
@pytest.mark.parametrize("names", slow_but(NAMES[1:3], NAMES), ids="-".join)
def test_lengths_may_have_any_name(run: Runs, names: Sequence[str], tmp_path: Path) -> None:
    sizes = dict(zip(names, (19, 40, 24), strict=True))
    sample = samples.matmul(F32, *(samples.sym(n) for n in names))
    e = sample_case(replace(sample, bindings=(sizes,)))
    config = config_of(e.case)
    source = run.backend.emit(e.case.sgraph, configs={"cpu": [config]})
    module = write_module(source, tmp_path / f"{source.entry}.py")
    got = run.one(module, e.case)
    assert not isinstance(got, str), got
    close([o.values for o in got], e.want, e.tolerance, str(e))


def sample_case(sample: Sample) -> Expected:
    binding = sample.bindings[0]
    case = Case(sample.sgraph, sample.symbols[0], sample.inputs(binding))
    want = sample.reference(*(t.to(torch.float64).numpy() for t in tensors_of(case)))
    return Expected(case, want, TOLERANCE[sample.sgraph.outputs[0].dtype], sample.name)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_an_emitted_module_compiles_and_runs(run: Runs, sample: Sample, tmp_path: Path) -> None:
    e = sample_case(sample)
    g, config = e.case.sgraph, config_of(e.case)
    launches = [launch.name for launch in g.launches]
    source = run.backend.emit(g, formula="a formula", configs={"t": [config]})
    assert source.kernels == tuple(launches)
    assert "a formula" in source.text
    module = write_module(source, tmp_path / f"{source.entry}.py")
    given = [(tuple(x.shape), t.dtype.value) for x, t in zip(tensors_of(e.case), g.inputs, strict=True)]
    arguments = [Argument(shape, dtype) for shape, dtype in (*given, *outputs_of(e.case))]
    found = compiled_by(run.target, module, config, arguments)
    assert not found.error
    if run.target != "cpu":  # of C++ the sGraph says what a launch takes
        assert [r.kernel for r in found.resources] == launches
    for r in found.resources:
        assert r.warps >= 1
        assert min(r.shared, r.spills) >= 0
        assert r.registers > 0
    got = run.one(module, e.case)
    assert not isinstance(got, str), got
    close([o.values for o in got], e.want, e.tolerance, str(e))


def test_what_does_not_compile_is_told_in_one_line(run: Runs, tmp_path: Path) -> None:
    e = sample_case(samples.matmul())
    config = config_of(e.case)
    shapes = [tuple(t.shape) for t in tensors_of(e.case)] + [shape for shape, _ in outputs_of(e.case)]
    arguments = [Argument(shape, "float32") for shape in shapes]
    source = run.backend.emit(e.case.sgraph)
    whole = write_module(source, tmp_path / "whole.py")
    missing = Config({k: v for k, v in config.symbols.items() if k != "T_k"}, config.warps, config.stages)
    broken = tmp_path / "broken"
    broken.mkdir()
    damaged = write_module(source, broken / f"{source.entry}.py")
    for path in broken.iterdir():
        text = path.read_text().replace("tl.store(", "tl.nothing(")
        path.write_text(f"{text}\nint broken = nothing;\n" if path.suffix == ".cpp" else text)
    for module, given, what in ((whole, missing, "T_k"), (damaged, config, "nothing")):
        found = compiled_by(run.target, module, given, arguments)
        assert what in found.error
        assert "\n" not in found.error
        assert not found.resources
    lost = run.one(whole, Case(e.case.sgraph, missing.symbols, e.case.inputs))
    assert isinstance(lost, str)
    assert "T_k" in lost
