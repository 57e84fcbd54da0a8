"""The output folder: what is in it, and writing it whole or not at all.

    README.md            how to call the module, and what the other files are
    <name>.py            the module: Triton's needs torch and triton alone, C++'s a compiler and numpy
    *.cpp                its kernels, where they are C++
    weights.pt           the model's weights, when it has any
    proof.json           how the choice was proved
    derivation.json      the proof, step by step, for `prism verify` and `prism explain`; where there is none,
    replay.json          the two sides that the prover joined, to be proved again
    prism.lock.json      what it takes to make the choice again, and the SHA-256 of every file here
    report.json, .html   the run, for programs and for people
    sgraph.txt, .dot     the chosen sGraph, its symbols unbound
    sgraph.json          the same for programs: `prism verify` works out again what it computes
    program.txt          the model in index notation

There is no `__init__.py`: the module is one file that is imported by itself or copied elsewhere, and a folder with a
legal name is a namespace package anyway.

The files are written to a hidden sibling folder, flushed to disk, and renamed into place. An earlier output folder is
moved aside first and back if the last step fails; a large file of it that stays as it is, as weights mostly do, is the
same file in both. Only a folder that holds nothing but what its lock file lists is
ever replaced, so nobody's own files are lost.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path, PurePosixPath

from prism.contents import Content, is_there, put, sha256
from prism.errors import UsageError, VerificationError
from prism.events import Artifacts
from prism.report.html import render_html
from prism.report.records import folders_lock, recorded_files, to_json
from prism.report.usage import README_NAME, readme

LOCK_NAME = "prism.lock.json"
REPORT_NAME = "report.json"
WEIGHTS_NAME = "weights.pt"
_CACHES = ("__pycache__", "__cpp_cache__")
"""What Python, and a module of C++, leave beside the module when it is used."""
ROOM = 256 << 10
"""Bytes that must fit where the folder is to be before a run begins: a few times what a small model's takes."""
LARGEST = 256 << 20
"""The most bytes of a record, a certificate or an sGraph that are read from a folder."""


def render_folder(artifacts: Artifacts) -> dict[str, Content]:
    """The files of the output folder, by name; the lock file is last and holds the digests of all others."""
    report = artifacts.report
    files: dict[str, Content] = {
        module_name(report.name): artifacts.module.encode(),
        "proof.json": to_json(artifacts.proof),
        REPORT_NAME: to_json(report),
        "report.html": render_html(report, artifacts.proof).encode(),
        "sgraph.txt": _lines(report.sgraph_text),
        "sgraph.dot": _lines(report.sgraph_dot),
        "program.txt": _lines(artifacts.program),
    }
    files |= {name: text.encode() for name, text in artifacts.extra.items()}
    if artifacts.certificate is not None:
        files[certificate_name(artifacts.proof.rung)] = artifacts.certificate
    if artifacts.weights is not None:
        files[WEIGHTS_NAME] = artifacts.weights
    files[README_NAME] = readme(report, module_name(report.name), [*files, LOCK_NAME]).encode()
    digests = {name: sha256(data) for name, data in sorted(files.items())}
    files[LOCK_NAME] = to_json(artifacts.lock, files=digests)
    return files


def render_folders(
    schema: str,
    record: bytes,
    readme: Callable[[list[str]], str],
    files: Mapping[str, Content],
    versions: Mapping[str, str],
) -> dict[str, Content]:
    """The files of a folder of folders that tell of the others; the lock file is last.

    The README is of the names at the top; files are `folder/name` for those of the folders within.
    """
    made: dict[str, Content] = {REPORT_NAME: record}
    top = sorted({name.partition("/")[0] for name in (*files, *made, LOCK_NAME)})
    made[README_NAME] = readme(top).encode()
    every: dict[str, Content] = {**files, **made}
    listed = {n: d for n, d in every.items() if "/" not in n or n.partition("/")[2] == LOCK_NAME}
    made[LOCK_NAME] = folders_lock(schema, {n: sha256(d) for n, d in listed.items()}, versions)
    return made


