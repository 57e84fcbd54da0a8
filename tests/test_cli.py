"""The command line: what goes where, exit codes, progress. A made-up API stands in for the search."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from report_samples import artifacts, report
from rich.console import Console

import prism
from prism.cli import main
from prism.cli.progress import Progress
from prism.errors import (
    ExitCode,
    ModelError,
    NoImprovementError,
    PrismError,
    RuleError,
    ShapeError,
    UnsupportedError,
    UsageError,
    VerificationError,
    WorkerError,
)
from prism.events import Count, StageFinished, StageStarted, Warned
from prism.program.verdict import Status, Verdict
from prism.report.folder import render_folder, write_folder


class FakeProgram(str):
    """Stands in for a program."""

    __slots__ = ()
    conformance = None
    arguments = inputs = definitions = granted = ()


@dataclass
class FakeApi:
    """Stands in for `prism.api`: records what it was asked, and ends as told."""

    failure: BaseException | None = None
    verdict: Verdict = field(default_factory=lambda: Verdict(Status.PROVED, "merged", enodes=1234, rules=("linear",)))
    asked: dict[str, Any] = field(default_factory=dict)
    empty: Sequence[str] = ()

    def SearchBudget(self, **bounds: int) -> Mapping[str, int]:
        return bounds

    def load(self, path: Path, check: bool = True) -> str:
        if path.suffix == ".bad":
            raise ModelError("not an ONNX model", where=str(path), why="no graph in it", fix="export it again")
        return FakeProgram(f"program {path.stem}")

    def load_compared(
        self, path: Path, assume: tuple[str, ...] = (), check: bool = True, empty: Sequence[str] = ()
    ) -> tuple[str, bool]:
        self.empty = empty
        return self.load(path, check), False

    def better_in_parts(self, path: Path, target: str | None, baselines: object) -> str:
        return ""

    def left_for_types(self, program: object, target: str | None, baselines: object) -> str:
        return ""

    def optimize(self, program: str, **options: Any) -> object:
        self.asked = options | {"program": program}
        listener: Callable[[object], None] = options["listener"]
        listener(StageStarted("saturation"))
        listener(Count("e-nodes", 8452, 20000))
        if self.failure is not None:
            raise self.failure
        listener(StageFinished("saturation", 0.25, "8,452 e-nodes"))
        listener(Warned("an input is unused"))
        write_folder(options["out"], render_folder(artifacts()))
        return SimpleNamespace(report=report())

    def prove_models(self, a: Path, b: Path, assume: tuple[str, ...] = (), check: bool = True) -> Verdict:
        if self.failure is not None:
            raise self.failure
        return self.verdict


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeApi:
    fake = FakeApi()
    monkeypatch.setitem(sys.modules, "prism.api", fake)
    monkeypatch.setattr(prism, "api", fake, raising=False)
    monkeypatch.delenv("PRISM_DEBUG", raising=False)
    monkeypatch.setattr("prism.cli.models.check_readable", lambda path: None)  # nor are there files
    monkeypatch.chdir(tmp_path)
    return fake


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one error line; fails when there is another, or a traceback, or when the error is not last."""
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "\n".join(lines)
    assert [n for n, line in enumerate(lines) if line.startswith("prism: error: ")] == [len(lines) - 1], lines
    return lines[-1]


def test_optimize(api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "model.onnx"]) == ExitCode.DONE
    captured = capsys.readouterr()
    assert "1.85x as fast" in captured.out
    assert str(tmp_path / "model.prism") in captured.out
    assert captured.err.splitlines()[-2:] == [
        "prism: saturation 250 ms  8,452 e-nodes",
        "prism: warning: an input is unused",
    ]
    assert os.listdir(tmp_path) == ["model.prism"]
    assert api.asked["trials"] == 12
    assert api.asked["seed"] == 0
    assert api.asked["target"] is None
    assert api.asked["budget"] == {}


def test_the_time_that_is_given_is_the_commands_whatever_had_passed_before(api: FakeApi) -> None:
    given = []
    for _ in range(2):
        # Longer than this process can have lived: what it has is no time of the command's.
        assert main(["optimize", "model.onnx", "--budget", "1000h"]) == ExitCode.DONE
        given.append(api.asked["seconds"])
    assert [d.given for d in given] == [3.6e6, 3.6e6]
    assert all(0.0 < d.left < 3.6e6 for d in given)


