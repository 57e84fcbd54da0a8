"""Derivations: found for what the prover proves, and accepted by a checker that shares nothing with it."""

from __future__ import annotations

import ast
import copy
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from egraph_identities import RIGHT, WRONG
from hypothesis import assume, given
from hypothesis import strategies as st
from quick import slow_but

import prism.checker
from prism.api import SearchBudget, load
from prism.api.partitioned import search_regions
from prism.api.region_search import SearchResult, run_search
from prism.checker import CertificateError, GuardError, Term, Terms, check, digest, instance, read_rules
from prism.cost.device import device
from prism.egraph.derivation.certificate import REPLAY_SCHEMA, Decoder, Derivation, Encoder
from prism.egraph.derivation.derive import Deriver, Trials, canonical
from prism.egraph.language import ANALYSIS
from prism.egraph.rules import load_rules, rule_files
from prism.egraph.worker import Worker
from prism.events import Recorder
from prism.generate.partition import partition
from prism.program.build import add, const, mul, neg, op, read, recip, reduce
from prism.program.constants import readings
from prism.program.evaluate import evaluate_expr
from prism.program.nodes import Expr, free_axes, walk
from prism.program.transform import canonical as canonical_expr
from prism.program.transform import instance as axis_of
from prism.sgraph.denote import expand

MODELS = Path(__file__).parents[1] / "examples" / "models"
TEXTS = {p.name: p.read_bytes() for p in rule_files()}
RULES = {name: rule for file, data in TEXTS.items() for name, rule in read_rules(data.decode(), file).items()}
EXAMPLES = sorted(p.stem for p in MODELS.glob("*.onnx") if p.stem != "decoder_layer")


@pytest.fixture(scope="module")
def deriver() -> Deriver:
    return Deriver()


def derived(deriver: Deriver, found: SearchResult) -> Derivation:
    denotation = found.proved[0].denotation
    names = [f.tensor.name for f in found.formulas]
    reference = [expand(f.expr, denotation.split) for f in found.formulas]
    d = deriver.derive(names, reference, denotation.outputs)
    assert d.reason == ""
    accepted = check(d.certificate, TEXTS)
    for (name, start, _, end), f, wanted in zip(accepted.outputs, reference, denotation.outputs, strict=True):
        assert name in names
        encoder = Encoder(accepted.terms)
        assert encoder.of(f) is start
        assert encoder.of(wanted) is end
    return d


def check_example(name: str, deriver: Deriver, worker: Worker) -> None:
    found = run_search(load(MODELS / f"{name}.onnx"), device("sm_90"), SearchBudget(), worker, Recorder())
    derived(deriver, found)


# A form that the rules associate anew, one that they fold, one with a rescaled sum, and a split.
FEW = ("lora", "gqa_decode")


@pytest.mark.parametrize("name", slow_but(FEW, EXAMPLES))
def test_an_example_has_a_derivation(name: str, deriver: Deriver, worker: Worker) -> None:
    check_example(name, deriver, worker)


@pytest.mark.slow
def test_every_region_of_the_decoder_layer_has_a_derivation(deriver: Deriver, worker: Worker) -> None:
    program, target = load(MODELS / "decoder_layer.onnx"), device("sm_90")
    regions = partition(program, device=target)
    found = search_regions(program, regions, target, SearchBudget(), [worker], Recorder())
    assert sum(derived(deriver, r.result).steps for r in found.distinct.values()) > 0


SMALL = sorted(set(RIGHT) - {"layernorm folded", "one-pass variance", "split softmax", "masked split softmax"})


@pytest.mark.parametrize("name", SMALL)
def test_an_identity_has_a_derivation(name: str, deriver: Deriver) -> None:
    read_alike = readings(*[[e] for e in RIGHT[name]()])
    d = deriver.derive(["y"], read_alike.left, read_alike.right)
    assert d.reason == ""
    accepted = check(d.certificate, TEXTS)
    ((_, start, _, end),) = accepted.outputs
    encoder = Encoder(accepted.terms)
    assert (encoder.of(read_alike.left[0]), encoder.of(read_alike.right[0])) == (start, end)


@pytest.mark.parametrize("name", sorted(WRONG)[:4])
def test_what_is_wrong_is_left_to_be_proved_again_with_the_reason(name: str, deriver: Deriver) -> None:
    a, b = WRONG[name]()
    d = deriver.derive(["y"], [a], [b])
    assert "no schedule" in d.reason
    assert json.loads(d.certificate)["schema"] == REPLAY_SCHEMA
    with pytest.raises(CertificateError, match="not a prism"):
        check(d.certificate, TEXTS)


