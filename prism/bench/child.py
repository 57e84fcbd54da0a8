"""The child that runs contenders on the device: one request, a line an event, in a process that may be lost.

It imports torch, triton and what needs nothing else. Requests are JSON lines on standard input,
answers JSON lines on a private copy of standard output: `{"event": "begin", ...}` before each contender, so that the
parent knows whom to blame for a crash or a hang, then one `{"event": "done", ...}`.

Timing: one CUDA graph a contender holds many calls in a row, over copies of the inputs that together exceed the L2
cache; the graphs are replayed in turn, each round beginning with another contender; outputs are poisoned before the
first timed replay and checked against float64 after the last. Without a GPU the same path runs in Triton's interpreter
(`device` is `interpreter`), where its times mean nothing.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from prism.backends.interleave import interleave
from prism.backends.loading import load_module
from prism.backends.triton.named_target import compile_for
from prism.backends.triton.replay import (
    WARM_UP_REPLAYS,
    GraphReplay,
    copies,
    event,
    give_up_if_sticky,
    poison,
    shared_calls,
)
from prism.instantiate.gate.factors import ratios
from prism.process.serve import one_line, private_output

Request: TypeAlias = Mapping[str, Any]
Event: TypeAlias = dict[str, Any]

MEMORY_PART = 0.25
"""The part of the device's memory that the copies of the inputs may take."""
TRIAL_REPLAYS = 5
SEED = 20240607
LARGE = 1e30
"""In place of an infinite error, which JSON does not have."""


