"""Programs that do more come first, so that few multiprocessors are left alone with long ones at the end of a launch.

Where a loop has a range (causal attention) a program's work grows along an axis of the grid, as the tiles that it
visits do. Handing out the longest first is Graham's LPT rule ("Bounds on multiprocessing timing anomalies", 1969): a
launch ends at most a short program after it could, where in ascending order it may be a long one. Two steps:

- along such an axis programs count down (`GridAxis.reversed`, set by lowering): in every backend;
- with many heads that is not enough, as each head has its long programs and its short ones: `Sections` hand out the
  long ones of many heads first. A section holds about SECTION programs, twice what a large GPU runs at a time, and not
  all: what the programs of a head share (keys and values) is at most that of SECTION tiles, which an L2 cache holds.

A CPU has few threads, that each take the next program when they are done, and caches that want a head's programs
together: there the first step is all.
"""

from __future__ import annotations

from dataclasses import replace

from prism.backends.tile import Sections, TileProgram
from prism.sgraph.load_balance import SECTION


def in_sections(program: TileProgram) -> TileProgram:
    """The program, in sections where an axis counts down and groups do not order its grid already.

    Args:
        program: a legal tile program.
    """
    down = [g.index for g in program.grid if g.reversed]
    if not down or len(program.grid) < 2 or program.groups is not None:
        return program
    return replace(program, sections=Sections(down[0], SECTION))
