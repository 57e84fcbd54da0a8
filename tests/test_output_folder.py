"""The output folder: it appears whole or not at all, and nobody's own files are lost."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from report_samples import artifacts, report

from prism.contents import LINKED, Content, Mapped, Pieces, put
from prism.errors import ExitCode, UsageError
from prism.report import folder
from prism.report.folder import LOCK_NAME, check_writable, module_name, render_folder, write_folder
from prism.report.records import recorded_files

FILES = render_folder(artifacts())


def tree(path: Path) -> dict[str, bytes]:
    """All files below, hidden ones too."""
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_contents(tmp_path: Path) -> None:
    out = write_folder(tmp_path / "sample.prism", FILES)
    assert sorted(tree(out)) == sorted(
        [
            "README.md",
            "sample.py",
            "proof.json",
            LOCK_NAME,
            "report.json",
            "report.html",
            "sgraph.txt",
            "sgraph.dot",
            "program.txt",
        ]
    )
    assert os.listdir(tmp_path) == ["sample.prism"]
    for name, digest in recorded_files((out / LOCK_NAME).read_bytes()).items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert json.loads((out / "proof.json").read_bytes())["status"] == "proved"


def test_weights_are_kept_as_given() -> None:
    files = render_folder(artifacts(weights=b"\x00\x01"))
    assert files["weights.pt"] == b"\x00\x01"
    assert "weights.pt" in json.loads(bytes(files[LOCK_NAME]))["files"]


def test_equal_runs_give_equal_bytes() -> None:
    assert render_folder(artifacts()) == FILES
    slower = render_folder(artifacts(report(stages={"load": 9.0}, peak_mb=1.0)))
    changed = {name for name in FILES if slower[name] != FILES[name]}
    # Only the report knows how long the search took; the lock changes because it holds the report's digest.
    assert changed == {"report.json", "report.html", LOCK_NAME}


def test_the_module_imports_without_prism(tmp_path: Path) -> None:
    out = write_folder(tmp_path / "sample.prism", FILES)
    code = f"import sys; sys.path.insert(0, {str(out)!r}); sys.modules['prism'] = None; import sample; sample.sample"
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", ["torch", "triton", "types", "math"])
def test_the_module_hides_no_other(name: str) -> None:
    assert module_name(name) == f"{name}_kernels.py"


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        out = write_folder(tmp_path / "o", FILES)
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", ["../x", "a//b", "a/../b", "a/b/../c", "..", "", "/etc/x"])
def test_only_plain_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        write_folder(tmp_path / "o", {name: b""})
    assert tree(tmp_path) == {}


def test_an_earlier_output_is_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "o"
    write_folder(out, render_folder(artifacts(weights=b"old")))
    (out / "__pycache__").mkdir()
    (out / "__pycache__" / "sample.cpython-311.pyc").write_bytes(b"")
    write_folder(out, FILES)
    assert tree(out) == FILES
    assert os.listdir(tmp_path) == ["o"]


def test_a_large_file_that_stays_as_it_is_is_not_written_again(tmp_path: Path) -> None:
    """Of pieces, too, which are what weights are; another byte anywhere makes it another file."""
    data = bytes(range(256)) * (LINKED // 256) + b"end"
    out = write_folder(tmp_path / "o", render_folder(artifacts(weights=data)))
    before = (out / "weights.pt").stat().st_ino
    same = Pieces(lambda: (data[:1000], memoryview(data)[1000:]))
    write_folder(out, render_folder(artifacts(weights=same)))
    assert (out / "weights.pt").stat().st_ino == before
    assert (out / "weights.pt").stat().st_nlink == 1
    for other in (data[:-1] + b"x", b"x" + data[1:], data[:-1]):
        files = render_folder(artifacts(weights=other))
        write_folder(out, files)
        assert tree(out) == files
        assert (out / "weights.pt").stat().st_ino != before


def test_a_link_in_an_earlier_output_is_not_kept(tmp_path: Path) -> None:
    files = render_folder(artifacts(weights=bytes(LINKED)))
    out = write_folder(tmp_path / "o", files)
    (out / "weights.pt").rename(tmp_path / "elsewhere")
    (out / "weights.pt").symlink_to(tmp_path / "elsewhere")
    write_folder(out, files)
    assert not (out / "weights.pt").is_symlink()
    assert tree(out) == files


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    assert tree(write_folder(tmp_path / "o", FILES)) == FILES


def test_a_link_to_an_output_is_followed(tmp_path: Path) -> None:
    real = write_folder(tmp_path / "real", render_folder(artifacts(weights=b"old")))
    (tmp_path / "link").symlink_to(real)
    write_folder(tmp_path / "link", FILES)
    assert (tmp_path / "link").is_symlink()
    assert tree(real) == FILES


def refused(out: Path, why: str) -> None:
    """Both the early check and the writing refuse, in one line, and change nothing."""
    top = out.parent if out.parent.is_dir() else out.parent.parent
    before = tree(top) if top != Path("/") and not str(top).startswith("/proc") else {}
    for early in (True, False):
        with pytest.raises(UsageError) as caught:
            check_writable(out) if early else write_folder(out, FILES)
        assert caught.value.exit_code is ExitCode.USAGE
        assert why in caught.value.one_line()
        assert caught.value.fix
    if before:
        assert tree(top) == before


def test_refuses_a_folder_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "thesis.tex").write_text("mine")
    refused(tmp_path / "o", "prism did not write it")


@pytest.mark.parametrize("lock", [b"", b"{}", b"[]", b"\xff", b'{"schema": "prism.lock/1"}', b'{"files": {"a": "b"}}'])
def test_refuses_a_folder_with_some_other_lock(tmp_path: Path, lock: bytes) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / LOCK_NAME).write_bytes(lock)
    refused(tmp_path / "o", "prism did not write it")


def test_refuses_an_output_to_which_the_user_added_a_file(tmp_path: Path) -> None:
    out = write_folder(tmp_path / "o", FILES)
    (out / "notes.md").write_text("mine")
    refused(out, "notes.md")


def test_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "o").write_text("mine")
    refused(tmp_path / "o", "a file of that name exists")


def test_makes_missing_parents_when_it_writes_and_not_before(tmp_path: Path) -> None:
    out = tmp_path / "missing" / "too" / "o"
    assert check_writable(out) == out
    assert list(tmp_path.iterdir()) == []
    assert (write_folder(out, FILES) / LOCK_NAME).is_file()
    (tmp_path / "file").write_text("mine")
    refused(tmp_path / "file" / "o", "is not a folder")


def test_refuses_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    refused(tmp_path / "f" / "o", "is not a folder")


def test_refuses_the_current_folder_and_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(Path("."), "the current folder")
    refused(Path("/"), "mount point")


def test_refuses_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    refused(tmp_path / "a" / "o", "")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which even root cannot write")
def test_refuses_a_parent_that_cannot_be_written() -> None:
    refused(Path("/proc/prism-out"), "cannot be written")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_refuses_a_parent_without_permission(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    refused(tmp_path / "locked" / "o", "Permission denied")


def test_the_early_check_leaves_nothing(tmp_path: Path) -> None:
    assert check_writable(tmp_path / "o") == tmp_path / "o"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("earlier", [False, True], ids=["new", "replacing"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"])
@pytest.mark.parametrize("at", ["third file", "first rename", "last rename"])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool, error: BaseException, at: str
) -> None:
    out = tmp_path / "o"
    if earlier:
        write_folder(out, render_folder(artifacts(weights=b"old")))
    before = tree(tmp_path)
    written: list[Path] = []
    write, rename = put, Path.rename
    renames: list[Path] = []

    def failing_write(path: Path, data: Content, *, new: bool) -> None:
        written.append(path)
        if at == "third file" and len(written) == 3:
            raise error
        write(path, data, new=new)

    def failing_rename(self: Path, target: Path) -> Path:
        renames.append(self)
        first, last = len(renames) == 1, self.suffix == ".tmp"
        if (at == "first rename" and first) or (at == "last rename" and last):
            raise error
        return rename(self, target)

    monkeypatch.setattr(folder, "put", failing_write)
    monkeypatch.setattr(Path, "rename", failing_rename)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UsageError
    with pytest.raises(expected):
        write_folder(out, FILES)
    assert tree(tmp_path) == before
    assert os.listdir(tmp_path) == (["o"] if earlier else [])


def test_an_interrupt_between_the_renames_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = write_folder(tmp_path / "o", render_folder(artifacts(weights=b"old")))
    before = tree(tmp_path)
    rename = Path.rename

    def interrupted_after(self: Path, target: Path) -> Path:
        done = rename(self, target)
        if self == out:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Path, "rename", interrupted_after)
    with pytest.raises(KeyboardInterrupt):
        write_folder(out, FILES)
    assert tree(tmp_path) == before


def test_an_interrupt_while_a_folder_is_removed_waits_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "o", render_folder(artifacts(weights=b"old")))
    remove = shutil.rmtree
    struck: list[Path] = []

    def interrupted(path: Path, ignore_errors: bool = False) -> None:
        if not struck:
            struck.append(path)
            raise KeyboardInterrupt
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "o", FILES)
    assert struck
    assert [p.name for p in tmp_path.iterdir()] == ["o"]
    assert tree(tmp_path / "o") == FILES


@pytest.mark.parametrize("able", [True, False])
def test_what_lies_in_a_mapped_file_is_copied_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    source, copied = tmp_path / "source", list[int]()
    numbers = np.random.default_rng(0).integers(0, 256, LINKED + 5000, np.uint8)
    source.write_bytes(numbers.tobytes())
    copy = getattr(os, "copy_file_range", None)
    if copy is None:
        pytest.skip("this system copies no ranges of files")

    def range_copied(a: int, b: int, count: int, first: int, to: int) -> int:
        if not able:
            raise OSError(22, "Invalid argument")
        copied.append(int(copy(a, b, min(count, 700_000), first, to)))  # some systems do so much at once
        return copied[-1]

    monkeypatch.setattr(os, "copy_file_range", range_copied)
    mapped = Mapped.of(source)
    held = np.frombuffer(mapped, np.uint8, LINKED, 1000).reshape(64, -1)
    parts = [b"before", held.reshape(-1).view(np.uint8).data, b"behind", numbers[:LINKED].copy().data]
    content = Pieces(partial(list, parts))
    put(tmp_path / "new", content, new=True)
    assert (tmp_path / "new").read_bytes() == bytes(content)
    assert sum(copied) == LINKED * able
    descriptor = mapped.descriptor
    del mapped, held, content, parts
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
