"""Whatever the generator makes computes the program, at any tile size, and its denotation says so."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quick import examples, slow_but
from sgraph_programs import ALL, attention, decode, gated, layer_norm, norm_linear, program, task
from sgraph_simulator import simulate

from prism.cost.constraints import RoleBounds, domains, footprint, too_large
from prism.cost.device import Device, Tiles
from prism.cost.roofline import full
from prism.errors import IllegalIRError
from prism.frontend.onnx.reader import from_model
from prism.generate.enumerate import Bounds, Candidate, generate
from prism.generate.forms import forms
from prism.generate.materialise import Planner
from prism.generate.options import Weights, Within, below, options
from prism.generate.plan_estimate import PlanEstimate
from prism.generate.values import Values
from prism.process.deadline import NEVER, Deadline
from prism.program.build import add, const, mean, mul, op, position, read, recip, reduce
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr, Map, Program, Reduce, ReduceKind
from prism.program.transform import canonical
from prism.sgraph.denote import denote, expand
from prism.sgraph.nodes import (
    Accumulate,
    Grid,
    Kernel,
    Load,
    Loop,
    LoopRole,
    Pointwise,
    SGraph,
    Split,
    Store,
    TileReduce,
    Whole,
)
from prism.sgraph.spec import check

WIDE = Bounds(
    max_families=2000,
    per_kernel=40,
    per_plan=60,
    max_sgraphs=2000,
    off=frozenset({"dominated", "worse"}),
    roles=RoleBounds(short=0),
)


def without_neg(e: Expr) -> Expr:
    """The expression as the e-graph writes it: -a is -1*a."""
    match e:
        case Map("neg", (a,)):
            return Map("mul", (Const(-1.0), without_neg(a)))
        case Map(name, args):
            return Map(name, tuple(map(without_neg, args)))
        case Reduce(kind, axis, body):
            return Reduce(kind, axis, without_neg(body))
        case _:
            return e


@cache
def wide(make: Callable[[], Program]) -> tuple[Candidate, ...]:
    return generate(task(make()), WIDE).candidates


def draw(p: Program, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.normal(size=t.shape) for t in p.inputs}


def sample(candidates: tuple[Candidate, ...], count: int) -> list[Candidate]:
    chosen = list(candidates)
    random.Random(0).shuffle(chosen)
    return chosen[:count]


# The others take these ones' paths, attention has the most sGraphs by far, and test_backends.py runs some of all.
FEW = (decode, norm_linear)


@pytest.mark.parametrize("make", slow_but(FEW, ALL), ids=lambda f: f.__name__)
def test_every_sgraph_computes_the_program(make: Callable[[], Program]) -> None:
    p = make()
    found = wide(make)
    assert found
    tensors = draw(p, 1)
    expected = evaluate(p, tensors)
    tiles = random.Random(1)
    for c in sample(found, 12):
        check(c.sgraph)
        binding = {s.name: tiles.choice([1, 2, 4, 8]) for s in c.sgraph.symbols}
        got = simulate(c.sgraph, tensors, binding)
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-9, atol=1e-11, err_msg=str(binding))


@pytest.mark.parametrize("make", slow_but(FEW, ALL), ids=lambda f: f.__name__)
def test_without_rules_every_denotation_is_the_reference(make: Callable[[], Program]) -> None:
    t = task(make())
    rescaled = 0
    for c in wide(make):
        meaning = denote(c.sgraph)
        reference = tuple(expand(canonical(without_neg(f.expr)), meaning.split) for f in t.formulas)
        if meaning.split:
            rescaled += 1  # proved by rules, not by being the same
        else:
            assert meaning.outputs == reference
    assert (rescaled > 0) == (make is decode)


def test_generation_is_deterministic() -> None:
    first, second = (generate(task(attention()), Bounds()) for _ in range(2))
    assert [c.sgraph for c in first.candidates] == [c.sgraph for c in second.candidates]
    assert first.pruned == second.pruned


def test_one_pass_over_the_weight() -> None:
    one = [c.sgraph for c in wide(norm_linear) if len(c.sgraph.kernels) == 1]
    loops = [[s for s in g.kernels[0].statements() if isinstance(s, Loop)] for g in one]
    assert any(len(found) == 1 and sum(isinstance(s, Accumulate) for s in found[0].body) == 2 for found in loops)


def test_attention_in_one_kernel_with_a_rescaled_accumulator() -> None:
    for c in wide(attention):
        if len(c.sgraph.kernels) == 1:
            shifts = [s for s in c.sgraph.kernels[0].statements() if isinstance(s, Accumulate) and s.shift]
            if len(shifts) == 2:
                return
    pytest.fail("no online softmax was found")


def test_gate_and_up_share_one_pass() -> None:
    found = wide(gated)
    two = [c.sgraph for c in found if len(c.sgraph.kernels) == 2]
    assert any(
        sum(isinstance(s, Accumulate) for s in g.kernels[0].statements()) == 2 and g.kernels[0].reads.count("x") == 1
        for g in two
    )


def test_two_passes_where_the_second_needs_the_first() -> None:
    short = Bounds(roles=RoleBounds(whole=8, short=0))
    one = [c.sgraph.kernels[0] for c in generate(task(layer_norm()), short).candidates if len(c.sgraph.kernels) == 1]
    looped = [k for k in one if sum(isinstance(r, LoopRole) for _, r in k.roles)]
    assert any(sum(isinstance(s, Loop) for s in k.body) == 3 for k in looped)


def grouped(groups: int, length: int) -> Program:
    """A matrix times a vector, with a scale for each group of the contracted axis."""
    n, g, r = Axis("n", 48), Axis(f"d{groups}", groups), Axis(f"d{length}", length)
    inner = reduce("sum", r, mul(read("x", g, r), read("w", n, g, r)))
    y = reduce("sum", g, mul(read("s", n, g), inner))
    shapes: dict[str, tuple[int, ...]] = {"x": (groups, length), "w": (48, groups, length), "s": (48, groups)}
    return program("grouped", shapes, {"y": ((n,), y)})


def test_short_axes_that_are_long_together_are_looped_over_by_the_outer_one() -> None:
    def kinds(groups: int, length: int) -> set[tuple[type, type]]:
        bounds = Bounds(max_kernels=1, off=frozenset({"worse", "dominated"}))
        found = set()
        for c in generate(task(grouped(groups, length)), bounds).candidates:
            roles = {a.name: type(r) for a, r in c.sgraph.kernels[0].roles}
            found.add((roles[f"d{groups}"], roles[f"d{length}"]))
        return found

    assert kinds(4, 64) == {(Whole, Whole)}
    assert kinds(32, 64) == {(Whole, Whole), (LoopRole, Whole), (Split, Whole)}


def test_so_are_those_that_the_output_has_too() -> None:
    """A row over two short axes is normed in passes where it is too long for one tile."""
    m, a, b = Axis("m", 48), Axis("a", 40), Axis("b", 48)
    total = reduce("sum", a, reduce("sum", b, mul(read("x", m, a, b), read("x", m, a, b))))
    p = program("p", {"x": (48, 40, 48)}, {"y": ((m, a, b), mul(read("x", m, a, b), recip(total)))})

    def passes(joint: int) -> set[int]:
        bounds = Bounds(max_kernels=1, off=frozenset({"worse", "dominated"}), roles=RoleBounds(joint=joint))
        found = [c.sgraph.kernels[0] for c in generate(task(p), bounds).candidates]
        return {sum(isinstance(s, Loop) for s in k.body) for k in found}

    assert passes(4096) == {0}
    assert passes(512) == {0, 2}


def test_loops_over_short_axes_may_take_few_of_them() -> None:
    bounds = Bounds(max_kernels=1, off=frozenset({"worse", "dominated"}))
    sgraph = next(
        c.sgraph
        for c in generate(task(grouped(32, 64)), bounds).candidates
        if any(isinstance(r, LoopRole) for _, r in c.sgraph.kernels[0].roles)
    )
    ranges = {d.symbol: d for d in domains(footprint(sgraph.kernels[0], sgraph), {}, Tiles())}
    assert ranges["T_d32"].values == (2, 4, 8, 16, 32)


def test_what_reduces_nothing_but_looks_elements_up_is_one_kernel_however_long() -> None:
    """A border that is reflected is looked up: a sum in which one term counts, and no reduction."""
    n, k = Axis("n", 512), Axis("k", 512)

    def taken(shift: int) -> Expr:
        place = op("abs", add(position(Index.axis(n)), const(float(-shift))))
        return reduce(
            ReduceKind.SUM, k, op("where", op("eq", position(Index.axis(k)), place), read("x", k), const(0.0))
        )

    total: Expr = const(0.0)
    for shift in range(1, 9):
        total = add(total, op("exp", mul(const(0.1 * shift), op("sin", taken(shift)))))
    t = task(program("p", {"x": (512,)}, {"y": ((n,), total)}))
    assert not t.reduces
    assert any(len(c.sgraph.kernels) == 1 for c in generate(t, Bounds(max_ops=24)).candidates)


def test_one_tensor_in_two_roles_is_materialised_once() -> None:
    """Rows are normalised and compared with each other: what is stored once is read as rows and as columns."""
    i, j, k = Axis("d64", 64), Axis("d64_1", 64), Axis("d256", 256)

    def row(a: Axis) -> Expr:
        norm = recip(op("sqrt", add(reduce("sum", k, mul(read("x", a, k), read("x", a, k))), const(1e-6))))
        return op("sigmoid", mul(read("x", a, k), norm))

    p = program("p", {"x": (64, 256)}, {"s": ((i, j), reduce("sum", k, mul(row(i), row(j))))})
    found = [c.sgraph for c in generate(task(p), WIDE).candidates if len(c.sgraph.kernels) == 2]
    roles = [
        {str(s.index[0]) for s in g.kernels[-1].statements() if isinstance(s, Load) and s.tensor == g.buffers[0].name}
        for g in found
        if len(g.buffers) == 1 and g.buffers[0].shape == (64, 256)
    ]
    assert any(len(r) == 2 for r in roles)


def test_projections_of_one_input_to_several_widths_are_one_launch() -> None:
    k, widths = Axis("k", 256), (192, 64, 48)
    m = Axis("m", 32)
    products: dict[str, tuple[tuple[Axis, ...], Expr]] = {
        f"y{n}": ((m, Axis(f"n{n}", w)), reduce("sum", k, mul(read("x", m, k), read(f"w{n}", k, Axis(f"n{n}", w)))))
        for n, w in enumerate(widths)
    }
    shapes: dict[str, tuple[int, ...]] = {"x": (32, 256)}
    shapes |= {f"w{n}": (256, w) for n, w in enumerate(widths)}
    best = generate(task(program("p", shapes, products)), Bounds()).candidates[0].sgraph
    assert len(best.kernels) == 3
    assert len(best.launches) == 1


@st.composite
def small_programs(draw_: st.DrawFn) -> Program:
    """Random expressions over three axes, with products, sums, maxima and masks."""
    a, b, c = Axis("a", 5), Axis("b", 4), Axis("c", 3)
    leaves = [read("x", a, b), read("y", b, c), read("z", a, c), read("u", b), const(0.5)]

    def expr(depth: int) -> Expr:
        if depth == 0:
            return draw_(st.sampled_from(leaves))
        kind = draw_(st.sampled_from(["mul", "add", "sum", "max", "exp", "leaf"]))
        match kind:
            case "mul" | "add":
                return op(kind, expr(depth - 1), expr(depth - 1))
            case "exp":
                return op("sigmoid", expr(depth - 1))
            case "sum" | "max":
                return reduce(
                    kind, draw_(st.sampled_from([b, c])), mul(expr(depth - 1), draw_(st.sampled_from(leaves[:4])))
                )
            case _:
                return draw_(st.sampled_from(leaves))

    body = reduce("sum", b, mul(mul(expr(2), read("x", a, b)), expr(1)))
    return program("p", {"x": (5, 4), "y": (4, 3), "z": (5, 3), "u": (4,)}, {"o": ((a, c), mul(body, read("z", a, c)))})


@settings(max_examples=examples(12, 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(small_programs(), st.integers(0, 1000))
def test_random_programs(p: Program, seed: int) -> None:
    tensors = draw(p, seed)
    expected = evaluate(p, tensors)["o"]
    tiles = random.Random(seed)
    for c in sample(generate(task(p), Bounds(max_kernels=2, max_cuts=3, roles=RoleBounds(short=0))).candidates, 4):
        check(c.sgraph)
        binding = {s.name: tiles.choice([1, 2, 4]) for s in c.sgraph.symbols}
        np.testing.assert_allclose(simulate(c.sgraph, tensors, binding)["o"], expected, rtol=1e-9, atol=1e-9)


def _symbol(name: str):  # type: ignore[no-untyped-def]
    import sympy

    return sympy.Symbol(name, integer=True, positive=True)


def _sum_of_products(body: tuple[object, ...]) -> SGraph:
    m, k = Axis("d6", 6), Axis("d24", 24)
    p = program("p", {"x": (6, 24)}, {"y": ((m,), reduce("sum", k, read("x", m, k)))})
    kernel = Kernel("p", ((m, Grid(_symbol("T_d6"))), (k, LoopRole(_symbol("T_d24")))), body)  # type: ignore[arg-type]
    return SGraph("p", p.inputs, (), tuple(d.tensor for d in p.definitions), (kernel,))


def test_a_partial_result_used_as_a_whole_has_no_denotation() -> None:
    m, k = Axis("d6", 6), Axis("d24", 24)
    load = Load("x1", "x", (Index.axis(m), Index.axis(k)))
    part = TileReduce("part", ReduceKind.SUM, k, "x1")
    square = Pointwise("sq", "mul", ("part", "part"))
    bad = _sum_of_products(
        (Loop(k, (load, part, square, Accumulate("acc", ReduceKind.SUM, "sq"))), Store("y", (Index.axis(m),), "acc"))
    )
    with pytest.raises(IllegalIRError, match="before it is accumulated"):
        denote(bad)


def test_a_running_value_must_be_absorbed_by_rescaling() -> None:
    m, k = Axis("d6", 6), Axis("d24", 24)
    load = Load("x1", "x", (Index.axis(m), Index.axis(k)))
    top = TileReduce("top", ReduceKind.MAX, k, "x1")
    best = Accumulate("best", ReduceKind.MAX, "top")
    scaled = Pointwise("s", "mul", ("x1", "best"))
    part = TileReduce("part", ReduceKind.SUM, k, "s")
    for shift in (None, "best"):
        acc = Accumulate("acc", ReduceKind.SUM, "part", shift)
        bad = _sum_of_products((Loop(k, (load, top, best, scaled, part, acc)), Store("y", (Index.axis(m),), "acc")))
        with pytest.raises(IllegalIRError):
            denote(bad)


def three_layers(products: bool = False, layers: int = 3) -> Program:
    """Three products, of numbers or in the max-plus algebra, too large to compute one again for tiles of the next."""
    m, *n = (Axis(name, 1024) for name in "mabcdefgh"[: layers + 2])
    value: Expr = read("x", m, n[0])
    for k, layer in itertools.pairwise(n):
        weight = read(f"w{k}", k, layer)
        value = reduce("sum", k, mul(value, weight)) if products else reduce("max", k, add(value, weight))
        value = op("sigmoid", value)
    inputs = ("x", *(f"w{a}" for a in n[:-1]))
    return program("three", dict.fromkeys(inputs, (1024, 1024)), {"y": ((m, n[-1]), value)})


def test_a_further_round_finds_what_narrow_bounds_hide() -> None:
    t, narrow = task(three_layers()), Bounds(max_cuts=2, max_families=16)
    first, found = generate(t, replace(narrow, max_rounds=1)), generate(t, narrow)

    assert found.candidates[0].seconds < 0.5 * first.candidates[0].seconds
    assert first.pruned["max_cuts"] > found.pruned.get("max_cuts", 0)
    assert found.candidates == generate(t, narrow).candidates


def test_products_as_written_are_a_floor_under_all_bounds() -> None:
    t = task(three_layers(products=True))
    least = generate(t, Bounds()).candidates[0].seconds
    for narrow in (Bounds(max_cuts=1, max_families=1, max_rounds=1), Bounds(max_kernels=2, max_rounds=2)):
        assert generate(t, narrow).candidates[0].seconds == least
    assert generate(t, Bounds(max_kernels=2, max_rounds=1)).candidates[0].seconds > 2 * least  # not beyond all bounds


@pytest.mark.parametrize("make", [gated, layer_norm, three_layers])
def test_the_form_as_written_is_a_floor_under_all_bounds(make: Callable[[], Program]) -> None:
    t = task(make())
    for narrow in (Bounds(max_families=1, max_rounds=1), Bounds(max_forms=1, max_families=1, max_rounds=1)):
        told: list[Candidate] = []
        found = generate(t, narrow, told.append)
        (first,) = told
        assert first.written
        assert found.candidates[0].seconds <= first.seconds
        assert found == generate(t, narrow)  # whoever is told of it


@dataclass(frozen=True, order=True)
class Turns(Deadline):
    """The moment after which one has looked whether it is over so many times."""

    many: int = 0
    seen: list[None] = field(default_factory=list, compare=False)

    @property
    def left(self) -> float:
        self.seen.append(None)
        return float(len(self.seen) <= self.many)

    def part(self, share: float) -> Deadline:
        return NEVER

    def itself(self) -> Deadline:
        return self


@pytest.mark.parametrize("make", [attention, gated, three_layers])
def test_what_is_generated_when_the_time_is_over_is_the_best_of_what_was_looked_at(make: Callable[[], Program]) -> None:
    t, asked, told = task(make()), Turns(many=10**9), list[Candidate]()
    every = generate(t, Bounds(), until=asked.itself)
    assert every == generate(t, Bounds())
    assert not every.ended
    least = math.inf
    for many in (0, 1, len(asked.seen) // 2):
        found = generate(t, Bounds(), told.append, Turns(many=many).itself)
        assert found.ended
        assert not found.complete
        assert found.generated <= every.generated
        seconds = found.candidates[0].seconds
        assert every.candidates[0].seconds <= seconds <= min([least, *(c.seconds for c in told)])
        least = seconds


def test_plans_have_as_many_launches_as_the_operators_one_by_one_where_these_are_worth_it() -> None:
    t = task(three_layers(layers=6))
    three = generate(t, Bounds())
    assert len(three.candidates[0].sgraph.launches) == 3
    for launches in (4, 5, 6, 9):
        found = generate(replace(t, launches=launches), Bounds())
        assert len(found.candidates[0].sgraph.launches) == min(launches, 6)
        assert found.candidates[0].seconds < 0.8 * three.candidates[0].seconds
    assert found.candidates == generate(replace(t, launches=9), Bounds()).candidates
    alone = Bounds(max_rounds=1)
    assert generate(replace(t, launches=6), alone).candidates == generate(t, alone).candidates
    # Where nothing can be gained, nothing more is built.
    for make in (attention, gated, layer_norm):
        assert generate(replace(task(make()), launches=9), Bounds()) == generate(task(make()), Bounds())


def test_there_is_no_further_round_where_nothing_can_be_gained() -> None:
    for make in (attention, gated, layer_norm):
        t, narrow = task(make()), Bounds(max_cuts=1, max_families=4)
        one, more = generate(t, replace(narrow, max_rounds=1)), generate(t, narrow)
        assert one.pruned.get("max_families", 0) > 0
        assert (one.generated, one.pruned, one.candidates) == (more.generated, more.pruned, more.candidates)


def normed_both_ways() -> Program:
    """A matrix by the root mean squares of its rows and columns, and those."""
    m, n = Axis("m", 4096), Axis("n", 2048)
    x = read("x", m, n)
    rows, columns = (op("sqrt", mean(a, mul(x, x))) for a in (n, m))
    outputs = {"y": ((m, n), mul(x, recip(mul(rows, columns)))), "r": ((m,), rows), "c": ((n,), columns)}
    return program("both_ways", {"x": (4096, 2048)}, outputs)


@pytest.mark.parametrize("make", [three_layers, lambda: three_layers(products=True), normed_both_ways])
def test_what_roles_show_to_be_too_large_cannot_run(
    make: Callable[[], Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    t, wide, told = task(make()), Bounds(max_families=10_000), []

    def asked(*given: object) -> str | None:
        told.append(too_large(*given))  # type: ignore[arg-type]
        return told[-1]

    monkeypatch.setattr("prism.generate.families.too_large", asked)
    without = generate(t, wide)
    assert {"tile_elements"} <= {name for name in told if name is not None}
    assert None in told
    monkeypatch.setattr("prism.generate.families.too_large", lambda *_: None)
    assert without.candidates == generate(t, wide).candidates


@pytest.mark.parametrize("wide", [2, 5])
def test_wider_cuts_list_what_was_not_listed(wide: int) -> None:
    t = task(three_layers())
    weights = Weights(t.classes, t.hints, t.device.tiles.dot)
    (form,) = forms(t.classes, options(t.classes, frozenset(), Counter()), weights, 1).found

    def listed(*bounds: tuple[int, int]) -> list[frozenset[int]]:
        planner = Planner(t.formulas, t.inputs, Within(form.choices), weights, t.device)
        plans = [p for most, known in bounds for p in planner.plans(3, most, Counter(), known)]
        return [frozenset(p.stored) for p in plans]

    both, at_once = listed((1, 0), (wide, 1)), listed((wide, 0))
    assert len(both) == len(set(both))
    assert set(both) == set(at_once)
    assert len(listed((1, 0))) < len(both)


def test_no_kernel_reads_elsewhere_what_it_stores_itself() -> None:
    """Scores under two axes, of which statistics are stored: those of one axis are no input to those of the other."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
        router (float[t, 64] x) => (float[t, 2] g, int64[t, 2] i) <int64[1] k = {2}, int64[1] axis = {1}> {
            l = MatMul(x, w)  p = Softmax(l)  v, i = TopK(p, k)  s = ReduceSum(v, axis)  g = Div(v, s) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 8), np.float32), "w"))
    found = generate(task(from_model(model, "router", None, check=False)), Bounds()).candidates
    assert len(found) > 8
    for candidate in found:
        check(candidate.sgraph)


