"""The place of a program in the grid, from its number: groups, sections and axes that count down (backends/tile.py)."""

from __future__ import annotations

from collections.abc import Sequence

from prism.backends.source import KERNEL, Writer
from prism.backends.tile import GridAxis, Groups, Sections, TileProgram
from prism.backends.tile_rename import names_beside


def write_place(program: TileProgram, number: str, writer: Writer) -> None:
    """Assigns the index along every axis of the grid, the last axis fastest.

    Args:
        program: the tile program.
        number: what holds its number and may be changed, `pid`; empty where it is yet to be asked for.
        writer: where it is written.
    """
    grid: Sequence[GridAxis] = program.grid
    if not grid:
        return
    if len(grid) == 1:
        _index(grid[0], number or "tl.program_id(0)", writer)
        return
    if not number:
        writer.line("pid = tl.program_id(0)")
    if program.sections is not None:
        grid = _sections(program, program.sections, writer)
    groups = program.groups
    for n, g in reversed(list(enumerate(grid))):
        if groups is not None and g.index == groups.slow:
            continue
        if groups is not None and g.index == groups.fast:
            _grouped(program, n, groups, writer)
            continue
        if n == 0:
            _index(g, "pid", writer)
            break
        count = KERNEL.factor(g.count)
        _index(g, f"pid % {count}", writer)
        writer.line(f"pid = pid // {count}")


def _index(g: GridAxis, source: str, writer: Writer) -> None:
    """The index along one axis; `source`, a term, is what it would be if it counted up."""
    writer.line(f"{g.index} = {KERNEL.factor(g.count)} - 1 - {source}" if g.reversed else f"{g.index} = {source}")


def _grouped(program: TileProgram, n: int, groups: Groups, w: Writer) -> None:
    """The indices along the axes n-1 and n of the grid: groups of programs, of which the last may be smaller."""
    slow, fast = program.grid[n - 1], program.grid[n]
    names, size = names_beside(program), groups.size
    rows, columns = (KERNEL.factor(g.count) for g in (slow, fast))
    inside = "pid"
    if n > 1:
        inside = names.fresh("pid_in_layer")
        w.line(f"{inside} = pid % ({rows} * {columns})")
        w.line(f"pid = pid // ({rows} * {columns})")
    first, count = names.fresh("group_first"), names.fresh("group_rows")
    w.line(f"{first} = {inside} // ({size} * {columns}) * {size}")
    w.line(f"{count} = tl.minimum({rows} - {first}, {size})")
    row = f"{first} + {inside} % ({size} * {columns}) % {count}"
    _index(slow, f"({row})" if slow.reversed else row, w)
    _index(fast, f"{inside} % ({size} * {columns}) // {count}", w)


def _sections(program: TileProgram, sections: Sections, w: Writer) -> list[GridAxis]:
    """The index along the axis that changes last in a section; the other axes, whose place `pid` is then."""
    others = [g for g in program.grid if g.index != sections.index]
    (own,) = (g for g in program.grid if g.index == sections.index)
    names = names_beside(program)
    rows, first, count, inside = (
        names.fresh(base) for base in ("section", "section_first", "section_rows", "pid_in_section")
    )
    length, total = KERNEL.factor(own.count), " * ".join(KERNEL.factor(g.count) for g in others)
    w.line(f"{rows} = tl.cdiv({sections.programs}, {length})")
    w.line(f"{first} = pid // ({rows} * {length}) * {rows}")
    w.line(f"{count} = tl.minimum({total} - {first}, {rows})")
    w.line(f"{inside} = pid % ({rows} * {length})")
    _index(own, f"{inside} // {count}", w)
    w.line(f"pid = {first} + {inside} % {count}")
    return others
