"""Operators that users declare in rule files: read, checked, called, recognised, proved with and searched with."""

from __future__ import annotations

import hashlib
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import prism
from prism.api.user_rules import declared, rule_paths
from prism.api.verifying import explanation
from prism.checker import CertificateError, check, digest
from prism.checker.operators import definitions
from prism.checker.rules import read_rules, sexps
from prism.cli import main
from prism.egraph.derivation.derive import Deriver
from prism.egraph.lint import lint
from prism.egraph.operators import body_of, constructor, declaration
from prism.egraph.rules import RuleSet, load_rules, rule_files
from prism.egraph.sexpr import show
from prism.egraph.soundness.check import check_rule
from prism.errors import ExitCode, RuleError, UnsupportedError, UsageError
from prism.program.evaluate import evaluate
from prism.program.index import Axis, Index
from prism.program.inline import inline
from prism.program.nodes import Definition, DType, Program, Read, Tensor
from prism.program.operators import FUNCTIONS, ExpressionError, operator
from prism.program.verdict import Status

SOFTCAP = '(operator softcap (x c) "c * torch.tanh(x / c)")\n'
ODD = """
;; exact: softcap(-a, c) = -softcap(a, c)
(birewrite (Softcap (Mul (Const -1.0) a) c) (Mul (Const -1.0) (Softcap a c)) :ruleset expand :name "softcap-odd")
"""
MONOTONE = """
;; exact: max_k softcap(a, c) = softcap(max_k a, c)  when c > 0 and k is not an axis of c
(rule ((= t (Max k (Softcap a c))) (positive c) (= s (axes c)) (set-not-contains s k))
      ((union t (Softcap (Max k a) c))) :ruleset explore :name "softcap-monotone")
"""
SQRELU = """
(operator sqrelu (x) "torch.relu(x) ** 2")
;; reassociates: sqrelu(a*c) = c^2 * sqrelu(a)  when c > 0 is finite
(rule ((= t (Sqrelu (Mul a c))) (positive c) (finite c))
      ((union t (Mul (Mul c c) (Sqrelu a)))) :ruleset explore :name "sqrelu-homogeneous")
"""


def write(folder: Path, text: str, name: str = "mine.egg") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# The expression: everything that it may hold means what torch means by it, and nothing else is let in.

EXPRESSIONS = [
    "c * torch.tanh(x / c)",
    "torch.relu(x) ** 2 + c - x",
    "x * torch.sigmoid(1.702 * x) * c",
    "torch.where(x > c, x, 0.1 * (x - c))",
    "x.clamp(min=-c, max=c)",
    "F.gelu(x, approximate='tanh') + F.gelu(c)",
    "torch.nn.functional.softplus(x, beta=2) / c",
    "F.leaky_relu(x, 0.2) * F.elu(c, alpha=1.5)",
    "torch.maximum(x, c) - torch.minimum(c, 0.5 * x)",
    "torch.log1p(torch.exp(-x.abs())) * math.pi + c",
    "F.silu(x) + F.mish(c) + F.hardswish(x) + F.logsigmoid(c) + F.relu6(x)",
    "torch.erf(x / math.sqrt(2)) + torch.rsqrt(c * c + 1) + c.square().sqrt()",
    "torch.sign(x) * torch.pow(torch.abs(x), 0.3) + c ** -2",
    "torch.floor(x) + torch.ceil(c) + torch.round(x) + torch.trunc(c)",
    "(x >= c) * 1.0 + (x != c) * 2.0 + (x < 0)",
]


