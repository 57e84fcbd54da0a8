"""Outputs in pieces: which there are, that kernels which store them are right, and what is no such output."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_batch import Case, run_batch
from formulas import evaluate_formula
from interpreting import InterpreterPool, InterpretJob
from sgraph_simulator import simulate

from prism.api import trace
from prism.api.region_search import SearchBudget, run_search
from prism.backends.cpu.support import find_compiler
from prism.backends.triton.emit import emit_module
from prism.cost.device import device
from prism.egraph.language import Budget
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError
from prism.events import Recorder
from prism.generate.partition import searchable
from prism.ir import kit
from prism.program.build import const, op, position
from prism.program.build import read as read_of
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.inline import aligned, decided, inline
from prism.program.nodes import Program, Read, Reduce, walk
from prism.program.pieces import formulas_of, in_pieces
from prism.sgraph import spec
from prism.sgraph.config import Config
from prism.sgraph.denote import denote, stored_at
from prism.sgraph.nodes import Load, SGraph, Stmt, Store
from prism.sgraph.record import denoted, read, written


def rotated(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = q.chunk(2, -1)
    return q * cos + torch.cat([-high, low], -1) * sin


def projected(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return rotated((x @ w).view(12, 4, 16).transpose(0, 1), cos, sin)


def side_by_side(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.cat([x @ w, x @ v, x.sum(-1, keepdim=True).expand(12, 8)], 1)


def of_other_lengths(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    normed = x * ((x * x).mean(-1, keepdim=True) + 1e-6).rsqrt() * g
    return torch.cat([normed, x[:, :3] @ w, c], 1)


def cell(parts: Sequence[torch.Tensor], c: torch.Tensor, d: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The gradients of an LSTM's cell by its gates, and by its state."""
    i, f, g, o = parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()
    t = (f * c + i * g).tanh()
    n = d * o * (1 - t * t)
    return [n * g * i * (1 - i), n * c * f * (1 - f), n * i * (1 - g * g), d * t * o * (1 - o)], n * f


