"""The timing worker: microseconds of kernels on the GPU, in a process that may be lost.

One CUDA graph a contender holds many calls in a row, which rotate over copies of the inputs and outputs larger than
the L2 cache, so that every call finds a cold cache and no launch waits for Python. The graphs are replayed in turn,
contender by contender, so that a clock that drifts drifts for all. Outputs are poisoned before the first timed replay
and handed back after the last, to be checked. After an error that poisons the CUDA context the process ends: the next
request gets a fresh one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from prism.backends.triton.crosscompile import load_module
from prism.process.serve import Answer, Request, one_line, serve

WORKER = "prism.backends.triton.timing"
"""The module that `python -m` runs as the timing worker."""

REPLAY_S = 2e-3
"""A replay should take about this long, seconds, so that its two events do not count."""
MAX_COPIES = 256
MAX_CALLS = 2000
MEMORY_PART = 0.5
"""The part of the device's memory that all copies of all contenders may take."""
WARM_UP_REPLAYS = 3

# What torch and Triton raise when a launch was refused: the context is whole. Everything else from CUDA is sticky.
_REFUSED = (
    "out of resource",
    "OutOfResources",
    "out of memory",
    "too many resources requested",
    "invalid configuration",
)


def copies(set_bytes: int, l2_bytes: int, memory_bytes: int) -> int:
    """How many copies of the arguments to rotate over: before one comes again, the others have filled the L2 cache.

    Args:
        set_bytes: bytes of the inputs and outputs of one call.
        l2_bytes: the L2 cache.
        memory_bytes: memory that all copies may take.
    """
    wanted = math.ceil(l2_bytes / max(set_bytes, 1)) + 1
    affordable = memory_bytes // max(set_bytes, 1)
    return max(1, min(wanted, affordable, MAX_COPIES))


def calls(call_s: float, rotation: int) -> int:
    """How many calls a graph holds: a whole number of rotations, about REPLAY_S seconds in all."""
    wanted = min(REPLAY_S / max(call_s, 1e-9), MAX_CALLS)
    return max(1, math.ceil(wanted / rotation)) * rotation


def interleave(replays: Sequence[Callable[[], float]], repeats: int) -> list[list[float]]:
    """Seconds of each replay: one round after the other, each round beginning with another contender.

    Args:
        replays: each replays a contender once and returns the seconds it took.
        repeats: rounds.

    Returns:
        for each contender, its `repeats` samples.
    """
    samples: list[list[float]] = [[] for _ in replays]
    for round_ in range(repeats):
        for n in range(len(replays)):
            place = (n + round_) % len(replays)
            samples[place].append(replays[place]())
    return samples


def is_sticky(message: str) -> bool:
    """Whether an error leaves the CUDA context unusable."""
    lowered = message.lower()
    if any(w.lower() in lowered for w in _REFUSED):
        return False
    return "cuda" in lowered or "illegal" in lowered or "device-side assert" in lowered


