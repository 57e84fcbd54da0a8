"""What a saturation may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on a saturation; a result depends on the first two only.

    Attributes:
        enodes: stop before the next step once there are more. The last step may overshoot.
        iterations: rounds of the schedule.
        seconds: hard limit on wall time, after which the worker is killed.
    """

    enodes: int = 6000
    iterations: int = 24
    seconds: float = 60.0