def test_a_definition_means_what_torch_means_by_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, c = (torch.from_numpy(rng.standard_normal((3, 5))) for _ in range(2))
    declarations = [f'(operator mine{n} (x c) "{text}")' for n, text in enumerate(EXPRESSIONS)]
    path = write(tmp_path, "\n".join(declarations))
    calls = list(vars(prism.operators(path)).values())
    known = {"torch": torch, "F": torch.nn.functional, "math": math, "x": x, "c": c}
    wanted = [eval(text, dict(known)) for text in EXPRESSIONS]
    for called, value in zip(calls, wanted, strict=True):
        assert torch.equal(called(x, c), value)
    # As torch traces it, and by the definitions' own formulas.
    traced = prism.trace(lambda x, c: tuple(called(x, c) * 1.0 for called in calls), (x, c))
    i, j = Axis("i", 3), Axis("j", 5)
    reads = [Read(n, (Index.axis(i), Index.axis(j))) for n in "xc"]
    inputs = tuple(Tensor(n, (3, 5), DType.FLOAT64) for n in "xc")
    written = tuple(Definition(op.name, (i, j), op.of(reads), DType.FLOAT64) for op in declared([path]))
    by_formula = Program("p", inputs, written, tuple(d.name for d in written))
    for program in (traced, by_formula):
        found = evaluate(program, {"x": x.numpy(), "c": c.numpy()})
        for name, value in zip(program.outputs, wanted, strict=True):
            np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-12, atol=1e-14)


FORBIDDEN = [
    "__import__('os').system('true') + x",
    "x.__class__",
    "open(x)",
    "(lambda: x)()",
    "[x for x in x]",
    "torch.load(x)",
    "torch.sum(x)",
    "x @ x",
    "x if x else 1",
    "x[0] + 1",
    "globals()",
    "y + 1",
    "x +",
    "x",
    "3.0",
    "F.gelu(x, x)",
    "F.elu(x, x)",
    "torch.relu(x, x)",
    "torch.tanh(input=x, foo=1)",
    "'text' + x",
    "(x := 3) + x",
    "f'{x}'",
]


@pytest.mark.parametrize("text", FORBIDDEN)
def test_an_expression_is_translated_and_never_run(text: str) -> None:
    with pytest.raises(ExpressionError):
        operator("mine", ("x",), text)


def test_every_function_of_the_list_is_one_of_torchs() -> None:
    homes = (torch, torch.nn.functional, torch.special)
    assert all(any(hasattr(h, name) for h in homes) for name in FUNCTIONS)


# The declaration

BAD = {
    "(operator Softcap (x) \"torch.tanh(x)\")": (1, 11, "no name of an operator"),
    "(operator exp (x) \"torch.tanh(x)\")": (1, 11, "of its own"),
    "(operator const (x) \"torch.tanh(x)\")": (1, 11, "of its own"),
    SOFTCAP + SOFTCAP: (2, 11, "two operators"),
    "(operator cap (x x) \"torch.tanh(x)\")": (1, 18, "no name of a parameter"),
    "(operator cap (x 3) \"torch.tanh(x)\")": (1, 18, "no name of a parameter"),
    "(operator cap () \"torch.tanh(x)\")": (1, 15, "has parameters"),
    "(operator cap (x c) \"torch.tanh(x)\")": (1, 22, "does not depend on the parameter c"),
    "\n(operator cap (x)\n  \"torch.sum(x)\")": (3, 4, "none of the functions"),
    "(operator cap (x) \"1 + torch.tanh(y)\")": (1, 35, "y is no parameter"),
    "(operator cap (x) tanh)": (1, 1, "not a declaration"),
    "(operator cap (x) \"torch.tanh(x\")": (1, 30, "does not parse"),
    ';; exact: x\n(rewrite (Hardcap a b) a :ruleset expand :name "x")\n' + SOFTCAP: (2, 10, "Unbound function"),
    "(operator cap (x)\n  \"\n  torch.exp(x)\n    + y\")": (4, 7, "y is no parameter"),
    "(operator cap (x) \"\n  torch.exp(y)\")": (2, 13, "y is no parameter"),
    "(operator cap (x) \"  torch.exp(y)\")": (1, 32, "y is no parameter"),
    SOFTCAP + ';; exact: x\n(rewrite (Softcap a) a :ruleset expand :name "x")': (3, 10, "Arity mismatch"),
}  # fmt: skip


@cache
def shipped() -> RuleSet:
    """The rules without any of a user's."""
    return load_rules(rule_files())


