"""A stand-in for a GPU, so that the code that drives one runs where none is: kernels in Triton's interpreter.

    python tests/stand_in_gpu.py smoke|measure FOLDER ...       benchmarks/gpu.py, its children on the stand-in

Tensors that are asked for on `cuda` lie in the CPU's memory. Streams run what they are given at once. A captured graph
holds what torch and Triton were asked while it was captured, and a replay asks it again and writes the results where
the graph's first run had them. torch.compile is the function as it is. Times are the clock's and mean nothing, and the
results say so: `describe` tells that kernels are interpreted.

The memory is small, so that inputs rotate over several copies that share it, and large products are small ones.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHILD = "--child"
MEMORY_BYTES, L2_BYTES = 64 << 20, 1 << 10

Step = Callable[[], None]


def install() -> None:
    """Put the stand-in in the place of torch's CUDA in this process, which interprets kernels."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils import _python_dispatch
    from torch.utils._pytree import tree_leaves
    from triton import knobs
    from triton.runtime.interpreter import InterpretedFunction

    knobs.runtime.interpret = True  # whatever a child makes of its environment

    capturing: list[list[Step]] = []

    class OnTheCpu(TorchFunctionMode):
        """What is asked of `cuda` is asked of the CPU."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = dict(kwargs or {})
            if str(named.get("device", "")).startswith("cuda"):
                named["device"] = "cpu"
            if function is torch.Tensor.cuda:
                return args[0].clone()
            return function(*("cpu" if isinstance(a, str) and a.startswith("cuda") else a for a in args), **named)

    class Recording(_python_dispatch.TorchDispatchMode):
        """Every operator that writes or returns a tensor is a step of the graph."""

        def __init__(self, steps: list[Step]) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.steps = steps

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = kwargs or {}
            made = function(*args, **named)
            first = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor)]

            def again() -> None:
                later = [t for t in tree_leaves(function(*args, **named)) if isinstance(t, torch.Tensor)]
                for before, now in zip(first, later, strict=True):
                    if before.data_ptr() != now.data_ptr():
                        before.copy_(now)

            self.steps.append(again)
            return made

    run = InterpretedFunction.run

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("warmup") or not capturing:
            return run(self, *args, **kwargs)
        # Of what a kernel does itself nothing is a step.
        with _python_dispatch._disable_current_modes(), OnTheCpu():
            run(self, *args, **kwargs)
        capturing[-1].append(lambda: run(self, *args, **kwargs))
        return None

    class Stream:
        cuda_stream, device = 0, torch.device("cpu")

        def wait_stream(self, other: Stream) -> None:
            assert isinstance(other, Stream)

        def synchronize(self) -> None:
            """All is done by then."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = time.perf_counter()

        def synchronize(self) -> None:
            """All is done by then."""

        def elapsed_time(self, other: Event) -> float:
            return 1e3 * (other.at - self.at)

    class CUDAGraph:
        def __init__(self) -> None:
            self.steps: list[Step] = []

        def replay(self) -> None:
            for step in self.steps:
                step()

    @contextmanager
    def graph(held: CUDAGraph, stream: Stream | None = None) -> Iterator[None]:
        capturing.append(held.steps)
        try:
            with Recording(held.steps):
                yield
        finally:
            capturing.pop()

    @contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        yield

    class Generator(torch.Generator):
        def __new__(cls, device: object = None) -> Generator:
            return super().__new__(cls)

    main = Stream()
    properties = SimpleNamespace(
        name="a stand-in for a GPU",
        major=9,
        minor=0,
        multi_processor_count=2,
        L2_cache_size=L2_BYTES,
        total_memory=MEMORY_BYTES,
    )
    InterpretedFunction.run = launch
    torch.Generator = Generator  # type: ignore[misc]
    torch.compile = lambda function, **_: function  # type: ignore[assignment]
    cuda: Any = torch.cuda
    cuda.Stream, cuda.Event, cuda.CUDAGraph, cuda.graph, cuda.stream = Stream, Event, CUDAGraph, graph, stream
    cuda.current_stream = lambda device=None: main
    cuda.is_current_stream_capturing = lambda: bool(capturing)
    cuda.synchronize = cuda.empty_cache = lambda: None
    cuda.get_device_properties = lambda n: properties
    cuda.mem_get_info = lambda: (MEMORY_BYTES, MEMORY_BYTES)
    OnTheCpu().__enter__()  # type: ignore[no-untyped-call]
    # Launchers ask what kernels are compiled for.
    sys.path.insert(0, str(ROOT))
    from prism.backends.triton.named_target import compile_for

    compile_for(f"sm_{properties.major}{properties.minor}")


def main(argv: list[str]) -> int:
    """The child on the stand-in, or benchmarks/gpu.py with such children."""
    if argv[0] == CHILD:
        install()
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return 0
    sys.path.insert(0, str(ROOT))
    from benchmarks import gpu
    from prism.bench import measure

    setattr(measure, "module_command", child_command)  # noqa: B010
    return gpu.main(argv)


def child_command(module: str = "prism.bench.child") -> list[str]:
    """What starts a module as a child that drives the stand-in."""
    return [sys.executable, str(Path(__file__).resolve()), CHILD, module]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
