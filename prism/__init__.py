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

# Where public names live that are not in prism.api, or are called otherwise there. Kept beside the imports above, which
# only type checkers follow.
_HOMES = {
    "Program": ("prism.program.nodes", "Program"),
    "Verdict": ("prism.program.verdict", "Verdict"),
    "compile": ("prism.api.compiling", "compile"),
    "load_onnx": ("prism.api", "load"),
}


def __getattr__(name: str) -> object:
    """The public name, from the module it lives in, loaded on first use.

    Raises:
        AttributeError: prism has no such name.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES.get(name, ("prism.api", name))
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