def test_shapes_to_tune_at(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "model.onnx", "--shape", "seq=2048", "--shape", "batch=4"]) == ExitCode.DONE
    assert api.asked["shapes"] == {"seq": 2048, "batch": 4}
    assert not api.empty
    assert main(["optimize", "model.onnx", "--shape", "seq=2048", "--shape", "past=0"]) == ExitCode.DONE
    assert (api.asked["shapes"], api.empty) == ({"seq": 2048}, ["past"])
    capsys.readouterr()
    assert main(["optimize", "model.onnx", "--shape", "seq"]) == ExitCode.USAGE
    assert "NAME=VALUE" in error_line(capsys)
    for first, then in (("seq=4", "seq=8"), ("seq=1..4", "seq=4..8")):
        assert main(["optimize", "model.onnx", "--shape", first, "--shape", then]) == ExitCode.USAGE
        assert "seq is given twice" in error_line(capsys)


def test_optimize_passes_its_options_on(api: FakeApi, tmp_path: Path) -> None:
    line = "optimize model.onnx --target sm_80 --out o --trials 3 --seed 7 --max-kernels 2 --enodes 500"
    bounds = "--max-ops 9 --max-loops 3 --max-forms 5 --max-sgraphs 7 --iterations 4 --off dominated --off worse"
    assert main([*line.split(), *bounds.split()]) == ExitCode.DONE
    assert api.asked["budget"] == {
        "max_kernels": 2,
        "max_ops": 9,
        "max_loops": 3,
        "max_forms": 5,
        "max_sgraphs": 7,
        "enodes": 500,
        "iterations": 4,
        "off": frozenset({"dominated", "worse"}),
    }
    assert api.asked["out"] == tmp_path / "o"
    assert (tmp_path / "o" / "prism.lock.json").exists()
    assert (api.asked["target"], api.asked["trials"], api.asked["seed"]) == ("sm_80", 3, 7)


def test_optimize_json_is_all_of_stdout(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "model.onnx", "--json"]) == ExitCode.DONE
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "prism.report/1"
    assert body["evidence"] == "estimated"


def test_verbose_shows_counts(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "model.onnx", "--verbose"]) == ExitCode.DONE
    assert "prism: saturation: 8,452/20,000 e-nodes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (PrismError("x"), 1),
        (WorkerError("x"), 1),
        (UsageError("x"), 2),
        (RuleError("x"), 2),
        (ModelError("x"), 3),
        (UnsupportedError("x"), 3),
        (ShapeError("x"), 3),
        (NoImprovementError("x"), 4),
        (VerificationError("x"), 5),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), 1),
        (RecursionError("x"), 1),
        (MemoryError(), 2),
    ],
    ids=lambda v: type(v).__name__,
)
def test_every_failure_is_one_line_and_its_code(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: BaseException, code: int
) -> None:
    api.failure = failure
    assert main(["optimize", "model.onnx"]) == code
    assert error_line(capsys)
    assert os.listdir(tmp_path) == []


def test_an_error_says_what_where_why_and_what_to_do(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "model.bad"]) == ExitCode.UNSUPPORTED
    assert error_line(capsys) == "prism: error: model.bad: not an ONNX model: no graph in it; export it again"


