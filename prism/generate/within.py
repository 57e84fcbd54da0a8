"""What lies within a kernel: the e-classes between those that it computes and those that it reads back.

Plans of one form cut it in a hundred ways, and most of their kernels are those of other plans: each is walked once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prism.generate.options import Choices, below
from prism.program.index import Axis


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """What a kernel goes through; one object for one kernel of a form, so it can be a key.

    Attributes:
        used: the e-classes, operands before results; also those that are read back.
        back: those that are stored and not the kernel's own.
    """

    used: tuple[int, ...]
    back: frozenset[int]


@dataclass(slots=True)
class Within:
    """Finds what kernels of a form go through.

    Attributes:
        choices: the form.
        reduced: the axes that each e-class's choice reduces.
    """

    choices: Choices
    reduced: Mapping[int, frozenset[Axis]] = field(init=False)
    _bit: dict[int, int] = field(init=False)
    _under: dict[int, int] = field(default_factory=dict)
    _known: dict[tuple[tuple[int, ...], int], Inside] = field(default_factory=dict)
    _each: dict[tuple[tuple[int, ...], frozenset[int]], Inside] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reduced = {c: choice.reduced for c, choice in self.choices.items()}
        self._bit = {c: 1 << n for n, c in enumerate(self.choices)}

    def of(self, own: Sequence[int], stored: Mapping[int, object]) -> Inside:
        """What the kernel that computes these e-classes goes through, where some are stored."""
        roots = tuple(own)
        under, mine = 0, 0
        for c in roots:
            under |= self._below(c)
            mine |= self._bit[c]
        held = 0
        for c in stored:
            held |= self._bit[c]
        key = roots, held & under & ~mine
        known = self._known.get(key)
        if known is None:
            used = tuple(below(self.choices, roots, stored))
            back = frozenset(c for c in used if c in stored and c not in roots)
            # What is stored under something else that is read back does not matter.
            known = self._known[key] = self._each.setdefault((roots, back), Inside(used, back))
        return known

    def needs(self, root: int, cls: int) -> bool:
        """Whether one e-class is computed from another, or is it."""
        return bool(self._below(root) & self._bit.get(cls, 0))

    def _below(self, root: int) -> int:
        """The e-classes that one is computed from and itself, as bits."""
        if root not in self._under:
            for c in below(self.choices, [root], self._under):
                mine = self._bit[c]
                for k in self.choices[c].children:
                    mine |= self._under[k]
                self._under.setdefault(c, mine)
        return self._under[root]
