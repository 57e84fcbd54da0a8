"""From what the user has to a Program."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from prism.program import spec
from prism.program.nodes import Program

if TYPE_CHECKING:
    import torch


def load(path: str | os.PathLike[str]) -> Program:
    """The program of an ONNX file.

    Raises:
        ModelError: the file cannot be read or is not ONNX.
        UnsupportedError: it holds something that prism has no translation for.
        ShapeError: its shapes do not add up.
    """
    from prism.frontend.onnx import load as load_file

    program = load_file(path)
    spec.check(program)
    return program


def trace(
    fn: Callable[..., Any],
    example_inputs: Sequence[torch.Tensor],
    *,
    name: str | None = None,
    dynamic_shapes: Any = None,
) -> Program:
    """The program of a torch function or module, by `torch.export` on example inputs.

    Args:
        fn: a function of tensors, or a module.
        example_inputs: tensors; their shapes and data types are the program's.
        name: the program's name; the function's by default.
        dynamic_shapes: as `torch.export.export` takes it, for symbolic dimensions.

    Raises:
        UnsupportedError: it calls something that prism has no translation for.
    """
    from prism.frontend.torch import trace as trace_function

    program = trace_function(fn, example_inputs, name=name, dynamic_shapes=dynamic_shapes)
    spec.check(program)
    return program
