"""Emitted modules as functions: children that time and check them start with this, and with nothing of what emits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prism.backends.loading import load_module
from prism.errors import BackendError
from prism.sgraph.config import Config


def launcher(module: Path) -> Callable[..., Any]:
    """The launcher of an emitted module: its one function that takes a configuration and outputs.

    Raises:
        BackendError: the file cannot be imported, or has no launcher.
    """
    loaded = load_module(module, apart=True)
    for value in vars(loaded).values():
        if inspect.isfunction(value) and {"config", "out", "threads"} <= inspect.signature(value).parameters.keys():
            found: Callable[..., Any] = value
            return found
    raise BackendError("an emitted module has no launcher", where=str(module))


def bound_call(
    module: Path, config: Config, inputs: Sequence[Any], outputs: Sequence[Any], threads: int
) -> Callable[[], Sequence[Any]]:
    """A function that runs the module once on these tensors and returns the outputs."""
    launch = launcher(module)
    chosen, out = config.encode(), tuple(outputs)

    def once() -> Sequence[Any]:
        launch(*inputs, config=chosen, out=out, threads=threads)
        return out

    return once