def test_control_characters_do_not_reach_the_terminal(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.failure = UnsupportedError("op \x1b[31mEvil\x07\nnext", where="node \x00")
    assert main(["optimize", "model.onnx"]) == ExitCode.UNSUPPORTED
    assert error_line(capsys) == "prism: error: node ?: op ?[31mEvil? next"


def test_an_internal_error_tells_how_to_report_it(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.failure = ZeroDivisionError("by zero")
    assert main(["optimize", "model.onnx"]) == ExitCode.INTERNAL
    line = error_line(capsys)
    assert "ZeroDivisionError: by zero at app.py:" in line
    assert "PRISM_DEBUG=1" in line
    monkeypatch.setenv("PRISM_DEBUG", "1")
    assert main(["optimize", "model.onnx"]) == ExitCode.INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_a_folder_called_prism_is_not_the_package(
    api: FakeApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`git clone` makes such a folder, and tests and users' own code lie below it."""
    code, theirs = "def load(path, check):\n    raise ValueError(path)", dict[str, Any]()
    exec(compile(code, "/home/u/my work/prism/tests/theirs.py", "exec"), theirs)
    monkeypatch.setattr(api, "load", theirs["load"], raising=False)
    assert main(["show", "model.onnx"]) == ExitCode.INTERNAL
    assert " at app.py:" in error_line(capsys)


@pytest.mark.parametrize(
    "line",
    [
        "optimize",
        "optimize a.onnx b.onnx",
        "optimize a.onnx --target sm_7",
        "optimize a.onnx --trials 0",
        "optimize a.onnx --trials many",
        "optimize a.onnx --seed -1",
        "optimize a.onnx --max-loops 0",
        "optimize a.onnx --nonsense",
        "optimise a.onnx",
        "prove a.onnx",
    ],
)
def test_wrong_usage(api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert main(line.split()) == ExitCode.USAGE
    assert "--help" in error_line(capsys)
    assert os.listdir(tmp_path) == []
    assert api.asked == {}


def test_an_unknown_target_is_told_the_known_ones(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "a.onnx", "--target", "sm_7"]) == ExitCode.USAGE
    line = error_line(capsys)
    assert "sm_7" in line
    assert "sm_90" in line
    assert "cuda" in line


@pytest.mark.parametrize("flag", ["--out", "-o"])
@pytest.mark.parametrize("out", ["file", "file/o", "mine", ".", "/proc/o", "/proc/a/o"])
def test_an_unwritable_output_is_refused_before_any_work(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, flag: str
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.md").write_text("mine")
    assert main(["optimize", "model.bad", flag, out]) == ExitCode.USAGE  # the bad model is not even read
    assert "output folder" in error_line(capsys)
    assert sorted(os.listdir(tmp_path)) == ["file", "mine"]
    assert os.listdir(tmp_path / "mine") == ["notes.md"]


COUNTEREXAMPLE = {"x": np.array([[1.0, np.inf]]), "big": np.arange(100.0)}


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict(Status.PROVED, "merged"), 0),
        (Verdict(Status.REFUTED, "y differs", COUNTEREXAMPLE), 5),
        (Verdict(Status.UNKNOWN, "node budget"), 4),
    ],
    ids=["proved", "refuted", "unknown"],
)
def test_prove(api: FakeApi, capsys: pytest.CaptureFixture[str], verdict: Verdict, code: int) -> None:
    api.verdict = verdict
    assert main(["prove", "a.onnx", "b.onnx"]) == code
    out = capsys.readouterr().out
    assert out.startswith(f"{verdict.status}: {verdict.reason}\n")
    if verdict.counterexample:
        assert "x = [[1.0, inf]]" in out
        assert "shape (100,)" in out
        assert len(out) < 1000
    assert main(["prove", "a.onnx", "b.onnx", "--json"]) == code
    body = json.loads(capsys.readouterr().out)
    assert body["status"] == verdict.status.value
    if verdict.counterexample:
        assert body["counterexample"]["x"] == [[1.0, "inf"]]
        assert len(body["counterexample"]["big"]) == 100


def test_show(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "model.onnx"]) == ExitCode.DONE
    assert capsys.readouterr().out == "program model\nnot compared with the model: --no-check\n"


