"""Lowering: what the tile programs of hand-written sGraphs must look like, and what the specification refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import sgraph_samples as samples
from sgraph_samples import BF16, F16, F32, SAMPLES, Sample

from prism.backends.lower import lower
from prism.backends.tile import (
    Cast,
    Dot,
    For,
    Full,
    InBounds,
    Load,
    Pointwise,
    Precision,
    Rearrange,
    Reduce,
    Scalar,
    Select,
    Store,
    TileProgram,
    Update,
)
from prism.backends.tile_spec import check, check_module
from prism.errors import IllegalIRError, UnsupportedError
from prism.ir.kit import statements
from prism.program.extents import evaluate
from prism.program.nodes import DType, ReduceKind

T = TypeVar("T")


def program(sample: Sample, number: int = 0) -> TileProgram:
    return lower(sample.sgraph).programs[number]


def of_kind(p: TileProgram, kind: type[T]) -> list[T]:
    return [s for s in statements(p.body) if isinstance(s, kind)]


def of_kinds(p: TileProgram, *kinds: type) -> list[Any]:
    return [s for s in statements(p.body) if isinstance(s, kinds)]


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("build", SAMPLES)
def test_every_sample_lowers_to_a_legal_module(build: Callable[[DType], Sample], dtype: DType) -> None:
    check_module(lower(build(dtype).sgraph))


def test_a_matrix_product_is_accumulated_in_place_on_operands_as_loaded() -> None:
    p = program(samples.matmul(BF16))
    (dot,) = of_kind(p, Dot)
    loads = {s.dst: s for s in of_kind(p, Load)}
    assert dot.add == dot.dst
    assert loads[dot.lhs].dims == ("m", "k")
    assert loads[dot.rhs].dims == ("k", "n")
    assert loads[dot.lhs].dtype is BF16
    # Loads with a mask are zero outside, so nothing is selected before the sum over k.
    assert not of_kind(p, Select)
    assert not of_kind(p, Rearrange)


def test_the_contracted_tile_is_at_least_sixteen() -> None:
    least = {c.name: c.least for c in program(samples.matmul()).constants}
    assert least == {"T_m": 1, "T_n": 1, "T_k": 16}


def test_float32_products_are_exact() -> None:
    (dot,) = of_kind(program(samples.matmul(F32)), Dot)
    assert dot.precision is Precision.IEEE


@pytest.mark.parametrize(("dtype", "precision"), [(BF16, Precision.IEEE), (F16, Precision.TF32)])
def test_a_computed_operand_is_rounded_only_where_it_fits(dtype: DType, precision: Precision) -> None:
    # x * g may exceed float16, so that product runs on float32 operands with ten bits of fraction.
    p = program(samples.rmsnorm_linear(dtype))
    (dot,) = of_kind(p, Dot)
    types = {s.dst: s.dtype for s in of_kinds(p, Cast, Load, Pointwise)}
    assert dot.precision is precision
    assert types[dot.lhs] is (BF16 if dtype is BF16 else F32)
    assert types[dot.rhs] is types[dot.lhs]


def test_the_probabilities_of_attention_are_rounded_to_the_type_of_the_values() -> None:
    p = program(samples.attention(F16))
    score, value = of_kind(p, Dot)
    types = {s.dst: s.dtype for s in of_kinds(p, Cast, Load)}
    assert types[score.lhs] is types[score.rhs] is F16
    assert types[value.lhs] is types[value.rhs] is F16


def test_a_rescaled_accumulator_is_guarded_against_rows_that_saw_nothing() -> None:
    p = program(samples.attention())
    (guard,) = [s for s in of_kind(p, Pointwise) if s.op == "where" and s.args[1] == 0.0]
    (is_empty,) = [s for s in of_kind(p, Pointwise) if s.dst == guard.args[0]]
    assert is_empty.op == "eq"
    assert is_empty.args[1] == float("-inf")
    factors = [s for s in of_kind(p, Update) if s.kind is ReduceKind.PROD]
    assert len(factors) == 2
    assert len({s.src for s in factors}) == 1


def test_elements_outside_a_ragged_axis_are_minus_infinity_in_a_maximum() -> None:
    p = program(samples.moments())
    fills = {s.dst: s.otherwise for s in of_kind(p, Select)}
    by_kind = {s.kind: fills.get(s.src) for s in of_kind(p, Reduce)}
    # The sum's operand is a masked load, zero outside already; a product of cosines is not one there.
    assert by_kind == {
        ReduceKind.SUM: None,
        ReduceKind.MAX: float("-inf"),
        ReduceKind.MIN: float("inf"),
        ReduceKind.PROD: 1.0,
    }


def test_a_whole_axis_of_a_power_of_two_needs_no_mask() -> None:
    p = program(samples.split_attention())
    assert {s.high for s in of_kind(p, InBounds)} == {4, 45}
    p = program(samples.attention(d=20))
    assert {s.high for s in of_kind(p, InBounds)} == {37, 20}


def test_a_read_that_may_leave_the_tensor_is_bounded_on_both_sides() -> None:
    p = program(samples.rotated())
    bounds = [(s.low, s.high) for s in of_kind(p, InBounds) if s.tile is None]
    assert bounds == [(0, None), (None, 12)]
    masks = {s.tensor: len(s.masks) for s in of_kind(p, Load)}
    assert masks == {"x": 2, "table": 2}


def test_a_split_shares_whole_tiles() -> None:
    p = program(samples.split_k_matmul())
    chunk = of_kind(p, Scalar)[0]
    # 100 elements are 7 tiles, so each of 4 parts has 2 of them.
    assert evaluate(chunk.value, {"S_k": 4, "T_k": 16}) == 32
    assert p.grid[-1].index == "pid_k_part"


def test_heads_and_queries_are_packed_into_the_rows_of_a_product() -> None:
    p = program(samples.grouped_attention())
    assert ("h", "i") in [tuple(a.name for a in d.axes) for d in p.dims]
    assert not of_kind(p, Rearrange)
    assert all(s.add is None or s.add == s.dst for s in of_kind(p, Dot))


def test_axes_that_cannot_be_packed_are_rearranged_for_the_product() -> None:
    p = program(samples.heads_projection())
    (dot,) = of_kind(p, Dot)
    before, after = of_kind(p, Rearrange)
    assert before.dst == dot.lhs
    assert before.groups == (("m", "h"), ("d",))
    assert after.src == dot.dst


def test_a_vector_loop_reduces_once_after_it() -> None:
    p = program(samples.layernorm())
    loops = of_kind(p, For)
    assert not any(isinstance(s, Reduce) for loop in loops for s in loop.body)
    assert len(of_kind(p, Reduce)) == 2
    # Where matrix products need the registers, the sum of squares is reduced tile by tile.
    (loop,) = of_kind(program(samples.rmsnorm_linear()), For)
    assert any(isinstance(s, Reduce) for s in loop.body)


def test_a_sum_of_loaded_tiles_with_several_uses_is_reduced_after_its_loop() -> None:
    # Triton's own pass that moves the reduction there takes it for granted that the result has one use.
    p = program(samples.row_sums(F32))
    (loop,) = of_kind(p, For)
    assert any(isinstance(s, Dot) for s in loop.body)
    assert not any(isinstance(s, Reduce) for s in loop.body)


def test_only_the_first_program_stores_what_its_grid_axis_does_not_change() -> None:
    p = program(samples.row_sums())
    masks = {s.dst: s for s in of_kind(p, InBounds)}
    y, total = of_kind(p, Store)
    assert [masks[m].dims for m in y.masks] == [("m",), ("n",)]
    (first,) = [masks[m] for m in total.masks if not masks[m].dims]
    assert first.index.terms == (("pid_n", 1),)
    assert first.high == 1


def test_an_operand_of_products_alone_is_loaded_in_their_order() -> None:
    # The axis d is contracted first and kept later: no order of dimensions suits both products.
    p = program(samples.shared_axis_attention())
    score, value = of_kind(p, Dot)
    dims = {s.dst: s.dims for s in of_kind(p, Load)}
    assert dims[score.lhs] == ("i", "d")
    assert dims[score.rhs] == ("d", "j")
    assert dims[value.rhs] == ("j", "d")
    assert not of_kind(p, Rearrange)


def test_a_tensor_beyond_two_to_the_31_has_64_bit_offsets() -> None:
    p = program(samples.add_silu(m=1 << 20, n=4096))
    assert all(s.offset.wide for s in of_kinds(p, Load, Store))
    p = program(samples.add_silu())
    assert not any(s.offset.wide for s in of_kinds(p, Load, Store))


def test_an_axis_of_length_one_has_no_dimension() -> None:
    p = program(samples.matmul(m=1))
    assert {d.name for d in p.dims} == {"k", "n"}
    assert not of_kind(p, Dot)
    assert len(p.grid) == 1


def test_float64_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="float64"):
        lower(samples.matmul(DType.FLOAT64).sgraph)


# The specification.


def broken(p: TileProgram, old: object, *new: object) -> TileProgram:
    """The program with one statement replaced."""

    def visit(body: tuple[object, ...]) -> tuple[object, ...]:
        made: list[object] = []
        for s in body:
            if s is old:
                made += new
            elif isinstance(s, For):
                made.append(replace(s, body=visit(s.body)))  # type: ignore[arg-type]
            else:
                made.append(s)
        return tuple(made)

    return replace(p, body=visit(p.body))  # type: ignore[arg-type]


def test_the_specification_refuses_a_value_that_is_not_there() -> None:
    p = program(samples.matmul())
    check(p)
    with pytest.raises(IllegalIRError, match="not defined"):
        check(broken(p, of_kind(p, Load)[0]))


def test_the_specification_refuses_a_mask_of_another_dimension() -> None:
    p = program(samples.matmul())
    x, w = of_kind(p, Load)
    with pytest.raises(IllegalIRError, match="dimensions"):
        check(broken(p, x, replace(x, masks=w.masks)))


def test_the_specification_refuses_mixed_operands_of_a_product() -> None:
    p = program(samples.matmul(BF16))
    x = of_kind(p, Load)[0]
    with pytest.raises(IllegalIRError, match="multiplies"):
        check(broken(p, x, replace(x, dtype=F32)))


def test_the_specification_refuses_a_product_of_swapped_operands() -> None:
    p = program(samples.matmul())
    (dot,) = of_kind(p, Dot)
    with pytest.raises(IllegalIRError, match="multiplies"):
        check(broken(p, dot, replace(dot, lhs=dot.rhs, rhs=dot.lhs)))


def test_the_specification_refuses_a_loop_value_after_its_loop() -> None:
    p = program(samples.matmul())
    store = of_kind(p, Store)[0]
    with pytest.raises(IllegalIRError, match="not defined"):
        check(broken(p, store, replace(store, src=of_kind(p, Load)[0].dst)))


def test_the_specification_refuses_an_update_of_what_is_no_accumulator() -> None:
    p = program(samples.attention())
    update = of_kind(p, Update)[0]
    with pytest.raises(IllegalIRError, match="no accumulator"):
        check(broken(p, update, replace(update, acc=of_kind(p, Reduce)[0].dst)))


def test_the_specification_refuses_a_store_in_another_type() -> None:
    p = program(samples.matmul(BF16))
    store = of_kind(p, Store)[0]
    (acc,) = of_kind(p, Full)
    with pytest.raises(IllegalIRError, match="not bfloat16"):
        check(broken(p, store, replace(store, src=acc.dst)))
