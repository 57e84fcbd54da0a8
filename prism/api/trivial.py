"""Programs with nothing to gain: one operator that is one kernel already. They are told so before anything is searched.

Such a kernel reads each input once and writes each output once; no implementation launches less or moves fewer bytes,
and prism does not compete with a vendor's library on a plain matrix product. An operator of several reductions (a
softmax, a norm) is not of this kind: how many kernels and passes it takes is the library's secret.
"""

from __future__ import annotations

from prism.errors import NoImprovementError
from prism.program.nodes import Expr, Map, Program, Read, Reduce, ReduceKind, Steps, walk
from prism.program.returned import constants


def nothing_to_gain(program: Program) -> str:
    """Why nothing can be gained, in one clause; empty where something may be."""
    computed = [d for d in program.definitions if not d.view]
    constant = constants(program)
    kernels = [d for d in computed if d.name not in constant]
    if not kernels:
        kept = "returns constants" if computed else "only re-indexes its inputs"
        return f"it {kept}, which takes no kernel"
    if len(kernels) > 1 or isinstance(kernels[0].expr, Steps):
        return ""
    body, reductions = kernels[0].expr, 0
    while isinstance(body, Reduce):
        body, reductions = body.body, reductions + 1
    if not reductions:
        if any(isinstance(e, Reduce) for e in walk(body)):
            return ""
        return "it is one pointwise operator, and so one kernel that reads its inputs and writes its output once"
    kinds = {e.kind for e in walk(kernels[0].expr) if isinstance(e, Reduce)}
    if isinstance(body, Read) and len(kinds) == 1:
        return "it is one reduction of one input, and so one kernel that reads it once"
    if kinds == {ReduceKind.SUM} and _is_product(body):
        return "it is one plain product, which is left to the vendor's library"
    return ""


def check_gain(program: Program) -> None:
    """Refuse a program with nothing to gain.

    Raises:
        NoImprovementError: it is one.
    """
    why = nothing_to_gain(program)
    if why:
        raise NoImprovementError(
            "there is nothing to gain",
            where=program.name,
            why=why,
            fix="keep it as it is, or give prism more of the model around it",
        )


def _is_product(body: Expr) -> bool:
    """Two inputs' elements multiplied."""
    return isinstance(body, Map) and body.op == "mul" and all(isinstance(a, Read) for a in body.args)
