"""Cross-compilation in worker processes: resources read, failures counted, workers survive what kills a compilation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton_modules
from sgraph_small import matmul

from prism.backends.protocol import arguments
from prism.backends.triton.compile_worker import parse_spills, parse_usage
from prism.backends.triton.crosscompile import (
    Argument,
    CompileJob,
    capability,
    compiled,
    request,
    worker_environment,
)
from prism.backends.triton.emit import emit_module
from prism.cost.constraints import footprint, live_elements, tile_sizes
from prism.errors import UsageError
from prism.instantiate.study import Candidate, Failure, over_limit, tune
from prism.platforms.cpu_children import user_environment
from prism.platforms.estimating import Compiler, Estimating
from prism.process.deadline import Deadline, OutOfTimeError
from prism.process.worker import Ending, Pool, Reply, Worker
from prism.program.nodes import DType, Tensor
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import Pointwise, SGraph, Stmt, Store

X = Tensor("x", (64, 4096), DType.FLOAT32)
GRAPH = SGraph("p", (X,), (), (Tensor("y", X.shape, X.dtype),), ())
ARGUMENTS = (Argument((64, 4096), "float32"),) * 2
NOTHING = Config({}, {}, {})
FULL = Config({"T_d": 1024}, {"rmsnorm_kernel": 4}, {"rmsnorm_kernel": 2})


@pytest.fixture(scope="module")
def compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where studies without a GPU keep what they make."""
    return tmp_path_factory.mktemp("triton")


def test_resources_are_read_for_two_targets(compilers: Pool, tmp_path: Path) -> None:
    module = triton_modules.write(tmp_path, "rmsnorm", triton_modules.rmsnorm())
    jobs = [CompileJob(module, target, FULL, ARGUMENTS) for target in ("sm_80", "sm_90")]
    for reply in compilers.map([request(j) for j in jobs], 60):
        assert reply.ending is Ending.ANSWERED
        (r,) = compiled(reply.answer).resources
        assert (r.kernel, r.warps, r.spills) == ("rmsnorm_kernel", 4, 0)
        assert 8 < r.registers < 256
        assert 0 < r.shared < 4096


def test_spills_are_reported(compilers: Pool, tmp_path: Path) -> None:
    module = triton_modules.write(tmp_path, "spilling", triton_modules.SPILLING)
    config = Config({"T": 8192}, {"spilling_kernel": 1}, {})
    (reply,) = compilers.map([request(CompileJob(module, "sm_80", config, ARGUMENTS))], 60)
    (r,) = compiled(reply.answer).resources
    assert r.spills > 100


def test_operations_behind_a_product_take_no_tiles_of_their_own(compilers: Pool, tmp_path: Path) -> None:
    """The compiler computes a GELU element by element: it holds the accumulator, as the model says."""
    g = replace(matmul(1024, 4096, 4096), name="gelu")
    (kernel,) = g.kernels
    *before, store = kernel.body
    assert isinstance(store, Store)
    chain: list[Stmt] = [Pointwise("v0", "mul", (0.5, "acc")), Pointwise("v1", "mul", ("acc", "acc"))]
    chain += [Pointwise("v2", "mul", ("acc", "v1")), Pointwise("v3", "mul", (0.044715, "v2"))]
    chain += [Pointwise("v4", "add", ("acc", "v3")), Pointwise("v5", "mul", (0.7978845608, "v4"))]
    chain += [
        Pointwise("v6", "tanh", ("v5",)),
        Pointwise("v7", "add", (1.0, "v6")),
        Pointwise("v8", "mul", ("v0", "v7")),
    ]
    g = replace(g, kernels=(replace(kernel, body=(*before, *chain, replace(store, src="v8"))),))
    config = Config({"T_m": 128, "T_n": 256, "T_k": 64}, {kernel.name: 8}, {kernel.name: 3})
    module = tmp_path / "gelu.py"
    module.write_text(emit_module(g, configs={"sm_90": [config]}).text)
    (reply,) = compilers.map([request(CompileJob(module, "sm_90", config, arguments(g, {})))], 60)
    (r,) = compiled(reply.answer).resources
    assert r.spills == 0
    threads = 8 * 32
    live = live_elements(footprint(g.kernels[0], g), tile_sizes(g.kernels[0], config.symbols))
    assert live == 128 * 256
    assert live / threads <= r.registers < 2 * live / threads


def test_what_does_not_compile_says_why_and_the_worker_lives_on(compilers: Pool, tmp_path: Path) -> None:
    broken = triton_modules.write(tmp_path, "broken", triton_modules.BROKEN)
    dying = triton_modules.write(tmp_path, "dying", triton_modules.DYING)
    right = triton_modules.write(tmp_path, "rmsnorm", triton_modules.rmsnorm())
    jobs = [CompileJob(broken, "sm_80", NOTHING, ARGUMENTS), CompileJob(dying, "sm_80", NOTHING, ARGUMENTS)]
    jobs.append(CompileJob(right, "sm_80", FULL, ARGUMENTS))
    replies = list(compilers.map([request(j) for j in jobs], 60))
    assert "power of 2" in compiled(replies[0].answer).error
    assert replies[1].ending is Ending.CRASH
    assert "status 9" in replies[1].detail
    assert compiled(replies[2].answer).resources


def test_a_hung_worker_is_killed_and_replaced() -> None:
    child = """
import sys, time
for line in sys.stdin:
    time.sleep(60 * ("hang" in line))
    print("{}", flush=True)
"""
    worker = Worker([sys.executable, "-c", child], {}, start_limit_s=0)
    try:
        # Enough for the interpreter to start; the hanging request answers after a minute.
        assert worker.ask({"what": "hang"}, 0.3).ending is Ending.HANG
        assert worker.ask({"what": "quick"}, 20).ending is Ending.ANSWERED
        assert worker.starts == 2
    finally:
        worker.close()
    assert worker.ask({}, 1).ending is Ending.CRASH


