"""docs/rules.md: its files are what it says they are, and its commands print what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from prism.cli import main
from prism.egraph.language import CONSTRUCTORS, REDUCTIONS, RULESETS
from prism.errors import ExitCode

PAGE = (Path(__file__).parents[1] / "docs" / "rules.md").read_text("utf-8")
FILES = {text[0]: text[1] for text in re.findall(r"```lisp\n(; (?:\S+\.egg))\n(.*?)```", PAGE, re.S)}
SHOWN = re.findall(r"```console\n\$ prism (rules check \S+)\n(.*?)```", PAGE, re.S)


def test_the_page_has_what_is_tested() -> None:
    assert len(FILES) == 3
    assert len(SHOWN) == 3
    assert all(f"`{name}`" in PAGE for name in RULESETS if name != "analysis")
    used = set(re.findall(r"\(([A-Z]\w*) ", PAGE))
    assert used <= {*CONSTRUCTORS.values(), *REDUCTIONS.values(), "Const", "NaN"}


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[c for c, _ in SHOWN])
def test_a_command_prints_what_the_page_shows(
    command: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name.removeprefix("; ")).write_text(f"{name}\n{text}")
    code = main(shlex.split(command))
    assert code == (ExitCode.DONE if " error: " not in output else ExitCode.VERIFICATION_FAILED)
    assert capsys.readouterr().out == output
