"""Rules of the user's own: what `prism rules` says of them, and that they reach the prover and the search."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import prism
from prism.api.user_rules import rule_paths
from prism.cli import main
from prism.egraph.lint import Severity, lint
from prism.egraph.profile import profile
from prism.egraph.rules import Rule, load_rules, rule_files
from prism.egraph.soundness.check import check_rule
from prism.errors import ExitCode, RuleError
from prism.program.inline import inline
from prism.program.verdict import Status

SHIPPED = load_rules(rule_files())

ABSMAX = """
;; reassociates: max_k |a*c| = |c| * max_k |a|  when c is finite and k is not an axis of c
(rule ((= t (Max k (Abs (Mul a c)))) (finite c) (= s (axes c)) (set-not-contains s k))
      ((union t (Mul (Abs c) (Max k (Abs a))))) :ruleset explore :name "absmax-pull")
"""
"""A rule that prism does not ship, and that is true."""

WRONG = """
;; exact: |a + b| = |a| + |b|
(rewrite (Abs (Add a b)) (Add (Abs a) (Abs b)) :ruleset explore :name "abs-of-sum")
"""


def write(folder: Path, text: str, name: str = "mine.egg") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def one_rule(folder: Path, text: str) -> Rule:
    return load_rules([write(folder, text)]).rules[0]


# What a rule's text says


def test_the_shipped_rules_raise_no_issue() -> None:
    rules, issues = lint(rule_files())
    assert len(rules) == len(SHIPPED.rules)
    assert not issues


ERRORS = {
    "an invented variable": ("(rewrite (Exp a)\n    (Mul a b) :ruleset expand", "2:12", "invents the variable b"),
    "an invented variable of a rule": (
        "(rule ((= t (Exp a)))\n      ((union t q)) :ruleset expand",
        "2:17",
        "invents the variable q",
    ),
    "the other direction": ("(birewrite (Mul a b) a :ruleset expand", "1:19", "invents the variable b"),
    "an unknown constructor": ("(rewrite (Nope a) a :ruleset expand", "1:10", "Unbound function Nope; declare it"),
    "another arity": ("(rewrite\n  (Exp a b) a :ruleset expand", "2:3", "Arity mismatch"),
    "another sort": ("(rewrite (Sum a a) a :ruleset expand", "1:17", "String"),
    "a shipped name": ('(rewrite (Exp a) (Exp a) :ruleset expand :name "sum-pull") ;', "1:1", "another rule has that"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_has_its_place(case: str, tmp_path: Path) -> None:
    text, place, what = ERRORS[case]
    path = write(tmp_path, f';; exact: x\n{text} :name "mine")\n')
    _, issues = lint([path], SHIPPED)
    line, column = place.split(":")
    assert [i.where for i in issues] == [f"{path}:{int(line) + 1}:{column}"]
    assert issues[0].severity is Severity.ERROR
    assert what in issues[0].what


def test_all_errors_of_a_file_are_told_in_order(tmp_path: Path) -> None:
    good = ';; exact: x\n(rewrite (Abs (Abs a)) (Abs a) :ruleset expand :name "abs-abs")\n\n'
    path = write(
        tmp_path,
        '(rewrite (Exp a) a :ruleset expand :name "no-class")\n\n'
        + good
        + ';; exact: x\n(rewrite (Nope a) a :ruleset expand :name "unknown")\n\n'
        + ";; exact: x\n(rewrite (Exp a) a :ruleset expand)\n",
    )
    rules, issues = lint([path])
    assert [r.name for r in rules] == ["abs-abs"]
    assert [i.where.rsplit(":", 2)[1] for i in issues] == ["1", "7", "10"]
    assert all(i.severity is Severity.ERROR for i in issues)


WARNINGS = {
    "pulled out of a sum": (
        "(rewrite (Sum k (Mul a f)) (Mul f (Sum k a)) :ruleset expand",
        "out of a reduction",
    ),
    "pushed into a maximum": (
        "(rewrite (Add c (Max k a)) (Max k (Add c a)) :ruleset expand",
        "into a reduction",
    ),
    "guard on another axis": (
        "(rule ((= t (Sum k (Sum j (Mul a f)))) (= s (axes f)) (set-not-contains s j)) "
        "((union t (Mul f (Sum k (Sum j a))))) :ruleset expand",
        "out of a reduction",
    ),
    "cancelled": (
        "(rule ((= t (Mul a (Recip a))) (finite a)) ((union t (Const 1.0))) :ruleset expand",
        "division by a",
    ),
    "divided": ("(rewrite (Eq (Mul a b) c) (Eq b (Mul c (Recip a))) :ruleset expand", "divides by a"),
    "square root": ("(rewrite (Mul (Sqrt a) (Sqrt a)) a :ruleset expand", "square root of a"),
    "logarithm": ("(rewrite (Log (Mul a b)) (Add (Log a) (Log b)) :ruleset expand", "logarithm of a"),
    "lost": ("(rewrite (Mul (Const 0.0) a) (Const 0.0) :ruleset expand", "a vanishes"),
    "growth": ("(rewrite (Tanh a) (Mul (Const 1.0) (Tanh a)) :ruleset explore", "grows without bound"),
    "everything": ("(rule ((= t (Add a (Const 0.0)))) ((union a (Mul a a))) :ruleset explore", "grows without bound"),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_a_guard_that_is_missing_is_told(case: str, tmp_path: Path) -> None:
    text, what = WARNINGS[case]
    _, issues = lint([write(tmp_path, f';; reassociates: x\n{text} :name "mine")\n')], SHIPPED)
    assert issues
    assert {i.severity for i in issues} == {Severity.WARNING}
    assert any(what in i.what for i in issues)


# What random interpretation says

LIES = {
    "a tie": ("(rewrite (Lt a b) (Le a b)", "domain"),
    "a sign": ("(rewrite (Max2 (Mul c a) (Mul c b)) (Mul c (Max2 a b))", "domain"),
    "a zero": ("(rule ((= t (Mul a (Recip a))) (finite a)) ((union t (Const 1.0)))", "domain"),
    "an infinity": ("(rule ((= t (Mul (Const 0.0) a)) (nonzero a)) ((union t (Const 0.0)))", "domain"),
    "a power of a negative base": (
        "(rewrite (Pow (Mul a b) (Const 0.5)) (Mul (Pow a (Const 0.5)) (Pow b (Const 0.5)))",
        "domain",
    ),
    "far from 1": ("(rewrite (Tanh a) (Min2 (Const 1.0) (Max2 (Const -1.0) a))", "exact"),
    "only in the last places": ("(rewrite (Exp a) (Mul (Const 1.000000001) (Exp a))", "exact"),
    "only when large": ("(rewrite (Add a (Const 1.0)) (Max2 a (Add (Min2 a (Const 1000.0)) (Const 1.0)))", "exact"),
    "an axis with equal extents": (
        "(rule ((= t (Sum k (Mul a b))) (= x (length k)) (= y (length j)) (= u (Sum j b))) "
        "((union t (Sum j (Mul a b))))",
        "exact",
    ),
    "n - 1 for n": (
        "(rule ((= t (Sum k a)) (= s (axes a)) (set-not-contains s k) (= n (length k))) "
        "((union t (Mul (Add n (Const -1.0)) a)))",
        "exact",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_found(name: str, tmp_path: Path) -> None:
    text, fp_class = LIES[name]
    rule = one_rule(tmp_path, f';; {fp_class}: x\n{text} :ruleset expand :name "lie")\n')
    finding = check_rule(rule)
    assert finding.counterexample
    assert check_rule(rule).counterexample == finding.counterexample, "equal seeds give equal findings"


def test_a_counterexample_is_small(tmp_path: Path) -> None:
    rule = one_rule(
        tmp_path, ';; exact: x\n(rewrite (Sum k (Mul a b)) (Mul (Sum k a) (Sum k b)) :ruleset expand :name "m")'
    )
    told = check_rule(rule).counterexample
    assert "(Sum k (Mul a b)) is 2 and (Mul (Sum k a) (Sum k b)) is 4" in told, told
    assert "a = 1." in told
    assert "b = 1." in told
    text = ';; exact: x\n(rewrite (Max2 a b) (Add a b) :ruleset expand :name "m")'
    told = check_rule(one_rule(tmp_path, text)).counterexample
    assert re.fullmatch(r"\(Max2 a b\) is -?\d and \(Add a b\) is -?\d, with a = -?\d\.; b = -?\d\.", told), told


def test_large_and_tiny_values_are_no_false_alarm(tmp_path: Path) -> None:
    text = "(rewrite (Add (Add a b) (Add c d)) (Add (Add a c) (Add b d))"
    finding = check_rule(one_rule(tmp_path, f';; reassociates: x\n{text} :ruleset expand :name "m")'), draws=1000)
    assert finding
    assert finding.agreed >= 700
    assert finding.exact >= 100, "and exactly, over the prime field"


def test_the_field_sees_what_rounding_hides(tmp_path: Path) -> None:
    # 2^-60 is below the error bound of any float64 that is added to 1.
    text = f"(rewrite (Mul a (Const 1.0)) (Mul a (Add (Const 1.0) (Const {2.0**-60!r})))"
    finding = check_rule(one_rule(tmp_path, f';; reassociates: x\n{text} :ruleset expand :name "m")'))
    assert "modulo 2^61 - 1" in finding.counterexample


def test_a_domain_rule_may_say_where_it_is_nan_and_is_held_to_it(tmp_path: Path) -> None:
    text = '(rule ((= t (Mul (Exp (Add a (Mul (Const -1.0) m))) (Exp (Add m c))))) ((union t (Exp (Add a c)))) :ruleset expand :name "m")'  # noqa: E501
    assert check_rule(one_rule(tmp_path, f";; domain: x\n{text}")).counterexample
    # Where m is -inf the one side is NaN; the other is not 0 there.
    assert check_rule(one_rule(tmp_path, f";; domain: x (NaN where m = -inf)\n{text}")).counterexample
    bound = text.replace("((= t (Mul", "((= m (Max k a)) (= t (Mul")
    finding = check_rule(one_rule(tmp_path, f";; domain: x (NaN where m = -inf)\n{bound}"))
    assert finding
    assert "one side alone is finite" in finding.remark


# What runs take


def test_a_users_rule_is_listed_with_the_shipped_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, ABSMAX)
    assert main(["rules", "list"]) == ExitCode.DONE
    assert "absmax-pull" not in capsys.readouterr().out
    assert main(["rules", "list", "--rules", "mine.egg"]) == ExitCode.DONE
    lines = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()[:-1]]
    assert len(lines) == len(SHIPPED.rules) + 1
    assert ["sum-pull", "reduce", "explore", "reassociates"] in [line[:4] for line in lines]
    assert lines[-1][:4] == ["absmax-pull", "mine", "explore", "reassociates"]
    assert lines[-1][4].startswith("max_k |a*c| = |c| * max_k |a|")
    write(tmp_path, '[tool.prism]\nrules = ["mine.egg"]\n', "pyproject.toml")
    assert main(["rules", "list"]) == ExitCode.DONE
    assert "absmax-pull" in capsys.readouterr().out
    write(tmp_path, '[tool.prism]\nrules = "mine.egg"\n', "pyproject.toml")
    assert main(["rules", "list"]) == ExitCode.USAGE


def test_check_says_what_is_wrong_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, ABSMAX)
    assert main(["rules", "check", "mine.egg", "--draws", "200"]) == ExitCode.DONE
    drawn = "200 draws each; 100 exact ones where rational"
    said = f"1 rules, 0 errors, 0 warnings, 0 wrong by random interpretation ({drawn})\n"
    assert capsys.readouterr().out == said
    write(tmp_path, ABSMAX + WRONG)
    assert main(["rules", "check", "mine.egg", "--draws", "200"]) == ExitCode.VERIFICATION_FAILED
    told = capsys.readouterr().out
    assert "mine.egg:7:1: error: rule 'abs-of-sum' is wrong: (Abs (Add a b)) is " in told
    # six digits would not tell the sides apart
    write(tmp_path, ';; exact: x\n(rewrite (Mul (Const 1.0000001) a) a :ruleset simplify :name "near")\n')
    assert main(["rules", "check", "mine.egg", "--draws", "200"]) == ExitCode.VERIFICATION_FAILED
    assert re.search(r"\(Mul \(Const 1.0000001\) a\) is -?1\.000000\d+ and a is -?1,", capsys.readouterr().out)
    assert main(["rules", "check"]) == ExitCode.USAGE


def test_test_runs_the_shipped_rules_and_the_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = [next(p for p in rule_files() if p.stem == "unit")]
    monkeypatch.setattr("prism.egraph.rules.rule_files", lambda: tuple(few))
    write(tmp_path, WRONG)
    assert main(["rules", "test", "--draws", "50"]) == ExitCode.DONE
    assert main(["rules", "test", "mine.egg", "--draws", "50"]) == ExitCode.VERIFICATION_FAILED
    assert "abs-of-sum" in capsys.readouterr().out


def test_profile_counts_by_rule() -> None:
    program = prism.trace(
        lambda x, w: (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))) @ w, (torch.ones(4, 8), torch.ones(8, 6))
    )
    found = profile(SHIPPED, [f.expr for f in inline(program)])
    costs = {c.rule: c for c in found.costs}
    assert costs["mul-commutes"].matches >= costs["mul-commutes"].enodes > 0
    assert costs["sum-pull"].matches > 0
    assert "where-same" in found.idle
    assert not set(found.idle) & set(costs)
    assert found.enodes > sum(1 for c in found.costs if c.enodes > 0)
    again = profile(SHIPPED, [f.expr for f in inline(program)])
    assert [(c.rule, c.matches, c.enodes) for c in again.costs] == [(c.rule, c.matches, c.enodes) for c in found.costs]


def test_profile_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(__file__).parents[1] / "examples" / "models" / "rmsnorm_linear.onnx"
    assert main(["rules", "profile", str(model), "--top", "3"]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["rule", "ruleset", "matches", "e-nodes", "ms"]
    assert len(lines) == 5
    assert "e-nodes after" in lines[-1]


def test_a_wrong_rule_proves_nothing(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    with pytest.raises(RuleError, match="is wrong"):
        prism.prove(torch.abs, torch.abs, (x,), rules=[write(tmp_path, WRONG)])
    with pytest.raises(RuleError, match="invents"):
        rule_paths([write(tmp_path, ';; exact: x\n(rewrite (Exp a) b :ruleset expand :name "m")')])
    with pytest.raises(RuleError, match="two rule files"):
        rule_paths([write(tmp_path, ABSMAX, rule_files()[0].name)])


SIN = """
;; reassociates: sin(6*a) = 2 * sin(3*a) * cos(3*a)
(rewrite (Sin (Mul (Const 6.0) a)) (Mul (Const 2.0) (Mul (Sin (Mul (Const 3.0) a)) (Cos (Mul (Const 3.0) a))))
 :ruleset expand :name "sin-double")
