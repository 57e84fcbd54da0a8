"""The child that compiles C++ modules and runs them: for the numeric gate, and against the clock. It may be lost.

    python -m prism.instantiate.cpu_worker

A request with `compile` is for the compiler, one with `contenders` for the clock (see `time_contenders`), any other for
the gate (see `run_module`); the last two have the form that the GPU's workers take. All contenders share inputs and
outputs that are allocated once, and are called in turn, contender by contender, so that a clock that drifts drifts for
all. Before each sample the contender is called once unheard: its threads wake, the other runtime's have gone to sleep,
and caches hold what they would in a loop. What fits in the caches is therefore found there; what does not comes from
memory.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prism.backends.protocol import Argument, Config
from prism.backends.triton.check_worker import FRAME, poison_of, with_poison
from prism.backends.triton.serve import Answer, Request, one_line, serve
from prism.backends.triton.timing import interleave
from prism.instantiate.cpu_backend import CppBackend

SAMPLE_S = 2e-3
"""A sample should take about this long, seconds, so that the clock does not count."""
MAX_CALLS = 500
ROUNDS_S = 4.0
"""Rounds of all contenders should take no longer than this, seconds; at least `LEAST_ROUNDS` run."""
LEAST_ROUNDS = 3
LONG_S = 0.2
"""A call that takes longer needs no warming up, seconds."""
SETTLE_S = 4e-3
"""How long to wait before a contender's turn, seconds: threads of another runtime spin about as long."""
WARM_S = 5e-3
"""A turn begins with calls that are not counted, seconds: a processor that rested is slow. At least one is."""
FIRST_CALLS = 6
"""Calls that tell how long one takes, but for the first; fewer where they are long."""


def threads() -> int:
    """The threads of every contender."""
    return int(os.environ.get("OMP_NUM_THREADS", "0")) or len(os.sched_getaffinity(0))


def config_from(given: Mapping[str, Mapping[str, int]]) -> Config:
    """A configuration from plain dictionaries."""
    return Config(given["symbols"], given["warps"], given["stages"])


def contender(spec: Mapping[str, Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], Sequence[Any]]:
    """A function that calls a contender once and returns where the results are.

    Args:
        spec: of kind `module` (with module, config and the places of its inputs), `eager` or `compiled` (with a
            pickled program).
        inputs: the program's.
        outputs: what a module writes.
    """
    if spec["kind"] == "module":
        takes = [inputs[n] for n in spec["inputs"]]
        return CppBackend(threads()).call(Path(spec["module"]), config_from(spec["config"]), takes, outputs)
    import torch

    from prism.backends.eager import eager

    # Written by the parent, in a folder of its own; nothing else is ever unpickled.
    call = eager(pickle.loads(Path(spec["program"]).read_bytes()))
    if spec["kind"] == "compiled":
        call = torch.compile(call, fullgraph=False)

    def once() -> Sequence[Any]:
        with torch.inference_mode():
            return call(*inputs)

    return once


class Prepared:
    """A contender that has been called, and how many calls make a sample.

    Args:
        call: calls it once.
        settle_s: how long to wait before its turn, seconds.
        warm_s: how long calls are not counted after that, seconds; at least one is not.
    """

    def __init__(self, call: Callable[[], Sequence[Any]], settle_s: float = SETTLE_S, warm_s: float = WARM_S) -> None:
        self._call = call
        self._settle_s = settle_s
        self.results: Sequence[Any] = ()
        self.call_s = math.inf
        for n in range(FIRST_CALLS):
            start = time.perf_counter()
            self.results = call()
            taken = time.perf_counter() - start
            # The first call may compile, and touches memory that is new.
            self.call_s = taken if n < 2 else min(self.call_s, taken)
            if n and taken > SAMPLE_S:
                break
        self.calls = max(1, min(MAX_CALLS, math.ceil(SAMPLE_S / max(self.call_s, 1e-9))))
        self._warm = 0 if self.call_s > LONG_S else max(1, math.ceil(warm_s / max(self.call_s, 1e-9)))

    def sample(self) -> float:
        """Seconds a call, over one sample."""
        time.sleep(self._settle_s)
        for _ in range(self._warm):
            self._call()
        start = time.perf_counter()
        for _ in range(self.calls):
            self.results = self._call()
        return (time.perf_counter() - start) / self.calls

    @property
    def sample_s(self) -> float:
        """About how long a sample takes, seconds."""
        return self._settle_s + (self.calls + self._warm) * self.call_s


def rounds(contenders: Sequence[Prepared], wanted: int, limit_s: float = ROUNDS_S) -> int:
    """How many rounds to run: as many as are wanted, fewer where they would take longer than so many seconds."""
    each = sum(c.sample_s for c in contenders)
    return max(LEAST_ROUNDS, min(wanted, int(limit_s / max(each, 1e-9))))


def time_contenders(request: Request) -> Answer:
    """Time contenders against each other; request and answer are those of `prism.backends.triton.timing`."""
    import torch

    torch.set_num_threads(threads())
    inputs = torch.load(request["inputs"])
    specs: Sequence[Mapping[str, Any]] = request["contenders"]
    prepared: list[Prepared | None] = []
    answers: list[dict[str, Any]] = []
    held: list[list[Any]] = []
    for spec in specs:
        outputs = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in request["outputs"]]
        for t in outputs:
            t.fill_(float("nan") if t.is_floating_point() else 1)
        held.append(outputs)
        try:
            prepared.append(Prepared(contender(spec, inputs, outputs)))
            answers.append({})
        except Exception as error:
            prepared.append(None)
            answers.append({"error": one_line(error)})
    ready = [p for p in prepared if p is not None]
    for outputs in held:
        for t in outputs:
            t.fill_(float("nan") if t.is_floating_point() else 1)
    samples = iter(interleave([p.sample for p in ready], rounds(ready, int(request["repeats"]))))
    results = []
    for answer, p in zip(answers, prepared, strict=True):
        results.append([t.detach().clone() for t in p.results] if p is not None else [])
        if p is not None:
            answer["samples"] = next(samples)
            answer["calls"] = p.calls
    torch.save(results, request["results"])
    return {"contenders": answers}


def run_module(request: Request) -> Answer:
    """Run a module once, its outputs poisoned before; request and answer are those of the GPU's check worker."""
    import torch

    inputs = [torch.load(path) for path in request["inputs"]]
    frames, outputs = zip(*(with_poison(shape, dtype, "cpu") for shape, dtype in request["outputs"]), strict=True)
    CppBackend(threads()).run(Path(request["module"]), config_from(request["config"]), inputs, outputs)
    results = []
    for frame, output in zip(frames, outputs, strict=True):
        bits, poison = poison_of(frame)
        outside = torch.cat([bits[:FRAME], bits[-FRAME:]])
        if bool((outside != poison).any()):
            return {"error": "a kernel stored beyond the end of an output"}
        results.append((output.clone(), (bits[FRAME:-FRAME] != poison).view(output.shape)))
    torch.save(results, request["results"])
    return {"results": request["results"]}


def compile_module(request: Request) -> Answer:
    """Compile a module for a configuration: an error, or nothing; what was compiled is found again by its source."""
    arguments = [Argument(tuple(shape), dtype) for shape, dtype in request["arguments"]]
    config = config_from(request["config"])
    return {
        "error": CppBackend(threads()).compile(Path(request["compile"]), config, arguments, request["limit_s"]).error
    }


def answer(request: Request) -> Answer:
    """Whichever of the three is asked for."""
    if "compile" in request:
        return compile_module(request)
    return time_contenders(request) if "contenders" in request else run_module(request)


if __name__ == "__main__":
    serve(answer)