def certificate_name(rung: str) -> str:
    """The certificate's file name, by its rung."""
    return f"{rung}.json"


def module_name(program: str) -> str:
    """The module's file name. With its folder on `sys.path`, it must not hide a module that it or torch imports."""
    hides = program in sys.stdlib_module_names or program in ("torch", "triton", "numpy")
    return f"{program}_kernels.py" if hides else f"{program}.py"


def read_file(folder: Path, name: str) -> bytes:
    """The bytes of a file of an output folder, which is not trusted.

    The name is as the folder states it.

    Raises:
        VerificationError: the name leads elsewhere, it is no regular file of the folder itself (a link, a folder, a
            device, a pipe), it is too large, or it cannot be read.
    """
    with _opened(folder, name, LARGEST) as file:
        return file.read(LARGEST)


def digest_of(folder: Path, name: str) -> str:
    """The SHA-256 of a file of an output folder, however large; what is refused is what `read_file` refuses."""
    with _opened(folder, name, None) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unlisted(folder: Path, recorded: Iterable[str]) -> list[str]:
    """What lies in the folder that its lock file does not list, caches of Python and of compiled kernels left out."""
    known = {name.partition("/")[0] for name in recorded}
    return sorted({entry.name for entry in folder.iterdir()} - known - {LOCK_NAME, *_CACHES})


@contextlib.contextmanager
def _opened(folder: Path, name: str, limit: int | None) -> Iterator[BufferedReader]:
    """A regular file that lies in the folder itself, open."""

    def refused(why: str) -> VerificationError:
        return VerificationError("it cannot be read", where=name, why=why, fix="run prism optimize again")

    if name in ("", ".", "..") or "\0" in name or Path(name).name != name:
        raise refused("it is not the name of a file of the folder itself, and nothing else is read")
    try:
        # Neither a link is followed nor a pipe waited for; what was opened is what is asked about.
        handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as e:
        link = e.errno in (errno.ELOOP, errno.EMLINK)
        raise refused("it is a symbolic link, and none is followed" if link else e.strerror or str(e)) from e
    status = os.fstat(handle)
    why = "" if stat.S_ISREG(status.st_mode) else "it is not a regular file"
    if limit is not None and status.st_size > limit:
        why = why or f"it has {status.st_size:,} bytes, and no more than {limit:,} are read"
    if why:
        os.close(handle)
        raise refused(why)
    with os.fdopen(handle, "rb") as file:
        yield file


def _lines(text: str) -> bytes:
    return (text.rstrip("\n") + "\n").encode()


def check_writable(out: Path) -> Path:
    """Make sure that the folder can be written, before a run spends minutes; changes nothing.

    Returns:
        The folder's absolute path, with links followed.

    Raises:
        UsageError: it exists and is not an earlier output folder, or it cannot be made where it is to be.
    """
    final = _admissible(out)
    # Parents that are missing are made when the folder is written; until then the nearest one that exists is tried.
    existing = next(p for p in final.parents if p.exists())
    with _staging(existing / final.name, out) as staged:
        put(staged / LOCK_NAME, bytes(ROOM), new=True)
    return final


def write_folder(out: Path, files: Mapping[str, Content | str]) -> Path:
    """Write the folder whole, replacing an earlier output folder; on any failure or interrupt, leave what was there.

    Args:
        out: the folder.
        files: plain file names with their contents, `folder/name` for those of a folder of parts, and of its parts';
            text is written as UTF-8.

    Returns:
        The folder's absolute path.

    Raises:
        UsageError: as `check_writable`, or the disk refused.
    """
    for name in files:
        inside = Path(name)
        plain = all(part not in (".", "..", *_CACHES) for part in inside.parts) and not inside.is_absolute()
        if not name or not plain or str(inside) != name:
            raise ValueError(f"not a plain file name: {name!r}")
    final = _admissible(out)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise _refused(out, e) from e
    with _staging(final, out) as staged:
        for name, data in files.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            content = data.encode() if isinstance(data, str) else data
            if not (is_there(final / name, content) and _linked(final / name, staged / name)):
                put(staged / name, content, new=True)
        for inner in {folder for name in files for folder in PurePosixPath(name).parents}:
            _sync_directory(staged / inner)
        _put_in_place(staged, final)
        _sync_directory(final.parent)
    return final


