"""What is timed on a CPU, as functions that make one call: emitted modules, torch in several ways, onnxruntime.

A baseline is what a user of the same model would run: the function that was traced, the model's operators by torch's
own calls (`native`), either of them compiled by torch, or the ONNX file in onnxruntime.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import torch

from prism.backends.cpu.running import bound_call, launcher
from prism.backends.tensors import numbers
from prism.instantiate.rounds import ENDLESS_S, Prepared
from prism.sgraph.config import Config

BEATS = 120
"""Of a limit in time; it is kept to one of them."""
Call: TypeAlias = Callable[[], Sequence[Any]]


def tensors_of(result: Any) -> list[torch.Tensor]:
    """A function's result as a list."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def torch_call(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Call:
    """A torch function on these inputs; to be called in inference mode, which takes time to enter."""
    return lambda: tensors_of(fn(*inputs))


def module_call(
    module: Path, inputs: Sequence[torch.Tensor], threads: int, config: Any = None, weights: Sequence[int] = ()
) -> Call:
    """An emitted module as its user calls it: the outputs are its own, and so are the weights, at these places."""
    launch = launcher(module)
    if weights:
        launch.__globals__["hold"]([inputs[n] for n in weights])

    def call() -> Sequence[Any]:
        return tensors_of(launch(*inputs, config=config, threads=threads))

    return call


def onnx_call(
    path: Path, inputs: Sequence[torch.Tensor] | Mapping[str, Any], threads: int, processors: Sequence[int] = ()
) -> Call:
    """onnxruntime on a model, called as its documentation has it: it makes its outputs at each call, as kernels do.

    Inputs are by name, or in the order of the model's; where threads are pinned, `processors` are those that its
    threads are pinned to.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if os.environ.get("OMP_PROC_BIND", "false") != "false" and 1 < threads <= len(processors):
        # OpenMP has bound this thread to the first place, and a thread that it starts would be bound to it, too.
        others = ";".join(str(n + 1) for n in processors[1:threads])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    given = inputs if isinstance(inputs, Mapping) else dict(zip(names, map(np.asarray, inputs), strict=True))
    feed = {name: np.asarray(given[name], order="C") for name in names}

    def call() -> Sequence[Any]:
        return [_tensor(found) for found in session.run(None, feed)]

    return call


def _tensor(found: Any) -> Any:
    """An array of numbers as a tensor; anything else as it is."""
    return torch.from_numpy(found) if isinstance(found, np.ndarray) and found.dtype.kind in "biuf" else found


def compared(results: Sequence[Any]) -> list[torch.Tensor]:
    """Results as copies that can be compared elsewhere."""
    found: list[torch.Tensor] = []
    for x in results:
        found += (
            [x.detach().clone()] if isinstance(x, torch.Tensor) else [torch.from_numpy(a.copy()) for a in numbers(x)]
        )
    return found


def assembled(module: Path, threads: int) -> Callable[[Sequence[torch.Tensor]], list[Any]]:
    """A whole model of an output folder as a function; its arrays are handed over as their user would."""
    spec = importlib.util.spec_from_file_location(f"prism_assembled_{threads}", module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    model = loaded.load(threads=threads)

    def call(inputs: Sequence[torch.Tensor]) -> list[Any]:
        found = model(*map(np.asarray, inputs))
        return [_tensor(y) for y in (found if isinstance(found, tuple) else (found,))]

    return call


def _picked(call: Call, places: Sequence[int]) -> Sequence[Any]:
    """Of all that the source returns, what the program does."""
    results = call()
    return [results[n] for n in places]


def why_not_compiled(error: Exception) -> str:
    """What torch's compiler says; where a C++ compiler failed, its reason without its command, which is far longer."""
    said, _, rest = str(error).partition("\n\nCommand:")
    output = rest.partition("Output:\n")[2].partition("\n\n")[0].splitlines()
    lines = [line for line in output if "error" in line or "cannot" in line] or output
    if not lines:
        return f"{type(error).__name__}: {said}"
    folder = Path(torch.__file__).parent
    spaced = (
        f" (torch lies in {str(folder)!r}: its compiler fails where a path has spaces)" if " " in str(folder) else ""
    )
    return f"{said}: {lines[0]}{spaced}"


@contextmanager
def _limited(seconds: float | None, what: str) -> Iterator[None]:
    """Interrupt what takes longer.

    Beats are counted, of which one that stands still misses all but one: what is timed halts it.
    """
    beats = 0

    def beat(_signum: int, _frame: FrameType | None) -> None:
        nonlocal beats
        beats += 1
        if seconds is not None and beats >= BEATS:
            raise TimeoutError(f"{what} took more than {seconds:g} s")

    with _ringing(signal.ITIMER_REAL, signal.SIGALRM, None if seconds is None else seconds / BEATS, beat):
        yield


@contextmanager
def _busy(seconds: float | None, threads: int, what: str) -> Iterator[None]:
    """Interrupt what keeps so many threads busy for longer.

    Processor time is counted, which what is halted does not take, and not beats, as of torch's compiler: within a call
    into a library, which may take seconds, all but one are missed.
    """

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"{what} took more than {seconds:g} s")

    with _ringing(signal.ITIMER_PROF, signal.SIGPROF, None if seconds is None else seconds * threads, interrupt):
        yield