@pytest.mark.parametrize("text", BAD)
def test_a_declaration_that_is_wrong_is_named_by_file_line_and_column(text: str, tmp_path: Path) -> None:
    line, column, what = BAD[text]
    path = write(tmp_path, text)
    _, issues = lint([path], shipped())
    first = next(i for i in issues if what in i.what)
    assert first.where == f"{path}:{line}:{column}"
    with pytest.raises(RuleError, match=what):
        rule_paths([path])


def test_a_rule_may_stand_above_the_operator_that_it_speaks_of(tmp_path: Path) -> None:
    found = load_rules([write(tmp_path, ODD + SOFTCAP)])
    assert found.by_name("softcap-odd").operators == found.operators
    assert check_rule(found.by_name("softcap-odd"))


def test_operators_travel_with_the_rule_set(tmp_path: Path) -> None:
    a = write(tmp_path, SOFTCAP, "a.egg")
    b = write(tmp_path, ODD, "b.egg")
    both = load_rules([*rule_files(), a, b])
    assert [op.name for op in both.operators] == ["softcap"]
    assert both.by_name("softcap-odd").operators == both.operators
    assert both.by_name("softcap-definition").text.startswith("(birewrite (Softcap x c) (Mul c (Tanh")
    # Nothing is left behind in the process.
    with pytest.raises(RuleError, match="Softcap"):
        load_rules([*rule_files(), b])
    again = load_rules([*rule_files(), write(tmp_path, '(operator softcap (y) "torch.tanh(y)")', "c.egg")])
    assert again.operators[0].parameters == ("y",)
    assert constructor("quick_gelu") == "QuickGelu"
    assert "(constructor Softcap (T T) T)" in declaration(both.operators[0])
    assert show(body_of(both.operators[0])) == "(Mul c (Tanh (Mul x (Recip c))))"


# Axioms are checked against the definition.


def axiom(text: str) -> str:
    return f'\n;; exact: as the name says\n{text} :ruleset expand :name "axiom")\n'


AXIOMS = {
    "odd": (ODD, True),
    "even": (ODD.replace("(Mul (Const -1.0) (Softcap a c))", "(Softcap a c)"), False),
    "monotone": (MONOTONE, True),
    "monotone the other way": (MONOTONE.replace("(Softcap (Max k a) c)", "(Softcap (Min k a) c)"), False),
    "monotone without its axes": (MONOTONE.replace("(= s (axes c)) (set-not-contains s k)", ""), False),
    "homogeneous": (SQRELU, True),
    "homogeneous of degree 1": (SQRELU.replace("(Mul c c)", "c"), False),
    "homogeneous for negatives": (SQRELU.replace("(positive c)", "(nonzero c)"), False),
    "at zero": (axiom("(rewrite (Softcap (Add a (Const 0.0)) c) (Softcap a c)"), True),
    "positive": (axiom("(rule ((= t (Softcap a c)) (positive c)) ((positive t))"), False),
    "nonneg": (SQRELU + axiom("(rule ((= t (Sqrelu a))) ((nonneg t))"), True),
}


@pytest.mark.parametrize("name", AXIOMS)
def test_an_axiom_is_checked_against_the_definition(name: str, tmp_path: Path) -> None:
    text, true = AXIOMS[name]
    rules = load_rules([write(tmp_path, SOFTCAP + text)]).rules
    findings = [check_rule(r, draws=400) for r in rules if not r.definition]
    assert findings
    assert all(findings) == true
    if not true:
        assert any(" is " in f.counterexample for f in findings)


def test_a_rational_axiom_is_checked_exactly_too(tmp_path: Path) -> None:
    text = '(operator lerp3 (a b t) "a + t * (b - a)")\n;; reassociates: lerp of equals\n'
    rule = '(rewrite (Lerp3 a a t) a :ruleset expand :name "l") '
    guarded = '(rule ((= u (Lerp3 a a t)) (finite a) (finite t)) ((union u a)) :ruleset expand :name "m")'
    right = check_rule(load_rules([write(tmp_path, text + guarded)]).by_name("m"))
    assert right
    assert right.exact > 0
    assert not check_rule(load_rules([write(tmp_path, text + rule)]).by_name("l"), draws=2000)


