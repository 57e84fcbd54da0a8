"""The CPU as a target: what its constraints, its model and its platform say, and a model optimized for it."""

from __future__ import annotations

import gc
import io
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cost_bounds import first_unfit
from quick import RunPython
from scripted_clock import scripted
from sgraph_small import ALL, attention, layer_norm, matmul, split_k
from test_check import rmsnorm_program, rmsnorm_sgraph
from test_measure import GRAPH
from test_measure import PROGRAM as TWICE

import prism
import prism.api as api
from examples.common import load_example
from prism.api.finalists import finalists
from prism.api.loading import load_bytes
from prism.api.optimizing import _at
from prism.backends.cpu import build
from prism.backends.cpu.emit import CPP
from prism.backends.cpu.machine import describe
from prism.backends.cpu.running import launcher
from prism.backends.eager import eager
from prism.backends.protocol import Backend, ModuleSource, write_module
from prism.backends.triton.emit import TRITON
from prism.cli import main
from prism.cost.constraints import checks, constraints, domains, footprint
from prism.cost.cpu import CpuModel
from prism.cost.device import Device, Tiles, device, multicore
from prism.errors import ExitCode, UsageError
from prism.events import Evidence
from prism.frontend.onnx.reader import load
from prism.instantiate import measure
from prism.instantiate.gate import check
from prism.instantiate.gate.check import Output
from prism.instantiate.gate.plan import Sample
from prism.instantiate.measure import Contender
from prism.instantiate.rounds import Prepared, rounds
from prism.instantiate.space import Space
from prism.instantiate.study import Candidate, Failure
from prism.platforms import choice as platforms
from prism.platforms import cpu, cpu_children
from prism.platforms.choice import platform_of
from prism.platforms.gpu import AbsentGpu
from prism.process.worker import Ending, Pool, Reply, Worker
from prism.program.nodes import DType, Program
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

pytestmark = pytest.mark.usefixtures("unoptimised")

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "models" / "rmsnorm_linear.onnx"
KIB, MIB = 1 << 10, 1 << 20
CPU = multicore("a CPU", cores=4, vector_bytes=32, l1_bytes=32 * KIB, l2_bytes=512 * KIB, llc_bytes=16 * MIB)
SMALL = multicore("a small CPU", cores=1, vector_bytes=16, l1_bytes=16 * KIB, l2_bytes=64 * KIB, llc_bytes=64 * KIB)


def space(g: SGraph, d: Device = CPU) -> Space:
    return Space(g, d, {})


# Constraints: tiles are cache blocks.


def test_a_gpu_keeps_its_bounds() -> None:
    assert device("sm_90").tiles == Tiles()
    assert CPU.tiles.dot == 1
    assert device("sm_90").matrix_operation < CPU.matrix_operation == 0.5


def test_short_tiles_and_one_row_are_feasible_on_a_cpu() -> None:
    g = matmul(8, 64, 64)
    (k,) = g.kernels
    least = {d.symbol: d.low for d in domains(footprint(k, g), {}, CPU.tiles)}
    assert least["T_m"] == least["T_n"] == 1
    assert least["T_k"] == CPU.core.lanes, "a loop's tile is a vector long"
    assert {d.symbol: d.low for d in domains(footprint(k, g), {}, Tiles())} == {"T_m": 8, "T_n": 16, "T_k": 16}
    assert all(ok for _, ok in checks(footprint(k, g), CPU, {"T_m": 1, "T_n": 8, "T_k": 8}))
    assert first_unfit(matmul(1, 64, 64), CPU, {}) is None


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("d", [CPU, SMALL], ids=["large", "small"])
def test_what_is_live_together_fits_in_the_second_level_cache(make: object, d: Device) -> None:
    assert callable(make)
    g = make()
    configs = list(space(g, d).configs(400))
    assert configs
    for config in configs[::13]:
        assert not config.warps
        assert not config.stages
        for r in cpu.working_sets(g, config, {}, d.processors):
            assert r.shared <= d.core.l2_bytes
            assert r.warps == d.processors
        assert space(g, d).feasible(config)


