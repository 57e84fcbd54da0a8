"""Pickles that hold data alone: prism's frozen dataclasses and enumerations, sympy's expressions, and Python's own.

What is read was written by prism, to the user's own folder; but folders are copied, and a pickle of any kind may run
anything. So nothing else is ever looked up, and a file that was cut off or changed is told by its hash.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import zlib
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

_HASH = hashlib.sha256
_OTHERS = frozenset(
    {
        ("builtins", "frozenset"),
        ("builtins", "set"),
        ("builtins", "complex"),
        ("collections", "OrderedDict"),
        ("fractions", "Fraction"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
    }
)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OTHERS:
            return super().find_class(module, name)
        if module.partition(".")[0] in ("prism", "sympy") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and _is_data(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no data")


def _is_data(kind: type) -> bool:
    if kind.__module__.startswith("prism."):
        return is_dataclass(kind) or issubclass(kind, Enum)
    import sympy

    return issubclass(kind, sympy.Basic)


def dumps(value: object) -> bytes:
    """The value as bytes, which say whether they are whole."""
    data = zlib.compress(pickle.dumps(value, protocol=5), 1)
    return _HASH(data).digest() + data


def loads(data: bytes) -> object | None:
    """What `dumps` was given; None where the bytes are damaged, or hold something else than data."""
    length = _HASH().digest_size
    if _HASH(data[length:]).digest() != data[:length]:
        return None
    try:
        found: object = _Reader(io.BytesIO(zlib.decompress(data[length:]))).load()
    except Exception:  # whatever unpickling makes of what another version wrote
        return None
    return found
