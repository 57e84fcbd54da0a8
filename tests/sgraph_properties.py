"""What an sGraph does, measured on its statements: the terms in which tests say what a search must find.

A *pass* over a tensor is one nest of loops (or one place outside all loops) of a kernel in which tiles of it are
loaded, however many loads stand there: rotated halves of one row in one loop are one pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prism.program.extents import Extent
from prism.program.index import Axis
from prism.sgraph.nodes import (
    Accumulate,
    Contract,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    Position,
    Scan,
    SGraph,
    Split,
    Stmt,
    Store,
    TileReduce,
)


@dataclass(frozen=True)
class Placed:
    """A statement with the loops around it, outermost first; `nest` tells one nest of a kernel from another."""

    stmt: Stmt
    loops: tuple[Axis, ...]
    nest: tuple[int, ...]


def placed(kernel: Kernel) -> tuple[Placed, ...]:
    """Every statement of the kernel but the loops themselves, in order."""

    def visit(body: Sequence[Stmt], loops: tuple[Axis, ...], nest: tuple[int, ...]) -> Iterator[Placed]:
        for n, s in enumerate(body):
            if isinstance(s, Loop):
                yield from visit(s.body, (*loops, s.axis), (*nest, n))
            else:
                yield Placed(s, loops, nest)

    return tuple(visit(kernel.body, (), ()))


def loads(kernel: Kernel, tensor: str) -> tuple[Placed, ...]:
    """The loads of the tensor."""
    return tuple(p for p in placed(kernel) if isinstance(p.stmt, Load) and p.stmt.tensor == tensor)


def kernel_passes(kernel: Kernel, tensor: str) -> int:
    """In how many nests of loops the kernel loads the tensor."""
    return len({p.nest for p in loads(kernel, tensor)})


def passes(sgraph: SGraph, tensor: str) -> int:
    """Passes over the tensor, all kernels together."""
    return sum(kernel_passes(k, tensor) for k in sgraph.kernels)


def repeats(sgraph: SGraph, tensor: str) -> bool:
    """Whether a tile of the tensor is loaded again in each round of a loop that it does not vary in."""
    for kernel in sgraph.kernels:
        for p in loads(kernel, tensor):
            assert isinstance(p.stmt, Load)
            if set(p.loops) - {a for i in p.stmt.index for a in i.axes()}:
                return True
    return False


def splits(sgraph: SGraph) -> tuple[Axis, ...]:
    """The axes that several programs share, with a second stage that combines what they found."""
    return tuple(a for k in sgraph.kernels for a, r in k.roles if isinstance(r, Split))


def stages(sgraph: SGraph) -> int:
    """Kernels, the second stages of splits not counted: into how many pieces the program was cut."""
    return len(sgraph.kernels) - len(splits(sgraph))


def looped(kernel: Kernel) -> tuple[Axis, ...]:
    """The axes whose tiles come one after another."""
    return tuple(a for a, r in kernel.roles if isinstance(r, LoopRole | Split))


def accumulators(kernel: Kernel, axis: Axis | None = None) -> tuple[Accumulate, ...]:
    """The accumulators, of loops over the axis when one is given."""
    found = [p for p in placed(kernel) if isinstance(p.stmt, Accumulate)]
    return tuple(p.stmt for p in found if axis is None or p.loops[-1] == axis)  # type: ignore[misc]


def scans(kernel: Kernel) -> tuple[Scan, ...]:
    """The prefix sums."""
    return tuple(s for s in kernel.statements() if isinstance(s, Scan))


def rescaled(sgraph: SGraph) -> int:
    """How many accumulators are rescaled when the shift of their exponent moves."""
    return sum(a.shift is not None for k in sgraph.kernels for a in accumulators(k))


def materialised(sgraph: SGraph) -> tuple[tuple[Extent, ...], ...]:
    """The shapes of the buffers that hold values of the program, not parts of a split's sums."""
    outputs = {t.name for t in sgraph.outputs}
    found: list[tuple[Extent, ...]] = []
    for p in (p for k in sgraph.kernels for p in placed(k)):
        if not isinstance(p.stmt, Store) or p.stmt.tensor in outputs:
            continue
        if not any(a.name.endswith(".part") for i in p.stmt.index for a in i.axes()):
            found.append(sgraph.tensor(p.stmt.tensor).shape)
    return tuple(found)


