"""Servers that fork children for tests: torch alone takes a fresh one 1 s of processor time.

They import what is no part of prism: that looks at the environment, and a child imports it itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from prism.process.fork_server import Forked, ForkServer

IMPORTED = ("numpy", "sympy", "torch")
READ_AT_START = ("PYTHON", "OMP_", "OPENBLAS_", "MKL_", "KMP_", "GOMP_", "LD_", "ATEN_", "TORCH_")
"""How variables begin that the interpreter, or what is imported, looks at before a child has its own."""
KNOWN = ("-P", "-c", "-m")
"""How a command may begin after the interpreter, if not by a file."""
MOST = 3
"""Servers, each for children that are alike in these variables."""
HERE = Path(__file__).resolve().parents[1]


class Zygotes:
    """Starts children by servers that fork them, one for each of the environments that are read at start."""

    def __init__(self, most: int = MOST) -> None:
        self._started: dict[frozenset[tuple[str, str]], ForkServer] = {}
        self._most = most

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[Any], folder: Path | None = None
    ) -> Forked | None:
        """A child of this command, whose standard error goes to `log`; None where there is nothing to fork it from."""
        places = [Path(p) for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
        prism = next((p for p in places if (p / "prism").exists()), HERE)
        if (command[1].startswith("-") and command[1] not in KNOWN) or prism.resolve() != HERE:
            return None
        read = {k: v for k, v in environment.items() if k.startswith(READ_AT_START) and k != "PYTHONPATH"}
        key = frozenset(read.items())
        if key not in self._started and len(self._started) < self._most:
            self._started[key] = ForkServer({**environment, "PYTHONPATH": str(HERE)})
        server = self._started.get(key)
        return None if server is None else server.start(command, environment, log, folder, modules=IMPORTED)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, limit_s: float) -> str:
        """What a Python of these arguments prints.

        Raises:
            AssertionError: it fails.
        """
        command = [sys.executable, *arguments]
        with tempfile.TemporaryFile() as log:
            child = self.start(command, environment, log, folder)
            if child is None:
                made = subprocess.run(command, env=environment, cwd=folder, capture_output=True, timeout=limit_s)
                assert made.returncode == 0, made.stderr.decode()[-2000:]
                return made.stdout.decode()
            with child.stdin, child.stdout:
                printed = child.stdout.read().decode()
            status = child.wait(limit_s)
            log.seek(0)
            assert status == 0, log.read().decode()[-2000:]
            return printed

    def close(self) -> None:
        """End them; what they have forked lives on."""
        for server in self._started.values():
            server.close()
