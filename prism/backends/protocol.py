"""What search, tuning and output exchange with a backend: configurations, resources, emitted modules."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prism.backends.loading import load_module
from prism.contents import Content, put
from prism.program.extents import evaluate
from prism.program.nodes import SymbolRange
from prism.program.returned import Returned
from prism.sgraph.config import Config, Resources
from prism.sgraph.nodes import SGraph


@dataclass(frozen=True, slots=True)
class Compiled:
    """The outcome of compiling every kernel of an sGraph for a target under one configuration."""

    resources: tuple[Resources, ...] = ()  # one entry a launch, in order; empty when it failed
    error: str = ""  # why it failed, in one line; empty when it did not


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """An emitted module: self-contained Python source."""

    entry: str  # the name of the launcher
    text: str  # the source
    kernels: tuple[str, ...]  # names of the launches in order
    extra: Mapping[str, str] = field(default_factory=dict)  # files that go beside it, by name


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument of a launcher: its concrete shape, and the name of its data type."""

    shape: tuple[int, ...]
    dtype: str


class Emit(Protocol):
    """Lowers an sGraph and prints it."""

    def __call__(
        self,
        sgraph: SGraph,
        *,
        formula: str = "",
        configs: Mapping[str, Sequence[Config]] | None = None,
        weights: bool = False,
        returned: Sequence[Returned] = (),
        ranges: Mapping[str, SymbolRange] | None = None,
    ) -> ModuleSource:
        """The sGraph as a module of its own, with a function as `prism.backends.host.Launcher` describes it.

        Raises:
            UnsupportedError: the sGraph holds something that cannot be emitted.
            BackendError: what was emitted is not Python, a bug in prism.
        """


@dataclass(frozen=True, slots=True)
class Backend:
    """One language that kernels are printed in.

    What an sGraph is lowered to (tile programs), its schedules, names and masks are the same for all and are in
    `prism.backends`. Compiling, running and timing what was printed may take the process down: children do that, whose
    requests have one form. tests/test_backends.py holds every backend to the same sGraphs, against the float64 oracle.
    """

    name: str  # as reports call it
    emit: Emit  # lowers and prints


def write_module(source: ModuleSource, path: Path) -> Path:
    """Write an emitted module and, beside it, the files that go with it; returns the module's path."""
    path.write_text(source.text, encoding="utf-8")
    for name, text in sorted(source.extra.items()):
        (path.parent / name).write_text(text, encoding="utf-8")
    return path


def load_function(source: ModuleSource, beside: Mapping[str, Content] | None = None) -> Callable[..., Any]:
    """The function of an emitted module, whose files stay until the process ends.

    Raises:
        BackendError: it cannot be imported.
    """
    folder = Path(tempfile.mkdtemp(prefix="prism-loaded-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, data in (beside or {}).items():
        put(folder / name, data)
    module = load_module(write_module(source, folder / f"{source.entry}.py"), apart=True)
    call: Callable[..., Any] = getattr(module, source.entry)
    return call


def arguments(sgraph: SGraph, hints: Mapping[str, int]) -> tuple[Argument, ...]:
    """The inputs, then the outputs, of an sGraph's launcher.

    `hints` has a value for every symbol that an extent of an input or output mentions.
    """
    return tuple(
        Argument(tuple(evaluate(e, hints) for e in t.shape), t.dtype.value) for t in (*sgraph.inputs, *sgraph.outputs)
    )
