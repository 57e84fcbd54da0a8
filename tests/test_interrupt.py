"""Ctrl-C in the middle of a run: one line, exit code 130, no traceback from any process, nothing left behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from quick import slow_but

from prism.cli import app
from prism.cli.interrupts import TerminatedError
from prism.errors import NoImprovementError
from prism.events import Count, Event, Listener, StageFinished
from prism.folders import cache_or_spare
from prism.process.deadline import Deadline

MODEL = Path(__file__).resolve().parent.parent / "examples" / "models" / "add_silu.onnx"


@pytest.mark.parametrize("stage", slow_but(["saturation"], ["saturation", "emission"]))
def test_a_run_that_is_interrupted_before_it_measured_anything_leaves_nothing(tmp_path: Path, stage: str) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "prism", "optimize", str(MODEL), "--target", "sm_90", "--out", str(out)]
    command += ["--max-sgraphs", "2", "--max-families", "8"]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    # Nothing is stored: a run that finds its measurements may be over before it is interrupted.
    environment = {**os.environ, "TMPDIR": str(temporary), "PRISM_CACHE_DIR": str(tmp_path / "cache")}
    # A shell's background job is started deaf to it, as are its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        said, nowhere = subprocess.PIPE, subprocess.DEVNULL
        started = subprocess.Popen(
            command, stderr=said, stdout=nowhere, text=True, env=environment, start_new_session=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with started as process:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if line.startswith(f"prism: {stage}"):
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
                break
        seen += process.stderr.readlines()
        assert process.wait(60) == 130, "".join(seen)
    text = "".join(seen)
    assert "Traceback" not in text
    again = shlex.join([sys.executable, "-m", "prism", *command[3:]])
    assert text.endswith(f"prism: what was finished is kept; to go on: {again}\nprism: error: interrupted\n")
    assert not out.exists()
    assert not [p for p in temporary.iterdir() if p.name.startswith("prism-")]


def test_a_second_interrupt_lets_the_first_one_tidy_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = []

    def command(*_: object, **__: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("went on")
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("tidied up")
        return 0

    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(app, "_app", lambda: command)
    try:
        assert app.main([]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before[0])
    assert done == ["tidied up"]
    assert signal.getsignal(signal.SIGTERM) == before[1]
    assert capsys.readouterr().err == "prism: error: interrupted\n"


def test_an_interrupt_in_the_midst_of_an_exec_has_the_same_exit_code() -> None:
    """Libraries make their classes by `exec`."""
    inner = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    text = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from prism.cli import app, script; "
    )
    text += f"app._app = lambda: lambda *_, **__: exec({inner!r}); script()"
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "prism: error: interrupted\n")


def test_a_thread_that_is_at_work_is_not_waited_for_at_the_end_and_what_is_registered_for_it_runs() -> None:
    text = """if True:
        import atexit, signal, sys, threading
        from prism.cli import app, script
        def command(*_, **__):
            threading.Thread(target=threading.Event().wait).start()
            atexit.register(print, "at the end")
            signal.raise_signal(signal.SIGTERM)
        app._app = lambda: command
        sys.argv = ["/bin/prism", "optimize", "a model.onnx"]
        script()"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120)
    said = "prism: what was finished is kept; to go on: prism optimize 'a model.onnx'\nprism: error: interrupted\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "at the end\n", said)


def test_a_run_without_a_cache_does_not_say_that_it_keeps_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "file" / "cache"))

    def command(*_: object, **__: object) -> int:
        with cache_or_spare(lambda message: None):
            raise KeyboardInterrupt

    monkeypatch.setattr(app, "_app", lambda: command)
    assert app.main(["optimize", "m.onnx"]) == 130
    assert capsys.readouterr().err == "prism: to begin again: prism optimize m.onnx\nprism: error: interrupted\n"
    assert app.main(["show", "m.onnx"]) == 130
    assert capsys.readouterr().err == "prism: error: interrupted\n"


ON = "prism: what was finished is kept; to go on: prism optimize {}\nprism: error: interrupted\n"
CLOSES = "prism: warning: interrupted: what is finished is put together, checked, timed and written, within 45 s; "


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ([Count("trials", 1, 9), KeyboardInterrupt()], None, ""),
        ([Count("trials", 2, 9, 1e-3), TerminatedError()], None, ""),
        ([Count("trials", 2, 9, 1e-3), KeyboardInterrupt()], "a report", CLOSES),
        ([Count("regions stored", 1), KeyboardInterrupt()], "a report", CLOSES),
        ([StageFinished("tuning", 0.1, "3 of 3 stored"), KeyboardInterrupt()], "a report", CLOSES),
        ([Count("trials", 2, 9, 1e-3), KeyboardInterrupt()], KeyboardInterrupt(), CLOSES),
        (
            [Count("trials", 2, 9, 1e-3), KeyboardInterrupt()],
            NoImprovementError("nothing beats it", why="it is as fast"),
            "prism: warning: nothing is written: nothing beats it: it is as fast",
        ),
    ],
)
def test_what_was_measured_is_written(
    first: list[Event | BaseException],
    then: str | BaseException | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Once more, as a run that begins nothing, unless nothing was measured, or the machine ends what runs."""
    times: list[Deadline | None] = []
    printed: list[object] = []

    def optimized(_program: object, *, listener: Listener, seconds: Deadline | None, anew: bool, **_: object) -> Any:
        times.append(seconds)
        assert anew == (len(times) == 1)
        for event in first if len(times) == 1 else [then]:
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, Event):
                listener(event)
        return SimpleNamespace(report=then)

    monkeypatch.setattr("prism.api.optimize", optimized)
    monkeypatch.setattr("prism.cli.output.print_report", lambda report, **_: printed.append(report))
    out = str(tmp_path / "out")
    assert app.main(["optimize", str(MODEL), "--out", out, "--anew", "--target", "sm_90"]) == 130
    assert times[0] is None
    assert [t is not None and t.closing and 0 < t.left <= 45 for t in times[1:]] == [True] * (then is not None)
    assert printed == [then] * isinstance(then, str)
    told = capsys.readouterr().err
    assert said in told
    assert ("warning" in told) == bool(said)
    assert told.endswith(ON.format(shlex.join([str(MODEL), "--out", out, "--anew", "--target", "sm_90"])))
