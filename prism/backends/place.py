"""Which place of its grid a program has: the index along every axis, in whichever language."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prism.backends.source import IntegerPrinter, Lines
from prism.backends.tile import GridAxis, TileProgram


def write_place(
    program: TileProgram, number: str, w: Lines, printer: IntegerPrinter, fresh: Callable[[str], str]
) -> None:
    """Writes the indices, of which the last axis's changes fastest.

    `number` holds the program's number, and may be changed; `fresh` makes a name that is not taken of what it should be
    called.
    """
    grid: Sequence[GridAxis] = program.grid
    over = printer.quotient[0]

    def index(g: GridAxis, source: str) -> None:
        """The index along one axis; `source`, a term, is what it would be if it counted up."""
        w.let(printer.name(g.index), f"{printer.factor(g.count)} - 1 - {source}" if g.reversed else source)

    if program.sections is not None and len(grid) > 1:
        # One axis changes last in a section; the number is then the place along the others.
        (own,) = (g for g in grid if g.index == program.sections.index)
        grid = [g for g in grid if g is not own]
        length, total = printer.factor(own.count), " * ".join(printer.factor(g.count) for g in grid)
        rows, first, count, inside = map(fresh, ("section", "section_first", "section_rows", "pid_in_section"))
        w.let(rows, f"{printer.cdiv}({program.sections.programs}, {length})")
        w.let(first, f"{number} {over} ({rows} * {length}) * {rows}")
        w.let(count, f"{printer.least}({total} - {first}, {rows})")
        w.let(inside, f"{number} % ({rows} * {length})")
        index(own, f"{inside} {over} {count}")
        w.let(number, f"{first} + {inside} % {count}", again=True)
    groups = program.groups
    for n, g in reversed(list(enumerate(grid))):
        if groups is not None and g.index == groups.slow:
            continue
        if groups is not None and g.index == groups.fast:
            # Groups of rows, of which the last may be smaller.
            slow, inside = grid[n - 1], number
            rows, columns = printer.factor(slow.count), printer.factor(g.count)
            if n > 1:
                inside = fresh("pid_in_layer")
                w.let(inside, f"{number} % ({rows} * {columns})")
                w.let(number, f"{number} {over} ({rows} * {columns})", again=True)
            first, count = fresh("group_first"), fresh("group_rows")
            w.let(first, f"{inside} {over} ({groups.size} * {columns}) * {groups.size}")
            w.let(count, f"{printer.least}({rows} - {first}, {groups.size})")
            place = f"{inside} % ({groups.size} * {columns})"
            row = f"{first} + {place} % {count}"
            index(slow, f"({row})" if slow.reversed else row)
            index(g, f"{place} {over} {count}")
        elif n == 0:
            index(g, number)
        else:
            size = printer.operand(g.count)
            index(g, f"{number} % {size}")
            w.let(number, f"{number} {over} {size}", again=True)
