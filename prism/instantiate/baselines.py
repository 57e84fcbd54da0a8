"""The baselines that are installed: what a user of the same model would run instead of prism's kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from prism.instantiate.measure import Contender
from prism.program.nodes import Program

NAMES: Mapping[str, str] = MappingProxyType(
    {"eager": "torch eager", "compile": "torch.compile", "onnxruntime": "onnxruntime"}
)
"""What an option calls a baseline, and what a report does."""
_KINDS: Mapping[str, str] = MappingProxyType({"compile": "compiled"})


def installed(
    program: Program, target: str, wanted: Sequence[str], threads: Sequence[int]
) -> tuple[list[Contender], dict[str, str]]:
    """The baselines to time, each on every number of threads, and why others are not among them.

    Args:
        program: what is run.
        target: what is timed on: `cpu`, `cuda`.
        wanted: names of `NAMES`.
        threads: the numbers of threads.
    """
    found: list[Contender] = []
    missing: dict[str, str] = {}
    for option in wanted:
        why = _why_not(program, target) if option == "onnxruntime" else ""
        if why:
            missing[NAMES[option]] = why
            continue
        found += [Contender(NAMES[option], kind=_KINDS.get(option, option), threads=n) for n in threads]
    return found, missing


def _why_not(program: Program, target: str) -> str:
    """Why onnxruntime does not run the program; empty where it may."""
    if target != "cpu":
        return "it is timed on CPUs only"
    if not isinstance(program.source, Path):
        return "the program is not from an ONNX file"
    if importlib.util.find_spec("onnxruntime") is None:
        return "it is not installed"
    return ""
