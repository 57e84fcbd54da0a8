"""The pruned search finds what an exhaustive listing of the space finds: the same best costs, and no better ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from brute_force import BruteForce, TooMany, attained, every_form, front
from hypothesis import HealthCheck, assume, given, seed, settings
from hypothesis import strategies as st
from quick import slow_but
from sgraph_programs import PLAIN, program

from prism.cost.constraints import RoleBounds
from prism.egraph.engine import Engine
from prism.egraph.language import Budget
from prism.egraph.rules import load_rules, rule_files
from prism.generate.enumerate import Bounds, Generated, Task, generate
from prism.generate.pruning import PRUNERS
from prism.program.build import add, const, mul, op, position, read, reduce
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Expr, Position, Program, ReduceKind
from prism.program.prefix import Recurrence, running
from prism.sgraph.nodes import Store

MANY = 10**6
OPEN = Bounds(
    max_kernels=2,
    max_forms=MANY,
    max_families=MANY,
    max_cuts=MANY,
    per_kernel=MANY,
    per_plan=MANY,
    max_sgraphs=MANY,
    roles=RoleBounds(short=0, narrow=64),
)
FORMS = 8
PROGRAMS, FEW = 50, 2  # a part, and what is compared of the first one without --run-slow
MEASURES = (0, 1, 3)  # bytes, work, launches
EXTENTS = (4, 20, 32)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(load_rules(rule_files()))


def search_task(p: Program, engine: Engine | None) -> Task:
    formulas = inline(p)
    assert engine is not None
    classes = engine.explore([f.expr for f in formulas], Budget(enodes=400, iterations=4, seconds=60))
    return Task(p.name, p.inputs, formulas, classes, p.hints, PLAIN)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random small programs: products, sums, maxima and exponentials over three axes, one or two outputs."""
    a, b, c = (Axis(n, draw(st.sampled_from(EXTENTS))) for n in "abc")
    x, y, z, u = read("x", a, b), read("y", b, c), read("z", a, c), read("u", b)
    inner: list[Expr] = [x, y, u, mul(x, u), mul(x, y), op("exp", x), add(x, u), mul(u, u)]

    def reduction() -> Expr:
        body = draw(st.sampled_from(inner))
        return reduce(draw(st.sampled_from(["sum", "sum", "max"])), b, body)

    def expr(depth: int) -> Expr:
        kind = draw(st.sampled_from(["reduce", "leaf", "pointwise"] if depth else ["leaf", "reduce"]))
        match kind:
            case "reduce":
                return reduction()
            case "pointwise":
                name = draw(st.sampled_from(["mul", "add", "exp"]))
                return op(name, *(expr(depth - 1) for _ in range(1 if name == "exp" else 2)))
            case _:
                return draw(st.sampled_from([z, const(0.5), z]))

    first = mul(reduction(), expr(1))
    whole = add(first, z) if draw(st.booleans()) else mul(first, z)
    outputs: dict[str, tuple[tuple[Axis, ...], Expr]] = {"o": ((a, c), whole)}
    kind = draw(st.integers(0, 4))
    if kind == 0:
        outputs["s"] = ((a,), reduce("sum", b, mul(x, x)))
    elif kind == 1:
        # Made of the other output, which may be read back.
        outputs["q"] = draw(st.sampled_from([((a,), reduce("max", c, whole)), ((a, c), op("exp", whole))]))
    elif draw(st.booleans()):
        # Reduced along what the other output is stored along: one kernel may do both.
        outputs["r"] = draw(st.sampled_from([((a,), reduce("sum", c, z)), ((c,), reduce("sum", a, mul(z, z)))]))
    shapes = {"x": (a.extent, b.extent), "y": (b.extent, c.extent), "z": (a.extent, c.extent), "u": (b.extent,)}
    return program("p", {n: tuple(map(int, s)) for n, s in shapes.items()}, outputs)


