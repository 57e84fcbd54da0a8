"""What rounded numbers of positions decide is computed as the model does, or is not read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from prism.api import trace
from prism.cost.constant_folding import fold_constants
from prism.errors import UnsupportedError
from prism.frontend.onnx.islands import cut
from prism.frontend.onnx.reader import from_model
from prism.platforms.stock import Stock
from prism.program import build
from prism.program.decided import Exactness
from prism.program.evaluate import evaluate
from prism.program.fold import div, op
from prism.program.formulas import quotient
from prism.program.index import Axis
from prism.program.integers import REAL, interval
from prism.program.nodes import Const, DType, Expr


def t5(x: torch.Tensor, both: bool = True, buckets: int = 32, furthest: int = 128) -> torch.Tensor:
    """T5's buckets, as transformers has them."""
    apart = torch.arange(x.shape[1])[None] - torch.arange(x.shape[0])[:, None]
    first: torch.Tensor | int = 0
    if both:
        buckets //= 2
        first = (apart > 0).to(torch.long) * buckets
        apart = apart.abs()
    else:
        apart = -torch.min(apart, torch.zeros_like(apart))
    exact = buckets // 2
    far = torch.log(apart.float() / exact) / math.log(furthest / exact) * (buckets - exact)
    large = torch.min(exact + far.to(torch.long), torch.full_like(apart, buckets - 1))
    return first + torch.where(apart < exact, apart, large) + 0 * x.long()


def deberta(x: torch.Tensor, buckets: int = 8, furthest: int = 64) -> torch.Tensor:
    """DeBERTa's buckets."""
    apart = torch.arange(x.shape[0])[:, None] - torch.arange(x.shape[1])[None]
    mid = buckets // 2
    near = torch.where((apart < mid) & (apart > -mid), torch.tensor(mid - 1).type_as(apart), apart.abs())
    far = torch.ceil(torch.log(near / mid) / torch.log(torch.tensor((furthest - 1) / mid)) * (mid - 1)) + mid
    return torch.where(near <= mid, apart.type_as(far), far * torch.sign(apart)).long() + 0 * x.long()


def compared(x: torch.Tensor) -> torch.Tensor:
    """A mask by a logarithm, which is 2 where float64 has less."""
    d = torch.arange(x.shape[1]).float()
    return torch.where(torch.log(d / 8) / math.log(16) * 8 < 2, x, 0)


FUNCTIONS = {"T5": t5, "T5's decoder": lambda x: t5(x, both=False), "DeBERTa": deberta, "compared": compared}


@pytest.mark.parametrize("shape", [(40, 40), (17, 64), (130, 150)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_buckets_of_fixed_lengths_are_what_torch_computes(name: str, shape: tuple[int, int]) -> None:
    x = torch.rand(shape)
    program = fold_constants(trace(FUNCTIONS[name], (x,)))
    (found,) = evaluate(program, {program.arguments[0].name: x.double().numpy()}).values()
    np.testing.assert_array_equal(found, FUNCTIONS[name](x).double().numpy())


@pytest.mark.parametrize("function", [t5, compared])
def test_at_free_lengths_what_rounding_decides_is_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    dims = {d: torch.export.Dim(f"n{d}", min=2, max=300) for d in (0, 1)}
    with pytest.raises(UnsupportedError, match="rounding decides what it makes of positions"):
        trace(function, (torch.rand(40, 40),), dynamic_shapes=(dims,))


def test_at_free_lengths_what_is_exact_is_read() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[0])
        return torch.where(torch.floor(place.float() * 0.25 + 0.5) < (place // 3).float(), x, 0)

    program = trace(halves, (torch.rand(12),), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=300)},))
    for n in (5, 12, 49, 151):
        x = torch.rand(n)
        (found,) = evaluate(program, {program.arguments[0].name: x.double().numpy()}).values()
        np.testing.assert_array_equal(found, halves(x).double().numpy())


def test_what_a_type_holds_is_exact() -> None:
    place = build.position(Axis("i", 4096))

    def decides(dtype: DType, *operands: Expr) -> bool:
        bounds = Exactness(dtype, lambda e: interval(e, lambda _: REAL), {})
        return bounds.decides(operands, quotients=True)

    half = op("mul", place, Const(0.5))
    assert decides(DType.FLOAT32, op("add", half, Const(0.25)))
    assert decides(DType.FLOAT32, half, op("where", op("lt", place, Const(3.0)), Const(-math.inf), Const(0.0)))
    assert not decides(DType.BFLOAT16, half), "its places go up to 256"
    assert decides(DType.FLOAT32, quotient(place, Const(3.0)))
    assert decides(DType.FLOAT32, quotient(place, Const(3.0)), Const(7.0))
    assert not decides(DType.FLOAT32, quotient(place, Const(3.0)), Const(0.5))
    assert not decides(DType.FLOAT32, div(place, Const(3.0)))
    assert not decides(DType.FLOAT32, op("add", quotient(place, Const(3.0)), Const(0.5)))
    assert not decides(DType.FLOAT32, op("log", place))
    assert decides(DType.FLOAT32, op("log", place), Const(-math.inf))
    assert decides(DType.FLOAT32, Const(0.1), Const(0.0))
    assert decides(DType.FLOAT32, Const(0.1))
    assert not decides(DType.FLOAT32, Const(3 * 0.1), Const(0.3))
    assert not decides(DType.FLOAT32, Const(math.log(8) / math.log(2) - 1e-9))