def test_the_command_checks_and_lists_declared_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = write(tmp_path, SOFTCAP + ODD), write(tmp_path, SOFTCAP + AXIOMS["even"][0], "even.egg")
    assert main(["rules", "check", str(right)]) == ExitCode.DONE
    assert "1 rules, 0 errors, 0 warnings, 0 wrong" in capsys.readouterr().out
    assert main(["rules", "check", str(wrong)]) == ExitCode.VERIFICATION_FAILED
    assert f"{wrong}:4:1: error: rule 'softcap-odd' is wrong" in capsys.readouterr().out
    assert main(["rules", "list", "--rules", str(right)]) == ExitCode.DONE
    assert "softcap(x, c) = c * torch.tanh(x / c)" in capsys.readouterr().out


# Proofs


def test_an_axiom_proves_what_the_shipped_rules_do_not(tmp_path: Path) -> None:
    # Of tanh the prover knows that it leaves a maximum, and not of a softsign.
    softsign = '(operator softcap (x c) "c * x / (c + torch.abs(x))")\n'
    path = write(tmp_path, softsign + MONOTONE.replace("(positive c)", "(positive c) (finite a)"))
    ops = prism.operators(path)
    x = torch.randn(4, 8)

    def outside(x: torch.Tensor) -> Any:
        return ops.softcap(x.amax(-1), 30.0)

    def inside(x: torch.Tensor) -> Any:
        return ops.softcap(x, 30.0).amax(-1)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        return (30 * x / (30 + x.abs())).amax(-1)

    assert prism.prove(inside, outside, (x,)).status is Status.UNKNOWN
    verdict = prism.prove(by_hand, outside, (x,), rules=[path])
    assert verdict.status is Status.PROVED
    assert "mine" in verdict.rules


def test_what_is_wrong_of_an_operator_is_refuted(tmp_path: Path) -> None:
    path = write(tmp_path, SOFTCAP + MONOTONE)
    cap = prism.operators(path).softcap
    x = torch.randn(4, 8)
    verdict = prism.prove(lambda x: cap(x, 30.0), lambda x: cap(x, 31.0), (x,), rules=[path])
    assert verdict.status is Status.REFUTED


def test_a_tensor_may_be_any_argument(tmp_path: Path) -> None:
    path = write(tmp_path, SOFTCAP + ODD)
    cap = prism.operators(path).softcap
    x, c = torch.randn(4, 8), torch.rand(4, 1)
    verdict = prism.prove(lambda x, c: cap(-x, c), lambda x, c: -cap(x, c), (x, c), rules=[path])
    assert verdict.status is Status.PROVED


def test_a_function_of_the_operator_has_a_gradient_and_says_what_it_takes(tmp_path: Path) -> None:
    cap = prism.operators(write(tmp_path, SOFTCAP)).softcap
    x = torch.zeros(3, requires_grad=True)
    cap(x, 30.0).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, torch.ones(3))
    assert torch.equal(cap(c=30.0, x=x), cap(x, 30.0))
    for given, named in (((x,), {}), ((x, 30.0), {"c": 30.0}), ((x,), {"d": 30.0})):
        with pytest.raises(UsageError, match="takes 2 arguments: x, c"):
            cap(*given, **named)


# Front ends


def custom(name: str) -> Any:
    """A custom operator as a kernel library registers it."""

    @torch.library.custom_op(f"prismtest::{name}", mutates_args=())
    def cap(x: torch.Tensor, c: float) -> torch.Tensor:
        return c * torch.tanh(x / c)

    cap.register_fake(lambda x, c: torch.empty_like(x))
    return cap