def test_what_a_program_takes_for_granted_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    looked_up (float[9, 4] table, int64[3] places) => (float[3, 4] y) { y = Gather (table, places) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    assert main(["show", str(tmp_path / "model.onnx")]) == ExitCode.DONE
    assert "\nassuming places that data give lie in what is looked up\n" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"prism {prism.__version__}\n"


@pytest.mark.parametrize("line", ["--help", "optimize --help", "prove --help", "show --help", ""])
def test_help(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "Usage: prism" in out
    assert len(out) > 100


def test_help_names_the_bounds_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    from prism.api.region_search import SearchBudget

    assert main(["optimize", "--help"]) == ExitCode.DONE
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, value in SearchBudget().as_dict().items():
        option = f"--{name.replace('_', '-')} "
        assert option in out
        assert f"{value} by default" in out.split(option)[1].split(" --")[0], option


def test_a_live_line_ends_with_the_block() -> None:
    out = StringIO()
    with Progress(console=Console(file=out, force_terminal=True, width=80)) as progress:
        progress.listen(StageStarted("proof"))
        progress.listen(Count("sGraphs", 3, 19))
        for left in (50.0, 20.0):  # without an event, as where one thing takes long
            progress.ends = time.monotonic() + left + 0.9
            out.truncate(0)
            progress._status._live.refresh()  # type: ignore[union-attr]
            assert f"proof: 3/19 sGraphs, {left:.0f}." in out.getvalue()
        progress.listen(StageFinished("proof", 1.0, "19 proved"))
        assert not progress.__rich__()
    text = out.getvalue()
    assert "prism: proof 1.00 s  19 proved" in text
    assert text.rstrip("\n").endswith("\x1b[2K") or "\x1b[?25h" in text  # the cursor is shown again


def command(*args: str, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


MODEL = Path(__file__).resolve().parents[1] / "examples" / "models" / "gated_mlp.onnx"


def test_what_the_command_imports_is_not_collected() -> None:
    code = (
        "import gc, sys; seen = []; from prism.cli import main\n"
        "def loading(phase, info):\n"
        "    api = sys.modules.get('prism.api')\n"
        "    seen.append(api is not None and api.__spec__._initializing)\n"
        "gc.callbacks.append(loading); code = main(['show', sys.argv[1]])\n"
        "sys.exit(code or ('collected' if any(seen) or not gc.isenabled() or not gc.get_freeze_count() else 0))"
    )
    process = command("-c", code, str(MODEL))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from prism.cli import main; main(['--help']);"
        "heavy = {'torch', 'triton', 'sympy', 'egglog', 'onnx', 'optuna', 'numpy', 'plotly'};"
        "sys.exit(', '.join(sorted(heavy & sys.modules.keys())) or 0)"
    )
    process = command("-c", code)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err


def test_a_closed_pipe_is_no_failure() -> None:
    code = (
        "import sys, time; from prism.cli.output import write_line;"
        "sys.stdin.readline(); write_line('x' * 100_000); sys.exit(3)"
    )
    process = command("-c", code, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.write("\n")
    process.stdin.close()
    assert process.wait(timeout=30) == 3
    assert process.stderr.read() == ""
    process.stderr.close()


INTERRUPTED_WRITE = """
import signal, sys, time, types
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started deaf to it
import prism
from pathlib import Path
from prism.report import folder
api = types.ModuleType("prism.api")
write = folder.put
def slow(path, data, **options):
    write(path, data, **options)
    print("writing", flush=True)
    time.sleep(30)
def optimize(program, *, out, **options):
    folder.put = slow
    folder.write_folder(out, {"a.py": b"1", "b.py": b"2"})
api.load_compared, api.SearchBudget, api.optimize = (lambda path, **_: (str(path), False)), dict, optimize
api.better_in_parts = api.left_for_types = lambda what, target, baselines: ""
sys.modules["prism.api"] = prism.api = api
from prism.cli import main
sys.exit(main(["optimize", sys.executable, "--out", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    "line",
    ["optimize {}", "prove {} {}", "show {}", "verify . --model {}", "bench {}", "rules profile {}"],
)
def test_that_a_model_is_not_there_is_told_before_anything_is_imported(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prism.api", None)  # importing it fails
    for path, why in ((tmp_path / "none.onnx", "No such file or directory"), (tmp_path, "it is not a regular file")):
        assert main(line.format(path, path).split()) == ExitCode.UNSUPPORTED
        assert error_line(capsys) == f"prism: error: {path}: the model cannot be read: {why}; check the path"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_writing_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = command("-c", INTERRUPTED_WRITE, str(tmp_path / "o"))
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert len(os.listdir(tmp_path)) == 1  # the hidden folder is there now
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "prism: error: interrupted"
    assert os.listdir(tmp_path) == []


def test_a_log_says_what_takes_long() -> None:
    out = StringIO()
    with Progress(console=Console(file=out), silence_s=0.01) as progress, progress.recorder.stage("search"):
        progress.recorder.count("regions", 2, 7)
        while "so far" not in out.getvalue():
            time.sleep(0.01)
    assert "prism: search: 2/7 regions ... " in out.getvalue()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries of C keep memory in their own ways")
@pytest.mark.parametrize("keeps", [False, True])
def test_the_command_keeps_the_memory_of_large_arrays_for_the_next(keeps: bool) -> None:
    code = f"""
        import ctypes
        import numpy as np
        from prism.process.memory import KEEPING, allocate_as
        class Info(ctypes.Structure):
            _fields_ = [(f"n{{n}}", ctypes.c_size_t) for n in range(10)]  # mallinfo2, whose fifth is the bytes in maps
        if {keeps}:
            allocate_as(KEEPING)
        array = np.ones(8 << 20)
        told = getattr(ctypes.CDLL(None), "mallinfo2")
        told.restype = Info
        print(told().n4 < array.nbytes)
    """
    said = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(keeps)]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries of C keep memory in their own ways")
def test_memory_that_is_kept_is_given_back_when_that_is_asked_for() -> None:
    code = """
        import numpy as np
        from pathlib import Path
        from prism.process.memory import KEEPING, allocate_as, give_back
        def held():
            (line,) = [l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("RssAnon")]
            return int(line.split()[1]) >> 10
        allocate_as(KEEPING)
        arrays = [np.ones(8 << 20), np.ones(1 << 10)]
        before = held()
        arrays[0] = None
        kept = held()
        give_back()
        print(before - kept < 32, kept - held() > 32)
    """
    said = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "True"]
