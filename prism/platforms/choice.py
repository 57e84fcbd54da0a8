"""Which platform a target is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prism.backends.triton.device import describe_gpu
from prism.cost.device import device
from prism.errors import UsageError
from prism.platforms.begun import Begun
from prism.platforms.gpu import AbsentGpu, PresentGpu
from prism.platforms.platform import Platform

ESTIMATED = "sm_90"
"""What is compiled for, and estimated, where nothing is there to time on."""


def meant(target: str | None) -> str:
    """The target, which is by default the GPU that is here, else the CPU."""
    return target or ("cpu" if describe_gpu() is None else "cuda")


def platform_of(
    target: str | None, warn: Callable[[str], None], cache: Path | None = None, begun: Begun | None = None
) -> Platform:
    """The platform of a target; by default the GPU that is here, else the CPU, else an estimate for a GPU.

    Args:
        target: `cuda`, `cpu`, `sm_90` and the like; None for the default.
        warn: told what the user should know of the choice.
        cache: where compiled kernels are kept; the user's cache folder when None.
        begun: children that were begun before.

    Raises:
        UsageError: the target is unknown, or it is `cuda` and there is no GPU.
    """
    target = meant(target)
    if target == "cuda":
        gpu = describe_gpu()
        if gpu is None:
            fix = f"time on the CPU with --target cpu, or name a GPU to compile for: --target {ESTIMATED}"
            raise UsageError("no GPU was found", where="--target cuda", fix=fix)
        device(gpu.target)  # no others can be compiled for
        return PresentGpu(gpu, cache=cache)
    if target == "cpu":
        from prism.platforms.cpu import NO_COMPILER, cpu_platform

        found = cpu_platform(cache)
        if found is not None:
            return found if begun is None else replace(found, forks=begun.forks)
        warn(f"{NO_COMPILER}; times are estimated for {ESTIMATED} instead")
        target = ESTIMATED
    return AbsentGpu(target, device(target), cache)