def contender(
    spec: Mapping[str, Any], tensors: Sequence[Any]
) -> tuple[Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]], Any]:
    """A function of (inputs, outputs) that launches one call and returns where the results are.

    And GraphArrivals of an emitted module that has it, else None.

    Args:
        spec: see `time_contenders`.
        tensors: the inputs, on the device.
    """
    if spec["kind"] == "module":
        module, config = load_module(Path(spec["module"])), spec["config"]
        takes: list[int] = list(spec["inputs"])

        def launch(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
            for kernel, grid, args, meta in module.launches(*(inputs[n] for n in takes), *outputs, config=config):
                kernel[tuple(grid)](*args, **meta)
            return outputs

        return launch, getattr(module, "GraphArrivals", None)
    import torch

    from prism.backends.native import baseline

    call, _ = baseline(spec, tensors)
    if spec["kind"] == "compiled":
        call = torch.compile(call, dynamic=False)
    places: Sequence[int] = spec["inputs"] if spec.get("exported") else range(len(tensors))

    def run(inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        # Not in inference mode: its results cannot be overwritten outside of it.
        with torch.no_grad():
            result = call(*(inputs[n] for n in places))
        return list(result) if isinstance(result, (tuple, list)) else [result]

    return run, None


def _event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class _Prepared:
    """A contender's graph, its outputs, and how to replay it."""

    def __init__(self, spec: Mapping[str, Any], request: Request, inputs: Sequence[Any], contenders: int) -> None:
        import torch

        launch, arrivals = contender(spec, inputs)
        outputs = [
            torch.empty(shape, dtype=getattr(torch, dtype), device="cuda") for shape, dtype in request["outputs"]
        ]
        size = sum(t.numel() * t.element_size() for t in (*inputs, *outputs))
        memory = int(MEMORY_PART * torch.cuda.mem_get_info()[0] / contenders)
        rotation = copies(size, int(request["l2_bytes"]), memory)
        self._inputs = [[t.clone() for t in inputs] for _ in range(rotation)]
        self._outputs = [[torch.empty_like(t) for t in outputs] for _ in range(rotation)]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Compiles, and lets the libraries choose their algorithms, outside the capture.
            for n in range(3):
                launch(self._inputs[n % rotation], self._outputs[n % rotation])
            stream.synchronize()
            start, end = _event(), _event()
            start.record()
            for n in range(5):
                launch(self._inputs[n % rotation], self._outputs[n % rotation])
            end.record()
            stream.synchronize()
        torch.cuda.current_stream().wait_stream(stream)
        # Includes Python's launch overhead, so a graph of tiny kernels is shorter than REPLAY_S; that is harmless.
        self.calls = calls(start.elapsed_time(end) * 1e-3 / 5, rotation)
        self._graph = torch.cuda.CUDAGraph()
        last: Sequence[Any] = ()
        # What a module counts arrivals in has been zero since the calls above: the graph has no need to set it.
        own = None if arrivals is None else stream
        counts = nullcontext() if arrivals is None else arrivals(stream)
        with counts as self._counts, torch.cuda.graph(self._graph, stream=own):
            for n in range(self.calls):
                # What a contender allocates itself lives in the graph's memory and is reused: only the last holds.
                last = launch(self._inputs[n % rotation], self._outputs[n % rotation])
        self._last = list(last)
        self._start, self._end = _event(), _event()

    def poison(self) -> None:
        """Overwrite all outputs with what no kernel would compute."""
        for t in (*(t for outputs in self._outputs for t in outputs), *self._last):
            t.fill_(float("nan") if t.is_floating_point() else 1)

    def replay(self) -> float:
        """Replay once: seconds a call."""
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e-3 / self.calls

    def results(self) -> list[Any]:
        """The outputs of the last call, on the CPU."""
        return [t.detach().cpu().clone() for t in self._last]


def time_contenders(request: Request) -> Answer:
    """Time contenders against each other.

    The request holds `contenders` (each of kind `module` with module, config and the places of its inputs; `eager` or
    `compiled` with what `prism.backends.native.baseline` takes), the files of inputs and results, the outputs' shapes
    and dtypes, `l2_bytes` and `repeats`. The answer holds, per contender, its samples in seconds or its error; the
    results' file, per contender, its outputs.
    """
    import torch

    inputs = [t.cuda() for t in torch.load(request["inputs"])]
    specs: Sequence[Mapping[str, Any]] = request["contenders"]
    prepared: list[_Prepared | None] = []
    answers: list[dict[str, Any]] = []
    for spec in specs:
        try:
            prepared.append(_Prepared(spec, request, inputs, len(specs)))
            answers.append({})
        except Exception as error:
            _give_up_if_sticky(error)
            prepared.append(None)
            answers.append({"error": one_line(error)})
    ready = [p for p in prepared if p is not None]
    try:
        for p in ready:
            for _ in range(WARM_UP_REPLAYS):
                p.replay()
            p.poison()
        torch.cuda.synchronize()
        samples = iter(interleave([p.replay for p in ready], int(request["repeats"])))
        results = [p.results() if p is not None else [] for p in prepared]
    except Exception as error:
        _give_up_if_sticky(error)
        raise
    for answer, held in zip(answers, prepared, strict=True):
        if held is not None:
            answer["samples"] = next(samples)
            answer["calls"] = held.calls
    torch.save(results, request["results"])
    return {"contenders": answers}


def _give_up_if_sticky(error: Exception) -> None:
    message = one_line(error)
    if is_sticky(message):
        # Every later call in this process would fail, whatever it ran.
        os.write(2, f"{message}\n".encode())
        os._exit(70)


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    serve(time_contenders)
