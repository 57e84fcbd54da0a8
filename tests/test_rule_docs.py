"""docs/rules.md: its files are what it says they are, and its commands print what it shows.

The page is read, its files are written to a folder, and its commands run there, in the page's order.
"""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import warnings
from pathlib import Path

import pytest

from prism.cli import main
from prism.egraph.language import CONSTRUCTORS, REDUCTIONS, RULESETS
from prism.errors import ExitCode
from prism.program.operators import FUNCTIONS

PAGE = (Path(__file__).parents[1] / "docs" / "rules.md").read_text("utf-8")
FILES = {text.split()[1]: text for text in re.findall(r"```(?:lisp|python)\n([;#] \S+\.\w+\n.*?)```", PAGE, re.S)}
SHOWN = [
    (command, output)
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S)
    for command, output in re.findall(r"^\$ ([^\n]*)\n(.*?)(?=^\$ |\Z)", block, re.S | re.M)
]
CHECKS = [(c, o) for c, o in SHOWN if c.startswith("prism rules check")]
SEARCHES = [(c, o) for c, o in SHOWN if c.startswith("python block.py")]
TUNED = [(c, o) for c, o in SHOWN if c.startswith("python tune.py")]
PROFILES = [(c, o) for c, o in SHOWN if c.startswith("prism rules profile")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files, where its commands run."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "block", raising=False)
    return tmp_path


def run(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command of the page in this process; its exit code and what it prints."""
    program, *arguments = shlex.split(command)
    capsys.readouterr()
    if program == "prism":
        return main(arguments), capsys.readouterr().out
    assert program == "python"
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.delitem(sys.modules, "block", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(arguments[0], run_name="__main__")
    return 0, capsys.readouterr().out


def test_the_page_has_what_is_tested() -> None:
    assert set(FILES) == {
        *("prelu.egg", "wrong.egg", "typo.egg", "axes.egg"),
        *("block.py", "tune.py", "export.py"),
    }
    assert [len(part) for part in (CHECKS, SEARCHES, TUNED, PROFILES)] == [4, 2, 2, 1]
    assert len(SHOWN) == 9
    assert all(f"`{name}`" in PAGE for name in RULESETS if name != "analysis")
    used = set(re.findall(r"\(([A-Z]\w*) ", PAGE))
    assert used <= {*CONSTRUCTORS.values(), *REDUCTIONS.values(), "Const", "NaN", "Prelu", "NAME", "PARAMETER"}
    listed = PAGE[PAGE.index("pointwise functions, as") : PAGE.index("A declared operator *is*")]
    assert FUNCTIONS.keys() - set(re.findall(r"`(\w+)`", listed)) <= {"add", "sub", "mul", "div", "expit"}


@pytest.mark.parametrize(("command", "output"), CHECKS, ids=[c for c, _ in CHECKS])
def test_a_command_prints_what_the_page_shows(
    command: str, output: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = run(command, monkeypatch, capsys)
    assert code == (ExitCode.DONE if " error: " not in output else ExitCode.VERIFICATION_FAILED)
    assert printed == output


def test_the_rule_finds_the_kernel_that_reads_its_input_once_and_nothing_else_does(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (without, twice), (with_rule, once) = SEARCHES
    assert with_rule == f"{without} prelu.egg"
    assert run(without, monkeypatch, capsys)[1].rstrip() == twice.rstrip()
    assert run(with_rule, monkeypatch, capsys)[1].rstrip() == once.rstrip()
    assert [t.count("for tiles of d4096") for t in (twice, once)] == [2, 1]
    assert [t.count("= x[d2048, d4096]") for t in (twice, once)] == [2, 1]


@pytest.mark.slow
def test_the_rule_makes_the_kernel_faster_by_what_the_page_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = [run(command, monkeypatch, capsys)[1] for command, _ in TUNED]
    assert printed == [output for _, output in TUNED]
    before, after = (float(text.split()[0]) for text in printed)
    assert after < before


@pytest.mark.slow
def test_the_profile_is_what_the_page_shows_but_for_the_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("python export.py", monkeypatch, capsys)
    (command, output) = PROFILES[0]
    code, printed = run(command, monkeypatch, capsys)
    assert code == ExitCode.DONE
    without_times = [re.sub(r"\s+[\d.]+$", "", line) for line in printed.splitlines()]
    assert without_times == [re.sub(r"\s+[\d.]+$", "", line) for line in output.splitlines()]
