"""A program's operators as torch.compile launches them, estimated: what it fuses, by the model's constants.

    attention    a softmax of products times values is one call of a fused kernel (inductor's patterns for it), where
                 nothing else reads what is between
    products     of matrices are calls of the library, a bias within
    products     of one row or one column are sums of products, as with coordinate_descent_tuning (max-autotune)
    the others   are one launch with their neighbours: what is pointwise with what reads it, what is computed at the
                 same points, or at the rows of a reduction, with nothing between that is launched on its own

What inductor leaves apart for reasons of its own (indirect reads, sizes of blocks, several reductions of long rows) is
taken together here, so that the estimate is the less of what it may take. Epilogues in products that Triton makes are
not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from prism.cost.compiled_expr import value
from prism.cost.device import Device
from prism.cost.library import AttentionExtents, attention_times
from prism.cost.model import (
    Estimate,
    KernelEstimate,
    added_biases,
    attentions,
    baseline_estimate,
    kernel_estimate,
    launched,
    stored_above,
    sum_estimates,
)
from prism.program.index import Axis
from prism.program.nodes import Definition, Position, Program, Read, Reduce, Steps, free_axes, walk
from prism.program.products import work


def compiled_estimate(program: Program, device: Device, hints: Mapping[str, int]) -> Estimate:
    """Seconds of the program as torch.compile launches it; no more than operator by operator."""
    plain = baseline_estimate(program, device, hints)
    if program.loops:
        return plain
    fused = sum_estimates(_Fusing(program, device, hints).launches())
    return min(fused, plain, key=lambda e: e.seconds)


class _Fusing:
    """Which operators are launched together."""

    def __init__(self, program: Program, device: Device, hints: Mapping[str, int]) -> None:
        self.program, self.device, self.hints = program, device, hints
        self.stored = [d for d in program.definitions if not d.view and not isinstance(d.expr, Steps)]
        self.above = {d.name: self._read(d) for d in self.stored}
        self.readers: dict[str, set[str]] = {d.name: set() for d in self.stored}
        for name, above in self.above.items():
            for n in above:
                self.readers[n].add(name)
        self.returned = {n for o in program.outputs for n in stored_above(o, program)}
        # Groups by number; each has a level, which what it reads of others is below.
        self.group: dict[str, int] = {}
        self.level: list[int] = []
        self.calls: dict[str, AttentionExtents] = {}

    def launches(self) -> list[KernelEstimate]:
        """Launch by launch."""
        biases, within = added_biases(self.program), self._attentions()
        for d in self.stored:
            before = {self.group[n] for n in self.above[d.name] if n in self.group}
            last = max((self.level[g] for g in before), default=-1)
            beside = {g for g in before if self.level[g] == last}
            if d.name in within:
                continue
            if d.name in biases:
                self.group[d.name] = next(self.group[n] for n in self.above[d.name] if n in self.group)
            elif not self._alone(d) and beside and all(self._fits(d, g) for g in beside):
                first = min(beside)
                self.group = {n: first if g in beside else g for n, g in self.group.items()}
                self.group[d.name] = first
            else:
                self.group[d.name] = len(self.level)
                self.level.append(last + 1)
        return [self._estimate(g) for g in dict.fromkeys(self.group.values())]

    def _estimate(self, group: int) -> KernelEstimate:
        members = [d for d in self.stored if self.group.get(d.name) == group]
        call = self.calls.get(members[-1].name)
        if call is not None:
            times = attention_times(call, members[-1].dtype, self.device)
            return kernel_estimate(members[-1].name, times, self.device.launch_overhead_s)
        if self._alone(members[0]):
            members = members[:1]
        inside = {d.name for d in members}
        written = {n for n in inside if n in self.returned or not self.readers[n] <= inside}
        return launched(members, self.program, self.device, self.hints, written or {members[-1].name})

    def _attentions(self) -> set[str]:
        """What is within a call of fused attention; the calls are `calls`."""
        found: set[str] = set()
        for name, before in attentions(self.program).items():
            within = {n for n in before if n in self.above}
            size = self._attention(name, within)
            if (
                size is not None
                and all(self.readers[n] <= within | {name} for n in within)
                and within.isdisjoint(self.returned)
            ):
                self.calls[name] = size
                found |= within
        return found

    def _attention(self, name: str, within: set[str]) -> AttentionExtents | None:
        """How large it is; None where it is of a type that no fused kernel is fast for."""
        last = self.program.definition(name)
        scores = [p for n in within for p in work(self.program.definition(n).expr).products]
        if len(scores) != 1 or not last.dtype.is_half:
            return None
        (values,) = work(last.expr).products
        (first,) = scores
        keys = int(self._over(values.depth))
        rows = int(self._over(first.rows) * self._over(first.columns)) // max(keys, 1)
        width = int(self._over(values.rows) * self._over(values.columns)) // max(rows, 1)
        heads = int(self._over(first.batch))
        masked = any(isinstance(e, Position) for n in within for e in walk(self.program.definition(n).expr))
        columns = max(width, int(self._over(first.depth)))
        return AttentionExtents(heads, 1, rows, keys, columns, last.dtype.bytes, masked and rows == keys, copied=False)

    def _alone(self, d: Definition) -> bool:
        """Whether it is a call: of attention, or of a product of matrices."""
        products = work(d.expr).products
        sides = [(self._over(p.rows), self._over(p.columns)) for p in products if p.is_matrix]
        return d.name in self.calls or any(min(s) > 1 for s in sides)

    def _fits(self, d: Definition, group: int) -> bool:
        """Whether the group is pointwise, or an operator is at the points of one of it, or at the rows of a reduction.

        What it sums over rows of a reduction is there when all of them are: that is another launch.
        """
        members = [m for m in self.stored if self.group.get(m.name) == group]
        if any(self._alone(m) for m in members):
            return False
        if not any(isinstance(e, Reduce) for m in members for e in walk(m.expr)):
            return True  # It is written into what reads it.
        reduced = {self._over(m.axes) for m in members if self._points(m) > self._over(m.axes)}
        late = {m.name for m in members if self._over(m.axes) in reduced}
        for e in (e for part in walk(d.expr) if isinstance(part, Reduce) for e in walk(part.body)):
            if isinstance(e, Read) and stored_above(e.tensor, self.program) & late and not free_axes(e) <= {*d.axes}:
                return False
        rows = [self._over(m.axes) for m in members if m.name in self.above[d.name]]
        return self._points(d) in (*map(self._points, members), *rows)

    def _points(self, d: Definition) -> float:
        bodies = [e.body for e in walk(d.expr) if isinstance(e, Reduce)]
        return max([self._over(d.axes), *(self._over(free_axes(b)) for b in bodies)])

    def _over(self, axes: Iterable[Axis]) -> float:
        return float(math.prod(value(a.extent, self.hints) for a in axes))

    def _read(self, d: Definition) -> frozenset[str]:
        tensors = {e.tensor for e in walk(d.expr) if isinstance(e, Read)}
        return frozenset(n for t in tensors for n in stored_above(t, self.program))