def buckets(decided: str, length: str = "n") -> onnx.ModelProto:
    """A number beside what is decided of d, which is 1 more than two places are apart."""
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17]>
    m (float[{length}, {length}] x) => (float[{length}, {length}] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{-1}}, float eight = {{8}}, float third = {{3}},
     float width = {{2.7725887}}, float two = {{2}}, int64[1] front = {{0}}> {{
        shape = Shape(x)
        many = Gather(shape, zero)
        place = Range(zero, many, one)
        row = Unsqueeze(place, last)
        column = Unsqueeze(place, front)
        apart = Sub(column, row)
        size = Abs(apart)
        beside = Add(size, one)
        d = Cast <to = 1> (beside)
        {decided}
        number = Cast <to = 1> (bucket)
        negative = Neg(x)
        y = Add(negative, number)
    }}""")


LOGARITHM = "a = Div(d, eight) b = Log(a) c = Div(b, width) e = Mul(c, eight) "
ROUNDED = {
    "Cast": LOGARITHM + "bucket = Cast <to = 7> (e)",
    "Floor": LOGARITHM + "bucket = Floor(e)",
    "Less": LOGARITHM + "bucket = Less(e, two)",
}
EXACT = {
    "a quotient": "a = Div(d, third) bucket = Floor(a)",
    "a cast quotient": "a = Div(d, third) bucket = Cast <to = 7> (a)",
    "a half": "a = Div(d, two) bucket = Cast <to = 7> (a)",
    "places": "bucket = Less(d, eight)",
}


@pytest.mark.parametrize("name", ROUNDED)
def test_in_a_model_what_rounding_decides_at_free_lengths_stays(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = buckets(ROUNDED[name])
    onnx.save(model, tmp_path / "m.onnx")
    parts = cut(tmp_path / "m.onnx")
    assert {k.op for k in parts.kept.values()} == {name}
    assert all("rounding decides it" in k.why for k in parts.kept.values())
    with pytest.raises(UnsupportedError, match="rounding decides it"):
        from_model(model, "m", None)


@pytest.mark.parametrize("name", EXACT)
def test_in_a_model_what_is_exact_is_read(name: str) -> None:
    pytest.importorskip("onnxruntime")
    model = buckets(EXACT[name])
    program = from_model(model, "m", None)
    for n in (7, 40, 150):
        x = np.random.default_rng(n).random((n, n), dtype=np.float32)
        (expected,) = Stock(model.SerializeToString(), "m").run({"x": x}, ["x"]).values()
        (found,) = evaluate(program, {"x": x.astype(np.float64)}).values()
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_weights_decide_is_folded_though_it_is_not_worth_its_bytes() -> None:
    pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
    m (float[40] x) => (float[40] y) <float eight = {8}, float width = {2.7725887}> {
        a = Div(d, eight) b = Log(a) c = Div(b, width) e = Mul(c, eight)
        bucket = Cast <to = 7> (e)
        number = Cast <to = 1> (bucket)
        y = Add(x, number)
    }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(8, 48, dtype=np.float32), "d"))
    program = fold_constants(from_model(model, "m", None))
    x = np.zeros(40, np.float32)
    (expected,) = Stock(model.SerializeToString(), "m").run({"x": x}, ["x"]).values()
    (found,) = evaluate(program, {"x": x.astype(np.float64)}).values()
    np.testing.assert_array_equal(found, expected)
    assert expected[8] == 2.0


def test_what_torch_has_in_double_precision_stays_a_formula_of_the_same_values() -> None:
    """`tril_indices` takes floors of square roots; 435 pairs are too many to be followed one by one."""

    def below(x: torch.Tensor) -> torch.Tensor:
        first, second = torch.tril_indices(30, 30, -1)
        return x[first] + 100 * x[second]

    program = trace(below, [torch.arange(30.0)])
    assert not program.weights
    (found,) = evaluate(program, {"x": np.arange(30)}).values()
    np.testing.assert_array_equal(found, below(torch.arange(30.0)).numpy())
