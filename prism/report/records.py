"""The JSON files of an output folder: the one place where records become bytes, and bytes records again.

Every file names its schema and version first. A reader refuses a schema that it does not know; a new optional field
keeps the version, anything else raises it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from prism.errors import UsageError
from prism.events import LockRecord, ModelReport, ProofRecord, RangedReport, RunReport

REPORT_SCHEMA = "prism.report/1"
PROOF_SCHEMA = "prism.proof/1"
LOCK_SCHEMA = "prism.lock/1"
MODEL_SCHEMA = "prism.model/1"
RANGES_SCHEMA = "prism.ranges/1"
MODEL_LOCK_SCHEMA = "prism.model-lock/1"
"""Of a model in parts: it lists the folder's own files, and the lock files of the folders within it."""
RANGES_LOCK_SCHEMA = "prism.ranges-lock/1"
"""Of kernels for ranges of shapes, of which each folder within is of the whole program: it lists the same."""

_SCHEMAS: Mapping[type, str] = {
    RunReport: REPORT_SCHEMA,
    ProofRecord: PROOF_SCHEMA,
    LockRecord: LOCK_SCHEMA,
    ModelReport: MODEL_SCHEMA,
    RangedReport: RANGES_SCHEMA,
}

R = TypeVar("R", RunReport, ProofRecord, LockRecord, ModelReport, RangedReport)


def to_json(record: RunReport | ProofRecord | LockRecord | ModelReport | RangedReport, **extra: object) -> bytes:
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
    known = body.get("schema") in (LOCK_SCHEMA, MODEL_LOCK_SCHEMA, RANGES_LOCK_SCHEMA)
    if not known or not isinstance(files, dict):
        why = "its files are no names with hashes" if known else "its schema is another one"
        raise UsageError(f"not a {LOCK_SCHEMA} record", where=where, why=why, fix="run prism optimize again")
    return {str(name): str(digest) for name, digest in files.items()}


def folders_lock(schema: str, files: Mapping[str, str], versions: Mapping[str, str]) -> bytes:
    """The lock file of a folder of folders: the SHA-256 of its files and of the lock files within those folders."""
    body = {"schema": schema, "versions": dict(versions), "files": dict(sorted(files.items()))}
    return msgspec.json.format(msgspec.json.encode(body), indent=2) + b"\n"


def lock_schema(data: bytes, *, where: str = "") -> str:
    """What a lock file says that it is. Raises UsageError: it is not JSON."""
    return str(_object(data, LOCK_SCHEMA, where).get("schema"))


def _object(data: bytes, schema: str, where: str) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise UsageError(f"not a {schema} record", where=where, why=str(e)) from e
    if not isinstance(body, dict):
        raise UsageError(f"not a {schema} record", where=where, why="it is not a JSON object")
    return body
