"""What `prism optimize` chose for a model, written whether or not it is better, from what the command stored.

python benchmarks/by_hand_anyway.py MODEL FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prism.api import load, optimize
from prism.backends.protocol import write_module
from prism.backends.weights import weights_file
from prism.report.records import to_json


def main(model: Path, folder: Path) -> None:
    """Write the module, its weights and the report."""
    program = load(model)
    made = optimize(program, target="cpu", only_better=False)
    if made.source is None:
        raise RuntimeError("nothing was emitted")
    folder.mkdir(parents=True, exist_ok=True)
    write_module(made.source, folder / f"{made.report.name}.py")
    weights = weights_file(program)
    if weights is not None:
        (folder / "weights.pt").write_bytes(bytes(weights))
    (folder / "report.json").write_bytes(to_json(made.report))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
