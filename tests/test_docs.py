"""The README's and the documentation's commands and snippets run as they stand, in an empty folder.

docs/rules.md has tests of its own (test_rule_docs.py). A command that is in no table here is a failure, so that what is
written tomorrow is run, too.
"""

from __future__ import annotations

import functools
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from scripted_clock import scripted

import prism
from prism.api.region_search import SearchBudget
from prism.cli import main
from prism.errors import ExitCode

pytestmark = pytest.mark.usefixtures("small_gate", "unoptimised")

ROOT = Path(__file__).parents[1]
PAGES = {p.name: p.read_text("utf-8") for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
QUICK = ("--trials", "1", "--max-sgraphs", "1", "--max-families", "10")
"""The same path with less to try: literally, these commands run with --run-slow."""


def blocks(page: str, *languages: str) -> list[str]:
    """The fenced blocks of a page that are in one of the languages."""
    return [text for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", PAGES[page], re.S | re.M) if kind in languages]


def commands(page: str) -> list[str]:
    """The command lines of a page, in fenced blocks and in indented ones, without their comments."""
    fenced = [line for block in blocks(page, "sh", "console") for line in block.splitlines()]
    indented = re.findall(r"^ {4}((?:python|prism|make|pip) .*)$", PAGES[page], re.M)
    told = (line.removeprefix("$ ").partition(" #")[0].strip() for line in [*fenced, *indented])
    return [line for line in told if re.match(r"(python|prism|make|pip|\.venv/bin/python) ", line)]


ENCODER, MODELS, FROM_PYTHON = blocks("README.md", "python")
LITERAL = (
    "python models.py",
    "prism show model.onnx",
    "prism prove model.onnx moved.onnx",
    "prism optimize model.onnx --target sm_90 --out out/model",
    "prism optimize model.onnx --target sm_90 --shape seq=1..64 --out out/ranged",
    "prism verify out/model",
    "prism explain out/model",
)
MEASURING = ("prism optimize model.onnx", "prism optimize model.onnx --shape seq=2048")
SLOW = ('prism bench --case "LoRA M16"',)
ELSEWHERE = {
    'prism prove model.onnx moved.onnx --assume "x > 0"': "tests/test_assumptions.py runs it on smaller models",
    'prism optimize model.onnx --assume "x > 0"': "tests/test_stated.py runs it on a smaller model",
    "make demo": "optimizes an example, as tests/test_end_to_end.py does, in a checkout",
    "make test": "runs this",
    'make demo PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"': "asks another index",
    "pip install .": "fetches packages",
    "pip install -c constraints.txt -e '.[dev]'": "is what `make test` begins with",
    "python benchmarks/gpu.py prepare --out out/gpu": "takes hours; tests/test_bench_gpu.py runs it on small cases",
    "python benchmarks/gpu.py measure out/gpu": "needs a GPU; tests/test_bench_gpu.py runs it in the interpreter",
    "python benchmarks/gpu.py report out/gpu/results.json": "needs measurements; see tests/test_bench_gpu.py",
    "python benchmarks/gpu.py measure out/gpu --configs --results configs.json": "needs a GPU",
    "python benchmarks/model.py judge configs.json": "needs measurements",
    "python benchmarks/gpu.py prepare --uncompiled --no-check --points 6 --spread 0 --out out/collection collection": (
        "takes ten minutes; tests/test_bench_gpu.py runs it on small cases"
    ),
    "python benchmarks/model.py judge benchmarks/results/nvidia-h100-collection.json --again": (
        "tests/test_bench_gpu.py judges it"
    ),
    "python benchmarks/gpu.py compile out/collection --target cuda --workers 14 --cache /tmp/prism-bench": (
        "needs a GPU"
    ),
    "python benchmarks/gpu.py measure out/collection --cache /tmp/prism-bench "
    "--baseline-compilers 10 --confirm-seconds 0.5": "needs a GPU",
    "python benchmarks/model.py fit configs.json --out nvidia-h200-model.json": "needs measurements",
    "python benchmarks/gpu.py prepare --target-only --out out/gpu suite": "takes half an hour",
    "make .venv/oldest-triton/.prism": "is what `make test` does, too",
    "python benchmarks/model.py judge out/configs.json": "needs measurements",
    "python benchmarks/whole_path.py --limit 150 --out out/whole-path": "tests/test_on_a_gpu.py runs a step on a CPU",
    "python benchmarks/model.py fit out/configs.json --out out/nvidia-model.json": "needs measurements",
    "python benchmarks/gpu.py options out/configs.json": "needs measurements; see tests/test_bench_gpu.py",
    "python tests/stand_in_gpu.py smoke FOLDER": "needs an environment with the GPU machine's versions",
    "python tests/stand_in_gpu.py measure FOLDER --configs --results configs.json": "the same",
    "python benchmarks/discover.py": "takes minutes; tests/test_discover.py runs small functions",
    "python benchmarks/discover.py --gallery docs/gallery.md": "takes minutes; tests/test_discover.py makes a page",
    "python benchmarks/discover.py --only norm --json": "takes a minute; tests/test_discover.py runs small functions",
    "pip install transformers onnxscript": "fetches packages",
    "python benchmarks/models.py --packaged": "half an hour; see tests/test_models_benchmark.py",
    "python benchmarks/models.py --read --packaged": "minutes; tests/test_models_benchmark.py runs it with --run-slow",
    "python benchmarks/models.py": "needs transformers, and takes half an hour; see tests/test_models_benchmark.py",
    **dict.fromkeys(
        (
            "python benchmarks/models.py --read --dynamic",
            "python benchmarks/models.py --read --dynamic --past --opset 18",
            "python benchmarks/models.py --read --dynamic --exporter legacy --opset 17",
        ),
        "needs transformers, and takes minutes; see tests/test_models_benchmark.py",
    ),
    "python benchmarks/models.py --only bert,llama --budget 60s --threads 2 --compile --json rows.json": (
        "needs transformers, and takes minutes; see tests/test_models_benchmark.py"
    ),
    "python benchmarks/cpu.py softmax RMSNorm": "takes minutes; tests/test_bench_cpu.py runs small cases",
    "python benchmarks/cpu.py --json": "takes an hour; tests/test_bench_cpu.py runs small cases",
}
"""Commands that are not run here, and why."""
FROM_CHECKOUT = ("python benchmarks/cpu.py --list",)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's models in it, as its first snippet writes them into an empty one."""
    place = tmp_path_factory.mktemp("models")
    (place / "models.py").write_text(MODELS)
    finished(run_python("models.py", cwd=place))
    assert sorted(p.name for p in place.iterdir()) == ["model.onnx", "models.py", "moved.onnx"]
    return place


@pytest.fixture
def folder(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a folder of one's own with these."""
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A Python of its own, with this checkout's prism and no other setting: what a user's would print, it prints."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=900
    )


def run_here(code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a snippet prints, run in this process, which has torch already; it says nothing on stderr."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    capsys.readouterr()
    exec(compile(code, "snippet", "exec"), {"__name__": "__main__"})
    printed, said = capsys.readouterr()
    assert said == ""
    return printed


def run_as_a_user(code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a snippet that imports a folder's module, `model`, from where it stands, as `python` would."""
    assert "model" not in sys.modules
    try:
        with monkeypatch.context() as patch:
            patch.syspath_prepend(Path.cwd())
            run_here(code, capsys, patch)
    finally:
        del sys.modules["model"]


def finished(run: subprocess.CompletedProcess[str]) -> str:
    """What a run printed; it ended well and said nothing on stderr."""
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def cli(command: str, *more: str) -> None:
    """Run a command line of prism's in this process."""
    program, *arguments = shlex.split(command)
    assert program == "prism"
    assert main([*arguments, *more]) == ExitCode.DONE


def next_lines(printed: str) -> dict[str, str]:
    """What a run of `prism optimize` says to type next, by purpose."""
    told = printed[printed.index("\nnext\n") + 6 :].splitlines()
    return dict(line.split(maxsplit=1) for line in told)


def test_every_command_is_run_or_said_to_be_run_elsewhere() -> None:
    known = {*LITERAL, *MEASURING, *SLOW, *ELSEWHERE, *FROM_CHECKOUT}
    found = {c for page in PAGES if page != "rules.md" for c in commands(page)}
    assert found == known
    assert [len(blocks(page, "python")) for page in ("README.md", "cpu.md", "search.md")] == [3, 1, 2]
    assert not [
        p
        for p in PAGES
        if p not in ("README.md", "cpu.md", "search.md", "rules.md", "torch_compile.md", "gallery.md")
        and blocks(p, "python")
    ]


@pytest.mark.parametrize("more", [QUICK, pytest.param((), marks=pytest.mark.slow)], ids=["quick", "literally"])
def test_the_commands_of_the_readme_in_their_order(
    more: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [c for c in commands("README.md") if c in LITERAL] == list(LITERAL)
    printed: dict[str, str] = {}
    for command in LITERAL[1:]:
        cli(command, *(more if command.startswith("prism optimize ") else ()))
        printed[command] = capsys.readouterr().out
    assert printed[LITERAL[1]].startswith("program model\n")
    assert printed[LITERAL[2]].startswith("proved")
    assert "9 <= seq <= 64" in printed[LITERAL[4]]
    assert "verified" in printed[LITERAL[5]]
    lines = next_lines(printed[LITERAL[3]])
    assert lines["verify"] == LITERAL[5]
    assert lines["explain"] == LITERAL[6]
    assert (folder / lines["read"]).is_file()
    assert 'device="cuda"' in lines["call"]


def test_what_a_run_says_to_type_next_can_be_typed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, {"eager": 2e-3, "compiled": 2e-3, "onnxruntime": 2e-3, "kernels": 1e-3})
    cli(MEASURING[0], *QUICK, "--baseline", "eager", "--target", "cpu", "--out", "with a space/model")
    lines = next_lines(capsys.readouterr().out)
    setting, program, *arguments = shlex.split(lines["call"])
    assert (setting, program) == ("PYTHONPATH=with a space/model", "python")
    called = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": setting.partition("=")[2]},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "tensor(" in finished(called)
    cli(lines["verify"])
    assert "README.md" in (folder / "with a space" / "model" / "prism.lock.json").read_text()
    # The folder's own README says the same, and its snippet runs there.
    readme = (folder / "with a space" / "model" / "README.md").read_text("utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    monkeypatch.chdir(folder / "with a space" / "model")
    run_as_a_user(snippet, capsys, monkeypatch)
    # docs/cpu.md speaks of the folder that is made where none is named.
    monkeypatch.chdir(folder)
    (folder / "with a space" / "model").rename(folder / "model.prism")
    (call,) = blocks("cpu.md", "python")
    run_as_a_user(call, capsys, monkeypatch)


def the_snippet_did_its_work(printed: str, place: Path) -> None:
    assert "proved: " in printed
    assert "\nsgraph reference(" in printed
    assert len(printed) < 5000, "an sGraph prints as text, not as its fields"
    assert (place / "out" / "rmsnorm_linear" / "README.md").is_file()


def test_the_snippet_of_the_readme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    less = SearchBudget(max_sgraphs=1, max_families=10)
    monkeypatch.setattr(prism, "optimize", functools.partial(prism.optimize, trials=1, budget=less), raising=False)
    monkeypatch.chdir(tmp_path)
    the_snippet_did_its_work(run_here(FROM_PYTHON, capsys, monkeypatch), tmp_path)


def test_the_first_example_of_the_readme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, {"eager": 2e-3, "compiled": 2e-3, "kernels": 1e-3})
    less = SearchBudget(max_sgraphs=1, max_families=10)
    quick = functools.partial(prism.optimize, trials=1, budget=less, target="cpu", baselines=["eager"])
    monkeypatch.setattr(prism, "optimize", quick, raising=False)
    monkeypatch.chdir(tmp_path)
    smaller = ENCODER
    for size, less_of_it in (("(256, 4, 1024,", "(32, 4, 64,"), ("(1, 128, 256)", "(1, 16, 32)")):
        assert smaller.count(size) == 1
        smaller = smaller.replace(size, less_of_it)
    the_first_example_did_its_work(run_here(smaller, capsys, monkeypatch), tmp_path)


@pytest.mark.slow
def test_the_first_example_of_the_readme_literally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)  # of this file: kernels that are not optimised are no faster than torch
    (tmp_path / "encoder.py").write_text(ENCODER)
    the_first_example_did_its_work(finished(run_python("encoder.py", cwd=tmp_path)), tmp_path)


def the_first_example_did_its_work(printed: str, place: Path) -> None:
    shown = next(t for t in blocks("README.md", "text") if "OptimizeResult" in t)
    told = re.compile(r"<OptimizeResult of (\w+): measured .* as fast>")
    assert told.match(printed)[1] == told.match(shown)[1]  # type: ignore[index]
    assert "TransformerEncoderLayer.py" in (place / "out" / "encoder" / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_the_snippet_of_the_readme_literally(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(FROM_PYTHON)
    the_snippet_did_its_work(finished(run_python("snippet.py", cwd=tmp_path)), tmp_path)


def test_the_snippets_about_the_search(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    using, example = blocks("search.md", "python")
    assert "proved: " in run_here(using, capsys, monkeypatch)
    shown = blocks("search.md", "text")
    more = "print(program)\nfor proved in found:\n    print(proved.sgraph)\nprint(found.result().funnel)"
    printed = run_here(f"{example}\n{more}\n", capsys, monkeypatch)
    for text in (t for t in shown if t.startswith(("program ", "sgraph "))):
        assert text in printed
    (funnel,) = (t for t in shown if t.startswith("generated="))
    said = dict(re.findall(r"'([\w-]+)': (\d+)", printed))
    assert dict(re.findall(r"([\w-]+) (\d+)", funnel)) == said
    assert all(part in printed for part in re.findall(r"\w+=\d+", funnel))


def test_commands_that_want_the_checkout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for command in FROM_CHECKOUT:
        script, *arguments = shlex.split(command)[1:]
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(script, run_name="__main__")
        assert not end.value.code
        printed, said = capsys.readouterr()
        assert printed
        assert said == ""


@pytest.mark.slow
@pytest.mark.parametrize("command", [*MEASURING, *SLOW])
def test_a_command_that_takes_long(command: str, folder: Path) -> None:
    program, *arguments = shlex.split(command)
    assert program == "prism"
    # They time this machine: on some, and on a busy one, nothing is better than the best baseline.
    assert main(arguments) in (ExitCode.DONE, ExitCode.NO_IMPROVEMENT)


def test_links_between_pages_lead_somewhere() -> None:
    def targets() -> Iterable[tuple[str, str]]:
        for page, text in PAGES.items():
            for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
                yield page, target

    missing = [
        (page, target)
        for page, target in targets()
        if not ((ROOT if page == "README.md" else ROOT / "docs") / target).exists()
    ]
    assert not missing


def test_every_folder_has_its_line_in_the_readme_and_its_paragraph() -> None:
    folders = sorted(p.parent.name for p in (ROOT / "prism").glob("*/__init__.py"))
    table = PAGES["README.md"].split("## Which file does what")[1].split("\n## ")[0]
    assert [f for f in folders if f"`prism/{f}/" not in table] == []
    assert [f for f in folders if f"**`prism/{f}`**" not in PAGES["architecture.md"]] == []
    # And the other way round: what they name is there.
    named = re.findall(r"`(prism/[\w/]+(?:/|\.py))`", table + PAGES["architecture.md"])
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []
