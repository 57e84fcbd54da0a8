"""Pickles that hold data alone: prism's frozen dataclasses and enumerations, extents, and Python's own.

What is read was written by prism, to the user's own folder; but folders are copied, and a pickle of any kind may run
anything. So nothing else is ever looked up, and a file that was cut off or changed is told by its hash. sympy's classes
are not looked up either, since most of them evaluate the text that they are given: extents go as text, which
`prism.program.extents` reads.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import zlib
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import sympy

from prism.program.extents import ExtentError, from_text

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


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self._texts: dict[sympy.Basic, str] = {}

    def persistent_id(self, value: Any) -> str | None:
        if not isinstance(value, sympy.Basic):
            return None
        if value not in self._texts:
            text = str(value)
            if sympy.sympify(from_text(text)) != value:
                raise pickle.PicklingError(f"{text} is no extent")
            self._texts[value] = text
        return self._texts[value]


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._extents: dict[str, sympy.Basic] = {}

    def persistent_load(self, text: Any) -> sympy.Basic:
        if text not in self._extents:
            self._extents[text] = sympy.sympify(from_text(text))
        return self._extents[text]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OTHERS:
            return super().find_class(module, name)
        if module.partition(".")[0] == "prism" and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__.startswith("prism.") and _is_data(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no data")


def _is_data(kind: type) -> bool:
    return is_dataclass(kind) or issubclass(kind, Enum)


def dumps(value: object) -> bytes:
    """The value as bytes, which say whether they are whole.

    Raises:
        pickle.PicklingError: it holds what is neither data nor an extent.
    """
    file = io.BytesIO()
    try:
        _Writer(file).dump(value)
    except ExtentError as error:
        raise pickle.PicklingError(str(error)) from error
    data = zlib.compress(file.getvalue(), 1)
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