def gates(z: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, of gates that lie side by side."""
    of_gates, of_state = cell(z.chunk(4, -1), c, d)
    return torch.cat(of_gates, -1), of_state


def gates_by_turns(z: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, of gates that lie along an axis of four."""
    of_gates, of_state = cell(z.unbind(-1), c, d)
    return torch.stack(of_gates, -1), of_state


def halves(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """The gradients of a gate and of what it gates; what both share is written in another order in each."""
    a, b = x.chunk(2, -1)
    first, again = (0.8 * (a + 0.04 * (a * a * a))).tanh(), ((a * (a * a) * 0.04 + a) * 0.8).tanh()
    return torch.cat([d * b * (1 - again * again), d * first], -1)


def sides(p: torch.Tensor) -> torch.Tensor:
    """The gradient of a function of a box's area by its sides: each is added where it belongs."""
    w, h = p[:, 2] - p[:, 0], p[:, 3] - p[:, 1]
    slope = 1 - torch.tanh(w * h) ** 2
    found = torch.zeros_like(p)
    for n, side in enumerate((-h, -w, h, w)):
        found = found + torch.zeros_like(p).select_scatter(slope * side, 1, n)
    return found


def beside_a_bank(z: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """How much a row prefers its own to a bank, of scores that lie side by side."""
    return torch.cat([(z * p).sum(-1, keepdim=True), z @ n.T], 1).log_softmax(-1)[:, 0]


def dear(z: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """A gate and what it gates, differentiated, which share nothing but what they read."""
    gate, x = z.chunk(2, -1)
    steep = torch.exp(-gate) * torch.log(1 + gate * gate) * torch.sin(gate) / (1 + torch.tanh(gate))
    return torch.cat([d * x * steep, d * torch.erf(gate) * torch.cos(gate).exp()], -1)


def after_a_prefix(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    place = torch.arange(40, device=x.device)
    return torch.where((place < 5) | (place <= place[:, None]), x @ w, -math.inf).logsumexp(-1)


def two_banks(z: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.cat([z @ p.T, z @ n.T], 1).logsumexp(-1)


def traced(fn: Callable[..., object], *shapes: tuple[int, ...]) -> Program:
    return trace(fn, [torch.empty(s, device="meta") for s in shapes], name="p", check=False)


def rotation() -> Program:
    return traced(projected, (12, 24), (24, 64), (12, 16), (12, 16))


def drawn(p: Program, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal([int(e) for e in t.shape]) for t in p.inputs}


def stores(g: SGraph) -> list[Store]:
    return [s for k in g.kernels for s in k.statements() if isinstance(s, Store)]


@pytest.mark.parametrize(
    ("made", "starts"),
    [
        (rotation, [0, 8]),
        (lambda: traced(side_by_side, (12, 8), (8, 8), (8, 8)), [0, 8, 16]),
        (lambda: traced(of_other_lengths, (12, 11), (3, 5), (12, 4), (11,)), [0, 11, 16]),
        (lambda: traced(lambda z, c, d: gates(z, c, d)[0], (12, 20), (12, 5), (12, 5)), [0, 5, 10, 15]),
        (lambda: traced(lambda z, c, d: gates_by_turns(z, c, d)[0], (12, 5, 4), (12, 5), (12, 5)), [0, 1, 2, 3]),
        (lambda: traced(halves, (12, 10), (12, 5)), [0, 5]),
        (lambda: traced(dear, (12, 10), (12, 5)), [0, 5]),
        (lambda: traced(sides, (12, 4)), [0, 1, 2, 3]),
    ],
    ids=[
        "rotation",
        "concatenation",
        "of other lengths",
        "what shares work",
        "places",
        "in another order",
        "what is dear",
        "places by equality",
    ],
)
def test_pieces_are_what_the_output_is_there(made: Callable[[], Program], starts: list[int]) -> None:
    p = made()
    (whole,) = aligned(inline(p))
    pieces = in_pieces([whole], p.hints)
    given = drawn(p)
    wanted = evaluate_formula(whole, given, {})
    assert [int(f.index[-1].offset) for f in pieces] == starts
    got = np.full_like(wanted, np.nan)
    for piece in (evaluate_formula(f, given, {}) for f in pieces):
        assert np.isnan(got[~np.isnan(piece)]).all(), "an element is of one piece"
        got = np.where(np.isnan(piece), got, piece)
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (rotated, ((4, 12, 16), (12, 16), (12, 16))),
        (lambda x, w: torch.cat([x * w, x], 1), ((12, 5), (12, 5))),
        (lambda x, w: torch.cat([w, x * (x * x).sum(-1, keepdim=True)], 1), ((12, 5), (12, 1))),
        (lambda x, w: torch.cat([(x + n) @ w for n in range(5)], 1), ((12, 5), (5, 8))),
        (lambda x, w: (x @ w).roll(1, 0), ((12, 5), (5, 8))),
    ],
    ids=["nothing is reduced", "nothing beside", "one place", "five pieces", "a piece of one"],
)
def test_what_gains_nothing_or_is_many_stays_whole(
    fn: Callable[..., object], shapes: tuple[tuple[int, ...], ...]
) -> None:
    p = traced(fn, *shapes)
    formulas = aligned(inline(p))
    assert in_pieces(formulas, p.hints) == formulas


def test_what_is_as_long_as_pieces_goes_along_with_them() -> None:
    p = traced(gates, (12, 20), (12, 5), (12, 5))
    formulas, pieces = formulas_of(p)
    assert len(pieces) == 5
    assert len({f.index[-1].terms for f in pieces}) == 1, "all go along one axis"
    given = drawn(p)
    for f, wanted in zip(formulas, evaluate(p, given).values(), strict=True):
        np.testing.assert_allclose(evaluate_formula(f, given, {}), wanted, rtol=1e-12, atol=1e-12)
    with Worker() as worker:
        first, *_ = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved
    loads = [s for k in first.sgraph.kernels for s in k.statements() if isinstance(s, Load)]
    assert len(first.sgraph.kernels) == 1
    assert len(loads) == 6, "each gate, the state and the gradient, once"
    got = simulate(first.sgraph, given, {s.name: 3 for s in first.sgraph.symbols})
    for name, wanted in evaluate(p, given).items():
        np.testing.assert_allclose(got[name], wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("fn", "shapes", "loads"),
    [(gates_by_turns, ((12, 5, 4), (12, 5), (12, 5)), 6), (sides, ((12, 4),), 4)],
    ids=["chosen", "added"],
)
def test_places_that_share_work_are_one_kernel_that_stores_each(
    fn: Callable[..., object],
    shapes: tuple[tuple[int, ...], ...],
    loads: int,
    interpreter: InterpreterPool,
    tmp_path: Path,
) -> None:
    p = traced(fn, *shapes)
    with Worker() as worker:
        first, *_ = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved
    g = first.sgraph
    assert [s.index[-1] for s in stores(g) if s.tensor == p.outputs[0]] == [Index.const(n) for n in range(4)]
    assert len([s for k in g.kernels for s in k.statements() if isinstance(s, Load)]) == loads
    assert read(written(g).encode()) == g
    given = drawn(p)
    wanted = evaluate(p, given)
    for size in (1, 4, 16):
        got = simulate(g, given, {s.name: size for s in g.symbols})
        for name, values in wanted.items():
            np.testing.assert_allclose(got[name], values, rtol=1e-9, atol=1e-9)
    for outputs in answers(g, given, interpreter, tmp_path):
        for t, answer in zip(g.outputs, outputs, strict=True):
            np.testing.assert_allclose(answer, wanted[t.name], rtol=0, atol=2e-5)
    # Each in another's place, or a place twice, is nothing that is proved.
    mine = [s for s in stores(g) if s.tensor == p.outputs[0]]
    reference = tuple(f.expr for f in formulas_of(p)[0])
    turned = {s: replace(s, index=mine[n - 1].index) for n, s in enumerate(mine)}
    with Worker() as worker:
        worker.explore(reference, Budget())
        assert worker.prove([denote(g).outputs])[0]
        assert not worker.prove([denote(changed(g, lambda s: turned.get(s, s))).outputs])[0]
    with pytest.raises(IllegalIRError):
        denote(changed(g, lambda s: replace(s, index=mine[1].index) if s == mine[0] else s))


@pytest.fixture(scope="module")
def found() -> list[SGraph]:
    """What is proved of the rotation."""
    with Worker() as worker:
        proved = run_search(rotation(), device("sm_90"), SearchBudget(), worker, Recorder()).proved
    mine = [p.sgraph for p in proved if len(stores(p.sgraph)) == 2 and len(p.sgraph.kernels) == 1]
    assert mine, "one kernel stores both halves"
    return mine


def test_tiles_of_any_length_give_the_same(found: list[SGraph]) -> None:
    choose, given = random.Random(0), drawn(rotation())
    wanted = evaluate(rotation(), given)
    for g in found:
        binding = {s.name: choose.choice((3, 5, 8, 32)) for s in g.symbols}
        got = simulate(g, given, binding)
        for t in g.outputs:
            np.testing.assert_allclose(got[t.name], wanted[t.name], rtol=1e-9, atol=1e-9, err_msg=str(binding))


def answers(
    g: SGraph, given: dict[str, np.ndarray], interpreter: InterpreterPool, tmp_path: Path
) -> list[list[np.ndarray]]:
    """What its kernels in Triton store, and in C++ where there is a compiler, each with two lengths of tiles."""
    made = [given[t.name].astype(np.float32) for t in g.inputs]
    source = emit_module(g, formula="p", configs={})
    path = tmp_path / "m.py"
    path.write_text(source.text)
    jobs = []
    for size in (4, 8):
        config = Config(
            {s.name: size for s in g.symbols}, dict.fromkeys(source.kernels, 4), dict.fromkeys(source.kernels, 2)
        )
        jobs.append(InterpretJob(path, source.entry, tuple(made), ("float32",) * len(made), config))
    found: list[list[np.ndarray]] = []
    for result in interpreter.run_many(jobs):
        assert not result.error
        found.append(list(result.outputs))
    if find_compiler() is not None:
        cases = [Case(g, {s.name: size for s in g.symbols}, made) for size in (3, 8)]
        found += [list(outputs) for outputs in run_batch(cases, tmp_path)]
    assert len(found) >= 2
    return found


def test_kernels_store_both(found: list[SGraph], interpreter: InterpreterPool, tmp_path: Path) -> None:
    given = drawn(rotation())
    wanted = next(iter(evaluate(rotation(), given).values()))
    for (answer,) in answers(found[0], given, interpreter, tmp_path):
        np.testing.assert_allclose(answer, wanted, rtol=0, atol=2e-5)


def test_rows_beside_others_are_one_launch_and_right(tmp_path: Path) -> None:
    p = traced(of_other_lengths, (12, 11), (3, 5), (12, 4), (11,))
    with Worker() as worker:
        proved = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder()).proved
    mine = [c.sgraph for c in proved if any("x" in k.reads and len(k.reads) == 2 for k in c.sgraph.kernels)]
    assert any(g.together for g in mine), "pieces of one output are launched together"
    given = drawn(p)
    (wanted,) = evaluate(p, given).values()
    for g in mine:
        assert read(written(g).encode()) == g
        for size in (1, 4, 16):
            got = simulate(g, given, {s.name: size for s in g.symbols})
            np.testing.assert_allclose(got["cat"], wanted, rtol=1e-9, atol=1e-9)
    if find_compiler() is not None:
        made = [given[t.name].astype(np.float32) for t in p.inputs]
        ((answer,),) = run_batch([Case(mine[0], {s.name: 4 for s in mine[0].symbols}, made)], tmp_path)
        np.testing.assert_allclose(answer, wanted, rtol=0, atol=2e-5)


def changed(g: SGraph, change: Callable[[Store], Store]) -> SGraph:
    """The sGraph with other stores."""

    def of(s: Stmt) -> Stmt:
        return change(s) if isinstance(s, Store) else s

    return replace(g, kernels=tuple(replace(k, body=kit.rewrite(k.body, of)) for k in g.kernels))


def moved(s: Store, to: Callable[[Index], Index]) -> Store:
    return replace(s, index=(*s.index[:-1], to(s.index[-1])))


def test_a_record_says_as_much(found: list[SGraph]) -> None:
    g = read(written(found[0]).encode())
    assert g == found[0]
    assert denoted(g, [t.name for t in g.outputs]) == list(denote(g).outputs)
    (whole,) = aligned(inline(rotation()))
    assert stored_at(g) == {whole.tensor.name: whole.index}


def test_halves_in_each_others_place_are_not_proved(found: list[SGraph]) -> None:
    g = found[0]
    first, last = stores(g)
    swapped = changed(g, lambda s: replace(s, index=last.index if s == first else first.index))
    one_value = changed(g, lambda s: replace(s, src=first.src))
    cos = next(s.dst for k in g.kernels for s in k.statements() if isinstance(s, Load) and s.tensor == "cos")
    last_is_right = changed(g, lambda s: replace(s, src=cos) if s == first else s)
    reference = tuple(f.expr for f in aligned(inline(rotation())))
    with Worker() as worker:
        worker.explore(reference, Budget())
        assert worker.prove([denote(g).outputs])[0]
        for wrong in (swapped, one_value, last_is_right):
            spec.check(wrong)
            assert not worker.prove([denote(wrong).outputs])[0]


@pytest.mark.parametrize(
    ("to", "why"),
    [
        (lambda i: Index(i.terms), "stored twice"),
        (lambda i: Index(i.terms, 2 * int(i.offset)), "covers"),
        (lambda i: Index(i.terms, int(i.offset) - 1), "covers"),
    ],
    ids=["at one place", "beyond the end", "before the beginning"],
)
def test_stores_that_do_not_cover_are_refused(found: list[SGraph], to: Callable[[Index], Index], why: str) -> None:
    wrong = changed(found[0], lambda s: moved(s, to))
    with pytest.raises(IllegalIRError, match=why):
        spec.check(wrong)
    with pytest.raises(IllegalIRError):
        denote(wrong)


def test_pieces_that_do_not_say_of_what_have_no_denotation(found: list[SGraph]) -> None:
    """Along an axis by another name it is not known which axis of the model they are pieces of."""
    other = Axis("d8", 8)
    wrong = changed(found[0], lambda s: moved(s, lambda i: Index(((other, 1),), i.offset)))
    with pytest.raises(IllegalIRError, match="has 2 stores"):
        denote(wrong)


@pytest.mark.parametrize(
    ("fn", "shapes", "lengths"),
    [
        (beside_a_bank, [(12, 8), (12, 8), (40, 8)], {8, 40}),
        (two_banks, [(12, 8), (24, 8), (40, 8)], {8, 24, 40}),
        # What is chosen is read, or what all rows see of scores: one reduction.
        (lambda x, y: torch.cat([x, y], 1).logsumexp(-1), [(12, 5), (12, 40)], {45}),
        (after_a_prefix, [(40, 8), (8, 40)], {8, 40}),
    ],
)
def test_what_is_computed_side_by_side_is_reduced_stretch_by_stretch(
    fn: Callable[..., object], shapes: list[tuple[int, ...]], lengths: set[int], worker: Worker
) -> None:
    program = traced(fn, *shapes)
    ((formula,), _) = formulas_of(program)
    assert {int(e.axis.extent) for e in walk(formula.expr) if isinstance(e, Reduce)} == lengths
    given = drawn(program)
    (expected,) = evaluate(program, given).values()
    np.testing.assert_allclose(evaluate_formula(formula, given, {}), expected, rtol=1e-12)
    found = run_search(program, device("sm_90"), SearchBudget(), worker, Recorder()).proved
    assert found
    np.testing.assert_allclose(
        next(iter(simulate(found[0].sgraph, given, dict.fromkeys(map(str, found[0].sgraph.symbols), 8)).values())),
        expected,
        rtol=1e-6,
    )


def test_a_place_that_is_never_met_is_not_asked_for() -> None:
    m = Axis("m", 6)
    for shift, border, left in ((1, 0.0, False), (0, 6.0, False), (0, 5.0, True), (1, 1.0, True)):
        asked = op("where", op("eq", position(Index.axis(m) + shift), const(border)), read_of("x", m), const(2.0))
        assert any(isinstance(e, Read) for e in walk(decided(asked))) is left


def test_a_program_counts_by_its_pieces() -> None:
    def three(
        x: torch.Tensor, wq: torch.Tensor, wk: torch.Tensor, wv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return projected(x, wq, cos, sin), projected(x, wk, cos, sin), x @ wv

    shapes = ((12, 24), *((24, 64),) * 3, (12, 16), (12, 16))
    assert searchable(traced(three, *shapes), device("sm_90"))
    five = traced(lambda *a: (*three(*a), *(a[0] @ (a[3] + n) for n in (1, 2))), *shapes)
    assert not searchable(five, device("sm_90"))


def test_what_is_stored_by_digits_is_read_by_place() -> None:
    """Channels are stored a group at a time, for those who multiply by groups, and read by what goes over all."""

    def shuffled(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.relu(x + y)
        grouped = torch.einsum("gcs,goc->gos", kept.view(4, 6, 5), w)
        return kept, torch.relu(grouped).transpose(0, 1).reshape(24, 5)

    p = traced(shuffled, (24, 5), (24, 5), (4, 6, 6))
    with Worker() as worker:
        result = run_search(p, device("sm_90"), SearchBudget(), worker, Recorder())
    assert "illegal" not in result.generated.pruned
    by_digits = [c.sgraph for c in result.proved if any(i.digits()[1:] for s in stores(c.sgraph) for i in s.index)]
    assert any(s.tensor in k.reads for g in by_digits for s in stores(g) for k in g.kernels)
    given = drawn(p)
    wanted = evaluate(p, given)
    for g in by_digits:
        for size in (1, 4, 16):
            got = simulate(g, given, {s.name: size for s in g.symbols})
            for t in g.outputs:
                np.testing.assert_allclose(got[t.name], wanted[t.name], rtol=1e-9, atol=1e-9)
