"""What rounding may do to a program, and to an sGraph by itself: the yardsticks beside eager's one sample.

Where a result fails the gate by eager's error, the program is run in other orders (`of_program`): what passes by the
largest of these errors is as good as the program. What does not may still be what its sGraph computes: the sGraph's own
values, evaluated in torch without its kernels (`of_sgraph`), are as far from the oracle then. A kernel that is no worse
than its sGraph is right, and its sGraph rounds worse than the program; one that is worse computes something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from prism.errors import IllegalIRError
from prism.program.extents import evaluate
from prism.program.nodes import Program
from prism.sgraph.denote import as_program
from prism.sgraph.nodes import SGraph

if TYPE_CHECKING:
    from prism.backends.reordered import Order


def of_program(program: Program, tensors: Mapping[str, Any], binding: Mapping[str, int]) -> list[dict[str, np.ndarray]]:
    """The program's outputs as eager might as well have computed them, as float64.

    Args:
        program: the program.
        tensors: every input, on the CPU.
        binding: the value of every symbol.
    """
    from prism.backends.reordered import ORDERS, Order

    return _in_orders(program, tensors, binding, (Order.SHUFFLED,) * ORDERS)


def of_sgraph(
    sgraph: SGraph, program: Program, tensors: Mapping[str, Any], binding: Mapping[str, int]
) -> list[dict[str, np.ndarray]]:
    """What the sGraph computes by itself, in several orders, as float64; nothing where only kernels can run it.

    Args:
        sgraph: of one that has no denotation nothing is known.
        program: what it implements.
        tensors: every input of the program, on the CPU.
        binding: the value of every symbol of the extents.
    """
    from prism.backends.reordered import ORDERS, Order

    try:
        made = as_program(sgraph, program.ranges)
    except IllegalIRError:
        made = None
    if made is None:
        return []
    own, parts = made
    given = {t.name: tensors[t.name] for t in sgraph.inputs}
    values = {**binding, **{name: evaluate(e, binding) for name, e in parts.items()}}
    orders = (Order.PLAIN, *(Order.SHUFFLED,) * ORDERS, Order.SEQUENTIAL, Order.HALVES)
    return _in_orders(own, given, values, orders)


def _in_orders(
    program: Program, tensors: Mapping[str, Any], binding: Mapping[str, int], orders: Sequence[Order]
) -> list[dict[str, np.ndarray]]:
    import torch

    from prism.backends.reordered import reordered

    with np.errstate(all="ignore"):
        found = list(reordered(program, tensors, binding, orders))
    return [{name: np.asarray(t.to(torch.float64).numpy()) for name, t in outputs.items()} for outputs in found]
