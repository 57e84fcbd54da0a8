"""One case of `benchmarks/cpu.py` against the clock, in a process of its own: threads pinned, memory kept.

    python benchmarks/cpu_child.py REQUEST.json ANSWER.json

All contenders take the same inputs, are called in turn (`prism.instantiate.rounds`, as `prism optimize` does), on all
threads and on one, of which the faster counts, and are checked against float64 before. Before and after the rounds
memory is copied: as many bytes as the case's inputs and outputs have, and more than the caches hold. What a contender
writes it may allocate: the allocator keeps what it has been given, so pages are touched once.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.cpu_cases import CASES, Case
from benchmarks.cpu_report import DRAM_BYTES, quartiles
from prism.backends.interleave import interleave
from prism.backends.native import native
from prism.instantiate.machine_load import Watch
from prism.instantiate.rounds import Prepared, Queue, contest
from prism.platforms.contenders import Call, module_call, onnx_call, tensors_of, torch_call
from prism.platforms.cpu_worker import threads

MATMUL = 1024
"""Rows, columns and depth of the float32 product whose rate bounds products."""

ROUNDS_S = 15.0
"""Rounds of all contenders take no longer than this, seconds."""
SETTLE_S = 4e-2
"""How long to wait before a contender's turn, seconds: onnxruntime's threads spin for longer than OpenMP's."""
WARM_S = 2e-2
"""A turn begins with calls that are not counted, for so long, seconds: a processor that rested runs slower at first."""
RATE_SAMPLES = 5
"""Samples of the machine's own rates, before the rounds and again after them."""

Maker: TypeAlias = Callable[[int], Call]
"""Makes a contender for a number of threads."""


