"""Kernels for ranges of shapes: cells cover them, and the module picks by the lengths of its inputs."""

import itertools
import re
import textwrap
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import sympy
import torch
from scripted_clock import scripted

import prism
from prism.api.ranged import optimize_ranges, over
from prism.api.region_search import SearchBudget
from prism.backends.loading import load_module
from prism.backends.protocol import ModuleSource
from prism.backends.ranged import Original, Way, ranged_text
from prism.cost.device import device
from prism.cost.shapes import lattice
from prism.errors import CompilerError, NoImprovementError, UsageError
from prism.generate.cells import CELLS, SPAN, Cell, cells
from prism.generate.dispatch import dispatch_table
from prism.program.evaluate import evaluate
from prism.program.extents import symbol
from prism.program.nodes import DType, Program, SymbolRange, Tensor
from prism.report.folder import write_folder


def traced(high: int = 4096, rows: bool = False) -> Program:
    """RMSNorm and a product, over sequences and, with `rows`, batches."""

    def norm_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) @ w

    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("seq", min=1, max=high)}
    shape = (3, 17, 64) if rows else (17, 64)
    if not rows:
        dims = {0: torch.export.Dim("seq", min=1, max=high)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examples = (torch.randn(shape), torch.randn(64, 32))
        return prism.trace(norm_linear, examples, dynamic_shapes=(dims, None), check=False)


def holding(found: tuple[Cell, ...], point: dict[str, int]) -> list[int]:
    at = {symbol(n): v for n, v in point.items()}
    return [n for n, c in enumerate(found) if bool(sympy.sympify(c.predicate).subs(at))]


@pytest.mark.parametrize(("low", "high"), [(1, 4096), (1, 2), (7, 9), (1, 1_000_000), (100, 130)])
def test_cells_of_one_symbol_cover_its_range_and_are_narrow(low: int, high: int) -> None:
    found = cells((), {"seq": SymbolRange(low, high, low)})
    bounds = [tuple(map(int, re.findall(r"\d+", c.text))) for c in found]
    assert bounds[0][0] == low
    assert bounds[-1][-1] == high
    for before, after in itertools.pairwise(bounds):
        assert before[-1] + 1 == after[0]
    assert len(found) <= CELLS
    assert len(found) == CELLS or all(b[-1] <= SPAN * b[0] for b in bounds)
    for c, b in zip(found, bounds, strict=True):
        assert b[0] <= c.at["seq"] <= b[-1]


def test_cells_part_where_another_sgraph_wins() -> None:
    program = traced()
    with prism.search(program, target="sm_90") as search:
        search.run()
        found = search.winners()
    assert len(found) > 1, "the case is one of several winners"
    parts = cells(found, program.ranges)
    for value in sorted({1, 4096, *range(1, 4097, 7), *(n for w in found for n in w.predicate.atoms(sympy.Integer))}):
        if not 1 <= value <= 4096:
            continue
        (n,) = holding(parts, {"seq": int(value)})
        (winner,) = [w for w in found if w.holds({"seq": int(value)})]
        assert winner.holds(parts[n].at), "the middle of a cell is where the same sGraph wins"


def test_cells_are_kept_for_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the whole range's search found is: the next run searches nothing there."""
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path))
    asked: list[tuple[Cell, ...]] = []

    def stop(found: tuple[Cell, ...], *_: object) -> None:
        asked.append(found)
        raise NoImprovementError("that is all", where="here")

    monkeypatch.setattr("prism.api.ranged.cell_by_cell", stop)
    for searches in (prism.search, None):
        monkeypatch.setattr("prism.api.ranged.search", searches)
        with pytest.raises(NoImprovementError, match="that is all"):
            optimize_ranges(traced(rows=True), {"seq": (1, 4096), "batch": (1, 64)}, target="sm_90")
    first, second = asked
    assert len(first) > 1
    assert first == second


