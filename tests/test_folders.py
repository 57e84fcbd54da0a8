"""Folders that cannot be written: told before a run begins, or done without where they are a convenience."""

from __future__ import annotations

import errno
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from test_study import Table, shape, small

from prism.backends.cpu import build, support
from prism.backends.tensors import save
from prism.errors import UsageError
from prism.folders import cache_or_spare, cache_root, make_room
from prism.instantiate.study import tune
from prism.platforms.choice import platform_of
from prism.process.child import child_environment
from prism.process.worker import Pool
from prism.report.folder import check_writable


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """What a disk does that is full, of every file: writing stops in its midst."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("PRISM_CACHE_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", unknown)


def test_a_cache_that_can_be_written_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "a" / "cache"))
    said: list[str] = []
    with cache_or_spare(said.append) as root:
        assert root == tmp_path / "a" / "cache"
    assert said == []
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("where", ["/dev/null/x", "/proc/x"])
def test_a_run_does_without_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setenv("PRISM_CACHE_DIR", where)
    said: list[str] = []
    with cache_or_spare(said.append) as root:
        assert (root / "x").write_text("x")
        platform = platform_of("sm_90", said.append, root)
        assert platform.cache == root
    assert not root.exists()
    (line,) = said
    assert line.startswith("measurements and compiled kernels are not stored: ")
    assert where in line
    assert "PRISM_CACHE_DIR" in line


def test_a_run_does_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    no_home(monkeypatch)
    with pytest.raises(UsageError, match="PRISM_CACHE_DIR"):
        cache_root()
    said: list[str] = []
    with cache_or_spare(said.append) as root:
        assert root.is_dir()
    assert "no home folder" in said[0]


def test_a_full_disk_is_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path))
    with no_file_beyond(4096):
        with pytest.raises(OSError, match="too large"):
            make_room(tmp_path)
        with pytest.raises(UsageError, match="cannot be written: File too large; name another folder"):
            check_writable(tmp_path / "out")
        with pytest.raises(OSError, match="too large"), cache_or_spare(lambda _: None):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_journal_on_a_disk_that_fills_up_holds_what_went_in(tmp_path: Path) -> None:
    whole = tune(small(), Table(), region="r", storage_dir=tmp_path / "whole")
    (journal,) = (tmp_path / "whole").iterdir()
    for size in range(0, journal.stat().st_size, 997):
        with no_file_beyond(size):
            assert shape(tune(small(), Table(), region="r", storage_dir=tmp_path / str(size))) == shape(whole)
        table = Table()
        again = tune(small(), table, region="r", storage_dir=tmp_path / str(size))
        assert shape(again) == shape(whole)
        assert len(table.asked) + again.resumed == len(whole.trials)
    assert again.resumed > 0


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"\0" * len(b), lambda b: b[:300] + b[400:]])
def test_a_damaged_journal_is_none(tmp_path: Path, damage: object) -> None:
    whole = tune(small(), Table(), region="r", storage_dir=tmp_path)
    (journal,) = tmp_path.iterdir()
    assert callable(damage)
    journal.write_bytes(damage(journal.read_bytes()))
    for _again in range(2):
        assert shape(tune(small(), Table(), region="r", storage_dir=tmp_path)) == shape(whole)
    assert [p.name for p in tmp_path.iterdir()] == [journal.name]


def test_libraries_are_not_looked_for_where_another_user_may_have_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("PRISM_CPP_CACHE", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda p: p)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    beside, spare = tmp_path / "m" / "__cpp_cache__", tmp_path / "prism-cpp"
    assert support.cache_folders(tmp_path / "m" / "m.cpp") == [beside, spare]
    spare.mkdir()
    assert support.cache_folders(tmp_path / "m" / "m.cpp") == [beside, spare]
    monkeypatch.setenv("PRISM_CPP_CACHE", str(tmp_path / "chosen"))
    assert support.cache_folders(tmp_path / "m" / "m.cpp") == [tmp_path / "chosen", beside, spare]
    monkeypatch.delenv("PRISM_CPP_CACHE")
    other = spare.stat().st_uid + 1
    monkeypatch.setattr("os.getuid", lambda: other)
    assert support.cache_folders(tmp_path / "m" / "m.cpp") == [beside]


def test_what_killed_compilers_left_goes_with_a_later_one_and_temporary_folders_hold_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, temporary = tmp_path / "chosen", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("PRISM_CPP_CACHE", str(chosen))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    old, new = (support.scratch_folder([chosen]) for _ in range(2))
    (old / "part.s").write_text("")
    long_ago = time.time() - 2 * support.LEFT_S
    os.utime(old, (long_ago, long_ago))
    seen: list[Path] = []

    def compiled(source: Path, timeout_s: float) -> None:
        seen.append(source)

    monkeypatch.setattr(support, "compile_product", compiled)
    assert build.compile_product("multiply-float") == ""
    assert seen[0].is_relative_to(chosen)
    assert list(chosen.iterdir()) == [new], "another process may be at work in it"
    assert not list(temporary.iterdir())


def test_a_disk_that_is_full_is_no_error_of_a_kernel(tmp_path: Path) -> None:
    tensor = torch.zeros(5000)
    with no_file_beyond(4096), pytest.raises(OSError, match="too large"):
        save(tensor, tmp_path / "t.pt")
    save(tensor, tmp_path / "t.pt")
    assert torch.equal(torch.load(tmp_path / "t.pt"), tensor)


def test_what_the_machine_refuses_a_child_ends_the_run() -> None:
    """Its answer is no error of what it was asked to run."""
    text = """
import os
from prism.process.serve import serve
def answer(request):
    if request["number"]:
        raise OSError(request["number"], os.strerror(request["number"]), "a file")
    return {"fine": True}
serve(answer)
"""
    with Pool([sys.executable, "-c", text], child_environment(), size=1) as pool:
        with pytest.raises(OSError, match="No space left") as caught:
            pool.submit({"number": errno.ENOSPC}, 30.0).result()
        assert caught.value.filename == "a file"
        assert "FileNotFoundError" in pool.submit({"number": errno.ENOENT}, 30.0).result().answer["error"]
        assert pool.submit({"number": 0}, 30.0).result().answer == {"fine": True}
