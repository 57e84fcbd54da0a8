"""A compiler that is broken or hangs is told as such, before anything is searched; it is no bug in prism."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from prism.backends.cpu.build import check_compiler
from prism.backends.triton.device import check_assembler, check_c_compiler
from prism.cli.app import main
from prism.errors import CompilerError, ExitCode
from prism.platforms.contenders import Contenders

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


ASSEMBLERS = {
    "is missing": (None, "it cannot be started"),
    "fails": ("echo out of memory >&2; exit 1", "status 1 and said: out of memory"),
    "dies": ("kill -SEGV $$", "signal 11"),
    "makes garbage": ('[ "$1" = --version ] && exit 0; ' + OUTPUT + "echo garbage > $2", "no GPU code"),
    "makes nothing": ("exit 0", "no GPU code"),
    "hangs": ("sleep 60", "took more than 0.5 s"),
}


@pytest.mark.parametrize("way", ASSEMBLERS)
def test_an_assembler_that_does_not_work_is_named(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, said = ASSEMBLERS[way]
    path = tmp_path / "ptxas" if script is None else compiler(tmp_path, script)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(path))
    with pytest.raises(CompilerError) as caught:
        check_assembler("sm_90", 0.5 if way == "hangs" else 20.0)
    assert caught.value.where == str(path)
    assert said in caught.value.why
    assert "TRITON_PTXAS_PATH" in caught.value.fix


def test_the_assembler_that_is_here_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    for target in ("sm_80", "sm_90", "sm_100"):
        check_assembler(target)


def test_the_command_ends_before_it_searches_for_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(compiler(tmp_path, "exit 1")))
    assert main(["optimize", str(MODEL), "--target", "sm_90", "--out", str(tmp_path / "out")]) == ExitCode.USAGE
    assert "Triton's assembler does not work" in capsys.readouterr().err.splitlines()[-1]


def test_launchers_need_a_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerError, match="no C compiler"):
        check_c_compiler()
    monkeypatch.setenv("CC", str(compiler(tmp_path, "exit 0")))
    check_c_compiler()


@pytest.mark.parametrize(("seconds", "said"), [(0.0, "the compiler is broken"), (30.0, "took more than 0.2 s")])
def test_torch_compile_that_fails_takes_no_other_contender_with_it(
    seconds: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Callable[..., object]:
        def call(*_: object) -> object:
            time.sleep(seconds)
            raise RuntimeError("the compiler is broken")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(3),)), tmp_path / "relu.pt2")
    eager = {"kind": "eager", "exported": str(tmp_path / "relu.pt2"), "program": "", "inputs": [0]}
    makes = Contenders([torch.ones(3)])
    for _ in range(2):  # the second time without trying
        with pytest.raises((RuntimeError, TimeoutError), match=said):
            makes.call({**eager, "kind": "compiled", "compile_s": 0.2}, 1)
        seconds = 30.0
    (found,) = makes.call(eager, 1)()
    assert found.tolist() == [1.0, 1.0, 1.0]
