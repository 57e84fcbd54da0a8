"""Exponentials to the base 2: where log2 e goes, and that results stay what they were."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import sgraph_samples as samples
from sgraph_samples import BF16, F32, SAMPLES, Sample
from test_ranges import CAUSAL, narrowed, resized
from tile_simulator import run_module

from prism.backends.lower import lower
from prism.backends.passes.exponents import LOG2_E, binary
from prism.backends.tile import For, Full, Pointwise, Stmt, Store, TileModule, TileProgram
from prism.backends.tile_rewrite import value_dims
from prism.backends.tile_spec import check_module
from prism.backends.triton.emit import emit_module
from prism.ir.kit import statements
from prism.program.nodes import DType
from prism.sgraph.nodes import SGraph


def operations(p: TileProgram) -> Counter[str]:
    return Counter(s.op for s in statements(p.body) if isinstance(s, Pointwise))


def numbers(p: TileProgram) -> list[float]:
    return [a for s in statements(p.body) if isinstance(s, Pointwise) for a in s.args if isinstance(a, float)]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("build", SAMPLES)
def test_no_exponential_to_another_base_is_left(build: Callable[[DType], Sample], dtype: DType) -> None:
    module = lower(build(dtype).sgraph)
    changed = module.over(binary)
    check_module(changed)
    for old, new in zip(module.programs, changed.programs, strict=True):
        before, after = operations(old), operations(new)
        assert (after["exp"], after["exp2"]) == (0, before["exp"])
        if not before["exp"]:
            assert new == old


def test_the_scale_goes_into_the_exponent() -> None:
    (old,) = lower(samples.attention(d=16).sgraph).programs
    (new,) = lower(samples.attention(d=16).sgraph).over(binary).programs
    # One product of the scores moves; those of the maximum, and of its change, are of rows.
    assert operations(new) == operations(old) - Counter(exp=2) + Counter(exp2=2, mul=2)
    dims = value_dims(new)
    products = [dims[s.dst] for s in statements(new.body) if isinstance(s, Pointwise) and _scales(s)]
    assert sorted(map(len, products)) == [1, 1, 2]
    assert 0.25 in numbers(old)
    assert 0.25 not in numbers(new)


def _scales(s: Pointwise) -> bool:
    return s.op == "mul" and any(isinstance(a, float) and math.isclose(a, 0.25 * LOG2_E) for a in s.args)


def test_where_scores_are_masked_by_numbers_the_factor_goes_into_the_scale() -> None:
    module = scaled_by(samples.attention(d=16).sgraph, -1e9)
    check_module(module)
    (new,) = module.over(binary).programs
    assert operations(new) == operations(module.programs[0]) - Counter(exp=2) + Counter(exp2=2)
    assert sum(_scales(s) for s in statements(new.body) if isinstance(s, Pointwise)) == 1


def scaled_by(g: SGraph, start: float) -> TileModule:
    """The module, whose running extremes begin with a number."""
    module = lower(g)
    (program,) = module.programs
    body = [replace(s, value=start) if isinstance(s, Full) and math.isinf(s.value) else s for s in program.body]
    return replace(module, launches=(replace(module.launches[0], programs=(replace(program, body=tuple(body)),)),))


def test_without_a_scale_there_is_a_product() -> None:
    sample = resized(CAUSAL, 37, 37)
    (old,) = lower(sample.sgraph()).programs
    (new,) = lower(sample.sgraph()).over(binary).programs
    assert operations(new)["mul"] == operations(old)["mul"] + 2


def scaled_split() -> TileModule:
    """A split attention whose scores are scaled, and whose running maximum is stored."""
    module = lower(samples.split_attention().sgraph)
    first, *rest = module.programs
    first = replace(first, body=tuple(with_scale(first.body)))
    launches = (replace(module.launches[0], programs=(first,)), *module.launches[1:])
    assert len(rest) == 1
    return replace(module, launches=launches)


def test_a_maximum_that_is_stored_is_stored_as_it_was() -> None:
    module = scaled_split()
    check_module(module)
    changed = module.over(binary)
    check_module(changed)
    first = changed.programs[0]
    assert any(math.isclose(n, 0.25 * LOG2_E) for n in numbers(first))
    stored = next(s.src for s in statements(first.body) if isinstance(s, Store) and s.tensor == "part_m")
    made = next(s for s in first.body if isinstance(s, Pointwise) and s.dst == stored)
    assert made.op == "mul"
    assert made.args[1] == 0.25
    sample = samples.split_attention()
    symbols = dict(sample.symbols[0])
    inputs = sample.inputs({})
    (want,) = run_module(module, inputs, symbols)[0].values()
    (got,) = run_module(changed, inputs, symbols)[0].values()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.nanmax(np.abs(want)))


@pytest.mark.parametrize(
    "build", [samples.attention, samples.split_attention, samples.grouped_attention, samples.gated_mlp]
)
def test_results_stay_what_they_were(build: Callable[..., Sample]) -> None:
    sample = build()
    inputs, symbols = sample.inputs({}), dict(sample.symbols[0])
    module = lower(narrowed(sample.sgraph))
    wanted, _ = run_module(module, inputs, symbols)
    for name, got in run_module(module.over(binary), inputs, symbols)[0].items():
        np.testing.assert_allclose(got, wanted[name], rtol=0, atol=2e-6 * np.nanmax(np.abs(wanted[name])))


@pytest.mark.parametrize("hidden", [float("-inf"), -1e9, float(np.finfo(np.float32).min)])
def test_what_a_mask_hides_with_stays_finite_or_not(hidden: float) -> None:
    # Rows that see nothing average the values if the mask is a number, and have no result if it is -inf.
    sample = replace(resized(((CAUSAL[0][0], CAUSAL[0][1] + 9, CAUSAL[0][2]),), 37, 37), hidden=hidden)
    (plain,) = lower(sample.sgraph()).programs
    scaled = tuple(with_scale(plain.body))
    module = lower(sample.sgraph())
    module = replace(module, launches=(replace(module.launches[0], programs=(replace(plain, body=scaled),)),))
    check_module(module)
    drawn = list(sample.draw().values())
    binding = {"T_i": 16, "T_j": 16}
    want = run_module(module, drawn, binding)[0]["y"]
    got = run_module(module.over(binary), drawn, binding)[0]["y"]
    assert np.isnan(want[: 9 * 16]).all() == math.isinf(hidden)
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-6)


def with_scale(body: Sequence[Stmt]) -> list[Stmt]:
    """The statements with scores scaled by 1/4."""
    made: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            made.append(replace(s, body=tuple(with_scale(s.body))))
        elif isinstance(s, Pointwise) and s.op == "where" and s.args[1] == "dot":
            made.append(Pointwise("score", "mul", ("dot", 0.25), s.dims, F32))
            made.append(replace(s, args=(s.args[0], "score", s.args[2])))
        else:
            made.append(s)
    return made


def test_the_numbers_of_extremes_are_scaled_with_them() -> None:
    (new,) = lower(samples.attention().sgraph).over(binary).programs
    starts = [s.value for s in statements(new.body) if isinstance(s, Full)]
    assert starts.count(float("-inf")) == 1


def test_what_is_emitted() -> None:
    text = emit_module(narrowed(samples.attention(BF16).sgraph), formula="f", configs={}).text
    assert "tl.exp2(" in text
    assert "tl.exp(" not in text
    assert re.search(rf"\w+ = chosen \* {20**-0.5 * LOG2_E!r} \+ \(-shift \* {20**-0.5 * LOG2_E!r}\)", text)


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_large_scores_are_no_less_exact_than_their_own_rounding(size: float) -> None:
    sample = samples.attention(d=16)
    inputs, symbols = sample.inputs({}), dict(sample.symbols[0])
    inputs[0] = inputs[0] * np.float32(size)
    module = lower(narrowed(sample.sgraph))
    got = run_module(module.over(binary), inputs, symbols)[0]["y"]
    (want,) = sample.reference(*(x.astype(np.float64) for x in inputs))
    scores = np.abs(np.einsum("...id,...jd->...ij", *(x.astype(np.float64) for x in inputs[:2]))).max() / 4
    np.testing.assert_allclose(
        got, want.ravel(), rtol=0, atol=(4 + 2 * LOG2_E * scores) * 2**-24 * np.abs(inputs[2]).max()
    )