def compare(t: Task, bounds: Bounds, forms: int = FORMS) -> bool:
    """Compare the two searches; false when the whole space is too large to list."""
    force = BruteForce(t, bounds.max_kernels, forms)
    try:
        everything = force.vectors()
    except TooMany:
        return False
    found = generate(t, bounds)
    assert found.complete
    mine = attained(t, [c.sgraph for c in found.candidates])
    best, all_there_is = front(mine[:, MEASURES]), front(everything[:, MEASURES])
    assert best == all_there_is, f"lost {sorted(all_there_is - best)[:5]}, instead {sorted(best - all_there_is)[:5]}"
    return True


# Each part compares random programs of its own in the same way.
PARTS = [(0, FEW), *(pytest.param(n, PROGRAMS, marks=pytest.mark.slow) for n in range(4))]


@pytest.mark.parametrize(("part", "many"), PARTS)
def test_the_pruned_search_finds_the_best_of_the_whole_space(engine: Engine, part: int, many: int) -> None:
    compared = 0

    @seed(part)
    @settings(max_examples=many, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(programs())
    def run(p: Program) -> None:
        nonlocal compared
        same = compare(search_task(p, engine), OPEN)
        compared += same
        assume(same)

    run()
    assert compared >= many


def test_what_lacks_an_axis_of_another_output_may_be_in_its_kernel(engine: Engine) -> None:
    a, b, c = Axis("a", 4), Axis("b", 20), Axis("c", 12)
    x = read("x", a, b)
    outputs = {"o": ((a, c), reduce("sum", b, mul(x, read("y", b, c)))), "s": ((a,), reduce("sum", b, x))}
    assert compare(search_task(program("p", {"x": (4, 20), "y": (20, 12)}, outputs), engine), OPEN)


def test_outputs_that_each_lack_an_axis_of_the_other_may_be_of_one_kernel(engine: Engine) -> None:
    """A ray's colours, summed over its samples, and the samples' weights, which colours do not know of."""
    a, b, c = Axis("a", 20), Axis("b", 32), Axis("c", 3)
    weight = op("exp", read("z", a, b))
    seen = reduce("sum", b, mul(weight, read("x", a, b, c)))
    outputs: dict[str, tuple[tuple[Axis, ...], Expr]] = {"o": ((a, c), seen), "w": ((a, b), weight)}
    assert compare(search_task(program("p", {"z": (20, 32), "x": (20, 32, 3)}, outputs), engine), OPEN)


def test_outputs_that_reduce_what_another_kernel_stores_may_be_of_it(engine: Engine) -> None:
    """What a product reads is stored, and its greatest of a column found as it is."""
    a, b, c = Axis("a", 20), Axis("b", 4), Axis("c", 12)
    z = op("tanh", read("x", a, b))
    products: dict[str, tuple[tuple[Axis, ...], Expr]] = {"o": ((a, c), reduce("sum", b, mul(z, read("y", b, c))))}
    outputs = {**products, "s": ((b,), reduce("max", a, z))}
    assert compare(search_task(program("p", {"x": (20, 4), "y": (4, 12)}, outputs), engine), OPEN)


def test_what_is_found_on_the_way_may_be_stored(engine: Engine) -> None:
    """Rows' sums are needed by what is stored along the rows, and by another kernel."""
    a, b, c = Axis("a", 20), Axis("b", 4), Axis("c", 32)
    z = read("z", a, c)
    total = op("exp", reduce("sum", c, z))
    outputs = {"o": ((a, c), mul(z, total)), "q": ((b,), reduce("max", a, add(total, read("y", a, b))))}
    assert compare(search_task(program("p", {"z": (20, 32), "y": (20, 4)}, outputs), engine), OPEN)


# What is reduced of another output takes the way that what is alike takes, and several times as long.
@pytest.mark.parametrize("name", [pytest.param("reduced", marks=pytest.mark.slow), "alike"])
def test_what_is_made_of_another_output_may_read_it_back(engine: Engine, name: str) -> None:
    a, b, c = Axis("a", 4), Axis("b", 20), Axis("c", 4)
    y = reduce("sum", b, mul(read("x", a, b), read("y", b, c)))
    made = {"reduced": ((a,), reduce("max", c, y)), "alike": ((a, c), op("exp", y))}[name]
    assert compare(search_task(program("p", {"x": (4, 20), "y": (20, 4)}, {"o": ((a, c), y), "q": made}), engine), OPEN)


def variances(extent: int, normed: bool) -> Program:
    """A sum of squares about the mean, and the mean; or what is normed by it."""
    a, b = Axis("a", 20), Axis("b", extent)
    x = read("x", a, b)
    about = add(x, mul(const(-1 / extent), reduce("sum", b, x)))
    spread = reduce("sum", b, mul(about, about))
    outputs: dict[str, tuple[tuple[Axis, ...], Expr]] = {"s": ((a,), spread), "m": ((a,), reduce("sum", b, x))}
    return program("p", {"x": (20, extent)}, {"y": ((a, b), mul(about, spread))} if normed else outputs)


@pytest.mark.parametrize(("extent", "normed"), slow_but([(20, False)], [(e, n) for e in EXTENTS for n in (0, 1)]))
def test_the_pruned_search_finds_the_best_variance(engine: Engine, extent: int, normed: bool) -> None:
    assert compare(search_task(variances(extent, normed), engine), OPEN, forms=64)


ROWS, N, M, PLACE = Axis("a", 4), Axis("n", 20), Axis("m", 20), Axis("k", 20)


def carried(mask: str, growth: Expr | None, *factors: Expr) -> Expr:
    """The sum over the places m that come up to n, or before it, of what has grown since."""
    grown = () if growth is None else (op("exp", growth),)
    inside = op("where", op(mask, position(M), position(N)), mul(*grown, *factors), const(0.0))
    return reduce("sum", M, inside)


def total(growth: str, place: Axis) -> Expr:
    inside = op("le", position(PLACE), position(place))
    return reduce("sum", PLACE, op("where", inside, read(growth, PLACE), const(0.0)))


def minus(e: Expr) -> Expr:
    return mul(const(-1.0), e)


SINCE = add(total("g", N), minus(total("g", M)))
BEFORE = add(add(total("g", N), minus(read("g", N))), minus(total("g", M)))
STEPS = mul(const(-0.5), Position(Index.axis(N) + Index.axis(M).scaled(-1)))
SCANS: dict[str, Expr] = {
    "sums": carried("le", None, read("x", ROWS, M)),
    "sums before": carried("lt", None, read("x", ROWS, M)),
    "a decay": carried("le", STEPS, read("x", ROWS, M)),
    "a growth": carried("le", SINCE, read("x", ROWS, M)),
    "a growth before": carried("lt", BEFORE, read("x", ROWS, M)),
    "a product": running(Recurrence(ReduceKind.PROD), read("x", ROWS, M), M, N),
    "a maximum from the end": running(Recurrence(ReduceKind.MAX, back=True), read("x", ROWS, M), M, N),
    "a maximum that decays": running(Recurrence(ReduceKind.MAX), add(read("x", ROWS, M), STEPS), M, N),
    "a maximum that grows": running(Recurrence(ReduceKind.MAX), add(read("x", ROWS, M), SINCE), M, N),
    "a maximum of what is added": running(
        Recurrence(ReduceKind.MAX, factors=True), read("x", ROWS, M), M, N, (PLACE, read("g", PLACE))
    ),
    "factors": running(Recurrence(factors=True), read("x", ROWS, M), M, N, (PLACE, read("g", PLACE))),
    "one factor, from the end": running(
        Recurrence(back=True, factors=True), read("x", ROWS, M), M, N, (PLACE, const(0.5))
    ),
}


# Those that grow by something take prefix sums besides, and have forms by the hundred.
SLOW_SCANS = [pytest.param(w, marks=pytest.mark.slow) if "growth" in w else w for w in SCANS]


@pytest.mark.parametrize("scans", [True, False])
@pytest.mark.parametrize("what", SLOW_SCANS)
def test_scans_are_among_the_best_of_the_whole_space(engine: Engine, what: str, scans: bool) -> None:
    shapes = {"x": (4, 20), "g": (20,)}
    p = program("p", shapes, {"o": ((ROWS, N), SCANS[what])})
    task = search_task(p, engine)
    tiles = replace(task.device.tiles, scans=scans)
    task = replace(task, device=replace(task.device, tiles=tiles))
    options_of = [c.op for form in every_form(task, MANY) for c in form.values()]
    assert "scan" in options_of
    assert compare(task, replace(OPEN, max_kernels=1), MANY)


def sent(value: Expr, *masks: Expr) -> Expr:
    """The sum over n of what goes to k, which data say."""
    n, k = Axis("n", 20), Axis("k", 4)
    here = op("eq", position(k), read("i", n))
    for m in masks:
        here = op("and", here, m)
    return reduce("sum", n, op("where", here, value, const(0.0)))


ADDED = {
    "rows": sent(read("x", Axis("n", 20), Axis("c", 32))),
    "onto rows": add(read("w", Axis("k", 4), Axis("c", 32)), sent(read("x", Axis("n", 20), Axis("c", 32)))),
    "exponentials": sent(op("exp", read("x", Axis("n", 20), Axis("c", 32)))),
    "some": sent(read("x", Axis("n", 20), Axis("c", 32)), op("lt", read("i", Axis("n", 20)), const(2.0))),
}


@pytest.mark.parametrize("what", ADDED)
def test_additions_are_among_the_best_of_the_whole_space(engine: Engine, what: str) -> None:
    shapes = {"x": (20, 32), "i": (20,), "w": (4, 32)}
    task = search_task(program("p", shapes, {"o": ((Axis("k", 4), Axis("c", 32)), ADDED[what])}), engine)
    found = [c.sgraph for c in generate(task, OPEN).candidates]
    assert any(isinstance(s, Store) and s.places for g in found for k in g.kernels for s in k.statements())
    assert compare(task, OPEN, MANY)


def best_costs(t: Task, found: Generated) -> set[tuple[float, ...]]:
    return front(attained(t, [c.sgraph for c in found.candidates])[:, MEASURES])


@pytest.fixture(scope="module")
def scaled(engine: Engine) -> tuple[Task, set[tuple[float, ...]]]:
    """A product that is scaled by the exponential of a sum, and the best costs of what the pruned search finds."""
    a, b, c = Axis("a", 20), Axis("b", 32), Axis("c", 4)
    x, y, u = read("x", a, b), read("y", b, c), read("u", b)
    scale = op("exp", reduce("sum", b, mul(x, u)))
    body = mul(scale, reduce("sum", b, mul(mul(x, u), y)))
    shapes = {"x": (20, 32), "y": (32, 4), "u": (32,)}
    t = search_task(program("p", shapes, {"o": ((a, c), body)}), engine)
    return t, best_costs(t, generate(t, OPEN))


@pytest.mark.parametrize("name", slow_but(["dominated", "worse"], sorted(PRUNERS)))
def test_a_pruner_that_is_off_changes_no_best_cost(scaled: tuple[Task, set[tuple[float, ...]]], name: str) -> None:
    t, best = scaled
    without = generate(t, replace(OPEN, off=frozenset({name})))
    assert name not in without.pruned
    assert best_costs(t, without) == best


def test_to_store_what_is_computed_once_changes_no_best_cost(engine: Engine) -> None:
    """Nothing is reduced: what has both axes is no cut; what has one, and what is read under two names, is."""
    a, b = Axis("a", 32), Axis("b", 32)
    x, y, u = read("x", a, b), read("x", b, a), read("u", a)
    f, g, h = op("exp", mul(x, x)), op("exp", mul(y, y)), op("exp", mul(u, u))
    body = op("add", mul(f, op("sqrt", op("add", f, h))), g)
    t = search_task(program("p", {"x": (32, 32), "u": (32,)}, {"o": ((a, b), body)}), engine)
    found = generate(t, OPEN)
    assert found.pruned["once"]
    assert any(len(c.sgraph.kernels) > 1 for c in found.candidates)
    without = generate(t, replace(OPEN, off=frozenset({"once"})))
    assert without.generated > found.generated
    assert best_costs(t, without) == best_costs(t, found)