def _admissible(out: Path) -> Path:
    """The folder's resolved path, if it may be made or replaced."""
    try:
        final = out.resolve()
        if final == Path.cwd() or os.path.ismount(final):
            raise UsageError(
                "the output folder cannot be replaced",
                where=str(out),
                why="it is the current folder" if final == Path.cwd() else "it is a mount point",
                fix="name a new folder inside it with --out",
            )
        if final.is_dir():
            _replaceable(final, out)
            return final
        nearest = next(p for p in (final, *final.parents) if p.exists())
    except (OSError, RuntimeError) as e:  # RuntimeError: a loop of symbolic links (Python < 3.13)
        raise _refused(out, e) from e
    if not nearest.is_dir():
        raise _refused(out, "a file of that name exists" if nearest == final else f"{nearest} is not a folder")
    return final


def _replaceable(final: Path, out: Path) -> None:
    """Refuse a folder that holds anything but what prism wrote there."""
    present = {entry.name for entry in final.iterdir()} - set(_CACHES)
    if not present:
        return
    why, fix = "it exists and prism did not write it", "name another folder with --out"
    if LOCK_NAME in present:
        with contextlib.suppress(UsageError):
            known = {name.partition("/")[0] for name in recorded_files((final / LOCK_NAME).read_bytes())}
            foreign = sorted(present - known - {LOCK_NAME})
            why = f"it also holds {foreign[0]!r}, which prism did not write" if foreign else ""
            fix = "move that away, or name another folder with --out"
    if why:
        raise UsageError("the output folder would be overwritten", where=str(out), why=why, fix=fix)
    for inner in final.iterdir():  # of a model in parts
        if inner.is_dir() and not inner.is_symlink() and inner.name not in _CACHES:
            _replaceable(inner, out)


@contextlib.contextmanager
def _staging(final: Path, out: Path) -> Iterator[Path]:
    """A hidden sibling of the folder, gone at the end unless it was renamed."""
    staged = final.parent / f".{final.name[:64]}.{secrets.token_hex(6)}.tmp"
    try:
        # The name is known before the folder is made, so that an interrupt between the two still finds it; mkdir
        # rather than mkdtemp, so that the folder's mode follows the user's umask.
        staged.mkdir()
        yield staged
    except OSError as e:
        raise _refused(out, e) from e
    finally:
        _remove(staged)


def _refused(out: Path, why: Exception | str) -> UsageError:
    reason = (why.strerror if isinstance(why, OSError) else None) or str(why) or type(why).__name__
    return UsageError(
        "the output folder cannot be written", where=str(out), why=reason, fix="name another folder with --out"
    )


def _put_in_place(staged: Path, final: Path) -> None:
    """Rename staged to final; what was at final comes back if that fails."""
    aside = staged.with_suffix(".old")
    try:
        if final.is_dir():
            final.rename(aside)
        staged.rename(final)
    except BaseException:
        # Also on an interrupt: the state is read off the disk, since it may have struck between a rename and the
        # next statement.
        if aside.is_dir() and not final.exists():
            aside.rename(final)
        raise
    finally:
        if final.exists():
            _remove(aside)


def _remove(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there; an interrupt waits until it is gone."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _linked(there: Path, path: Path) -> bool:
    """Give the file of an earlier folder a name in the one that takes its place: whether the file system does so."""
    try:
        path.hardlink_to(there)
    except OSError:
        return False
    return True


def _sync_directory(path: Path) -> None:
    """Flush a folder's entries; some file systems and Windows cannot, and lose nothing but this guarantee."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
