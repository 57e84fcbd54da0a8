"""CUDA graphs of many calls of one contender, to be replayed against the clock.

The calls rotate over copies of the inputs and outputs larger than the L2 cache, so that every call finds a cold cache,
and no launch waits for Python. torch alone: this runs on the device's machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from prism.process.serve import Answer, one_line

REPLAY_S = 2e-3
"""A replay should take about this long, seconds, so that its two events do not count."""
LONGEST_S = 0.1
"""What the slowest contender's may take, seconds, where a fast one asks for many calls."""
MAX_COPIES = 256
MAX_CALLS = 2000
WARM_UP_REPLAYS = 3

# What torch and Triton raise when a launch was refused: the context is whole.
_REFUSED = ("out of resource", "outofresources", "out of memory", "too many resources", "invalid configuration")
# What they raise when it is not.
_STICKY = ("cuda error", "[cuda]", "illegal", "device-side assert", "misaligned", "unspecified launch")


def begin() -> Answer:
    """Import what kernels need, and open the device."""
    import torch
    import triton.language  # noqa: F401

    torch.empty(1, device="cuda")
    torch.cuda.synchronize()
    return {}


def copies(set_bytes: int, l2_bytes: int, memory_bytes: float) -> int:
    """How many copies of the arguments to rotate over: before one comes again, the others have filled the cache twice.

    `set_bytes` are of the inputs and outputs of one call, `memory_bytes` what all copies may take.
    """
    wanted = math.ceil(2 * l2_bytes / max(set_bytes, 1)) + 1
    return max(1, min(wanted, int(memory_bytes // max(set_bytes, 1)), MAX_COPIES))


def calls(call_s: float, rotation: int) -> int:
    """How many calls a graph holds: a whole number of rotations, about REPLAY_S seconds in all."""
    wanted = min(REPLAY_S / max(call_s, 1e-9), MAX_CALLS)
    return max(1, math.ceil(wanted / rotation)) * rotation


def shared_calls(seconds: Sequence[float], rotation: int) -> int:
    """How many calls the graph of each contender holds: as many for all, by the fastest one, and not too many."""
    most = int(LONGEST_S / max(*seconds, 1e-9)) // rotation * rotation
    return max(rotation, min(calls(min(seconds), rotation), most))


def is_sticky(message: str) -> bool:
    """Whether an error leaves the CUDA context unusable."""
    low = message.lower()
    return not any(w in low for w in _REFUSED) and any(w in low for w in _STICKY)


def give_up_if_sticky(error: Exception) -> None:
    """End the process after an error that poisons the context: whatever ran next would fail, too."""
    message = one_line(error)
    if is_sticky(message):
        os.write(2, f"{message}\n".encode())
        os._exit(70)


def event() -> Any:
    """An event that knows its time."""
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def poison(tensors: Sequence[Any]) -> None:
    """Overwrite tensors with what no kernel would compute."""
    for t in tensors:
        t.fill_(float("nan") if t.is_floating_point() else 1)


class GraphReplay:
    """One CUDA graph of many calls: at first of one rotation, which tells what a call takes.

    `launch` makes the call on copy n of the arguments and returns its outputs; `arrivals` are the GraphArrivals of an
    emitted module that has them.

    Attributes:
        rotation: copies.
        calls: how many the graph holds.
        call_s: seconds of a call, by one replay of one rotation: launches do not count, as they do not later.
        outputs: those of the last.
    """

    def __init__(self, launch: Callable[[int], Sequence[Any]], rotation: int, arrivals: Any = None) -> None:
        import torch

        self._launch, self.rotation, self._arrivals = launch, rotation, arrivals
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Compiles, and lets the libraries choose their algorithms, outside the capture.
            for n in range(3):
                launch(n % rotation)
            self._stream.synchronize()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._start, self._end = event(), event()
        self.outputs: Sequence[Any] = ()
        self.calls = 0
        self.capture(rotation)
        self.replay()  # The first one also brings the graph to the device.
        self.call_s = self.replay()

    def capture(self, calls: int) -> None:
        """Capture so many calls, in place of those that the graph holds."""
        import torch

        if calls == self.calls:
            return
        self._graph, self.outputs = torch.cuda.CUDAGraph(), ()
        # What a module counts arrivals in has been zero since the calls before: the graph has no need to set it.
        own = None if self._arrivals is None else self._stream
        counts = nullcontext() if self._arrivals is None else self._arrivals(self._stream)
        with counts as self._counts, torch.cuda.graph(self._graph, stream=own):
            for n in range(calls):
                # What a contender allocates itself lives in the graph's memory and is reused: only the last holds.
                self.outputs = self._launch(n % self.rotation)
        self.calls = calls

    def replay(self) -> float:
        """Replay once: seconds a call."""
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3 / self.calls