def test_paths_and_statements_are_several(tmp_path: Path) -> None:
    """One by itself was taken letter by letter."""
    path = tmp_path / "own.egg"
    path.write_text('(operator bump (x) "x * x")\n')
    one: Any = str(path)
    several: Any = [one]
    x = torch.ones(3)
    for ask, said in (
        (lambda: prism.operators(several), "a list; give its path"),
        (lambda: prism.trace(torch.sin, [x], rules=one), "give several paths"),
        (lambda: prism.trace(torch.sin, [x], assume="x > 0"), "give several statements"),
        (lambda: prism.search(prism.trace(torch.sin, [x]), budget=one), "give a SearchBudget"),
    ):
        with pytest.raises(UsageError, match=said):
            ask()


def test_a_custom_operator_of_torch_is_the_declared_one_of_its_name(tmp_path: Path) -> None:
    softcap = custom("softcap")
    path = write(tmp_path, SOFTCAP + MONOTONE)
    x = torch.randn(4, 8)

    def fn(x: torch.Tensor) -> Any:
        return softcap(x * 2, 30.0).amax(-1)

    with pytest.raises(UnsupportedError, match=r"\(operator softcap"):
        prism.trace(fn, (x,))
    program = prism.trace(fn, (x,), rules=[path])
    (found,) = evaluate(program, {"x": x.numpy()}).values()
    np.testing.assert_allclose(found, fn(x).numpy(), rtol=1e-5)
    verdict = prism.prove(fn, lambda x: softcap((x * 2).amax(-1), 30.0), (x,), rules=[path])
    assert verdict.status is Status.PROVED


