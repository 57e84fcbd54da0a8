"""Cross-compilation of an emitted module for a GPU that need not be there: requests and answers of the compile worker.

Nothing here imports triton: the work is done in a child process (`compile_worker`), which a pool keeps alive between
requests. A module is compiled for the real shapes, because Triton specialises a kernel on the alignment of its
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prism.backends.protocol import Argument as Argument
from prism.backends.protocol import Compiled
from prism.errors import UsageError
from prism.folders import cache_root
from prism.process.child import child_environment
from prism.sgraph.config import Config, Resources

WORKER = "prism.backends.triton.compile_worker"
"""The module that `python -m` runs as the compile worker."""

TARGETS: tuple[str, ...] = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""The targets that the bundled compiler is known to build for."""

COMPILE_LIMIT_S = 60.0
"""How long one compilation (all kernels of a module, one configuration) may take, seconds."""


@dataclass(frozen=True, slots=True)
class CompileJob:
    """One module to compile under one configuration."""

    module: Path  # the emitted module
    target: str  # `sm_90` and the like
    config: Config  # the configuration
    arguments: tuple[Argument, ...]  # the launcher's inputs, then its outputs, at the real shapes
    here: bool = False  # whether the device is here, so that what launches the kernels is compiled, too


def capability(target: str) -> int:
    """The compute capability of a target as Triton counts it: 90 for `sm_90`.

    Raises:
        UsageError: it is no target that can be compiled for.
    """
    if target not in TARGETS:
        raise UsageError(
            f"unknown target {target!r}", fix=f"use one of {', '.join(TARGETS)}, or cuda on a machine with a GPU"
        )
    return int(target.removeprefix("sm_"))


def request(job: CompileJob, timeout_s: float = COMPILE_LIMIT_S) -> dict[str, Any]:
    """The job as a request to the compile worker."""
    return {
        "module": str(job.module),
        "target": job.target,
        "config": job.config.encode(),
        "arguments": [[list(a.shape), a.dtype] for a in job.arguments],
        "here": job.here,
        "timeout_s": timeout_s,
    }


def compiled(answer: Mapping[str, Any]) -> Compiled:
    """The compile worker's answer as data."""
    if answer.get("error"):
        return Compiled(error=str(answer["error"]))
    return Compiled(resources=tuple(Resources(**r) for r in answer["resources"]))


def worker_environment(cache: Path | None = None) -> dict[str, str]:
    """The environment of a worker process that compiles.

    Triton decides when it is imported whether it interprets, so TRITON_INTERPRET must be gone; its cache is private, so
    that a stale or shared one cannot change what is reported: in the given cache folder, by default the user's.
    """
    return child_environment(
        TRITON_INTERPRET=None,
        TRITON_CACHE_DIR=str((cache or cache_root()) / "triton"),
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
    )
