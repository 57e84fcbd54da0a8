"""The lock: what it takes to make the same choice again. `prism verify` says whether that is what is here now."""

from __future__ import annotations

import hashlib
import platform

from prism.instantiate.cache import version_of
from prism.program.nodes import Program

PACKAGES: tuple[str, ...] = ("torch", "triton", "egglog", "sympy", "optuna", "onnx", "numpy")
"""The packages that a choice depends on."""


def program_hash(program: Program) -> str:
    """SHA-256 of the program's text: inputs, definitions, outputs and the ranges of its symbols, without weights."""
    ranges = [f"{name} {r.low} {r.high} {r.hint}" for name, r in sorted(program.ranges.items())]
    every = (*program.definitions, *(d for loop in program.loops for d in loop.body.definitions))
    kinds = [f"{d.name} {d.dtype.value}" for d in every]
    return hashlib.sha256("\n".join([str(program), *kinds, *ranges]).encode()).hexdigest()


def versions() -> dict[str, str]:
    """The versions of Python, prism and the packages that a choice depends on."""
    import prism

    own = version_of("prism") or str(getattr(prism, "__version__", ""))
    found = {"python": platform.python_version(), "prism": own}
    return found | {name: version_of(name) for name in PACKAGES if version_of(name)}
