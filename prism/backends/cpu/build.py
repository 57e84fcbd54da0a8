"""Compiling emitted C++ for a configuration."""

from __future__ import annotations

import ast
import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prism.backends.cpu import support
from prism.backends.cpu.products import product_source
from prism.errors import BackendError, CompilerError
from prism.process.child import child_environment, run_tool
from prism.sgraph.config import Config

COMPILE_LIMIT_S = 60.0
"""A compiler that takes longer hangs, or the tile is far too large to unroll."""
PROBE_LIMIT_S = 20.0
"""A compiler that takes longer for a function of one line hangs."""

__all__ = ["Built", "check_compiler", "compile_module", "find_compiler", "require_compiler"]

find_compiler = support.find_compiler


@dataclass(frozen=True, slots=True)
class Built:
    """The outcome of a compilation."""

    library: Path | None = None  # the shared library; None when it failed
    error: str = ""  # why it failed, in one line
    seconds: float = 0.0  # that it took; 0 where the library was there already


def require_compiler() -> Path:
    """The C++ compiler. Raises CompilerError: there is none; the message names what to install."""
    found = find_compiler()
    if found is None:
        raise CompilerError(
            "no C++ compiler was found",
            where="the cpu target",
            why="its kernels are C++ that the system's compiler compiles",
            fix="install g++ or clang++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: "
            "xcode-select --install), or set CXX to the compiler",
        )
    return found


PROBE = 'extern "C" int prism_probe(int x) { return x + 1; }\n'


def check_compiler(timeout_s: float = PROBE_LIMIT_S) -> None:
    """Compile a function of one line with each set of flags until one works, load it and call it.

    Raises:
        CompilerError: there is a compiler and it does not do so; the message says its command and what it said.
    """
    found = find_compiler()
    if found is None:
        return
    said = ""
    with tempfile.TemporaryDirectory(prefix="prism-probe-") as folder:
        source, library = Path(folder) / "probe.cpp", Path(folder) / "probe.so"
        source.write_text(PROBE, encoding="utf-8")
        for tuning in support.TUNING:
            command = [str(found), *support.FLAGS, *tuning, "-shared", str(source), "-o", str(library)]
            try:
                ended = run_tool(command, timeout_s, child_environment(TMPDIR=folder))
                if ended.code == 0 and ctypes.CDLL(str(library)).prism_probe(41) == 42:
                    return
                said = said or str(ended)
            except subprocess.TimeoutExpired:
                said = f"it took more than {timeout_s:g} s for a function of one line"
                break  # it would hang with other flags, too
            except (OSError, AttributeError) as error:
                said = said or f"what it made is no library that works: {' '.join(str(error).split())[:300]}"
    raise CompilerError(
        "the C++ compiler does not work",
        where=str(found),
        why=f"{said} (the command was {' '.join(Path(c).name for c in command)})",
        fix="repair it, set CXX to another, or estimate for a GPU with --target sm_90",
    )


def compile_module(module: Path, config: Config, *, timeout_s: float = COMPILE_LIMIT_S) -> Built:
    """Compile an emitted module for a configuration; what was compiled before is found in its cache.

    The C++ lies beside the module; `timeout_s` is for one run of the compiler.

    Raises:
        CompilerError: there is no compiler.
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


def products_of(module: Path) -> list[str]:
    """The matrix products that an emitted module calls, each once, as `product_source` takes them."""
    sources = support.sources_of(module.with_name(_names(module)[1]))
    return support.products_in("".join(path.read_text(encoding="utf-8") for path in sources))


def product_known(name: str, folder: Path) -> bool:
    """Whether a matrix product was compiled before, into this folder or where it is looked for anyway."""
    folders = [folder, *support.products_folders(folder / name)]
    return support.product_in(folders, name, product_source(name))[0] is not None


def compile_product(name: str, timeout_s: float = COMPILE_LIMIT_S) -> str:
    """Compile a matrix product ahead of the sources that call it; returns why not, or nothing.

    `name` is as for `product_source`, `timeout_s` for one run of the compiler.
    """
    try:
        folder = support.scratch_folder(support.products_folders(Path(tempfile.gettempdir()) / name))
        try:
            source = folder / f"{name}.cpp"
            source.write_text(product_source(name), encoding="utf-8")
            support.compile_product(source, timeout_s)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, support.CompilerError) as error:
        return " ".join(str(error).split())[:300]
    return ""


def _names(module: Path) -> tuple[Mapping[str, str], str]:
    """What the module says of itself: its symbols as the source calls them, and the source's name."""
    found: dict[str, object] = {}
    for line in module.read_text(encoding="utf-8").splitlines():  # of a thousand lines these are two, a line each
        name, _, value = line.partition(" = ")
        if name in ("SYMBOLS", "SOURCE"):
            found[name] = ast.literal_eval(value)
    symbols, source = found.get("SYMBOLS"), found.get("SOURCE")
    if not isinstance(symbols, dict) or not isinstance(source, str):
        raise BackendError("this is no module of the C++ backend", where=str(module))
    return symbols, source
