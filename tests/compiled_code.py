"""What Triton makes of emitted kernels, the installed version or the oldest that is supported, without their device.

Starting a child costs seconds, so there is one for each version, which tests share (the fixture `code_of`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from prism.backends.protocol import arguments
from prism.backends.triton.crosscompile import worker_environment
from prism.backends.triton.emit import emit_module
from prism.process.child import Closing
from prism.process.worker import Ending, Worker
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph

CHILD = Path(__file__).with_name("compiling_child.py")
ROOT = Path(__file__).resolve().parent.parent
OLDEST = "PRISM_OLDEST_TRITON"
"""The variable with the folder that holds the oldest Triton: `make test` installs it there and says where."""
VERSIONS = ("installed", "oldest")
LIMIT_S = 120.0


def stated() -> str:
    """The oldest Triton that is supported."""
    lines = (ROOT / "constraints-min.txt").read_text("utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("triton=="))


def environment_of(version: str) -> dict[str, str]:
    """Of a process that compiles by a version; the test is skipped where the oldest is not there."""
    environment = worker_environment()
    if version == "oldest":
        folder = os.environ.get(OLDEST)
        if not folder:
            pytest.skip(f"{OLDEST} is not set: `make test` installs triton {stated()} and says where it is")
        # Packages of this folder come before the installed ones; prism is found from its own root.
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(folder).resolve()), environment["PYTHONPATH"]])
        environment["TRITON_CACHE_DIR"] += "-oldest"
    return environment


@dataclass(frozen=True, slots=True)
class Code:
    """What became of a launch.

    Attributes:
        kernel: its name.
        early: whether it may start before the launch before it has ended.
        resources: what it takes.
        ttgir: Triton's own form, layouts chosen.
        ptx: NVIDIA's assembly.
        amdgcn: AMD's.
    """

    kernel: str
    early: bool
    resources: Resources
    ttgir: str
    ptx: str = ""
    amdgcn: str = ""


class CodeOf(Closing):
    """Compiles what is emitted for sGraphs."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prism-compiled-")
        self._workers: dict[str, Worker] = {}
        self._modules = 0

    @property
    def versions(self) -> tuple[str, ...]:
        """Those that are here."""
        return VERSIONS if os.environ.get(OLDEST) else VERSIONS[:1]

    def __call__(self, g: SGraph, config: Config, target: str = "sm_90", version: str = "installed") -> list[Code]:
        """The code of each launch; the test is skipped where the version is not there.

        Raises:
            AssertionError: it does not compile.
        """
        if version not in self._workers:
            self._workers[version] = Worker([sys.executable, str(CHILD)], environment_of(version))
        self._modules += 1
        path = Path(self._folder.name) / f"{g.name}_{self._modules}.py"
        path.write_text(emit_module(g, formula="f", configs={}).text)
        reply = self._workers[version].ask(
            {
                "module": str(path),
                "target": target,
                "arguments": [[list(a.shape), a.dtype] for a in arguments(g, {})],
                "config": config.encode(),
            },
            LIMIT_S,
        )
        assert reply.ending is Ending.ANSWERED, reply
        assert not reply.answer.get("error"), reply.answer["error"]
        return [Code(**x | {"resources": Resources(**x["resources"])}) for x in reply.answer["launches"]]

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers.values():
            worker.close()
        self._folder.cleanup()
