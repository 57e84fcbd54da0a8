"""What a proof does not do: counts of e-graphs grown, never seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sgraph_samples as samples
from egraph_workloads import WORKLOADS, attention, gated_mlp, lora, rmsnorm_linear

from prism.egraph.engine import KEPT, Engine
from prism.egraph.language import Budget
from prism.egraph.rules import load_rules, rule_files
from prism.egraph.saturate import FULL, Saturation
from prism.program.build import const, mul
from prism.program.classes import EClasses
from prism.program.nodes import Expr, Map, Reduce, ReduceKind
from prism.program.transform import Interned
from prism.sgraph.denote import Denotations, denote

RULES = load_rules(rule_files())


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every copy of an e-graph that something is inserted into."""
    counted: list[int] = []
    real = Saturation.aside

    @contextmanager
    def aside(self: Saturation) -> Iterator[Saturation]:
        counted.append(1)
        with real(self) as graph:
            yield graph

    monkeypatch.setattr(Saturation, "aside", aside)
    return counted


def another_term(classes: EClasses, cls: int) -> Expr:
    """A term of the e-class other than the least, where there is one that is well-founded by the e-classes' order."""
    built: dict[int, Expr] = {}
    for c in sorted(classes.nodes):
        usable = [n for n in classes.nodes[c] if all(k in built and k < c for k in n.children)]
        if not usable:
            continue
        node = usable[-1]
        args = tuple(built[k] for k in node.children)
        if node.op in ("sum", "max", "min", "prod"):
            built[c] = Reduce(ReduceKind(node.op), node.payload, args[0])  # type: ignore[arg-type]
        elif node.payload is not None:
            built[c] = node.payload  # type: ignore[assignment]
        else:
            built[c] = Map(node.op, args)
    return built[cls]


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_read_off_the_saturated_reference_is_proved_without_growing_it(name: str, grown: list[int]) -> None:
    engine = Engine(RULES)
    reference = WORKLOADS[name]()
    classes = engine.explore([reference], Budget())
    candidate = another_term(classes, classes.roots[0])
    assert [bool(v) for v in engine.prove([[reference], [candidate]])] == [True, True]
    assert not grown


def test_what_is_not_there_is_not_found() -> None:
    engine = Engine(RULES)
    engine.explore([rmsnorm_linear()], Budget())
    assert not engine.prove([[mul(const(2.0), rmsnorm_linear())]])[0]
    assert not engine.prove([[lora()]])[0]


def test_a_reference_at_hand_is_not_saturated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    real = Saturation.explore

    def explore(self: Saturation, budget: Budget) -> str:
        runs.append("")
        return real(self, budget)

    monkeypatch.setattr(Saturation, "explore", explore)
    monkeypatch.setattr("prism.egraph.engine.SMALL", 0)  # those that are not worth keeping
    engine = Engine(RULES)
    first = engine.explore([rmsnorm_linear()], Budget())
    engine.refer([lora()], Budget())
    assert engine.prove([[lora()]])[0]
    assert engine.explore([rmsnorm_linear()], Budget()) is first
    assert engine.prove([[rmsnorm_linear()]])[0]
    assert len(runs) == 2
    # Another budget is another saturation, and only so many are kept.
    for n in range(KEPT):
        engine.refer([rmsnorm_linear()], Budget(iterations=n + 1))
    engine.explore([rmsnorm_linear()], Budget())
    assert len(runs) == 2 + KEPT + 1


def test_a_verdict_does_not_depend_on_what_was_asked_before() -> None:
    candidates = [[mul(const(2.0), gated_mlp())], [gated_mlp()], [mul(gated_mlp(), const(1.0))], [lora()]]
    answers = []
    for order in (range(4), (3, 2, 1, 0)):
        engine = Engine(RULES)
        engine.explore([gated_mlp()], Budget())
        verdicts = dict(zip(order, engine.prove([candidates[n] for n in order]), strict=True))
        answers.append([verdicts[n] for n in range(4)])
    assert answers[0] == answers[1]
    assert [bool(v) for v in answers[0]] == [False, True, True, False]


@pytest.mark.parametrize(("budget", "stopped", "alone"), [(Budget(), "saturated", False), (Budget(100), FULL, True)])
def test_beside_its_terms_alone_first_where_a_reference_was_stopped(budget: Budget, stopped: str, alone: bool) -> None:
    engine = Engine(RULES)
    classes = engine.explore([WORKLOADS["qknorm_attention"]()], budget)
    assert classes.stopped == stopped
    (verdict,) = engine.prove([[mul(const(0.5), mul(WORKLOADS["qknorm_attention"](), const(2.0)))]])
    assert verdict
    assert (verdict.enodes < classes.enodes) == alone


@pytest.mark.parametrize("make", [samples.attention, samples.split_k_matmul, samples.gated_mlp])
def test_what_sgraphs_share_is_denoted_once(make: Callable[[], samples.Sample]) -> None:
    shared = Denotations()
    first, second = shared.of(make().sgraph), shared.of(make().sgraph)
    assert first == second == denote(make().sgraph)
    assert all(x is y for x, y in zip(first.outputs, second.outputs, strict=True))


def test_one_object_for_equal_expressions() -> None:
    kept = Interned()
    assert kept.all(attention()) is kept.all(attention())
    assert kept.all(attention()) == attention()
    assert kept.all(attention()) is not kept.all(attention(causal=False))
