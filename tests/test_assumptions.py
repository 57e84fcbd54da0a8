"""What a user states of inputs: what is proved under it, and what is not without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import prism
from prism.cli.app import main
from prism.errors import ExitCode, UsageError
from prism.program.assumptions import read_assumptions, values_of
from prism.program.build import op, read
from prism.program.formulas import LARGEST_POWER
from prism.program.index import Axis
from prism.program.nodes import Const, DType, Expr, Map, walk
from prism.program.sign_analysis import Facts
from prism.program.stated import Assumption
from prism.program.verdict import Status

POSITIVE = torch.rand(4, 5) + 0.25


def sixth_over_fourth(a: torch.Tensor) -> torch.Tensor:
    return torch.pow(a, 6) / torch.pow(a, 4)


SIMPLER: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], str]] = {
    "exp(log a)": (lambda a: torch.exp(torch.log(a)), lambda a: a * 1.0, "> 0"),
    "a^6/a^4": (sixth_over_fourth, lambda a: a * a, "> 0"),
    "a^6/a^4 where not 0": (sixth_over_fourth, lambda a: a * a, "!= 0"),
    "a/a": (lambda a: a / a, lambda a: a * 0 + 1, "!= 0"),
    "sqrt a^2": (lambda a: torch.sqrt(a * a), lambda a: a * 1.0, ">= 0"),
    "a/sqrt a": (lambda a: a / torch.sqrt(a), torch.sqrt, "> 0"),
    "a/sqrt a in a range": (lambda a: a / torch.sqrt(a), torch.sqrt, "in [0.25, 2]"),
    "sign a": (lambda a: torch.sign(a), lambda a: a * 0 + 1, "> 0"),
    "log of a multiple": (lambda a: torch.log(3.0 * a), lambda a: torch.log(a) + math.log(3.0), "> 0"),
    "log of a quotient": (lambda a: torch.log(0.7 / a), lambda a: math.log(0.7) - torch.log(a), "> 0"),
    "a^.3 a^.7": (lambda a: a**0.3 * a**0.7, lambda a: a * 1.0, ">= 0"),
    "a root of a cube": (lambda a: (a**3) ** (1 / 3), lambda a: a * 1.0, "> 0"),
    "log of a power": (lambda a: torch.log(a**0.3), lambda a: 0.3 * torch.log(a), "> 0"),
    "a power of any number": (lambda a: a ** a.sum(), lambda a: torch.exp(a.sum() * torch.log(a)), "> 0"),
    "a geometric mean": (lambda a: a.prod(-1) ** 0.2, lambda a: torch.exp(torch.log(a).mean(-1)), "> 0"),
    "a cross-entropy": (
        lambda a: torch.nn.functional.binary_cross_entropy(a, a.round()),
        lambda a: -(a.round() * torch.log(a) + (1 - a.round()) * torch.log(1 - a)).mean(),
        "in [0.01, 0.99]",
    ),
    "a norm's clamp": (
        lambda a: a / a.sum(-1, keepdim=True).clamp(min=1e-12),
        lambda a: a / a.sum(-1, keepdim=True),
        ">= 0.1",
    ),
    "any by a product": (lambda a: a.amax(-1), lambda a: 1 - (1 - a).prod(-1), "in {0, 1}"),
    "any by a sum": (lambda a: a.amax(-1), lambda a: (a.sum(-1) > 0).float(), "in {0, 1}"),
    "all by a product": (lambda a: a.amin(-1), lambda a: a.prod(-1), "in {0, 1}"),
    "log of a product": (lambda a: torch.log(a * a), lambda a: torch.log(a) + torch.log(a), "> 0"),
}


@pytest.mark.parametrize("name", SIMPLER)
def test_simplifies_where_it_is_stated_and_only_there(name: str) -> None:
    f, g, stated = SIMPLER[name]
    example = (POSITIVE > 0.7).float() if "{" in stated else POSITIVE / 2 if "0.99" in stated else POSITIVE
    under = prism.prove(f, g, (example,), assume={"a": stated})
    assert under.status is Status.PROVED, under.reason
    assert f"a {stated}" in under.assumptions
    without = prism.prove(f, g, (example,))
    assert without.status is not Status.PROVED, without.reason


NEAR: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], str]] = {
    "another multiple": (lambda a: torch.log(2.5 * a), lambda a: torch.log(a) + 2.5, "> 0"),
    "another power": (lambda a: a**0.3 * a**0.6, lambda a: a * 1.0, "> 0"),
    "another mean": (lambda a: a.prod(-1) ** 0.25, lambda a: torch.exp(torch.log(a).mean(-1)), "> 0"),
    "between 0 and 1": (lambda a: a.amax(-1), lambda a: 1 - (1 - a).prod(-1), "in [0, 1]"),
    "all for any": (lambda a: a.amax(-1), lambda a: 1 - a.prod(-1), "in {0, 1}"),
}


@pytest.mark.parametrize("name", NEAR)
def test_what_is_near_is_refuted(name: str) -> None:
    f, g, stated = NEAR[name]
    example = (POSITIVE > 0.7).float() if "{" in stated else POSITIVE.clamp(max=1.0)
    assert prism.prove(f, g, (example,), assume={"a": stated}).status is Status.REFUTED


def test_powers_of_one_base_are_added_wherever_they_overflow() -> None:
    verdict = prism.prove(
        lambda x, a, b: x**a * x**b,
        lambda x, a, b: x ** (a + b),
        (POSITIVE, POSITIVE - 0.5, POSITIVE),
        assume=["x > 0"],
    )
    assert verdict.status is Status.PROVED


def test_a_factor_that_may_be_zero_leaves_a_maximum() -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).amax(-1, keepdim=True)

    def after(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.amax(-1, keepdim=True) * y

    given = (torch.randn(4, 5), POSITIVE[:, :1])
    assert prism.prove(scaled, after, given, assume=["y >= 0"])
    assert prism.prove(scaled, after, given).status is Status.REFUTED


CAUSAL = torch.ones(8, 8, dtype=torch.bool).tril()


def by_infinity(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return s.masked_fill(~CAUSAL, -math.inf).softmax(-1) @ v


def added(number: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda s, v: (s + torch.where(CAUSAL, 0.0, number)).softmax(-1) @ v


def filled(number: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda s, v: s.masked_fill(~CAUSAL, number).softmax(-1) @ v


SCORES = (torch.rand(8, 8), torch.randn(8, 3))


@pytest.mark.parametrize("masked", [added, filled])
@pytest.mark.parametrize("number", [-1e9, -1e4, -65504.0])
def test_a_mask_by_a_number_is_one_where_ranges_say_so(masked: Callable[..., Any], number: float) -> None:
    within = prism.prove(masked(number), by_infinity, SCORES, assume=["s in [-50, 50]"])
    assert within.status is Status.PROVED
    assert any(f"a mask of {number:g} hides counts as masked" in c for c in within.assumptions)
    anywhere = prism.prove(masked(number), by_infinity, SCORES)
    assert anywhere.status is Status.UNKNOWN
    assert f"they are equal where it is stated that what a mask of {number:g} hides" in anywhere.reason
    far = prism.prove(masked(number), by_infinity, SCORES, assume=[f"s in [{number}, {-number}]"])
    assert far.status is not Status.PROVED


def test_a_mask_by_a_number_of_other_places_is_refuted() -> None:
    later = lambda s, v: s.masked_fill(~CAUSAL.roll(1, 0), -1e9).softmax(-1) @ v  # noqa: E731
    assert prism.prove(later, by_infinity, SCORES, assume=["s in [-50, 50]"]).status is Status.REFUTED
    soft = prism.prove(added(-10.0), by_infinity, SCORES, assume=["s in [-1, 1]"])
    assert soft.status is Status.REFUTED


def test_a_row_that_a_number_hides_is_no_row_without_elements() -> None:
    def numbers(s: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return (s + (1 - m) * -1e9).softmax(-1)

    def infinities(s: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return s.masked_fill(m == 0, -math.inf).softmax(-1)

    given = (SCORES[0], torch.ones(8, 8))
    verdict = prism.prove(numbers, infinities, given, assume=["s in [-50, 50]", "m in {0, 1}"])
    assert verdict.status is Status.REFUTED


def test_softplus_is_its_formula_but_for_rounding() -> None:
    x = (torch.randn(4, 5),)
    softplus = torch.nn.functional.softplus
    verdict = prism.prove(softplus, lambda x: torch.log1p(torch.exp(x)), x)
    assert verdict.status is Status.PROVED
    assert any("softplus" in c for c in verdict.assumptions)
    assert not any("softplus" in c for c in prism.prove(softplus, lambda x: softplus(x) * 1.0, x).assumptions)
    near = prism.prove(lambda x: softplus(x, threshold=2.0), lambda x: torch.log1p(torch.exp(x)), x)
    assert near.status is Status.REFUTED


def test_wrong_is_refuted_by_inputs_that_are_as_stated() -> None:
    verdict = prism.prove(lambda a: torch.abs(a), lambda a: -a, (POSITIVE,), assume=["a > 0"])
    assert verdict.status is Status.REFUTED
    assert (np.asarray(verdict.counterexample["a"]) > 0).all()
    assert "a > 0" in verdict.reason


def test_what_differs_elsewhere_alone_is_not_refuted() -> None:
    within = prism.prove(lambda a: a.clamp(max=3.0), lambda a: a * 1.0, (POSITIVE,), assume=["a in [0, 2]"])
    assert within.status is not Status.REFUTED, within.reason
    beyond = prism.prove(lambda a: a.clamp(max=3.0), lambda a: a * 1.0, (POSITIVE,), assume=["a in [0, 4]"])
    assert beyond.status is Status.REFUTED
    found = np.asarray(beyond.counterexample["a"])
    assert 3 < found.max() <= 4
    assert found.min() >= 0


def test_cross_entropy_is_its_one_hot_form_where_labels_are_in_range() -> None:
    """Elsewhere it is not: what is labelled -100 is left out of the mean."""
    functional = torch.nn.functional
    verdict = prism.prove(
        lambda x, t: functional.cross_entropy(x, t),
        lambda x, t: -(functional.one_hot(t, 4) * x.log_softmax(-1)).sum(-1).mean(),
        (torch.randn(3, 4), torch.tensor([0, 3, 1])),
        assume=["t in [0, 3]"],
    )
    assert verdict.status is Status.PROVED


def test_a_range_is_read_as_it_is_written() -> None:
    one = prism.program.assumptions.read_assumptions(["0 <= t < 4", "1 >= u", "-1 < v <= 2.5"])
    assert {n: str(a) for n, a in one.items()} == {"t": "in [0, 4)", "u": "<= 1", "v": "in (-1, 2.5]"}


def test_zero_or_one() -> None:
    mask = (torch.rand(4, 5) > 0.5).float()
    assert prism.prove(lambda m: m * m, lambda m: m * 1.0, (mask,), assume=["m in {0, 1}"])
    assert prism.prove(lambda m: m * m, lambda m: m * 1.0, (mask,)).status is Status.REFUTED


def test_inputs_of_other_names_are_matched_by_place() -> None:
    assert prism.prove(
        lambda a, b: b * torch.exp(torch.log(a)), lambda x, y: x * y, (POSITIVE, POSITIVE), assume=["a > 0"]
    )


@pytest.mark.parametrize(
    ("assume", "what"),
    [
        (["c > 0"], "no input"),
        (["a > 0", "a < 0"], "no number"),
        (["a != 0", "a in [0, 0]"], "no number"),
        (["a in {0, 1}", "a > 1"], "no number"),
        (["a is nice"], "states nothing"),
        (["a != 3"], "states nothing"),
        (["0 < a is nice"], "states nothing"),
        (["2 < a < 1"], "no number"),
        (["a > 1"], "an example of a is not > 1"),
    ],
)
def test_refuses(assume: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        prism.prove(lambda a: a * 1.0, lambda a: a + 0.0, (POSITIVE * 0.5,), assume=assume)


STATED = (
    "> 0",
    ">= 0",
    "< 2",
    "<= -1",
    "!= 0",
    "in [0, 1]",
    "in (0, 1]",
    "in [-1, 2)",
    "in (-1, 1)",
    "in {0, 1}",
    "> 1.5",
)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32])
@pytest.mark.parametrize("text", STATED)
def test_formula_has_the_values_that_are_stated_and_no_others(text: str, dtype: DType) -> None:
    held = read_assumptions({"x": text})["x"]
    rng = np.random.default_rng(0)
    y = np.concatenate([[0.0], rng.standard_normal(500), 4 * rng.standard_normal(500)])
    if not dtype.is_float:
        y, held = np.round(y), held.whole() if not held.truth else held
        if held.empty:
            pytest.fail("each has whole numbers")
    x = values_of(held, dtype, y)
    assert held.holds(x).all()
    if not dtype.is_float:
        assert {int(n) for n in range(-4, 5) if held.holds(np.array(float(n)))} <= set(x)
        return
    # All of the set is reached: what is near the ends, and what is between.
    some = (
        np.linspace(max(held.low, -3) + 1e-2, min(held.high, 3) - 1e-2, 7) if not held.truth else np.array([0.0, 1.0])
    )
    assert all(np.abs(x - one).min() < 0.1 for one in some)


def test_statements_of_one_input_are_one_set() -> None:
    assert read_assumptions(["x >= 0", "x != 0"])["x"] == Assumption(low=0.0, above=True)
    assert read_assumptions(["x >= 0", "x <= 1"])["x"] == read_assumptions({"x": "in [0, 1]"})["x"]
    assert read_assumptions(["x in {0, 1}", "x != 0"])["x"] == Assumption(1.0, 1.0)
    assert str(read_assumptions(["x finite"])["x"]) == "finite"


def test_choice_that_leaves_out_zero_is_not_zero() -> None:
    x = read("x", Axis("i", 4))

    def chosen(instead: Expr, compared: float) -> Expr:
        return op("where", op("eq", x, Const(compared)), instead, x)

    assert Facts().nonzero(chosen(Const(1.0), 0.0))
    assert not Facts().nonzero(chosen(Const(0.0), 0.0))
    assert not Facts().nonzero(chosen(Const(1.0), 2.0))


@pytest.mark.parametrize("n", [*range(-LARGEST_POWER - 1, 0), *range(2, LARGEST_POWER + 2)])
def test_small_whole_powers_are_products(n: int) -> None:
    x = POSITIVE.double()
    program = prism.trace(lambda a: a**n, (x,))
    powers = [e for d in program.definitions for e in walk(d.expr) if isinstance(e, Map) and e.op == "pow"]
    assert bool(powers) == (abs(n) > LARGEST_POWER)
    assert program.conformance is not None
    assert program.conformance.draws


def test_the_command_takes_statements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape: list[str | int | None] = ["n", 4]
    for name, ops in (("a", ("Log", "Exp")), ("b", ("Identity",))):
        between = ["x", *(f"v{n}" for n in range(len(ops) - 1)), "y"]
        nodes = [helper.make_node(o, [s], [t]) for o, s, t in zip(ops, between[:-1], between[1:], strict=True)]
        ends = [helper.make_tensor_value_info(t, TensorProto.FLOAT, shape) for t in ("x", "y")]
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / f"{name}.onnx")
    models = [str(tmp_path / f"{name}.onnx") for name in ("a", "b")]
    assert main(["prove", *models, "--assume", "x >= 0.5", "--assume", "x < 7"]) == ExitCode.DONE
    assert "x in [0.5, 7)" in " ".join(capsys.readouterr().out.split())
    assert main(["prove", *models]) == ExitCode.NO_IMPROVEMENT
    assert main(["prove", *models, "--assume", "z > 0"]) == ExitCode.USAGE
