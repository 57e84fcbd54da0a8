"""The JSON files of an output folder: the one place where records become bytes, and bytes records again.

Every file names its schema and version first. A reader refuses a schema that it does not know; a new optional field
keeps the version, anything else raises it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from prism.errors import UsageError
from prism.events import LockRecord, ModelReport, ProofRecord, RunReport

REPORT_SCHEMA = "prism.report/1"
PROOF_SCHEMA = "prism.proof/1"
LOCK_SCHEMA = "prism.lock/1"
MODEL_SCHEMA = "prism.model/1"
MODEL_LOCK_SCHEMA = "prism.model-lock/1"
"""Of a folder of parts: it lists its own files, and the lock files of the folders within it."""

_SCHEMAS: Mapping[type, str] = {
    RunReport: REPORT_SCHEMA,
    ProofRecord: PROOF_SCHEMA,
    LockRecord: LOCK_SCHEMA,
    ModelReport: MODEL_SCHEMA,
}

R = TypeVar("R", RunReport, ProofRecord, LockRecord, ModelReport)


def to_json(record: RunReport | ProofRecord | LockRecord | ModelReport, **extra: object) -> bytes:
    """The record as indented JSON that begins with its schema; `extra` fields come last.

    Equal records give equal bytes. A float that is not a number is written as null, as JSON demands.
    """
    body: dict[str, Any] = {"schema": _SCHEMAS[type(record)], **msgspec.to_builtins(record), **extra}
    if isinstance(record, RunReport):
        body["speedup"] = record.speedup
    return msgspec.json.format(msgspec.json.encode(body), indent=2) + b"\n"


def from_json(data: bytes, kind: type[R], *, where: str = "") -> R:
    """Read a record back.

    Raises:
        UsageError: not JSON, another schema or version, or fields missing or of the wrong type.
    """
    schema = _SCHEMAS[kind]
    body = _object(data, schema, where)
    found = body.get("schema")
    if found != schema:
        raise UsageError(
            f"not a {schema} record",
            where=where,
            why=f"its schema is {found!r}",
            fix="use the version of prism that wrote it, or run prism optimize again",
        )
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as e:
        raise UsageError(f"a damaged {schema} record", where=where, why=str(e), fix="run prism optimize again") from e


def recorded_files(data: bytes, *, where: str = "") -> dict[str, str]:
    """From a lock file's bytes: the files of its folder, by name, with the SHA-256 of each.

    Raises:
        UsageError: it is no lock file of prism.
    """
    body = _object(data, LOCK_SCHEMA, where)
    files = body.get("files")
    known = body.get("schema") in (LOCK_SCHEMA, MODEL_LOCK_SCHEMA)
    if not known or not isinstance(files, dict):
        why = "its files are no names with hashes" if known else "its schema is another one"
        raise UsageError(f"not a {LOCK_SCHEMA} record", where=where, why=why, fix="run prism optimize again")
    return {str(name): str(digest) for name, digest in files.items()}


def model_lock(files: Mapping[str, str], versions: Mapping[str, str]) -> bytes:
    """The lock file of a folder of parts: the SHA-256 of its files, and of the lock files of the folders within it."""
    body = {"schema": MODEL_LOCK_SCHEMA, "versions": dict(versions), "files": dict(sorted(files.items()))}
    return msgspec.json.format(msgspec.json.encode(body), indent=2) + b"\n"


def is_model_lock(data: bytes, *, where: str = "") -> bool:
    """Whether a lock file is that of a folder of parts.

    Raises:
        UsageError: it is not JSON.
    """
    return _object(data, LOCK_SCHEMA, where).get("schema") == MODEL_LOCK_SCHEMA


def _object(data: bytes, schema: str, where: str) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise UsageError(f"not a {schema} record", where=where, why=str(e)) from e
    if not isinstance(body, dict):
        raise UsageError(f"not a {schema} record", where=where, why="it is not a JSON object")
    return body
