"""The identity test: true identities agree, wrong ones do not, and what it cannot tell it does not tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from egraph_identities import RIGHT, WRONG, Pair, both
from egraph_workloads import axis, gelu, silu
from hypothesis import given, settings
from hypothesis import strategies as st
from identities_common import EQUAL, SMALL, Sizes
from identities_false import FALSE
from identities_true import TRUE
from quick import examples
from report_samples import artifacts
from rich.console import Console

from prism.api import load
from prism.api.region_search import SearchBudget, run_search
from prism.api.second_opinion import SecondOpinions, merged, opinion_of, recorded, with_opinion
from prism.cost.device import device
from prism.egraph.prove.equality import examine
from prism.egraph.prove.matching import named, whole
from prism.egraph.worker import Worker
from prism.errors import ExitCode, VerificationError
from prism.events import Recorder
from prism.program.build import add, const, div, mean, mul, neg, op, position, read, recip, reduce, sub
from prism.program.constants import readings
from prism.program.extents import symbol
from prism.program.identity.constants import Meaning, meanings
from prism.program.identity.field import PRIMES, Field, Numbers
from prism.program.identity.sample import Sample, bindings
from prism.program.identity.testing import Opinion, Outcome, compare, degree
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, Map, Program, SymbolRange, Tensor
from prism.program.verdict import Status, Verdict
from prism.report.html import render_html
from prism.report.table import print_summary
from prism.sgraph.denote import Denotation

MODELS = Path(__file__).parent.parent / "examples" / "models"
M, K, N, J = axis(8), axis(256), axis(512), axis(96)


def x(k: Axis = K) -> Expr:
    return read("x", M, k)


def g(k: Axis = K) -> Expr:
    return read("g", k)


def total(k: Axis, body: Expr) -> Expr:
    return reduce("sum", k, body)


def exp(e: Expr) -> Expr:
    return op("exp", e)


def log(e: Expr) -> Expr:
    return op("log", e)


def log_sum_exp(k: Axis) -> Expr:
    top = reduce("max", k, x(k))
    return add(top, log(total(k, exp(sub(x(k), top)))))


def rms(v: Expr, eps_outside: bool = False) -> Expr:
    if eps_outside:
        return mul(x(), recip(add(op("sqrt", v), const(1e-3))))
    return mul(x(), recip(op("sqrt", add(v, const(1e-3)))))


def masked(above: Callable[[Expr, Expr], Expr]) -> Expr:
    s = op("where", above(position(J), position(M)), read("s", M, J), const(-math.inf))
    return div(total(J, mul(exp(s), read("v", J))), total(J, exp(s)))


def less(strict: bool) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: op("lt" if strict else "le", a, b)


SQUARES = mul(x(), x())

MORE_RIGHT: Mapping[str, Callable[[], Pair]] = {
    "sqrt of a square": lambda: both(op("sqrt", SQUARES), op("abs", x())),
    "L1 norm": lambda: both(total(K, op("sqrt", SQUARES)), total(K, op("maximum", x(), neg(x())))),
    "root of a square of a sum": lambda: both(op("sqrt", mul(add(x(), g()), add(x(), g()))), op("abs", add(x(), g()))),
    "root of a sum that is a square": lambda: both(
        op("sqrt", add(mul(x(), x()), mul(const(2.0), mul(x(), g())), mul(g(), g()))), op("abs", add(x(), g()))
    ),
    "half power": lambda: both(op("pow", mean(K, SQUARES), const(-0.5)), recip(op("sqrt", mean(K, SQUARES)))),
    "log of a product": lambda: both(
        log(mul(exp(x()), add(exp(g()), exp(x())))), add(x(), log(add(exp(g()), exp(x()))))
    ),
    "log-sum-exp without max": lambda: both(log_sum_exp(K), log(total(K, exp(x())))),
    "softmax by log-sum-exp": lambda: both(div(exp(x()), total(K, exp(x()))), exp(sub(x(), log_sum_exp(K)))),
    "mean of logarithms": lambda: both(
        mean(K, log(add(exp(x()), exp(g())))),
        add(mean(K, x()), mean(K, log(add(const(1.0), exp(sub(g(), x())))))),
    ),
    "exponential of a softmax": lambda: both(
        exp(div(exp(x()), total(K, exp(x())))), exp(mul(recip(total(K, exp(x()))), exp(x())))
    ),
    "erf is odd": lambda: both(op("erf", sub(x(), g())), neg(op("erf", sub(g(), x())))),
    "cos is even": lambda: both(op("cos", sub(x(), g())), op("cos", sub(g(), x()))),
    "min by max": lambda: both(reduce("min", K, x()), neg(reduce("max", K, neg(x())))),
    "product of exponentials": lambda: both(reduce("prod", K, exp(x())), exp(total(K, x()))),
    "constants multiplied": lambda: both(
        mul(const(0.7978845608), add(x(), mul(const(0.044715), g()))),
        add(mul(const(0.7978845608), x()), mul(const(0.7978845608 * 0.044715), g())),
    ),
    "length of an axis": lambda: both(
        total(K, sub(x(), read("u", M))), sub(total(K, x()), mul(const(256.0), read("u", M)))
    ),
}

MORE_WRONG: Mapping[str, Callable[[], Pair]] = {
    "last element dropped": lambda: both(total(K, x()), total(axis(255), x(axis(255)))),
    "eps outside the root": lambda: both(rms(mean(K, SQUARES)), rms(mean(K, SQUARES), eps_outside=True)),
    "another eps": lambda: both(rms(mean(K, SQUARES)), rms(add(mean(K, SQUARES), const(1e-5)))),
    "unbiased variance": lambda: both(mean(K, SQUARES), div(total(K, SQUARES), const(255.0))),
    "sign": lambda: both(sub(x(), g()), add(x(), g())),
    "operands of a difference exchanged": lambda: both(sub(x(), g()), sub(g(), x())),
    "gate exchanged with up": lambda: both(mul(silu(x()), read("y", M, K)), mul(x(), silu(read("y", M, K)))),
    "equal axes exchanged": lambda: both(
        total(K, mul(read("a", M, K), read("b", K, axis(8, 1)))),
        total(K, mul(read("a", axis(8, 1), K), read("b", K, M))),
    ),
    "mask off by one": lambda: both(masked(less(False)), masked(less(True))),
    "mask the other way round": lambda: both(masked(less(False)), masked(lambda a, b: op("le", b, a))),
    "another head of the group": lambda: both(
        read("k", Index.axis(axis(4)), K), read("k", Index.axis(axis(4)).scaled(1) + 1, K)
    ),
    "log of a sum": lambda: both(log(add(exp(x()), exp(g()))), add(x(), g())),
    "max not added back": lambda: both(log_sum_exp(K), sub(log_sum_exp(K), reduce("max", K, x()))),
    "mean of logarithms by n-1": lambda: both(
        mean(K, log(add(exp(x()), exp(g())))), div(total(K, log(add(exp(x()), exp(g())))), const(255.0))
    ),
    "exponential of a softmax, not divided": lambda: both(exp(div(exp(x()), total(K, exp(x())))), exp(exp(x()))),
    "gelu by sigmoid": lambda: both(gelu(x()), mul(x(), op("sigmoid", mul(const(1.702), x())))),
    "erf is even": lambda: both(op("erf", sub(x(), g())), op("erf", sub(g(), x()))),
    "max for min": lambda: both(reduce("max", K, x()), reduce("min", K, x())),
    "floor for round": lambda: both(op("floor", mul(const(50.0), x())), op("round", mul(const(50.0), x()))),
    "another slice": lambda: both(read("x", M, Index.axis(K) + 3), read("x", M, Index.axis(K) + 2)),
}

# Each side is undefined at inputs of its own, and they are equal where both are not: the refuter's, not the tester's.
DOMAINS = {"(xy)^p = x^p y^p", "sqrt(xy) = sqrt x sqrt y"}


@pytest.mark.parametrize("name", [*RIGHT, *MORE_RIGHT])
def test_a_true_identity_agrees(name: str) -> None:
    a, b = RIGHT[name]() if name in RIGHT else MORE_RIGHT[name]()
    for seed in range(3):
        known = readings([a], [b])
        opinion = compare(known.left, known.right, seed=seed)
        assert opinion.outcome is not Outcome.DISAGREE, opinion
        if name != "root of a sum that is a square":
            assert opinion.outcome is Outcome.AGREE, opinion
            assert opinion.rounds > 1


@pytest.mark.parametrize("name", [n for n in (*WRONG, *MORE_WRONG) if n not in DOMAINS])
def test_a_wrong_identity_disagrees(name: str) -> None:
    a, b = WRONG[name]() if name in WRONG else MORE_WRONG[name]()
    for seed in range(2):
        opinion = compare([a], [b], seed=seed)
        assert opinion.outcome is Outcome.DISAGREE, opinion
        assert "against" in opinion.where
        assert "=" in opinion.inputs


# They differ at single points: at 0, at halves, at ties. Random residues are none of these.
SINGLE_POINTS = {"sign of zero", "rounded half", "top by value"}


@pytest.mark.parametrize("sizes", [SMALL, EQUAL], ids=["small", "equal"])
def test_the_identities_of_the_models(sizes: Sizes) -> None:
    """The prover's own: none that is true is called wrong, and those that are wrong are found."""
    agreed = 0
    for name, identity in TRUE.items():
        _, a, b = identity(sizes)
        opinion = compare([a], [b])
        assert opinion.outcome is not Outcome.DISAGREE, f"{name}: {opinion}"
        agreed += opinion.outcome is Outcome.AGREE
    assert agreed > 0.9 * len(TRUE)
    for name, identity in FALSE.items():
        _, a, b = identity(sizes)
        opinion = compare([a], [b])
        assert opinion.outcome is Outcome.DISAGREE or name in SINGLE_POINTS, f"{name}: {opinion}"