def model(path: Path, **attributes: Any) -> Path:
    cap = helper.make_node("softcap", ["x", "c"], ["y"], domain="prism", **attributes)
    top = helper.make_node("ReduceMax", ["y", "axes"], ["z"], keepdims=0)
    graph = helper.make_graph(
        [cap, top],
        "capped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4])],
        [
            helper.make_tensor("c", TensorProto.FLOAT, [], [30.0]),
            helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("prism", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


def test_a_model_calls_the_operator_in_the_domain_prism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules, file = write(tmp_path, SOFTCAP + MONOTONE), model(tmp_path / "capped.onnx")
    with pytest.raises(UnsupportedError, match=r"prism\.softcap"):
        prism.load_onnx(file)
    program = prism.load_onnx(file, rules=[rules])
    x = np.random.default_rng(0).standard_normal((4, 8))
    inputs = {t.name: x if t.name == "x" else np.asarray(program.weights[t.name]) for t in program.inputs}
    (found,) = evaluate(program, inputs).values()
    np.testing.assert_allclose(found, (30 * np.tanh(x / 30)).max(-1), rtol=1e-6)
    with pytest.raises(UnsupportedError, match="takes x, c"):
        prism.load_onnx(model(tmp_path / "odd.onnx", beta=1.0), rules=[rules])
    # The command takes them from --rules, and from pyproject.toml.
    assert main(["rules", "profile", str(file), "--rules", str(rules)]) == ExitCode.DONE
    assert "softcap-monotone" in capsys.readouterr().out
    (tmp_path / "pyproject.toml").write_text('[tool.prism]\nrules = ["mine.egg"]\n')
    monkeypatch.chdir(tmp_path)
    assert main(["prove", str(file), str(file)]) == ExitCode.DONE


# Derivations: the checker reads definitions for itself.


def derived(
    rules: Path, reference: Any, candidate: Any, inputs: tuple[torch.Tensor, ...]
) -> tuple[bytes, list[str], list[str]]:
    """A derivation, the rules that it cites, and its explanation."""
    files = [*rule_files(), rules]
    a, b = (inline(prism.trace(f, inputs, name="p"))[0].expr for f in (reference, candidate))
    found = Deriver(files).derive(["y"], [a], [b])
    assert not found.reason
    accepted = check(found.certificate, {p.name: p.read_bytes() for p in files})
    cited = [s["rule"] for s in json.loads(found.certificate)["outputs"][0]["steps"] if s["kind"] == "rule"]
    return found.certificate, cited, list(explanation(accepted, load_rules(files)))


def test_a_derivation_goes_through_the_definition_and_the_axiom(tmp_path: Path) -> None:
    path = write(tmp_path, SQRELU)
    sqrelu = prism.operators(path).sqrelu
    x, r = torch.randn(4, 8), torch.randn(4, 1)
    certificate, cited, lines = derived(
        path,
        lambda x, r: sqrelu(x * r.exp()).sum(-1),
        lambda x, r: sqrelu(x).sum(-1) * (r.exp() * r.exp())[:, 0],
        (x, r),
    )
    assert "sqrelu-homogeneous" in cited
    assert cited.count("sqrelu-definition") == 2
    assert any("sqrelu(x[" in line for line in lines)
    assert any("sqrelu(x) = torch.relu(x) ** 2" in line for line in lines)
    # The same steps, of an operator that is defined otherwise, are rejected.
    texts = {p.name: p.read_bytes() for p in (*rule_files(), path)}
    texts["mine.egg"] = texts["mine.egg"].replace(b"torch.relu(x) ** 2", b"torch.relu(x) ** 3")
    body = json.loads(certificate)
    body["rules"]["mine.egg"] = hashlib.sha256(texts["mine.egg"]).hexdigest()
    body["sha256"] = digest(body)
    with pytest.raises(CertificateError, match="sqrelu-definition"):
        check(json.dumps(body).encode(), texts)


READ_BY_THE_CHECKER = [
    ("x c", "c * torch.tanh(x / c)"),
    ("x b c", "c * torch.tanh(x / (c * 2 + b)) - b * (1 / c) + -c"),
    ("x b c", "c * torch.tanh(x / (c * 2 + b)) - x * b + (b - 3) * -c"),
    ("x", "torch.relu(x) ** 2"),
    ("x", "torch.exp(x)\n    + 1.5 * x"),
    ("x a", "torch.where(x > 0, x, a * x)"),
    ("x", "x * torch.sigmoid(1.702 * x)"),
    ("x", "torch.sign(x) * torch.sqrt(torch.abs(x))"),
    ("x y", "-x + 0.5 * (y - 2) / 3 + F.silu(y) * 1"),
    ("x y", "torch.maximum(x, y) ** 3 - torch.minimum(x, -y) ** 4"),
    ("x", "torch.rsqrt(x + 1e-6) * torch.reciprocal(x) + torch.exp(-x)"),
    ("x y", "torch.where(x <= y, 1 / x, torch.erf(y) * torch.sqrt(2.0 * x + 0))"),
]


@pytest.mark.parametrize(("parameters", "text"), READ_BY_THE_CHECKER)
def test_the_checker_reads_a_declaration_as_the_prover_does(parameters: str, text: str, tmp_path: Path) -> None:
    declaration = f'(operator mine ({parameters}) "{text}")'
    (form,) = sexps(declaration)
    assert isinstance(form, list)
    assert definitions(form)
    ours = {r.name: read_rules(r.text, r.file)[r.name] for r in load_rules([write(tmp_path, declaration)]).rules}
    theirs = read_rules(declaration, str(tmp_path / "mine.egg"))
    assert ours.keys() == theirs.keys()
    for name, rule in ours.items():
        other = theirs[name]
        assert (rule.left, rule.right, rule.both) == (other.left, other.right, other.both)
        assert sorted(map(str, rule.facts)) == sorted(map(str, other.facts))


def test_a_derivation_knows_an_operator_at_a_number(tmp_path: Path) -> None:
    path = write(tmp_path, SOFTCAP + MONOTONE)
    cap = prism.operators(path).softcap
    _, cited, _ = derived(path, lambda x: cap(x, 30.0).amax(-1), lambda x: cap(x.amax(-1), 30.0), (torch.randn(4, 8),))
    assert "softcap-recognition" in cited


def test_what_the_checker_does_not_read_it_does_not_guess() -> None:
    for text in ("torch.foo(x)", "F.mish(x)", "x.tanh()", "torch.tanh(x", "y + x", "x @ x", "torch.tanh(input=x)"):
        assert not definitions(["operator", "mine", ["x"], f'"{text}"'])