def draw(specs: Sequence[Mapping[str, Any]], device: str, seed: int = SEED) -> list[Any]:
    """The inputs: normal with the given deviation and mean; integers from 0 to `below`, or over their whole range."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    made = []
    for s in specs:
        dtype = getattr(torch, s["dtype"])
        if dtype.is_floating_point:
            x = torch.randn(s["shape"], generator=generator, device=device, dtype=torch.float32)
            made.append(x.mul_(s["scale"]).add_(s["offset"]).to(dtype))
            continue
        low, high = 0, s["below"]
        if high is None:
            low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1
        made.append(torch.randint(low, high, s["shape"], generator=generator, device=device).to(dtype))
    return made


def flat(outputs: Any) -> list[Any]:
    """Outputs as a list."""
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def errors(result: Any, exact: Any) -> tuple[float, float]:
    """(RMS, maximal) error, relative to the RMS of the exact values row by row (a row is the last dimension)."""
    import torch

    found = result.to(torch.float64)
    if not bool(torch.isfinite(found).all()):
        return math.inf, math.inf
    overall = float(exact.pow(2).mean().sqrt())
    rows = exact.pow(2).mean(-1, keepdim=True).sqrt() if exact.dim() else exact.abs()
    scale = torch.where(rows > 1e-6 * overall, rows, torch.full_like(rows, overall or 1.0))
    difference = (found - exact).abs() / scale
    return float(difference.pow(2).mean().sqrt()), float(difference.max())


def judge(result: Any, exact: Any, eager: Any) -> float:
    """How large the error is, as a multiple of what is allowed (passes up to 1): by the rule of the numeric gate."""
    import torch

    if result.shape != exact.shape:
        return LARGE
    roundoff = torch.finfo(eager.dtype).eps / 2
    rms, largest = errors(result, exact)
    their_rms, their_largest = errors(eager, exact)
    if not math.isfinite(their_rms):
        their_rms, their_largest = 0.0, 0.0
    return min(LARGE, max(ratios(rms, largest, their_rms, their_largest, roundoff)))


class Runner:
    """Times calls on the device of a request."""

    def __init__(self, device: str) -> None:
        import torch

        self.interpreting = device == "interpreter"
        self.device = "cpu" if self.interpreting else "cuda"
        self.l2_bytes = 0
        if not self.interpreting:
            self.l2_bytes = int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 60 << 20)

    def rotation(self, set_bytes: int) -> int:
        """How many copies of the inputs."""
        import torch

        if self.interpreting:
            return 1
        return copies(set_bytes, self.l2_bytes, MEMORY_PART * torch.cuda.mem_get_info()[0])

    def prepare(self, launch: Callable[[int], Sequence[Any]], rotation: int, arrivals: Any = None) -> Prepared:
        """A contender's calls, ready to be replayed; `launch(n)` makes the call on copy n and returns its outputs.

        `arrivals` is GraphArrivals of emitted modules that have it.
        """
        return _Clocked(launch) if self.interpreting else GraphReplay(launch, rotation, arrivals)


class Prepared(Protocol):
    """A contender that can be replayed."""

    rotation: int  # copies of the inputs
    calls: int  # that a replay makes
    call_s: float  # seconds of one
    outputs: Sequence[Any]  # of the last

    def capture(self, calls: int) -> None:
        """Make so many calls a replay from now on."""

    def replay(self) -> float:
        """Replay once: seconds a call."""


class _Clocked:
    """Without a GPU: one call, by the clock."""

    def __init__(self, launch: Callable[[int], Sequence[Any]]) -> None:
        self._launch = launch
        self.rotation = self.calls = 1
        self.call_s = self.replay()

    def capture(self, calls: int) -> None:
        """There is always one."""

    def replay(self) -> float:
        """Seconds of one call."""
        start = time.perf_counter()
        self.outputs = self._launch(0)
        return time.perf_counter() - start


class Bench:
    """One case on the device: inputs and their copies, exact and eager results."""

    def __init__(self, request: Request) -> None:
        import torch

        self.record: Mapping[str, Any] = request["case"]
        self.folder = Path(request["folder"])
        self.runner = Runner(request["device"])
        if not self.runner.interpreting:
            gc.collect()
            torch.cuda.empty_cache()  # of the case before
        first = draw(self.record["inputs"], self.runner.device)
        self.function = reference(self.record, self.folder)
        with torch.no_grad():
            self.eager = [t.clone() for t in flat(self.function(*first))]
            self.exact = self._exact(first)
        if not self.runner.interpreting:
            torch.cuda.empty_cache()
        made = sum(t.numel() * t.element_size() for t in first)
        many = self.runner.rotation(made)
        self.inputs = [first, *([t.clone() for t in first] for _ in range(many - 1))]

    @property
    def rotation(self) -> int:
        """Copies of the inputs."""
        return len(self.inputs)

    def _exact(self, inputs: Sequence[Any]) -> list[Any]:
        """The results in float64, from the same rounded inputs."""
        import torch

        if "program" not in self.record:
            return exact_results(self.function, inputs)
        from prism.program.evaluate import evaluate

        program = load_program(self.folder / self.record["program"])
        names = [t.name for t in program.inputs]
        given = {n: t.to(torch.float64).cpu().numpy() for n, t in zip(names, inputs, strict=True)}
        found = evaluate(program, given)
        return [torch.from_numpy(found[n]).to(self.runner.device) for n in program.outputs]

    def module(self, candidate: int, config: Mapping[str, Any]) -> Prepared:
        """A candidate under a configuration; its outputs rotate with the inputs."""
        launch, arrivals = self.launching(candidate, config)
        return self.runner.prepare(launch, self.rotation, arrivals)

    def launching(self, candidate: int, config: Mapping[str, Any]) -> tuple[Callable[[int], Sequence[Any]], Any]:
        """(what calls a candidate on copy n of the inputs and returns its outputs, its GraphArrivals or None)."""
        import torch

        c = self.record["candidates"][candidate]
        module = load_module(self.folder / c["module"])
        outputs = [
            [torch.empty(o["shape"], dtype=getattr(torch, o["dtype"]), device=self.runner.device) for o in self._outs]
            for _ in self.inputs
        ]

        def launch(n: int) -> Sequence[Any]:
            given = [self.inputs[n][place] for place in c["takes"]]
            for kernel, grid, args, meta in module.launches(*given, *outputs[n], config=config):
                kernel[tuple(grid)](*args, **meta)
            return outputs[n]

        return launch, getattr(module, "GraphArrivals", None)

    @property
    def _outs(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.record["outputs"]
        return found

    def baseline(self, name: str) -> Prepared:
        """A baseline; raises when there is none or its library is missing."""
        import torch

        made = contender(name, self.record, self.folder)
        with torch.no_grad():
            prepared = [made.setup(given) for given in self.inputs]

            def launch(n: int) -> Sequence[Any]:
                with torch.no_grad():
                    return flat(made.call(*prepared[n]))

            return self.runner.prepare(launch, self.rotation)

    def error(self, outputs: Sequence[Any]) -> float:
        """The worst output's error as a multiple of what is allowed."""
        if len(outputs) != len(self.exact):
            return LARGE
        return max(judge(o, x, e) for o, x, e in zip(outputs, self.exact, self.eager, strict=True))