def test_a_smaller_cache_has_fewer_points() -> None:
    assert 0 < space(matmul(512, 512, 512), SMALL).size < space(matmul(512, 512, 512)).size


def test_relationals_of_a_cpu_name_its_cache_and_no_matrix_unit() -> None:
    found = constraints(matmul(64, 64, 64), CPU)
    names = {c.name for c in found}
    assert "cache" in names
    assert names.isdisjoint({"registers", "unrolled", "dot_m", "dot_n", "dot_k"})
    assert any("second-level cache" in c.why for c in found)


def test_parts_of_a_split_are_a_few_times_the_cores() -> None:
    assert max(space(split_k(16, 256, 4096)).domains["S_k"]) == 8
    assert max(space(split_k(16, 256, 4096), SMALL).domains["S_k"]) == 4


# The cost model.


def seconds(g: SGraph, **symbols: int) -> float:
    return CpuModel(g, CPU, {}).seconds(Config(symbols, {}, {}))


def test_the_model_wants_every_core_and_whole_lines() -> None:
    g = matmul(256, 256, 256)
    assert seconds(g, T_m=64, T_n=64, T_k=64) < seconds(g, T_m=256, T_n=256, T_k=64), "one core of four"
    thin = matmul(1, 4096, 4096)
    names = {s.name for s in thin.symbols}
    at = {n: {"T_m": 1, "T_k": 64}.get(n, 0) for n in names}
    assert seconds(thin, **{**at, "T_n": 1024}) < seconds(thin, **{**at, "T_n": 1}), "a column at a time wastes lines"


GATED = """<ir_version: 10, opset_import: ["" : 21]>
    gated (float[batch, seq, 256] x, float[256, 512] w, float[256, 512] v) => (float[batch, seq, 512] y)
    { a = MatMul (x, w)  s = Sigmoid (a)  b = MatMul (x, v)  y = Mul (s, b) }"""


def test_what_is_chosen_for_a_guessed_length_keeps_every_core_busy_at_an_eighth_of_it() -> None:
    program = load_bytes(onnx.parser.parse_model(GATED).SerializeToString(), "gated")
    assert (program.hints, program.guesses) == ({"batch": 4, "seq": 1024}, {"batch": 1, "seq": 128})
    told = _at(program, {"seq": 1024})
    assert told.guesses == {"batch": 1, "seq": 1024}, "who names a length means it"
    program = _at(program, {"batch": 1})
    with api.search(program, target="cpu") as running:
        proved = [p for p in running.run().proved if p.written]
    platform = platform_of("cpu", lambda _: None)
    assert isinstance(platform, cpu.CpuPlatform)
    platform = replace(platform, device=CPU)

    def points(guesses: Mapping[str, int] | None) -> list[tuple[float, float]]:
        (found,) = finalists(proved, platform, program.hints, lambda *_: Path(), guesses=guesses).values()
        models = [CpuModel(found.proved.sgraph, CPU, hints) for hints in (program.hints, program.guesses)]
        named = [c for c in found.candidate.points if not c.options]
        return [(models[0].seconds(c), models[1].seconds(c)) for c in named]

    one, both = points(None), points(program.guesses)
    least, small = min(a for a, _ in both), min(b for _, b in both)
    assert max(b for _, b in one[:8]) > 1.5 * small, "large tiles leave cores idle where there are few rows"
    assert max(b for _, b in both[:8]) <= 1.2 * small
    assert max(a for a, _ in both[:8]) <= 1.2 * least
    assert points(program.hints) == one


def test_the_model_knows_that_the_weights_of_all_taps_are_read_once() -> None:
    """Tap by tap, nine floats apart, they would take 16 lines for each one's, and as much again to find each."""
    image, weight = torch.randn(1, 128, 7, 7), torch.randn(128, 128, 3, 3)
    best, *_ = prism.search(prism.trace(partial(torch.nn.functional.conv2d, padding=1), (image, weight)), target="cpu")
    once = 4 * (weight.numel() + 2 * image.numel()) / CPU.bandwidth_bytes_s
    work = weight.numel() * 7 * 7 / CPU.multiply_adds_s
    _, found = space(best.sgraph).points_ranked(CpuModel(best.sgraph, CPU, {}), 1)[0]
    assert work < found.seconds < 3 * (work + once)


