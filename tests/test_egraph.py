"""Encoding, saturation, decoding, and the worker process."""

from __future__ import annotations

import hashlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from egraph_workloads import WORKLOADS, attention, axis, lora, prenorm_mlp, qknorm_attention, rmsnorm_linear

from prism.egraph.engine import KEPT, Engine
from prism.egraph.language import Budget
from prism.egraph.rules import install, load_rules, rule_files
from prism.egraph.saturate import OVERSTEP, Contradiction, Saturation
from prism.egraph.terms import Encoder, decode, freeze
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError, RuleError, WorkerError
from prism.program.build import add, const, mul, neg, op, read, reduce
from prism.program.classes import EClasses, ENode
from prism.program.index import Axis
from prism.program.nodes import Const, Expr, Map, Read
from prism.program.transform import canonical
from prism.program.verdict import Verdict

RULES = load_rules(rule_files())


def saturation() -> Saturation:
    graph = install(RULES)
    return Saturation(graph)


def explored(expr: Expr, budget: Budget | None = None) -> EClasses:
    s = saturation()
    roots = s.insert([expr])
    return s.decode(roots, s.explore(budget or Budget()))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_saturates_small_and_fast(name: str) -> None:
    s = saturation()
    start = time.process_time()
    roots = s.insert([WORKLOADS[name]()])
    stopped = s.explore(Budget())
    classes = s.decode(roots, stopped)
    seconds = time.process_time() - start
    assert stopped == "saturated"
    assert classes.enodes < 3000
    assert seconds < 2.0  # of the processor; 0.02 s where it is not shared


def test_a_simplification_without_an_end_is_ended(tmp_path: Path) -> None:
    """What one rule of `simplify` makes another may take for new: budgets are looked at between steps alone."""
    path = tmp_path / "endless.egg"
    path.write_text(
        ";; exact: sin a = sin(a + 2 pi)\n"
        '(rewrite (Sin a) (Sin (Add a (Const 6.283185307179586))) :ruleset simplify :name "sin-period")\n'
    )
    s = Saturation(install(load_rules([*rule_files(), path])))
    s.insert([op("sin", read("x", Axis("m", 8)))])
    assert s.explore(Budget(enodes=100)) == "e-node budget"


def test_a_sum_is_found_under_another_name_of_its_axis() -> None:
    """As where a budget ends the rules before names are canonical; another sum is not."""
    a, b, m = Axis("d4", 4), Axis("d4_1", 4), Axis("m", 3)
    s = saturation()
    s.insert([reduce("sum", b, mul(reduce("sum", a, read("x", m, a, b)), read("y", b)))])
    table = s.table()
    same = reduce("sum", a, mul(reduce("sum", b, read("x", m, b, a)), read("y", a)))
    turned = reduce("sum", a, mul(reduce("sum", b, read("x", m, a, b)), read("y", a)))
    largest = reduce("max", a, mul(reduce("sum", b, read("x", m, b, a)), read("y", a)))
    assert canonical(same) == same
    assert table.find(same) is not None
    assert [table.find(e) for e in (turned, largest)] == [None, None]
    assert table.find(op("exp", same)) is None


