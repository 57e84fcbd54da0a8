"""Formulas by themselves: their value, and whether two are proved equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from prism.egraph.language import Budget
from prism.egraph.prove.equality import examine
from prism.egraph.prove.matching import Matched
from prism.egraph.worker import Worker
from prism.program import extents
from prism.program.arrays import NUMPY
from prism.program.evaluate import Interpreter, evaluate_expr
from prism.program.nodes import Formula, SymbolRange, Tensor
from prism.program.verdict import Verdict


def evaluate_formula(formula: Formula, tensors: Mapping[str, np.ndarray], binding: Mapping[str, int]) -> np.ndarray:
    """The tensor that a formula defines, in float64.

    Args:
        formula: an output written down to tensors, as `inline` gives it.
        tensors: an array for every tensor that is read.
        binding: the value of every symbol.
    """
    axes = tuple(dict.fromkeys(a for i in formula.index for a in sorted(i.axes(), key=str)))
    value = evaluate_expr(formula.expr, tensors, binding, axes)
    result = np.full([extents.evaluate(e, binding) for e in formula.tensor.shape], np.nan)
    with np.errstate(all="ignore"):
        machine = Interpreter({}, binding, NUMPY)
        places = [machine.index(i, axes) for i in formula.index]
        if not places:
            return value.reshape(())
        result[tuple(np.broadcast_to(p, value.shape) for p in places)] = value
    return result


def prove_formulas(
    reference: Sequence[Formula],
    candidate: Sequence[Formula],
    *,
    tensors: Sequence[Tensor],
    ranges: Mapping[str, SymbolRange] | None = None,
    budget: Budget | None = None,
    worker: Worker | None = None,
) -> Verdict:
    """Whether every candidate formula is the reference formula of the same position.

    Args:
        reference: one formula per output.
        candidate: as many, over the same input names.
        tensors: the inputs that they read.
        ranges: of the symbols; those that are missing may be any positive integer.
        budget: of the reference's saturation.
        worker: a running worker; one is started, and ended, by default.

    Raises:
        WorkerError: the worker died or ran past its limit.
    """
    both = Matched(tuple(reference), tuple(candidate), tuple(tensors), ranges or {}, {})
    return examine(both, budget=budget, worker=worker).verdict
