"""The specification accepts legal programs and rejects one broken clause at a time."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import sympy

from prism.errors import IllegalIRError
from prism.program.build import const, mul, op, position, read, reduce
from prism.program.extents import symbol
from prism.program.index import Axis, Index
from prism.program.nodes import Const, Definition, DType, Expr, Map, Program, Read, Size, SymbolRange, Tensor
from prism.program.spec import check

F32 = DType.FLOAT32
N = symbol("n")
M, J, K = Axis("i", 3), Axis("j", 4), Axis("k", 5)
NONE = Axis("o", 0)
INPUTS = (Tensor("x", (3, 5), F32), Tensor("w", (5, 4), F32), Tensor("m", (3, 4), DType.BOOL), Tensor("s", (N,), F32))
MATMUL = reduce("sum", K, mul(read("x", M, K), read("w", K, J)))
LEGAL = Program(
    "legal",
    INPUTS,
    (
        Definition("y", (M, J), MATMUL, F32),
        Definition("z", (M, J), op("where", read("m", M, J), read("y", M, J), const(-math.inf)), F32),
        Definition("t", (J, M), read("z", M, J), F32, view=True),
    ),
    ("t", "y"),
    {"n": SymbolRange(1, 64, 8)},
    {"w": np.zeros((5, 4), np.float32)},
)


def with_definition(expr: Expr, axes: tuple[Axis, ...] = (M, J), view: bool = False) -> Program:
    return dataclasses.replace(
        LEGAL, definitions=(*LEGAL.definitions, Definition("bad", axes, expr, F32, view=view)), outputs=("bad",)
    )


def test_a_legal_program_passes() -> None:
    check(LEGAL)
    check(dataclasses.replace(with_definition(const(0), (NONE,)), inputs=(*INPUTS, Tensor("e", (0, 3), F32))))
    shifted = Index.axis(K) + (-1)
    guarded = op("where", op("le", const(1), position(K)), Read("x", (Index.axis(M), shifted)), const(0))
    check(with_definition(reduce("sum", K, guarded), (M,)))


WIDE_J = Axis("j", 9)
ILLEGAL: dict[str, tuple[Program, str]] = {
    "program name": (dataclasses.replace(LEGAL, name="my model"), "not an identifier"),
    "keyword": (dataclasses.replace(LEGAL, inputs=(*INPUTS, Tensor("for", (1,), F32))), "not an identifier"),
    "name taken": (dataclasses.replace(LEGAL, inputs=(*INPUTS, INPUTS[0])), "taken twice"),
    "no outputs": (dataclasses.replace(LEGAL, outputs=()), "no outputs"),
    "output is an input": (dataclasses.replace(LEGAL, outputs=("x",)), "not a definition"),
    "unknown tensor": (with_definition(read("nowhere", M)), "neither an input nor an earlier definition"),
    "reads itself": (with_definition(read("bad", M, J)), "neither an input nor an earlier definition"),
    "rank": (with_definition(read("x", M)), "2 dimensions and is read with 1"),
    "free axis": (with_definition(read("x", M, K)), "axis k of extent 5 is free"),
    "axes of one name": (with_definition(read("x", M, 0), (M, M)), "axes of one name"),
    "another extent": (with_definition(reduce("sum", WIDE_J, read("x", M, 0))), "bound with extent 9"),
    "arity": (with_definition(Map("add", (read("y", M, J),))), "takes 2 operands and has 1"),
    "unknown operation": (with_definition(Map("softmax", (read("y", M, J),))), "no operation 'softmax'"),
    "number as truth": (with_definition(op("where", read("y", M, J), const(1), const(0))), "takes a truth value"),
    "not of a number": (with_definition(op("not", read("y", M, J))), "takes a truth value"),
    "symbol without range": (dataclasses.replace(LEGAL, ranges={}), "symbol n has no range"),
    "range": (dataclasses.replace(LEGAL, ranges={"n": SymbolRange(1, 64, 65)}), "hint 65"),
    "extent -1": (dataclasses.replace(LEGAL, inputs=(*INPUTS, Tensor("e", (-1,), F32))), "less than 0"),
    "computed extent 0": (with_definition(read("s", NONE), (NONE,)), "less than 1"),
    "reduced extent 0": (with_definition(reduce("sum", NONE, read("s", NONE)), ()), "less than 1"),
    "read of no elements": (
        dataclasses.replace(
            with_definition(Read("e", (Index.axis(M),)), (M,)), inputs=(*INPUTS, Tensor("e", (0,), F32))
        ),
        "e is read and has no elements",
    ),
    "sympy number": (dataclasses.replace(LEGAL, inputs=(*INPUTS, Tensor("e", (sympy.Integer(3),), F32))), "not an int"),
    "out of bounds": (with_definition(Read("x", (Index.axis(M) + 1, Index.const(0)))), "leaves dimension 0 of x"),
    "below 0": (with_definition(Read("x", (Index.axis(M) + (-1), Index.const(0)))), "leaves dimension 0 of x"),
    "symbolic bound": (with_definition(Read("s", (Index.axis(Axis("a", N + 1)),)), (Axis("a", N + 1),)), "leaves"),
    "view": (with_definition(mul(read("y", M, J), const(2)), view=True), "a view must be a single read"),
    "NaN": (with_definition(Const(math.nan)), "NaN"),
    "known size": (with_definition(Size(3)), "must be a constant"),
    "weight of nothing": (dataclasses.replace(LEGAL, weights={"v": np.zeros(3)}), "not an input"),
    "weight's shape": (dataclasses.replace(LEGAL, weights={"w": np.zeros((4, 5))}), "has shape"),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_an_illegal_program_is_rejected_by_the_clause_it_breaks(case: str) -> None:
    program, reason = ILLEGAL[case]
    with pytest.raises(IllegalIRError, match=reason) as caught:
        check(program)
    assert caught.value.where