@contextmanager
def _ringing(
    timer: int, signum: signal.Signals, each_s: float | None, rings: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Have a timer call a function again and again; only in the main thread, where signals arrive, and if it is set."""
    if each_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signum, rings)
    signal.setitimer(timer, each_s, each_s)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(signum, before)


def _key(spec: Mapping[str, Any], threads: int) -> str:
    return json.dumps([spec, threads], sort_keys=True)


_NEEDED: Mapping[str, tuple[str, ...]] = {
    "eager": ("prism.backends.native",),
    "compiled": ("prism.backends.native", "torch._dynamo", "torch._inductor.compile_fx"),
    "onnxruntime": ("onnxruntime",),
}
"""Modules that take a second or two to import, by the kind of contender that needs them."""


def wake(kinds: Sequence[str]) -> None:
    """Import what contenders of these kinds need, as far as it is there."""
    for name in dict.fromkeys(name for kind in kinds for name in _NEEDED.get(kind, ())):
        with suppress(ImportError):  # the contender itself says what is missing
            importlib.import_module(name)


@lru_cache(maxsize=1)
def contenders_on(inputs: Path) -> Contenders:
    """The contenders on inputs of a file, which is never written twice."""
    return Contenders(torch.load(inputs))


class Contenders:
    """Makes contenders on the same inputs, each once, and once what several of them are made from."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self._inputs = inputs
        self._made: dict[str, Call] = {}
        self._endless: dict[str, Prepared] = {}
        self._given_up: dict[str, str] = {}
        self._failed: dict[tuple[str, str], str] = {}
        self._functions: dict[tuple[str, str], tuple[Callable[..., Any], list[torch.Tensor]]] = {}

    def call(self, spec: Mapping[str, Any], threads: int, outputs: Sequence[torch.Tensor] | None = None) -> Call:
        """A function that calls a contender once and returns where the results are.

        Args:
            spec: of kind `module` (with module, config and the places of its inputs), `onnxruntime` (with a model and
                the places of its inputs), `assembled` (with the module of a whole model, and the places), `eager` or
                `compiled` (with a pickled program, or with an exported function and the places of its inputs).
            threads: that it runs on.
            outputs: what a module writes; None where it makes them, as it does for its user.
        """
        if outputs is not None:
            call = self._call(spec, threads, outputs)
        else:
            key = _key(spec, threads)
            if key not in self._made:
                self._made[key] = self._call(spec, threads, None)
            call = self._made[key]
        places = spec.get("places")
        return call if places is None else partial(_picked, call, places)

    def prepared(self, spec: Mapping[str, Any], threads: int, limit_s: float | None = None, **how: Any) -> Prepared:
        """A contender that has been called, as its user calls it; what takes long is not called again to be so.

        Args:
            spec: as of `call`.
            threads: that it runs on.
            limit_s: what its first calls may take, seconds; and, of the program in torch, writing it there before.
            how: of `Prepared`, of one that is not there yet.

        Raises:
            TimeoutError: they take longer, now or when they were made before.
        """
        key = _key(spec, threads)
        found = self._endless.get(key)
        if key in self._given_up:
            raise TimeoutError(self._given_up[key])
        if found is None:
            # What torch compiles has a limit of its own, and a runtime opens what its calls say nothing of.
            making_s = limit_s if spec["kind"] == "eager" else None
            try:
                with _busy(making_s, threads, "writing it in torch"):
                    call = self.call(spec, threads)
                with _busy(limit_s, threads, "its first calls"):
                    found = Prepared(call, **how)
            except TimeoutError as error:
                self._given_up[key] = str(error)
                raise
            if found.call_s > ENDLESS_S:
                self._endless[key] = found
        return found

    def _call(self, spec: Mapping[str, Any], threads: int, outputs: Sequence[torch.Tensor] | None) -> Call:
        match spec["kind"]:
            case "module":
                takes = [self._inputs[n] for n in spec["inputs"]]
                if outputs is None:
                    weights = spec.get("weights", ())
                    return module_call(Path(spec["module"]), takes, threads, spec["config"], weights)
                return bound_call(Path(spec["module"]), Config.decode(spec["config"]), takes, outputs, threads)
            case "assembled":
                takes = [self._inputs[n] for n in spec["inputs"]]
                return partial(assembled(Path(spec["module"]), threads), takes)
            case "onnxruntime":
                return onnx_call(Path(spec["model"]), [self._inputs[n] for n in spec["inputs"]], threads)
            case "compiled":
                return self._compiled(spec)
        return torch_call(*self._function(spec))

    def _compiled(self, spec: Mapping[str, Any]) -> Call:
        """What torch.compile makes of the program; where that failed once, it is not tried again."""
        key = (spec.get("exported", ""), spec["program"])
        if key in self._failed:
            raise RuntimeError(self._failed[key])
        function, takes = self._function(spec)
        torch._dynamo.reset()
        call = torch_call(torch.compile(function, dynamic=False), takes)
        try:
            with _limited(spec.get("compile_s"), "torch.compile"), torch.inference_mode():
                call()  # compiles: that is no time of a call
        except Exception as error:
            self._failed[key] = why_not_compiled(error)
            raise RuntimeError(self._failed[key]) from error
        return call

    def _function(self, spec: Mapping[str, Any]) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """What torch runs, and on what."""
        from prism.backends.native import baseline  # a trial has none

        key = (spec.get("exported", ""), spec["program"])
        if key not in self._functions:
            self._functions[key] = baseline(spec, self._inputs)
        return self._functions[key]
