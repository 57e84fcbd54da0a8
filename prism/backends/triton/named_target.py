"""A driver of Triton's that only names a target: kernels compile for a GPU that is not here. Triton alone is needed."""

from __future__ import annotations

from typing import Any


class NamedTarget:
    """The part of a Triton driver that compilation asks for."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        amd = target.startswith("gfx")
        self._target = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
        # Triton keeps compiled kernels by device number: one number a target keeps targets apart.
        self._device = int(target.removeprefix("gfx" if amd else "sm_"), 16)

    def get_current_target(self) -> Any:
        """As Triton asks a driver."""
        return self._target

    def get_current_device(self) -> int:
        """As Triton asks a driver."""
        return self._device

    def get_current_stream(self, device: int) -> int:
        """As Triton asks a driver."""
        return 0


def compile_for(target: str) -> None:
    """Make Triton compile for `sm_90` and the like, or one of AMD's, as `gfx942`, from now on."""
    from triton.runtime import driver

    driver.set_active(NamedTarget(target))