def test_each_output_has_a_budget_of_its_own(deriver: Deriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of a thousand regions has as many outputs to derive."""
    monkeypatch.setattr("prism.egraph.derivation.derive.MAX_TERMS", 30)
    pairs = [(read("x", M), const(float(n + 2))) for n in range(20)]
    names = [f"z{n}" for n in range(20)]
    found = deriver.derive(names, [mul(a, b) for a, b in pairs], [mul(b, a) for a, b in pairs])
    assert found.reason == ""
    assert len(check(found.certificate, TEXTS).outputs) == 20


def test_outputs_that_differ_by_the_names_of_tensors_are_derived_once(
    deriver: Deriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_for: list[Expr] = []
    find = Trials.find

    def counted(trials: Trials, left: Expr, *args: Any) -> Any:
        found_for.append(left)
        return find(trials, left, *args)

    monkeypatch.setattr(Trials, "find", counted)

    def sums(n: int) -> tuple[Expr, Expr]:
        # Of names that sort otherwise in each, and are those of others, too.
        a, b, c = (read(f"x{(n * k) % 7}", M) for k in (1, 2, 3))
        return mul(add(a, b), add(c, a)), mul(add(a, c), add(b, a))

    left, right = sums(1)
    one = deriver.derive(["z"], [left], [right])
    pairs = [sums(n) for n in (1, 2, 3, 5, 6)]
    found = deriver.derive([f"z{n}" for n in range(5)], [a for a, _ in pairs], [b for _, b in pairs])
    assert found.reason == ""
    assert len(found_for) == 2, "once for the one, and once for all five"
    accepted = check(found.certificate, TEXTS)
    assert [len(steps) for _, _, steps, _ in accepted.outputs] == [one.steps] * 5
    decoder = Decoder(accepted.terms)
    assert [(decoder.of(a), decoder.of(b)) for _, a, _, b in accepted.outputs] == pairs
    # A tensor that is read twice is another formula.
    deriver.derive(
        ["z", "w"], [sums(1)[0], mul(read("x", M), read("y", M))], [sums(1)[1], mul(read("y", M), read("x", M))]
    )
    assert len(found_for) == 4


def test_the_worker_derives_too(worker: Worker) -> None:
    a, b = RIGHT["same extents"]()
    d = worker.derive(["y"], [a], [b])
    assert check(d.certificate, TEXTS).outputs


def test_equal_runs_give_equal_bytes(deriver: Deriver) -> None:
    a, b = RIGHT["same extents"]()
    assert deriver.derive(["y"], [a], [b]).certificate == Deriver().derive(["y"], [a], [b]).certificate


# --- the checker ---------------------------------------------------------------------------------------------------


def test_the_checker_imports_the_standard_library_alone() -> None:
    for path in Path(prism.checker.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.startswith("prism.checker") or name.split(".")[0] in sys.stdlib_module_names, name


def test_the_checker_reads_every_rule_that_equates() -> None:
    assert set(RULES) == {r.name for r in load_rules(rule_files()).rules if r.ruleset != ANALYSIS}


def term(terms: Terms, expr: Expr) -> Term:
    return Encoder(terms).of(canonical_expr(expr))


K, J, M = axis_of(8, 0), axis_of(8, 1), axis_of(4, 0)


def test_a_factor_that_depends_on_the_axis_is_not_pulled_out() -> None:
    terms = Terms()
    inside, outside, a = (term(terms, e) for e in (read("s", K), read("s", M), read("x", M, K)))
    left, right = instance(RULES["sum-pull"], terms, {"k": "d8", "f": outside, "a": a})
    assert left.kids[0].kids == (a, outside)
    assert right.op == "Mul"
    with pytest.raises(GuardError, match="set-not-contains"):
        instance(RULES["sum-pull"], terms, {"k": "d8", "f": inside, "a": a})


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ("cancel-mul", add(mul(read("x", M), read("x", M)), const(1e-6)), read("x", M)),
        ("recip-recip", const(3.0), add(read("x", M), const(1.0))),
        ("cancel-add", read("x", M), const(float("-inf"))),
        ("exp-of-log", const(2.0), const(-2.0)),
    ],
)
def test_conditions_are_worked_out_from_the_term(rule: str, good: Expr, bad: Expr) -> None:
    terms = Terms()
    instance(RULES[rule], terms, {"a": term(terms, good)})
    with pytest.raises(GuardError):
        instance(RULES[rule], terms, {"a": term(terms, bad)})


def test_renaming_never_captures() -> None:
    terms = Terms()
    body = Encoder(terms).of(mul(read("x", K), read("y", J)))
    over_k, over_j = terms.make("Sum", "d8", (body,)), terms.make("Sum", "d8_1", (body,))
    assert not terms.same(over_k, over_j)
    swapped = terms.make("Sum", "d8_1", (canonical(terms, body, {"d8": "d8_1", "d8_1": "d8"}),))
    assert not terms.same(over_k, swapped)
    twice, other = terms.make("Sum", "d8_1", (over_k,)), terms.make("Sum", "d8", (over_j,))
    assert not terms.same(twice, other)
    renamed = terms.make(
        "Sum", "d8", (terms.make("Sum", "d8_1", (canonical(terms, body, {"d8": "d8_1", "d8_1": "d8"}),)),)
    )
    assert terms.same(twice, renamed)


# --- altered certificates ------------------------------------------------------------------------------------------


@cache
def sample() -> dict[str, Any]:
    """A certificate with all kinds of steps, in both directions."""
    i, k, j = M, K, J
    inv = recip(add(mul(reduce("sum", k, mul(read("x", i, k), read("x", i, k))), const(0.125)), const(1e-6)))
    a = reduce("sum", k, mul(mul(read("x", i, k), inv), mul(mul(const(2.0), read("w", k)), const(3.0))))
    b = mul(const(6.0), mul(inv, reduce("sum", k, mul(read("w", k), read("x", i, k)))))
    product = mul(reduce("sum", k, read("u", k)), reduce("sum", k, read("v", k)))
    joint = reduce("sum", k, reduce("sum", j, mul(read("u", k), read("v", j))))
    pairs = [canonical_expr(e) for e in (a, b, product, joint)]
    found = Deriver().derive(["y", "z"], pairs[::2], pairs[1::2])
    assert found.reason == ""
    body: dict[str, Any] = json.loads(found.certificate)
    return body


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def test_the_sample_has_all_kinds_of_steps() -> None:
    steps = [s for o in sample()["outputs"] for s in o["steps"]]
    assert {s["kind"] for s in steps} == {"rule", "rename", "constant"}
    assert {s["direction"] for s in steps if s["kind"] == "rule"} == {"forward", "backward"}
    assert check(encoded(sample()), TEXTS).outputs


Place = tuple[str | int, ...]


def leaves(value: Any, at: Place = ()) -> Iterator[Place]:
    """The places of all numbers and texts."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*at, key))
    else:
        yield at


def look(body: Any, place: Place) -> Any:
    for key in place:
        body = body[key]
    return body


def altered(place: Place, new: Any) -> dict[str, Any]:
    body = copy.deepcopy(sample())
    look(body, place[:-1])[place[-1]] = new
    return body


def another(value: Any, pool: list[Any]) -> st.SearchStrategy[Any]:
    """A value of the same kind that is not this one, mostly one that occurs elsewhere."""
    same = [v for v in pool if type(v) is type(value) and v != value]
    fresh: st.SearchStrategy[Any] = st.text("abk", min_size=1) if isinstance(value, str) else st.integers(0, 40)
    if isinstance(value, float):
        fresh = st.floats(-10, 10)
    return (st.sampled_from(same) | fresh if same else fresh).filter(lambda v: v != value)


@given(st.data())
def test_an_alteration_anywhere_is_rejected(data: st.DataObject) -> None:
    places = list(leaves(sample()))
    place = data.draw(st.sampled_from(places))
    body = altered(place, data.draw(another(look(sample(), place), [look(sample(), p) for p in places])))
    with pytest.raises(CertificateError):
        check(encoded(body), TEXTS)


@given(st.data())
def test_an_altered_step_is_rejected_though_the_digest_fits(data: st.DataObject) -> None:
    """Rule name, direction, positions, substitution, target; and the same with the digest made to fit."""
    places = [p for p in leaves(sample()) if p[0] == "outputs" and "steps" in p]
    place = data.draw(st.sampled_from(places))
    pool = [look(sample(), p) for p in places]
    if place[-1] == "rule":
        pool = list(RULES)
    body = altered(place, data.draw(another(look(sample(), place), pool)))
    body["sha256"] = digest(body)
    with pytest.raises(CertificateError, match=r"step|term|use"):
        check(encoded(body), TEXTS)


@given(st.data())
def test_an_altered_term_proves_nothing_about_the_same_formulas(data: st.DataObject) -> None:
    """With a digest made to fit, an altered table is rejected, or is openly about other formulas."""
    places = [p for p in leaves(sample()) if p[0] in ("terms", "axes", "rules")]
    place = data.draw(st.sampled_from(places))
    body = altered(place, data.draw(another(look(sample(), place), [look(sample(), p) for p in places])))
    body["sha256"] = digest(body)
    try:
        accepted = check(encoded(body), TEXTS)
    except CertificateError:
        return
    assume(place[0] != "rules")
    assert statement(accepted.terms, accepted.outputs) != original()


def statement(terms: Terms, outputs: Any) -> list[str]:
    decoder = Decoder(terms)
    return [f"{name}: {decoder.of(a)!r} = {decoder.of(b)!r}" for name, a, _, b in outputs]


def original() -> list[str]:
    accepted = check(encoded(sample()), TEXTS)
    return statement(accepted.terms, accepted.outputs)


def without_step(body: dict[str, Any]) -> None:
    del body["outputs"][0]["steps"][1]


def twice(body: dict[str, Any]) -> None:
    body["outputs"][0]["steps"].insert(0, body["outputs"][0]["steps"][0])


def swapped(body: dict[str, Any]) -> None:
    o = body["outputs"][0]
    o["reference"], o["denotation"] = o["denotation"], o["reference"]


def padded(body: dict[str, Any]) -> None:
    body["terms"].append(["Const", 17.0])


@pytest.mark.parametrize("change", [without_step, twice, swapped, padded])
def test_other_shapes_are_rejected(change: Callable[[dict[str, Any]], None]) -> None:
    body = copy.deepcopy(sample())
    change(body)
    body["sha256"] = digest(body)
    with pytest.raises(CertificateError):
        check(encoded(body), TEXTS)


def test_rules_that_are_not_those_that_were_cited_are_rejected() -> None:
    with pytest.raises(CertificateError, match=r"rule file field\.egg"):
        check(encoded(sample()), {**TEXTS, "field.egg": TEXTS["field.egg"] + b"\n"})


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"schema": "prism.derivation/1"}'])
def test_what_is_no_certificate_is_rejected(data: bytes) -> None:
    with pytest.raises(CertificateError):
        check(data, TEXTS)


