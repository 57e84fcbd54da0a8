"""The built wheel, outside the checkout: what is inside, what it finds there, and how light it is to import."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import prism

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "triton", "sympy", "egglog", "onnx", "optuna", "numpy")
IMPORT_LIMIT_S = 0.3


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built with what is installed: nothing is fetched."""
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed in it, and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    done = subprocess.run(pip, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def run_outside(installed: Path, code: str) -> str:
    """What the code prints in a process that sees the installed prism and not the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}
    where = f"import prism; assert prism.__file__.startswith({str(installed)!r}), prism.__file__\n"
    done = subprocess.run(
        [sys.executable, "-c", where + code], capture_output=True, text=True, env=environment, cwd=installed.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rules_in_checkout() -> set[str]:
    return {path.name for path in (ROOT / "rules").glob("*.egg")}


def test_the_wheel_holds_the_package_and_its_rules(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert rules_in_checkout(), "the checkout has no rules"
    assert {n.removeprefix("prism/rules/") for n in names if n.endswith(".egg")} == rules_in_checkout()
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "prism").rglob("*.py")}
    assert sources <= names
    assert "prism/py.typed" in names
    top = {n.split("/")[0] for n in names if ".dist-info/" not in n}
    assert top == {"prism"}, "tests, examples and tools stay out of site-packages"
    assert any(n.endswith("licenses/LICENSE") for n in names)


def test_the_rules_are_found_outside_the_checkout(installed: Path) -> None:
    code = "from prism.egraph.rules import rule_files\nfor path in rule_files(): print(path)"
    found = [Path(line) for line in run_outside(installed, code).splitlines()]
    assert {path.name for path in found} == rules_in_checkout()
    assert all(path.is_file() and path.is_relative_to(installed / "prism" / "rules") for path in found)


def test_importing_prism_loads_nothing_heavy(installed: Path) -> None:
    code = f"import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run_outside(installed, code).strip() == "[]"


def test_the_command_is_installed_and_says_its_version(installed: Path) -> None:
    entry = next(installed.glob("prism_superopt-*.dist-info")) / "entry_points.txt"
    assert "prism = prism.cli:script" in entry.read_text()
    said = run_outside(installed, "import sys; from prism.cli import main; sys.exit(main(['--version']))")
    assert prism.__version__ in said


def _seconds(code: str) -> float:
    """What running it takes of the processor, whatever else runs."""

    def once() -> Iterator[float]:
        for _ in range(5):
            before = os.times()
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
            after = os.times()
            yield after.children_user + after.children_system - before.children_user - before.children_system

    return min(once())


def test_importing_prism_is_quick() -> None:
    assert _seconds("import prism") - _seconds("pass") < IMPORT_LIMIT_S


def test_every_public_name_is_there_and_no_other() -> None:
    assert set(prism.__all__) <= set(dir(prism))
    for name in prism.__all__:
        assert getattr(prism, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = prism.no_such_name


def test_every_requirement_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins: dict[str, Requirement] = {
        canonicalize_name(r.name): r for r in map(Requirement, (x for x in lines if x and x[0] != "#"))
    }
    assert str(pins["torch"].specifier) == "==2.13.0"
    for requirement in map(Requirement, (r for group in groups for r in group)):
        (pin,) = pins[canonicalize_name(requirement.name)].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), f"{requirement} against {pin}"
        assert any(s.operator in (">=", "~=") for s in requirement.specifier), f"{requirement} has no lower bound"