@pytest.mark.parametrize("name", sorted(DOMAINS))
def test_undefined_numbers_are_compared_with_nothing(name: str) -> None:
    a, b = WRONG[name]()
    assert compare([a], [b]).outcome is Outcome.AGREE


def test_a_root_of_a_sum_may_have_another_sign_than_the_real_one() -> None:
    # Here residues differ in a true identity; the shadows save it, and the answer is no answer.
    opinion = compare(*([e] for e in MORE_RIGHT["root of a sum that is a square"]()))
    assert opinion.outcome is Outcome.NOT_APPLICABLE
    assert "roots stand beside choices by sign" in str(opinion)


def test_equal_seeds_give_equal_opinions() -> None:
    a, b = RIGHT["division past values"]()
    assert compare([a], [b], seed=3) == compare([a], [b], seed=3)
    wrong = WRONG["gain dropped"]()
    assert compare([wrong[0]], [wrong[1]], seed=3) == compare([wrong[0]], [wrong[1]], seed=3)


def test_the_bound_is_that_of_schwartz_and_zippel() -> None:
    a, b = RIGHT["linear attention"]()
    opinion = compare([a], [b])
    assert opinion.bound == pytest.approx(3 / PRIMES[0], rel=1e-6)
    assert f"error at most {opinion.bound:.1e} a round" in str(opinion)
    assert "no bound known" in str(compare([exp(x())], [exp(x())]))
    integers = [Tensor("x", (8, 256), DType.INT32)]
    assert compare([SQUARES], [SQUARES], tensors=integers).bound is None


