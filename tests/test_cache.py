"""What earlier runs found is used again: by what it is named, how it is read, and what a second run does not do."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tarfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import sympy
from scripted_clock import scripted

import prism.api as api
from prism.api import choosing, composing
from prism.api.partitioned import ONE_BY_ONE
from prism.cli.app import main
from prism.errors import ExitCode, ModelError, NoImprovementError, UsageError
from prism.events import Event, StageFinished, Warned
from prism.generate.partition import partition
from prism.instantiate import study
from prism.instantiate.cache import Cache, clear, dumps, export, holdings, loads, take
from prism.program.extents import symbol
from prism.program.index import Axis
from prism.program.verdict import Status

# Data and nothing else is read.


def test_values_come_back_as_they_were() -> None:
    n = symbol("n")
    value = {
        "a": (Axis("i", n * 2 + 1), Status.PROVED),
        "b": [Fraction(1, 3), frozenset({1}), Path("x"), sympy.ceiling(n / 3) * n**2, sympy.Integer(3)],
    }
    assert loads(dumps(value)) == value


@dataclass
class Foreign:
    x: int = 0


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("false",)


class Parses:
    def __reduce__(self) -> tuple[Any, ...]:
        return sympy.sympify, ("1 + 1",)


class Evaluates:
    def __reduce__(self) -> tuple[Any, ...]:
        return sympy.floor, ("__import__('os').mkdir('evaluated')",)


class Starts:
    def __reduce__(self) -> tuple[Any, ...]:
        from prism.process.worker import Worker

        return Worker, (["false"], {})


@pytest.mark.parametrize("value", [Foreign(), Runs(), Parses(), Evaluates(), Starts()], ids=lambda v: type(v).__name__)
def test_what_is_no_data_is_not_read(value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(pickle.dumps(Foreign())) == Foreign()
    assert loads(dumps(value)) is None
    assert not list(tmp_path.iterdir())


def test_an_expression_that_is_no_extent_is_not_written() -> None:
    with pytest.raises(pickle.PicklingError, match="no extent"):
        dumps(sympy.Max(symbol("n"), 3))


def test_damaged_bytes_are_as_good_as_none() -> None:
    data = dumps(("some", "data"))
    changed = bytearray(data)
    changed[-1] ^= 1
    for bad in (b"", data[:-1], data[:20], bytes(changed)):
        assert loads(bad) is None


# The folder as a whole.


def filled(root: Path) -> Path:
    Cache("timings", root).put("a" * 64, {"seconds": 1.0})
    Cache("searches", root).put_bytes("b" * 64, dumps("found"))
    (root / "studies").mkdir()
    (root / "studies" / f"{'c' * 32}.log").write_text("{}\n")
    (root / "triton").mkdir()
    (root / "triton" / "kernel.so").write_bytes(b"code")
    (root / "mine.txt").write_text("mine")
    return root


def test_a_cache_is_taken_to_another_place_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other, file = filled(tmp_path / "one"), tmp_path / "other", tmp_path / "cache.tar.gz"
    monkeypatch.setenv("PRISM_CACHE_DIR", str(one))
    assert main(["cache", "export", str(file)]) == ExitCode.DONE
    assert "3 entries written" in capsys.readouterr().out
    monkeypatch.setenv("PRISM_CACHE_DIR", str(other))
    assert main(["cache", "import", str(file)]) == ExitCode.DONE
    assert "3 entries taken" in capsys.readouterr().out
    assert Cache("timings", other).get("a" * 64) == {"seconds": 1.0}
    assert not (other / "triton").exists(), "compilers' own are not taken along"
    Cache("timings", other).put("a" * 64, {"seconds": 2.0})
    assert take(other, file) == (0, 3)
    assert Cache("timings", other).get("a" * 64) == {"seconds": 2.0}, "what is there stays"
    monkeypatch.setenv("PRISM_CACHE_DIR", str(one))
    assert main(["cache", "status", "--json"]) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(one)
    assert told["kinds"]["triton"] == {"entries": 1, "bytes": 4}
    assert main(["cache", "status"]) == ExitCode.DONE
    assert any(line.split()[:2] == ["timings", "1"] for line in capsys.readouterr().out.splitlines())
    assert main(["cache", "clear"]) == ExitCode.DONE
    assert "4 entries" in capsys.readouterr().out
    assert [p.name for p in one.iterdir()] == ["mine.txt"]
    assert sum(h.entries for h in holdings(one)) == 0
    assert clear(tmp_path / "none") == holdings(tmp_path / "none")


@pytest.mark.parametrize("name", ["../up.json", "/etc/x", "triton/kernel.so", "timings-1/aa/x.json", "mine.txt"])
def test_an_archive_of_other_files_is_refused(name: str, tmp_path: Path) -> None:
    inside, file = tmp_path / "x", tmp_path / "cache.tar.gz"
    inside.write_text("x")
    with tarfile.open(file, "w:gz") as archive:
        archive.add(inside, name)
    with pytest.raises(UsageError, match="holds what prism does not write"):
        take(tmp_path / "root", file)
    assert not (tmp_path / "root").exists()


def test_an_archive_that_is_cut_off_or_missing_is_told(tmp_path: Path) -> None:
    file = tmp_path / "cache.tar.gz"
    assert export(filled(tmp_path / "one"), file) == 3
    file.write_bytes(file.read_bytes()[:100])
    for path in (file, tmp_path / "none.tar.gz"):
        with pytest.raises(UsageError, match="cannot be read"):
            take(tmp_path / "root", path)
    with pytest.raises(UsageError, match="cannot be written"):
        export(tmp_path / "one", tmp_path / "none" / "x.tar.gz")


def test_nothing_is_taken_of_an_archive_that_is_damaged_anywhere(tmp_path: Path) -> None:
    file, root = tmp_path / "cache.tar.gz", tmp_path / "root"
    export(filled(tmp_path / "one"), file)
    right = file.read_bytes()
    cuts = [right[:n] for n in range(0, len(right), 16)]
    flips = [right[:n] + bytes([right[n] ^ 255]) + right[n + 1 :] for n in range(10, len(right), 8)]  # after its head
    for damaged in cuts + flips:
        file.write_bytes(damaged)
        with pytest.raises(UsageError, match="the archive"):
            take(root, file)
        assert not root.exists()
    file.write_bytes(right)
    root.write_text("no folder")
    with pytest.raises(UsageError, match="the cache cannot be written"):
        take(root, file)


# A second run.

HEAD = '<ir_version: 10, opset_import: ["" : 18]> '
ONE = """m (float[4, 32] x, float[32] g) => (float[4, 32] y) { p = Mul(x, g)  s = Sigmoid(p)  y = Mul(s, p) }"""
BUDGET = api.SearchBudget(max_sgraphs=1)


class Run:
    """Optimises a model of a file, its kernels timed by a script."""

    def __init__(self, patch: pytest.MonkeyPatch, place: Path) -> None:
        self.patch, self.place = patch, place
        self.stages: list[str] = []
        self.warnings: list[str] = []
        patch.setenv("PRISM_CACHE_DIR", str(place / "cache"))

    def listen(self, event: Event) -> None:
        if isinstance(event, StageFinished):
            self.stages.append(event.stage)
        if isinstance(event, Warned):
            self.warnings.append(event.message)

    def __call__(self, text: str = ONE, *, kernels: float = 1e-3, **options: Any) -> api.OptimizeResult:
        path = self.place / "m.onnx"
        onnx.save(onnx.parser.parse_model(HEAD + text), path)
        scripted(self.patch, {"onnxruntime": 2e-3, "kernels": kernels})
        self.stages.clear()
        given: dict[str, Any] = {"trials": 1, "budget": BUDGET, "baselines": ["onnxruntime"], **options}
        return api.optimize(api.load(path), target="cpu", listener=self.listen, **given)

    def forbid(self, *names: str) -> None:
        """Nothing of this may be done from now on."""

        def refuse(*_: object, **__: object) -> Any:
            raise AssertionError("done again")

        for name in names:
            self.patch.setattr(name, refuse)


WORK = (
    *(f"prism.api.composing.{name}" for name in ("run_search", "search_regions", "finalists")),
    *(f"prism.api.choosing.{name}" for name in ("tune", "check_module", "confirm", "finalists")),
    "prism.api.optimizing.certificate_of",
)
BESIDES = (
    "prism.api.optimizing.conditions",
    "prism.backends.cpu.emit.loader_text",
    "prism.egraph.worker.Worker._start",
    "prism.platforms.cpu.check_compiler",
)
"""What takes a second and not a minute."""


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory, small_gate: None, unoptimised: None
) -> tuple[Path, api.OptimizeResult]:
    """A cache folder after a first run of `ONE`, and what that gave."""
    pytest.importorskip("onnxruntime")
    place = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        return place / "cache", Run(patch, place)()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: tuple[Path, api.OptimizeResult]) -> Run:
    shutil.copytree(ran[0], tmp_path / "cache")
    return Run(monkeypatch, tmp_path)


def test_a_second_run_does_nothing_again_and_writes_the_same_kernels(
    run: Run, ran: tuple[Path, api.OptimizeResult]
) -> None:
    _, first = ran
    run.forbid(*WORK, *BESIDES)
    again = run()
    assert run.stages == ["stored"]
    assert again.module == first.module
    assert again.report.kernels == first.report.kernels
    assert again.report.sgraph_text == first.report.sgraph_text
    assert again.report.check == first.report.check
    assert again.report.rung == first.report.rung
    assert again.report.measurement is not None
    assert again.report.measurement.stored
    with pytest.raises(AssertionError):
        run(seed=1)
    with pytest.raises(AssertionError):
        run(ONE.replace("Sigmoid", "Tanh"))


def test_another_code_or_another_version_is_another_run(run: Run) -> None:
    run.forbid(*WORK)
    for name, value in (("code_digest", lambda: "other"), ("versions", lambda: {"torch": "0"})):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"prism.api.results.{name}", value)
            with pytest.raises(AssertionError):
                run()
    run()


def test_timing_anew_searches_nothing_again_and_that_nothing_is_better_is_remembered_too(run: Run) -> None:
    run.forbid("prism.api.composing.run_search")
    with pytest.raises(NoImprovementError) as first:
        run(kernels=3e-3, anew=True)
    assert "tuning" in run.stages
    run.forbid(*WORK)
    with pytest.raises(NoImprovementError) as again:
        run(kernels=3e-3)
    assert again.value.why.split(" (")[0] == first.value.why.split(" (")[0]
    assert "stored, of 20" in again.value.why


def test_a_program_that_was_compared_with_its_model_is_not_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.onnx"
    model = onnx.parser.parse_model(HEAD + ONE)
    onnx.save(model, path)
    program, before = api.load_compared(path)
    assert not before
    with monkeypatch.context() as patch:
        patch.setattr("prism.frontend.onnx.conformance.checked", None)
        assert api.load_compared(path) == (program, True)
        assert program.conformance is not None
        with pytest.raises(TypeError):
            api.load(path)
        assert api.load_compared(path, check=False)[0].conformance is None
    # Of data in other files the model's bytes say nothing.
    weight = onnx.numpy_helper.from_array(np.ones(32, np.float32), "g")
    del model.graph.input[1]
    model.graph.initializer.append(weight)
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert [api.load_compared(path)[1] for _ in range(2)] == [False, True]
    beside = tmp_path / "m.data"
    data, said = beside.read_bytes(), beside.stat()
    beside.write_bytes(data)
    os.utime(beside, ns=(said.st_atime_ns, said.st_mtime_ns))
    assert [api.load_compared(path)[1] for _ in range(2)] == [False, True]  # written anew, whatever its times say
    with pytest.raises(ModelError, match="cannot be read"):
        api.load_compared(tmp_path / "none.onnx")


def test_a_damaged_entry_is_as_good_as_none(run: Run) -> None:
    for path in (run.place / "cache").rglob("*.bin"):
        path.write_bytes(path.read_bytes()[:-3])
    run.forbid(*WORK)
    with pytest.raises(AssertionError):
        run()


def test_an_interrupted_run_goes_on_with_the_next_region(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two regions; Ctrl-C while the second is tuned."""
    text = """m (float[4, 32] x, float[32, 32] w) => (float[4, 32] y, float[4, 32] z) {
        p = MatMul(x, w)  y = Sigmoid(p)  t = Tanh(x)  z = Mul(t, x) }"""
    monkeypatch.setattr(composing, "partition", lambda p, device: partition(p, ONE_BY_ONE))
    monkeypatch.setattr("prism.api.partitioned.whole", lambda program, device: None)
    tuned: list[str] = []

    def interrupted(*args: Any, **options: Any) -> Any:
        tuned.append(options["region"])
        if len(tuned) == 2:
            raise KeyboardInterrupt
        return study.tune(*args, **options)

    monkeypatch.setattr(choosing, "tune", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(text)
    monkeypatch.setattr("prism.api.partitioned.run_search", None)  # all regions were searched before
    run(text)
    assert len(tuned) == len(set(tuned)) + 1, "but for the one that was interrupted"