def stores(sgraph: SGraph, *extents: Extent) -> bool:
    """Whether some buffer, parts of sums included, has all these dimensions (each as often as it is given)."""
    wanted = Counter(extents)
    return any(not wanted - Counter(b.shape) for b in sgraph.buffers)


def sources(kernel: Kernel) -> dict[str, frozenset[str]]:
    """For each value, the tensors that it is computed from."""
    found: dict[str, frozenset[str]] = {}

    def of(operand: str | float) -> frozenset[str]:
        return found[operand] if isinstance(operand, str) else frozenset()

    for p in placed(kernel):
        match p.stmt:
            case Load(dst, tensor, _):
                found[dst] = frozenset({tensor})
            case Position(dst, _):
                found[dst] = frozenset()
            case Pointwise(dst, _, args):
                found[dst] = frozenset(t for a in args for t in of(a))
            case TileReduce(dst, _, _, src):
                found[dst] = of(src)
            case Contract(dst, _, lhs, rhs):
                found[dst] = of(lhs) | of(rhs)
            case Scan(dst, _, src):
                found[dst] = of(src)
            case Accumulate(dst, _, src, shift):
                found[dst] = of(src) | (of(shift) if shift is not None else frozenset())
            case _:
                pass
    return found


def after_reductions(kernel: Kernel) -> frozenset[str]:
    """The values that are computed from the result of a reduction in this kernel."""
    found: set[str] = set()
    for p in placed(kernel):
        match p.stmt:
            case Pointwise(dst, _, args) if any(a in found for a in args):
                found.add(dst)
            case TileReduce(dst) | Contract(dst) | Accumulate(dst) | Scan(dst):
                found.add(dst)
            case _:
                pass
    return frozenset(found)


def plain_products(kernel: Kernel) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    """The matrix products that wait for no reduction: the tensors that either operand is computed from."""
    known, late = sources(kernel), after_reductions(kernel)
    return tuple(
        (known[p.stmt.lhs], known[p.stmt.rhs])
        for p in placed(kernel)
        if isinstance(p.stmt, Contract) and not {p.stmt.lhs, p.stmt.rhs} & late
    )


def contractions(kernel: Kernel) -> tuple[tuple[Axis, frozenset[str], frozenset[str]], ...]:
    """Each matrix product: its contracted axis, and the tensors that its two operands are computed from."""
    known = sources(kernel)
    return tuple(
        (p.stmt.axis, known[p.stmt.lhs], known[p.stmt.rhs]) for p in placed(kernel) if isinstance(p.stmt, Contract)
    )


def plain_operands(kernel: Kernel) -> tuple[frozenset[str], ...]:
    """The operands of matrix products that wait for no reduction: the tensors that each is computed from."""
    known, late = sources(kernel), after_reductions(kernel)
    products = [p.stmt for p in placed(kernel) if isinstance(p.stmt, Contract)]
    return tuple(known[o] for s in products for o in (s.lhs, s.rhs) if o not in late)


def contracts(sgraph: SGraph, one: str, other: str) -> bool:
    """Whether some matrix product has an operand computed from one tensor alone, and the other from the other alone."""
    pair = {frozenset({one}), frozenset({other})}
    return any({lhs, rhs} == pair for k in sgraph.kernels for _, lhs, rhs in contractions(k))


def sums(kernel: Kernel, tensor: str) -> tuple[frozenset[str], ...]:
    """For each reduction of a tile whose operands are computed from the tensor: all tensors of its operands."""
    known = sources(kernel)
    found: list[frozenset[str]] = []
    for p in placed(kernel):
        match p.stmt:
            case TileReduce(_, _, _, src):
                found.append(known[src])
            case Contract(_, _, lhs, rhs):
                found.append(known[lhs] | known[rhs])
            case _:
                pass
    return tuple(s for s in found if tensor in s)


def tile_shares(kernel: Kernel, tensor: str, extent: Extent) -> bool:
    """Whether programs hold tiles over a grid axis of this extent that no load of the tensor depends on."""
    tiled = {a for a, r in kernel.roles if a.extent == extent and isinstance(r, Grid) and r.tile != 1}
    mine = [p.stmt for p in loads(kernel, tensor) if isinstance(p.stmt, Load)]
    used = {a for s in mine for i in s.index for a in i.axes()}
    return bool(mine) and bool(tiled - used)


def writes(sgraph: SGraph, tensor: str) -> int:
    """How many stores write the tensor."""
    return sum(isinstance(p.stmt, Store) and p.stmt.tensor == tensor for k in sgraph.kernels for p in placed(k))