def test_masks_over_the_same_positions_are_nothing_in_common() -> None:
    i, j, d = Axis("i", 8), Axis("j", 8), Axis("d", 4)
    over = Axis("l", 8)

    def weight(row: Axis, column: Axis) -> Expr:
        s, whole = read("s", row, column), read("s", row, over)
        top = reduce("max", over, whole)
        z = reduce("sum", over, op("exp", add(whole, mul(const(-1.0), top))))
        return mul(op("exp", add(s, mul(const(-1.0), top))), recip(z))

    back = op("where", op("le", position(j), position(i)), weight(i, j), const(0.0))
    ahead = op("where", op("le", position(i), position(j)), weight(j, i), const(0.0))
    outputs: dict[str, tuple[tuple[Axis, ...], Expr]] = {
        "a": ((i, d), reduce("sum", j, mul(back, read("v", j, d)))),
        "b": ((i, d), reduce("sum", j, mul(ahead, read("u", j, d)))),
    }
    groups = stored_by_each(program("p", {"s": (8, 8), "v": (8, 4), "u": (8, 4)}, outputs))
    assert any(("a",) in g and ("b",) in g for g in groups)
    assert any(("a", "b") in g for g in groups)


def test_a_number_is_stored_no_later_than_what_is_made_of_it() -> None:
    """The reciprocal of a sum and what else is made of it are both stored, at once or one after the other."""
    n, j = Axis("n", 64), Axis("j", 64)
    share = recip(reduce("sum", j, read("m", j)))
    part = op("tanh", mul(const(0.04), share))
    y = add(mul(op("exp", read("x", n)), share), mul(read("x", n), part))
    p = program("p", {"x": (64,), "m": (64,)}, {"y": ((n,), y)})
    assert any(len(plan[0]) == 2 for plan in stored_by_each(p))
    for candidate in generate(task(p), WIDE).candidates:
        check(candidate.sgraph)


