"""A user's own model as a case: prepared from its program, or with the kernels of an output folder of his."""

from __future__ import annotations

import ast
import keyword
import pickle
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prism.backends.tile import identifier
from prism.bench.suite import Argument, Case, Workload
from prism.errors import UsageError
from prism.instantiate.options import foreign
from prism.program.extents import evaluate
from prism.program.nodes import Program, Tensor
from prism.sgraph.config import Config

PROGRAM = "program.pickle"


def own_case(program: Program) -> Case:
    """The program at its hints as a case; its floor counts bytes alone, as nothing says which operations are needed."""

    def argument(t: Tensor) -> Argument:
        shape = tuple(evaluate(e, program.hints) for e in t.shape)
        held = program.weights.get(t.name)
        if held is None or not t.dtype.is_float:
            return Argument(t.name, shape, t.dtype.value)
        values = np.asarray(held, dtype=np.float64)
        return Argument(t.name, shape, t.dtype.value, float(values.std()), float(values.mean()))

    inputs = tuple(argument(t) for t in program.inputs)
    outputs = tuple(argument(program.tensor(n)) for n in program.outputs)
    workload = Workload(program.name, lambda _: inputs, lambda _: outputs, lambda _: 0.0, {})
    return Case(program.name, "own", workload, dict(program.hints))


def save_program(program: Program, folder: Path) -> str:
    """Write the program where the measuring child finds it; its name in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_bytes(pickle.dumps(program))
    return PROGRAM


def from_output(record: Mapping[str, Any], program: Program, output: Path, folder: Path) -> dict[str, Any]:
    """The case's record with the module and the configurations of an output folder of `prism optimize`.

    Args:
        record: the case, as `describe` gives it.
        program: the model that the folder was made of.
        output: the output folder.
        folder: where the record's modules lie; the module is copied there.

    Raises:
        UsageError: the folder holds no Triton module, or one of another model.
    """
    source = next((p for p in sorted(output.glob("*.py")) if "def launches(" in p.read_text("utf-8")), None)
    if source is None:
        raise UsageError("there is no Triton module in it", where=str(output), fix="give a folder of prism optimize")
    configs, arguments = module_facts(source.read_text("utf-8"))
    names = {_host(t.name): n for n, t in enumerate(program.inputs)}
    many = len(arguments) - len(program.outputs)
    if not configs or any(a not in names for a in arguments[:many]):
        raise UsageError(
            "the kernels are of another model",
            where=str(source),
            why=f"they take {', '.join(arguments[:many])}",
            fix=f"give the folder that prism optimize wrote for {program.name}",
        )
    (folder / "modules").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / "modules" / source.name)
    plain = [{name: chosen for name, chosen in c.items() if name != "shapes"} for c in configs]
    entries: list[dict[str, Any]] = [
        {"config": c, "key": str(c), "model_us": None, "estimate_us": float(n), "resources": [], "limiter": ""}
        for n, c in enumerate(plain)
    ]
    candidate = {
        "module": f"modules/{source.name}",
        "sgraph": (output / "sgraph.txt").read_text("utf-8") if (output / "sgraph.txt").exists() else "",
        "kernels": sorted([*plain[0]["warps"], *foreign(Config.decode(plain[0]))]),
        "takes": [names[a] for a in arguments[:many]],
        "configs": entries,
    }
    return {**record, "candidates": [candidate], "best": {"candidate": 0, "config": 0}}


def module_facts(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """(the configurations of all targets, the arguments of `launches`) of an emitted module, without running it."""
    configs: list[dict[str, Any]] = []
    arguments: Sequence[str] = ()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "CONFIGS" for t in node.targets):
            configs = [c for entries in ast.literal_eval(node.value).values() for c in entries]
        if isinstance(node, ast.FunctionDef) and node.name == "launches":
            arguments = [a.arg for a in node.args.args]
    return configs, list(arguments)


def _host(name: str) -> str:
    made = identifier(name)
    return f"{made}_" if keyword.iskeyword(made) else made