def test_the_model_is_above_the_roofline_and_below_a_second() -> None:
    for g in (matmul(256, 256, 256), attention(), layer_norm(64, 256)):
        model = CpuModel(g, CPU, {})
        for config, estimate in space(g).points_ranked(model, 5):
            assert estimate.seconds == pytest.approx(model.seconds(config))
            assert CPU.launch_overhead_s * len(g.launches) <= estimate.seconds < 1
    flops = 2 * 256**3
    best = space(matmul(256, 256, 256)).points_ranked(CpuModel(matmul(256, 256, 256), CPU, {}), 1)[0][1].seconds
    assert best >= flops / (2 * CPU.multiply_adds_s)


def test_pairs_of_bfloat16_are_multiplied_twice_as_fast_where_the_processor_can() -> None:
    g = matmul(256, 512, 1024, DType.BFLOAT16)
    paired = replace(CPU, processor=replace(CPU.core, bf16_speed=2.0))
    tiles = {"T_n": 128, "T_k": 64}

    def ratio(graph: SGraph, rows: int) -> float:
        config = Config({"T_m": rows, **tiles}, {}, {})
        return CpuModel(graph, CPU, {}).seconds(config) / CpuModel(graph, paired, {}).seconds(config)

    assert ratio(g, 64) > 1.3
    assert ratio(g, 8) == 1.0, "few rows are not packed"
    assert ratio(matmul(256, 512, 1024, DType.FLOAT32), 64) == 1.0, "float32 has no pairs"


def test_parts_of_floats_are_multiplied_where_there_are_many_of_both_sides() -> None:
    tiled = replace(CPU, processor=replace(CPU.core, bf16_speed=16.0, parts_speed=2.0))

    def ratio(dtype: DType, rows: int, columns: int) -> float:
        g, config = matmul(1024, 1024, 1024, dtype), Config({"T_m": rows, "T_n": columns, "T_k": 1024}, {}, {})
        return CpuModel(g, CPU, {}).seconds(config) / CpuModel(g, tiled, {}).seconds(config)

    assert 1.2 < ratio(DType.FLOAT32, 512, 512) < ratio(DType.FLOAT16, 512, 512)
    assert ratio(DType.FLOAT32, 64, 64) == 1.0, "taking values apart would take longer than vectors do"
    assert ratio(DType.FLOAT32, 16, 512) == 1.0, "few rows stream through what is stored"


def test_taps_of_a_convolution_are_one_product() -> None:
    def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, padding=1)

    inputs = [torch.zeros(4, 64, 28, 28), torch.zeros(64, 64, 3, 3)]
    best, *_ = prism.search(prism.trace(convolved, inputs), target="cpu")

    def whole(most: int) -> float:
        return seconds(best.sgraph, **{s.name: min(most, 28) for s in best.sgraph.symbols} | {"T_d64": 64, "T_d4": 1})

    product = seconds(matmul(4 * 784, 64, 9 * 64), T_m=784, T_n=64, T_k=9 * 64)
    assert 0.7 * product < whole(28) < 1.5 * product, "nothing is gathered, masked or added tap by tap"
    assert whole(28) < 0.9 * whole(7), "a small tile copies more borders than a large one"


def test_half_of_a_panel_takes_as_long_as_all_of_it() -> None:
    wide = replace(CPU, processor=replace(CPU.core, vector_bytes=64))
    g = matmul(1024, 1024, 256)

    def work(rows: int, columns: int) -> float:
        config = Config({"T_m": rows, "T_n": columns, "T_k": 256}, {}, {})
        return CpuModel(g, wide, {}).seconds(config)

    assert work(128, 16) > 1.5 * work(128, 32), "panels have 32 columns"
    assert work(128, 128) < work(16, 128), "panels are packed once for more rows"