def stored_by_each(p: Program) -> list[list[tuple[str, ...]]]:
    """What the kernels of each plan store; buffers are named by their e-classes."""
    t = task(p)
    weights = Weights(t.classes, t.hints, t.device.tiles.dot)
    (form,) = forms(t.classes, options(t.classes, frozenset(), Counter()), weights, 1).found
    plans = Planner(t.formulas, t.inputs, Within(form.choices), weights, t.device).plans(3, 6, Counter())
    return [[tuple(target.tensor for target in group) for _, group in plan.groups] for plan in plans]


def test_what_is_stored_for_others_is_summed_by_the_kernel_that_stores_it() -> None:
    """A layer's activation, which a product reads, and its sum over rows."""
    row, k, n = Axis("m", 64), Axis("k", 32), Axis("n", 16)
    z = op("tanh", read("x", row, k))
    product = reduce("sum", k, mul(z, read("w", k, n)))
    outputs: dict[str, tuple[tuple[Axis, ...], Expr]] = {"y": ((row, n), product), "s": ((k,), reduce("sum", row, z))}
    together = [
        plan
        for plan in stored_by_each(program("p", {"x": (64, 32), "w": (32, 16)}, outputs))
        if any("s" in group and any(t.startswith("t") for t in group) for group in plan)
    ]
    assert together
    assert all(("y",) in plan for plan in together), "what none reads need not be stored"


