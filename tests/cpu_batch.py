"""Runs many emitted C++ modules after one run of the compiler: their sources are compiled as one."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from prism.backends.cpu.emit import emit_module
from prism.backends.cpu.support import compile_source
from prism.backends.loading import load_module
from prism.backends.protocol import write_module
from prism.backends.tile import identifier
from prism.program.nodes import DType
from prism.sgraph.nodes import SGraph

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """An sGraph, the values of its symbols, its inputs in order (any numeric type)."""

    sgraph: SGraph
    symbols: Mapping[str, int]
    inputs: Sequence[Array]


def numpy_type(dtype: DType) -> Any:
    return ml_dtypes.bfloat16 if dtype is DType.BFLOAT16 else np.dtype(dtype.value)


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compile_batch(
    cases: Sequence[Case], folder: Path, limit_s: float = 600.0, level: str = "-O0"
) -> list[tuple[Path, ModuleType]]:
    """Every case's emitted module, loaded, with its kernels; one library holds those of all.

    Optimising takes most of the time, and vectors are written out in the sources, so it is left out.
    """
    text: list[str] = []
    made: list[tuple[Path, ModuleType]] = []
    for n, case in enumerate(cases):
        place = folder / f"case{n}"
        place.mkdir(parents=True)
        source = emit_module(case.sgraph)
        path = write_module(source, place / f"{source.entry}.py")
        made.append((path, load_module(path, apart=True)))
        text += ["#undef PRISM_NAME", f"#define PRISM_NAME(name) c{n}_##name"]
        for name, value in case.symbols.items():
            text += [f"#undef PRISM_{identifier(name)}", f"#define PRISM_{identifier(name)} {value}"]
        text.append(f'#include "case{n}/{made[-1][1].SOURCE}"')
    main = folder / "batch.cpp"
    main.write_text("\n".join(text) + "\n")
    library = ctypes.CDLL(str(compile_source(main, {}, limit_s, level)[0]))
    for n, (case, (_, module)) in enumerate(zip(cases, made, strict=True)):
        function = getattr(library, f"c{n}_run")
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        function.restype = None
        module._LOADED[tuple(case.symbols[s] for s in module.SYMBOLS)] = function
    return made


def run_batch(cases: Sequence[Case], folder: Path, threads: int = 2) -> list[tuple[Array, ...]]:
    """The outputs of every case, through the emitted Python loader."""
    results: list[tuple[Array, ...]] = []
    for case, (_, module) in zip(cases, compile_batch(cases, folder), strict=True):
        with np.errstate(all="ignore"):
            given = [
                np.asarray(a).astype(numpy_type(t.dtype)) for a, t in zip(case.inputs, case.sgraph.inputs, strict=True)
            ]
        call = getattr(module, identifier(case.sgraph.name))
        got = call(*given, config={"symbols": dict(case.symbols)}, threads=threads)
        results.append(got if isinstance(got, tuple) else (got,))
    return results
