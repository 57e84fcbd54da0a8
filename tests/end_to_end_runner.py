"""Calls an emitted launcher in Triton's interpreter, in a process where prism cannot be imported.

    python end_to_end_runner.py MODULE ENTRY INPUTS.pt OUTPUTS.pt INTERPRETER.py

INPUTS.pt holds a list of the launcher's arguments that are not weights of the model. INTERPRETER.py is the script that
makes the interpreter stricter, and right on bfloat16, which it otherwise keeps as integers.
"""

import importlib.util
import sys
from types import ModuleType

sys.modules["prism"] = None  # type: ignore[assignment]


def load(path: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    path, entry, given, results, interpreter = sys.argv[1:]
    load(interpreter, "interpreter").harden()
    import torch

    found = getattr(load(path, "emitted"), entry)(*torch.load(given))
    torch.save(list(found) if isinstance(found, tuple) else [found], results)


main()