def test_the_worker_starts_without_sympy() -> None:
    """It takes as long to load as all else, and extents that are numbers do not need it."""
    code = """
import sys
from prism.egraph.serve import _methods, _without_its_language
_without_its_language()
from prism.egraph.derivation.derive import Deriver
from prism.egraph.engine import Engine
from prism.egraph.language import Budget
from prism.egraph.rules import read_rule_files, rule_files
from prism.program.build import read, reduce
from prism.program.index import Axis
engine = Engine(read_rule_files(rule_files()))
k = Axis("d8", 8)
print(engine.explore([reduce("sum", k, read("x", k))], Budget()).enodes, "sympy" in sys.modules)
from prism.program.extents import symbol
print(symbol("n") + 1, "sympy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False", "n", "+", "1", "True"]


def ops_of(classes: EClasses, cls: int) -> set[str]:
    return {n.op for n in classes.nodes[cls]}


def test_decode_is_well_formed() -> None:
    classes = explored(prenorm_mlp())
    assert set(classes.nodes) == set(classes.axes) == set(range(len(classes.nodes)))
    for cls, nodes in classes.nodes.items():
        assert nodes
        for n in nodes:
            assert cls not in n.children
            assert not n.domain
            if n.op == "read":
                assert isinstance(n.payload, Read)
            elif n.op == "const":
                assert isinstance(n.payload, Const)
            elif n.op in ("sum", "max", "min", "prod"):
                assert isinstance(n.payload, Axis)
                assert n.payload not in classes.axes[cls]
            else:
                assert n.op != "neg"
                assert n.payload is None
            below = frozenset(a for k in n.children for a in classes.axes[k])
            assert classes.axes[cls] <= below or n.op == "read"


def test_decode_gives_back_the_leaves_and_exact_constants() -> None:
    x = read("x", axis(8), axis(16))
    classes = explored(mul(const(0.1), mul(x, const(0.7))))
    reads = [n.payload for nodes in classes.nodes.values() for n in nodes if n.op == "read"]
    assert reads == [x]
    values = {n.payload.value for nodes in classes.nodes.values() for n in nodes if isinstance(n.payload, Const)}
    # Cut to 20 bits as terms, and whole again here, folded constants included.
    assert {0.1, 0.7, 0.1 * 0.7} <= values


def test_negation_is_a_product() -> None:
    x = read("x", axis(8))
    classes = explored(neg(x))
    (root,) = classes.roots
    minus = next(c for c, nodes in classes.nodes.items() if nodes == (ENode("const", Const(-1.0), ()),))
    assert any(n.op == "mul" and minus in n.children for n in classes.nodes[root])


def test_norm_is_pulled_out_of_the_linear() -> None:
    classes = explored(rmsnorm_linear())
    (root,) = classes.roots
    m, n = axis(8), axis(512)
    pulled = [x for x in classes.nodes[root] if x.op == "mul" and {classes.axes[k] for k in x.children} == {
        frozenset({m}), frozenset({m, n})
    }]  # fmt: skip
    assert pulled


def test_lora_is_reassociated() -> None:
    classes = explored(lora())
    assert any(
        axes == {axis(256), axis(512)} and "sum" in ops_of(classes, cls) for cls, axes in classes.axes.items()
    )  # a @ b, with neither x nor the bottleneck's axis


def test_a_maximum_is_written_over_unscaled_scores() -> None:
    classes = explored(attention(causal=False))
    tops = [cls for cls in classes.nodes if "max" in ops_of(classes, cls)]
    assert any("mul" in ops_of(classes, cls) for cls in tops)


def test_budgets_are_respected() -> None:
    expr = qknorm_attention()
    few = explored(expr, Budget(enodes=100))
    assert few.stopped == "e-node budget"
    assert few.enodes < 300
    short = explored(expr, Budget(iterations=2))
    assert (short.stopped, short.iterations) == ("iteration budget", 2)


def test_a_long_product_stays_bounded() -> None:
    expr = mul(*(read(f"t{n}", axis(8)) for n in range(12)))
    classes = explored(expr, Budget(enodes=2000))
    assert classes.stopped == "e-node budget"
    assert classes.enodes < 12000


def test_no_round_oversteps_the_budget_by_far() -> None:
    """One that would by growing as the last one did does not take place; one that does is undone."""
    expr = mul(*(read(f"t{n}", axis(8)) for n in range(12)))
    before, last, after = (explored(expr, Budget(iterations=n)).enodes for n in (2, 3, 4))
    foreseen, undone = Budget(enodes=2000), Budget(enodes=2500)
    assert OVERSTEP * foreseen.enodes < last * last / before < OVERSTEP * undone.enodes < after
    for budget in (foreseen, undone):
        classes = Engine(load_rules(rule_files())).explore([expr], budget)
        assert (classes.iterations, classes.stopped, classes.enodes) == (3, "e-node budget", last)
    alone = saturation()
    alone.insert([expr])
    assert (alone.explore(foreseen), alone.iterations) == ("e-node budget", 3)


def test_two_axes_of_one_name_are_refused() -> None:
    with pytest.raises(IllegalIRError, match="two axes"):
        saturation().insert([mul(read("x", Axis("k", 4)), read("y", Axis("k", 5)))])


def test_deep_and_shared_expressions_are_encoded() -> None:
    e: Expr = read("x", axis(8))
    for _ in range(200):
        e = op("tanh", add(e, e))
    s = saturation()
    s.insert([e])
    assert s.enodes() == 401


def test_a_contradiction_is_noticed() -> None:
    s = saturation()
    names = s.insert([const(1.0), const(2.0)])
    s.graph.run_program(*s.graph.parse_program(f"(union {names[0]} {names[1]})"))
    with pytest.raises(Contradiction):
        s.step("simplify")


def test_nodes_are_pickled_without_their_hashes() -> None:
    code = "import sys, pickle; sys.stdout.buffer.write(pickle.dumps({expr!s}))"
    build = "__import__('tests.egraph_workloads', fromlist=['x']).rmsnorm_linear()"
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code.format(expr=build)], capture_output=True, check=True, env=environment(seed)
        )
        got = pickle.loads(out.stdout)
        assert isinstance(got, Expr)
        assert got == rmsnorm_linear()
        assert hash(got) == hash(rmsnorm_linear())
    assert isinstance(pickle.loads(pickle.dumps(neg(read("x", axis(2))))), Map)


def environment(seed: str) -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p) + ":."}


def test_decode_does_not_depend_on_the_process() -> None:
    names = ("rmsnorm_gated", "layernorm_linear_gelu", "causal_attention")
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from test_egraph import explored, digest\n"
        "from egraph_workloads import WORKLOADS\n"
        f"for name in {names}:\n"
        "    print(digest(explored(WORKLOADS[name]())))"
    )
    run = [sys.executable, "-c", code]
    seed = "77" if os.environ.get("PYTHONHASHSEED") != "77" else "1"
    there = subprocess.run(run, capture_output=True, text=True, check=True, env=environment(seed)).stdout.split()
    assert there == [digest(explored(WORKLOADS[name]())) for name in names]


def digest(classes: EClasses) -> str:
    text = [(c, [(n.op, str(n.payload), n.children) for n in nodes]) for c, nodes in classes.nodes.items()]
    axes = [(c, sorted(a.name for a in found)) for c, found in classes.axes.items()]
    return hashlib.sha256(repr((text, classes.roots, axes)).encode()).hexdigest()


def test_equal_extents_meet_under_canonical_names() -> None:
    i, a, b = axis(8), Axis("a", 32), Axis("b", 32)

    def f(p: Axis, q: Axis) -> Expr:
        return mul(read("x", i, p, q), read("w", p))

    s = saturation()
    left, right = s.insert([
        canonical(reduce("sum", (a, b), f(a, b))), canonical(reduce("sum", (b, a), f(a, b)))
    ])  # fmt: skip
    s.explore(Budget())
    assert s.equal([left], [right])


def test_the_worker_explores_and_proves(worker: Worker) -> None:
    classes = worker.explore([rmsnorm_linear()], Budget())
    assert digest(classes) == digest(explored(rmsnorm_linear()))
    same, other = worker.prove([[rmsnorm_linear()], [mul(const(2.0), rmsnorm_linear())]])
    assert same.status == "proved"
    assert other.status == "unknown"
    assert other.reason


@pytest.mark.usefixtures("cold")
def test_starting_a_worker_does_not_wait_for_it() -> None:
    start = time.perf_counter()
    with Worker() as w:
        started = time.perf_counter()
        w.ready()
        assert started - start < time.perf_counter() - started


def test_a_killed_worker_is_an_error_and_the_next_call_starts_another(worker: Worker) -> None:
    worker.explore([rmsnorm_linear()], Budget())
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    # The reference is explored anew.
    assert worker.prove([[rmsnorm_linear()]])[0].status == "proved"
    assert worker.pid != pid


def test_a_hung_worker_is_killed(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    import prism.egraph.worker as module

    worker.explore([rmsnorm_linear()], Budget())
    monkeypatch.setattr(module, "START_LIMIT_S", 0.0)
    long = mul(*(read(f"t{n}", axis(8)) for n in range(16)))
    with pytest.raises(WorkerError, match=r"did not answer within 0.5 s"):
        worker.explore([long], Budget(enodes=10**9, iterations=100, seconds=0.5))
    monkeypatch.undo()
    assert worker.explore([rmsnorm_linear()], Budget()).stopped == "saturated"


@pytest.mark.usefixtures("cold")
def test_a_worker_says_when_it_is_ready() -> None:
    start = time.perf_counter()
    with Worker() as w:
        w.ready()
        first = time.perf_counter()
        w.ready()
        assert time.perf_counter() - first < first - start, "it is ready"
    with pytest.raises(WorkerError, match="closed"):
        w.ready()


def test_an_answer_may_be_collected_later_or_never(worker: Worker) -> None:
    worker.explore([rmsnorm_linear()], Budget())
    worker.submit([[rmsnorm_linear()], [lora()]])
    while not worker.answered():
        time.sleep(0.01)
    assert [bool(v) for v in worker.collect()] == [True, False]
    assert not worker.answered()
    with pytest.raises(WorkerError, match="asked nothing"):
        worker.collect()
    worker.submit([[lora()]])
    # Another question before the answer: a new process, which the reference is explored in again.
    assert worker.prove([[rmsnorm_linear()]])[0]


def test_a_reference_for_proofs_alone(worker: Worker) -> None:
    worker.explore([lora()], Budget())
    worker.refer([rmsnorm_linear()], Budget())
    assert [bool(v) for v in worker.prove([[rmsnorm_linear()], [lora()]])] == [True, False]


def test_what_is_tried_aside_is_forgotten() -> None:
    s = saturation()
    roots = s.insert([rmsnorm_linear()])
    s.explore(Budget())
    before = digest(s.decode(roots, ""))
    for _ in range(2):
        with s.aside() as copy:
            other = copy.insert([lora()])
            copy.step("explore")
            assert copy.enodes() > s.decode(roots, "").enodes
            assert not copy.equal(roots, other)
            with copy.aside() as inner:
                assert inner.equal(roots, inner.insert([rmsnorm_linear()]))
    assert digest(s.decode(roots, "")) == before
    assert digest(decode(freeze(s.graph, s.leaves), [s.e_class(r) for r in roots], s.iterations, "")) == before


def test_errors_of_rule_files_cross_the_process(tmp_path: Path) -> None:
    bad = tmp_path / "bad.egg"
    bad.write_text("\n(rewrite (Exp a) a)")
    with Worker([bad]) as w, pytest.raises(RuleError, match=r"bad\.egg:2"):
        w.explore([rmsnorm_linear()], Budget())


@pytest.mark.usefixtures("cold")
def test_proving_without_a_reference_is_an_error() -> None:
    with Worker() as w, pytest.raises(WorkerError, match="no reference"):
        w.prove([[rmsnorm_linear()]])
    with pytest.raises(WorkerError, match="closed"):
        w.explore([rmsnorm_linear()], Budget())


def test_an_e_graph_that_served_before_is_as_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prism.egraph.engine.SMALL", 0)

    def answers(engine: Engine) -> tuple[EClasses, list[Verdict]]:
        classes = engine.explore([lora()], Budget())
        return classes, engine.prove([[lora()], [rmsnorm_linear()]])

    used = Engine(RULES)
    used.prepare(spare=1)
    (graph,) = used._spare
    sums = [[reduce("sum", (a,), read("x", a))] for a in (Axis(f"a{n}", 8) for n in range(KEPT + 2))]
    for formulas in sums[:2]:
        used.explore(formulas, Budget())
        assert used._current is not None
        assert used._current.saturated.graph is graph, "the program before makes room, and its e-graph serves again"
    for formulas in sums[2:]:
        used.refer(formulas, Budget())
    assert used._spare == [graph], "what a program's proofs refer to is kept, up to so many"
    assert answers(used) == answers(Engine(RULES))


def test_a_small_reference_hands_its_e_graph_on_once() -> None:
    a = Axis("a", 8)
    small = [[reduce("sum", (a,), read(f"x{n}", a))] for n in range(3)]
    engine = Engine(RULES)
    engine.explore(small[0], Budget())
    graph = engine._kept[next(iter(engine._kept))].saturated.graph
    assert not engine.prepare(), "there is one that may have to make room"
    before = engine.explore(small[1], Budget(), beside=True)
    assert engine._current is not None
    assert engine._current.saturated.graph is graph
    engine.explore(small[0], Budget(), beside=True)
    for each in (small[2], small[1], small[0]):
        engine.explore(each, Budget(), beside=True)
    assert [r.formulas for r in engine._kept.values() if not r.passing] == [tuple(small[1]), tuple(small[0])]
    assert digest(engine.explore(small[1], Budget())) == digest(before)
    assert engine.prove([small[1], small[0]])[0]
    assert not engine.prove([small[0]])[0]


@pytest.mark.parametrize("beside", [False, True])
def test_what_is_explored_beside_others_does_not_make_them_go(beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = [[reduce("sum", (a,), read("x", a))] for a in (Axis(f"b{n}", 8) for n in range(KEPT))]
    monkeypatch.setattr("prism.egraph.engine.SMALL", 0)
    engine = Engine(RULES)
    engine.explore(first, Budget())
    for each in others:
        engine.explore(each, Budget(), beside=beside)
    again: list[object] = []
    explored = Engine._explored

    def counted(self: Engine, *args: Any) -> object:
        again.append(args)
        return explored(self, *args)

    monkeypatch.setattr(Engine, "_explored", counted)
    engine.explore(first, Budget())
    assert bool(again) != beside


def test_no_name_is_given_twice_in_an_e_graph() -> None:
    """After a `Pop`, egglog took a global that was defined anew for what it had been, in what was defined after it."""
    engine = Engine(RULES)
    given: list[str] = []
    written = Encoder.write

    def noted(self: Encoder, exprs: Sequence[Expr]) -> tuple[list[str], list[Any]]:
        names, commands = written(self, exprs)
        given.extend(str(c).split()[1] for c in commands if str(c).startswith("(let "))
        return names, commands

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "write", noted)
        for n in range(3):
            one = [reduce("sum", (a,), op("exp", read("x", a))) for a in (Axis(f"b{n}", 8), Axis(f"c{n}", 4))]
            engine.explore(one, Budget())
            for m in range(2):
                engine.prove([[op("mul", e, const(float(m))) for e in one]])
            for known in list(engine._kept.values()):
                engine._drop(known)
            engine._kept.clear()
    assert len(given) > 12
    assert len(given) == len(set(given))
