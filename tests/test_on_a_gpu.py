"""A whole run as on a machine with a GPU, on a stand-in for one: its times mean nothing, and all else is real."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stand_in_gpu
import torch

import prism
from benchmarks import whole_path
from prism.api.records import Choice
from prism.api.region_search import run_search
from prism.backends.triton import crosscompile, timing
from prism.cost.device import device
from prism.instantiate.confirm import LEAST_MATCHES
from prism.instantiate.gate.check import KernelRunner
from prism.platforms import choice, gpu
from prism.process.child import module_command
from prism.process.worker import Worker

GPU = replace(device("sm_90"), cache_bytes=1 << 10)
"""The less there is of a cache to fill, the fewer copies of the inputs are rotated over."""


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A GPU that is here, whose kernels the interpreter runs, and for which they compile: what ran there."""
    monkeypatch.setattr(choice, "describe_gpu", lambda: GPU)
    on_it = {timing.WORKER, gpu.CHECK_WORKER}
    monkeypatch.setattr(
        gpu, "module_command", lambda m: stand_in_gpu.child_command(m) if m in on_it else module_command(m)
    )
    ran: list[Any] = []
    run = KernelRunner.run

    def noted(self: KernelRunner, *args: Any, **named: Any) -> Any:
        ran.append((self.name, run(self, *args, **named)))
        return ran[-1][1]

    monkeypatch.setattr(KernelRunner, "run", noted)
    return ran


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def test_a_function_is_optimised_for_the_gpu_that_is_here(
    stood_in: Sequence[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interpreter takes a thousand times as long as what it is compared with, and the run says so.
    monkeypatch.setattr(Choice, "better", property(lambda choice: True))
    begun: list[str] = []
    begin = Worker.begin

    def noted(self: Worker) -> None:
        begun.append(self._child._command[-1])
        begin(self)

    def searched(*args: Any, **named: Any) -> Any:
        begun.append("search")
        return run_search(*args, **named)

    monkeypatch.setattr(Worker, "begin", noted)
    monkeypatch.setattr("prism.api.composing.run_search", searched)
    program = prism.trace(softmax, (torch.randn(3, 40),))
    made = prism.optimize(program, target="cuda", out=tmp_path / "out", trials=1, baselines=("eager",))
    place = begun.index("search")
    assert set(begun[:place]) == {crosscompile.WORKER, timing.WORKER, gpu.CHECK_WORKER}
    assert begun[place + 1 :] == [timing.WORKER] * LEAST_MATCHES, "those of the contests, while kernels are checked"
    assert re.search("measured .* torch eager .* no faster", repr(made))
    assert {name for name, _ in stood_in} == {"cuda"}
    assert all(isinstance(found, list) for _, found in stood_in)
    assert len(stood_in) > 10
    assert not prism.verify(tmp_path / "out").mismatches
    assert 'device="cuda"' in (tmp_path / "out" / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_what_users_run_is_tried_on_a_cpu_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The softmax's and the module's ways are those of other tests; this one is for the script itself.
    code = whole_path.main(["function", "--target", "cpu", "--trials", "1", "--limit", "500", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert (code, said.splitlines()[0]) == (0, "function: done")
    apart = re.findall(r"apart from float32: (\S+) (\S+)", (tmp_path / "function.txt").read_text("utf-8"))
    assert len(apart) == 3
    assert all(float(x) < 1e-6 for pair in apart for x in pair)
    assert "torch.compile" in said
