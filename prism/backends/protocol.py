"""What search, tuning and output exchange with a backend: configurations, resources, emitted modules, its methods."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prism.backends.loading import load_module
from prism.program.extents import evaluate
from prism.program.nodes import SymbolRange
from prism.program.returned import Returned
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph


@dataclass(frozen=True, slots=True)
class Compiled:
    """The outcome of compiling every kernel of an sGraph for a target under one configuration.

    Attributes:
        resources: one entry a launch, in order; empty when it failed.
        error: why it failed, in one line; empty when it did not.
    """

    resources: tuple[Resources, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """An emitted module: self-contained Python source.

    Attributes:
        entry: the name of the launcher.
        text: the source.
        kernels: names of the launches in order.
        extra: files that go beside it, by name.
    """

    entry: str
    text: str
    kernels: tuple[str, ...]
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument of a launcher: its concrete shape, and the name of its data type."""

    shape: tuple[int, ...]
    dtype: str


class Backend(Protocol):
    """One language that kernels are printed in.

    It *lowers* an sGraph and prints it (`emit`), *compiles* what it printed and says what *resources* each launch takes
    (`compile`, whose answer `Compiled` holds them), *launches* it (`run`) and *times* it (`time`).
    tests/test_backends.py holds every backend to that: the same sGraphs, against the float64 oracle.

    What an sGraph is lowered to (tile programs), its schedules, names and masks are the same for all and are in
    `prism.backends`; a backend prints tile programs, compiles what it printed, runs it and times it. Compiling, running
    and timing may take the process down: `prism.instantiate` asks for them in children.
    """

    @property
    def name(self) -> str:
        """As reports call it."""
        ...

    def emit(
        self,
        sgraph: SGraph,
        *,
        formula: str = "",
        configs: Mapping[str, Sequence[Config]] | None = None,
        weights: bool = False,
        returned: Sequence[Returned] = (),
        ranges: Mapping[str, SymbolRange] | None = None,
    ) -> ModuleSource:
        """The sGraph, lowered and printed as a module of its own.

        Args:
            sgraph: the sGraph.
            formula: what it computes, for the docstrings.
            configs: tuned configurations by target.
            weights: arguments may be left out, and are then read from the weights file beside the module.
            returned: what the function returns, where that is not the sGraph's outputs in order.
            ranges: the lengths that it is for, by symbol: the function refuses others.
        """
        ...

    def compile(self, module: Path, config: Config, arguments: Sequence[Argument], timeout_s: float) -> Compiled:
        """Compile every launch of an emitted module, and say what it takes of the device.

        What cannot be compiled is an answer, with the error in it, and no exception.

        Args:
            module: the module's file, with what goes with it beside.
            config: the configuration.
            arguments: the launcher's inputs, then its outputs.
            timeout_s: seconds that it may take.
        """
        ...

    def run(self, module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Run every launch of an emitted module, in order, and wait for the last."""
        ...

    def time(
        self, module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any], repeats: int
    ) -> list[float]:
        """Seconds of one call, `repeats` times, after a warm-up; arguments as of `run`."""
        ...


def write_module(source: ModuleSource, path: Path) -> Path:
    """Write an emitted module and, beside it, the files that go with it; returns the module's path."""
    path.write_text(source.text, encoding="utf-8")
    for name, text in sorted(source.extra.items()):
        (path.parent / name).write_text(text, encoding="utf-8")
    return path


def load_function(source: ModuleSource, beside: Mapping[str, bytes] | None = None) -> Callable[..., Any]:
    """The function of an emitted module, whose files stay until the process ends.

    Raises:
        BackendError: it cannot be imported.
    """
    folder = Path(tempfile.mkdtemp(prefix="prism-loaded-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, data in (beside or {}).items():
        (folder / name).write_bytes(data)
    module = load_module(write_module(source, folder / f"{source.entry}.py"), apart=True)
    call: Callable[..., Any] = getattr(module, source.entry)
    return call


def arguments(sgraph: SGraph, hints: Mapping[str, int]) -> tuple[Argument, ...]:
    """The inputs, then the outputs, of an sGraph's launcher.

    Args:
        sgraph: the sGraph.
        hints: a value for every symbol that an extent of an input or output mentions.
    """
    return tuple(
        Argument(tuple(evaluate(e, hints) for e in t.shape), t.dtype.value) for t in (*sgraph.inputs, *sgraph.outputs)
    )
