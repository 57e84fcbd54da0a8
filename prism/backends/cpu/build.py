"""Compiling emitted C++ for a configuration."""

from __future__ import annotations

import ast
import ctypes
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prism.backends.cpu import support
from prism.backends.cpu.emit import support as support_code
from prism.errors import BackendError, CompilerError
from prism.process.child import child_environment, run_tool
from prism.sgraph.config import Config

COMPILE_LIMIT_S = 60.0
"""A compiler that takes longer hangs, or the tile is far too large to unroll."""
PROBE_LIMIT_S = 20.0
"""A compiler that takes longer for a function of one line hangs."""
_PARTS = ("core", "product", "tiles", "halves", "apart")
"""The support code that products which are compiled apart are made of."""

__all__ = ["Built", "check_compiler", "compile_module", "find_compiler", "require_compiler"]

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
            command = [str(found), *support.FLAGS, *tuning, str(source), "-o", str(library)]
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


def compile_module(
    module: Path, config: Config, *, timeout_s: float = COMPILE_LIMIT_S, products: str | None = None
) -> Built:
    """Compile an emitted module for a configuration; what was compiled before is found in its cache.

    Args:
        module: the Python file, with the C++ beside it.
        config: the configuration.
        timeout_s: for one run of the compiler.
        products: see `support.compile_source`; the whole is compiled as one where it is empty.

    Raises:
        CompilerError: there is no compiler.
    """
    require_compiler()
    symbols, source = _names(module)
    started = time.monotonic()
    try:
        constants = {constant: int(config.symbols[name]) for name, constant in symbols.items()}
        library, known = support.compile_source(module.with_name(source), constants, timeout_s, products=products)
    except KeyError as error:
        return Built(error=f"the configuration has no value for {error.args[0]}")
    except support.CompilerError as error:
        return Built(error=str(error), seconds=time.monotonic() - started)
    return Built(library, seconds=0.0 if known else time.monotonic() - started)


def products_folder(cache: Path) -> Path:
    """Where products that are compiled apart are kept: a folder for each support code, machine and compiler."""
    text = "\0".join([*map(support_code, _PARTS), support.machine(), str(find_compiler()), *support.FLAGS])
    return cache / f"products-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def products_of(module: Path) -> list[str]:
    """The products that an emitted module calls, each once, as `compile_product` takes them."""
    return support.products_in(support.sources_of(module.with_name(_names(module)[1])))


def compile_product(name: str, folder: Path, timeout_s: float = COMPILE_LIMIT_S) -> str:
    """Compile a matrix product for all tile sizes, so that sources that call it need not; returns why not, or nothing.

    Args:
        name: `multiply-` or `multiply_halves-` and the C++ type of the second factor.
        folder: where the object goes: one of `products_folder`.
        timeout_s: for one run of the compiler.
    """
    made, (function, kind) = folder / f"{name}.o", name.split("-")
    if made.exists():
        return ""
    takes = "bool, float*, I, const float*, I, I, const T*, I, I, I, I, I, float*, float*"
    text = [support_code(*_PARTS), "namespace prism {", f"using T = {kind};", "using I = int64_t;"]
    text.append(f"template void apart_{function}({takes});\n}}\n")
    said = ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as scratch:
            source, object_ = Path(scratch) / "product.cpp", Path(scratch) / "product.o"
            source.write_text("\n".join(text), encoding="utf-8")
            flags = [f for f in support.FLAGS if f != "-shared"]
            for tuning in support.TUNING:
                command = [str(require_compiler()), "-O3", *flags, *tuning, "-c", str(source), "-o", str(object_)]
                ended = run_tool(command, timeout_s, child_environment(TMPDIR=scratch))
                if ended.code == 0:
                    os.replace(object_, made)  # atomic: another process may compile the same
                    return ""
                said = said or str(ended)
    except (OSError, subprocess.TimeoutExpired) as error:
        said = " ".join(str(error).split())[:300]
    return said


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
