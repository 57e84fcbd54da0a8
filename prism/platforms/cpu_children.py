"""The children of a CPU's platform: what they import, and their environments."""

from __future__ import annotations

from pathlib import Path

from prism.folders import cache_root
from prism.process.child import child_environment
from prism.process.fork_server import ForkServer
from prism.process.memory import KEEPING

WORKER = "prism.platforms.cpu_worker"
"""The module that `python -m` runs for the compiler, for the gate and for the clock."""
RUNS = ("prism.platforms.contenders",)
"""What is imported before a child is forked that runs kernels,"""
COMPARES = (*RUNS, "prism.backends.native", "torch._dynamo")
"""and before one that runs baselines, too; but for what few of them need."""


def cpu_environment(threads: int, pinned: bool = False, cache: Path | None = None) -> dict[str, str]:
    """The environment of a child that runs kernels: threads, memory kept once it is had, libraries in the cache.

    Threads that are pinned each stay on a core of their own: steadier on a machine that does nothing else, and much
    slower on one that does. Threads that wait spin as long as they do at the user's, some milliseconds where nothing
    else is said.
    """
    env = child_environment(
        TRITON_INTERPRET=None,
        OMP_NUM_THREADS=str(threads),
        MKL_NUM_THREADS=str(threads),
        OPENBLAS_NUM_THREADS=str(threads),
        **KEEPING,
        **_compiled(cache),
    )
    if pinned:
        env.update(OMP_PROC_BIND="close", OMP_PLACES="cores")
    return env


def user_environment(cache: Path | None = None) -> dict[str, str]:
    """The environment of a child that times what a user would run: the user's own, and a cache for torch's compiler."""
    env = child_environment(TRITON_INTERPRET=None, **_compiled(cache))
    env.setdefault("TORCHINDUCTOR_CACHE_DIR", str((cache or cache_root()) / "inductor"))
    # Otherwise it compiles a program for each vector instruction set that the processor has, 9 s in all, to find
    # compilers that know none of them (gcc 7): these compile no kernel of prism's either.
    env.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    return env


def _compiled(cache: Path | None) -> dict[str, str]:
    """Where compiled C++ is looked for first: the same kernels come back, in the next run and before."""
    return {"PRISM_CPP_CACHE": str(cache / "cpp")} if cache is not None else {}


def fork_server(cache: Path | None = None) -> ForkServer:
    """What forks the children that time; it starts with the first of them, or with what it is to import before."""
    return ForkServer(user_environment(cache))
