"""Which programs of a kernel do more than others: those that visit more tiles of a loop with a range.

Handing out the longest first is Graham's LPT rule ("Bounds on multiprocessing timing anomalies", 1969): a launch ends
at most a short program after it could, where in ascending order it may be a long one. So along `growing` axes programs
count down, in every backend (`GridAxis.reversed`, set by lowering).
"""

from __future__ import annotations

from prism.program.index import Axis, Index
from prism.sgraph.nodes import Grid, Kernel, Loop
from prism.sgraph.ranges import sign

SECTION = 512
"""Programs of a section, at least, where there are as many."""


def growing(kernel: Kernel) -> tuple[Axis, ...]:
    """The grid axes along which programs get longer, in the order of the roles.

    A condition slope*j + c*i + ... >= 0 holds for more j as i grows where c > 0, and for fewer where c < 0, whatever
    the sign of the slope: an axis grows where no condition of any loop has it with c < 0, or an unknown sign.
    """
    conditions = _conditions(kernel)
    terms = [(axis, sign(c)) for condition in conditions for axis, c in condition.terms]
    more = {axis for axis, way in terms if way > 0}
    less = {axis for axis, way in terms if way <= 0}
    return tuple(a for a, role in kernel.roles if isinstance(role, Grid) and a in more - less and a.extent != 1)


def ordered(kernel: Kernel) -> bool:
    """Whether no program is longer than one that comes before it, where the grid counts down along `growing` axes.

    It is taken to hold where there is such an axis, also if lengths depend on others besides.
    """
    return bool(growing(kernel)) or not _conditions(kernel)


def _conditions(kernel: Kernel) -> list[Index]:
    return [c for s in kernel.statements() if isinstance(s, Loop) for c in s.range]