def test_degrees() -> None:
    def of(e: Expr) -> tuple[int, int] | None:
        return degree(e, lambda a: 3, lambda a: 256)

    assert of(x()) == (1, 0)
    assert of(div(x(), g())) == (1, 1)
    assert of(add(div(x(), g()), x())) == (2, 1)
    assert of(total(K, div(x(), g()))) == (3, 3)
    assert of(op("pow", x(), const(-3.0))) == (0, 3)
    assert of(reduce("prod", K, x())) == (256, 0)
    assert of(op("where", op("le", position(J), position(M)), SQUARES, const(0.0))) == (2, 0)
    assert of(op("where", op("le", x(), g()), SQUARES, const(0.0))) is None
    assert of(exp(x())) is None


def test_what_is_outside_the_model_is_named() -> None:
    deep = x()
    for _ in range(len(PRIMES)):
        deep = exp(deep)
    opinion = compare([deep], [deep])
    assert opinion.outcome is Outcome.NOT_APPLICABLE
    assert "nested deeper" in str(opinion)
    sines = [add(mul(op(f, x()), op(f, x())), const(0.0)) for f in ("sin", "cos")]
    opinion = compare([add(*sines)], [const(1.0)])
    assert opinion.outcome is Outcome.NOT_APPLICABLE
    assert "sin is a random function" in str(opinion)
    assert opinion.rounds == 0
    declared = Map("softcap", (add(x(), g()),))
    assert compare([declared], [Map("softcap", (add(g(), x()),))]).outcome is Outcome.AGREE
    assert compare([declared], [Map("softcap", (sub(g(), x()),))]).outcome is Outcome.NOT_APPLICABLE


