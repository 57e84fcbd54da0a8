"""Rule files: reading, error messages, and every shipped rule against random interpretation."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism.egraph.language import EXPLORE, RULESETS, snap
from prism.egraph.rules import FpClass, Rule, forms, load_rules, rule_files
from prism.egraph.soundness.check import check_rule, parse
from prism.errors import RuleError

SHIPPED = load_rules(rule_files())


def one_rule(tmp_path: Path, text: str) -> Rule:
    path = tmp_path / "mine.egg"
    path.write_text(text)
    return load_rules([path]).rules[0]


@pytest.mark.parametrize("rule", SHIPPED.rules, ids=lambda r: r.name)
def test_a_shipped_rule_holds_under_random_interpretation(rule: Rule) -> None:
    finding = check_rule(rule)
    assert not finding.counterexample, finding.counterexample
    assert finding.agreed >= 10


WRONG = {
    "sum-pull-unguarded": "(rewrite (Sum k (Mul a f)) (Mul f (Sum k a))",
    "max-pull-negative": "(rule ((= t (Max k (Mul c f))) (= s (axes c)) (set-not-contains s k)) "
    "((union t (Mul c (Max k f))))",
    "sum-is-its-body": "(rule ((= t (Sum k a)) (= s (axes a)) (set-not-contains s k)) ((union t a))",
    "sqrt-of-square": "(rewrite (Sqrt (Mul a a)) a",
    "exp-of-product": "(rewrite (Exp (Mul a b)) (Mul (Exp a) (Exp b))",
    "power-of-product": "(rewrite (Abs (Mul a b)) (Mul a b)",
    "cancel-add-infinite": "(rule ((= t (Max k (Add a (Add b (Mul (Const -1.0) b)))))) ((union t (Min k a)))",
    "where-swapped": "(rewrite (Where p a b) (Where p b a)",
    "product-of-sums": "(rewrite (Sum k (Mul a b)) (Mul (Sum k a) (Sum k b))",
    "positive-square": "(rule ((= t (Mul a a))) ((positive t))",
    "nonzero-sum": "(rule ((= t (Add a b)) (nonzero a) (nonzero b)) ((nonzero t))",
    "fold-wrongly": "(rule ((= t (Add a b)) (= x (value a)) (= y (value b))) ((set (value t) (* x y)))",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_gets_a_counterexample(name: str, tmp_path: Path) -> None:
    rule = one_rule(tmp_path, f';; exact: wrong\n{WRONG[name]} :ruleset simplify :name "{name}")\n')
    assert check_rule(rule).counterexample


def test_rules_are_named_classed_and_hashed() -> None:
    assert len(SHIPPED.rules) > 100
    assert len({r.name for r in SHIPPED.rules}) == len(SHIPPED.rules)
    assert {r.ruleset for r in SHIPPED.rules} == set(RULESETS)
    assert SHIPPED.by_name("sum-pull").fp_class is FpClass.REASSOCIATES
    assert "k is not an axis of f" in SHIPPED.by_name("sum-pull").formula
    assert SHIPPED.families == tuple(p.stem for p in rule_files())
    assert all(len(h) == 64 for _, h in SHIPPED.hashes)


def test_what_the_generator_walks_holds_no_domain_rule() -> None:
    assert all(r.fp_class is not FpClass.DOMAIN for r in SHIPPED.rules if r.ruleset == EXPLORE)


GOOD = ';; exact: a = a\n(rewrite (Exp (Const 0.0)) (Const 1.0) :ruleset simplify :name "good")\n\n'

BAD = {
    "does not parse": (GOOD + ';; exact: x\n(rewrite (Exp a :ruleset simplify :name "x")', 5),
    "no name": (GOOD + ";; exact: x\n(rewrite (Exp a) a :ruleset simplify)", 5),
    "no ruleset": (GOOD + ';; exact: x\n(rewrite (Exp a) a :name "x")', 5),
    "unknown ruleset": (GOOD + ';; exact: x\n(rewrite (Exp a) a :ruleset mine :name "x")', 5),
    "no class": (GOOD + '(rewrite (Exp a) a :ruleset simplify :name "x")', 4),
    "comment apart": (GOOD + ';; exact: x\n\n(rewrite (Exp a) a :ruleset simplify :name "x")', 6),
    "unknown constructor": (GOOD + ';; exact: x\n(rewrite (Nope a) a :ruleset simplify :name "x")', 5),
    "wrong arity": (GOOD + ';; exact: x\n(rewrite (Exp a b)\n a :ruleset simplify :name "x")', 5),
    "unbound variable": (GOOD + ';; exact: x\n(rewrite (Exp a) b :ruleset simplify :name "x")', 5),
    "same name": (GOOD + ';; exact: x\n(rewrite (Exp a) a :ruleset simplify :name "good")', 5),
    "not a rule": (GOOD + "(datatype U (V))", 4),
    "domain in explore": (GOOD + ';; domain: x\n(rewrite (Exp a) a :ruleset explore :name "x")', 5),
    "stray text": (GOOD + "hello", 4),
}


@pytest.mark.parametrize("case", BAD)
def test_an_error_names_file_and_line(case: str, tmp_path: Path) -> None:
    text, line = BAD[case]
    path = tmp_path / "bad.egg"
    path.write_text(text)
    with pytest.raises(RuleError) as error:
        load_rules([path])
    assert error.value.where == f"{path}:{line}"
    assert "\n" not in error.value.one_line()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot be read"):
        load_rules([tmp_path / "missing.egg"])


def test_forms_know_strings_and_comments() -> None:
    text = '; (not a form\n(a ")" ; b)\n c)\n;; exact: x\n(d)'
    found = list(forms(text, "f"))
    assert [(f.text, f.line) for f in found] == [('(a ")" ; b)\n c)', 2), ("(d)", 5)]
    assert found[1].comment == (";; exact: x",)
    assert parse(found[0].text) == ["a", '")"', "c"]


def test_constants_are_cut_so_that_roundings_meet() -> None:
    for value in (128**-0.5, 64**-0.5, 1e-5, 1e-6, 1e-12, 2**-0.5, 0.044715, 1 / 3, 1 / 4096):
        assert snap(value * 7.0 * (1.0 / 7.0)) == snap(value)
    assert snap(1 / 255) != snap(1 / 256)
    assert snap(1 / (2**24 - 1)) != snap(2**-24)
    assert snap(1.0000001e-6) != snap(1e-6)
    assert [snap(float(n)) for n in (0, 1, -3, 4096, 65536)] == [0, 1, -3, 4096, 65536]
    assert snap(float("-inf")) == float("-inf")
