"""What tells a file from others is its content, read once."""

import hashlib
import os
from pathlib import Path

import pytest

from prism.process import files


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read, as they are."""
    found: list[Path] = []
    read = Path.read_bytes

    def counted(path: Path) -> bytes:
        found.append(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    return found


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"one")
    first = files.digest_of_file(path)
    assert first == hashlib.sha256(b"one").hexdigest()
    assert files.digest_of_file(path) == first
    assert len(reads) == 1
    path.write_bytes(b"two")
    os.utime(path, (1, 1))
    assert files.digest_of_file(path) == hashlib.sha256(b"two").hexdigest()


def test_another_file_of_the_same_name_is_read(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        (folder / "model.onnx").write_bytes(folder.name.encode())
        os.utime(folder / "model.onnx", (1, 1))
    link = tmp_path / "now"
    link.symlink_to(one)
    before = files.digest_of_file(link / "model.onnx")
    link.unlink()
    link.symlink_to(two)
    assert files.digest_of_file(link / "model.onnx") != before


def test_what_is_hashed_ahead_is_not_read_again(tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"model")
    files.hash_ahead(path).join()
    assert files.digest_of_file(path) == hashlib.sha256(b"model").hexdigest()
    assert len(reads) == 1
    files.hash_ahead(tmp_path / "none").join()  # who asks is told
    with pytest.raises(FileNotFoundError):
        files.digest_of_file(tmp_path / "none")