def test_a_sum_in_pieces_is_not_called_wrong() -> None:
    # Samples of axes of different lengths do not add up to one another: all elements are taken instead.
    first, rest = Axis("f", 100), Axis("r", 156)
    pieces = add(total(first, x(first)), total(rest, read("x", M, Index.axis(rest) + 100)))
    assert compare([total(K, x())], [pieces]).outcome is Outcome.AGREE
    short = add(total(first, x(first)), total(rest, read("x", M, Index.axis(rest) + 99)))
    assert compare([total(K, x())], [short]).outcome is Outcome.DISAGREE


def test_a_selected_element_counts_once() -> None:
    a, b = Axis("a", 96), Axis("b", 96)
    chosen = total(a, op("where", op("eq", position(a), position(b)), read("x", a), const(0.0)))
    assert compare([chosen], [read("x", b)]).outcome is Outcome.AGREE
    assert compare([chosen], [mul(const(2.0), read("x", b))]).outcome is Outcome.DISAGREE


# The pieces


def test_the_chain_of_primes() -> None:
    for p in PRIMES:
        assert all(p % d for d in range(2, int(p**0.5) + 1))
        assert p % 8 == 7
        assert all(pow(s, (p - 1) // 2, p) == 1 for s in (2, 3, 5, 7))
        assert p < 1 << 31
    assert all((p - 1) % q == 0 for p, q in pairwise(PRIMES))


@given(st.integers(0, 1000))
@settings(max_examples=examples(10, 20), deadline=None)
def test_the_laws_of_the_field(seed: int) -> None:
    field = Field(3, 8, seed)
    a, b = (field.drawn(np.array([2 * seed + n], dtype=np.uint64), 1.0) for n in range(2))

    def same(p: Numbers, q: Numbers) -> bool:
        known = p.d & q.d
        return bool(known.any() and (~known | (p.f == q.f)).all())

    with np.errstate(all="ignore"):
        assert same(field.exp(field.add(a, b)), field.mul(field.exp(a), field.exp(b)))
        assert same(field.mul(a, field.recip(a)), field.integers(np.ones(1, dtype=np.int64)))
        assert same(field.exp(field.log(field.exp(a))), field.exp(a))
        square = field.mul(a, a)
        assert same(field.mul(field.sqrt(square), field.sqrt(square)), square)
        positive = field.where(field.less(a, field.neg(a), False), field.neg(a), a)
        assert same(field.sqrt(square), positive)
        rooted = field.sqrt(field.mul(square, positive))
        assert same(rooted, field.mul(field.sqrt(square), field.sqrt(positive)))
        f, d, r = (np.stack([p, q], axis=2) for p, q in ((a.f, b.f), (a.d, b.d), (a.r, b.r)))
        top = field.largest(Numbers(f, d, r), 2)
        assert same(top, field.where(field.less(a, b, False), b, a))


@pytest.mark.parametrize(
    ("c", "meaning"),
    [
        (1e-5, Meaning(Fraction(1, 100000))),
        (1 / 768, Meaning(Fraction(1, 768))),
        (1 / 14336, Meaning(Fraction(1, 14336))),
        (1 / (2**24 - 1), Meaning(Fraction(1, 2**24 - 1))),
        (1.0000001e-06, Meaning(Fraction(10000001, 10**13))),
        (-2.0, Meaning(Fraction(-2))),
        (128**-0.5, Meaning(Fraction(1), Fraction(1, 128))),
    ],
)
def test_constants_are_what_they_stand_for(c: float, meaning: Meaning) -> None:
    assert meanings([c], [])[c] == meaning


def test_close_constants_are_one_and_others_are_not() -> None:
    known = meanings([1e-6, math.pi], [1e-6 * (1 + 1e-15), math.pi * 4096, 1e-6 * 4096, 1.0000001e-6])
    assert known[1e-6 * (1 + 1e-15)] == known[1e-6]
    assert known[1.0000001e-6] != known[1e-6]
    assert known[math.pi].guessed
    assert known[math.pi * 4096].coefficient == 4096 * known[math.pi].coefficient
    assert known[1e-6 * 4096] == Meaning(Fraction(4096, 10**6))
    assert Meaning(Fraction(1), Fraction(-1)).residue(PRIMES[0]) is None


def test_samples_have_the_length_of_their_axis() -> None:
    part, rest = symbol("S"), symbol("R")
    (binding,) = bindings(["R", "S"], {}, {512: (part, rest)})
    assert binding["S"] * binding["R"] == 512
    for points in (2, 3, 1 << 40):
        sample = Sample(binding, {512: (part, rest)}, points, 1)
        for extent in (1, 2, 4, 7, 96, 512, rest):
            of = sample.of(Axis("a", extent))
            assert of.weights.sum() == sample.size(extent)
            assert (of.weights >= 1).all()
            assert (np.diff(of.values) > 0).all()
            assert of.values[0] >= 0
            assert of.values[-1] < sample.size(extent)
    whole, inner = Sample(binding, {512: (part, rest)}, 3, 1), binding["R"]
    firsts, lasts = (whole.of(Axis("a", e)).values.tolist() for e in (part, rest))
    assert whole.of(Axis("a", 512)).values.tolist() == [inner * p + r for p in firsts for r in lasts]


def test_symbols_are_bound_within_their_ranges() -> None:
    chosen = bindings(["a", "b"], {"b": SymbolRange(16, 64, 32)}, {})
    assert {len(set(c.values())) for c in chosen} == {2}
    assert all(16 <= c["b"] <= 64 for c in chosen)
    assert any(len(set(c.values())) == 1 for c in bindings(["a", "b"], {}, {}))


# Beside the prover


@pytest.mark.parametrize("name", ["lora", pytest.param("gqa_decode", marks=pytest.mark.slow), "rmsnorm_linear"])
def test_every_sgraph_of_an_example_agrees(name: str, worker: Worker) -> None:
    program = load(MODELS / f"{name}.onnx")
    found = run_search(program, device("sm_90"), SearchBudget(max_sgraphs=8), worker, Recorder())
    second = SecondOpinions(program, found.formulas)
    assert found.proved
    for p in found.proved:
        assert p.opinion is not None
        assert second.of(p.sgraph, p.denotation) == p.opinion
        assert p.opinion.outcome is Outcome.AGREE
        assert "no bound known" in str(p.opinion) or "error at most" in str(p.opinion)
    best = found.proved[0]
    broken = Denotation(tuple(mul(const(1.001), e) for e in best.denotation.outputs), best.denotation.split)
    assert opinion_of([f.expr for f in found.formulas], broken, program.inputs, {}).outcome is Outcome.DISAGREE


def test_a_disagreement_stops_the_run_and_writes_a_report(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path))
    program = load(MODELS / "mul_silu.onnx")
    found = run_search(program, device("sm_90"), SearchBudget(max_sgraphs=1), worker, Recorder())
    proved, *_ = found.proved  # and the form as written, which comes besides the bound
    wrong = Denotation(tuple(neg(e) for e in proved.denotation.outputs), ())
    with pytest.raises(VerificationError) as raised:
        SecondOpinions(program, found.formulas).of(proved.sgraph, wrong)
    assert raised.value.exit_code == ExitCode.VERIFICATION_FAILED
    (report,) = (tmp_path / "bug-reports").iterdir()
    assert str(report) in raised.value.fix
    text = report.read_text()
    for part in (str(program), raised.value.why, "field.egg", "# sGraph", "# denotation", "# drawn"):
        assert part in text
    assert f"{program.inputs[0].name}[" in text


def test_a_search_stops_where_the_tester_disagrees(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every proved sGraph is tested, not those alone that are emitted."""
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path))
    program = load(MODELS / "mul_silu.onnx")
    wrong = Opinion(Outcome.DISAGREE, 1, 1, None, (), "output 0 at [i=0]: 1 against 2", "x[0] = 1")
    with monkeypatch.context() as patch:
        patch.setattr("prism.api.second_opinion.opinion_of", lambda *_, **__: wrong)
        with pytest.raises(VerificationError, match="the prover and the identity test disagree"):
            run_search(program, device("sm_90"), SearchBudget(max_sgraphs=2), worker, Recorder())
        assert len(list((tmp_path / "bug-reports").iterdir())) == 1


def test_verdicts_on_programs_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRISM_CACHE_DIR", str(tmp_path))
    a, b = load(MODELS / "mul_silu.onnx"), load(MODELS / "add_silu.onnx")
    proved = Verdict(Status.PROVED, "one e-class")
    same, apart = (whole(named(a, x)) for x in (a, _as(b, a)))
    alike, unlike = (replace(e, parts=((e, m),)) for m in (same, apart) for e in (examine(m),))
    said = with_opinion(replace(alike, verdict=proved))
    assert said.status is Status.PROVED
    assert said.reason.startswith("one e-class; identity test: 16 rounds")
    assert "agree" in said.reason
    refuted = Verdict(Status.REFUTED, "y differs")
    assert with_opinion(replace(alike, verdict=refuted)) is refuted
    unknown = with_opinion(replace(unlike, verdict=Verdict(Status.UNKNOWN, "out of nodes")))
    assert "disagree at" in unknown.reason
    with pytest.raises(VerificationError, match="disagree"):
        with_opinion(replace(unlike, verdict=proved))
    assert list((tmp_path / "bug-reports").iterdir())


def _as(b: Program, a: Program) -> Program:
    """The program with as many inputs, of the same names, as the other one has."""
    assert [t.shape for t in a.inputs] == [t.shape for t in b.inputs]
    return replace(b, ranges=a.ranges)


def test_the_opinions_on_regions_are_one() -> None:
    one = Opinion(Outcome.AGREE, 16, 100, 1e-9)
    other = Opinion(Outcome.AGREE, 9, 50, 1e-8)
    assert merged([one, other]) == Opinion(Outcome.AGREE, 9, 150, 1e-8)
    unbounded = merged([one, replace(other, bound=None)])
    assert unbounded is not None
    assert unbounded.bound is None
    none = Opinion(Outcome.NOT_APPLICABLE, 0, 0, None, ("too deep",))
    weakest = merged([one, none])
    assert weakest is not None
    assert weakest.outcome is Outcome.NOT_APPLICABLE
    assert merged([None]) is None


def test_the_report_shows_the_opinion() -> None:
    opinion = Opinion(Outcome.AGREE, 16, 100, 1e-9)
    made = recorded(artifacts(), opinion)
    assert (
        made.proof.identity == made.report.identity == "identity test: 16 rounds, error at most 1.0e-09 a round, agree"
    )
    assert made.report.identity in render_html(made.report, made.proof)
    console = Console(width=200)
    with console.capture() as shown:
        print_summary(made.report, console)
    assert made.report.identity in shown.get()
