"""prism: a symbolic superoptimizer for tensor programs.

    program = prism.trace(fn, example_inputs)      or prism.load_onnx("model.onnx")
    verdict = prism.prove(reference, candidate, example_inputs)
    result = prism.optimize(program)

Importing this package loads none of the libraries it rests on; each loads when something that needs it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from prism import errors

if TYPE_CHECKING:
    from prism.api import explain, operators, optimize, optimize_ranges, prove, search, trace, verify
    from prism.api import load as load_onnx
    from prism.api.compiling import compile
    from prism.program.nodes import Program
    from prism.program.verdict import Verdict

__version__ = "0.1.0"

__all__ = [
    "Program",
    "Verdict",
    "__version__",
    "compile",
    "errors",
    "explain",
    "load_onnx",
    "operators",
    "optimize",
    "optimize_ranges",
    "prove",
    "search",
    "trace",
    "verify",
]

# Where each public name lives. Kept beside the imports above, which only type checkers follow.
_HOMES = {
    "Program": ("prism.program.nodes", "Program"),
    "Verdict": ("prism.program.verdict", "Verdict"),
    "compile": ("prism.api.compiling", "compile"),
    "explain": ("prism.api", "explain"),
    "load_onnx": ("prism.api", "load"),
    "operators": ("prism.api", "operators"),
    "optimize": ("prism.api", "optimize"),
    "optimize_ranges": ("prism.api", "optimize_ranges"),
    "prove": ("prism.api", "prove"),
    "search": ("prism.api", "search"),
    "trace": ("prism.api", "trace"),
    "verify": ("prism.api", "verify"),
}


def __getattr__(name: str) -> object:
    """The public name, from the module it lives in, loaded on first use.

    Raises:
        AttributeError: prism has no such name.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
