"""Sums that only meet in a sum are one: accumulators after their loop, and reductions along one dimension.

    for ..: a += p; b += q                          for ..: a += p + q
    .. a + (b + c) ..                               .. a + c ..

    sum(x, k) + sum(y, k)                           sum(x + y, k)

A sum of two tensors' elements, or of every other element (two codes of a byte), comes as sums of each. Accumulators are
registers, and products that are added to one follow each other; a reduction is an exchange between the threads of a
program, by shared memory and barriers where several warps have a share of the dimension. Sums are reassociated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from prism.backends.lower_index import Names
from prism.backends.tile import Dims, Dot, For, Full, Pointwise, Reduce, Stmt, TileProgram, Update, Within
from prism.backends.tile_rewrite import names_beside, renamed, value_dims
from prism.ir.kit import defined, operands, statements
from prism.program.nodes import DType, ReduceKind


def fused(program: TileProgram) -> TileProgram:
    """The program, as it was lowered, with sums that only meet in a sum as one."""
    while True:
        one = _Sums(program).step()
        if one is None:
            return program
        program = one


@dataclass(slots=True)
class _Sums:
    """What is known of a program's values, and one step."""

    program: TileProgram
    dims: Mapping[str, Dims]
    uses: Counter[str]
    changes: Mapping[str, list[Stmt]]
    names: Names

    def __init__(self, program: TileProgram) -> None:
        self.program = program
        self.dims = value_dims(program)
        self.names = names_beside(program)
        everything = statements(program.body)
        self.uses = Counter(n for s in everything for n in operands(s))
        changes: dict[str, list[Stmt]] = {}
        for s in everything:
            if isinstance(s, Update) or (isinstance(s, Dot) and s.add == s.dst):
                changes.setdefault(defined(s) or "", []).append(s)
        self.changes = changes

    def step(self) -> TileProgram | None:
        """The program with two sums as one; None where there are none left."""
        for block in _blocks(self.program.body):
            new = self._reductions(block) or self._accumulators(block)
            if new is not None:
                return replace(self.program, body=_with(self.program.body, block, new))
        return None

    def _reductions(self, block: Sequence[Stmt]) -> tuple[Stmt, ...] | None:
        made = {s.dst: (n, s) for n, s in enumerate(block) if isinstance(s, Reduce) and s.kind is ReduceKind.SUM}
        for n, s in enumerate(block):
            match s:
                case Pointwise(dst, "add", (str() as x, str() as y), dims, DType.FLOAT32) if x in made and y in made:
                    (first, a), (second, b) = made[x], made[y]
                case _:
                    continue
            between = {defined(t) for t in block[min(first, second) : n] if not isinstance(t, For)}
            inside = any(isinstance(t, For) for t in block[min(first, second) : n])
            if x == y or a.dim != b.dim or self.dims[a.src] != self.dims[b.src] or self.dims[x] != dims:
                continue
            if self.uses[x] != 1 or self.uses[y] != 1 or inside or {a.src, b.src} & between & {*self.changes}:
                continue
            both = self.names.fresh(f"{dst}_terms")
            one: list[Stmt] = [
                Pointwise(both, "add", (a.src, b.src), self.dims[a.src], DType.FLOAT32),
                Reduce(dst, ReduceKind.SUM, both, a.dim),
            ]
            return tuple(t for m, o in enumerate(block) if o not in (a, b) for t in (one if m == n else [o]))
        return None

    def _accumulators(self, block: Sequence[Stmt]) -> tuple[Stmt, ...] | None:
        for n, loop in enumerate(block):
            if not isinstance(loop, For):
                continue
            begun = {s.dst for s in block[:n] if isinstance(s, Full) and s.value == 0 and s.dtype is DType.FLOAT32}
            own = [x for s in loop.body if (x := defined(s)) in begun and self._alone(x or "", s)]
            sums = {s.dst: s for s in block[n:] if isinstance(s, Pointwise) and s.op == "add"}
            roots = [x for x in sums if not any(x in s.args and self.uses[x] == 1 for s in sums.values())]
            for root in roots:
                terms = [x for x in self._terms(root, sums, first=True) if x in own]
                for kept, gone in ((a, b) for a in terms for b in terms if own.index(a or "") < own.index(b or "")):
                    found = self._one(block, n, loop, str(kept), str(gone), sums)
                    if found is not None:
                        return found
        return None

    def _alone(self, name: str, change: Stmt) -> bool:
        """Whether an accumulator is a sum with one change, and one use after it."""
        added = isinstance(change, Dot) or (isinstance(change, Update) and change.kind is ReduceKind.SUM)
        return added and self.changes.get(name) == [change] and self.uses[name] == 2

    def _terms(self, name: object, sums: Mapping[str, Pointwise], first: bool = False) -> Iterator[str]:
        s = sums.get(name) if isinstance(name, str) else None
        if s is not None and (first or self.uses[s.dst] == 1):
            for a in s.args:
                yield from self._terms(a, sums)
        elif isinstance(name, str):
            yield name

    def _one(
        self, block: Sequence[Stmt], n: int, loop: For, kept: str, gone: str, sums: Mapping[str, Pointwise]
    ) -> tuple[Stmt, ...] | None:
        """The block with two accumulators as one; None where they or their changes are of two kinds."""
        (a,), (b,) = self.changes[kept], self.changes[gone]
        last = next(s for s in sums.values() if gone in s.args)
        other = last.args[1 - last.args.index(gone)]
        if self.dims[kept] != self.dims[gone] or not isinstance(other, str) or self.dims.get(other) != last.dims:
            return None
        later = [x for s in block[block.index(last) :] if isinstance(s, For) for x in statements(s.body)]
        if any(x in self.changes.get(other, ()) for x in later):
            return None  # It would not be what it was.
        if isinstance(a, Dot) and isinstance(b, Dot):
            changed: dict[int, list[Stmt]] = {id(b): [replace(b, dst=kept, add=kept)]}
        elif isinstance(a, Update) and isinstance(b, Update):
            both = self.names.fresh(f"{kept}_terms")
            if self.dims.get(a.src, ()) != self.dims[kept] or self.dims.get(b.src, ()) != self.dims[kept]:
                return None
            added = Pointwise(both, "add", (a.src, b.src), self.dims[kept], DType.FLOAT32)
            changed = {id(a): [], id(b): [added, Update(kept, ReduceKind.SUM, both)]}
        else:
            return None
        body = tuple(t for s in loop.body for t in changed.get(id(s), [s]))
        made: list[Stmt] = []
        for m, s in enumerate(block):
            if s is last or (isinstance(s, Full) and s.dst == gone):
                continue
            made.append(replace(loop, body=body) if m == n else renamed(s, {last.dst: other}))
        return tuple(made)


def _blocks(body: Sequence[Stmt]) -> Iterator[Sequence[Stmt]]:
    for s in body:
        if isinstance(s, For | Within):
            yield from _blocks(s.body)
    yield body


def _with(body: Sequence[Stmt], block: Sequence[Stmt], new: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body with another one in the place of a block of it."""
    if body is block:
        return new
    return tuple(replace(s, body=_with(s.body, block, new)) if isinstance(s, For | Within) else s for s in body)
