"""Runs an emitted module in Triton's interpreter, in a process where prism cannot be imported.

    python end_to_end_runner.py MODULE INPUTS.pt OUTPUTS.pt

INPUTS.pt holds a list of the launcher's tensors that are not weights, in order.
"""

import importlib.util
import inspect
import sys

sys.modules["prism"] = None  # type: ignore[assignment]

import torch  # noqa: E402 (prism must be out of reach before anything is loaded)


def main() -> None:
    path, given, results = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("emitted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["emitted"] = module
    spec.loader.exec_module(module)
    launcher = getattr(module, sys.argv[1].rsplit("/", 1)[-1].removesuffix(".py"))
    tensors = torch.load(given)
    names = [p.name for p in inspect.signature(launcher).parameters.values() if p.name != "config"]
    weights = module.load_weights("cpu") if hasattr(module, "load_weights") else {}
    rest = iter(tensors)
    found = launcher(*(weights[n] if n in weights else next(rest) for n in names))
    torch.save(list(found) if isinstance(found, tuple) else [found], results)


main()
