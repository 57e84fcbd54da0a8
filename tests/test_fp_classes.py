"""`--fp`: only rules of the allowed floating-point classes are used, and verdicts name those that matched."""

from __future__ import annotations

import pytest

from prism.api.region_search import SearchBudget
from prism.api.searching import search
from prism.egraph.language import Budget
from prism.egraph.rules import FpClass, load_rules, rule_files
from prism.egraph.worker import Worker
from prism.errors import UsageError
from prism.program.build import add, mul, op, read, reduce
from prism.program.index import Axis
from prism.program.nodes import Definition, DType, Program, Tensor
from prism.program.verdict import Status

i, k, n = Axis("i", 6), Axis("k", 8), Axis("n", 4)
x = read("x", i, k)
SCALED = reduce("sum", k, mul(mul(x, read("s", i)), read("w", k, n)))
MOVED = mul(read("s", i), reduce("sum", k, mul(x, read("w", k, n))))
SPLIT = mul(op("exp", read("s", i)), op("exp", read("t", i)))
JOINED = op("exp", add(read("s", i), read("t", i)))
SWAPPED = add(read("t", i), read("s", i))


def test_each_class_includes_those_that_change_less() -> None:
    rules = load_rules(rule_files())
    exact, more, everything = (rules.allowed(c) for c in FpClass)
    assert {r.fp_class for r in exact.rules} == {FpClass.EXACT}
    assert set(exact.rules) < set(more.rules) < set(everything.rules) == set(rules.rules)
    assert exact.hashes == rules.hashes
    named = [r.name for r in rules.rules if r.fp_class is not FpClass.REASSOCIATES]
    assert rules.classes(named) == ("exact", "domain")


@pytest.mark.parametrize(
    ("fp", "proved"),
    [("exact", {"swapped"}), ("reassociates", {"swapped", "moved"}), ("domain", {"swapped", "moved", "joined"})],
)
def test_what_is_proved_with_which_classes(fp: str, proved: set[str]) -> None:
    pairs = {
        "swapped": (add(read("s", i), read("t", i)), SWAPPED),
        "moved": (SCALED, MOVED),
        "joined": (SPLIT, JOINED),
    }
    found = set()
    with Worker(fp=fp) as worker:
        for name, (one, other) in pairs.items():
            worker.refer((one,), Budget(enodes=2000, iterations=4))
            (verdict,) = worker.prove([(other,)])
            if verdict.status is Status.PROVED:
                found.add(name)
                assert set(verdict.classes) <= {c.value for c in FpClass(fp).within}
                assert {"moved": "reassociates", "joined": "domain", "swapped": "exact"}[name] in verdict.classes
            else:
                assert verdict.classes == ()
    assert found == proved


def test_a_search_keeps_to_its_classes() -> None:
    y = Definition("y", (i, n), reduce("sum", k, mul(op("sigmoid", x), read("w", k, n))), DType.FLOAT32)
    program = Program("p", (Tensor("x", (6, 8), DType.FLOAT32), Tensor("w", (8, 4), DType.FLOAT32)), (y,), ("y",))
    for fp in ("exact", "domain"):
        budget = SearchBudget(max_kernels=1, max_sgraphs=2, fp=fp)
        found = list(search(program, budget=budget))
        assert found
        assert all(set(f.verdict.classes) <= {c.value for c in FpClass(fp).within} for f in found)


def test_the_class_is_part_of_what_determines_the_result() -> None:
    assert SearchBudget(fp="exact").as_dict() == {**SearchBudget().as_dict(), "fp.exact": 1}
    with pytest.raises(UsageError, match="no class fast"):
        SearchBudget(fp="fast")


def test_certificates_keep_to_the_classes() -> None:
    for fp, rung in (("reassociates", "no schedule"), ("domain", "")):
        with Worker(fp=fp) as worker:
            assert rung in worker.derive(["y"], [SPLIT], [JOINED]).reason
            assert worker.derive(["y"], [SCALED], [MOVED]).reason == ""