def test_cells_of_two_symbols_are_disjoint_and_cover_the_box() -> None:
    program = traced(rows=True)
    with prism.search(program, target="sm_90") as search:
        search.run()
        found = dispatch_table([p.sgraph for p in search.proved], program.ranges, device("sm_90"))
    parts = cells(found, program.ranges)
    assert 1 < len(parts) <= max(CELLS, len(found))
    for point in lattice(program.ranges, 300):
        assert len(holding(parts, point)) == 1, point
    for n, c in enumerate(parts):
        assert holding(parts, dict(c.at)) == [n]


def module(
    tmp_path: Path, ways: tuple[Way, ...], original: Original | None = None, name: str = "f", *, outside: bool = False
) -> object:
    """A module over stand-ins for kernels, which say who they are."""
    text = textwrap.dedent(
        f'''
        WHO = "?"
        _WEIGHTS = {{}}


        def {name}(x, w=None, *, threads=None):
            """What it is.

            Args:
                x: float32[seq, 8].
                w: float32[8].
                config: one entry of CONFIGS.
            """
            if not hasattr(x, "shape"):
                raise ValueError("x must be an array")
            if x.shape[0] > 100:
                raise ValueError("the length seq must be at most 100")
            return WHO, threads, id(_WEIGHTS)
        '''
    )
    for way in ways:
        file = tmp_path / way.file
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace("?", file.parent.name))
    inputs = (Tensor("x", (symbol("seq"), 8), DType.FLOAT32), Tensor("w", (8,), DType.FLOAT32))
    ranges = {"seq": (1, 100)}
    source = ModuleSource(name, text, ())
    (tmp_path / "top.py").write_text(ranged_text(source, inputs, True, 1, ranges, ways, original, outside))
    return load_module(tmp_path / "top.py", apart=True)


def ways() -> tuple[Way, ...]:
    s = symbol("seq")
    return (
        Way(sympy.Le(s, 4), "seq <= 4", "a/f.py", {"threads": 1}),
        Way(sympy.And(sympy.Ge(s, 5), sympy.Le(s, 50)), "5 <= seq <= 50", "b/f.py"),
        Way(sympy.Ge(s, 51), "51 <= seq", "c/f.py"),
    )


def test_the_module_picks_by_the_lengths(tmp_path: Path) -> None:
    f = module(tmp_path, ways()).f  # type: ignore[attr-defined]
    told = {n: f(torch.zeros(n, 8)) for n in (1, 4, 5, 50, 51, 100)}
    assert [told[n][0] for n in sorted(told)] == ["a", "a", "b", "b", "c", "c"]
    assert [told[n][1] for n in sorted(told)] == [1, 1, None, None, None, None], "as each was tuned"
    assert f(torch.zeros(2, 8), threads=3)[1] == 3, "what the caller says counts"
    assert len({held for _, _, held in told.values()}) == 1, "weights are read once"
    with pytest.raises(ValueError, match="x must be an array"):
        f(None)
    assert "otherwise: a function that is called" in f.__doc__
    assert "config" not in f.__doc__


def test_other_lengths_are_refused_or_go_to_what_the_caller_says(tmp_path: Path) -> None:
    f = module(tmp_path, ways()).f  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"^seq=101: the kernels were made for 1 <= seq <= 100$"):
        f(torch.zeros(101, 8))
    assert f(torch.zeros(101, 8), otherwise=lambda x: ("else", x.shape)) == ("else", (101, 8))
    assert f(torch.zeros(101, 8), torch.ones(8), otherwise=lambda x, w: ("else", w.shape)) == ("else", (8,))
    assert f(torch.zeros(100, 8), otherwise=lambda x: "else")[0] == "c"


def test_parameters_that_are_called_like_what_is_added(tmp_path: Path) -> None:
    text = "def options(otherwise, x=None):\n    'd'\n    return otherwise.shape\n"
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.py").write_text(text)
    inputs = (Tensor("x", (symbol("seq"), 8), DType.FLOAT32), Tensor("w", (8,), DType.FLOAT32))
    source = ModuleSource("options", text, ())
    made = ranged_text(source, inputs, False, 1, {"seq": (1, 9)}, ways()[1:])
    (tmp_path / "top.py").write_text(made)
    f = load_module(tmp_path / "top.py", apart=True).options
    assert f(torch.zeros(7, 8), None) == (7, 8)


