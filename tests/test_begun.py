"""Children that the command begins before it imports what it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import prism.platforms.begun as begun
from prism import api
from prism.cli import main
from prism.errors import ExitCode, NoImprovementError
from prism.instantiate.cache import holdings
from prism.platforms.begun import Begun, begin


def test_a_prover_that_was_begun_is_for_the_first_that_asks_for_one_like_it() -> None:
    with begin("sm_90", "exact") as made:
        assert made.forks is None, "nothing is timed, so no child is forked"
        with made.prover(None, "domain") as other:
            assert other.pid is None, "its rules are others"
        with made.prover(None, "exact") as first, made.prover(None, "exact") as second:
            assert first.pid is not None
            assert second.pid is None
            first.ready()


def test_what_nobody_asked_for_ends() -> None:
    with begin("sm_90", "domain") as made:
        (prover,) = made._provers
        assert prover.pid is not None
    assert prover.pid is None


@pytest.mark.parametrize(("target", "driver", "forks"), [("cpu", True, True), (None, False, True), (None, True, False)])
def test_what_forks_is_begun_where_the_target_is_the_cpu(
    target: str | None, driver: bool, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "has_driver", lambda: driver)
    monkeypatch.setattr(begun, "COMPARES", ())
    with begin(target, "domain") as made:
        assert (made.forks is not None) == forks
        if made.forks is not None and sys.platform == "linux":
            assert made.forks._process is not None


def test_nothing_is_begun_for_a_command_that_ran_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it wrote is there: the rest is probably stored."""
    asked: list[str | None] = []

    def instead(target: str | None, fp: str) -> Begun:
        asked.append(target)
        return Begun()

    monkeypatch.setattr(begun, "begin", instead)
    (tmp_path / "model.onnx").touch()
    command = ["optimize", str(tmp_path / "model.onnx"), "--out", str(tmp_path / "out")]
    assert main(command) == ExitCode.UNSUPPORTED
    assert asked == [None]
    (tmp_path / "out").mkdir()
    assert main(command) == ExitCode.UNSUPPORTED
    assert asked == [None]


def test_a_model_whose_run_ended_is_known_until_it_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "model.onnx"
    begun.note_ended(model, "this")  # there is none
    assert not begun.has_ended(model, "this")
    model.write_bytes(b"one")
    begun.note_ended(model, "this")
    assert begun.has_ended(model, "this")
    assert not begun.has_ended(model, "that")
    (held,) = [h for h in holdings(tmp_path / "cache") if h.entries]
    assert held.kind == begun.ENDED
    model.write_bytes(b"another")
    assert not begun.has_ended(model, "this")


def test_a_run_that_gained_nothing_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    asked: list[str] = []

    def nothing(*_: object, **__: object) -> str:
        raise NoImprovementError("nothing gains anything")

    def ended(model: Path, asked_for: str) -> bool:
        asked.append(asked_for)
        return False

    monkeypatch.setattr(begun, "begin", lambda target, fp: Begun())
    monkeypatch.setattr(begun, "has_ended", ended)
    monkeypatch.setattr(api, "better_in_parts", nothing)
    model = tmp_path / "model.onnx"
    model.touch()
    assert main(["optimize", str(model), "--out", str(tmp_path / "out")]) == ExitCode.NO_IMPROVEMENT
    monkeypatch.undo()
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path / "cache"))
    assert begun.has_ended(model, *asked)


def test_nothing_is_begun_for_a_model_whose_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever folder it is written to; where everything is timed again it is."""
    asked: list[str | None] = []

    def instead(target: str | None, fp: str) -> Begun:
        asked.append(target)
        return Begun()

    monkeypatch.setattr(begun, "begin", instead)
    monkeypatch.setattr(begun, "has_ended", lambda model, asked: True)
    (tmp_path / "model.onnx").touch()
    command = ["optimize", str(tmp_path / "model.onnx"), "--out", str(tmp_path / "out")]
    assert main(command) == ExitCode.UNSUPPORTED
    assert not asked
    assert main([*command, "--anew"]) == ExitCode.UNSUPPORTED
    assert asked == [None]
