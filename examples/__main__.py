"""Write every example's model again: `python -m examples [NAME ...]`."""

from __future__ import annotations

import sys

from examples.common import load_example, names, save


def main(wanted: list[str]) -> int:
    """Write the models of that name, all of them by default."""
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        print(f"no example named {', '.join(unknown)}; there are {', '.join(names())}", file=sys.stderr)
        return 2
    for name in wanted or names():
        print(save(load_example(name).build(), name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
