"""Forms: every acyclic choice, or, beyond the bound, the least work of each skeleton."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from brute_force import EVERY_PRUNER, every_form
from sgraph_programs import PLAIN, gated, low_rank, norm_linear, program, task

import prism
from prism.egraph.engine import Engine
from prism.egraph.language import Budget
from prism.egraph.rules import load_rules, rule_files
from prism.generate.enumerate import Task
from prism.generate.forms import Forms, distinct_forms, forms, one_pass, shared_once, written
from prism.generate.options import REDUCING, Choice, Weights, Within, below, options
from prism.program.build import add, const, mul, op, read, reduce
from prism.program.extents import symbol
from prism.program.index import Axis
from prism.program.inline import inline
from prism.program.nodes import Program, Read

MANY = 10**6


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(load_rules(rule_files()))


def saturated(p: Program, engine: Engine) -> Task:
    formulas = inline(p)
    classes = engine.explore([f.expr for f in formulas], Budget(enodes=8000, iterations=16, seconds=60))
    return Task(p.name, p.inputs, formulas, classes, p.hints, PLAIN)


def listed(t: Task, limit: int, off: frozenset[str] = frozenset()) -> Forms:
    return forms(t.classes, options(t.classes, off), Weights(t.classes, t.hints), limit)


def test_with_pruners_off_the_forms_are_all_acyclic_choices(engine: Engine) -> None:
    t = saturated(low_rank(), engine)
    expected = {tuple(sorted((c, o.op, o.children) for c, o in f.items())) for f in every_form(t, MANY)}
    found = listed(t, MANY, EVERY_PRUNER)
    mine = [tuple(sorted((c, o.op, o.children) for c, o in f.choices.items())) for f in found.found]
    assert found.complete
    assert len(mine) == len(set(mine))
    assert set(mine) == expected


def test_pruners_keep_the_least_work_and_the_fewest_passes(engine: Engine) -> None:
    for make in (low_rank, norm_linear):
        t = saturated(make(), engine)
        with_, without = listed(t, MANY), listed(t, MANY, EVERY_PRUNER)
        assert len(with_.found) < len(without.found)
        for measure in ("work", "depth"):
            assert min(getattr(f, measure) for f in with_.found) == min(getattr(f, measure) for f in without.found)


@pytest.mark.parametrize("limit", [1, 4, 12])
def test_beyond_the_bound_the_least_work_comes_first(engine: Engine, limit: int) -> None:
    t = saturated(gated(), engine)
    every, some = listed(t, MANY), listed(t, limit)
    assert every.complete
    assert not some.complete
    assert 0 < len(some.found) <= limit
    assert some.found[0].work == min(f.work for f in every.found)

    def skeleton(choices: object) -> frozenset[object]:
        return frozenset((c, o) for c, o in choices.items() if o.op in REDUCING)  # type: ignore[attr-defined]

    # Every form that is left is the least work of its skeleton.
    least: dict[frozenset[object], float] = {}
    for f in every.found:
        key = skeleton(f.choices)
        least[key] = min(least.get(key, f.work), f.work)
    for f in some.found:
        assert f.work == pytest.approx(least[skeleton(f.choices)])


@pytest.mark.parametrize("limit", [1, 4, 12])
def test_what_is_given_up_on_the_way_is_never_among_the_first(
    engine: Engine, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for make in (gated, norm_linear, low_rank):
        t = saturated(make(), engine)
        monkeypatch.setattr("prism.generate.forms.ROOM", 0)
        soon = listed(t, limit)
        monkeypatch.setattr("prism.generate.forms.ROOM", MANY)
        assert listed(t, limit) == soon


def test_a_kernel_goes_through_what_its_form_walk_goes_through(engine: Engine) -> None:
    t = saturated(gated(), engine)
    choices = listed(t, 1).found[0].choices
    within, roots = Within(choices), tuple(t.classes.roots)
    for cls in choices:
        stored = {cls: None}
        inside = within.of(roots, stored)
        walked = below(choices, roots, stored)
        assert set(inside.used) == set(walked)
        assert inside.back == ({cls} & set(walked)) - set(roots)
        place = {c: n for n, c in enumerate(inside.used)}
        assert all(place[k] < place[c] for c in inside.used if c != cls for k in choices[c].children)


def test_a_value_that_is_needed_anyway_is_summed_and_not_its_operands(engine: Engine) -> None:
    """The mean of a convolution's result looks cheaper by sums of its operands, until the result is there."""

    def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.conv2d(x, w, padding=1)
        return torch.nn.functional.group_norm(y, 2)

    shapes = ((2, 16, 8, 8), (16, 16, 3, 3))
    t = saturated(prism.trace(normed, [torch.empty(s, device="meta") for s in shapes]), engine)
    table, weights = options(t.classes), Weights(t.classes, t.hints, 16)
    own = written(t.classes, [f.expr for f in t.formulas], table)
    assert own is not None
    once = shared_once(t.classes, table, weights, own)
    assert once is not None
    done: set[int] = set()
    for cls, choice in once.items():
        assert done.issuperset(choice.children), "operands come before results"
        assert choice in table[cls]
        done.add(cls)
    assert done.issuperset(t.classes.roots)
    products = [(c, o) for c, o in once.items() if o.op == "contract" and "w" in reads(once, c)]
    assert len(products) == 1, "the convolution alone reads the weights"
    (_, product), *_ = products
    assert isinstance(product.payload, Axis)
    assert product.payload.extent == 16, "and sums channels on matrix units"
    some = listed(t, 4)
    assert not some.complete
    assert sum(weights.work(c, o) for c, o in once.items()) < min(
        sum(weights.work(c, o) for c, o in f.choices.items()) for f in some.found
    )
    assert shared_once(t.classes, table, weights, {r: own[r] for r in t.classes.roots}) is None, "nothing is shared"


