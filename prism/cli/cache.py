"""`prism cache`: what earlier runs found, looked at, taken to another machine, and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from prism.errors import ExitCode


def cache_app() -> App:
    """The commands below `prism cache`."""
    app = App(
        name="cache",
        help="What earlier runs found (searches, proofs, measurements), used again by runs of the same model.",
    )
    app.command(status)
    app.command(export_cache, name="export")
    app.command(import_cache, name="import")
    app.command(clear_cache, name="clear")
    return app


def status(*, json: Annotated[bool, Parameter(negative=())] = False) -> int:
    """Say where the cache is and what it holds.

    Args:
        json: print it as JSON.
    """
    import json as text

    from prism.cli.output import write_line
    from prism.folders import cache_root
    from prism.instantiate.cache import KINDS, holdings
    from prism.report.units import size

    root = cache_root()
    found = holdings(root)
    if json:
        kinds = {h.kind: {"entries": h.entries, "bytes": h.size} for h in found}
        write_line(text.dumps({"folder": str(root), "kinds": kinds}))
        return ExitCode.DONE
    rows = [(h.kind, str(h.entries), size(h.size), KINDS[h.kind]) for h in found if h.entries]
    total = ("total", str(sum(h.entries for h in found)), size(sum(h.size for h in found)), "")
    widths = [max(len(row[n]) for row in (*rows, total)) for n in range(3)]
    lines = [
        f"{kind.ljust(widths[0])}  {n.rjust(widths[1])}  {size.rjust(widths[2])}  {what}".rstrip()
        for kind, n, size, what in (*rows, total)
    ]
    write_line("\n".join([str(root), *lines]))
    return ExitCode.DONE


def export_cache(file: Path, /) -> int:
    """Write what earlier runs found to an archive (.tar.gz), for `prism cache import` elsewhere.

    Measurements in it are used on machines of the same processor, compiler and versions alone; searches and proofs on
    all that have the same versions.

    Args:
        file: the archive; it is replaced.
    """
    from prism.cli.output import write_line
    from prism.folders import cache_root
    from prism.instantiate.cache import export

    write_line(f"{export(cache_root(), file)} entries written to {file}")
    return ExitCode.DONE


def import_cache(file: Path, /) -> int:
    """Take in what an archive of `prism cache export` holds; what is here already stays as it is.

    What is taken in is believed: proofs, checks and measurements in it are not made again. `prism verify` proves a
    folder anew, whoever made it.

    Args:
        file: the archive.
    """
    from prism.cli.output import write_line
    from prism.folders import cache_root
    from prism.instantiate.cache import take

    taken, known = take(cache_root(), file)
    write_line(f"{taken} entries taken from {file}" + (f", {known} were here already" if known else ""))
    return ExitCode.DONE


def clear_cache() -> int:
    """Delete what the cache holds. Always safe: it costs the time to find it again."""
    from prism.cli.output import write_line
    from prism.folders import cache_root
    from prism.instantiate.cache import clear
    from prism.report.units import size

    root = cache_root()
    found = clear(root)
    write_line(f"{sum(h.entries for h in found)} entries, {size(sum(h.size for h in found))}, deleted from {root}")
    return ExitCode.DONE