def test_a_study_without_a_gpu_estimates_and_counts_failures(compiled_kernels: Path, tmp_path: Path) -> None:
    right = triton_modules.write(tmp_path, "rmsnorm", triton_modules.rmsnorm())
    broken = triton_modules.write(tmp_path, "broken", triton_modules.BROKEN)

    def model(config: Config, resources: object) -> float:
        return 1e-6 * config.symbols.get("T_d", 1)

    points = tuple(Config({"T_d": t}, {"rmsnorm_kernel": 4}, {"rmsnorm_kernel": 2}) for t in (512, 1024))
    candidates = [
        Candidate("right", GRAPH, right, points, model),
        Candidate("broken", GRAPH, broken, (NOTHING,), model),
    ]
    runs = []
    for _ in range(2):
        with Estimating(Compiler("sm_80", {}, size=1, root=compiled_kernels), "A100", 166912) as evaluator:
            result = tune(candidates, evaluator, region="r")
            runs.append(evaluator.compiler.runs)
        assert result.evidence.value == "estimated"
        assert result.failures == {"compile error": 1}
        assert result.best is not None
        assert result.best.config.symbols["T_d"] == 512
    assert runs == [3, 0], "the second study must find all compilations in the cache"


def test_too_much_shared_memory_is_a_failure_before_any_launch(compiled_kernels: Path, tmp_path: Path) -> None:
    assert over_limit([Resources("k", 100, 1, 0, 4)], 100) == ""
    assert "k needs 101" in over_limit([Resources("k", 101, 1, 0, 4)], 100)
    right = triton_modules.write(tmp_path, "rmsnorm", triton_modules.rmsnorm())
    candidate = Candidate("right", GRAPH, right, (FULL,), lambda c, r: 1.0)
    with Estimating(Compiler("sm_80", {}, size=1, root=compiled_kernels), "tiny", 8) as evaluator:
        result = tune([candidate], evaluator, region="r")
    assert result.failures == {Failure.SHARED.value: 1}
    assert result.best is None


def test_an_unknown_target_is_refused_at_once() -> None:
    assert capability("sm_100") == 100
    for name in ("sm_42", "gfx942", "", "sm_9x"):
        with pytest.raises(UsageError, match="unknown target"):
            Compiler(name, {})


def test_nothing_imports_triton_in_the_parent() -> None:
    code = (
        "import sys, prism.platforms.estimating, prism.instantiate.study, prism.process.worker\n"
        "print([m for m in ('triton', 'torch', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=worker_environment(), check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_tools_reports_are_parsed() -> None:
    assert parse_usage("Function k:\n REG:40 STACK:16 SHARED:0 LOCAL:0") == (40, 16)
    assert parse_usage("") == (0, 0)
    assert parse_spills("0 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads") == 20


@pytest.mark.usefixtures("cold")
def test_closing_a_pool_ends_what_is_running() -> None:
    child = "import sys, time\nfor line in sys.stdin:\n    time.sleep(60)"
    pool = Pool([sys.executable, "-c", child], {}, size=2)
    futures = [pool.submit({}, 60) for _ in range(4)]
    pool.close()
    ended = [f.result().ending for f in futures if not f.cancelled()]
    assert set(ended) <= {Ending.CRASH}
    assert all(f.done() for f in futures)


BEGUN = """
from prism.process.serve import serve
asked = []
def begin():
    asked.append("begun")
    return {}
def handler(request):
    asked.append(request["n"])
    return {"asked": asked}
serve(handler, begin)
"""


@pytest.mark.usefixtures("cold")
def test_workers_that_were_begun_are_asked_first() -> None:
    with Pool([sys.executable, "-c", BEGUN], worker_environment(), size=3) as pool:
        pool.begin(1)
        pool.begin(1)
        answers = [pool.submit({"n": n}, 60).result().answer["asked"] for n in range(2)]
    assert answers == [["begun", 0], ["begun", 0, 1]]


@pytest.mark.usefixtures("cold")
def test_what_is_begun_ends_with_its_worker() -> None:
    child = "import sys, time\nfor line in sys.stdin:\n    time.sleep(600)"
    worker = Worker([sys.executable, "-c", child], {})
    worker.begin()
    worker.close()
    assert worker.closed
    assert worker.ask({}, 60).ending is Ending.CRASH


def test_a_compilation_that_the_time_ended_goes_on(tmp_path: Path) -> None:
    module = tmp_path / "kernels.py"
    module.write_text("")
    candidate = Candidate("k", GRAPH, module, (NOTHING,), lambda *_: 1.0)
    asked: list[Future[Reply]] = []

    class Waiting(Pool):
        def submit(self, request: Mapping[str, Any], timeout_s: float) -> Future[Reply]:
            asked.append(Future())
            return asked[-1]

    compiler = Compiler("sm_90", {}, root=tmp_path, pool=Waiting(["none"], {}, size=1))
    for _ in range(2):
        with pytest.raises(OutOfTimeError), Deadline.after(0.1).limited():
            next(compiler.compile([(candidate, NOTHING)]))
    (future,) = asked
    future.set_result(Reply(Ending.ANSWERED, {"resources": []}))
    assert next(compiler.compile([(candidate, NOTHING)])).failure is None
    assert len(asked) == 1


def test_what_is_compiled_is_kept_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert Path(worker_environment()["TRITON_CACHE_DIR"]) == tmp_path / "triton"
    assert Path(user_environment()["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(tmp_path)