def reads(choices: Mapping[int, Choice], cls: int) -> set[str]:
    """The tensors that an e-class is computed from by itself, and not by what is reduced below it."""
    choice = choices[cls]
    if choice.op == "read":
        return {choice.payload.tensor}  # type: ignore[union-attr]
    return set().union(*(reads(choices, c) for c in choice.children if choices[c].op not in REDUCING))


def test_sums_under_a_softmax_find_their_maximum_on_the_way_unless_they_wait() -> None:
    i, j = Axis("i", 8), Axis("j", 32)
    s, v = read("s", i, j), read("v", i, j)
    top = reduce("max", j, s)
    e = op("exp", add(s, mul(const(-1.0), top)))
    outputs = {
        "p": ((i, j), mul(e, v)),
        "z": ((i,), reduce("sum", j, e)),
        "w": ((i,), reduce("sum", j, mul(e, v))),
        "late": ((i,), reduce("sum", j, mul(e, add(v, mul(const(-1.0), reduce("max", j, v)))))),
    }
    t = task(program("p", {"s": (8, 32), "v": (8, 32)}, outputs))
    table = options(t.classes)
    roots = t.classes.roots
    plain = {c: next(o for o in table[c] if o.op != "rescaled") for c in table}
    found = one_pass(table, plain, roots)
    assert [found[r].op for r in roots] == ["mul", "rescaled", "rescaled", "contract"]
    assert list(found) == below(found, roots)
    assert one_pass(table, found, roots) == found


def test_what_a_rescaled_sum_is_multiplied_by_is_not_computed_of_itself() -> None:
    j = Axis("j", 32)
    table = {
        0: (Choice("read", Read("s", ()), ()),),
        1: (Choice("exp", None, (0,)),),
        2: (Choice("sum", j, (1,)), Choice("mul", None, (4, 3))),
        3: (Choice("rescaled", j, (0, 0)),),
        # Either is the other times something, and one is something else as well.
        4: (Choice("mul", None, (0, 5)), Choice("exp", None, (0,))),
        5: (Choice("mul", None, (0, 4)),),
    }
    found = one_pass(table, {c: table[c][0] for c in (0, 1, 2)}, [2])
    assert found == {0: table[0][0], 4: table[4][1], 3: table[3][0], 2: table[2][1]}
    assert list(found) == below(found, [2])


def test_shapes_that_tell_the_same_forms_apart_are_looked_at_once(engine: Engine) -> None:
    m, k, f, n = (Axis(a, symbol(a)) for a in "mkfn")
    up, gate = (reduce("sum", k, mul(read("x", m, k), read(w, k, f))) for w in ("up", "gate"))
    exprs = [reduce("sum", f, mul(up, op("sigmoid", gate), read("down", f, n)))]
    classes = engine.explore(exprs, Budget(enodes=4000, iterations=8, seconds=60))
    table = options(classes)
    shapes = [
        Weights(classes, dict(zip("mkfn", shape, strict=True)))
        for shape in ((64, 32, 48, 32), (4096, 32, 48, 32), (2**20, 32, 48, 32), (64, 4096, 4, 2), (4096, 4096, 4, 2))
    ]
    found = list(distinct_forms(classes, table, shapes, 4))
    assert len(found) == 2, "all work grows with the rows, and not alike with the width"
    for at in shapes:
        choices = [form.choices for form in forms(classes, table, at, 4).found]
        assert choices in [[form.choices for form in one.found] for one in found]


def test_the_form_as_written_is_found_without_what_the_model_multiplies_by_0(engine: Engine) -> None:
    i, k = Axis("i", 8), Axis("k", 8)
    x, y = read("x", i, k), read("y", i, k)
    real = reduce("sum", k, mul(x, x))
    exprs = [add(real, reduce("sum", k, mul(const(0.0), y))), add(mul(y, const(0.0)), op("tanh", real))]
    classes = engine.explore(exprs, Budget(enodes=2000, iterations=8, seconds=60))
    own = written(classes, exprs, options(classes))
    assert own is not None
    assert "y" not in {e.tensor for c in own.values() for e in [c.payload] if isinstance(e, Read)}
    assert [own[root].op for root in classes.roots] == ["contract", "tanh"]


def test_the_form_as_written_of_a_guarded_softmax_guards_rows(engine: Engine) -> None:
    i, j, d = Axis("i", 8), Axis("j", 8), Axis("d", 4)
    s, v = read("s", i, j), read("v", j, d)
    e = op("exp", add(s, mul(const(-1.0), reduce("max", j, s))))
    share = mul(e, op("recip", reduce("sum", j, e)))
    exprs = [reduce("sum", j, mul(op("where", op("isnan", share), const(0.0), share), v))]
    classes = engine.explore(exprs, Budget(enodes=2000, iterations=8, seconds=60))
    own = written(classes, exprs, options(classes))
    assert own is not None
    made = {choice.op: (cls, choice) for cls, choice in own.items()}
    assert "isnan" not in made, "it would be computed for each share"
    whole, guarded = made["not"][0], made["where"][1]
    assert guarded.children[0] == whole
    assert classes.axes[whole] == {i}
    shares, values = made["contract"][1].children
    assert {classes.axes[shares], classes.axes[values]} == {frozenset({i, j}), frozenset({j, d})}
    order = list(own)
    assert all(order.index(k) < n for n, c in enumerate(order) for k in own[c].children), "operands before results"