def exported(fn: Callable[..., Any], inputs: Sequence[torch.Tensor], folder: Path) -> Path:
    """The function as an ONNX file."""

    class Wrapped(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return fn(*args)

    path = folder / "exported.onnx"
    torch.onnx.export(Wrapped(), tuple(inputs), str(path), dynamo=True, verbose=False)
    return path


def copy_call(total: int) -> Call:
    """A copy that reads and writes `total` bytes together."""
    source = torch.ones(max(1, total // 8), dtype=torch.float32)
    target = torch.empty_like(source)
    return lambda: [target.copy_(source)]


def matmul_call() -> Call:
    """A float32 product of square matrices."""
    a, b = torch.randn(MATMUL, MATMUL), torch.randn(MATMUL, MATMUL)
    out = torch.empty(MATMUL, MATMUL)
    return lambda: [torch.mm(a, b, out=out)]


def error_of(found: Sequence[Any], exact: Sequence[torch.Tensor]) -> float:
    """The largest error over the outputs, relative to an output's root mean square."""
    worst = 0.0
    for f, e in zip(found, exact, strict=True):
        scale = math.sqrt(float((e**2).mean())) or 1.0
        error = float((f.to(torch.float64).reshape(e.shape) - e).abs().max()) / scale
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def suite_contenders(
    case: Case, request: Mapping[str, Any], folder: Path
) -> tuple[dict[str, Maker], list[torch.Tensor]]:
    """Name to a function that makes the call, and the exact results."""
    dtype = getattr(torch, request["dtype"])
    inputs = case.inputs(request["dtype"])
    (first, *_) = case.forms.values()
    exact = tensors_of(first(*(t.to(torch.float64) for t in inputs)))
    made: dict[str, Maker] = {}
    if request["module"]:
        made["prism"] = lambda n: module_call(Path(request["module"]), inputs, n)
    kinds = [(inputs, "")]
    if dtype is not torch.float32:
        kinds.append(([t.float() for t in inputs], " (float32)"))
    for given, note in kinds:
        for name, fn in case.forms.items():
            made[name + note] = eager_maker(fn, given)
        if request["inductor"]:
            made["torch.compile" + note] = compiled_maker(first, given)
        if request["onnxruntime"] and given[0].dtype is torch.float32:
            made["onnxruntime" + note] = onnx_maker(partial(exported, first, given, folder), given, request)
    return made, exact


def eager_maker(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Maker:
    """Calls the function as it is."""
    return lambda n: torch_call(fn, inputs)


def compiled_maker(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Maker:
    """Compiles the function first."""
    return lambda n: torch_call(torch.compile(fn, dynamic=False), inputs)


def onnx_maker(path: Callable[[], Path], inputs: Any, request: Mapping[str, Any]) -> Maker:
    """Runs the model at the path, which may have to be written first."""
    return lambda n: onnx_call(path(), inputs, n, request["processors"])


def example_contenders(request: Mapping[str, Any]) -> tuple[dict[str, Maker], list[torch.Tensor]]:
    """The same of an ONNX model."""
    from prism.api import load
    from prism.instantiate.gate.draws import draw_inputs
    from prism.program.evaluate import evaluate

    program = load(Path(request["model"]))
    drawn = draw_inputs(program, "normal", program.hints, 0)
    inputs = [drawn[t.name] for t in program.inputs]
    wide = evaluate(program, {n: t.to(torch.float64).numpy() for n, t in drawn.items()})
    exact = [torch.from_numpy(np.asarray(wide[n])) for n in program.outputs]
    run = native(program, inputs).forward
    made: dict[str, Maker] = {}
    if request["module"]:
        made["prism"] = lambda n: module_call(Path(request["module"]), inputs, n)
    made["torch eager"] = eager_maker(run, inputs)
    if request["inductor"]:
        made["torch.compile"] = compiled_maker(run, inputs)
    if request["onnxruntime"] and all(t.dtype is not torch.bfloat16 for t in inputs):
        held = {n: t.numpy() for n, t in drawn.items() if n not in program.weights}
        made["onnxruntime"] = onnx_maker(lambda: Path(request["model"]), held, request)
    return made, exact


def run(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Times one case: for each contender samples in seconds and its error, or why there are none; and the load."""
    torch.set_num_threads(threads())
    if request["model"]:
        makers, exact = example_contenders(request)
    else:
        (case,) = (c for c in CASES if c.name == request["case"])
        makers, exact = suite_contenders(case, request, folder)
    answer: dict[str, Any] = {}
    queue = Queue()
    ready: dict[tuple[str, int], Prepared] = {}
    for name, make in makers.items():
        for n in dict.fromkeys((threads(), 1)):
            turn = partial(torch.set_num_threads, n)
            try:
                turn()
                call = make(n)
                with torch.inference_mode():
                    prepared = Prepared(call, SETTLE_S, WARM_S, ready=turn, waited=queue if n == 1 else None)
            except Exception as error:
                answer[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
                break
            answer[name] = {"rms_error": error_of(prepared.results, exact)}
            ready[name, n] = prepared
    torch.set_num_threads(threads())
    rates = {
        "copy": Prepared(copy_call(int(request["bytes"])), SETTLE_S, WARM_S),
        "copy beyond the caches": Prepared(copy_call(DRAM_BYTES), SETTLE_S, WARM_S),
        "float32 product": Prepared(matmul_call(), SETTLE_S, WARM_S),
    }
    before = interleave([p.sample for p in rates.values()], RATE_SAMPLES)
    sides = [name for name, _ in ready]
    watch = Watch()
    with torch.inference_mode():
        samples = contest(list(ready.values()), sides, int(request["repeats"]), ROUNDS_S)
    load = watch.load(threads())
    torch.set_num_threads(threads())
    after = interleave([p.sample for p in rates.values()], RATE_SAMPLES)
    for (name, n), seconds in zip(ready, samples, strict=True):
        # On all threads or on one, whichever is faster: what runs on all stalls where a core is taken.
        known = answer[name].get("seconds")
        if known is None or quartiles(seconds)[0] < quartiles(known)[0]:
            answer[name] |= {"seconds": seconds, "threads": n}
    for name, early, late in zip(rates, before, after, strict=True):
        answer[name] = {"seconds": [*early, *late]}
    return {"contenders": answer, "load": asdict(load)}


def main() -> None:
    """Read the request, write the answer."""
    warnings.simplefilter("ignore")
    given, out = map(Path, sys.argv[1:])
    out.write_text(json.dumps(run(json.loads(given.read_text()), out.parent)))


if __name__ == "__main__":
    main()
