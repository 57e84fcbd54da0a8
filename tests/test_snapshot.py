"""benchmarks/snapshot.py: what is recorded is the same twice, and a comparison says what differs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.snapshot import CPU, GPU, Machine, compare, main, record, tasks
from prism.egraph.worker import Worker


def test_every_program_has_a_name_of_its_own() -> None:
    every = tasks()
    assert len({(t.name, t.target) for t in every}) == len(every)
    assert {t.target for t in every} == {GPU, CPU}
    assert [t.name for t in tasks(["add_silu"])] == ["model_add_silu"] * 2


def test_records_are_equal_and_differences_are_told(
    worker: Worker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu, cpu = tasks(["model_mul_silu"])
    once, again, other = (record(task, worker) for task in (gpu, gpu, cpu))
    for folder, made in (("before", once), ("after", again)):
        for name, text in (made | other).items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    before, after = tmp_path / "before", tmp_path / "after"
    kinds = {(p.parts[-3], p.parts[-2]) for p in before.rglob("*") if p.is_file()}
    assert kinds == {(t, kind) for t in (GPU, CPU) for kind in ("sgraphs", "ranking", "modules")}
    assert main(["compare", str(before), str(after)]) == 0
    assert capsys.readouterr().out == "no difference\n"

    ranking = after / GPU / "ranking" / "model_mul_silu.txt"
    lines = ranking.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if " us by " in line and line[0].isdigit())
    seconds = float(lines[first].split()[0])
    lines[first] = lines[first].replace(lines[first].split()[0], f"{2 * seconds:.9g}")
    ranking.write_text("\n".join(lines) + "\n")
    (module,) = [p for p in (after / CPU / "modules").glob("*.py") if "-0-0-best" in p.name]
    module.unlink()
    shutil.copy(ranking, after / GPU / "ranking" / "other.txt")
    found = "\n".join(compare(before, after))
    assert "the same order of configurations" in found
    assert "estimates by 100.00% at most" in found
    assert f"{CPU}/modules/{module.name}: only before" in found
    assert f"{GPU}/ranking/other.txt: only after" in found
    assert "/sgraphs/" not in found
    assert main(["compare", str(before), str(after)]) == 1


def test_the_cpu_does_not_depend_on_the_machine() -> None:
    assert Machine(CPU).device.processors == 8
    assert Machine(GPU).device.target == GPU