def test_a_tile_at_the_edge_takes_as_long_as_what_is_in_it() -> None:
    odd, even, full = (seconds(matmul(m, 256, 256), T_m=64, T_n=128, T_k=64) for m in (129, 128, 192))
    assert odd < even + 0.25 * (full - even), "one row is not sixty-four"
    long, short = (seconds(matmul(256, 256, k), T_m=64, T_n=64, T_k=64) for k in (192, 130))
    assert short < 0.8 * long, "nor is the end of a loop a whole trip"


def test_points_come_in_the_order_of_the_model() -> None:
    g = attention()
    ranked = space(g).points_ranked(CpuModel(g, CPU, {}), 20)
    times = [e.seconds for _, e in ranked]
    assert times == sorted(times)
    assert len({c.key() for c, _ in ranked}) == len(ranked)


# The backend protocol and the choice of a platform.


@pytest.mark.parametrize("backend", [TRITON, CPP], ids=["Triton", "C++"])
def test_both_backends_satisfy_the_protocol(backend: Backend) -> None:
    """mypy checks the signatures; what they give back is looked at here."""
    source = backend.emit(matmul(32, 32, 32), formula="y = x w", configs={"t": [Config({"T_m": 16}, {}, {})]})
    assert isinstance(source, ModuleSource)
    assert source.entry in source.text
    assert source.kernels == ("matmul",) or len(source.kernels) == 1
    compile(source.text, "emitted", "exec")
    assert backend.name in ("Triton", "C++")


def test_panels_of_weights_live_as_long_as_the_weights(tmp_path: Path) -> None:
    g = matmul(64, 64, 64, DType.FLOAT32)
    call = launcher(write_module(CPP.emit(g), tmp_path / "m.py"))
    config = Config({s.name: 64 for s in g.symbols}, {}, {})
    x, w = torch.ones(64, 64), torch.ones(64, 64)

    def product(weights: torch.Tensor) -> float:
        out = torch.empty(64, 64)
        call(x, weights, config=config.encode(), out=(out,), threads=1)
        return float(out.max())

    assert product(w) == 64.0
    call.__globals__["hold"]([w])
    assert product(w) == 64.0
    w.fill_(2.0)
    assert product(w) == 64.0, "panels are kept"
    assert product(w.clone()) == 128.0, "of that tensor alone"
    kept = w.numpy()
    del w
    gc.collect()
    assert product(torch.from_numpy(kept)) == 128.0, "another array at the same address"


def test_the_platform_follows_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(platforms, "describe_gpu", lambda: None)
    chosen = platform_of("sm_80", said.append)
    assert (chosen.target, chosen.timed, chosen.backend.name) == ("sm_80", False, "Triton")
    here = platform_of(None, said.append)
    assert (here.target, here.timed, here.backend.name) == ("cpu", True, "C++")
    assert here.compiler
    assert not said
    with pytest.raises(UsageError, match="--target cpu"):
        platform_of("cuda", said.append)
    with pytest.raises(UsageError, match="sm_90"):
        platform_of("sm_7", said.append)


@pytest.mark.parametrize("target", [None, "cpu"])
def test_without_a_compiler_it_says_what_to_install_and_estimates(
    monkeypatch: pytest.MonkeyPatch, target: str | None
) -> None:
    said: list[str] = []
    monkeypatch.setattr(platforms, "describe_gpu", lambda: None)
    monkeypatch.setattr(cpu, "cpu_platform", lambda _: None)
    chosen = platform_of(target, said.append)
    assert isinstance(chosen, AbsentGpu)
    assert (chosen.target, chosen.timed) == ("sm_90", False)
    (line,) = said
    assert cpu.NO_COMPILER in line
    assert "apt install g++" in line
    assert "estimated for sm_90" in line


def test_the_cpu_that_is_here_is_a_device_as_others_are() -> None:
    found = cpu.cpu_platform()
    assert found is not None
    for d in (device("sm_90"), CPU, found.device):
        rates = (d.bandwidth_bytes_s, d.cache_bandwidth_bytes_s, d.multiply_adds_s, d.launch_overhead_s)
        assert min(*rates, d.processors, *(d.dot_flops(t) for t in DType)) > 0
    d = found.device
    assert d.processors == len(os.sched_getaffinity(0)) or d.processors >= 1
    assert 16 <= d.core.vector_bytes <= 256
    assert d.core.l1_bytes <= d.core.l2_bytes <= d.cache_bytes
    assert str(d.processors) in d.name


def test_kernels_are_tuned_with_the_threads_that_they_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(describe(), cores=8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert cpu.cpu_device(here).processors == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    told = cpu.cpu_device(here)
    assert told.processors == 2
    assert "8 cores, 2 threads" in told.name, "times on fewer threads are others"
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    assert cpu.cpu_device(here).processors == 8


def test_the_child_has_every_thread_and_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    env = cpu_children.cpu_environment(3)
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "3"
    assert env["MALLOC_MMAP_MAX_"] == "0"
    assert "TRITON_INTERPRET" not in env
    assert "OMP_PROC_BIND" not in env
    assert cpu_children.cpu_environment(3, pinned=True)["OMP_PROC_BIND"] == "close"


# The clock.


def test_slow_contenders_are_sampled_less_and_fast_ones_in_bulk() -> None:
    now, calls = [0.0], [0]

    def call() -> list[int]:
        now[0] += 2.0**-15
        calls[0] += 1
        return calls

    def made(warm_s: float) -> Prepared:
        return Prepared(call, warm_s=warm_s, clock=lambda: now[0], sleep=lambda _: None)

    fast = made(0.0)
    assert fast.calls > 10
    looked = calls[0]
    assert looked >= 2
    fast.sample()
    assert fast.calls <= calls[0] - looked - 1 < fast.calls + 7, "one unheard, then a sample, some calls at a time"
    warmed, before = made(100 * fast.call_s), calls[0]
    warmed.sample()
    assert calls[0] >= before + warmed.calls + 100
    assert rounds([fast], 30, 4.0) == 30
    fast.call_s = 10.0
    assert rounds([fast], 30, 4.0) == 3


def test_what_does_not_compile_and_what_crashes_is_a_failed_trial(tmp_path: Path) -> None:
    found = cpu.cpu_platform()
    assert found is not None
    g = matmul(20, 24, 72)
    config = Config({s.name: 16 for s in g.symbols}, {}, {})
    broken = write_module(found.backend.emit(g), tmp_path / "broken.py")
    for source in tmp_path.glob("*.cpp"):
        source.write_text("this is no C++;\n")
    with closing(cpu.CpuCompiler(found.device.processors, found.compiler, {})) as compiler:
        candidate = Candidate("k", g, broken, (config,), lambda c, r: 1.0)
        (outcome,) = compiler.compile([(candidate, config)])
    assert outcome.failure is Failure.COMPILE
    assert outcome.detail
    lost = tmp_path / "lost.py"
    lost.write_text("import os\ndef f(x, *, config=None, out=None, threads=None): os._exit(3)\n")
    program = rmsnorm_program(DType.FLOAT32)
    with closing(found.bench(program, 0)) as bench:
        contenders = [Contender("lost", lost, rmsnorm_sgraph(DType.FLOAT32), config), Contender("eager")]
        crashed, baseline = bench.time(contenders, 3)
    assert crashed.failure is Failure.CRASH
    assert crashed.measurement is None
    assert baseline.measurement is not None
    assert 0 < baseline.measurement.median < 1


def test_a_contest_calls_everyone_as_a_user_would_and_sees_the_load(tmp_path: Path) -> None:
    found = cpu.cpu_platform()
    assert found is not None
    module = tmp_path / "m.py"
    module.write_text("def f(x, *, config=None, out=None, threads=None):\n    assert out is None\n    return 2 * x\n")
    with closing(found.bench(TWICE, 0)) as bench:
        contenders = [Contender("torch eager", threads=1), Contender("m", module, GRAPH, Config({}, {}, {}), threads=2)]
        match = bench.contest(contenders, 2, 0.0)
    assert [t.failure for t in match.timed] == [None, None], match.timed
    for t in match.timed:
        assert t.measurement is not None
        assert 0 < t.measurement.lower <= t.measurement.median <= t.measurement.upper
    assert match.load is not None
    assert (match.load.threads, match.load.cores) == (2, len(os.sched_getaffinity(0)))


def test_a_baseline_that_takes_a_minute_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    class Waiting(Worker):
        def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
            limits.append(timeout_s)
            return Reply(Ending.HANG, detail="waited")

    found = cpu.cpu_platform()
    assert found is not None
    monkeypatch.setattr(measure, "TIMING_LIMIT_S", 10.0)
    program = rmsnorm_program(DType.FLOAT32)
    for host, more in ((CPU, measure.BASELINE_CALLS * 50.0), (device("sm_90"), 0.0)):
        with closing(measure.Bench(program, host, program.hints, worker=Waiting([], {}))) as bench:
            bench._prepare()
            assert 0.0 < bench._eager_s < 10.0
            bench._eager_s = 50.0
            module = Contender("m", Path("m.py"), rmsnorm_sgraph(DType.FLOAT32), Config({"T_d": 64}, {}, {}))
            assert all(t.failure is Failure.HANG for t in bench.time([Contender("eager"), module], 3))
        assert limits[-3:] == [20.0 + more, 10.0 + more, 10.0]


# The gate of programs with large inputs.


class Eager:
    """A runner that computes what eager does, or twice that, and counts."""

    name, sampling, bounded, width = "eager", False, False, 1

    def __init__(self, program: Program, factor: float) -> None:
        self.program, self.factor = program, factor
        self.runs = self.forgot = 0

    def run(
        self,
        module: Path,
        config: Config,
        inputs: Sequence[Any],
        outputs: Sequence[tuple[tuple[int, ...], str]],
        samples: Sequence[Sample],
    ) -> list[Output] | str:
        self.runs += 1
        results = (self.factor * t for t in eager(self.program)(*inputs))
        return [Output(t.to(torch.float64).numpy(), np.ones(t.shape, dtype=bool)) for t in results]

    def forget(self, but: Iterable[Any] = ()) -> None:
        self.forgot += 1

    def interrupt(self) -> None:
        raise AssertionError("nothing is to be interrupted")


def test_a_product_is_compiled_once_however_many_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_CPP_CACHE", str(tmp_path / "cpp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    asked: list[object] = []

    class Answering(Pool):
        def submit(self, request: Mapping[str, Any], timeout_s: float) -> Future[Reply]:
            asked.append(request["product"])
            done: Future[Reply] = Future()
            done.set_result(Reply(Ending.ANSWERED))
            return done

    with closing(Answering([], {}, 1)) as pool:
        products = cpu.Products(pool, tmp_path)
        products.begin(["multiply-float"])
        products.make(["multiply-float", "multiply-f16"])
        products.make(["multiply-float"])
        assert asked == ["multiply-float", "multiply-f16"]
        assert build.compile_product("multiply-float") == ""
        cpu.Products(pool, tmp_path).make(["multiply-float"])
    assert len(asked) == 2, "it is there from an earlier run"


def test_large_inputs_are_not_kept_and_fewer_cases_run(monkeypatch: pytest.MonkeyPatch) -> None:
    program, g = rmsnorm_program(DType.FLOAT32), rmsnorm_sgraph(DType.FLOAT32)
    config = Config({"T_d": 64}, {}, {})

    def checked(runner: Eager, drawn: check.Drawn | None = None) -> check.CheckReport:
        return check.check_module(program, Path("m.py"), g, config, runner=runner, drawn=drawn)

    small = Eager(program, 1.0)
    shared = check.Drawn(program)
    full = checked(small, shared)
    assert full.passed
    assert full.cases == small.runs > check.LARGE_CASES
    assert len(shared.answers) == full.cases
    assert not checked(Eager(program, 2.0), shared).passed, "answers that are kept judge the next module"
    monkeypatch.setattr(check, "KEPT_ELEMENTS", 0)
    monkeypatch.setattr(check, "LARGE_ELEMENTS", 0)
    large, drawn = Eager(program, 1.0), check.Drawn(program)
    report = checked(large, drawn)
    assert report.passed
    assert report.cases == check.LARGE_CASES
    assert large.forgot >= check.LARGE_CASES
    assert not drawn.answers
    assert len({key[1] for key in drawn.tensors}) <= 2, "the ordinary inputs and those of the last case"
    assert all(report.worst[draw] == full.worst[draw] for draw in report.worst if draw != "normal")


# End to end.


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The output folder of `prism optimize --target cpu`, and what it printed; what wins does not depend on a clock."""
    out = tmp_path_factory.mktemp("cpu") / "out"
    command = ["optimize", str(MODEL), "--target", "cpu", "--baseline", "eager"]
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        scripted(patch, {"eager": 2e-3, "kernels": 1e-3})
        code = main([*command, "--shape", "seq=64", "--trials", "1", "--max-sgraphs", "4", "--anew", "--out", str(out)])
    assert code == ExitCode.DONE
    return out, printed.getvalue()


def test_an_optimized_folder_is_measured_and_says_on_what(
    made: tuple[Path, str],
) -> None:
    out, printed = made
    report = json.loads((out / "report.json").read_text())
    assert report["evidence"] == Evidence.MEASURED
    assert (report["target"], report["backend"], report["baseline"]) == ("cpu", "C++", "torch eager on 1 thread")
    assert report["verdict"] == "proved"
    assert report["best_seconds"] < report["baseline_seconds"]
    assert not [w for w in report["warnings"] if "busy" in w], "nothing else ran"
    assert "measured" in printed
    assert "estimated" not in printed
    lock = json.loads((out / "prism.lock.json").read_text())
    assert (lock["target"], lock["evidence"]) == ("cpu", "measured")
    assert lock["compiler"] == report["compiler"] != ""
    assert lock["baseline"] == report["baseline"]
    measurement = report["measurement"]
    assert {c["name"] for c in measurement["contenders"]} == {"torch eager", "prism"}
    assert all(c["lower"] <= c["median"] <= c["upper"] for c in measurement["contenders"])
    assert (measurement["cores"], measurement["others"], measurement["stored"]) == (4, 0.0, False)
    assert not [n for n in lock["config"] if n.startswith(("warps.", "stages."))]
    assert {f.suffix for f in out.iterdir()} >= {".py", ".cpp", ".json", ".html"}
    assert not [f for f in out.iterdir() if f.suffix == ".so"]


def test_the_folder_verifies(made: tuple[Path, str]) -> None:
    from prism.api import verify

    out, _ = made
    found = verify(out)
    assert found, [str(m) for m in found.mismatches]


def test_the_module_runs_without_prism_at_any_length(
    made: tuple[Path, str], tmp_path: Path, run_python: RunPython
) -> None:
    out, _ = made
    program = load(MODEL)
    example = load_example(MODEL.stem)
    feed = example.inputs(np.random.default_rng(0))
    (given,) = [t.name for t in program.inputs if t.name not in program.weights]
    np.save(tmp_path / "given.npy", feed[given])
    script = (
        "import sys; sys.modules['prism'] = None; sys.path.insert(0, sys.argv[1])\n"
        "import numpy as np, rmsnorm_linear as m\n"
        "found = m.rmsnorm_linear(np.load(sys.argv[2]))\n"
        "found = found[0] if isinstance(found, tuple) else found\n"
        "np.save(sys.argv[3], np.asarray(found))\n"
    )
    run_python("-c", script, str(out), str(tmp_path / "given.npy"), str(tmp_path / "found.npy"), folder=tmp_path)
    found, exact = np.load(tmp_path / "found.npy"), example.formula(feed)
    assert found.shape == exact.shape
    assert np.abs(found - exact).max() < 1e-5 * np.sqrt((exact**2).mean()) * 10