HEAD = '<ir_version: 9, opset_import: ["" : 18]> '


def negated(tmp_path: Path) -> None:
    """A model that negates."""
    made = onnx.parser.parse_model(HEAD + "m (float[seq, 8] x) => (float[seq, 8] y) { y = Neg(x) }")
    onnx.save(made, tmp_path / "model.onnx")


def joined(path: Path) -> None:
    """A model of what a past and what is new have in common, with a name that is no identifier."""
    m = onnx.parser.parse_model(
        HEAD + "m (float[past, 8] p, float[3, 8] x) => (float[all, 8] y) { c = Concat<axis=0>(p, x) y = Exp(c) }"
    )
    m.graph.input[0].name = m.graph.node[0].input[0] = "past.key"
    onnx.save(m, path)


def test_the_original_model_takes_other_lengths(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    negated(tmp_path)
    f = module(tmp_path, ways(), Original("model.onnx", ("x", "")), outside=True).f  # type: ignore[attr-defined]
    x = torch.randn(101, 8)
    assert torch.equal(f(x), -x)
    assert f(x[:100])[0] == "c"
    assert f(x, otherwise=lambda x: "else") == "else"


def test_what_was_given_runs_where_no_kernels_are_faster(tmp_path: Path) -> None:
    """Of a model's file that; of others what the caller says, and without the kernels that are named there."""
    pytest.importorskip("onnxruntime")
    negated(tmp_path)
    none, *rest = ways()
    slow = (replace(none, given=True), *rest)
    f = module(tmp_path, slow, Original("model.onnx", ("x", ""))).f  # type: ignore[attr-defined]
    x = torch.randn(101, 8)
    assert torch.equal(f(x[:4]), -x[:4])
    assert f(x[:5])[0] == "b"
    assert f(x[:4], otherwise=lambda x: "else") == "else"
    assert "in onnxruntime, within the range, and other lengths are refused" in f.__doc__
    with pytest.raises(ValueError, match="made for 1 <= seq <= 100"):
        f(x)
    with pytest.raises(ValueError, match=r"argument 1 of f is one of the model's weights"):
        f(x[:4], torch.ones(8))
    without = module(tmp_path, slow).f  # type: ignore[attr-defined]
    assert without(x[:4])[0] == "a"
    assert without(x[:4], otherwise=lambda x: "else") == "else"
    assert without(x[:5], otherwise=lambda x: "else")[0] == "b"


@pytest.mark.usefixtures("unoptimised", "small_gate")
def test_a_range_may_begin_at_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the length of a past does: the model as it was given takes it. Names of inputs are the model's own."""
    onnxruntime = pytest.importorskip("onnxruntime")
    joined(tmp_path / "m.onnx")
    scripted(monkeypatch, {"onnxruntime": 2e-3, "kernels": 1e-3})
    made = prism.optimize_ranges(
        prism.load_onnx(tmp_path / "m.onnx"),
        {"past": (0, 6)},
        target="cpu",
        trials=1,
        budget=SearchBudget(max_sgraphs=1, max_families=10),
        only_better=False,
        baselines=["onnxruntime"],
    )
    assert made.report.cells[0].where == "past == 0"
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    for n in (0, 1, 6):
        past, x = torch.randn(n, 8), torch.randn(3, 8)
        (wanted,) = session.run(None, {"past.key": past.numpy(), "x": x.numpy()})
        torch.testing.assert_close(made(past, x), torch.from_numpy(wanted))
    with pytest.raises(ValueError, match="made for 0 <= past <= 6"):
        made(torch.randn(7, 8), x)
    out = write_folder(tmp_path / "out", made.files)
    assert prism.verify(out, prism.load_onnx(tmp_path / "m.onnx"))
    with pytest.raises(UsageError, match="no range"):
        prism.optimize_ranges(prism.load_onnx(tmp_path / "m.onnx"), {"past": (0, 6)}, target="sm_90")


def test_a_model_is_read_for_a_past_of_nothing(tmp_path: Path) -> None:
    joined(tmp_path / "m.onnx")
    program = prism.load_onnx(tmp_path / "m.onnx", empty=["past"])
    assert not program.ranges
    assert [t.shape for t in program.inputs] == [(0, 8), (3, 8)]
    x = np.ones((3, 8), np.float32)
    found = evaluate(program, dict(zip((t.name for t in program.inputs), (x[:0], x), strict=True)))
    np.testing.assert_allclose(found["y"], np.exp(x))
    with pytest.raises(UsageError, match="no symbolic dimension seq"):
        prism.load_onnx(tmp_path / "m.onnx", empty=["seq"])
    with pytest.raises(UsageError, match="read the model with empty"):
        prism.optimize(prism.load_onnx(tmp_path / "m.onnx"), shapes={"past": 0}, target="sm_90")


def test_ranges_that_the_program_does_not_have() -> None:
    program = traced()
    assert over(program, {"seq": (2, 9)}).ranges["seq"] == SymbolRange(2, 9, 4)
    for ranges in ({"batch": (1, 2)}, {"seq": (0, 5)}, {"seq": (5, 4)}, {"seq": (1, 5000)}, {}):
        with pytest.raises(UsageError):
            over(program, ranges)
    with pytest.raises(UsageError, match="batch=0 is out of range"):
        optimize_ranges(traced(rows=True), {"seq": (1, 5)}, shapes={"batch": 0})
    with pytest.raises(UsageError, match="a range and a value"):
        optimize_ranges(program, {"seq": (1, 5)}, shapes={"seq": 3})
    with pytest.raises(UsageError, match="not written"):
        optimize_ranges(program, {"seq": (1, 5)}, only_better=False, out="x")


@pytest.mark.usefixtures("unoptimised", "small_gate")
def test_kernels_for_a_range_on_this_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, {"eager": 2e-3, "kernels": 1e-3})
    made = prism.optimize_ranges(
        traced(),
        {"seq": (1, 40)},
        target="cpu",
        trials=1,
        budget=SearchBudget(max_sgraphs=1, max_families=10),
        only_better=False,
        baselines=["eager"],
    )
    assert len(made.report.cells) >= 2
    w = torch.randn(64, 32)
    for n in (1, 2, 7, 33, 40):
        x = torch.randn(n, 64)
        wanted = (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) @ w
        torch.testing.assert_close(made(x, w), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(made.torch_op()(x, w), wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="made for"):
        made(torch.randn(41, 64), w)
    out = write_folder(tmp_path / "out", made.files)
    found = prism.verify(out, traced())
    assert found, found.mismatches
    assert not prism.verify(out, traced(rows=True)), "another program's"
    (out / f"{made.report.name}.py").write_text("")
    assert not prism.verify(out)
    with pytest.raises(UsageError, match="a derivation each"):
        prism.explain(out)


def test_where_the_time_ends_within_the_search_of_a_range_it_says_so() -> None:
    """Not that the run was interrupted: one cell is for all lengths, which has no time either."""
    with pytest.raises(NoImprovementError) as refused:
        optimize_ranges(traced(), {"seq": (1, 40)}, target="cpu", seconds=0.3)
    assert "more time" in refused.value.one_line()


def test_where_nothing_is_faster_it_says_so_of_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [CompilerError("nothing compiles", where="f")]

    def refuse(*_: object, **__: object) -> None:
        raise errors.pop() if errors else NoImprovementError("nothing is faster", where="f", why="it is slow")

    monkeypatch.setattr("prism.api.ranged.produce", refuse)
    with pytest.raises(CompilerError, match="nothing compiles"):
        prism.optimize_ranges(traced(), {"seq": (1, 40)}, target="sm_90")
    with pytest.raises(NoImprovementError, match="at any length") as error:
        prism.optimize_ranges(traced(), {"seq": (1, 40)}, target="sm_90")
    assert error.value.why.count("it is slow") >= 2