def contender(name: str, record: Mapping[str, Any], folder: Path) -> Any:
    """A baseline of a case."""
    from prism.bench.baselines import COMPILED, EAGER, Baseline, baseline, compiled

    if name == COMPILED:
        import torch

        # Every case is compiled on its own, for its shapes: no limit on recompilation is ever met.
        torch._dynamo.reset()
    if name in (EAGER, COMPILED):
        function = reference(record, folder)
        return Baseline(function if name == EAGER else compiled(function, record["mode"]))
    return baseline(name, record["function"])


def reference(record: Mapping[str, Any], folder: Path) -> Callable[..., Any]:
    """The function that a case computes: of its module, or of a program that lies in the folder."""
    if "program" in record:
        from prism.backends.eager import eager

        return eager(load_program(folder / record["program"]))
    found: Callable[..., Any] = getattr(importlib.import_module(record["module"]), record["function"])
    return found


def load_program(path: Path) -> Any:
    """A program that `prism bench` wrote, in a folder of its own; nothing else is ever unpickled."""
    import pickle

    return pickle.loads(path.read_bytes())


def exact_results(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """The results in float64, from the same rounded inputs."""
    import torch

    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    return [t.to(torch.float64) for t in flat(function(*wide))]


def trials(request: Request) -> Iterator[Event]:
    """Time each configuration of each candidate a little, the most promising first, until time is up."""
    bench = Bench(request)
    record, until = bench.record, time.monotonic() + float(request["seconds"])
    skip = {(s[0], s[1]) for s in request["skip"]}
    order = [
        (e["estimate_us"], n, m)
        for n, c in enumerate(record["candidates"])
        for m, e in enumerate(c["configs"])
        if "error" not in e and (n, m) not in skip
    ]
    for _, n, m in sorted(order):
        if time.monotonic() > until:
            break
        yield {"event": "begin", "trial": [n, m]}
        try:
            prepared = bench.module(n, record["candidates"][n]["configs"][m]["config"])
            prepared.capture(shared_calls([prepared.call_s], prepared.rotation))
            poison(prepared.outputs)
            seconds = sorted(prepared.replay() for _ in range(TRIAL_REPLAYS))[TRIAL_REPLAYS // 2]
            wrong = bench.error(prepared.outputs)
            yield {"event": "trial", "trial": [n, m], "us": 1e6 * seconds, "error": wrong}
        except Exception as error:
            give_up_if_sticky(error)
            yield {"event": "failed", "trial": [n, m], "why": one_line(error)}


def smoke(request: Request) -> Iterator[Event]:
    """Call configurations twice each, without a graph, and look at what they compute."""
    import torch

    bench = Bench(request)
    for n, m in request["trials"]:
        yield {"event": "begin", "trial": [n, m]}
        try:
            config = bench.record["candidates"][n]["configs"][m]["config"]
            launch, _ = bench.launching(n, config)
            wrong = 0.0
            for _ in range(2):
                # The second call finds what the first has left: counts of programs that have arrived, for one.
                outputs = launch(0)
                if not bench.runner.interpreting:
                    torch.cuda.synchronize()
                wrong = max(wrong, bench.error(outputs))
                poison(outputs)
            yield {"event": "trial", "trial": [n, m], "error": wrong}
        except Exception as error:
            give_up_if_sticky(error)
            yield {"event": "failed", "trial": [n, m], "why": one_line(error)}


def confirm(request: Request) -> Iterator[Event]:
    """The winners against the baselines, interleaved; every time is of a run whose outputs were checked."""
    bench = Bench(request)
    ready: list[tuple[str, Prepared]] = []
    for name in request["contenders"]:
        yield {"event": "begin", "contender": name}
        try:
            if name.startswith("prism "):
                n, m = map(int, name.split()[1:3])
                prepared = bench.module(n, bench.record["candidates"][n]["configs"][m]["config"])
            else:
                prepared = bench.baseline(name)
            ready.append((name, prepared))
        except Exception as error:
            give_up_if_sticky(error)
            yield {"event": "failed", "contender": name, "why": one_line(error)}
    prepared_all, ready = ready, []
    times = [p.call_s for _, p in prepared_all]
    for name, prepared in prepared_all:
        yield {"event": "begin", "contender": name}
        try:
            prepared.capture(shared_calls(times, prepared.rotation))
            for _ in range(WARM_UP_REPLAYS):
                prepared.replay()
            poison(prepared.outputs)
            ready.append((name, prepared))
        except Exception as error:
            give_up_if_sticky(error)
            yield {"event": "failed", "contender": name, "why": one_line(error)}
    yield {"event": "begin", "contender": ""}
    until = time.monotonic() + float(request["seconds"])
    samples = interleave([p.replay for _, p in ready], int(request["rounds"]), until)
    for (name, p), found in zip(ready, samples, strict=True):
        yield {
            "event": "timed",
            "contender": name,
            "samples_us": [1e6 * s for s in found],
            "calls": p.calls,
            "rotation": bench.rotation,
            "error": bench.error(p.outputs),
        }


def compile_ahead(request: Request) -> Iterator[Event]:
    """Compile a candidate's configurations, or a baseline's kernels, into the disk caches.

    For the device that is here with what launches them, so that the first call finds all; or for a named target.
    """
    import torch

    here = request["device"] == "cuda"
    if not here:
        compile_for(request["device"])
    record = request["case"]
    if request.get("baseline"):
        yield {"event": "begin", "contender": request["baseline"]}
        made = contender(request["baseline"], record, Path(request["folder"]))
        with torch.no_grad():
            flat(made.call(*made.setup(draw(record["inputs"], Runner(request["device"]).device))))
        return
    c = record["candidates"][request["candidate"]]
    module = load_module(Path(request["folder"]) / c["module"])
    given = [record["inputs"][place] for place in c["takes"]]
    tensors = [
        torch.empty(s["shape"], dtype=getattr(torch, s["dtype"]), device="meta") for s in (*given, *record["outputs"])
    ]
    for m, entry in enumerate(c["configs"]):
        trial = [request["candidate"], m]
        if "error" in entry or trial in request["skip"]:
            continue
        yield {"event": "begin", "trial": trial}
        try:
            for kernel, _grid, args, meta in module.launches(*tensors, config=entry["config"]):
                built = kernel.warmup(*args, grid=(1,), **meta)
                if here and built is not None:
                    # Triton compiles the code that launches a kernel, in C, when it is first launched.
                    built._init_handles()
            yield {"event": "compiled", "trial": trial}
        except Exception as error:
            give_up_if_sticky(error)
            yield {"event": "failed", "trial": trial, "why": one_line(error)}


def describe(request: Request) -> Iterator[Event]:
    """The device and the versions."""
    import platform

    import numpy
    import torch
    import triton

    found: Event = {
        "event": "device",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "numpy": numpy.__version__,
        },
        "device": {"name": "Triton's interpreter"},
        "interpreted": os.environ.get("TRITON_INTERPRET") == "1",
    }
    for library in ("liger_kernel", "helion"):
        if importlib.util.find_spec(library) is not None:
            from importlib.metadata import metadata

            found["versions"][library] = metadata(library)["Version"]
    if request["device"] != "interpreter":
        p = torch.cuda.get_device_properties(0)
        found["versions"]["cuda"] = str(torch.version.cuda)
        found["versions"]["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        found["device"] = {
            "name": p.name,
            "target": f"sm_{p.major}{p.minor}",
            "multiprocessors": p.multi_processor_count,
            "l2_bytes": int(getattr(p, "L2_cache_size", 0) or 0),
            "memory_bytes": int(p.total_memory),
        }
        found["ceilings"] = ceilings()
    yield found


def ceilings() -> dict[str, float]:
    """What the card reaches now: bytes a second of a large copy (read and written), operations of a large product.

    Both take a part of the memory that is free.
    """
    import torch

    size = min(2 << 30, torch.cuda.mem_get_info()[0] // 8)
    side = min(8192, math.isqrt(size // 16))
    source = torch.empty(size, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def fastest(work: Callable[[], Any]) -> float:
        times = []
        for _ in range(8):
            start, end = event(), event()
            start.record()
            work()
            end.record()
            end.synchronize()
            times.append(float(start.elapsed_time(end)) * 1e-3)
        return sorted(times[3:])[2]

    copied = 2 * source.numel() / fastest(lambda: target.copy_(source))
    return {"copy_bytes_s": copied, "dot_flops": 2 * side**3 / fastest(lambda: torch.mm(a, b))}


HANDLERS: Mapping[str, Callable[[Request], Iterator[Event]]] = {
    "describe": describe,
    "compile": compile_ahead,
    "smoke": smoke,
    "trials": trials,
    "confirm": confirm,
}


def main() -> int:
    """Serve requests until standard input ends."""
    answers = os.fdopen(private_output(), "w", encoding="utf-8")

    def say(event: Event) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    if os.environ.get("TRITON_INTERPRET") == "1":
        from prism.backends.triton.interpreter import harden

        harden()
    for line in sys.stdin:
        request: Request = json.loads(line)
        try:
            for event in HANDLERS[request["op"]](request):
                say(event)
            say({"event": "done"})
        except Exception as error:
            give_up_if_sticky(error)
            say({"event": "done", "error": one_line(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
