"""Ctrl-C in the middle of a run: one line, exit code 130, no traceback from any process, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from quick import slow_but

MODEL = Path(__file__).resolve().parent.parent / "examples" / "models" / "add_silu.onnx"


@pytest.mark.parametrize("stage", slow_but(["saturation"], ["saturation", "emission", "tuning"]))
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, stage: str) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "prism.cli", "optimize", str(MODEL), "--target", "sm_90", "--out", str(out)]
    command += ["--max-sgraphs", "2", "--max-families", "8"]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment, start_new_session=True
    ) as process:
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
    assert text.endswith("prism: error: interrupted\n")
    assert not out.exists()
    assert not [p for p in temporary.iterdir() if p.name.startswith("prism-")]