"""


def double(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(6 * x)


def apart(x: torch.Tensor) -> torch.Tensor:
    return 2 * (torch.sin(3 * x) * torch.cos(3 * x))


def test_a_users_rule_proves_what_the_shipped_ones_do_not(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    assert prism.prove(double, apart, (x,)).status is Status.UNKNOWN
    verdict = prism.prove(double, apart, (x,), rules=[write(tmp_path, SIN)])
    assert verdict.status is Status.PROVED
    assert "mine" in verdict.rules


def test_a_users_rule_reaches_the_search(tmp_path: Path) -> None:
    program = prism.trace(lambda x: torch.sin(6 * x).sum(-1), (torch.randn(4, 8),))
    with prism.search(program, rules=[write(tmp_path, SIN)]) as found:
        assert "mine" in next(found).verdict.rules


def test_a_file_that_is_missing_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for missing in (tmp_path / "none.egg", tmp_path):
        assert main(["rules", "check", str(missing)]) == ExitCode.USAGE
        assert "the rule file cannot be read" in capsys.readouterr().err


def test_more_draws_at_once_do_not_leave_out_what_must_be_a_number() -> None:
    """Of 250 draws some are infinite; that leaves the others."""
    (rule,) = [r for r in SHIPPED.rules if r.name == "fold-mul"]
    few, many = (check_rule(rule, draws=n) for n in (200, 8000))
    assert few
    assert many
    assert many.agreed > 8000