def test_a_contraction_the_other_way_round_is_the_same_value() -> None:
    k, m, n = Axis("k", 4), Axis("m", 4), Axis("n", 4)
    values = Values()
    a = values.read("a", (Index.axis(m), Index.axis(k)))
    b = values.read("b", (Index.axis(k), Index.axis(n)))
    assert values.contract(k, a, b) is values.contract(k, b, a)
    assert values.contract(k, a, a) is not values.contract(k, a, b)


def test_what_lies_within_a_kernel_is_walked_once_and_is_what_is_not_stored() -> None:
    t = task(three_layers())
    weights = Weights(t.classes, t.hints, t.device.tiles.dot)
    (form,) = forms(t.classes, options(t.classes, frozenset(), Counter()), weights, 1).found
    within = Within(form.choices)
    order = below(form.choices, t.classes.roots)
    places = [c for c in order if form.choices[c].children]
    for root, stored in itertools.product(places, [(), *itertools.combinations(places, 2)]):
        held = dict.fromkeys(stored)
        found = within.of([root], held)
        assert list(found.used) == below(form.choices, [root], held)
        assert found.back == {c for c in found.used if c in stored and c != root}
        assert within.of([root], dict.fromkeys(found.back)) is found


def test_a_plan_is_left_out_before_it_is_looked_at_only_where_it_looks_no_faster() -> None:
    t = task(three_layers())
    weights = Weights(t.classes, t.hints, t.device.tiles.dot)
    (form,) = forms(t.classes, options(t.classes, frozenset(), Counter()), weights, 1).found
    within = Within(form.choices)
    plans = list(Planner(t.formulas, t.inputs, within, weights, t.device).plans(3, 6, Counter()))
    exact = [PlanEstimate(weights, within, t.formulas, t.inputs, t.device).seconds(p) for p in plans]
    for limit in sorted(exact)[:: len(exact) // 8]:
        estimate = PlanEstimate(weights, within, t.formulas, t.inputs, t.device)
        found = [estimate.seconds(p, limit) for p in plans]
        assert math.inf in found
        assert all(math.isclose(a, b) or (b == math.inf and a >= limit) for a, b in zip(exact, found, strict=True))


def test_each_program_has_all_places_of_a_scan_when_a_plan_is_looked_at() -> None:
    """However few programs the other axes leave: none here, so one processor does all of the work."""
    n, m = Axis("n", 4096), Axis("m", 4096)
    so_far = op("where", op("le", position(m), position(n)), read("x", m), const(0))
    t = task(program("p", {"x": (4096,)}, {"y": ((n,), reduce("sum", m, so_far))}))
    weights = Weights(t.classes, t.hints, t.device.tiles.dot)
    (form,) = forms(t.classes, options(t.classes, frozenset(), Counter()), weights, 1).found
    (root,) = t.classes.roots
    assert form.choices[root].op == "scan"
    within = Within(form.choices)
    (plan,) = Planner(t.formulas, t.inputs, within, weights, t.device).plans(1, 0, Counter())
    looked = PlanEstimate(weights, within, t.formulas, t.inputs, t.device).seconds(plan) - t.device.launch_overhead_s
    once = float(full(t.device, 2 * 4 * 4096, weights.work(root, form.choices[root])))
    assert math.isclose(looked, t.device.processors * once)


def looked_at_as_one(p: Program) -> tuple[float, Device]:
    """What the plan of one kernel looks as if it took, launches apart, in seconds."""
    t = task(p)
    weights = Weights(t.classes, t.hints, t.device.tiles.dot)
    form, *_ = forms(t.classes, options(t.classes, frozenset(), Counter()), weights, 1).found
    within = Within(form.choices)
    plans = Planner(t.formulas, t.inputs, within, weights, t.device).plans(1, 0, Counter())
    plan = next(p for p in plans if len(p.groups) == 1)
    looked = PlanEstimate(weights, within, t.formulas, t.inputs, t.device).seconds(plan)
    return looked - t.device.launch_overhead_s, t.device


@pytest.mark.parametrize("needed", [True, False])
def test_each_program_has_all_of_an_axis_over_which_others_go_with_its_sum_when_a_plan_is_looked_at(
    needed: bool,
) -> None:
    """The sum itself may be found part by part: where nothing waits for it, many programs go along its axis."""
    b, m = Axis("b", 4), Axis("m", 1 << 16)
    total = reduce("sum", m, read("x", b, m))
    y = mul(read("x", b, m), total if needed else const(3))
    p = program("p", {"x": (4, 1 << 16)}, {"y": ((b, m), y), "z": ((b,), total)})
    looked, device = looked_at_as_one(p)
    once = float(full(device, 2 * 4 * 4 * (1 << 16), 0.0))
    assert (looked >= device.processors / 4 * once) == needed


def test_of_sums_over_each_others_axes_a_program_has_all_of_one_axis_and_a_part_of_the_other() -> None:
    b, m = Axis("b", 256), Axis("m", 255)
    x = read("x", b, m)
    sums: dict[str, tuple[tuple[Axis, ...], Expr]] = {
        "y": ((b,), reduce("sum", m, x)),
        "z": ((m,), reduce("sum", b, x)),
    }
    looked, device = looked_at_as_one(program("p", {"x": (256, 255)}, sums))
    once = float(full(device, 4 * 256 * 255, 0.0))
    assert looked >= device.processors / (256 / device.tiles.loop_tile) * once


@pytest.mark.parametrize("passes", [1, 2])
def test_a_number_is_found_by_one_program_where_it_takes_two_passes(passes: int) -> None:
    m = Axis("m", 1 << 16)
    x = read("x", m)
    body = x if passes == 1 else op("tanh", add(x, mul(const(-1), reduce("max", m, x))))
    looked, device = looked_at_as_one(program("p", {"x": (1 << 16,)}, {"y": ((), reduce("sum", m, body))}))
    once = float(full(device, 4 * (1 << 16), 0.0))
    assert (looked >= device.processors * once) == (passes == 2)


@pytest.mark.parametrize(
    ("low", "high", "half"), [(-127, 127, True), (-256, 256, True), (-300, 300, False), (0, 0, False)]
)
def test_whole_numbers_are_stored_in_half_precision_where_it_tells_them_apart(low: int, high: int, half: bool) -> None:
    """bfloat16 holds the whole numbers up to 256; those without bounds (0 to 0 here) may be any."""
    m, k, n = Axis("m", 64), Axis("k", 64), Axis("n", 64)
    code = op("round", mul(read("x", m, k), recip(reduce("max", k, op("abs", read("x", m, k))))))
    if low < high:
        code = op("minimum", op("maximum", code, const(low)), const(high))
    product = reduce("sum", k, mul(code, read("w", k, n)))
    made = program("p", {"x": (64, 64), "w": (64, 64)}, {"y": ((m, n), product)})
    made = replace(
        made,
        inputs=tuple(replace(t, dtype=DType.BFLOAT16) for t in made.inputs),
        definitions=tuple(replace(d, dtype=DType.BFLOAT16) for d in made.definitions),
    )
    found = [c.sgraph for c in generate(task(made), WIDE).candidates]
    stored = {
        b.dtype
        for g in found
        for kernel in g.kernels
        for s in kernel.statements()
        if isinstance(s, Store) and isinstance(s.src, str)
        for b in g.buffers
        if b.name == s.tensor and _last(kernel, s.src) in ("round", "minimum")
    }
    assert stored == {DType.BFLOAT16 if half else DType.FLOAT32}


def _last(kernel: Kernel, name: str) -> str:
    """The operator that makes a value."""
    return next((s.op for s in kernel.statements() if isinstance(s, Pointwise) and s.dst == name), "")


def test_halves_of_statistics_are_no_names_of_them() -> None:
    """A row's sum is stored for all four rows, or for two: what is stored for two has not the others' rows in it."""
    four, two, n = Axis("four", 4), Axis("two", 2), Axis("n", 4096)

    def sums(row: Index) -> tuple[Expr, Expr]:
        most = reduce(ReduceKind.MAX, n, read("x", row, Index.axis(n)))
        return most, reduce(ReduceKind.SUM, n, op("exp", add(read("x", row, Index.axis(n)), op("neg", most))))

    def size(row: Index) -> Expr:
        most, total = sums(row)
        return add(most, op("log", total))

    high = add(size(Index.axis(two)), op("neg", size(Index.axis(two) + 2)))
    whole = add(read("x", Index.axis(four), Index.axis(n)), op("neg", size(Index.axis(four))))
    made = program("halves", {"x": (4, 4096)}, {"y": ((four, n), whole), "z": ((two,), high)})
    for c in generate(task(made), WIDE).candidates:
        check(c.sgraph)
