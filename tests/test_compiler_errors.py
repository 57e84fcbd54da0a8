"""A compiler that is broken or hangs is told as such, before anything is searched; it is no bug in prism."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from prism.backends.cpu.build import check_compiler
from prism.cli.app import main
from prism.errors import CompilerError, ExitCode

MODEL = Path(__file__).parent.parent / "examples" / "models" / "lora.onnx"
OUTPUT = 'while [ "$1" != -o ]; do shift; done; '
BROKEN = {
    "fails": ("echo no space left on device >&2; exit 1", "status 1 and said: no space left on device"),
    "dies": ("kill -SEGV $$", "signal 11"),
    "makes garbage": (OUTPUT + "echo garbage > $2", "no library that works"),
    "makes nothing": ("exit 0", "no library that works"),
    "hangs": ("sleep 60", "took more than 0.5 s"),
}


def compiler(folder: Path, script: str) -> Path:
    path = folder / "broken c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("way", BROKEN)
def test_a_compiler_that_does_not_work_is_named(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, said = BROKEN[way]
    path = compiler(tmp_path, script)
    monkeypatch.setenv("CXX", str(path))
    start = time.monotonic()
    with pytest.raises(CompilerError) as caught:
        check_compiler(0.5 if way == "hangs" else 20.0)
    assert time.monotonic() - start < 30
    assert caught.value.where == str(path)
    assert said in caught.value.why
    assert "probe.cpp" in caught.value.why
    assert "CXX" in caught.value.fix


def test_the_compiler_that_is_here_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    check_compiler()


def test_the_command_ends_before_it_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", str(compiler(tmp_path, "exit 1")))
    assert main(["optimize", str(MODEL), "--target", "cpu", "--out", str(tmp_path / "out")]) == ExitCode.USAGE
    line = capsys.readouterr().err.splitlines()[-1]
    assert "the C++ compiler does not work" in line
    assert "bug in prism" not in line
