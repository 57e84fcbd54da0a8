"""One case of `benchmarks/cpu.py` against the clock, in a process of its own: threads pinned, memory kept.

    python benchmarks/cpu_child.py REQUEST.json ANSWER.json

All contenders take the same inputs, are called in turn (`interleave`), and are checked against float64 before. Before
and after the rounds memory is copied: as many bytes as the case's inputs and outputs have, and more than the caches
hold. What a contender writes it may allocate: the allocator keeps what it has been given, so pages are touched once.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from benchmarks.cpu_cases import CASES, Case
from benchmarks.cpu_report import DRAM_BYTES
from prism.backends.triton.timing import interleave
from prism.instantiate.cpu_backend import launcher
from prism.instantiate.cpu_worker import threads
from prism.instantiate.rounds import Prepared, rounds

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

Call = Callable[[], Sequence[Any]]


def tensors_of(result: Any) -> list[torch.Tensor]:
    """A function's result as a list."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def torch_call(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Call:
    """A torch function on these inputs."""

    def call() -> Sequence[Any]:
        with torch.inference_mode():
            return tensors_of(fn(*inputs))

    return call


def module_call(module: str, inputs: Sequence[torch.Tensor], like: Sequence[torch.Tensor], dtype: torch.dtype) -> Call:
    """prism's module on these inputs, its outputs allocated once."""
    launch = launcher(Path(module))
    out = tuple(torch.full(t.shape, float("nan"), dtype=dtype) for t in like)
    n = threads()

    def call() -> Sequence[Any]:
        launch(*inputs, out=out, threads=n)
        return out

    return call


def onnx_call(path: Path, inputs: Mapping[str, np.ndarray] | Sequence[torch.Tensor], processors: Sequence[int]) -> Call:
    """onnxruntime on a model, inputs and outputs bound once, its threads to these processors."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads()
    options.inter_op_num_threads = 1
    if os.environ.get("OMP_PROC_BIND", "false") != "false" and 1 < threads() <= len(processors):
        # OpenMP has bound this thread to the first place, and a thread that it starts would be bound to it, too.
        others = ";".join(str(n + 1) for n in processors[1 : threads()])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    given = inputs if isinstance(inputs, Mapping) else dict(zip(names, (t.numpy() for t in inputs), strict=True))
    binding = session.io_binding()
    for name in names:
        binding.bind_cpu_input(name, np.ascontiguousarray(given[name]))
    for o, value in zip(session.get_outputs(), session.run(None, {n: given[n] for n in names}), strict=True):
        held = ort.OrtValue.ortvalue_from_numpy(value)
        binding.bind_ortvalue_output(o.name, held)

    def call() -> Sequence[Any]:
        session.run_with_iobinding(binding)
        return [torch.from_numpy(o.numpy()) for o in binding.get_outputs()]

    return call


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


def suite_contenders(case: Case, request: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Name to a function that makes the call, and the exact results."""
    dtype = getattr(torch, request["dtype"])
    inputs = case.inputs(request["dtype"])
    (first, *_) = case.forms.values()
    exact = tensors_of(first(*(t.to(torch.float64) for t in inputs)))
    made: dict[str, Any] = {}
    if request["module"]:
        made["prism"] = lambda: module_call(request["module"], inputs, exact, dtype)
    kinds = [(inputs, "")]
    if dtype is not torch.float32:
        kinds.append(([t.float() for t in inputs], " (float32)"))
    for given, note in kinds:
        for name, fn in case.forms.items():
            made[name + note] = lambda fn=fn, given=given: torch_call(fn, given)
        if request["inductor"]:
            made["torch.compile" + note] = lambda given=given: torch_call(torch.compile(first, dynamic=False), given)
        if request["onnxruntime"] and given[0].dtype is torch.float32:
            made["onnxruntime" + note] = lambda given=given: onnx_call(
                exported(first, given, folder), given, request["processors"]
            )
    return made, exact


def example_contenders(request: Mapping[str, Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The same of an ONNX model."""
    from prism.api import load
    from prism.backends.eager import eager
    from prism.instantiate.draws import draw_inputs
    from prism.program.evaluate import evaluate

    program = load(Path(request["model"]))
    drawn = draw_inputs(program, "normal", program.hints, 0)
    inputs = [drawn[t.name] for t in program.inputs]
    wide = evaluate(program, {n: t.to(torch.float64).numpy() for n, t in drawn.items()})
    exact = [torch.from_numpy(np.asarray(wide[n])) for n in program.outputs]
    (dtype,) = {getattr(torch, program.tensor(n).dtype.value) for n in program.outputs}
    run = eager(program)
    made: dict[str, Any] = {}
    if request["module"]:
        made["prism"] = lambda: module_call(request["module"], inputs, exact, dtype)
    made["torch eager"] = lambda: torch_call(run, inputs)
    if request["inductor"]:
        made["torch.compile"] = lambda: torch_call(torch.compile(run, dynamic=False), inputs)
    if request["onnxruntime"] and all(t.dtype is not torch.bfloat16 for t in inputs):
        held = {n: t.numpy() for n, t in drawn.items() if n not in program.weights}
        made["onnxruntime"] = lambda: onnx_call(Path(request["model"]), held, request["processors"])
    return made, exact


def run(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Times one case: for each contender samples in seconds and its error, or why there are none."""
    torch.set_num_threads(threads())
    if request["model"]:
        makers, exact = example_contenders(request)
    else:
        (case,) = (c for c in CASES if c.name == request["case"])
        makers, exact = suite_contenders(case, request, folder)
    answer: dict[str, Any] = {}
    ready: dict[str, Prepared] = {}
    for name, make in makers.items():
        try:
            prepared = Prepared(make(), SETTLE_S, WARM_S)
        except Exception as error:
            answer[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            continue
        answer[name] = {"rms_error": error_of(prepared.results, exact)}
        ready[name] = prepared
    rates = {
        "copy": Prepared(copy_call(int(request["bytes"])), SETTLE_S, WARM_S),
        "copy beyond the caches": Prepared(copy_call(DRAM_BYTES), SETTLE_S, WARM_S),
        "float32 product": Prepared(matmul_call(), SETTLE_S, WARM_S),
    }
    before = interleave([p.sample for p in rates.values()], RATE_SAMPLES)
    samples = interleave(
        [p.sample for p in ready.values()], rounds(list(ready.values()), int(request["repeats"]), ROUNDS_S)
    )
    after = interleave([p.sample for p in rates.values()], RATE_SAMPLES)
    for name, seconds in zip(ready, samples, strict=True):
        answer[name]["seconds"] = seconds
    for name, early, late in zip(rates, before, after, strict=True):
        answer[name] = {"seconds": [*early, *late]}
    return answer


def main() -> None:
    """Read the request, write the answer."""
    warnings.simplefilter("ignore")
    given, out = map(Path, sys.argv[1:])
    out.write_text(json.dumps(run(json.loads(given.read_text()), out.parent)))


if __name__ == "__main__":
    main()
