"""One case of `benchmarks/by_hand.py`, timed as a user would: torch, onnxruntime and the emitted module, no prism.

    python benchmarks/by_hand_child.py REQUEST.json ANSWER.json

The loop is written out here, on purpose: it shares no line with what `prism optimize` times by.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.by_hand_cases import CASES, EXAMPLES

WARM_S = 0.02
"""For about how long calls before a block do not count, seconds; at least one does not."""
PAUSE_S = 0.05
"""Between blocks, seconds: threads that one library left spinning are no other one's fault."""


def contenders(request: dict[str, Any]) -> tuple[dict[str, tuple[int, Callable[[], Any]]], dict[str, str], float]:
    """Name to threads and call, what could not be called, and how far the module's result is from torch's."""
    folder = Path(request["folder"])
    report = json.loads((folder / "report.json").read_text())
    sys.path.insert(0, str(folder))
    launch = getattr(importlib.import_module(report["name"]), report["name"])
    case = next((c for c in CASES if c.name == request["case"]), None)
    if case is not None:
        fn, inputs = case.fn, case.inputs(1)
    else:
        held = folder / "weights.pt"
        fn = EXAMPLES[request["case"]](torch.load(held) if held.exists() else {})
        g = torch.Generator().manual_seed(1)
        inputs = []
        for a in report["arguments"]:
            x = torch.randn(a["shape"], generator=g)
            wide = len(a["shape"]) == 2 and inputs and a["shape"] != list(inputs[0].shape)
            inputs.append((x * a["shape"][0] ** -0.5 if wide else x).to(getattr(torch, a["dtype"])))
    wanted = fn(*inputs)
    found = launch(*inputs)
    far = float((found.double() - wanted.double()).abs().max() / wanted.double().pow(2).mean().sqrt())
    made: dict[str, tuple[int, Callable[[], Any]]] = {}
    missing: dict[str, str] = {}
    for n in dict.fromkeys((1, torch.get_num_threads())):
        compiled = torch.compile(fn, dynamic=False)
        made[f"prism {n}"] = n, partial(launch, *inputs, threads=n)
        made[f"torch eager {n}"] = n, partial(fn, *inputs)
        made[f"torch.compile {n}"] = n, partial(compiled, *inputs)
        torch.set_num_threads(n)
        compiled(*inputs)
        try:
            made[f"onnxruntime {n}"] = n, session(request["model"], inputs, n)
        except Exception as error:  # what it does not know, it cannot be compared with
            missing["onnxruntime"] = str(error)[:200]
    return made, missing, far


def session(model: str, inputs: list[torch.Tensor], threads: int) -> Callable[[], Any]:
    """onnxruntime as its documentation shows it."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    made = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {i.name: x.numpy() for i, x in zip(made.get_inputs(), inputs, strict=True)}
    made.run(None, feed)
    return lambda: made.run(None, feed)


def block(call: Callable[[], Any], block_s: float, call_s: float) -> tuple[float, float]:
    """Seconds a call, over calls that together take about so long, and those for which this thread had a core."""
    count = max(1, round(block_s / call_s))
    start, core = time.perf_counter(), time.thread_time()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count, (time.thread_time() - core) / count


def main() -> None:
    """Read the request, write the answer."""
    warnings.simplefilter("ignore")
    given, out = map(Path, sys.argv[1:])
    request = json.loads(given.read_text())
    with torch.inference_mode():
        made, missing, far = contenders(request)
        call_s = {}
        for name, (n, call) in made.items():
            torch.set_num_threads(n)
            call_s[name] = min(block(call, 0.0, 1.0)[0] for _ in range(5))
        samples: dict[str, list[float]] = {name: [] for name in made}
        core: dict[str, list[float]] = {name: [] for name, (n, _) in made.items() if n == 1}
        rng = random.Random(0)
        end = time.monotonic() + request["seconds"]
        while time.monotonic() < end or len(samples[next(iter(made))]) < 8:
            # Each round in another order: whose threads still spin is another one's neighbour each time.
            turns = list(made.items())
            rng.shuffle(turns)
            for name, (n, call) in turns:
                torch.set_num_threads(n)
                time.sleep(PAUSE_S)
                for _ in range(max(1, round(WARM_S / call_s[name]))):
                    call()
                seconds, own = block(call, request["block_s"], call_s[name])
                samples[name].append(seconds)
                if name in core:
                    core[name].append(own)
    out.write_text(json.dumps({"samples": samples, "core": core, "missing": missing, "far": far}))


if __name__ == "__main__":
    main()
