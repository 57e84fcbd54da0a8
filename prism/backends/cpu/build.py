"""Compiling emitted C++ for a configuration."""

from __future__ import annotations

import ast
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prism.backends.cpu import support
from prism.backends.protocol import Config
from prism.errors import BackendError

COMPILE_LIMIT_S = 60.0
"""A compiler that takes longer hangs, or the tile is far too large to unroll."""

__all__ = ["Built", "compile_module", "find_compiler", "require_compiler"]

find_compiler = support.find_compiler


@dataclass(frozen=True, slots=True)
class Built:
    """The outcome of a compilation.

    Attributes:
        library: the shared library; None when it failed.
        error: why it failed, in one line.
        seconds: that it took; 0 where the library was there already.
    """

    library: Path | None = None
    error: str = ""
    seconds: float = 0.0


def require_compiler() -> Path:
    """The C++ compiler.

    Raises:
        BackendError: there is none; the message names what to install.
    """
    found = find_compiler()
    if found is None:
        raise BackendError(
            "no C++ compiler was found",
            where="the cpu target",
            why="its kernels are C++ that the system's compiler compiles",
            fix="install g++ or clang++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: "
            "xcode-select --install), or set CXX to the compiler",
        )
    return found


def compile_module(module: Path, config: Config, *, timeout_s: float = COMPILE_LIMIT_S) -> Built:
    """Compile an emitted module for a configuration; what was compiled before is found in its cache.

    Args:
        module: the Python file, with the C++ beside it.
        config: the configuration.
        timeout_s: for one run of the compiler.

    Raises:
        BackendError: there is no compiler.
    """
    require_compiler()
    symbols, source = _names(module)
    started = time.monotonic()
    try:
        constants = {constant: int(config.symbols[name]) for name, constant in symbols.items()}
        library, known = support.compile_source(module.with_name(source), constants, timeout_s)
    except KeyError as error:
        return Built(error=f"the configuration has no value for {error.args[0]}")
    except support.CompilerError as error:
        return Built(error=str(error), seconds=time.monotonic() - started)
    return Built(library, seconds=0.0 if known else time.monotonic() - started)


def _names(module: Path) -> tuple[Mapping[str, str], str]:
    """What the module says of itself: its symbols as the source calls them, and the source's name."""
    found: dict[str, object] = {}
    for s in ast.parse(module.read_text(encoding="utf-8")).body:
        if (
            isinstance(s, ast.Assign)
            and isinstance(s.targets[0], ast.Name)
            and s.targets[0].id in ("SYMBOLS", "SOURCE")
        ):
            found[s.targets[0].id] = ast.literal_eval(s.value)
    symbols, source = found.get("SYMBOLS"), found.get("SOURCE")
    if not isinstance(symbols, dict) or not isinstance(source, str):
        raise BackendError("this is no module of the C++ backend", where=str(module))
    return symbols, source
