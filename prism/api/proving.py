"""Are two programs the same function?"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from prism.api.loading import load, trace
from prism.sgraph.verdict import Verdict

if TYPE_CHECKING:
    import torch


def prove(
    reference: Callable[..., Any], candidate: Callable[..., Any], example_inputs: Sequence[torch.Tensor]
) -> Verdict:
    """Whether two torch functions compute the same, over the reals, at the shapes of the example inputs.

    Returns:
        A verdict: `proved`, `refuted` with inputs at which they differ, or `unknown` with the reason.

    Raises:
        UnsupportedError: one of them calls something that prism has no translation for.
        ShapeError: their outputs have different shapes.
    """
    from prism.egraph.prove import prove_programs

    a = trace(reference, example_inputs, name="reference")
    b = trace(candidate, example_inputs, name="candidate")
    return prove_programs(a, b)


def prove_models(reference: str | os.PathLike[str], candidate: str | os.PathLike[str]) -> Verdict:
    """Whether two ONNX models compute the same, over the reals; see `prove`."""
    from prism.egraph.prove import prove_programs

    return prove_programs(load(reference), load(candidate))
