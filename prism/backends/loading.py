"""Emitted modules, imported from their files, by the standard library alone: a child that measures has no more."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from prism.errors import BackendError


def load_module(path: Path, *, apart: bool = False) -> ModuleType:
    """Import an emitted module by path.

    Its name comes from its text: Triton's disk cache keys on the name of the kernel's module, and the process that
    times a kernel shall find what the process that compiled it left there. `apart` is whether the same text in another
    folder is another module, as it is where files beside it count.

    Raises:
        BackendError: the file cannot be imported.
    """
    data = path.read_bytes() + (str(path.resolve()).encode() if apart else b"")
    digest = hashlib.sha256(data).hexdigest()[:16]
    name = f"prism_emitted_{re.sub(r'[^0-9a-zA-Z_]', '_', path.stem)}_{digest}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BackendError("an emitted module cannot be imported", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[name]
        raise
    return module
