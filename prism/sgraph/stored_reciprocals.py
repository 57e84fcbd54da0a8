"""A buffer holds the divisor, and not its reciprocal, where float32 does not hold every reciprocal.

A kernel that stores 1/b leaves to the next one nothing but a product with what may be infinite; one that stores b lets
it divide (prism.backends.quotients). What is computed is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from prism.program.nodes import DType
from prism.sgraph.denote import kernel_values
from prism.sgraph.divisors import Divisors
from prism.sgraph.nodes import Kernel, Load, Loop, Pointwise, SGraph, Stmt, Store


def divisors_stored(sgraph: SGraph) -> SGraph:
    """The sGraph with divisors in the buffers that held reciprocals which float32 does not hold.

    Raises:
        IllegalIRError: a kernel has no denotation.
    """
    buffers = {t.name for t in sgraph.buffers}
    stores = [(k, s) for k in sgraph.kernels for s in k.statements() if isinstance(s, Store) and s.tensor in buffers]
    inverses = {
        s.tensor: (k, divisor)
        for k, s in stores
        for made in k.statements()
        if isinstance(made, Pointwise) and made.op == "recip" and made.dst == s.src
        for divisor in made.args
        if isinstance(divisor, str)
    }
    if not inverses:
        return sgraph
    divisors, values = Divisors({t.name: t.dtype for t in sgraph.inputs}), kernel_values(sgraph)
    changed: dict[str, str] = {}
    for tensor, (k, divisor) in inverses.items():
        known = values[k.name].get(divisor)
        if known is not None and not divisors.invertible(known):
            changed[tensor] = divisor
    if not changed:
        return sgraph
    # A divisor may be larger than what float16 holds, where its reciprocal was not.
    kept = tuple(
        replace(t, dtype=DType.FLOAT32) if t.name in changed and t.dtype is DType.FLOAT16 else t for t in sgraph.buffers
    )
    return replace(sgraph, buffers=kept, kernels=tuple(_kernel(k, changed) for k in sgraph.kernels))


def _kernel(kernel: Kernel, changed: Mapping[str, str]) -> Kernel:
    taken = {name for s in kernel.statements() if (name := getattr(s, "dst", None)) is not None}

    def body(of: Sequence[Stmt]) -> tuple[Stmt, ...]:
        made: list[Stmt] = []
        for s in of:
            match s:
                case Loop():
                    made.append(replace(s, body=body(s.body)))
                case Load(dst, tensor, _) if tensor in changed:
                    name = f"{dst}_divisor"
                    while name in taken:
                        name += "_"
                    taken.add(name)
                    made += [replace(s, dst=name), Pointwise(dst, "recip", (name,))]
                case Store(tensor, _, _) if tensor in changed:
                    made.append(replace(s, src=changed[tensor]))
                case _:
                    made.append(s)
        return tuple(made)

    return replace(kernel, body=body(kernel.body))
