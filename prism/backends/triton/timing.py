"""The timing worker: microseconds of kernels on the GPU, in a process that may be lost.

One CUDA graph a contender holds many calls in a row (`replay.py`). The graphs are replayed in turn. Outputs are
poisoned before the first timed replay and handed back after the last, to be checked. After an error that poisons the
CUDA context the process ends: the next request gets a fresh one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prism.backends.interleave import interleave
from prism.backends.loading import load_module
from prism.backends.tensors import save
from prism.backends.triton.replay import (
    WARM_UP_REPLAYS,
    GraphReplay,
    begin,
    copies,
    give_up_if_sticky,
    poison,
    shared_calls,
)
from prism.process.serve import Answer, Request, one_line, serve

WORKER = "prism.backends.triton.timing"
"""The module that `python -m` runs as the timing worker."""

MEMORY_PART = 0.5
"""The part of the device's memory that all copies of all contenders may take."""


def contender(
    spec: Mapping[str, Any], tensors: Sequence[Any]
) -> tuple[Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]], Any]:
    """A function of (inputs, outputs) that launches one call and returns where the results are.

    And GraphArrivals of an emitted module that has it, else None. `spec` is as for `time_contenders`; `tensors` are the
    inputs, on the device.
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


class _Prepared(GraphReplay):
    """A contender's graph, with copies of the inputs and outputs."""

    def __init__(self, spec: Mapping[str, Any], request: Request, inputs: Sequence[Any], contenders: int) -> None:
        import torch

        launch, arrivals = contender(spec, inputs)
        outputs = [
            torch.empty(shape, dtype=getattr(torch, dtype), device="cuda") for shape, dtype in request["outputs"]
        ]
        size = sum(t.numel() * t.element_size() for t in (*inputs, *outputs))
        memory = MEMORY_PART * torch.cuda.mem_get_info()[0] / contenders
        rotation = copies(size, int(request["l2_bytes"]), memory)
        self._inputs = [[t.clone() for t in inputs] for _ in range(rotation)]
        self._outputs = [[torch.empty_like(t) for t in outputs] for _ in range(rotation)]
        super().__init__(lambda n: launch(self._inputs[n], self._outputs[n]), rotation, arrivals)

    def poison(self) -> None:
        """Overwrite all outputs with what no kernel would compute."""
        poison([*(t for outputs in self._outputs for t in outputs), *self.outputs])

    def results(self) -> list[Any]:
        """The outputs of the last call, on the CPU."""
        return [t.detach().cpu().clone() for t in self.outputs]


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
            give_up_if_sticky(error)
            prepared.append(None)
            answers.append({"error": one_line(error)})
    times = [p.call_s for p in prepared if p is not None]
    for place, p in enumerate(prepared):
        if p is None:
            continue
        try:
            # All are of the same shapes, and so of the same rotation.
            p.capture(shared_calls(times, p.rotation))
            for _ in range(WARM_UP_REPLAYS):
                p.replay()
            p.poison()
        except Exception as error:
            give_up_if_sticky(error)
            prepared[place] = None
            answers[place] = {"error": one_line(error)}
    ready = [p for p in prepared if p is not None]
    try:
        torch.cuda.synchronize()
        samples = iter(interleave([p.replay for p in ready], int(request["repeats"])))
        results = [p.results() if p is not None else [] for p in prepared]
    except Exception as error:
        give_up_if_sticky(error)
        raise
    for answer, held in zip(answers, prepared, strict=True):
        if held is not None:
            answer["samples"] = next(samples)
            answer["calls"] = held.calls
    save(results, request["results"])
    return {"contenders": answers}


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    serve(time_contenders, begin)
