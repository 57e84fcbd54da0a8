"""Options and settings of the whole suite. Helpers of one area live beside its tests."""

from __future__ import annotations

import functools
import gc
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from quick import RUN_SLOW, RunPython

if TYPE_CHECKING:
    from compiled_code import CodeOf
    from interpreting import InterpreterPool
    from warm import WarmChild

    from prism.backends.protocol import Compiled
    from prism.backends.triton.crosscompile import CompileJob
    from prism.egraph.worker import Worker
    from prism.instantiate.gate.check import KernelRunner
    from prism.process.worker import Pool

# Two workers share two cores: a library that starts a thread for each core in each worker only slows all of them.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# Child processes, of which there are many, would compile all of prism anew, each, and workers the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same draws on every run and no time limit per example: a loaded machine must not fail a test.
settings.register_profile("prism", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "prism"))


# Studies and compiled kernels of earlier runs must not decide what a test sees.
_cache = tempfile.TemporaryDirectory(prefix="prism-tests-")
os.environ["PRISM_CACHE_DIR"] = _cache.name


def pytest_unconfigure() -> None:
    _cache.cleanup()


def pytest_runtest_setup() -> None:
    # What another test searched and chose is not used: with what tests replace, runs come to other ends.
    for kind in ("searches-1", "choices-1", "comparisons-1"):
        if (kept := Path(_cache.name) / kind).exists():
            shutil.rmtree(kept, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--run-slow"):
        os.environ[RUN_SLOW] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow: needs --run-slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    # What torch and the tests are made of lives to the end: a collection that walks through it again finds nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    if "torch" in sys.modules:
        # Each decomposition walks through all of torch's C++ operators, twice, to see to it that they are at hand.
        from torch._export import utils

        utils._materialize_cpp_cia_ops = functools.cache(utils._materialize_cpp_cia_ops)


# Children that start when they are first asked, which takes seconds, and then serve every test file of a process. A
# test that breaks its child, or looks at how one starts or ends, has one of its own.


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """The prover's."""
    from prism.egraph.worker import Worker

    with Worker() as made:
        yield made


@pytest.fixture(scope="module")
def interpreter() -> Iterator[InterpreterPool]:
    """Runs emitted modules in Triton's interpreter."""
    from interpreting import InterpreterPool

    with InterpreterPool() as made:
        yield made


@pytest.fixture(scope="module")
def runner() -> Iterator[KernelRunner]:
    """The gate's, in Triton's interpreter."""
    from prism.platforms import gpu

    with gpu.interpreter() as made:
        yield made


@pytest.fixture(scope="module")
def compilers() -> Iterator[Pool]:
    """Compiles emitted modules for GPUs."""
    from prism.backends.triton.crosscompile import WORKER, worker_environment
    from prism.process.child import module_command
    from prism.process.worker import Pool

    with Pool(module_command(WORKER), worker_environment(), size=1) as made:
        yield made


@pytest.fixture(scope="module")
def compile_job(compilers: Pool) -> Callable[[CompileJob], Compiled]:
    """Compiles one module for one GPU."""
    from prism.backends.triton.crosscompile import compiled, request

    def run(job: CompileJob) -> Compiled:
        (reply,) = compilers.map([request(job)], 120)
        return compiled(reply.answer)

    return run


@pytest.fixture(scope="module")
def code_of() -> Iterator[CodeOf]:
    """Compiles emitted launches, and says what code they are."""
    from compiled_code import CodeOf

    with CodeOf() as made:
        yield made


@pytest.fixture(scope="session")
def warm_children() -> Iterator[type[WarmChild]]:
    """What a worker's child is in tests without the fixture `cold`."""
    from warm import ForkedChild, WarmChild
    from zygote import Zygotes

    ForkedChild.zygotes = Zygotes() if sys.platform == "linux" else None
    yield WarmChild
    while WarmChild.idle:
        WarmChild.end_one()
    if WarmChild.zygotes is not None:
        WarmChild.zygotes.close()


@pytest.fixture(scope="session")
def run_python(warm_children: type[WarmChild]) -> RunPython:
    """What a child prints: a Python of these arguments, environment and folder. It is forked where it can be."""
    from zygote import Zygotes

    zygotes = warm_children.zygotes or Zygotes(most=0)

    def run(
        *arguments: str, environment: Mapping[str, str] | None = None, folder: Path | None = None, limit_s: float = 120
    ) -> str:
        return zygotes.run(arguments, environment or os.environ, folder or Path.cwd(), limit_s)

    return run


@pytest.fixture(scope="module", autouse=True)
def warm(warm_children: type[WarmChild]) -> Iterator[None]:
    """Workers go on with children that others have left, but for tests that are `cold`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prism.process.worker.Child", warm_children)
        patch.setattr("prism.egraph.worker.Child", warm_children)
        yield


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are the test's own: it looks at how they start and end."""
    from prism.process.child import Child

    monkeypatch.setattr("prism.process.worker.Child", Child)
    monkeypatch.setattr("prism.egraph.worker.Child", Child)


@pytest.fixture(scope="session")
def unoptimising(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """The C++ compiler with -O0 after all other flags; one script, for children to be alike."""
    from prism.backends.cpu.support import find_compiler

    found = find_compiler()
    if found is None:
        return None
    script = tmp_path_factory.mktemp("compiler") / found.name
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(found))} "$@" -O0\n')
    script.chmod(0o755)
    return script


@pytest.fixture(scope="module")
def unoptimised(unoptimising: Path | None) -> Iterator[None]:
    """C++ is compiled with -O0: three times as fast, for files that test something else of it."""
    with pytest.MonkeyPatch.context() as patch:
        if unoptimising is not None:
            patch.setenv("CXX", str(unoptimising))
        yield


@pytest.fixture(scope="session", autouse=True)
def short_matches() -> Iterator[None]:
    """What is confirmed is timed for less long: how sure a gain is, tests ask of clocks of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prism.instantiate.confirm.ROUNDS", 5)
        patch.setattr("prism.instantiate.confirm.ROUNDS_S", 0.5)
        yield


@pytest.fixture(scope="module")
def small_gate() -> Iterator[None]:
    """The gate runs few programs of each launch: for files that test what comes before it and after it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prism.instantiate.gate.plan.CASE_TARGET_S", 0.05)
        yield
