"""Loops that Triton pipelines only when it is told to, loop by loop.

A launch's `num_stages` pipelines loads that feed matrix products (`tl.dot`) and no others: a loop without any, over the
rows of a matrix times a vector or the tiles of a norm, waits for each of its loads in turn. `tl.range(num_stages=...)`
pipelines those as well, by asynchronous copies, so such loops are written with the launch's number of stages, which the
kernel then has as a parameter.
"""

from __future__ import annotations

from prism.backends.source import fresh
from prism.backends.tile import Dot, For, Load, TileLaunch, TileProgram, statements
from prism.backends.tile_rename import names_beside
from prism.backends.triton.options.folded import Tail


def is_plain(loop: For) -> bool:
    """Whether the loop loads tiles and neither multiplies matrices nor holds another loop."""
    body = list(statements(loop.body))
    return not any(isinstance(s, Dot | For) for s in body) and any(isinstance(s, Load) and s.dims for s in body)


def has_plain_loops(program: TileProgram) -> bool:
    """Whether the program has loops that are told their stages."""
    return any(isinstance(s, For) and is_plain(s) for s in statements(program.body))


def stages_parameter(launch: TileLaunch, tail: Tail | None = None) -> str:
    """The parameter of the launch's function for its stages; nothing where no loop asks for them.

    Args:
        launch: the launch.
        tail: how it goes on, where it is a split's.
    """
    if not any(map(has_plain_loops, launch.programs)):
        return ""
    taken = {n for p in launch.programs for n in names_beside(p).taken}
    if tail is not None:
        taken |= {*tail.lengths, *(c.name for c in tail.constants), *tail.arguments, tail.arrivals, tail.flag}
    return fresh("STAGES", taken)