# --- what is told of terms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "facts"),
    [
        (op("exp", read("x", M)), {"positive"}),
        # A root of a negative number is none, and neither positive nor of any sign.
        (op("sqrt", read("x", M)), set()),
        (add(op("sqrt", read("x", M)), const(1.0)), set()),
        (recip(mul(read("x", M), read("x", M))), set()),
        (op("maximum", op("log", read("x", M)), const(1.0)), set()),
        # exp of a masked score is a number; of a difference of two that may be masked it need not be.
        (op("exp", op("where", read("p", M), read("x", M), const(-math.inf))), {"nonneg"}),
        (op("exp", add(const(-math.inf), neg(op("where", read("p", M), read("x", M), const(-math.inf))))), set()),
        (op("exp", const(math.inf)), set()),
        (op("exp", op("log", read("x", M))), set()),
        (op("maximum", op("where", read("p", M), read("x", M), const(-math.inf)), const(1.0)), {"positive"}),
    ],
)
def test_what_may_be_no_number_has_no_sign(expr: Expr, facts: set[str]) -> None:
    found = term(Terms(), expr).facts
    assert facts <= found
    assert facts or not found & {"finite", "positive", "nonneg", "nonzero"}


def test_every_fact_holds_at_random_inputs() -> None:
    """The checker's facts, against values: no term that is told to be a number, or of a sign, is another one."""
    rng = np.random.default_rng(3)
    pool: list[Expr] = [read("x", M), read("y", M), *(const(c) for c in (-math.inf, -1.0, 0.0, 2.0, math.inf))]
    unary = ("exp", "log", "sqrt", "abs", "sigmoid", "tanh", "sin", "sign", "neg", "recip")
    binary = ("add", "mul", "maximum", "minimum")
    for _ in range(1500):
        name = str(rng.choice((*unary, *binary)))
        pool.append(op(name, *(pool[int(n)] for n in rng.integers(len(pool), size=1 + (name in binary)))))
    inputs = {n: np.array([-3.0, -0.5, 0.0, 0.7]) for n in ("x", "y")}
    inputs["y"] = rng.permutation(inputs["y"])
    terms = Terms()
    told = 0
    for e in pool:
        facts = Encoder(terms).of(e).facts
        with np.errstate(all="ignore"):
            values = np.asarray(evaluate_expr(e, inputs, {}, (M,)))
        if np.isinf(values).any() and np.abs(values[np.isfinite(values)]).max(initial=0.0) > 1e30:
            continue  # out of float64's range
        told += bool(facts)
        assert "finite" not in facts or np.isfinite(values).all() or _overflows(e, inputs), e
        assert "nonneg" not in facts or (values >= 0).all(), e
        assert "below" not in facts or (values < math.inf).all() or _overflows(e, inputs), e
        assert not {"positive", "nonzero"} & facts or (values != 0).all() or _overflows(e, inputs), e
    assert told > 300


def _overflows(e: Expr, inputs: dict[str, np.ndarray]) -> bool:
    """Whether a finite part of it is beyond float64, or exp of one is 0 there."""
    with np.errstate(all="ignore"):
        parts = [np.asarray(evaluate_expr(x, inputs, {}, tuple(free_axes(x)))) for x in walk(e)]
    sizes = [np.abs(p[np.isfinite(p)]) for p in parts]
    return any((s > 500).any() or ((s > 0) & (s < 1e-100)).any() for s in sizes)
