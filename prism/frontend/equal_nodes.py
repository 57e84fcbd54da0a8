"""Which nodes of a model are translated alike: of twelve equal layers one has to be compared with the model.

Two nodes are equal where nothing tells them apart but names: their operators and attributes, their operands' shapes,
types and bounds, the constants that are looked into, and the formulas that the reader made of them. Whether such a
formula is the node is one question, whatever the numbers are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from prism.frontend.state import State, Value
from prism.program.conformance import Claim
from prism.program.nodes import Definition, Program
from prism.program.transform import with_tensors

# Up to so many elements a constant of whole numbers counts by its elements, beyond by its bounds.
_LISTED = 4096


@dataclass(frozen=True, slots=True)
class Step:
    """A node of a model."""

    what: Hashable  # its operator, with everything that the node itself fixes; its name is none of that
    operands: tuple[Value | None, ...]  # what stands for each value that it reads, None for what is no tensor
    results: tuple[str, ...]  # the names of the values that it makes


def equal_nodes(program: Program, claims: Sequence[Claim], steps: Iterable[Step], state: State) -> dict[str, str]:
    """For each value of a node that is equal to an earlier one, the earlier one's value.

    `claims` are what the reader says of the model's values, `steps` the model's nodes, in order, and `state` what the
    reader knew of the program's tensors.
    """
    return _Equal(program, claims, state).of(list(steps))


class _Equal:
    def __init__(self, program: Program, claims: Sequence[Claim], state: State) -> None:
        self._state = state
        self._definitions = {d.name: d for d in program.definitions}
        self._weights = program.weights
        self._held = {id(w): name for name, w in program.weights.items()}
        self._claims: dict[str, list[Claim]] = {}
        self._first: dict[str, str] = {}  # the value that a tensor was defined as
        self._parts: dict[Hashable, str] = {}  # names for formulas
        for claim in claims:
            self._claims.setdefault(claim.value, []).append(claim)
            self._first.setdefault(claim.tensor, claim.value)

    def of(self, steps: Sequence[Step]) -> dict[str, str]:
        kept = self._kept(steps)
        found: dict[str, str] = {}
        known: dict[Hashable, Step] = {}
        for step in steps:
            if not kept.isdisjoint(step.results):
                continue
            same = known.setdefault(self._key(step), step)
            if same is not step:
                found |= dict(zip(step.results, same.results, strict=True))
        return found

    def _kept(self, steps: Sequence[Step]) -> set[str]:
        """Values that are computed in any case: the same tensor as others are, which is said of their own numbers."""
        found: set[str] = set()
        for step in steps:
            own = {self._tensor(v) for v in step.operands if v is not None}
            for claim in self._of(step):
                first = self._first.get(claim.tensor, "")
                if claim.tensor and first not in step.results:
                    found.add(claim.value)
                    if claim.tensor not in own:
                        found.add(first)
                elif claim.tensor and claim.tensor not in self._definitions:
                    found.add(claim.value)  # an input
        return found

    def _of(self, step: Step) -> list[Claim]:
        return [c for r in step.results for c in self._claims.get(r, ())]

    def _tensor(self, value: Value) -> str:
        return value.tensor or self._held.get(id(value.constant), "")

    def _key(self, step: Step) -> Hashable:
        names: dict[str, str] = {}
        for n, value in enumerate(step.operands):
            tensor = "" if value is None else self._tensor(value)
            if tensor:
                names.setdefault(tensor, f"operand {n}")
        for n, claim in enumerate(self._of(step)):
            if claim.tensor:
                names.setdefault(claim.tensor, f"result {n}")
        read: set[str] = set()

        def named(tensor: str) -> str:
            read.add(tensor)
            if tensor in names:
                return names[tensor]
            d = self._definitions.get(tensor)  # that of no node, but of a part of this one
            return tensor if d is None else self._parts.setdefault(said(d), f"part {len(self._parts)}")

        def said(d: Definition) -> Hashable:
            return d.dtype, d.axes, with_tensors([d.expr], named)[0]

        formulas = [
            (c.dtype, c.axes, c.expr) if c.expr is not None else (c.dtype, said(self._definitions[c.tensor]))
            for c in self._of(step)
        ]
        operands = [None if v is None else (self._facts(v, read), names.get(self._tensor(v))) for v in step.operands]
        return step.what, tuple(formulas), tuple(operands)

    def _facts(self, value: Value, read: set[str]) -> Hashable:
        """What a translation may hang on of an operand."""
        stated = (value.shape, value.dtype)
        if value.formula is not None:
            return *stated, value.axes, value.formula
        tensor = self._tensor(value)
        constant = self._weights.get(tensor) if value.constant is None else value.constant
        constant = None if constant is None else np.asarray(constant)
        bounds = self._state.bounds_of(tensor) if tensor else None
        if constant is None or (tensor in read and (value.dtype.is_float or constant.size > _LISTED)):
            return *stated, bounds
        if constant.dtype == object:
            return *stated, tuple(map(str, constant.ravel()))
        return *stated, hashlib.sha256(np.ascontiguousarray(constant).tobytes()).hexdigest()
