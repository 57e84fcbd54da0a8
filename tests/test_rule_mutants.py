"""Every guard of a shipped rule is needed: without it, random interpretation finds what is wrong; so it does with
operands or axes swapped. Guards that truth does not need are listed, with the reason, and shown to be of that kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rule_mutants import Mutant, swapped, without_guards

from prism.egraph.rules import Rule, load_rules, rule_files
from prism.egraph.soundness.check import check_rule

SHIPPED = load_rules(rule_files())
DRAWS = 400

RANGE = "keeps a constant within float64, or its 40 bits exact"
GROWTH = "bounds growth: the rule is true without it, and would apply more often"
BOTH = "both sides are undefined together where it does not hold"
OTHER = "the other guards imply it"

NOT_FOR_TRUTH = {
    ("fold-mul", "without (< (abs (* x y)) 1e200)"): RANGE,
    ("fold-mul", "without (> (abs (* x y)) 1e-200)"): RANGE,
    ("fold-add", "without (>= (abs (+ x y)) (* 0.01 (max (abs x) (abs y))))"): RANGE,
    ("fold-add", "without (>= (min (abs x) (abs y)) (* 0.01 (max (abs x) (abs y))))"): RANGE,
    ("mul-constants", "without (< (abs (* x y)) 1e200)"): RANGE,
    ("mul-constants", "without (> (abs (* x y)) 1e-200)"): RANGE,
    ("lower-exp", "without (< x 600.0)"): RANGE,
    ("upper-exp", "without (< x 600.0)"): RANGE,
    # Only what is finite has a bound.
    ("max-of-negative-multiple", "without (finite c)"): OTHER,
    ("min-of-negative-multiple", "without (finite c)"): OTHER,
    # log of a negative number is as undefined as of its product with a positive one; without both guards it is wrong.
    ("log-of-product", "without (positive a)"): BOTH,
    ("log-of-product", "without (positive b)"): BOTH,
    ("sum-of-logs", "without (positive a)"): BOTH,
    ("sum-of-logs", "without (positive b)"): BOTH,
    ("recip-recip", "without (finite a)"): BOTH,
    # `and` takes anything but 0 for true, as `where` does.
    ("where-nested", "without (boolean p)"): OTHER,
    ("where-nested", "without (boolean q)"): OTHER,
    ("sum-where-split", "without (= c (Mul u v))"): GROWTH,
    ("sum-split-mask", "without (boolean p)"): GROWTH,
    ("sum-split-mask", "without (= c (Mul u v))"): GROWTH,
    # Of any m and b it may go on without end.
    ("exp-minus-logsumexp", "without (= m (Max k s))"): GROWTH,
    ("exp-minus-logsumexp", "without (= b (Sum k d))"): GROWTH,
    ("sum-split-choice", "without (= f (Where p x y))"): GROWTH,
    ("sum-split-choice", "without (= c (Mul g h))"): GROWTH,
    ("sum-split-product", "without (!= x y)"): GROWTH,
    ("sum-split-product", "without (!= u (set-union u z))"): GROWTH,
    ("sum-split-quotient", "without (!= u (set-union u z))"): GROWTH,
    # f is at most 1: f*(a + b) is finite where f*a and f*b are, and infinite or NaN as their sum is.
    ("sum-split-softmax", "without (finite a)"): BOTH,
    ("sum-split-softmax", "without (finite b)"): BOTH,
    ("sum-split-softmax", "without (<= (set-length (set-union u z)) (set-length z))"): GROWTH,
    # An f or an a that is infinite makes both sides infinite or NaN.
    ("sum-split-logsumexp", "without (= f (Read n s))"): GROWTH,
    ("sum-split-logsumexp", "without (finite a)"): BOTH,
    ("rescale-beside-product", "without (<= (set-length (set-union sp sc)) (+ 1 (set-length sc)))"): GROWTH,
    ("rescale-beside-sum", "without (<= (set-length (set-union sp sc)) (+ 1 (set-length sc)))"): GROWTH,
    # The rule says that it differs where m is -inf, whatever m is.
    ("exp-of-masked-shift", "without (= m (Max k w))"): GROWTH,
    ("sum-reassociate", "without (!= j k)"): OTHER,
    ("sum-reassociate", "without (set-contains sb j)"): GROWTH,
    ("sum-reassociate", "without (set-contains sx k)"): GROWTH,
    ("sum-reassociate", "without (set-contains sa j)"): GROWTH,
    ("sum-reassociate", "without (set-contains sa k)"): GROWTH,
    ("sum-reassociate", "without (<= (set-length (set-union sa sb)) (+ 1 (set-length su)))"): GROWTH,
}


def found_out(mutant: Mutant, rule: Rule) -> bool:
    """Whether validation says something of the mutant that it does not say of the rule itself."""
    for draws in (DRAWS // 8, DRAWS):
        finding = check_rule(mutant.rule, draws=draws, shrink=False)
        if finding.counterexample:
            return True
    assert finding.agreed, f"{mutant.what}: no draw satisfies the facts"
    return bool(finding.remark) and not check_rule(rule, draws=DRAWS, shrink=False).remark


def test_a_rule_without_its_guard_is_found_out() -> None:
    kept, survivors = 0, []
    for rule in SHIPPED.rules:
        for mutant in without_guards(rule):
            wrong = found_out(mutant, rule)
            kept += wrong
            if wrong == ((rule.name, mutant.what) in NOT_FOR_TRUTH):
                survivors.append((rule.name, mutant.what))
    assert not survivors, "found out though listed, or not found out and not listed"
    assert kept > 200


def test_the_list_names_guards_that_exist() -> None:
    there = {(r.name, m.what) for r in SHIPPED.rules for m in without_guards(r)}
    assert set(NOT_FOR_TRUTH) <= there


@pytest.mark.parametrize("name", ["log-of-product", "sum-of-logs"])
def test_guards_that_stand_in_for_each_other_are_needed_together(name: str) -> None:
    rule = SHIPPED.by_name(name)
    bare = replace(rule, text=rule.text.replace("(positive a) (positive b)", ""))
    assert bare.text != rule.text
    assert check_rule(bare, draws=DRAWS).counterexample


def test_a_rule_with_operands_or_axes_swapped_is_found_out() -> None:
    tried, survivors = 0, []
    for rule in SHIPPED.rules:
        for mutant in swapped(rule):
            tried += 1
            if not check_rule(mutant.rule, draws=DRAWS, shrink=False).counterexample:
                survivors.append((rule.name, mutant.what))
    assert not survivors
    assert tried > 25
