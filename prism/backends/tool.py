"""Running a compiler or assembler: it is ended in time, with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence


def run_tool(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """The status with which a command ends, and what it said.

    Raises:
        subprocess.TimeoutExpired: it took longer.
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        return code, " ".join(said.read(4096).decode(errors="replace").split())[:300]


def how_it_ended(code: int, said: str) -> str:
    """That in words."""
    end = f"it was ended by signal {-code}" if code < 0 else f"it ended with status {code}"
    return f"{end} and said: {said}" if said else f"{end} and said nothing"
